package lowkey

import (
	"context"
	"errors"
	"time"

	"lowkey/lowkeypb"
)

// waitMax is the longest wait that the service takes. Who wants to wait longer asks again.
const waitMax = 24 * time.Hour

// atMostMax is the longest limit that the service takes.
const atMostMax = 7 * 24 * time.Hour

// LockOption is an option of [Session.Lock] and [Session.TryLock].
type LockOption func(*wish)

// wish is how a lock is wanted.
type wish struct {
	name  string
	way   way
	value string
	// wait is how long to wait; negative: as long as it takes.
	wait time.Duration
	// atMost is for how long it is held at most; 0 for no limit.
	atMost time.Duration
}

// Shared holds the lock together with others that do the same. Guards of one session that share a name share one
// grant and its token. The grant is released with the last of them.
func Shared() LockOption {
	return func(w *wish) { w.way.mode = lowkeypb.Mode_SHARED }
}

// Subtree holds the name and everything below it.
func Subtree() LockOption {
	return func(w *wish) { w.way.scope = lowkeypb.Scope_SUBTREE }
}

// Value shows a text with the grant: at most 4096 bytes.
func Value(value string) LockOption {
	return func(w *wish) { w.value = value }
}

// AtMost holds the lock for this long at most, however well its lease is renewed: whole seconds, up to a week. It ends
// a job that hangs. The guard is lost at 90 % of it ([HeldTooLong]), counted from before the question, and the session
// lives on.
func AtMost(limit time.Duration) LockOption {
	return func(w *wish) { w.atMost, w.way.isLimited = limit, true }
}

// Wait limits how long [Session.Lock] waits. The error is then [ErrWaitTimeout], and names the holder. Without it
// the lock is waited for until the context ends. [Session.TryLock] does not wait at all.
func Wait(limit time.Duration) LockOption {
	return func(w *wish) { w.wait = max(limit, 0) }
}

// Lock acquires a lock, and waits for it in line.
//
// The context bounds the acquire only, not the lock: when it ends, the place in the queue is given up, and so is
// a grant whose answer is still under way. The lock is held until it is released or lost; [Guard.Context] ends
// then, and has the values of this context.
func (s *Session) Lock(ctx context.Context, name string, options ...LockOption) (*Guard, error) {
	w := newWish(name, options)
	if w.wait == 0 {
		return s.TryLock(ctx, name, options...)
	}
	for {
		limit := waitMax
		if w.wait > 0 {
			limit = min(w.wait, waitMax)
		}
		guard, err := s.waitFor(ctx, w, limit)
		if w.wait < 0 && errors.Is(err, ErrWaitTimeout) {
			continue
		}
		return guard, err
	}
}

// TryLock acquires a lock if it is free now. Otherwise the error is [ErrHeld], and names the holder.
//
// A release of this same session that is under way does not count as a holder: the call waits for it.
func (s *Session) TryLock(ctx context.Context, name string, options ...LockOption) (*Guard, error) {
	w := newWish(name, options)
	if err := s.presence.check(); err != nil {
		return nil, err
	}
	bounded, stop := context.WithTimeout(ctx, s.client.callTimeout)
	defer stop()
	in, held := s.presence.doors.enter(bounded, s.Lost(), name, w.way, true)
	if in == (entry{}) {
		return nil, s.notIn(ctx, s.heldHere(w.name, held))
	}
	return s.goIn(ctx, w, in, 0)
}

func newWish(name string, options []LockOption) *wish {
	w := &wish{name: name, wait: -1}
	for _, option := range options {
		option(w)
	}
	return w
}

// waitFor acquires a lock within this time.
func (s *Session) waitFor(ctx context.Context, w *wish, limit time.Duration) (*Guard, error) {
	if err := s.presence.check(); err != nil {
		return nil, err
	}
	started := time.Now()
	bounded, stop := context.WithTimeout(ctx, limit)
	in, _ := s.presence.doors.enter(bounded, s.Lost(), w.name, w.way, false)
	stop()
	if in == (entry{}) {
		timeout := refusal(reasonWaitTimeout, "the time to wait is over: another part of this session has "+w.name, nil, 0)
		return nil, s.notIn(ctx, timeout)
	}
	// At least a moment: a caller that wants to wait always gets into the queue.
	return s.goIn(ctx, w, in, max(limit-time.Since(started), time.Millisecond))
}

