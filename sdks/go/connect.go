package lowkey

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"lowkey/lowkeypb"
)

// How a stream is opened: to which node, and whether that node belongs to our cluster.

// nextAfterSilence is how long one node may be silent before the next is tried beside it.
const nextAfterSilence = 200 * time.Millisecond

// clusterHeader is the metadata in which every answer names its cluster.
const clusterHeader = "lowkey-cluster"

// directory is where nodes may be found, and the cluster that they must belong to.
type directory struct {
	dialer *dialer
	// endpoints are the given ones, then those that members of the cluster told.
	endpoints []string
	given     int
	// next is where to begin. It moves on when a node fails.
	next int
	// avoided is the node that failed last, until there is another connection. Other nodes may still take it
	// for the leader.
	avoided string
	// clusterID is pinned by the program, or by the first connection; empty before that.
	clusterID string
	hasMet    bool
}

// met remembers the cluster, and where its members are now.
func (d *directory) met(s *stream) {
	d.clusterID = s.clusterID
	d.hasMet = true
	d.avoided = ""
	d.learn(s.members, s.endpoint)
}

// learn remembers where the members are now. All of the first ones may be gone one day.
func (d *directory) learn(members []string, current string) {
	d.endpoints = slices.Clone(d.endpoints[:d.given])
	for _, endpoint := range append(slices.Clone(members), current) {
		if !slices.Contains(d.endpoints, endpoint) {
			d.endpoints = append(d.endpoints, endpoint)
		}
	}
	d.next = max(slices.Index(d.endpoints, current), 0)
}

// avoidCurrent begins with another node next time: the one that was used last has failed.
func (d *directory) avoidCurrent() {
	d.avoided = d.endpoints[d.next]
	d.next = (d.next + 1) % len(d.endpoints)
}

// failed is why there is no connection.
type failed struct {
	problem *Error
	// isHopeless if waiting will not help.
	isHopeless bool
}

// attempt is the outcome of connecting to one endpoint.
type attempt struct {
	stream  *stream
	problem *Error
}

// connect connects to the first node that answers, or rather to the leader that it names. A silent node does not
// hold up the next one for long. It works on a copy of the directory, beside its owner.
func (d directory) connect() (*stream, *failed) {
	endpoints := slices.Concat(d.endpoints[d.next:], d.endpoints[:d.next])
	outcomes := make(chan attempt, len(endpoints))
	var spare *stream
	var problems []*Error
	started, ended := 0, 0
	defer func() { go closeRest(outcomes, started-ended) }()
	for {
		var later <-chan time.Time
		if started < len(endpoints) {
			endpoint := endpoints[started]
			go func() { outcomes <- d.connectTo(endpoint) }()
			started++
			if started < len(endpoints) {
				later = time.After(nextAfterSilence)
			}
		}
		if ended == started {
			return d.verdict(spare, problems)
		}
		select {
		case <-later:
			continue
		case outcome := <-outcomes:
			ended++
			switch {
			case outcome.problem != nil:
				problems = append(problems, outcome.problem)
			case outcome.stream.hasLeader:
				spare.close()
				return outcome.stream, nil
			case spare != nil:
				outcome.stream.close()
			default:
				// A node that knows no leader may be cut off from the others. It is better than none.
				spare = outcome.stream
			}
		}
	}
}

// closeRest closes the streams of attempts that came too late.
func closeRest(outcomes <-chan attempt, count int) {
	for range count {
		outcome := <-outcomes
		outcome.stream.close()
	}
}

// verdict is the outcome when no node knows a leader.
func (d directory) verdict(spare *stream, problems []*Error) (*stream, *failed) {
	if spare != nil {
		return spare, nil
	}
	worst := problems[0]
	isHopeless := !d.hasMet
	for _, problem := range problems {
		isForGood := problem.Reason == reasonNoSuchRoute || errors.Is(problem, ErrWrongCluster) || errors.Is(problem, ErrDenied)
		isHopeless = isHopeless && isForGood
		// Of several problems a person should hear of one that will not go away by itself.
		if isForGood {
			worst = problem
		}
	}
	return nil, &failed{problem: worst, isHopeless: isHopeless}
}

