//go:build linux

package main

import (
	"context"
	"errors"
	"time"

	"lowkey"
)

// start makes something that goes on until it is ended.
func (d *driver) start(in map[string]*running, handle string, run func(context.Context)) error {
	ctx, end := context.WithCancel(context.Background())
	thing := &running{end: end, ended: make(chan struct{})}
	if err := keep(d, in, handle, thing); err != nil {
		end()
		return err
	}
	go func() {
		defer close(thing.ended)
		run(ctx)
	}()
	return nil
}

func (d *driver) newWatch(_ context.Context, asked *command) (fields, error) {
	client, err := find(d, d.clients, asked.Client)
	if err != nil {
		return nil, err
	}
	var options []lowkey.WatchOption
	if asked.Name != "" {
		options = append(options, lowkey.Name(asked.Name))
	} else {
		options = append(options, lowkey.Prefix(asked.Prefix))
	}
	if asked.After != "" {
		position, err := lowkey.ParsePosition(asked.After)
		if err != nil {
			return nil, err
		}
		options = append(options, lowkey.After(position))
	}
	begun := make(chan error, 1)
	handle := asked.Watch
	err = d.start(d.watches, handle, func(ctx context.Context) {
		watch, err := client.Watch(ctx, options...)
		begun <- err
		if err != nil {
			return
		}
		for event, err := range watch.All() {
			if err != nil {
				d.streamEnded(ctx, handle, err)
				return
			}
			d.out.event("watch", fields{
				"watch": handle, "type": event.Type.String(), "name": event.Name, "owner": event.Owner,
				"token": number(event.Token), "position": event.Position.String(),
			})
		}
	})
	if err != nil {
		return nil, err
	}
	return nil, <-begun
}

// streamEnded tells why a watch ended, unless it was closed.
func (d *driver) streamEnded(ctx context.Context, handle string, err error) {
	if ctx.Err() != nil {
		return
	}
	line := fields{"watch": handle, "kind": kindOf(err)}
	var refused *lowkey.Error
	if errors.As(err, &refused) && refused.Reason != "" {
		line["reason"] = refused.Reason
	}
	d.out.event("watch.error", line)
}

func (d *driver) closeWatch(_ context.Context, asked *command) (fields, error) {
	watch, err := find(d, d.watches, asked.Watch)
	if err != nil {
		return nil, err
	}
	watch.end()
	<-watch.ended
	return nil, nil
}

func (d *driver) newObservation(_ context.Context, asked *command) (fields, error) {
	client, err := find(d, d.clients, asked.Client)
	if err != nil {
		return nil, err
	}
	begun := make(chan error, 1)
	handle, name := asked.Watch, asked.Name
	err = d.start(d.watches, handle, func(ctx context.Context) {
		seen, err := client.Observe(ctx, name)
		begun <- err
		if err != nil {
			return
		}
		for observation, err := range seen.All() {
			if err != nil {
				d.streamEnded(ctx, handle, err)
				return
			}
			line := fields{
				"watch": handle, "name": name, "type": "VACANT",
				"position": lowkey.Position{Revision: observation.Revision, Ordinal: lowkey.WholeRevision}.String(),
			}
			if leader := observation.Leader; leader != nil {
				line["type"], line["owner"] = "ACQUIRED", leader.Owner
				line["token"], line["value"] = number(leader.Token), leader.Value
			}
			d.out.event("watch", line)
		}
	})
	if err != nil {
		return nil, err
	}
	return nil, <-begun
}

func (d *driver) newElection(ctx context.Context, asked *command) (fields, error) {
	client, err := find(d, d.clients, asked.Client)
	if err != nil {
		return nil, err
	}
	session, err := client.Session(ctx, lowkey.TTL(time.Duration(asked.TTLSeconds)*time.Second))
	if err != nil {
		return nil, err
	}
	handle, name, value := asked.Elect, asked.Name, asked.Value
	return nil, d.start(d.elects, handle, func(ctx context.Context) {
		defer session.Close()
		// What ends it is the harness, which needs no reason; anything else is for people.
		_ = session.Elect(ctx, name, value, func(ctx context.Context, lead *lowkey.Lead) error {
			token := number(lead.Token())
			d.out.event("elected", fields{"elect": handle, "token": token, "at_ns": number(nowNanos())})
			<-ctx.Done()
			at := nowNanos()
			var lost *lowkey.LostError
			if errors.As(context.Cause(ctx), &lost) {
				d.out.event("deposed", fields{
					"elect": handle, "token": token, "cause": causeName(lost.Cause), "at_ns": number(at),
				})
			}
			return nil
		})
	})
}

func (d *driver) stopElection(_ context.Context, asked *command) (fields, error) {
	elect, err := find(d, d.elects, asked.Elect)
	if err != nil {
		return nil, err
	}
	elect.end()
	<-elect.ended
	return nil, nil
}
