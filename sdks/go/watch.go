package lowkey

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"lowkey/lowkeypb"
)

const (
	// silenceMax: nodes send a heartbeat every 5 s. A node that is silent for longer than this is not trusted.
	silenceMax = 12 * time.Second
	// watchOpenTime is how long a stream may take to begin before its connection counts as full.
	watchOpenTime = 5 * time.Second
)

// Position is where in the log of the cluster something happened: a revision, and which change of it.
type Position struct {
	// Revision is the revision.
	Revision uint64
	// Ordinal is which change of the revision, from 0. [WholeRevision] stands for all of them.
	Ordinal uint32
}

// WholeRevision is the ordinal of a position that stands for all changes of its revision.
const WholeRevision = math.MaxUint32

// String is REVISION.ORDINAL, or REVISION alone for all of that revision.
func (p Position) String() string {
	if p.Ordinal == WholeRevision {
		return strconv.FormatUint(p.Revision, 10)
	}
	return fmt.Sprintf("%d.%d", p.Revision, p.Ordinal)
}

// ParsePosition reads what [Position.String] writes.
func ParsePosition(text string) (Position, error) {
	revision, ordinal, hasOrdinal := strings.Cut(text, ".")
	position := Position{Ordinal: WholeRevision}
	var err error
	if position.Revision, err = strconv.ParseUint(revision, 10, 64); err == nil && hasOrdinal {
		var number uint64
		number, err = strconv.ParseUint(ordinal, 10, 32)
		position.Ordinal = uint32(number)
	}
	if err != nil {
		return Position{}, invalid("%q is no position such as 812.0 or 812", text)
	}
	return position, nil
}

// EventType is what happened to a lock.
type EventType int

// What may happen to a lock.
const (
	// Acquired: it has a new holder.
	Acquired = EventType(lowkeypb.EventType_ACQUIRED)
	// Released: a holder gave it back.
	Released = EventType(lowkeypb.EventType_RELEASED)
	// LeaseExpired: a holder's lease ran out.
	LeaseExpired = EventType(lowkeypb.EventType_EXPIRED)
	// Revoked: a holder's lease was revoked.
	Revoked = EventType(lowkeypb.EventType_REVOKED)
	// Waiting: somebody waits for it.
	Waiting = EventType(lowkeypb.EventType_WAITING)
	// Cancelled: a waiter left without it.
	Cancelled = EventType(lowkeypb.EventType_CANCELLED)
	// ValueChanged: a holder changed its value.
	ValueChanged = EventType(lowkeypb.EventType_VALUE)
)

// String is the name as the service has it, such as ACQUIRED.
func (t EventType) String() string { return lowkeypb.EventType(t).String() }

// Event is one change of one lock.
type Event struct {
	// Type is what happened.
	Type EventType
	// Name is the lock.
	Name string
	// Owner is the holder or waiter, as it names itself.
	Owner string
	// Token is the grant's fencing token; 0 for a waiter.
	Token uint64
	// LeaseID is the holder's or waiter's lease.
	LeaseID uint64
	// Shared and Subtree tell how it is held or wanted.
	Shared, Subtree bool
	// Value is the grant's value, for Acquired and ValueChanged.
	Value string
	// Actor is who ended the grant, for Released and Revoked.
	Actor string
	// At is when the change was proposed, by that node's wall clock: for display only.
	At time.Time
	// Position is where in the log it happened. A later watch can go on [After] it.
	Position Position
}

// WatchOption is an option of [Client.Watch].
type WatchOption func(*lowkeypb.WatchRequest)

// Name watches one lock. Without a name or a prefix all locks are watched.
func Name(name string) WatchOption {
	return func(request *lowkeypb.WatchRequest) { request.Name = name }
}

// Prefix watches all locks whose names begin with this plain text.
func Prefix(prefix string) WatchOption {
	return func(request *lowkeypb.WatchRequest) { request.Prefix = prefix }
}

// From begins with this revision instead of now. [Client.List] tells which to watch from.
func From(revision uint64) WatchOption {
	return func(request *lowkeypb.WatchRequest) { request.From, request.After = revision, "" }
}