func (d directory) connectTo(endpoint string) attempt {
	node, problem := d.dial(endpoint)
	if problem != nil {
		return attempt{problem: problem}
	}
	if leader := node.leaderEndpoint(); leader != "" && leader != d.avoided {
		d.clusterID = node.status.GetClusterId()
		// The leader may be unreachable from here, or gone by now. Then this node forwards requests.
		if s := d.openLeader(leader); s != nil {
			node.close()
			return attempt{stream: s}
		}
	}
	s, problem := node.open()
	return attempt{stream: s, problem: problem}
}

// openLeader opens a stream to this node if it leads.
func (d directory) openLeader(endpoint string) *stream {
	node, problem := d.dial(endpoint)
	if problem != nil {
		return nil
	}
	if !node.status.GetIsLeader() {
		node.close()
		return nil
	}
	s, _ := node.open()
	return s
}

// surroundings are who the members are, and a stream to the leader if that is another node.
type surroundings struct {
	members []string
	leader  *stream
}

// lookAround finds out who the members are and whether another node leads, and connects to that leader.
func (d directory) lookAround(current *stream) surroundings {
	status, problem := current.node.askStatus()
	if problem != nil {
		return surroundings{}
	}
	seen := node{endpoint: current.endpoint, status: status}
	found := surroundings{members: seen.memberEndpoints()}
	if leader := seen.leaderEndpoint(); leader != "" {
		found.leader = d.openLeader(leader)
	}
	return found
}

// findElsewhere looks for another node that knows a leader. It connects to that leader, or else to that node.
func (d directory) findElsewhere(current *stream) surroundings {
	d.avoided = current.endpoint
	outcomes := make(chan attempt, len(d.endpoints))
	count := 0
	for _, endpoint := range d.endpoints {
		if endpoint != current.endpoint {
			count++
			go func() { outcomes <- d.connectTo(endpoint) }()
		}
	}
	for ; count > 0; count-- {
		outcome := <-outcomes
		if outcome.stream != nil && outcome.stream.hasLeader {
			go closeRest(outcomes, count-1)
			return surroundings{leader: outcome.stream}
		}
		outcome.stream.close()
	}
	return surroundings{}
}

// node is a node that answers.
type node struct {
	endpoint   string
	connection *grpc.ClientConn
	status     *lowkeypb.GetStatusResponse
}

// dial connects to a node, and refuses one of another cluster.
func (d directory) dial(endpoint string) (*node, *Error) {
	connection, err := d.dialer.connection(endpoint)
	if err != nil {
		return nil, invalid("%s: %v", endpoint, err)
	}
	found := &node{endpoint: endpoint, connection: connection}
	status, problem := found.askStatus()
	if problem == nil && d.clusterID != "" {
		problem = sameCluster(endpoint, d.clusterID, status.GetClusterId())
	}
	if problem != nil {
		found.close()
		return nil, problem
	}
	found.status = status
	return found, nil
}

func (n *node) close() {
	// A connection that does not close properly is closed all the same.
	_ = n.connection.Close()
}

func (n *node) askStatus() (*lowkeypb.GetStatusResponse, *Error) {
	ctx, cancel := context.WithTimeout(context.Background(), connectTime)
	defer cancel()
	answer, err := lowkeypb.NewLockServiceClient(n.connection).GetStatus(ctx, &lowkeypb.GetStatusRequest{})
	if err != nil {
		return nil, atEndpoint(n.endpoint, fromStatus(err, false))
	}
	return answer, nil
}

// atEndpoint names the node in the message.
func atEndpoint(endpoint string, problem *Error) *Error {
	problem.Message = endpoint + ": " + plainWords(problem.Message)
	return problem
}

// plainWords takes the layers of gRPC off a message: of `connection error: desc = "…"` the text counts.
func plainWords(message string) string {
	if _, inner, found := strings.Cut(message, `connection error: desc = "`); found {
		message = strings.TrimSuffix(inner, `"`)
	}
	message = strings.TrimPrefix(message, "transport: ")
	if strings.Contains(message, "server preface") || strings.Contains(message, "unexpected HTTP status") {
		return "takes connections, but does not answer in gRPC: is it the gRPC port of a node, and http or https right?"
	}
	return message
}

