package lowkey_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"lowkey"
	"lowkey/internal/clustertest"
)

func TestWatches(t *testing.T) {
	cluster := clustertest.Start(t, 3)
	client := dial(t, cluster.Endpoints())
	s := session(t, client, 10*time.Second)
	watch, err := client.Watch(t.Context(), lowkey.Prefix("watched/"))
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close()
	var wanted, seen []string
	change := func(name string) {
		guard := lock(t, s, name)
		wanted = append(wanted, fmt.Sprintf("ACQUIRED %s %d", name, guard.Token()), fmt.Sprintf("RELEASED %s %d", name, guard.Token()))
		if err := guard.Release(); err != nil {
			t.Fatal(err)
		}
	}
	read := func() {
		for len(seen) < len(wanted) {
			event, err := watch.Next()
			if err != nil {
				t.Fatal(err)
			}
			seen = append(seen, fmt.Sprintf("%v %s %d", event.Type, event.Name, event.Token))
		}
		if !slices.Equal(seen, wanted) {
			t.Fatalf("seen %v\nwanted %v", seen, wanted)
		}
	}
	change("watched/a")
	read()
	// The watch goes on elsewhere, without gaps or repeats.
	node := cluster.At(client.Endpoint())
	node.Kill()
	change("watched/b")
	read()
	node.RunAgain()
	position := watch.Position()
	change("watched/c")
	later, err := client.Watch(t.Context(), lowkey.Prefix("watched/"), lowkey.After(position))
	if err != nil {
		t.Fatal(err)
	}
	defer later.Close()
	for event, err := range later.All() {
		if err != nil {
			t.Fatal(err)
		}
		if event.Name != "watched/c" || event.Type != lowkey.Acquired {
			t.Fatalf("%+v", event)
		}
		break
	}
	if _, err := client.Watch(t.Context(), lowkey.Name("a"), lowkey.Prefix("b")); !errors.Is(err, lowkey.ErrInvalid) {
		t.Fatalf("%v", err)
	}
}

func TestAWatchOfWhatIsForgottenSaysSo(t *testing.T) {
	cluster := clustertest.Start(t, 1)
	client := dial(t, cluster.Endpoints())
	s := session(t, client, 10*time.Second)
	// Before the node that joins last is gone.
	defer client.Close()
	early := lock(t, s, "a")
	_ = early.Release()
	// A node that joins is given the state as it is, and not what led to it.
	cluster.Join(t)
	cluster.Nodes[1].Lead(t)
	clustertest.WaitFor(t, "the client to follow the leader", func() bool {
		return client.Endpoint() == cluster.Nodes[1].Endpoint()
	})
	if _, err := client.Watch(t.Context(), lowkey.From(early.Revision())); !errors.Is(err, lowkey.ErrCompacted) {
		t.Fatalf("%v", err)
	}
	held := lock(t, s, "b")
	locks, from, err := client.List(t.Context(), "")
	if err != nil || len(locks) != 1 || locks[0].Name != "b" || locks[0].Holders[0].Token != held.Token() {
		t.Fatalf("%+v %v", locks, err)
	}
	watch, err := client.Watch(t.Context(), lowkey.From(from))
	if err != nil {
		t.Fatal(err)
	}
	_ = held.Release()
	if event, err := watch.Next(); err != nil || event.Type != lowkey.Released || event.Name != "b" {
		t.Fatalf("%+v %v", event, err)
	}
	watch.Close()
	if _, err := watch.Next(); !errors.Is(err, context.Canceled) {
		t.Fatalf("%v", err)
	}
}

// More watches than one connection carries keep nothing waiting.
func TestManyWatches(t *testing.T) {
	cluster := clustertest.Start(t, 1)
	client := dial(t, cluster.Endpoints())
	var watches []*lowkey.Watch
	for range 250 {
		watch, err := client.Watch(t.Context(), lowkey.Name("many"))
		if err != nil {
			t.Fatal(err)
		}
		watches = append(watches, watch)
	}
	guard := lock(t, session(t, client, 10*time.Second), "many")
	for _, watch := range watches {
		if event, err := watch.Next(); err != nil || event.Token != guard.Token() {
			t.Fatalf("%+v %v", event, err)
		}
		watch.Close()
	}
}

func TestPositionsAreReadAsTheyAreWritten(t *testing.T) {
	for _, text := range []string{"812.0", "812", "18446744073709551615.4294967294"} {
		position, err := lowkey.ParsePosition(text)
		if err != nil || position.String() != text {
			t.Errorf("%s: %v %v", text, position, err)
		}
	}
	for _, text := range []string{"", ".", "1.", "a", "-1", "1.2.3", "1.4294967296"} {
		if _, err := lowkey.ParsePosition(text); !errors.Is(err, lowkey.ErrInvalid) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestElections(t *testing.T) {
	cluster := clustertest.Start(t, 1)
	client, rival := dial(t, cluster.Endpoints(), lowkey.Owner("first")), dial(t, cluster.Endpoints(), lowkey.Owner("rival"))
	seen, err := client.Observe(t.Context(), "scheduler")
	if err != nil {
		t.Fatal(err)
	}
	next := func() string {
		observation, err := seen.Next()
		if err != nil {
			t.Fatal(err)
		}
		if observation.Leader == nil {
			return "nobody"
		}
		return observation.Leader.Owner + " at " + observation.Leader.Value
	}
	if now := next(); now != "nobody" {
		t.Fatal(now)
	}
	s := session(t, client, 6*time.Second)
	ctx, stop := context.WithCancel(t.Context())
	var terms atomic.Int64
	var tokens [2]uint64
	ended := make(chan error, 1)
	go func() {
		ended <- s.Elect(ctx, "scheduler", "here", func(ctx context.Context, lead *lowkey.Lead) error {
			term := terms.Add(1) - 1
			if term < 2 {
				tokens[term] = lead.Token()
			}
			// Others may see the value before this call returns, and end it.
			if err := lead.Proclaim(ctx, "there"); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			<-ctx.Done()
			if ctx.Err() == nil || context.Cause(ctx) == nil {
				t.Error("the context has not ended")
			}
			return errors.New("what it returns when it is not the leader any more does not count")
		})
	}()
	for _, wanted := range []string{"first at here", "first at there"} {
		if now := next(); now != wanted {
			t.Fatalf("%s instead of %s", now, wanted)
		}
	}
	// The session is ended by somebody else: it stands again, with a new one.
	if err := rival.RevokeLease(t.Context(), s.LeaseID(), "first"); err != nil {
		t.Fatal(err)
	}
	clustertest.WaitFor(t, "a second term", func() bool { return terms.Load() == 2 })
	for now := next(); now != "first at there"; now = next() {
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatalf("%v", err)
	}
	if tokens[1] <= tokens[0] {
		t.Fatalf("tokens %v", tokens)
	}
	// It has resigned: another is elected at once.
	other := session(t, rival, 10*time.Second)
	done := errors.New("done")
	err = other.Elect(t.Context(), "scheduler", "", func(context.Context, *lowkey.Lead) error { return done })
	if !errors.Is(err, done) {
		t.Fatalf("%v", err)
	}
	if err := other.Elect(t.Context(), "a//b", "", nil); !errors.Is(err, lowkey.ErrInvalid) {
		t.Fatalf("%v", err)
	}
	for now := next(); now != "nobody"; now = next() {
	}
}
