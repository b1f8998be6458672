// Package clustertest starts real nodes for tests.
//
// The binary is that of the environment variable LOWKEY_BIN, or `lowkey` on the path. Tests skip where there is
// none, and fail instead where LOWKEY_REQUIRE_ALL is 1.
package clustertest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience is how long anything is waited for before a test fails.
const patience = 60 * time.Second

// Binary is the path of the binary. The test is skipped if there is none.
func Binary(t testing.TB) string {
	t.Helper()
	path := os.Getenv("LOWKEY_BIN")
	if path == "" {
		path = "lowkey"
	}
	found, err := exec.LookPath(path)
	if err != nil {
		Skip(t, "no binary of lowkey: set LOWKEY_BIN to one")
	}
	absolute, err := filepath.Abs(found)
	if err != nil {
		t.Fatal(err)
	}
	return absolute
}

// Skip skips the test, or fails it where everything is required.
func Skip(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("LOWKEY_REQUIRE_ALL") == "1" {
		t.Fatalf("LOWKEY_REQUIRE_ALL is set, and %s", why)
	}
	t.Skip("skipped: " + why)
}

// Cluster is some nodes, each a process of its own.
type Cluster struct {
	Nodes  []*Node
	binary string
	folder string
}

// Node is one process.
type Node struct {
	Name string
	// GRPC and HTTP are its addresses, as HOST:PORT.
	GRPC, HTTP string
	t          testing.TB
	binary     string
	arguments  []string
	log        string
	process    *exec.Cmd
	exited     chan struct{}
}

// Start starts a cluster, and waits until all nodes vote. It ends with the test.
func Start(t testing.TB, size int) *Cluster {
	t.Helper()
	cluster := &Cluster{binary: Binary(t), folder: t.TempDir()}
	for range size {
		cluster.Join(t)
	}
	return cluster
}

// Join adds a node, and waits until it votes.
func (c *Cluster) Join(t testing.TB) {
	t.Helper()
	node := newNode(t, c.binary, c.folder, len(c.Nodes)+1)
	if len(c.Nodes) == 0 {
		node.arguments = append(node.arguments, "--bootstrap")
	} else {
		node.arguments = append(node.arguments, "--join", c.Nodes[0].GRPC)
	}
	c.Nodes = append(c.Nodes, node)
	node.RunAgain()
	WaitFor(t, "all nodes to vote", func() bool {
		var status struct {
			Members []struct{ Voter bool }
		}
		if !node.ask(http.MethodGet, "/v1/status", nil, &status) {
			return false
		}
		voters := 0
		for _, member := range status.Members {
			if member.Voter {
				voters++
			}
		}
		return voters == len(c.Nodes)
	})
}

// Lead has a node take over the lead.
func (n *Node) Lead(t testing.TB) {
	t.Helper()
	WaitFor(t, "the node to lead", func() bool {
		return n.ask(http.MethodPost, "/v1/cluster/transfer", map[string]string{"node_id": n.Name}, nil)
	})
}

// ask makes a call over HTTP. It tells whether it was answered well.
func (n *Node) ask(method, path string, body, into any) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var text bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&text).Encode(body); err != nil {
			n.t.Fatal(err)
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://"+n.HTTP+path, &text)
	if err != nil {
		n.t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return false
	}
	return into == nil || json.NewDecoder(answer.Body).Decode(into) == nil
}

func newNode(t testing.TB, binary, folder string, number int) *Node {
	name := fmt.Sprintf("node-%d", number)
	node := &Node{
		Name: name, t: t, binary: binary, GRPC: freeAddress(t), HTTP: freeAddress(t),
		log: filepath.Join(folder, name+".log"),
	}
	node.arguments = []string{
		"server", "--node-id", name, "--data-dir", filepath.Join(folder, name),
		"--raft-addr", freeAddress(t), "--grpc-addr", node.GRPC, "--http-addr", node.HTTP,
	}
	t.Cleanup(node.Kill)
	return node
}

func freeAddress(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// Endpoints are the URLs of all nodes.
func (c *Cluster) Endpoints() []string {
	var endpoints []string
	for _, node := range c.Nodes {
		endpoints = append(endpoints, node.Endpoint())
	}
	return endpoints
}

// At is the node with this URL.
func (c *Cluster) At(endpoint string) *Node {
	for _, node := range c.Nodes {
		if node.Endpoint() == endpoint {
			return node
		}
	}
	return nil
}

// Endpoint is its URL for gRPC.
func (n *Node) Endpoint() string { return "http://" + n.GRPC }

// RunAgain starts the process, also after Kill, and waits until it is ready.
func (n *Node) RunAgain() {
	n.t.Helper()
	n.run()
	n.waitUntilReady()
}

func (n *Node) run() {
	n.t.Helper()
	log, err := os.OpenFile(n.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		n.t.Fatal(err)
	}
	defer log.Close()
	process := exec.Command(n.binary, n.arguments...)
	process.Stdout, process.Stderr = log, log
	process.Env = withoutLowkey(os.Environ())
	if err := process.Start(); err != nil {
		n.t.Fatal(err)
	}
	exited := make(chan struct{})
	n.process, n.exited = process, exited
	go func() {
		_ = process.Wait()
		close(exited)
	}()
}

// withoutLowkey is the environment without what would configure a node.
func withoutLowkey(environment []string) []string {
	var kept []string
	for _, variable := range environment {
		if !strings.HasPrefix(variable, "LOWKEY_") {
			kept = append(kept, variable)
		}
	}
	return kept
}

func (n *Node) waitUntilReady() {
	n.t.Helper()
	WaitFor(n.t, "the node to be ready; its log is in "+n.log, func() bool {
		return n.ask(http.MethodGet, "/readyz", nil, nil)
	})
}

// Kill ends the process at once, as kill -9 does, and waits until it is gone.
func (n *Node) Kill() {
	if n.process == nil {
		return
	}
	_ = n.process.Process.Kill()
	<-n.exited
}

// Pause stops the process, and Resume has it go on.
func (n *Node) Pause() { n.signal(syscall.SIGSTOP) }

// Resume has a paused process go on.
func (n *Node) Resume() { n.signal(syscall.SIGCONT) }

func (n *Node) signal(signal syscall.Signal) {
	n.t.Helper()
	if err := n.process.Process.Signal(signal); err != nil {
		n.t.Fatal(err)
	}
}

// Rounds is how often a test does the same: as often as the environment variable LOWKEY_ROUNDS says. Then it is a
// measurement as well, on a machine that has nothing else to do.
func Rounds(t testing.TB, otherwise int) (count int, isMeasured bool) {
	t.Helper()
	text := os.Getenv("LOWKEY_ROUNDS")
	if text == "" {
		return otherwise, false
	}
	count, err := strconv.Atoi(text)
	if err != nil || count < 1 {
		t.Fatalf("LOWKEY_ROUNDS is %q, and must be a number from 1", text)
	}
	return count, true
}

// WaitFor waits until something is so.
func WaitFor(t testing.TB, what string, isSo func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !isSo() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
