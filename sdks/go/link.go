package lowkey

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"lowkey/lowkeypb"
)

const (
	// leaderCheckInterval is how often the link checks whether another node leads now.
	leaderCheckInterval = 3 * time.Second
	// tellTime is how long a call is tried whose answer nobody waits for.
	tellTime = time.Hour
	// farewell is the same when the client is closed.
	farewell = 5 * time.Second
	// defaultPatience: a node that says nothing for this long after a call is left for another one.
	defaultPatience = time.Second
	// callBytesMax is the largest message that the service takes, less a little for what is around the call.
	callBytesMax = 64*1024 - 64
)

// link is one stream to one node, which carries everything of a client.
//
// One goroutine owns it. Callers hand it calls and wait. It does what every caller would otherwise have to do:
//
//   - It finds a node that answers, prefers the leader, and moves to the next leader when there is one. It refuses
//     nodes of another cluster than the one that it began with.
//   - When the stream breaks, or moves, it sends everything again that is not answered. That is safe: every call
//     that changes something is idempotent by its request id, and a wait keeps its place by the same id.
//   - It retries calls that were refused only for the moment, after a random pause.
//   - No call waits beyond its deadline, no matter what the network does. It leaves a node that says nothing for
//     another one. It also leaves a node that knows no leader while another does.
type link struct {
	mailbox *mailbox
	numbers atomic.Uint64
	state   linkState
	ended   chan struct{}
	// notices tells the keeper what the link hears about leases. It must not block.
	notices func(leaseNotice)

	// Only the link's own goroutine uses what follows.
	directory    directory
	pending      *pending
	stream       *stream // nil while there is none
	isConnecting bool
	pauseUntil   int64 // after a failed attempt: the earliest time for the next one
	heardAt      int64 // when the node last said something, or was connected to
	hasAnswered  bool  // the node has said something on the present stream
	latency      time.Duration
	backoff      backoff
	isChecking   bool // whether another node leads
	nextCheck    int64
	flushes      []func()
	isClosing    bool
}

// leaseNotice is what the link hears about the leases of its client.
type leaseNotice struct {
	// leaseID is a lease of which another client has ended a grant. 0: there is a new stream, and its node does
	// not know yet which leases are used on it.
	leaseID uint64
}

// linkState is what callers may know of the link.
type linkState struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced at each change
	now     linkNow
}

type linkNow struct {
	connection *grpc.ClientConn // nil while there is none
	endpoint   string
	clusterID  string
	problem    *Error // why there is no connection
	isHopeless bool   // waiting will not help
}

func (s *linkState) get() (linkNow, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now, s.changed
}

func (s *linkState) change(change func(*linkNow)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.now)
	close(s.changed)
	s.changed = make(chan struct{})
}

func newLink(directory directory, notices func(leaseNotice)) *link {
	l := &link{
		mailbox: newMailbox(), directory: directory, pending: newPending(), notices: notices,
		ended: make(chan struct{}), nextCheck: after(monoNanos(), leaderCheckInterval),
	}
	l.state.changed = make(chan struct{})
	return l
}

// call makes a call, and waits for its answer until the time is up or the context has ended. Then the call is
// given up.
func (l *link) call(ctx context.Context, call *lowkeypb.SessionCall, limit time.Duration) (*lowkeypb.SessionAnswer, *Error) {
	return l.callPatiently(ctx, call, limit, defaultPatience)
}

// callPatiently is the same. The node is doubted if it says nothing for longer than the patience.
func (l *link) callPatiently(
	ctx context.Context, call *lowkeypb.SessionCall, limit, patience time.Duration,
) (*lowkeypb.SessionAnswer, *Error) {
	if size := sizeOf(call); size > callBytesMax {
		return nil, invalid("the request has %d bytes, more than the %d that a request may have: "+
			"a name has 512 at most, a value 4096", size, callBytesMax)
	}
	if ctx.Err() != nil {
		return nil, cancelled(ctx, false)
	}
	told := make(chan outcome, 1)
	c := newPendingCall(call, monoNanos(), limit, patience)
	c.reply = func(o outcome) { told <- o }
	number, ok := l.order(c)
	if !ok {
		return nil, closedError()
	}
	select {
	case o := <-told:
		return o.answer, o.err
	case <-ctx.Done():
		l.mailbox.post(func() {
			if l.pending.remove(number) != nil {
				l.cancel(number)
			}
		})
		return nil, cancelled(ctx, true)
	}
}

