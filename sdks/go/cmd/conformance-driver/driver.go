//go:build linux

package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"lowkey"
)

// errCancelled is why the context of an acquire ended that the harness cancelled.
var errCancelled = errors.New("the command was cancelled")

// heldLock is a lock, and whether the harness asked for its end.
type heldLock struct {
	guard *lowkey.Guard
	// isQuiet: the end was asked for, and is not told as a loss.
	isQuiet bool
}

type heldSession struct {
	session *lowkey.Session
	isQuiet bool
}

// running is something that goes on until it is ended.
type running struct {
	end   context.CancelFunc
	ended chan struct{}
}

// driver has everything that the harness made, by its handles.
type driver struct {
	out *output

	mu       sync.Mutex
	clients  map[string]*lowkey.Client
	sessions map[string]*heldSession
	locks    map[string]*heldLock
	watches  map[string]*running
	elects   map[string]*running
	acquires map[int64]context.CancelCauseFunc // commands under way
}

func newDriver(out *output) *driver {
	return &driver{
		out: out, clients: map[string]*lowkey.Client{}, sessions: map[string]*heldSession{},
		locks: map[string]*heldLock{}, watches: map[string]*running{}, elects: map[string]*running{},
		acquires: map[int64]context.CancelCauseFunc{},
	}
}

// operations are all commands but exit.
var operations = map[string]func(*driver, context.Context, *command) (fields, error){
	"client.new":     (*driver).newClient,
	"client.close":   (*driver).closeClient,
	"session.new":    (*driver).newSession,
	"session.status": (*driver).sessionStatus,
	"session.close":  (*driver).closeSession,
	"lock.acquire":   (*driver).acquire,
	"lock.held":      (*driver).held,
	"lock.check":     (*driver).check,
	"lock.probe":     (*driver).probe,
	"lock.release":   (*driver).release,
	"lock.get":       (*driver).get,
	"cancel":         (*driver).cancel,
	"watch.new":      (*driver).newWatch,
	"watch.close":    (*driver).closeWatch,
	"observe.new":    (*driver).newObservation,
	"elect.new":      (*driver).newElection,
	"elect.stop":     (*driver).stopElection,
}

// begin runs a command beside the others.
func (d *driver) begin(asked *command) {
	run, known := operations[asked.Op]
	if !known {
		d.answer(asked.ID, nil, driverError("no operation "+asked.Op))
		return
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	if asked.Op == "lock.acquire" {
		// Before the next line is read: a cancel may be in it.
		d.mu.Lock()
		d.acquires[asked.ID] = cancel
		d.mu.Unlock()
	}
	go func() {
		defer cancel(nil)
		ok, err := run(d, ctx, asked)
		d.answer(asked.ID, ok, err)
	}()
}

// find is the thing with this handle.
func find[T any](d *driver, in map[string]T, handle string) (T, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	found, known := in[handle]
	if !known {
		return found, driverError("no handle " + handle)
	}
	return found, nil
}

// keep gives a thing its handle.
func keep[T any](d *driver, in map[string]T, handle string, thing T) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, known := in[handle]; known {
		return driverError("the handle " + handle + " is in use")
	}
	in[handle] = thing
	return nil
}

func (d *driver) newClient(ctx context.Context, asked *command) (fields, error) {
	options := []lowkey.Option{
		lowkey.TLS(lowkey.TLSFiles{CA: asked.CA, Cert: asked.Cert, Key: asked.Key}), lowkey.AuthFile(asked.TokenFile),
	}
	if asked.Owner != "" {
		options = append(options, lowkey.Owner(asked.Owner))
	}
	if asked.CallTimeoutMs > 0 {
		limit := time.Duration(asked.CallTimeoutMs) * time.Millisecond
		options = append(options, lowkey.CallTimeout(limit), lowkey.ConnectTimeout(limit))
	}
	client, err := lowkey.Dial(ctx, asked.Endpoints, options...)
	if err != nil {
		return nil, err
	}
	return nil, keep(d, d.clients, asked.Client, client)
}

func (d *driver) closeClient(_ context.Context, asked *command) (fields, error) {
	client, err := find(d, d.clients, asked.Client)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	for _, lock := range d.locks {
		lock.isQuiet = lock.isQuiet || lock.guard.Client() == client
	}
	for _, session := range d.sessions {
		session.isQuiet = session.isQuiet || session.session.Client() == client
	}
	d.mu.Unlock()
	return nil, client.Close()
}

func (d *driver) newSession(ctx context.Context, asked *command) (fields, error) {
	client, err := find(d, d.clients, asked.Client)
	if err != nil {
		return nil, err
	}
	session, err := client.Session(ctx, lowkey.TTL(time.Duration(asked.TTLSeconds)*time.Second))
	if err != nil {
		return nil, err
	}
	held := &heldSession{session: session}
	if err := keep(d, d.sessions, asked.Session, held); err != nil {
		return nil, err
	}
	handle := asked.Session
	go func() {
		<-session.Lost()
		at := nowNanos()
		var lost *lowkey.SessionLostError
		if errors.As(session.Err(), &lost) && !d.isQuiet(&held.isQuiet) {
			d.out.event("lost", fields{"session": handle, "cause": causeName(lost.Cause), "at_ns": number(at)})
		}
	}()
	return fields{"lease_id": number(session.LeaseID())}, nil
}

func (d *driver) isQuiet(flag *bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return *flag
}

func (d *driver) sessionStatus(_ context.Context, asked *command) (fields, error) {
	held, err := find(d, d.sessions, asked.Session)
	if err != nil {
		return nil, err
	}
	at := nowNanos()
	status := fields{"at_ns": number(at)}
	var lost *lowkey.SessionLostError
	isLost := errors.As(held.session.Err(), &lost)
	status["held"] = !isLost
	status["remaining_ms"] = held.session.Remaining().Milliseconds()
	if isLost {
		status["cause"] = causeName(lost.Cause)
	}
	return status, nil
}

func (d *driver) closeSession(_ context.Context, asked *command) (fields, error) {
	held, err := find(d, d.sessions, asked.Session)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	held.isQuiet = true
	for _, lock := range d.locks {
		lock.isQuiet = lock.isQuiet || lock.guard.LeaseID() == held.session.LeaseID()
	}
	d.mu.Unlock()
	return nil, held.session.Close()
}
