package lowkey_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"lowkey"
	"lowkey/internal/clustertest"
)

// Acquires are cancelled half-way while leaders are killed. Whatever became of each: no lock may be left on a
// session that lives on.
func TestCancelledAcquiresLeaveNoLockBehind(t *testing.T) {
	cluster := clustertest.Start(t, 3)
	client := dial(t, cluster.Endpoints())
	wanted, _ := clustertest.Rounds(t, 1000)
	var sessions []*lowkey.Session
	for range 8 {
		sessions = append(sessions, session(t, client, 30*time.Second))
	}
	var cancelled, granted atomic.Int64
	var isOver atomic.Bool
	var workers sync.WaitGroup
	defer func() {
		isOver.Store(true)
		workers.Wait()
	}()
	// How long acquires may take follows from how long they take, on a machine of any speed: so that most of them,
	// but not all, are cancelled half-way.
	var bound atomic.Int64
	bound.Store(int64(20 * time.Millisecond))
	adapt := func(change int64) {
		now := bound.Load()
		bound.Store(min(max(now+now/100*change, int64(5*time.Millisecond)), int64(5*time.Second)))
	}
	for range 40 {
		workers.Go(func() {
			for !isOver.Load() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.Int64N(bound.Load())))
				guard, err := sessions[rand.IntN(len(sessions))].Lock(ctx, fmt.Sprintf("attack/%d", rand.IntN(100)))
				switch {
				case err == nil:
					adapt(-20)
					granted.Add(1)
					time.Sleep(rand.N(3 * time.Millisecond))
					if err := guard.Release(); err != nil {
						t.Errorf("release: %v", err)
					}
				case errors.Is(err, context.DeadlineExceeded):
					// Others were cancelled while another goroutine of the session was at the name.
					var details *lowkey.Error
					if errors.As(err, &details) && details.OutcomeUnknown() {
						adapt(1)
						cancelled.Add(1)
					}
				default:
					t.Errorf("acquire: %v", err)
				}
				cancel()
			}
		})
	}
	kills := 0
	for ; kills < 3 || cancelled.Load() < int64(wanted); kills++ {
		before := granted.Load()
		clustertest.WaitFor(t, "locks to be granted again", func() bool { return granted.Load() >= before+50 })
		if leader := cluster.At(client.Endpoint()); leader != nil {
			leader.Kill()
			leader.RunAgain()
		}
	}
	isOver.Store(true)
	workers.Wait()
	clustertest.WaitFor(t, "all that was given up to be released", func() bool {
		locks, _, err := client.List(t.Context(), "attack/")
		return err == nil && len(locks) == 0
	})
	for _, s := range sessions {
		if s.Err() != nil {
			t.Errorf("a session was lost: %v", s.Err())
		}
	}
	t.Logf("%d acquires cancelled half-way, %d granted and released, the leader killed %d times", cancelled.Load(), granted.Load(), kills)
}

// A thousand sessions in one process share one stream, and no renewal is late.
func TestAThousandSessionsAreRenewedInTime(t *testing.T) {
	cluster := clustertest.Start(t, 1)
	client := dial(t, cluster.Endpoints())
	const count, ttl = 1000, 5 * time.Second
	sessions := make([]*lowkey.Session, count)
	var makers sync.WaitGroup
	for at := range sessions {
		makers.Go(func() {
			s, err := client.Session(context.Background(), lowkey.TTL(ttl))
			if err == nil {
				_, err = s.Lock(context.Background(), fmt.Sprintf("thousand/%d", at))
			}
			if err != nil {
				t.Error(err)
			}
			sessions[at] = s
		})
	}
	makers.Wait()
	if t.Failed() {
		return
	}
	before, began := cpuTime(t), time.Now()
	shortest := ttl
	for time.Since(began) < 3*ttl {
		for _, s := range sessions {
			if s.Err() != nil {
				t.Fatalf("lease %d: %v", s.LeaseID(), s.Err())
			}
			shortest = min(shortest, s.Remaining())
		}
		time.Sleep(50 * time.Millisecond)
	}
	used := cpuTime(t) - before
	var memory runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&memory)
	t.Logf("%d sessions for %v: %.2f %% of a core, %d KiB on the heap, never less than %v left of %v",
		count, time.Since(began).Round(time.Second), 100*used.Seconds()/time.Since(began).Seconds(),
		memory.HeapAlloc/1024, shortest.Round(time.Millisecond), ttl*9/10)
	// A session whose first renewal was not acknowledged in time would be in jeopardy at 40 % of its time.
	if _, isMeasured := clustertest.Rounds(t, 1); isMeasured && shortest < ttl*4/10 {
		t.Errorf("a renewal was late: only %v were left", shortest)
	}
}

