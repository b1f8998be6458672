package lowkey

import (
	"context"
	"sync/atomic"
	"time"

	"lowkey/lowkeypb"
)

// Status is how a session stands, by this client's own clock.
type Status int

const (
	// StatusHeld: all is well.
	StatusHeld Status = iota
	// StatusInJeopardy: renewals are not being acknowledged. If that goes on, the session will be lost.
	StatusInJeopardy
	// StatusLost: the session is over. Nothing that it held is held any more.
	StatusLost
)

// String says it for a person.
func (s Status) String() string {
	switch s {
	case StatusHeld:
		return "held"
	case StatusInJeopardy:
		return "in jeopardy"
	default:
		return "lost"
	}
}

// SessionOption is an option of [Client.Session].
type SessionOption func(*sessionOptions)

type sessionOptions struct {
	ttl time.Duration
}

// TTL is how long a session lives without renewal: 1 to 600 whole seconds, 10 if it is not given. It is also how
// long others wait for the locks of a process that died.
func TTL(ttl time.Duration) SessionOption {
	return func(options *sessionOptions) { options.ttl = ttl }
}

// Session is a client's presence: a lease that is renewed in the background until the session is closed. Locks and
// elections hang on it, and end with it. It may be used by many goroutines at a time.
type Session struct {
	client   *Client
	presence *presence
	// hasEnded: the end was told to the service, or there is nothing to tell.
	hasEnded atomic.Bool
}

// Session makes a session.
func (c *Client) Session(ctx context.Context, options ...SessionOption) (*Session, error) {
	chosen := sessionOptions{ttl: 10 * time.Second}
	for _, option := range options {
		option(&chosen)
	}
	if chosen.ttl < time.Second || chosen.ttl > 600*time.Second || chosen.ttl%time.Second != 0 {
		return nil, invalid("a session lives for 1 to 600 whole seconds, not %v", chosen.ttl)
	}
	if ctx.Err() != nil {
		return nil, cancelled(ctx, false)
	}
	request := &lowkeypb.CreateLeaseRequest{
		OwnerId: c.owner, TtlSeconds: int64(chosen.ttl / time.Second), RequestId: newRequestID(),
	}
	// Validity counts from before the first send. Retries keep this time.
	firstSent := bootNanos()
	made := make(chan madeLease)
	// Not in this goroutine: if the caller goes away, the lease must be ended all the same.
	go c.makeLease(ctx, request, made)
	select {
	case lease := <-made:
		if lease.err != nil {
			return nil, lease.err
		}
		return c.newSession(newPresence(lease.answer.GetLeaseId(), lease.answer.GetTtlSeconds(), firstSent))
	case <-ctx.Done():
		return nil, cancelled(ctx, true)
	}
}

type madeLease struct {
	answer *lowkeypb.CreateLeaseResponse
	err    *Error
}

// makeLease makes a lease, and ends it if the caller has gone.
func (c *Client) makeLease(ctx context.Context, request *lowkeypb.CreateLeaseRequest, made chan<- madeLease) {
	call := &lowkeypb.SessionCall{Call: &lowkeypb.SessionCall_CreateLease{CreateLease: request}}
	answer, err := c.link.call(context.Background(), call, c.callTimeout)
	if err == nil && answer.GetCreateLease() == nil {
		err = wrongAnswer()
	}
	lease := madeLease{err: err}
	if err == nil {
		lease.answer = answer.GetCreateLease()
	}
	select {
	case made <- lease:
	case <-ctx.Done():
		if lease.answer != nil {
			c.link.tell(revocation(lease.answer.GetLeaseId(), c.owner), func() {})
		}
	}
}

func (c *Client) newSession(p *presence) (*Session, error) {
	s := &Session{client: c, presence: p}
	if !c.register(s) || !c.keeper.keep(p) {
		c.link.tell(revocation(p.leaseID, c.owner), func() {})
		return nil, closedError()
	}
	return s, nil
}

func revocation(leaseID uint64, owner string) *lowkeypb.SessionCall {
	revoke := &lowkeypb.RevokeLeaseRequest{LeaseId: leaseID, OwnerId: owner, RequestId: newRequestID()}
	return &lowkeypb.SessionCall{Call: &lowkeypb.SessionCall_RevokeLease{RevokeLease: revoke}}
}

// Client is the client that made the session.
func (s *Session) Client() *Client { return s.client }

// LeaseID is the number of the session's lease.
func (s *Session) LeaseID() uint64 { return s.presence.leaseID }

// TTL is how long the session lives without renewal.
func (s *Session) TTL() time.Duration { return s.presence.ttl() }

// Status is how the session stands now. It asks the clock, so that a process that was paused knows at once.
func (s *Session) Status() Status {
	if !s.presence.isValid() {
		return StatusLost
	}
	s.presence.mu.Lock()
	defer s.presence.mu.Unlock()
	return s.presence.status
}

// Remaining is how long the session is valid if no further renewal is acknowledged.
func (s *Session) Remaining() time.Duration { return s.presence.remaining() }

// Lost is closed when the session is lost or closed.
func (s *Session) Lost() <-chan struct{} { return s.presence.lost.Done() }

// Err is nil while the session is valid, and a [*SessionLostError] from then on. It asks the clock.
func (s *Session) Err() error { return s.presence.check() }

// Close ends the session: everything that it holds is released.
//
// Belief ends first: from the moment of this call no guard of the session holds anything. If no node answers in
// time, the client keeps trying in the background. A session that has expired by this client's clock is ended
// too: the service may not have noticed yet.
func (s *Session) Close() error {
	revoke := s.end()
	if revoke == nil {
		return nil
	}
	err := s.client.link.seeThrough(revoke, s.client.callTimeout, func() {})
	if err != nil && err.Reason != reasonLeaseNotFound {
		return err
	}
	return nil
}

// end ends belief. It returns the revocation to send then: nil if the lease is gone, or was ended before.
func (s *Session) end() *lowkeypb.SessionCall {
	s.presence.isValid()
	isGone := s.presence.lossCause() == Gone
	s.presence.lose(Closed)
	s.client.keeper.forget(s.presence.leaseID)
	s.client.unregister(s)
	if s.hasEnded.Swap(true) || isGone {
		return nil
	}
	return revocation(s.presence.leaseID, s.client.owner)
}
