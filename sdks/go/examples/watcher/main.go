// Command watcher shows which locks are held, and then every change. If it was away for too long, it begins again
// with a list.
//
//	LOWKEY_ENDPOINTS=http://127.0.0.1:9000 go run ./watcher -prefix billing/
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"

	"lowkey"
)

func main() {
	prefix := flag.String("prefix", "", "what the names begin with")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *prefix); err != nil && !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}

func run(ctx context.Context, prefix string) error {
	client, err := lowkey.Dial(ctx, nil)
	if err != nil {
		return err
	}
	defer client.Close()
	for {
		err := follow(ctx, client, prefix)
		if !errors.Is(err, lowkey.ErrCompacted) {
			return err
		}
		fmt.Println("what happened meanwhile is no longer kept; here is what is now")
	}
}

// follow lists, and then watches from there on: nothing is missed between the two.
func follow(ctx context.Context, client *lowkey.Client, prefix string) error {
	locks, from, err := client.List(ctx, prefix)
	if err != nil {
		return err
	}
	watch, err := client.Watch(ctx, lowkey.Prefix(prefix), lowkey.From(from))
	if err != nil {
		return err
	}
	defer watch.Close()
	for _, lock := range locks {
		for _, holder := range lock.Holders {
			fmt.Printf("%s is held by %s with token %d\n", lock.Name, holder.Owner, holder.Token)
		}
	}
	fmt.Printf("watching from revision %d\n", from)
	for event, err := range watch.All() {
		if err != nil {
			return err
		}
		fmt.Printf("%v %s by %s with token %d\n", event.Type, event.Name, event.Owner, event.Token)
	}
	return nil
}