func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func TestAForcedReleaseIsKnown(t *testing.T) {
	cluster := clustertest.Start(t, 1)
	client, admin := dial(t, cluster.Endpoints()), dial(t, cluster.Endpoints(), lowkey.Owner("admin"))
	s := session(t, client, 30*time.Second)
	guard, kept := lock(t, s, "forced"), lock(t, s, "kept")
	if err := admin.ForceRelease(t.Context(), "forced", guard.LeaseID(), guard.Token()); err != nil {
		t.Fatal(err)
	}
	// Well before the next renewal, which comes after 10 s.
	select {
	case <-guard.Context().Done():
	case <-time.After(9 * time.Second):
		t.Fatal("nobody told")
	}
	var lost *lowkey.LostError
	if !errors.As(context.Cause(guard.Context()), &lost) || lost.Cause != lowkey.ReleasedElsewhere || guard.Held() {
		t.Fatalf("%v", guard.Err())
	}
	if !kept.Held() || s.Err() != nil {
		t.Fatal("more was lost than was released")
	}
	if err := guard.Release(); !errors.Is(err, lowkey.ErrLost) {
		t.Fatalf("%v", err)
	}
	// The name is free for the session again.
	next := lock(t, s, "forced")
	if next.Token() <= guard.Token() {
		t.Fatalf("token %d after %d", next.Token(), guard.Token())
	}
	if err := admin.RevokeLease(t.Context(), s.LeaseID(), client.Owner()); err != nil {
		t.Fatal(err)
	}
	<-s.Lost()
	var gone *lowkey.SessionLostError
	if !errors.As(s.Err(), &gone) || gone.Cause != lowkey.Gone || next.Held() || kept.Held() {
		t.Fatalf("%v", s.Err())
	}
}

// What a session holds goes on while leaders change, with the same token.
func TestSessionsSurviveTheirLeader(t *testing.T) {
	cluster := clustertest.Start(t, 3)
	client := dial(t, cluster.Endpoints()[2:])
	s := session(t, client, 10*time.Second)
	guard := lock(t, s, "survives")
	for range 2 {
		leader := cluster.At(client.Endpoint())
		if leader == nil {
			t.Fatalf("connected to %q", client.Endpoint())
		}
		leader.Kill()
		other, err := s.Lock(t.Context(), "while-down")
		if err != nil {
			t.Fatal(err)
		}
		if err := other.Release(); err != nil {
			t.Fatal(err)
		}
		leader.RunAgain()
	}
	// Longer than a lease lives that is not renewed.
	time.Sleep(10 * time.Second)
	if !guard.Held() {
		t.Fatal(guard.Err())
	}
	if current, err := client.CheckToken(t.Context(), "survives", guard.Token()); err != nil || !current {
		t.Fatalf("%v %v", current, err)
	}
}

// A node that hangs keeps its connections open. The client leaves it.
func TestANodeThatHangsIsLeft(t *testing.T) {
	cluster := clustertest.Start(t, 3)
	client := dial(t, cluster.Endpoints())
	s := session(t, client, 10*time.Second)
	hanging := cluster.At(client.Endpoint())
	hanging.Pause()
	defer hanging.Resume()
	guard, err := s.Lock(t.Context(), "elsewhere")
	if err != nil {
		t.Fatal(err)
	}
	if client.Endpoint() == hanging.Endpoint() {
		t.Fatal("it did not leave")
	}
	if err := guard.Release(); err != nil {
		t.Fatal(err)
	}
}

func TestAnotherClusterIsRefused(t *testing.T) {
	ours, foreign := clustertest.Start(t, 1), clustertest.Start(t, 1)
	client := dial(t, append(ours.Endpoints(), foreign.Endpoints()...), lowkey.CallTimeout(5*time.Second))
	cluster := client.ClusterID()
	if len(cluster) != 32 {
		t.Fatalf("%q", cluster)
	}
	if _, err := lowkey.Dial(t.Context(), foreign.Endpoints(), lowkey.ClusterID(cluster)); !errors.Is(err, lowkey.ErrWrongCluster) {
		t.Fatalf("%v", err)
	}
	s := session(t, client, 60*time.Second)
	ours.Nodes[0].Kill()
	if _, err := s.TryLock(t.Context(), "x"); err == nil {
		t.Fatal("the lock is that of another cluster")
	}
	if client.ClusterID() != cluster {
		t.Fatal("it went to another cluster")
	}
	ours.Nodes[0].RunAgain()
	if _, err := s.TryLock(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
}
