package lowkey

import (
	"context"
	"iter"

	"google.golang.org/grpc"

	"lowkey/lowkeypb"
)

// Observation is who leads an election, from some moment on.
type Observation struct {
	// Leader is who leads, or nil if nobody does.
	Leader *Holder
	// Revision is the revision at which that became known.
	Revision uint64
}

// Observations are who leads an election: the present, then every change. It goes on after a lost connection.
type Observations struct {
	ctx      context.Context
	cancel   context.CancelFunc
	client   *Client
	election string
	stream   *events[lowkeypb.ObserveEvent]
	// last is what was told last. After a reconnect the present is not told again if it has not changed.
	last *Observation
	err  error
}

// Observe begins to observe an election. It ends with the context.
func (c *Client) Observe(ctx context.Context, election string) (*Observations, error) {
	o := &Observations{client: c, election: election}
	o.ctx, o.cancel = context.WithCancel(ctx)
	if err := o.open(); err != nil {
		o.cancel()
		return nil, err
	}
	return o, nil
}

func (o *Observations) open() error {
	stream, err := openEvents(o.ctx, o.client, func(ctx context.Context, at *grpc.ClientConn) (grpc.ServerStreamingClient[lowkeypb.ObserveEvent], error) {
		return lowkeypb.NewElectionServiceClient(at).Observe(ctx, &lowkeypb.ObserveRequest{Election: o.election})
	})
	if err != nil {
		return err
	}
	o.stream = stream
	return nil
}

// Next is who leads now, and then the next change. After an error there is none any more.
func (o *Observations) Next() (Observation, error) {
	for o.err == nil {
		if o.stream == nil {
			if o.err = o.open(); o.err != nil {
				break
			}
		}
		event, err := o.stream.next(o.ctx)
		switch {
		case err == nil && event.GetType() != lowkeypb.EventType_END:
			if event.GetType() == lowkeypb.EventType_HEARTBEAT && o.last != nil {
				continue
			}
			seen := Observation{Leader: newHolder(event.GetLeader()), Revision: event.GetRevision()}
			if o.last == nil || !o.last.isSameAs(seen) {
				o.last = &seen
				return seen, nil
			}
		case o.ctx.Err() != nil:
			o.err = cancelled(o.ctx, false)
		// An observer needs no position: it begins again with the present.
		case err != nil && isForGood(err) && err.Reason != reasonCompacted:
			o.err = err
		default:
			o.stream.close()
			o.stream = nil
		}
	}
	o.Close()
	return Observation{}, o.err
}

func (o *Observation) isSameAs(other Observation) bool {
	if o.Leader == nil || other.Leader == nil {
		return o.Leader == other.Leader
	}
	return *o.Leader == *other.Leader
}

// All are the present and all changes, for a loop. The last has an error.
func (o *Observations) All() iter.Seq2[Observation, error] {
	return allOf(o.Next)
}

// Close ends the observation. Another goroutine may call it.
func (o *Observations) Close() { o.cancel() }