// After begins after a position that was seen before: nothing is told twice, and nothing is left out.
func After(position Position) WatchOption {
	return func(request *lowkeypb.WatchRequest) { request.From, request.After = 0, position.String() }
}

// Watch is every change of one lock, or of many, in order.
//
// After a lost connection it goes on by itself where it stopped, on any node that answers. An error ends it:
// [ErrCompacted] if what happened meanwhile is no longer kept (list, then watch [From] what the list says), or a
// refusal of the request.
type Watch struct {
	ctx      context.Context
	cancel   context.CancelFunc
	client   *Client
	request  *lowkeypb.WatchRequest
	stream   *events[lowkeypb.WatchEvent]
	position Position
	err      error
}

// Watch begins to watch. Changes that are made after it returned are told. The watch ends with the context.
func (c *Client) Watch(ctx context.Context, options ...WatchOption) (*Watch, error) {
	w := &Watch{client: c, request: &lowkeypb.WatchRequest{}}
	for _, option := range options {
		option(w.request)
	}
	w.ctx, w.cancel = context.WithCancel(ctx)
	if err := w.open(); err != nil {
		w.cancel()
		return nil, err
	}
	return w, nil
}

// open opens a stream, and tries for as long as it takes.
func (w *Watch) open() error {
	stream, err := openEvents(w.ctx, w.client, func(ctx context.Context, at *grpc.ClientConn) (grpc.ServerStreamingClient[lowkeypb.WatchEvent], error) {
		return lowkeypb.NewLockServiceClient(at).Watch(ctx, w.request)
	})
	if err != nil {
		return err
	}
	w.stream = stream
	// The node tells up to which revision the stream was complete when it began. After a break it goes on there.
	if begun, ok := stream.begunAt(); ok && w.request.GetFrom() == 0 && w.request.GetAfter() == "" {
		w.sawUpTo(Position{Revision: begun, Ordinal: WholeRevision})
	}
	return nil
}

func (w *Watch) sawUpTo(position Position) {
	w.position = position
	w.request.From, w.request.After = 0, position.String()
}

// Next is the next change. It blocks until there is one. After an error there is none any more.
func (w *Watch) Next() (Event, error) {
	for w.err == nil {
		if w.stream == nil {
			if w.err = w.open(); w.err != nil {
				break
			}
		}
		event, err := w.stream.next(w.ctx)
		switch {
		case err == nil:
			w.sawUpTo(Position{Revision: event.GetRevision(), Ordinal: event.GetOrdinal()})
			switch event.GetType() {
			case lowkeypb.EventType_HEARTBEAT:
			case lowkeypb.EventType_END:
				w.leave()
			default:
				return newEvent(event), nil
			}
		case w.ctx.Err() != nil:
			w.err = cancelled(w.ctx, false)
		case isForGood(err):
			w.err = err
		default:
			w.leave()
		}
	}
	w.Close()
	return Event{}, w.err
}

func (w *Watch) leave() {
	w.stream.close()
	w.stream = nil
}

// All are all changes, for a loop. The last has an error.
func (w *Watch) All() iter.Seq2[Event, error] {
	return allOf(w.Next)
}

func allOf[T any](next func() (T, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for {
			item, err := next()
			if !yield(item, err) || err != nil {
				return
			}
		}
	}
}

// Position is up to where everything was told. A later watch can go on [After] it.
func (w *Watch) Position() Position { return w.position }

// Close ends the watch. A [Watch.Next] that blocks returns an error, but not before Close itself; so Close may be
// called by another goroutine.
func (w *Watch) Close() { w.cancel() }

func newEvent(from *lowkeypb.WatchEvent) Event {
	return Event{
		Type: EventType(from.GetType()), Name: from.GetName(), Owner: from.GetOwner(), Token: from.GetFencingToken(),
		LeaseID: from.GetLeaseId(), Value: from.GetValue(), Actor: from.GetActor(),
		Shared: from.GetMode() == lowkeypb.Mode_SHARED, Subtree: from.GetScope() == lowkeypb.Scope_SUBTREE,
		At:       time.UnixMilli(from.GetAtUnixMs()),
		Position: Position{Revision: from.GetRevision(), Ordinal: from.GetOrdinal()},
	}
}

