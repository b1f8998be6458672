// Package lowkey is the Go SDK of lowkey, a distributed lock and leader-election service.
//
// A [Client] is a connection to a cluster. A [Session] is the client's presence: a lease that is renewed in the
// background. A [Guard] is a lock that a session holds.
//
//	client, err := lowkey.Dial(ctx, []string{"http://127.0.0.1:9000"})
//	…
//	defer client.Close()
//	session, err := client.Session(ctx, lowkey.TTL(10*time.Second))
//	…
//	guard, err := session.Lock(ctx, "billing/nightly")
//	…
//	defer guard.Release()
//	work(guard.Context(), guard.Token())
//
// # What a lock means
//
// Only the client's own clock decides how long it holds something, and that clock also runs while the machine is
// suspended. [Guard.Held] asks the clock. [Guard.Context] ends when the lock is lost or released, without any
// answer from the network. A lock that was lost never comes back: acquire it again, with another token.
//
// No client can stop a write that is already under way when the lock is lost. So send [Guard.Token] along with
// every write, and let the resource refuse lower tokens than it has seen: see package lowkey/lowkeyfence.
//
// # Errors
//
// Decide with [errors.Is] and the values ErrHeld, ErrSessionLost, ErrUnavailable and so on. [errors.As] with an
// [*Error] gives the details, such as the holder of a lock.
package lowkey
