package lowkey

import "math"

const second = int64(1_000_000_000)

// validUntil tells until when a client may act as holder: 90 % of the time to live, from before the request
// that made or renewed the lease was first sent. A retry with the same request id keeps the first time.
//
// Belief never outlives the lease: the server starts a lease's time when the request arrives, which is after the
// client first sent it, and ends it no earlier than the whole time to live after that.
func validUntil(firstSentNanos, ttlSeconds int64) int64 {
	belief := ttlNanos(ttlSeconds) / 10 * 9
	if firstSentNanos > math.MaxInt64-belief {
		return math.MaxInt64
	}
	return firstSentNanos + belief
}

// validUntilAfterWait is the same for a lease that was made by an acquire which waited: its time began when the
// wait ended, and the wait is counted by the server.
func validUntilAfterWait(firstSentNanos, waitedMillis, ttlSeconds int64) int64 {
	return validUntil(firstSentNanos+max(waitedMillis, 0)*1_000_000/10*9, ttlSeconds)
}

// heldUntil is until when a grant with a limit is believed in, unless its lease ends before. Nothing extends it.
func heldUntil(firstSentNanos, waitedMillis, maxHoldSeconds int64) int64 {
	return validUntilAfterWait(firstSentNanos, waitedMillis, maxHoldSeconds)
}

// ttlNanos is a time to live in nanoseconds. The service allows 1 to 600 seconds, and a week for a limit.
func ttlNanos(ttlSeconds int64) int64 {
	return min(max(ttlSeconds, 0), math.MaxInt64/second) * second
}

// validity is until when one lease is valid, by the client's own clock.
//
// Invariants: until only ever grows, and only by making and renewing the lease. Once isLost, always isLost.
type validity struct {
	until      int64
	ttlSeconds int64
	isLost     bool
}

// renewed credits a renewal to the moment at which it was first sent. Answers may overtake each other: a late
// one takes nothing away. One that arrives after the end revives nothing.
func (v *validity) renewed(firstSentNanos, nowNanos int64) {
	if v.holdsAt(nowNanos) {
		v.until = max(v.until, validUntil(firstSentNanos, v.ttlSeconds))
	}
}

// holdsAt tells whether the client may act as holder at this time. If not, it never may again.
func (v *validity) holdsAt(nowNanos int64) bool {
	v.isLost = v.isLost || nowNanos >= v.until
	return !v.isLost
}

// holds is how many locks a lease holds, and a digest of their tokens. A renewal carries what the client
// believes to hold. Where it differs from what the leader has, the client reads its lease.
type holds struct {
	count  uint32
	digest uint64
}

func (h *holds) add(token uint64) {
	h.count++
	h.digest ^= mixToken(token)
}

func (h *holds) remove(token uint64) {
	h.count--
	h.digest ^= mixToken(token)
}

// mixToken spreads a token over 64 bits by the finishing steps of SplitMix64. Every client does the same.
func mixToken(token uint64) uint64 {
	mixed := token + 0x9e3779b97f4a7c15
	mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9
	mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb
	return mixed ^ (mixed >> 31)
}
