package lowkey

import (
	"context"
	"sync"
	"time"

	"lowkey/lowkeypb"
)

// grant is what a session was granted. It is held by one guard, or shared by several.
//
// Whether it is held follows from the clock and from ended. Nothing else is remembered.
type grant struct {
	session  *Session
	name     string
	way      way
	token    uint64
	revision uint64
	waited   time.Duration
	// until is where belief ends at the latest, by this client's own clock; 0 without a limit. Nothing moves it.
	until int64
	// ended ends when belief ends: by release, with the session, or for this grant alone.
	ended    context.Context
	setEnded context.CancelCauseFunc
	// guards is how many guards share it. The mutex of the session's doors protects it.
	guards int

	mu   sync.Mutex
	lost LossCause // why this grant alone was lost; 0 if it was not
	turn *turn     // keeps others of the session from the name; nil if the service has the grant no longer
}

// newGrant is a grant that is believed to be held from now on. It counts one guard.
func newGrant(s *Session, w *wish, granted *lowkeypb.AcquireLockResponse, turn *turn, until int64) *grant {
	g := &grant{
		session: s, name: w.name, way: w.way, token: granted.GetFencingToken(), revision: granted.GetRevision(),
		waited: time.Duration(granted.GetWaitedMs()) * time.Millisecond, guards: 1, turn: turn,
		until: until,
	}
	g.ended, g.setEnded = context.WithCancelCause(context.Background())
	s.presence.beliefs.add(g.token, g)
	turn.holds(g)
	if until != 0 {
		go g.watchLimit()
	}
	return g
}

// watchLimit ends belief when the grant's own time is over. It looks at the clock again and again, which may have gone
// on while timers stood still.
func (g *grant) watchLimit() {
	for g.isHeld() {
		select {
		case <-g.ended.Done():
		case <-time.After(min(max(time.Duration(g.until-bootNanos()), time.Millisecond), lookInterval)):
		}
	}
}

// outlive ends belief because the grant's own time is over. The service has it still, for a tenth of that: it is
// released with its last guard.
func (g *grant) outlive() {
	g.mu.Lock()
	if g.lost == 0 {
		g.lost = HeldTooLong
	}
	g.mu.Unlock()
	g.end(HeldTooLong)
}

// end ends belief in the grant. Only the first cause counts.
func (g *grant) end(cause LossCause) {
	g.setEnded(&LostError{Name: g.name, Token: g.token, Cause: cause})
}

// lose notes that the service no longer has the grant, although its lease goes on.
func (g *grant) lose(cause LossCause) {
	g.mu.Lock()
	turn := g.turn
	g.turn = nil
	if g.lost == 0 {
		g.lost = cause
	}
	g.mu.Unlock()
	if turn != nil {
		turn.leaves()
	}
	g.end(cause)
	if turn != nil {
		// Only now: there is no grant any more that others could be given by mistake.
		turn.pass()
	}
}

// isHeld asks the clock.
func (g *grant) isHeld() bool {
	if g.ended.Err() == nil && g.until != 0 && bootNanos() >= g.until {
		g.outlive()
	}
	return g.session.presence.isValid() && g.ended.Err() == nil
}

// drop is called when one of its guards is gone. It tells whether that was the last.
func (g *grant) drop() bool {
	doors := &g.session.presence.doors
	doors.mu.Lock()
	g.guards--
	isLast := g.guards == 0
	if at := doors.names[g.name]; isLast && at != nil && at.held == g {
		// Nobody may join a grant that is about to be released.
		at.state = leaving
	}
	doors.mu.Unlock()
	if isLast {
		g.setEnded(ErrReleased)
	}
	return isLast
}

// lostCause is why it is lost; 0 if it is not.
func (g *grant) lostCause() LossCause {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lost != 0 {
		return g.lost
	}
	return g.session.presence.lossCause()
}

// release gives the grant back, after belief has ended.
func (g *grant) release() error {
	g.session.presence.beliefs.remove(g.token)
	g.mu.Lock()
	turn := g.turn
	g.turn = nil
	g.mu.Unlock()
	pass := func() {}
	if turn != nil {
		turn.leaves()
		pass = turn.pass
	}
	call := releaseByToken(g.name, g.session.LeaseID(), g.token)
	link := g.session.client.link
	switch cause := g.lostCause(); cause {
	case 0:
	case Closed:
		pass()
		return nil
	case HeldTooLong:
		// The service may have it still, unless it said otherwise.
		if turn != nil {
			link.tell(call, pass)
		}
		return &LostError{Name: g.name, Token: g.token, Cause: cause}
	case Expired:
		// Belief is over, but the service may not have noticed.
		link.tell(call, pass)
		return &LostError{Name: g.name, Token: g.token, Cause: cause}
	default:
		pass()
		return &LostError{Name: g.name, Token: g.token, Cause: cause}
	}
	return g.released(link.seeThrough(call, g.session.client.callTimeout, pass))
}

