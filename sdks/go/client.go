package lowkey

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// Environment variables that stand for what a program does not say itself. The commands of lowkey read the same.
const (
	endpointsVariable = "LOWKEY_ENDPOINTS"
	authFileVariable  = "LOWKEY_AUTH_FILE"
)

const defaultEndpoint = "http://127.0.0.1:9000"

// Option is an option of [Dial].
type Option func(*clientOptions)

type clientOptions struct {
	owner          string
	callTimeout    time.Duration
	connectTimeout time.Duration
	clusterID      string
	tls            TLSFiles
	authFile       string
}

// Owner is the name of this client in lists of locks. By default it is made from host and process. Where access is
// required, it must be the principal's name, or begin with it and "/".
func Owner(owner string) Option {
	return func(options *clientOptions) { options.owner = owner }
}

// CallTimeout is how long a call may take, including all retries: 10 s by default. A wait for a lock comes on top.
func CallTimeout(limit time.Duration) Option {
	return func(options *clientOptions) { options.callTimeout = limit }
}

// ConnectTimeout is how long the first connection may take: 10 s by default. The context of [Dial] may end sooner.
func ConnectTimeout(limit time.Duration) Option {
	return func(options *clientOptions) { options.connectTimeout = limit }
}

// ClusterID is the id of the expected cluster, as [Client.ClusterID] or `lowkey status` shows it. Nodes of any other
// cluster are refused from the beginning. Without this the client stays with the cluster that answers first.
//
// Use it in programs that keep tokens beyond their end: the tokens of two clusters cannot be compared.
func ClusterID(id string) Option {
	return func(options *clientOptions) { options.clusterID = id }
}

// Client is a connection to a cluster. It may be used by many goroutines at a time.
//
// It needs one node that answers, and finds the others from there. It prefers the leader, and reconnects by itself.
type Client struct {
	link        *link
	keeper      *keeper
	dialer      *dialer
	watchers    *watchConnections
	owner       string
	callTimeout time.Duration

	mu       sync.Mutex
	sessions map[*Session]struct{}
	isClosed bool
}

// Dial connects to the cluster that these endpoints belong to: gRPC URLs of some of its nodes, such as
// http://127.0.0.1:9000 or https://lock-1.example:9000. Without any, the environment variable LOWKEY_ENDPOINTS
// counts (URLs with commas between), and then http://127.0.0.1:9000.
//
// It fails if no node answers before the context ends.
func Dial(ctx context.Context, endpoints []string, options ...Option) (*Client, error) {
	chosen := clientOptions{
		callTimeout: 10 * time.Second, connectTimeout: 10 * time.Second, authFile: os.Getenv(authFileVariable),
	}
	for _, option := range options {
		option(&chosen)
	}
	endpoints, err := chooseEndpoints(endpoints)
	if err != nil {
		return nil, err
	}
	if chosen.callTimeout <= 0 || chosen.connectTimeout <= 0 {
		return nil, invalid("a timeout must be more than 0")
	}
	dialer, err := newDialer(&chosen)
	if err != nil {
		return nil, err
	}
	if chosen.owner == "" {
		chosen.owner = defaultOwner()
	}
	c := &Client{
		keeper: newKeeper(), dialer: dialer, watchers: newWatchConnections(dialer), owner: chosen.owner,
		callTimeout: chosen.callTimeout, sessions: map[*Session]struct{}{},
	}
	directory := directory{dialer: dialer, endpoints: endpoints, given: len(endpoints), clusterID: chosen.clusterID}
	c.link = newLink(directory, c.keeper.notice)
	c.keeper.link = c.link
	go c.link.run()
	go c.keeper.run()
	bounded, stop := context.WithTimeout(ctx, chosen.connectTimeout)
	defer stop()
	if _, err := c.connected(bounded); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

func chooseEndpoints(endpoints []string) ([]string, error) {
	if len(endpoints) == 0 {
		for endpoint := range strings.SplitSeq(os.Getenv(endpointsVariable), ",") {
			if endpoint = strings.TrimSpace(endpoint); endpoint != "" {
				endpoints = append(endpoints, endpoint)
			}
		}
	}
	if len(endpoints) == 0 {
		endpoints = []string{defaultEndpoint}
	}
	chosen := make([]string, 0, len(endpoints))
	for _, endpoint := range endpoints {
		if err := checkEndpoint(endpoint); err != nil {
			return nil, err
		}
		endpoint = strings.TrimSuffix(endpoint, "/")
		if !slices.Contains(chosen, endpoint) {
			chosen = append(chosen, endpoint)
		}
	}
	return chosen, nil
}

func defaultOwner() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "client"
	}
	return fmt.Sprintf("%s-%d-%s", host, os.Getpid(), randomHex(4))
}

