//go:build linux

package main

import (
	"context"
	"errors"
	"time"

	"lowkey"
)

func (d *driver) acquire(ctx context.Context, asked *command) (fields, error) {
	defer func() {
		d.mu.Lock()
		delete(d.acquires, asked.ID)
		d.mu.Unlock()
	}()
	held, err := find(d, d.sessions, asked.Session)
	if err != nil {
		return nil, err
	}
	options, err := optionsOf(asked)
	if err != nil {
		return nil, err
	}
	guard, err := held.session.Lock(ctx, asked.Name, options...)
	at := nowNanos()
	if err != nil {
		return nil, err
	}
	lock := &heldLock{guard: guard}
	if err := keep(d, d.locks, asked.Lock, lock); err != nil {
		return nil, err
	}
	go d.tellLoss(asked.Lock, lock)
	return fields{"token": number(guard.Token()), "lease_id": number(guard.LeaseID()), "at_ns": number(at)}, nil
}

func optionsOf(asked *command) ([]lowkey.LockOption, error) {
	var options []lowkey.LockOption
	switch asked.Mode {
	case "", "exclusive":
	case "shared":
		options = append(options, lowkey.Shared())
	default:
		return nil, driverError("mode is exclusive or shared, not " + asked.Mode)
	}
	switch asked.Scope {
	case "", "name":
	case "subtree":
		options = append(options, lowkey.Subtree())
	default:
		return nil, driverError("scope is name or subtree, not " + asked.Scope)
	}
	if asked.Value != "" {
		options = append(options, lowkey.Value(asked.Value))
	}
	if asked.AtMostSeconds > 0 {
		options = append(options, lowkey.AtMost(time.Duration(asked.AtMostSeconds)*time.Second))
	}
	if asked.WaitMs != nil {
		options = append(options, lowkey.Wait(time.Duration(*asked.WaitMs)*time.Millisecond))
	}
	return options, nil
}

// tellLoss waits for the SDK's signal.
func (d *driver) tellLoss(handle string, lock *heldLock) {
	<-lock.guard.Context().Done()
	at := nowNanos()
	var lost *lowkey.LostError
	if errors.As(context.Cause(lock.guard.Context()), &lost) && !d.isQuiet(&lock.isQuiet) {
		d.out.event("lost", fields{"lock": handle, "cause": causeName(lost.Cause), "at_ns": number(at)})
	}
}

func (d *driver) held(_ context.Context, asked *command) (fields, error) {
	lock, err := find(d, d.locks, asked.Lock)
	if err != nil {
		return nil, err
	}
	at := nowNanos()
	isHeld := lock.guard.Held()
	return fields{
		"held": isHeld, "remaining_ms": lock.guard.Remaining().Milliseconds(), "at_ns": number(at),
	}, nil
}

func (d *driver) check(_ context.Context, asked *command) (fields, error) {
	lock, err := find(d, d.locks, asked.Lock)
	if err != nil {
		return nil, err
	}
	return nil, lock.guard.Err()
}

// probe asks about every millisecond whether the lock is held, until it is not.
func (d *driver) probe(_ context.Context, asked *command) (fields, error) {
	lock, err := find(d, d.locks, asked.Lock)
	if err != nil {
		return nil, err
	}
	handle := asked.Lock
	go func() {
		lastTrue, trues := int64(0), 0
		for {
			at := nowNanos()
			if lock.guard.Held() {
				lastTrue = at
				trues++
				time.Sleep(time.Millisecond)
				continue
			}
			seen := fields{"lock": handle, "first_false_ns": number(at), "trues": trues}
			if trues > 0 {
				seen["last_true_ns"] = number(lastTrue)
			}
			d.out.event("probe", seen)
			return
		}
	}()
	return nil, nil
}

func (d *driver) release(_ context.Context, asked *command) (fields, error) {
	lock, err := find(d, d.locks, asked.Lock)
	if err != nil {
		return nil, err
	}
	at := nowNanos()
	return fields{"at_ns": number(at)}, lock.guard.Release()
}

func (d *driver) get(ctx context.Context, asked *command) (fields, error) {
	client, err := find(d, d.clients, asked.Client)
	if err != nil {
		return nil, err
	}
	state, err := client.Get(ctx, asked.Name)
	if err != nil {
		return nil, err
	}
	holders := []fields{}
	for _, holder := range state.Holders {
		holders = append(holders, fields{
			"owner": holder.Owner, "lease_id": number(holder.LeaseID), "token": number(holder.Token),
		})
	}
	return fields{"holders": holders}, nil
}

func (d *driver) cancel(_ context.Context, asked *command) (fields, error) {
	d.mu.Lock()
	cancel, isUnderWay := d.acquires[asked.Target]
	d.mu.Unlock()
	if isUnderWay {
		cancel(errCancelled)
	}
	return fields{"cancelled": isUnderWay}, nil
}
