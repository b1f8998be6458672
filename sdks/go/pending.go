package lowkey

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"lowkey/lowkeypb"
)

// Calls that are not answered yet.

const (
	// releasesOnTheWay is how many releases of one lease are on the way at once. Only those that nobody waits
	// for are counted. The service takes 128 operations of a lease at a time and refuses more: leave room for
	// other calls, and above all for the end of the session, which makes the other releases needless.
	releasesOnTheWay = 64
	// waitsOnTheWay and othersOnTheWay are how many waits for locks, and other calls, are on the way at once. The
	// rest is sent when some of them are answered. A node refuses a connection that has more than some 15,000
	// under way. Renewals, releases and revocations are always sent: the node has a reserve for them.
	waitsOnTheWay  = 8192
	othersOnTheWay = 4096
)

// outcome is what a caller is told: an answer, or an error.
type outcome struct {
	answer *lowkeypb.SessionAnswer
	err    *Error
}

// pendingCall is a call, and where its answer goes. Times are those of monoNanos; 0 stands for none.
type pendingCall struct {
	number   uint64
	call     *lowkeypb.SessionCall // never changed: it may be on its way
	deadline int64
	// waitUntil is the end of a wait for a lock. Only the time that is left is sent.
	waitUntil int64
	// patience: a node that says nothing for this long after the call was sent is doubted. 0 if it may be silent.
	patience time.Duration
	reply    func(outcome)
	// isTold: nobody waits for the answer.
	isTold bool

	sentAt   int64 // since when it is on the present stream
	inDoubt  bool  // a copy of it was not answered, or not clearly: it may be carried out, or may have been
	isPutOff bool  // it is not sent before its retry alarm
	isParked bool  // it waits until fewer releases of its lease are on the way
	backoff  backoff
	problem  *Error // why it is not answered yet, as far as is known

	deadlineAlarm, retryAlarm, doubtAlarm alarm[*pendingCall]
}

func newPendingCall(call *lowkeypb.SessionCall, now int64, limit, patience time.Duration) *pendingCall {
	p := &pendingCall{call: call, deadline: after(now, limit), patience: patience}
	if wait := call.GetAcquireLock().GetWaitMs(); wait > 0 {
		p.waitUntil = after(now, time.Duration(wait)*time.Millisecond)
		p.patience = 0
	}
	p.deadlineAlarm.item, p.retryAlarm.item, p.doubtAlarm.item = p, p, p
	return p
}

// toldReleaseOf is the lease, if this releases one of its locks and nobody waits for that.
func (p *pendingCall) toldReleaseOf() (uint64, bool) {
	release := p.call.GetReleaseLock()
	return release.GetLeaseId(), release != nil && p.isTold
}

func (p *pendingCall) changesSomething() bool {
	switch p.call.GetCall().(type) {
	case *lowkeypb.SessionCall_GetLock, *lowkeypb.SessionCall_GetLease, *lowkeypb.SessionCall_RenewLeases:
		return false
	default:
		return true
	}
}

// takenOff notes that the call is not on any stream any more.
func (p *pendingCall) takenOff() {
	p.inDoubt = p.inDoubt || p.sentAt != 0 && p.changesSomething()
	p.sentAt = 0
}

// overdue is what the caller is told when the time is up.
func (p *pendingCall) overdue() *Error {
	p.takenOff()
	switch {
	case p.problem == nil:
		return unavailable("no answer in time", p.inDoubt)
	case p.inDoubt:
		// The last answer was that nothing was done. The fate of an earlier copy is unknown.
		return p.problem.ofOneCopy()
	default:
		return p.problem
	}
}

// window is the calls of one class whose number on the way is limited.
type window struct {
	max      int
	onTheWay int
	// queue has calls to send when there is room, in order. It may contain calls that are gone.
	queue []*pendingCall
}

// releases are releases of one lease that nobody waits for.
type releases struct {
	onTheWay int
	parked   []*pendingCall // in order; it may contain calls that are gone
}

// pending has all calls that are not answered yet.
//
// Invariants: every call has its deadline alarm set, and a retry alarm exactly while it isPutOff. told is the
// number of calls that are told. The windows count the calls of their class that are on the stream.
type pending struct {
	calls     map[uint64]*pendingCall
	deadlines alarms[*pendingCall]
	retries   alarms[*pendingCall]
	doubts    alarms[*pendingCall]
	told      int
	releases  map[uint64]*releases
	waits     window
	others    window
}

