package lowkey_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"lowkey"
	"lowkey/internal/clustertest"
)

func dial(t testing.TB, endpoints []string, options ...lowkey.Option) *lowkey.Client {
	t.Helper()
	client, err := lowkey.Dial(t.Context(), endpoints, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func session(t testing.TB, client *lowkey.Client, ttl time.Duration) *lowkey.Session {
	t.Helper()
	s, err := client.Session(t.Context(), lowkey.TTL(ttl))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func lock(t testing.TB, s *lowkey.Session, name string, options ...lowkey.LockOption) *lowkey.Guard {
	t.Helper()
	guard, err := s.Lock(t.Context(), name, options...)
	if err != nil {
		t.Fatal(err)
	}
	return guard
}

func TestLocks(t *testing.T) {
	cluster := clustertest.Start(t, 1)
	client := dial(t, cluster.Endpoints(), lowkey.Owner("worker-1"))
	other := session(t, dial(t, cluster.Endpoints()), 10*time.Second)
	s := session(t, client, 10*time.Second)

	t.Run("one holds it, and others are told who", func(t *testing.T) {
		guard := lock(t, s, "jobs/nightly", lowkey.Value("v"))
		if !guard.Held() || guard.Context().Err() != nil || guard.Token() == 0 {
			t.Fatalf("not held: %v", guard.Err())
		}
		_, err := other.TryLock(t.Context(), "jobs/nightly")
		var details *lowkey.Error
		if !errors.Is(err, lowkey.ErrHeld) || errors.Is(err, lowkey.ErrWaitTimeout) || !errors.As(err, &details) {
			t.Fatalf("%v", err)
		}
		if by := details.HeldBy; by == nil || by.Owner != "worker-1" || by.Token != guard.Token() {
			t.Fatalf("%+v", details.HeldBy)
		}
		_, err = other.Lock(t.Context(), "jobs/nightly", lowkey.Wait(30*time.Millisecond))
		if !errors.Is(err, lowkey.ErrHeld) || !errors.Is(err, lowkey.ErrWaitTimeout) {
			t.Fatalf("%v", err)
		}
		if err := guard.Release(); err != nil {
			t.Fatal(err)
		}
		if guard.Held() || !errors.Is(guard.Err(), lowkey.ErrReleased) || guard.Context().Err() == nil {
			t.Fatalf("still held: %v", guard.Err())
		}
		again := lock(t, other, "jobs/nightly")
		if again.Token() <= guard.Token() {
			t.Fatalf("token %d after %d", again.Token(), guard.Token())
		}
		if err := again.Release(); err != nil {
			t.Fatal(err)
		}
	})

	t.Run("who waits gets it when it is released", func(t *testing.T) {
		guard := lock(t, s, "queue")
		granted := make(chan *lowkey.Guard, 1)
		go func() {
			next, err := other.Lock(context.Background(), "queue")
			if err != nil {
				t.Error(err)
			}
			granted <- next
		}()
		clustertest.WaitFor(t, "the other to wait", func() bool {
			state, err := client.Get(t.Context(), "queue")
			return err == nil && state.WaiterCount == 1
		})
		if err := guard.Release(); err != nil {
			t.Fatal(err)
		}
		next := <-granted
		if err := next.Release(); err != nil {
			t.Fatal(err)
		}
	})

	t.Run("guards of one session share a shared grant, and the last one releases it", func(t *testing.T) {
		first, second := lock(t, s, "shared", lowkey.Shared()), lock(t, s, "shared", lowkey.Shared())
		third := lock(t, other, "shared", lowkey.Shared())
		if first.Token() != second.Token() || third.Token() == first.Token() {
			t.Fatalf("%d %d %d", first.Token(), second.Token(), third.Token())
		}
		_ = third.Release()
		_ = first.Release()
		if first.Held() || !second.Held() {
			t.Fatal("the first release ended the second guard")
		}
		if _, err := other.TryLock(t.Context(), "shared"); !errors.Is(err, lowkey.ErrHeld) {
			t.Fatalf("%v", err)
		}
		if err := second.Release(); err != nil {
			t.Fatal(err)
		}
		exclusive := lock(t, other, "shared")
		_ = exclusive.Release()
	})

	t.Run("a subtree covers what is below", func(t *testing.T) {
		guard := lock(t, s, "tree", lowkey.Subtree())
		defer guard.Release()
		if _, err := other.TryLock(t.Context(), "tree/leaf"); !errors.Is(err, lowkey.ErrHeld) {
			t.Fatalf("%v", err)
		}
	})

	t.Run("one session asks for a name once at a time", func(t *testing.T) {
		guard := lock(t, s, "mine")
		if _, err := s.TryLock(t.Context(), "mine"); !errors.Is(err, lowkey.ErrHeld) {
			t.Fatalf("%v", err)
		}
		granted := make(chan *lowkey.Guard, 1)
		go func() {
			next, err := s.Lock(context.Background(), "mine")
			if err != nil {
				t.Error(err)
			}
			granted <- next
		}()
		_ = guard.Release()
		next := <-granted
		if next.Token() <= guard.Token() || !next.Held() {
			t.Fatalf("token %d after %d", next.Token(), guard.Token())
		}
		_ = next.Release()
	})

	t.Run("a context that ends gives the place up", func(t *testing.T) {
		guard := lock(t, s, "given-up")
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := other.Lock(ctx, "given-up")
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("%v", err)
		}
		clustertest.WaitFor(t, "nobody to wait", func() bool {
			state, err := client.Get(t.Context(), "given-up")
			return err == nil && state.WaiterCount == 0
		})
		_ = guard.Release()
	})

	t.Run("the end of a session ends its locks, and belief first", func(t *testing.T) {
		short := session(t, client, 10*time.Second)
		guard := lock(t, short, "closing")
		if err := short.Close(); err != nil {
			t.Fatal(err)
		}
		var lost *lowkey.LostError
		if guard.Held() || !errors.As(guard.Err(), &lost) || lost.Cause != lowkey.Closed {
			t.Fatalf("%v", guard.Err())
		}
		if err := guard.Release(); err != nil {
			t.Fatalf("the release of what was closed on purpose: %v", err)
		}
		if _, err := short.Lock(t.Context(), "closing"); !errors.Is(err, lowkey.ErrSessionLost) {
			t.Fatalf("%v", err)
		}
		_ = lock(t, other, "closing").Release()
	})

	t.Run("the context of a guard has the values of the acquire and outlives it", func(t *testing.T) {
		type key struct{}
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
		guard, err := s.Lock(ctx, "values")
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		if guard.Context().Err() != nil || guard.Context().Value(key{}) != "value" {
			t.Fatal("the context ended with that of the acquire, or lost its values")
		}
		child, stop := context.WithCancel(guard.Context())
		defer stop()
		_ = guard.Release()
		<-child.Done()
		if !errors.Is(context.Cause(child), lowkey.ErrReleased) {
			t.Fatalf("%v", context.Cause(child))
		}
	})
}

func TestBadInputIsToldInWords(t *testing.T) {
	for _, endpoint := range []string{"nowhere", "127.0.0.1:9000", "ftp://a:1", "http://a", "http://a:1/path", "http://"} {
		_, err := lowkey.Dial(t.Context(), []string{endpoint})
		if !errors.Is(err, lowkey.ErrInvalid) {
			t.Errorf("%s: %v", endpoint, err)
		}
	}
	if _, err := lowkey.Dial(t.Context(), nil, lowkey.AuthFile("/does/not/exist")); !errors.Is(err, lowkey.ErrInvalid) {
		t.Errorf("%v", err)
	}
	cluster := clustertest.Start(t, 1)
	client := dial(t, cluster.Endpoints())
	for _, ttl := range []time.Duration{0, -1, 1500 * time.Millisecond, time.Hour} {
		if _, err := client.Session(t.Context(), lowkey.TTL(ttl)); !errors.Is(err, lowkey.ErrInvalid) {
			t.Errorf("%v: %v", ttl, err)
		}
	}
	s := session(t, client, 10*time.Second)
	for _, name := range []string{"", "a//b", "a/../b", string(make([]byte, 70_000))} {
		if _, err := s.TryLock(t.Context(), name); !errors.Is(err, lowkey.ErrInvalid) {
			t.Errorf("%.10q: %v", name, err)
		}
	}
	if _, err := s.TryLock(t.Context(), "a", lowkey.Value(string(make([]byte, 5000)))); !errors.Is(err, lowkey.ErrInvalid) {
		t.Errorf("%v", err)
	}
	if err := client.ForceRelease(t.Context(), "a", 1, 0); !errors.Is(err, lowkey.ErrInvalid) {
		t.Errorf("%v", err)
	}
}

func TestACloseLeavesNothingBehind(t *testing.T) {
	cluster := clustertest.Start(t, 1)
	before := runtime.NumGoroutine()
	client := dial(t, cluster.Endpoints())
	s := session(t, client, 10*time.Second)
	guard := lock(t, s, "left-behind")
	watch, err := client.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	if guard.Held() || s.Err() == nil {
		t.Fatal("held after the end")
	}
	// It may have seen the end of the session first.
	for _, err = range watch.All() {
	}
	if !errors.Is(err, lowkey.ErrClosed) {
		t.Errorf("watch: %v", err)
	}
	if _, err := client.Session(t.Context()); !errors.Is(err, lowkey.ErrClosed) {
		t.Errorf("session: %v", err)
	}
	if _, err := client.Get(t.Context(), "left-behind"); !errors.Is(err, lowkey.ErrClosed) {
		t.Errorf("get: %v", err)
	}
	if _, _, err := client.List(t.Context(), ""); !errors.Is(err, lowkey.ErrClosed) {
		t.Errorf("list: %v", err)
	}
	if err := client.Close(); err != nil {
		t.Errorf("a second time: %v", err)
	}
	clustertest.WaitFor(t, "all goroutines to end", func() bool { return runtime.NumGoroutine() <= before })
	state, err := dial(t, cluster.Endpoints()).Get(t.Context(), "left-behind")
	if err != nil || len(state.Holders) != 0 {
		t.Fatalf("%+v %v", state, err)
	}
}

func TestACallThatEndsWithItsContextSaysSo(t *testing.T) {
	cluster := clustertest.Start(t, 1)
	client := dial(t, cluster.Endpoints())
	s := session(t, client, 30*time.Second)
	cluster.Nodes[0].Pause()
	defer cluster.Nodes[0].Resume()
	why := errors.New("the user went away")
	for name, call := range map[string]func(context.Context) error{
		"session": func(ctx context.Context) error { _, err := client.Session(ctx); return err },
		"lock":    func(ctx context.Context) error { _, err := s.Lock(ctx, "a"); return err },
		"get":     func(ctx context.Context) error { _, err := client.Get(ctx, "a"); return err },
		"list":    func(ctx context.Context) error { _, _, err := client.List(ctx, ""); return err },
		"watch":   func(ctx context.Context) error { _, err := client.Watch(ctx); return err },
		"observe": func(ctx context.Context) error { _, err := client.Observe(ctx, "a"); return err },
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(100*time.Millisecond, func() { cancel(why) })
		if err := call(ctx); !errors.Is(err, context.Canceled) || !errors.Is(err, why) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
