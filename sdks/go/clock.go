package lowkey

import "time"

// There are two clocks. Belief asks bootNanos. Pauses, retries and timeouts ask monoNanos, which is the clock
// that timers run by.

var processStart = time.Now()

// monoNanos is the time since the process began, by the monotonic clock.
func monoNanos() int64 {
	return int64(time.Since(processStart))
}

// farFuture is later than any program runs.
const farFuture = int64(30 * 365 * 24 * time.Hour)

// after is the moment that lies so much later, or one in the far future if that is more than can be counted.
func after(now int64, wait time.Duration) int64 {
	return now + min(int64(wait), farFuture)
}
