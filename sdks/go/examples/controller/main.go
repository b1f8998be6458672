// Command controller shows leader election as Kubernetes controllers have it: a manager runs some parts everywhere
// and others only where it leads, and ends the process when the lead is lost. Start it as a Deployment with two
// replicas; LOWKEY_ENDPOINTS names the service of the nodes.
//
// What differs from an election by a Lease object of Kubernetes: the lead has a fencing token, with which whatever the
// controller writes to outside of Kubernetes can refuse a controller that was paused and does not know it yet.
//
//	LOWKEY_ENDPOINTS=http://lowkey-client.lowkey:9000 go run ./controller -election my-controller
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"lowkey"
)

// Runnable is what a manager runs, with the shape that controller-runtime gives it.
type Runnable interface {
	Start(ctx context.Context) error
}

// LeaderElectionRunnable says whether it needs the lead. What does not say so needs it.
type LeaderElectionRunnable interface {
	NeedLeaderElection() bool
}

// Manager runs its parts: those that need no lead at once, all others while it leads.
type Manager struct {
	session  *lowkey.Session
	election string
	identity string
	parts    []Runnable
}

// Add gives the manager a part to run.
func (m *Manager) Add(part Runnable) { m.parts = append(m.parts, part) }

// errLostLead ends the process: what needs the lead must not go on, and a fresh start is the safe way.
var errLostLead = errors.New("leader election lost")

// Start runs until the context ends, a part fails, or the lead is lost.
func (m *Manager) Start(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var everywhere, leading []Runnable
	for _, part := range m.parts {
		if says, ok := part.(LeaderElectionRunnable); ok && !says.NeedLeaderElection() {
			everywhere = append(everywhere, part)
		} else {
			leading = append(leading, part)
		}
	}
	var running sync.WaitGroup
	run := func(within context.Context, parts []Runnable) {
		for _, part := range parts {
			running.Go(func() {
				if err := part.Start(within); err != nil && within.Err() == nil {
					cancel(err)
				}
			})
		}
	}
	run(ctx, everywhere)
	lead, err := m.session.Campaign(ctx, m.election, m.identity)
	if err != nil {
		cancel(err)
		running.Wait()
		return context.Cause(ctx)
	}
	fmt.Printf("%s leads with token %d\n", m.identity, lead.Token())
	// Its context ends with the lead: in time, before anybody else can lead.
	work, end := context.WithCancel(withToken(lead.Context(), lead.Token()))
	defer end()
	run(work, leading)
	select {
	case <-ctx.Done():
	case <-lead.Context().Done():
		cancel(errLostLead)
	}
	// First all work ends, then the lead is given up: nobody else begins before that.
	end()
	cancel(nil)
	running.Wait()
	if resigned := lead.Resign(); resigned != nil {
		log.Printf("the lead ends with its time to live: %v", resigned)
	}
	return context.Cause(ctx)
}

type tokenKey struct{}

func withToken(ctx context.Context, token uint64) context.Context {
	return context.WithValue(ctx, tokenKey{}, token)
}

// metrics runs on every replica.
type metrics struct{}

func (metrics) NeedLeaderElection() bool { return false }

func (metrics) Start(ctx context.Context) error {
	fmt.Println("serving metrics")
	<-ctx.Done()
	return nil
}

// reconciler runs on the leader alone.
type reconciler struct{ every time.Duration }

func (r reconciler) Start(ctx context.Context) error {
	for {
		// What is written outside of Kubernetes carries the token: the database refuses what comes late.
		fmt.Printf("reconciling with token %v\n", ctx.Value(tokenKey{}))
		select {
		case <-time.After(r.every):
		case <-ctx.Done():
			return nil
		}
	}
}

func main() {
	election := flag.String("election", "examples/controller", "the name of the election")
	identity := flag.String("identity", os.Getenv("HOSTNAME"), "what others call this process: the pod's name")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *election, *identity); err != nil && !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}

func run(ctx context.Context, election, identity string) error {
	client, err := lowkey.Dial(ctx, nil)
	if err != nil {
		return err
	}
	defer client.Close()
	// Leases of controllers usually live for 15 s.
	session, err := client.Session(ctx, lowkey.TTL(15*time.Second))
	if err != nil {
		return err
	}
	manager := &Manager{session: session, election: election, identity: identity}
	manager.Add(metrics{})
	manager.Add(reconciler{every: time.Second})
	return manager.Start(ctx)
}