func sameCluster(endpoint, expected, found string) *Error {
	if expected == found {
		return nil
	}
	return &Error{
		kind: ErrWrongCluster,
		Message: endpoint + " belongs to cluster " + found + ", and this client began with " + expected +
			": locks of one mean nothing in the other",
		Metadata: map[string]string{"endpoint": endpoint, "expected": expected, "found": found},
	}
}

// leaderEndpoint is where the leader is, if that is another node.
func (n *node) leaderEndpoint() string {
	if n.status.GetIsLeader() || n.status.GetLeaderAddress() == "" {
		return ""
	}
	return likeEndpoint(n.endpoint, n.status.GetLeaderAddress())
}

// memberEndpoints are where the members are. Members that are only expected have no address yet.
func (n *node) memberEndpoints() []string {
	var endpoints []string
	for _, member := range n.status.GetMembers() {
		if member.GetGrpcAddress() != "" {
			endpoints = append(endpoints, likeEndpoint(n.endpoint, member.GetGrpcAddress()))
		}
	}
	return endpoints
}

// stream is a session stream to a node, with a goroutine that sends and one that receives.
type stream struct {
	node      *node
	endpoint  string
	clusterID string
	// hasLeader if the node leads, or knows the leader.
	hasLeader bool
	members   []string
	rpc       grpc.BidiStreamingClient[lowkeypb.SessionCall, lowkeypb.SessionAnswer]
	cancel    context.CancelFunc

	mu      sync.Mutex
	queue   []*lowkeypb.SessionCall
	wake    chan struct{}
	isEnded bool
}

// open opens a stream. The node's connection is the stream's from then on.
func (n *node) open() (*stream, *Error) {
	ctx, cancel := context.WithCancel(context.Background())
	late := time.AfterFunc(connectTime, cancel)
	rpc, err := lowkeypb.NewLockServiceClient(n.connection).Session(ctx)
	var header metadata.MD
	if err == nil {
		header, err = rpc.Header()
	}
	if !late.Stop() || err != nil || header == nil {
		cancel()
		n.close()
		if err == nil || status.Code(err) == codes.Canceled {
			err = errors.New("does not open a session")
		}
		return nil, atEndpoint(n.endpoint, fromStatus(err, false))
	}
	s := &stream{
		node: n, endpoint: n.endpoint, clusterID: n.status.GetClusterId(), members: n.memberEndpoints(),
		hasLeader: n.status.GetIsLeader() || n.status.GetLeaderAddress() != "",
		rpc:       rpc, cancel: cancel, wake: make(chan struct{}, 1),
	}
	if found := header.Get(clusterHeader); len(found) > 0 {
		if problem := sameCluster(n.endpoint, s.clusterID, found[0]); problem != nil {
			s.close()
			return nil, problem
		}
	}
	return s, nil
}

// start begins to send and to receive. Both callbacks come from one goroutine, and ended is the last.
func (s *stream) start(answered func(*lowkeypb.SessionAnswer), ended func(error)) {
	go s.sendAll()
	go func() {
		for {
			answer, err := s.rpc.Recv()
			if err != nil {
				ended(err)
				return
			}
			answered(answer)
		}
	}()
}

// send queues a call. It never blocks. A stream that is gone is noticed when its answers end.
func (s *stream) send(call *lowkeypb.SessionCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, call)
	s.notify()
}

func (s *stream) notify() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *stream) sendAll() {
	for range s.wake {
		s.mu.Lock()
		queue, isEnded := s.queue, s.isEnded
		s.queue = nil
		s.mu.Unlock()
		for _, call := range queue {
			if s.rpc.Send(call) != nil {
				return
			}
		}
		if isEnded {
			return
		}
	}
}

// close ends the stream and its connection. A stream that is nil is closed already.
func (s *stream) close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	s.isEnded = true
	s.notify()
	s.mu.Unlock()
	s.cancel()
	s.node.close()
}
