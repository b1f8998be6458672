package lowkey

import (
	"slices"
	"sync"

	"google.golang.org/grpc"
)

// streamsAConnection is how many streams one connection carries: less than what a node allows.
const streamsAConnection = 90

// watchConnections are connections for watches, apart from that of the link: any number of watches, and readers
// that are slow, keep renewals waiting for nothing.
type watchConnections struct {
	dialer *dialer

	mu     sync.Mutex
	open   []*watchConnection
	closed bool
}

type watchConnection struct {
	endpoint   string
	connection *grpc.ClientConn
	seats      int
	isFull     bool // for good: it is left when its streams have ended
}

// watchSeat is room for one stream on a connection.
type watchSeat struct {
	all  *watchConnections
	on   *watchConnection
	once sync.Once
}

func newWatchConnections(dialer *dialer) *watchConnections {
	return &watchConnections{dialer: dialer}
}

// seat finds room on a connection to the node, or makes a new one.
func (w *watchConnections) seat(endpoint string) (*watchSeat, *Error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, closedError()
	}
	at := slices.IndexFunc(w.open, func(c *watchConnection) bool {
		return c.endpoint == endpoint && c.seats < streamsAConnection && !c.isFull
	})
	if at < 0 {
		connection, err := w.dialer.connection(endpoint)
		if err != nil {
			return nil, invalid("%s: %v", endpoint, err)
		}
		w.open = append(w.open, &watchConnection{endpoint: endpoint, connection: connection})
		at = len(w.open) - 1
	}
	w.open[at].seats++
	return &watchSeat{all: w, on: w.open[at]}, nil
}

func (w *watchConnections) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for _, c := range w.open {
		_ = c.connection.Close()
	}
	w.open = nil
}

func (s *watchSeat) connection() *grpc.ClientConn { return s.on.connection }

// isStuck notes that the connection takes no more streams.
func (s *watchSeat) isStuck() {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	s.on.isFull = true
}

// leave gives the room back. The last one closes the connection.
func (s *watchSeat) leave() {
	s.once.Do(func() {
		s.all.mu.Lock()
		defer s.all.mu.Unlock()
		s.on.seats--
		if s.on.seats == 0 {
			s.all.open = slices.DeleteFunc(s.all.open, func(c *watchConnection) bool { return c == s.on })
			_ = s.on.connection.Close()
		}
	})
}
