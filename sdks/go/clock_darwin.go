package lowkey

import "golang.org/x/sys/unix"

// bootNanos reads the clock that decides about belief. On macOS CLOCK_MONOTONIC also runs while the machine
// sleeps.
func bootNanos() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic("lowkey: CLOCK_MONOTONIC cannot be read: " + err.Error())
	}
	return now.Nano()
}
