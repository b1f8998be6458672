package lowkey

import (
	"testing"
	"time"

	"lowkey/internal/clustertest"
	"lowkey/lowkeypb"
)

// grantBehindTheBack has the session's lease granted a lock that no guard knows of.
func grantBehindTheBack(t *testing.T, s *Session, name, requestID string) {
	t.Helper()
	acquire := &lowkeypb.AcquireLockRequest{
		LockName: name, OwnerId: s.client.owner, LeaseId: s.LeaseID(), RequestId: requestID,
	}
	call := &lowkeypb.SessionCall{Call: &lowkeypb.SessionCall_AcquireLock{AcquireLock: acquire}}
	if _, err := s.client.link.call(t.Context(), call, time.Minute); err != nil {
		t.Fatal(err)
	}
}

// A grant that nobody here knows is released if its acquire was given up, and left alone otherwise. Renewals tell.
func TestWhatWasGivenUpIsReleasedAndNothingElse(t *testing.T) {
	cluster := clustertest.Start(t, 1)
	client, err := Dial(t.Context(), cluster.Endpoints())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	s, err := client.Session(t.Context(), TTL(6*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	guard, err := s.Lock(t.Context(), "guarded")
	if err != nil {
		t.Fatal(err)
	}
	grantBehindTheBack(t, s, "unknown", "an answer is under way")
	grantBehindTheBack(t, s, "given-up", "given up")
	s.presence.beliefs.giveUp("given up")
	holders := func(name string) int {
		state, err := client.Get(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		return len(state.Holders)
	}
	clustertest.WaitFor(t, "the grant to be released", func() bool { return holders("given-up") == 0 })
	// The next renewals see a difference, too.
	time.Sleep(5 * time.Second)
	if holders("unknown") != 1 || holders("guarded") != 1 || !guard.Held() {
		t.Fatal("more was released than was given up")
	}
}