// sizeOf is how many bytes a call has on the wire.
func sizeOf(call *lowkeypb.SessionCall) int { return proto.Size(call) }

func closedError() *Error {
	return &Error{kind: ErrClosed, Message: "the client is closed"}
}

// tell makes a call whose answer nobody waits for. done is called when the call is answered, or has no time left.
func (l *link) tell(call *lowkeypb.SessionCall, done func()) {
	c := newPendingCall(call, monoNanos(), tellTime, defaultPatience)
	c.isTold = true
	c.reply = func(outcome) { done() }
	if _, ok := l.order(c); !ok {
		done()
	}
}

// seeThrough makes a call that must be made: if its time is up, it goes on in the background. done is called when
// it is answered.
func (l *link) seeThrough(call *lowkeypb.SessionCall, limit time.Duration, done func()) *Error {
	_, err := l.call(context.Background(), call, limit)
	if err != nil && err.Retryable() {
		l.tell(call, done)
	} else {
		done()
	}
	return err
}

func (l *link) order(c *pendingCall) (uint64, bool) {
	c.number = l.numbers.Add(1)
	ok := l.mailbox.post(func() {
		if l.isClosing {
			// What is told while the client closes has as little time as what was told before.
			c.deadline = min(c.deadline, after(monoNanos(), farewell))
		}
		l.pending.insert(c)
		l.send(c.number)
	})
	return c.number, ok
}

// flush calls done when everything that was told before has been answered.
func (l *link) flush(done func()) {
	if !l.mailbox.post(func() { l.flushes = append(l.flushes, done) }) {
		done()
	}
}

// close has the link end when everything that it was told has been answered, or after some seconds.
func (l *link) close() {
	l.mailbox.post(func() {
		l.isClosing = true
		l.pending.limit(after(monoNanos(), farewell))
	})
}

func (l *link) run() {
	defer close(l.ended)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		l.connectIfNeeded()
		l.lookAroundIfDue()
		pause := max(l.nextTime()-monoNanos(), 0)
		for _, event := range l.mailbox.wait(timer, time.Duration(pause)) {
			event()
		}
		l.keepTime()
		if l.isClosing && len(l.pending.calls) == 0 && !l.isConnecting && !l.isChecking && l.mailbox.closeIfEmpty() {
			l.stream.close()
			l.state.change(func(now *linkNow) { now.connection = nil })
			return
		}
	}
}

func (l *link) nextTime() int64 {
	next := l.pending.nextTime()
	if l.stream != nil && !l.isChecking {
		next = min(next, l.nextCheck)
	}
	if l.stream == nil && !l.isConnecting {
		next = min(next, l.pauseUntil)
	}
	return next
}

func (l *link) connectIfNeeded() {
	if l.stream != nil || l.isConnecting || monoNanos() < l.pauseUntil || l.isClosing && len(l.pending.calls) == 0 {
		return
	}
	l.isConnecting = true
	directory := l.directory
	go func() {
		s, failed := directory.connect()
		l.mailbox.post(func() {
			l.isConnecting = false
			l.connected(s, failed)
		})
	}()
}

func (l *link) lookAroundIfDue() {
	if l.stream != nil && monoNanos() >= l.nextCheck {
		l.nextCheck = after(monoNanos(), leaderCheckInterval)
		l.check(directory.lookAround)
	}
}

// check looks for a better node beside everything else.
func (l *link) check(look func(directory, *stream) surroundings) {
	if l.isChecking || l.stream == nil {
		return
	}
	l.isChecking = true
	directory, current := l.directory, l.stream
	go func() {
		found := look(directory, current)
		l.mailbox.post(func() {
			l.isChecking = false
			if l.stream != current {
				// What was found is about a stream that is gone.
				found.leader.close()
				return
			}
			if len(found.members) > 0 {
				l.directory.learn(found.members, current.endpoint)
			}
			if found.leader != nil {
				l.connected(found.leader, nil)
			}
		})
	}()
}