// isForGood tells whether asking another node does not help. A foreign node among the endpoints is skipped: a node
// of our own cluster may come back.
func isForGood(err *Error) bool {
	if err.kind == ErrUnavailable || err.kind == ErrWrongCluster {
		return false
	}
	return !err.isTemporary()
}

// events is a stream of one node, on a connection with room for it.
type events[E any] struct {
	rpc    grpc.ServerStreamingClient[E]
	header metadata.MD
	cancel context.CancelFunc
}

// openEvents opens a stream at the node that the link is connected to. It tries again as long as the context goes
// on; a node that has too many streams is only tried for as long as a call may take.
func openEvents[E any](
	ctx context.Context, c *Client, ask func(context.Context, *grpc.ClientConn) (grpc.ServerStreamingClient[E], error),
) (*events[E], error) {
	var pauses backoff
	var surplusSince time.Time
	for {
		now, err := c.connected(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil, cancelled(ctx, false)
			}
			return nil, err
		}
		stream, problem := openOnce(ctx, c, now, ask)
		if problem == nil {
			return stream, nil
		}
		if ctx.Err() != nil {
			return nil, cancelled(ctx, false)
		}
		isSurplus := problem.Reason == reasonLimitStreams || problem.Reason == reasonLimitMemory
		if !isSurplus {
			surplusSince = time.Time{}
		} else if surplusSince.IsZero() {
			surplusSince = time.Now()
		}
		if isForGood(problem) || isSurplus && time.Since(surplusSince) >= c.callTimeout {
			return nil, problem
		}
		if !sleep(ctx, pauses.pause(problem.RetryAfter)) {
			return nil, cancelled(ctx, false)
		}
	}
}

func openOnce[E any](
	ctx context.Context, c *Client, now linkNow,
	ask func(context.Context, *grpc.ClientConn) (grpc.ServerStreamingClient[E], error),
) (*events[E], *Error) {
	seat, problem := c.watchers.seat(now.endpoint)
	if problem != nil {
		return nil, problem
	}
	ctx, cancel := context.WithCancel(ctx)
	// Its room is given back when it ends, also if nobody reads it any more.
	context.AfterFunc(ctx, seat.leave)
	stream := &events[E]{cancel: cancel}
	late := time.AfterFunc(watchOpenTime, cancel)
	rpc, err := ask(ctx, seat.connection())
	if err == nil {
		stream.rpc = rpc
		stream.header, err = rpc.Header()
	}
	if err == nil && stream.header == nil {
		// There was no beginning: the reason is in the end.
		_, err = rpc.Recv()
	}
	if !late.Stop() {
		seat.isStuck()
		err = errors.New("the node does not take another stream")
	}
	if err != nil {
		problem = atEndpoint(now.endpoint, fromStatus(err, false))
	} else {
		problem = headerOf(now, stream.header)
	}
	if problem != nil {
		stream.close()
		return nil, problem
	}
	return stream, nil
}

// begunAt is the revision up to which the stream was complete when it began.
func (e *events[E]) begunAt() (uint64, bool) {
	values := e.header.Get("lowkey-revision")
	if len(values) == 0 {
		return 0, false
	}
	revision, err := strconv.ParseUint(values[0], 10, 64)
	return revision, err == nil
}

// next is the next message. A node that is silent for too long is left.
func (e *events[E]) next(ctx context.Context) (*E, *Error) {
	silence := time.AfterFunc(silenceMax, e.cancel)
	defer silence.Stop()
	event, err := e.rpc.Recv()
	switch {
	case err == nil:
		return event, nil
	case err == io.EOF:
		return nil, unavailable("the node ended the stream", false)
	case ctx.Err() == nil && !silence.Stop():
		return nil, unavailable("the node has been silent for too long", false)
	default:
		return nil, fromStatus(err, false)
	}
}

func (e *events[E]) close() { e.cancel() }

// sleep pauses. It returns false if the context ended first.
func sleep(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
