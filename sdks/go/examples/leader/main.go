// Command leader stands for election and works while it leads. Start several: one leads, and when it is stopped or
// dies, another does.
//
//	LOWKEY_ENDPOINTS=http://127.0.0.1:9000 go run ./leader -address http://10.0.0.1:4000
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"lowkey"
)

func main() {
	address := flag.String("address", "http://127.0.0.1:4000", "where the others find this process")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *address); err != nil && !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}

func run(ctx context.Context, address string) error {
	client, err := lowkey.Dial(ctx, nil)
	if err != nil {
		return err
	}
	defer client.Close()
	session, err := client.Session(ctx, lowkey.TTL(5*time.Second))
	if err != nil {
		return err
	}
	return session.Elect(ctx, "examples/leader", address, func(ctx context.Context, lead *lowkey.Lead) error {
		fmt.Printf("leading with token %d\n", lead.Token())
		for {
			select {
			case <-time.After(time.Second):
				// What only the leader may do, with lead.Token().
			case <-ctx.Done():
				fmt.Printf("not leading any more: %v\n", context.Cause(ctx))
				return nil
			}
		}
	})
}
