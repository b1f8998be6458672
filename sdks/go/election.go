package lowkey

import (
	"context"
	"errors"

	"lowkey/lowkeypb"
)

// Lead is a term of office. It is a lock whose holder leads: see [Guard].
type Lead struct {
	*Guard
}

// Campaign stands for election until elected, or until the context ends. The value tells the others about the
// leader, such as its address. [Wait] limits the wait.
func (s *Session) Campaign(ctx context.Context, election, value string, options ...LockOption) (*Lead, error) {
	// A lead is exclusive, and of the name alone, whatever else was asked for.
	options = append(options, Value(value), func(w *wish) { w.way = way{} })
	guard, err := s.Lock(ctx, election, options...)
	if err != nil {
		return nil, err
	}
	return &Lead{Guard: guard}, nil
}

// Proclaim changes the value that tells the others about the leader.
func (l *Lead) Proclaim(ctx context.Context, value string) error {
	if err := l.Err(); err != nil {
		return err
	}
	client := l.grant.session.client
	request := &lowkeypb.ProclaimRequest{
		Election: l.Name(), OwnerId: client.owner, LeaseId: l.LeaseID(), FencingToken: l.Token(), Value: value,
		RequestId: newRequestID(),
	}
	call := &lowkeypb.SessionCall{Call: &lowkeypb.SessionCall_Proclaim{Proclaim: request}}
	if _, err := client.link.call(ctx, call, client.callTimeout); err != nil {
		return err
	}
	return nil
}

// Resign gives the lead up, and waits until that is done; see [Guard.Release].
func (l *Lead) Resign() error { return l.Release() }

// Elect stands for election, again and again, and runs the work whenever it is elected. The context of the work
// ends when the lead is lost, and with ctx.
//
//   - If the work returns while it still leads, the lead is given up, and Elect returns what the work returned.
//   - If the lead was lost meanwhile, what the work returned does not count: Elect stands again. If the session was
//     lost, it makes a new one with the same time to live.
//   - If ctx ends, Elect resigns and returns the error of ctx. If the session is closed, it returns that it is lost.
//
// The work must return soon after its context has ended: until then Elect does not stand again. Errors that asking
// again can mend do not end Elect.
func (s *Session) Elect(ctx context.Context, election, value string, work func(context.Context, *Lead) error) error {
	session := s
	// The first session is the caller's. Those that Elect makes it ends, too.
	defer func() {
		if session != s {
			_ = session.Close()
		}
	}()
	var pauses backoff
	for {
		err := session.Err()
		if err == nil {
			var isOver bool
			if isOver, err = session.term(ctx, election, value, work); isOver {
				return err
			}
		} else if s.presence.lossCause() == Closed {
			return err
		} else {
			err = s.renewFor(ctx, &session)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			pauses = backoff{}
			continue
		}
		var problem *Error
		if errors.As(err, &problem) && !problem.Retryable() {
			return err
		}
		if !sleep(ctx, pauses.pause(0)) {
			return ctx.Err()
		}
	}
}

// renewFor replaces a session that is lost by a new one with the same time to live.
func (s *Session) renewFor(ctx context.Context, session **Session) error {
	next, err := s.client.Session(ctx, TTL(s.TTL()))
	if err != nil {
		return err
	}
	if *session != s {
		_ = (*session).Close()
	}
	*session = next
	return nil
}

// term stands for election once, and runs the work if elected. isOver tells that Elect ends with this error.
func (s *Session) term(
	ctx context.Context, election, value string, work func(context.Context, *Lead) error,
) (isOver bool, err error) {
	lead, err := s.Campaign(ctx, election, value)
	if err != nil {
		return false, err
	}
	inner, end := context.WithCancelCause(lead.ctx.Context)
	stop := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	// If the work panics, nobody should wait for the end of the lease.
	defer func() {
		end(nil)
		stop()
		if resigned := lead.Resign(); isOver && err == nil {
			err = resigned
		}
	}()
	err = work(guardContext{Context: inner, values: ctx, grant: lead.grant}, lead)
	if ctx.Err() != nil {
		return true, ctx.Err()
	}
	if !lead.Held() {
		return false, nil
	}
	return true, err
}
