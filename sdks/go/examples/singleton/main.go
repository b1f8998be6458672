// Command singleton runs a job that must run once at a time: start it on as many machines as you like.
//
//	LOWKEY_ENDPOINTS=http://127.0.0.1:9000 go run ./singleton
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"lowkey"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	client, err := lowkey.Dial(ctx, nil)
	if err != nil {
		return err
	}
	defer client.Close()
	session, err := client.Session(ctx, lowkey.TTL(10*time.Second))
	if err != nil {
		return err
	}
	guard, err := session.TryLock(ctx, "examples/singleton")
	var held *lowkey.Error
	if errors.Is(err, lowkey.ErrHeld) && errors.As(err, &held) {
		fmt.Printf("%s runs it already\n", held.HeldBy.Owner)
		return nil
	}
	if err != nil {
		return err
	}
	defer guard.Release()
	return job(guard.Context(), guard.Token())
}

// job does its work under a context that ends when the lock is lost.
func job(ctx context.Context, token uint64) error {
	for step := range 3 {
		select {
		case <-time.After(100 * time.Millisecond):
			fmt.Printf("step %d of the job, with token %d\n", step+1, token)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