func (l *link) connected(s *stream, failed *failed) {
	if failed != nil {
		l.pending.noteProblem(failed.problem)
		l.state.change(func(now *linkNow) {
			now.problem, now.isHopeless = failed.problem, failed.isHopeless
		})
		l.pauseUntil = after(monoNanos(), l.backoff.pause(0))
		return
	}
	before := l.stream
	l.stream = s
	l.directory.met(s)
	l.state.change(func(now *linkNow) {
		*now = linkNow{connection: s.node.connection, endpoint: s.endpoint, clusterID: s.clusterID}
	})
	l.heardAt = monoNanos()
	l.latency = 0
	l.hasAnswered = false
	l.pending.streamLeft()
	before.close()
	s.start(
		func(answer *lowkeypb.SessionAnswer) {
			l.mailbox.post(func() {
				if l.stream == s {
					l.answered(answer)
				}
			})
		},
		func(err error) {
			l.mailbox.post(func() {
				if l.stream == s {
					l.broken(endOfStream(err))
				}
			})
		},
	)
	l.notices(leaseNotice{})
	for _, number := range l.pending.unanswered() {
		l.send(number)
	}
}

func endOfStream(err error) *Error {
	if err == io.EOF {
		return unavailable("the node ended the stream", true)
	}
	return fromStatus(err, true)
}

func (l *link) broken(problem *Error) {
	l.directory.avoidCurrent()
	l.state.change(func(now *linkNow) {
		now.connection, now.problem = nil, problem
	})
	l.stream.close()
	l.stream = nil
	l.pending.streamLeft()
	// A node that has not said anything may do the same again, so pause first.
	l.pauseUntil = 0
	if !l.hasAnswered {
		l.pauseUntil = after(monoNanos(), l.backoff.pause(0))
	}
}

func (l *link) send(number uint64) {
	if l.stream == nil {
		return
	}
	if call := l.pending.toSend(number, monoNanos(), l.latency); call != nil {
		l.stream.send(call)
	}
}

// cancel tells the node that nobody wants the answer any more.
func (l *link) cancel(number uint64) {
	if l.stream != nil {
		l.stream.send(&lowkeypb.SessionCall{Call: &lowkeypb.SessionCall_Cancel{Cancel: number}})
	}
}

func (l *link) answered(answer *lowkeypb.SessionAnswer) {
	now := monoNanos()
	l.heardAt = now
	l.hasAnswered = true
	if changed := answer.GetLeaseChanged(); changed != nil {
		l.notices(leaseNotice{leaseID: changed.GetLeaseId()})
		return
	}
	refused := answer.GetError()
	if refused == nil {
		l.backoff = backoff{}
		took := l.pending.answer(answer.GetSeq(), outcome{answer: answer}, now)
		l.latency = max(took, l.latency*7/8)
		return
	}
	err := fromSession(refused)
	switch {
	case err.Reason == reasonNodeStopping, err.Reason == reasonNodeRemoved, err.Reason == reasonNodeDiverged:
		// The node is about to end, or may not answer. Ask another node what it has not answered.
		if answer.GetSeq() == 0 || !l.pending.retry(answer.GetSeq(), err, now) {
			l.broken(err)
		}
	case err.isTemporary() && l.pending.retry(answer.GetSeq(), err, now):
		if err.Reason == reasonNoLeader || err.Reason == reasonNoQuorum {
			// This node may be cut off from others that have a leader.
			l.check(directory.findElsewhere)
		}
	default:
		l.pending.answer(answer.GetSeq(), outcome{err: err}, now)
	}
}

// keepTime does what is due by now.
func (l *link) keepTime() {
	now := monoNanos()
	for _, number := range l.pending.takeOverdue(now) {
		l.cancel(number)
	}
	// A stopped process keeps its connections open, and another node may lead by now.
	if l.pending.isDoubtful(now, l.heardAt) && l.stream != nil {
		l.broken(unavailable("the node does not answer", true))
	}
	for _, number := range l.pending.takeRetries(now) {
		l.send(number)
	}
	for number := l.pending.nextWithRoom(); number != 0; number = l.pending.nextWithRoom() {
		l.send(number)
	}
	if len(l.flushes) > 0 && l.pending.told == 0 {
		for _, done := range l.flushes {
			done()
		}
		l.flushes = nil
	}
}