func newPending() *pending {
	return &pending{
		calls: map[uint64]*pendingCall{}, releases: map[uint64]*releases{},
		waits: window{max: waitsOnTheWay}, others: window{max: othersOnTheWay},
	}
}

// windowOf is the window of a call, or nil if it is always sent.
func (p *pending) windowOf(c *pendingCall) *window {
	switch c.call.GetCall().(type) {
	case *lowkeypb.SessionCall_RenewLeases, *lowkeypb.SessionCall_ReleaseLock, *lowkeypb.SessionCall_RevokeLease:
		return nil
	}
	if c.waitUntil != 0 {
		return &p.waits
	}
	return &p.others
}

func (p *pending) insert(c *pendingCall) {
	p.calls[c.number] = c
	p.deadlines.set(&c.deadlineAlarm, c.deadline)
	if c.isTold {
		p.told++
	}
	if leaseID, ok := c.toldReleaseOf(); ok {
		of := p.releases[leaseID]
		if of == nil {
			of = &releases{}
			p.releases[leaseID] = of
		}
		if of.onTheWay < releasesOnTheWay {
			of.onTheWay++
		} else {
			of.parked = append(of.parked, c)
			c.isParked = true
			p.putOff(c, c.deadline)
		}
	}
	if revoke := c.call.GetRevokeLease(); revoke != nil {
		p.dropParked(revoke.GetLeaseId())
	}
}

func (p *pending) putOff(c *pendingCall, until int64) {
	c.isPutOff = true
	p.retries.set(&c.retryAlarm, until)
}

func (p *pending) remove(number uint64) *pendingCall {
	c := p.calls[number]
	if c == nil {
		return nil
	}
	delete(p.calls, number)
	if window := p.windowOf(c); window != nil && c.sentAt != 0 {
		window.onTheWay--
	}
	if c.isTold {
		p.told--
	}
	p.deadlines.unset(&c.deadlineAlarm)
	p.retries.unset(&c.retryAlarm)
	p.doubts.unset(&c.doubtAlarm)
	if leaseID, ok := c.toldReleaseOf(); ok && !c.isParked {
		p.releaseEnded(leaseID)
	}
	return c
}

// releaseEnded lets the next release of the lease go, since one is no longer on the way.
func (p *pending) releaseEnded(leaseID uint64) {
	of := p.releases[leaseID]
	for len(of.parked) > 0 {
		c := of.parked[0]
		of.parked = of.parked[1:]
		if p.calls[c.number] == nil {
			continue
		}
		c.isParked = false
		// Due at once.
		p.putOff(c, 0)
		return
	}
	of.onTheWay--
	if of.onTheWay == 0 {
		delete(p.releases, leaseID)
	}
}

// dropParked forgets the releases of a lease that were not sent yet: the lease is being ended, with everything
// that it holds.
func (p *pending) dropParked(leaseID uint64) {
	of := p.releases[leaseID]
	if of == nil {
		return
	}
	parked := of.parked
	of.parked = nil
	for _, c := range parked {
		if p.remove(c.number) != nil {
			c.reply(outcome{err: unavailable("the lease was ended", false)})
		}
	}
}

// toSend is the call as it must be sent now, or nil if it must wait. On a slow connection with this latency,
// patience is longer.
func (p *pending) toSend(number uint64, now int64, latency time.Duration) *lowkeypb.SessionCall {
	c := p.calls[number]
	if c == nil || c.isPutOff {
		return nil
	}
	if window := p.windowOf(c); window != nil && c.sentAt == 0 {
		if window.onTheWay >= window.max {
			window.queue = append(window.queue, c)
			return nil
		}
		window.onTheWay++
	}
	c.sentAt = max(now, 1)
	if c.patience > 0 {
		p.doubts.set(&c.doubtAlarm, after(now, max(c.patience, 3*latency)))
	}
	if c.waitUntil == 0 {
		return &lowkeypb.SessionCall{Seq: number, Call: c.call.GetCall()}
	}
	acquire := proto.CloneOf(c.call.GetAcquireLock())
	// Not 0: that would mean "do not wait".
	acquire.WaitMs = max((c.waitUntil-now)/int64(time.Millisecond), 1)
	return &lowkeypb.SessionCall{Seq: number, Call: &lowkeypb.SessionCall_AcquireLock{AcquireLock: acquire}}
}