// notIn is the error of somebody who did not get in at a door.
func (s *Session) notIn(ctx context.Context, otherwise *Error) error {
	if err := s.presence.check(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return cancelled(ctx, false)
	}
	return otherwise
}

// heldHere is the error if another goroutine of this same session holds the lock, or is about to.
func (s *Session) heldHere(name string, held *grant) *Error {
	by := &HeldBy{Name: name, Owner: s.client.owner, LeaseID: s.LeaseID()}
	if held != nil {
		by.Token = held.token
	}
	err := refusal(reasonLockHeld, "lock "+name+" is held by another part of this session", nil, 0)
	err.HeldBy = by
	return err
}

func (s *Session) goIn(ctx context.Context, w *wish, in entry, wait time.Duration) (*Guard, error) {
	held := in.held
	if held == nil {
		granted, err := s.ask(ctx, w, in.turn, wait)
		if err != nil {
			return nil, err
		}
		held = granted
	}
	guard := newGuard(ctx, held)
	// A grant is valid only within the validity of its lease.
	if err := s.presence.check(); err != nil {
		_ = guard.Release()
		return nil, err
	}
	// Nor is one whose own time was over before its answer came.
	if err := guard.Err(); err != nil {
		_ = guard.Release()
		return nil, err
	}
	return guard, nil
}

// ask asks the service for the lock. Until the outcome is certain, nobody else of the session may ask for the
// name: the same lease would be given the same grant, and would lose it by the release of this one.
func (s *Session) ask(ctx context.Context, w *wish, turn *turn, wait time.Duration) (*grant, error) {
	request := &lowkeypb.AcquireLockRequest{
		LockName: w.name, OwnerId: s.client.owner, LeaseId: s.LeaseID(), WaitMs: wait.Milliseconds(),
		Mode: w.way.mode, Scope: w.way.scope, Value: w.value, RequestId: newRequestID(),
	}
	if w.way.isLimited {
		if w.atMost%time.Second != 0 || w.atMost < time.Second || w.atMost > atMostMax {
			turn.pass()
			return nil, invalid("AtMost takes whole seconds, 1s to %v, and not %v", atMostMax, w.atMost)
		}
		request.MaxHoldSeconds = int64(w.atMost / time.Second)
	}
	if wait > 0 {
		request.WaitMs = max(request.WaitMs, 1)
	}
	call := &lowkeypb.SessionCall{Call: &lowkeypb.SessionCall_AcquireLock{AcquireLock: request}}
	asking, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.presence.lost, func() { cancel(context.Cause(s.presence.lost)) })()
	firstSent := bootNanos()
	answer, err := s.client.link.call(asking, call, s.client.callTimeout+wait)
	if err == nil && answer.GetAcquireLock() == nil {
		err = wrongAnswer()
	}
	if err == nil {
		// From here on the grant is released by its token.
		granted := answer.GetAcquireLock()
		until := int64(0)
		if w.way.isLimited {
			// From before the first send: every attempt has the same request id.
			until = heldUntil(firstSent, granted.GetWaitedMs(), request.MaxHoldSeconds)
		}
		return newGrant(s, w, granted, turn, until), nil
	}
	if err.mayHaveBeenDone() {
		s.giveUp(w.name, request.GetRequestId(), turn)
	} else {
		turn.pass()
	}
	if err.Reason == reasonLeaseNotFound {
		s.presence.lose(Gone)
	}
	if lost := s.presence.check(); lost != nil && (err.cause != nil || err.Reason == reasonLeaseNotFound) {
		return nil, lost
	}
	return nil, err
}

// giveUp releases what an acquire may have led to whose outcome is not known.
func (s *Session) giveUp(name, acquireRequestID string, turn *turn) {
	s.presence.beliefs.giveUp(acquireRequestID)
	turn.leaves()
	release := &lowkeypb.ReleaseLockRequest{
		LockName: name, LeaseId: s.LeaseID(), AcquireRequestId: acquireRequestID, RequestId: newRequestID(),
	}
	call := &lowkeypb.SessionCall{Call: &lowkeypb.SessionCall_ReleaseLock{ReleaseLock: release}}
	s.client.link.tell(call, turn.pass)
}
