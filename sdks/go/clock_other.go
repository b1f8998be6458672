//go:build !linux && !darwin

package lowkey

// bootNanos reads the clock that decides about belief: the monotonic clock of the Go runtime. Where that clock
// stands still while the machine sleeps, a sleep is not noticed: only the fencing token protects then.
func bootNanos() int64 {
	return monoNanos()
}