// nextWithRoom is the next call that waits for room, if there is room; 0 if not.
func (p *pending) nextWithRoom() uint64 {
	for _, window := range []*window{&p.others, &p.waits} {
		if window.onTheWay < window.max && len(window.queue) > 0 {
			c := window.queue[0]
			window.queue = window.queue[1:]
			return c.number
		}
	}
	return 0
}

// unanswered are all calls that a new stream must carry, in the order in which they were made.
func (p *pending) unanswered() []uint64 {
	return slices.Sorted(maps.Keys(p.calls))
}

// streamLeft notes that the stream is gone, or left. The calls that it carried may have been carried out.
func (p *pending) streamLeft() {
	p.doubts.clear()
	p.waits = window{max: waitsOnTheWay}
	p.others = window{max: othersOnTheWay}
	for _, c := range p.calls {
		c.takenOff()
	}
}

// answer gives the answer to its caller. It returns how long it took if it was wanted at once.
func (p *pending) answer(number uint64, told outcome, now int64) time.Duration {
	c := p.remove(number)
	if c == nil {
		return 0
	}
	if told.err != nil {
		told.err.inDoubt = told.err.inDoubt || c.inDoubt
	}
	c.reply(told)
	if c.patience == 0 || c.sentAt == 0 {
		return 0
	}
	return time.Duration(now - c.sentAt)
}

// retry puts off a call after a refusal for the moment. It returns false if there is no such call.
func (p *pending) retry(number uint64, refused *Error, now int64) bool {
	c := p.calls[number]
	if c == nil {
		return false
	}
	retryAt := after(now, c.backoff.pause(refused.RetryAfter))
	took := int64(0)
	if c.sentAt != 0 {
		took = now - c.sentAt
		if window := p.windowOf(c); window != nil {
			window.onTheWay--
		}
	}
	c.sentAt = 0
	p.doubts.unset(&c.doubtAlarm)
	c.inDoubt = c.inDoubt || refused.OutcomeUnknown()
	// So far the outcome is certain. Another copy without enough time for an answer would make it doubtful. The
	// duration of a wait says nothing about that, and a call that nobody waits for is sent in any case.
	isCertain := c.changesSomething() && !c.inDoubt
	isAwaited := c.waitUntil == 0 && !c.isTold
	if isCertain && isAwaited && retryAt+took >= c.deadline {
		retryAt = c.deadline
	}
	c.problem = refused
	p.putOff(c, retryAt)
	return true
}

// noteProblem notes why there is no connection.
func (p *pending) noteProblem(problem *Error) {
	for _, c := range p.calls {
		c.problem = problem
	}
}

// limit has nothing tried for longer than this from now on.
func (p *pending) limit(deadline int64) {
	for _, c := range p.calls {
		if c.deadline > deadline {
			c.deadline = deadline
			p.deadlines.set(&c.deadlineAlarm, deadline)
		}
	}
}

// nextTime is when something is due next.
func (p *pending) nextTime() int64 {
	next := farFuture
	for _, alarms := range []*alarms[*pendingCall]{&p.deadlines, &p.retries, &p.doubts} {
		if first := alarms.first(); first != nil {
			next = min(next, first.at)
		}
	}
	return next
}

// takeOverdue answers the calls whose time is up, and returns their numbers.
func (p *pending) takeOverdue(now int64) []uint64 {
	var overdue []uint64
	for first := p.deadlines.first(); first != nil && first.at <= now; first = p.deadlines.first() {
		c := p.remove(first.item.number)
		c.reply(outcome{err: c.overdue()})
		overdue = append(overdue, c.number)
	}
	return overdue
}

// isDoubtful tells whether a call that wants an answer at once was sent, and the node has been silent since: no
// answer to it, nor anything else after heardAt.
func (p *pending) isDoubtful(now, heardAt int64) bool {
	isDoubtful := false
	for due := p.doubts.takeDue(now); due != nil; due = p.doubts.takeDue(now) {
		isDoubtful = isDoubtful || due.item.sentAt > heardAt
	}
	return isDoubtful
}

// takeRetries are the calls whose pause is over.
func (p *pending) takeRetries(now int64) []uint64 {
	var due []uint64
	for first := p.retries.takeDue(now); first != nil; first = p.retries.takeDue(now) {
		first.item.isPutOff = false
		due = append(due, first.item.number)
	}
	return due
}