// connected waits until there is a connection.
func (c *Client) connected(ctx context.Context) (linkNow, error) {
	for {
		now, changed := c.link.state.get()
		if now.connection != nil {
			return now, nil
		}
		if now.isHopeless {
			return now, now.problem
		}
		// When the link ends, it leaves its connection first.
		select {
		case <-changed:
		case <-c.link.ended:
			return now, closedError()
		case <-ctx.Done():
			late := unavailable("no node has answered yet", false)
			if now.problem != nil {
				*late = *now.problem
			}
			late.cause = ctx.Err()
			return now, late
		}
	}
}

// Owner is the name of this client in lists of locks.
func (c *Client) Owner() string { return c.owner }

// ClusterID is the id of the cluster that this client is bound to.
func (c *Client) ClusterID() string {
	now, _ := c.link.state.get()
	return now.clusterID
}

// Endpoint is the node that the client is connected to now; empty while it is not connected.
func (c *Client) Endpoint() string {
	now, _ := c.link.state.get()
	if now.connection == nil {
		return ""
	}
	return now.endpoint
}

func (c *Client) register(s *Session) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.isClosed {
		c.sessions[s] = struct{}{}
	}
	return !c.isClosed
}

func (c *Client) unregister(s *Session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.sessions, s)
}

// Close ends all sessions of this client, and waits until the service has heard of that and of all releases that
// are under way. Belief ends first: from the moment of this call no guard holds anything.
//
// An error says that no node answered in time. The client then keeps trying for some seconds in the background.
func (c *Client) Close() error {
	c.mu.Lock()
	wasClosed := c.isClosed
	c.isClosed = true
	open := make([]*Session, 0, len(c.sessions))
	for s := range c.sessions {
		open = append(open, s)
	}
	c.mu.Unlock()
	if wasClosed {
		return nil
	}
	for _, s := range open {
		if revoke := s.end(); revoke != nil {
			c.link.tell(revoke, func() {})
		}
	}
	flushed := make(chan struct{})
	c.link.flush(func() { close(flushed) })
	limit := time.NewTimer(c.callTimeout)
	defer limit.Stop()
	var err error
	select {
	case <-flushed:
	case <-limit.C:
		now, _ := c.link.state.get()
		err = unavailable("no answer in time", true)
		if now.problem != nil {
			err = now.problem.ofOneCopy()
		}
	}
	c.keeper.close()
	c.link.close()
	c.watchers.close()
	if err == nil {
		<-c.link.ended
	}
	<-c.keeper.ended
	return err
}

// single makes a single call that changes nothing, at the node that the link is connected to, and asks again until
// the time is up.
func single[A any](
	caller context.Context, c *Client, ask func(context.Context, *grpc.ClientConn, ...grpc.CallOption) (A, error),
) (A, error) {
	ctx, stop := context.WithTimeout(caller, c.callTimeout)
	defer stop()
	var none A
	var pauses backoff
	var last *Error
	for {
		now, err := c.connected(ctx)
		if err == nil {
			var header metadata.MD
			var answer A
			answer, err = ask(ctx, now.connection, grpc.Header(&header))
			if err == nil {
				if problem := headerOf(now, header); problem != nil {
					return none, problem
				}
				return answer, nil
			}
			err = fromStatus(err, false)
		}
		problem, ok := err.(*Error)
		switch {
		case caller.Err() != nil:
			return none, cancelled(caller, false)
		case !ok || isForGood(problem) || problem.Reason == reasonNoSuchRoute:
			return none, err
		case last == nil || ctx.Err() == nil:
			last = problem
		}
		if !sleep(ctx, pauses.pause(problem.RetryAfter)) && caller.Err() == nil {
			// What went wrong says more than that the time is up.
			return none, last
		}
	}
}

// headerOf tells if an answer comes from another cluster: a connection may have been made anew meanwhile.
func headerOf(now linkNow, header metadata.MD) *Error {
	if found := header.Get(clusterHeader); len(found) > 0 {
		return sameCluster(now.endpoint, now.clusterID, found[0])
	}
	return nil
}