// released says what the answer to a release means.
func (g *grant) released(err *Error) error {
	switch {
	case err == nil:
		return nil
	case isNotHeld(err.Reason) && (err.mayHaveBeenDone() || g.lostCause() == Closed):
		// Perhaps a copy of this same release arrived before, or the session was closed on purpose.
		return nil
	case err.Reason == reasonLeaseNotFound:
		g.session.presence.lose(Gone)
		return &LostError{Name: g.name, Token: g.token, Cause: g.lostCause()}
	default:
		return err
	}
}

// releaseByToken is the release of one very grant.
func releaseByToken(name string, leaseID, token uint64) *lowkeypb.SessionCall {
	release := &lowkeypb.ReleaseLockRequest{
		LockName: name, LeaseId: leaseID, FencingToken: token, RequestId: newRequestID(),
	}
	return &lowkeypb.SessionCall{Call: &lowkeypb.SessionCall_ReleaseLock{ReleaseLock: release}}
}

// Guard is a lock that is held, until it is released or lost.
//
// Work under [Guard.Context], ask [Guard.Held] before every step that matters, and send [Guard.Token] along with
// every write. The protected resource can then refuse a write that comes too late.
//
// A guard that is forgotten keeps its lock for as long as its session lives: release it, or close the session.
type Guard struct {
	grant *grant
	ctx   guardContext
	end   context.CancelCauseFunc
	once  sync.Once
}

func newGuard(ctx context.Context, held *grant) *Guard {
	g := &Guard{grant: held}
	var inner context.Context
	inner, g.end = context.WithCancelCause(held.ended)
	g.ctx = guardContext{Context: inner, values: ctx, grant: held}
	return g
}

// Client is the client that holds the lock.
func (g *Guard) Client() *Client { return g.grant.session.client }

// Name is the lock's name.
func (g *Guard) Name() string { return g.grant.name }

// Token is the fencing token. It rises with every grant. Send it along with every write that the lock protects.
//
// The service never gives a token above the largest int64, so int64(guard.Token()) is the same number for a signed
// column of a database.
func (g *Guard) Token() uint64 { return g.grant.token }

// Shared tells whether the lock is held in shared mode.
func (g *Guard) Shared() bool { return g.grant.way.mode == lowkeypb.Mode_SHARED }

// LeaseID is the lease that holds the lock.
func (g *Guard) LeaseID() uint64 { return g.grant.session.LeaseID() }

// Revision is the revision at which the lock was granted.
func (g *Guard) Revision() uint64 { return g.grant.revision }

// Waited is how long the lock was waited for, as the service reports it.
func (g *Guard) Waited() time.Duration { return g.grant.waited }

// Held tells whether you may act as holder now. It asks the clock: a process that was paused for too long gets
// false from the first call on. Once false, it stays false.
func (g *Guard) Held() bool {
	return g.grant.isHeld() && g.ctx.Context.Err() == nil
}

// Remaining is how long the lock is held for certain if no further renewal is acknowledged.
func (g *Guard) Remaining() time.Duration {
	if !g.Held() {
		return 0
	}
	remaining := g.grant.session.Remaining()
	if until := g.grant.until; until != 0 {
		remaining = min(remaining, max(time.Duration(until-bootNanos()), 0))
	}
	return remaining
}

// Err is nil while the lock is held. It is a [*LostError] once it is lost, and [ErrReleased] once it is released.
// It asks the clock.
func (g *Guard) Err() error {
	if g.Held() {
		return nil
	}
	return context.Cause(g.ctx)
}

// Context ends when the lock is lost, and when it is released, before the service hears of that. [context.Cause]
// tells which, as [Guard.Err] does. It has the values of the context that the lock was acquired with, but does not
// end with it.
//
// Its method Err asks the clock, so that a process that was paused sees the end at once.
func (g *Guard) Context() context.Context { return g.ctx }

// Release gives the lock back, and waits until that is done. Belief ends first. If no node answers in time, the
// client keeps trying in the background. A second call does nothing.
//
// An error may also say that the lock was not held any more ([ErrLost], [ErrNotHeld]): then the work since that
// time was not protected. If other guards of the session share the grant, they keep it.
func (g *Guard) Release() error {
	var err error
	g.once.Do(func() {
		g.end(ErrReleased)
		if g.grant.drop() {
			err = g.grant.release()
		}
	})
	return err
}

// guardContext ends with its guard. Err asks the clock.
type guardContext struct {
	context.Context
	values context.Context
	grant  *grant
}

// Err is not nil once the guard is not held any more.
func (c guardContext) Err() error {
	if c.Context.Err() == nil {
		// If the clock says no, this ends the context before it returns.
		c.grant.isHeld()
	}
	return c.Context.Err()
}

// Value gives the values of the context that the lock was acquired with.
func (c guardContext) Value(key any) any {
	if value := c.Context.Value(key); value != nil {
		return value
	}
	return c.values.Value(key)
}
