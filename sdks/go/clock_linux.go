package lowkey

import "golang.org/x/sys/unix"

// bootNanos reads the clock that decides about belief. It also runs while the machine is suspended.
func bootNanos() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		// Every Linux since 2.6.39 has this clock. A lock client that guesses is worse than one that stops.
		panic("lowkey: CLOCK_BOOTTIME cannot be read: " + err.Error())
	}
	return now.Nano()
}
