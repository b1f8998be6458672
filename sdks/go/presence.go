package lowkey

import (
	"context"
	"sync"
	"time"
)

// presence is what is known of one lease, shared by its session, its guards and the keeper.
type presence struct {
	leaseID    uint64
	ttlSeconds int64
	// lost ends when the lease is lost.
	lost    context.Context
	setLost context.CancelCauseFunc
	beliefs beliefs
	doors   doors

	mu       sync.Mutex
	validity validity
	cause    LossCause // 0 while it is not lost
	status   Status
}

// newPresence is a lease that was created by a request which was first sent at this time.
func newPresence(leaseID uint64, ttlSeconds, firstSentNanos int64) *presence {
	p := &presence{
		leaseID: leaseID, ttlSeconds: ttlSeconds, status: StatusHeld,
		validity: validity{until: validUntil(firstSentNanos, ttlSeconds), ttlSeconds: ttlSeconds},
	}
	p.lost, p.setLost = context.WithCancelCause(context.Background())
	return p
}

func (p *presence) ttl() time.Duration {
	return time.Duration(ttlNanos(p.ttlSeconds))
}

// isValid tells whether the holder may act now. It asks the clock, so it is right even before the keeper has
// noticed a loss. Once false, it stays false.
func (p *presence) isValid() bool {
	p.mu.Lock()
	isValid := p.validity.holdsAt(bootNanos())
	p.mu.Unlock()
	if !isValid {
		// If the clock has just decided, everybody hears of it now.
		p.lose(Expired)
	}
	return isValid
}

// until is until when it is valid if nothing more is heard.
func (p *presence) until() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.validity.until
}

// remaining is how long it stays valid if nothing more is heard.
func (p *presence) remaining() time.Duration {
	if !p.isValid() {
		return 0
	}
	return time.Duration(max(p.until()-bootNanos(), 0))
}

// renewed notes that a renewal which was first sent at this time was acknowledged.
func (p *presence) renewed(firstSentNanos int64) {
	p.mu.Lock()
	p.validity.renewed(firstSentNanos, bootNanos())
	p.mu.Unlock()
	if p.isValid() {
		p.set(StatusHeld)
	}
}

// lose marks the lease as lost. Only the first cause counts.
func (p *presence) lose(cause LossCause) {
	p.mu.Lock()
	p.validity.isLost = true
	if p.cause == 0 {
		p.cause = cause
		p.status = StatusLost
	}
	cause = p.cause
	p.mu.Unlock()
	p.setLost(&SessionLostError{Cause: cause})
	for _, held := range p.beliefs.grants() {
		held.end(cause)
	}
}

func (p *presence) set(status Status) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cause == 0 {
		p.status = status
	}
}

// check is an error if the lease is lost.
func (p *presence) check() error {
	if p.isValid() {
		return nil
	}
	return &SessionLostError{Cause: p.lossCause()}
}

// lossCause is why the lease is lost; 0 while it is not.
func (p *presence) lossCause() LossCause {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cause
}
