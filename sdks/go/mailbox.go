package lowkey

import (
	"sync"
	"time"
)

// mailbox carries work to the one goroutine that owns some state. Posting never blocks.
type mailbox struct {
	mu     sync.Mutex
	events []func()
	wake   chan struct{}
	closed bool
}

func newMailbox() *mailbox {
	return &mailbox{wake: make(chan struct{}, 1)}
}

// post has the owner run this. It returns false if the owner has ended.
func (m *mailbox) post(event func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	m.events = append(m.events, event)
	select {
	case m.wake <- struct{}{}:
	default:
	}
	return true
}

// wait waits until there is something to run, or the time is over, and returns what there is.
func (m *mailbox) wait(timer *time.Timer, pause time.Duration) []func() {
	timer.Reset(pause)
	select {
	case <-m.wake:
	case <-timer.C:
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	events := m.events
	m.events = nil
	return events
}

// closeIfEmpty ends the mailbox unless something was posted meanwhile.
func (m *mailbox) closeIfEmpty() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = len(m.events) == 0
	return m.closed
}
