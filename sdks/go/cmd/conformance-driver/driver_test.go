//go:build linux

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"lowkey/internal/clustertest"
)

// process is a driver in a process of its own.
type process struct {
	t       *testing.T
	command *exec.Cmd
	input   *json.Encoder
	mu      sync.Mutex
	seen    []map[string]any
	last    int
}

var build = sync.OnceValues(func() (string, error) {
	folder, err := os.MkdirTemp("", "lowkey-driver")
	if err != nil {
		return "", err
	}
	path := filepath.Join(folder, "driver")
	output, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, output)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	status := m.Run()
	if path, err := build(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(status)
}

func startDriver(t *testing.T) *process {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, command: exec.Command(path)}
	p.command.Stderr = os.Stderr
	input, err := p.command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := p.command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.input = json.NewEncoder(input)
	if err := p.command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.command.Process.Kill()
		_ = p.command.Wait()
	})
	go func() {
		for lines := bufio.NewScanner(output); lines.Scan(); {
			var line map[string]any
			if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
				t.Errorf("%s: %v", lines.Text(), err)
			}
			p.mu.Lock()
			p.seen = append(p.seen, line)
			p.mu.Unlock()
		}
	}()
	p.event("ready", nil)
	return p
}

// await waits for a line, and returns it.
func (p *process) await(what string, isIt func(map[string]any) bool) map[string]any {
	p.t.Helper()
	var found map[string]any
	clustertest.WaitFor(p.t, what, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		at := slices.IndexFunc(p.seen, isIt)
		if at >= 0 {
			found = p.seen[at]
		}
		return at >= 0
	})
	return found
}

func (p *process) event(name string, with map[string]any) map[string]any {
	p.t.Helper()
	return p.await("the event "+name, func(line map[string]any) bool {
		for key, value := range with {
			if line[key] != value {
				return false
			}
		}
		return line["event"] == name
	})
}

// send sends a command, and returns its id.
func (p *process) send(op string, with map[string]any) int {
	p.t.Helper()
	p.last++
	line := map[string]any{"id": p.last, "op": op}
	for key, value := range with {
		line[key] = value
	}
	if err := p.input.Encode(line); err != nil {
		p.t.Fatal(err)
	}
	return p.last
}

func (p *process) answer(id int) map[string]any {
	p.t.Helper()
	return p.await(fmt.Sprintf("the answer to %d", id), func(line map[string]any) bool {
		return line["id"] == float64(id)
	})
}

// do sends a command that must succeed.
func (p *process) do(op string, with map[string]any) map[string]any {
	p.t.Helper()
	line := p.answer(p.send(op, with))
	ok, isOK := line["ok"].(map[string]any)
	if !isOK {
		p.t.Fatalf("%s: %v", op, line["error"])
	}
	return ok
}

// kind sends a command that must fail, and returns the kind of its error.
func (p *process) kind(op string, with map[string]any) string {
	p.t.Helper()
	failed, isError := p.answer(p.send(op, with))["error"].(map[string]any)
	if !isError {
		p.t.Fatalf("%s did not fail", op)
	}
	return failed["kind"].(string)
}

func nanosOf(t *testing.T, line map[string]any, key string) int64 {
	t.Helper()
	number, err := strconv.ParseInt(line[key].(string), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return number
}

// held has a driver hold a lock, and returns when that was.
func (p *process) held(cluster *clustertest.Cluster, lock string, ttlSeconds int) map[string]any {
	p.t.Helper()
	p.do("client.new", map[string]any{"client": "c", "endpoints": cluster.Endpoints()})
	p.do("session.new", map[string]any{"client": "c", "session": "s", "ttl_seconds": ttlSeconds})
	return p.do("lock.acquire", map[string]any{"session": "s", "lock": "l", "name": lock})
}

func TestADriverSaysWhatTheSDKDoes(t *testing.T) {
	cluster := clustertest.Start(t, 1)
	p := startDriver(t)
	p.do("client.new", map[string]any{"client": "c", "endpoints": cluster.Endpoints(), "owner": "me", "ca": nil})
	p.do("watch.new", map[string]any{"client": "c", "watch": "w", "prefix": ""})
	p.do("observe.new", map[string]any{"client": "c", "watch": "o", "name": "election"})
	p.do("session.new", map[string]any{"client": "c", "session": "s", "ttl_seconds": 10})
	p.do("session.new", map[string]any{"client": "c", "session": "s2", "ttl_seconds": 10})
	granted := p.do("lock.acquire", map[string]any{"session": "s", "lock": "l", "name": "a", "wait_ms": 0})
	if status := p.do("session.status", map[string]any{"session": "s"}); status["held"] != true {
		t.Fatalf("%v", status)
	}
	if held := p.do("lock.held", map[string]any{"lock": "l"}); held["held"] != true {
		t.Fatalf("%v", held)
	}
	p.do("lock.check", map[string]any{"lock": "l"})
	holders := p.do("lock.get", map[string]any{"client": "c", "name": "a"})["holders"].([]any)
	if holder := holders[0].(map[string]any); holder["owner"] != "me" || holder["token"] != granted["token"] {
		t.Fatalf("%v", holders)
	}
	kinds := []string{
		p.kind("lock.acquire", map[string]any{"session": "s2", "lock": "m", "name": "a", "wait_ms": 0}),
		p.kind("lock.acquire", map[string]any{"session": "s2", "lock": "m", "name": "a", "wait_ms": 20}),
		p.kind("lock.acquire", map[string]any{"session": "s2", "lock": "m", "name": "", "wait_ms": 0}),
		p.kind("lock.acquire", map[string]any{"session": "unknown", "lock": "m", "name": "a"}),
		p.kind("no.such", nil),
	}
	if !slices.Equal(kinds, []string{"held", "wait_timeout", "invalid", "driver", "driver"}) {
		t.Fatalf("%v", kinds)
	}
	waits := p.send("lock.acquire", map[string]any{"session": "s2", "lock": "m", "name": "a"})
	if p.do("cancel", map[string]any{"target": waits})["cancelled"] != true {
		t.Fatal("it was not under way")
	}
	if failed := p.answer(waits)["error"].(map[string]any); failed["kind"] != "cancelled" {
		t.Fatalf("%v", failed)
	}
	p.do("lock.release", map[string]any{"lock": "l"})
	p.event("watch", map[string]any{"watch": "w", "type": "ACQUIRED", "name": "a", "owner": "me"})
	p.event("watch", map[string]any{"watch": "w", "type": "RELEASED", "name": "a"})

	p.do("elect.new", map[string]any{"client": "c", "elect": "e", "name": "election", "value": "here", "ttl_seconds": 10})
	p.event("elected", map[string]any{"elect": "e"})
	p.event("watch", map[string]any{"watch": "o", "owner": "me", "value": "here"})
	p.do("elect.stop", map[string]any{"elect": "e"})
	p.event("watch", map[string]any{"watch": "o", "type": "VACANT"})
	p.do("watch.close", map[string]any{"watch": "w"})
	p.do("session.close", map[string]any{"session": "s"})
	p.do("client.close", map[string]any{"client": "c"})
	p.do("exit", nil)
	if err := p.command.Wait(); err != nil {
		t.Fatal(err)
	}
}

// A process that was stopped past its TTL and continued must not believe anything after it woke, and must be told
// of the loss soon.
func TestAPausedProcessBelievesNothingWhenItWakes(t *testing.T) {
	cluster := clustertest.Start(t, 3)
	const ttl = 2
	var mu sync.Mutex
	var delays []time.Duration
	play := func(t *testing.T, round int) {
		p := startDriver(t)
		p.held(cluster, fmt.Sprintf("paused-%d", round), ttl)
		p.do("lock.probe", map[string]any{"lock": "l"})
		p.signal(syscall.SIGSTOP)
		// Longer than the TTL: by then the service has ended the lease.
		time.Sleep(ttl*time.Second + 300*time.Millisecond)
		woken := nowNanos()
		p.signal(syscall.SIGCONT)
		probe, lost := p.event("probe", nil), p.event("lost", map[string]any{"lock": "l"})
		// If the driver was stopped before its first question, there was none that was answered with yes.
		if probe["trues"] != float64(0) {
			if lastTrue := nanosOf(t, probe, "last_true_ns"); lastTrue >= woken {
				t.Errorf("it believed %v after it woke", time.Duration(lastTrue-woken))
			}
		}
		if lost["cause"] != "expired" && lost["cause"] != "gone" {
			t.Errorf("lost: %v", lost)
		}
		mu.Lock()
		delays = append(delays, time.Duration(nanosOf(t, lost, "at_ns")-woken))
		mu.Unlock()
	}
	count, isMeasured := clustertest.Rounds(t, 10)
	t.Run("rounds", func(t *testing.T) {
		// Twenty at a time.
		turns := make(chan struct{}, 20)
		for round := range count {
			t.Run(strconv.Itoa(round), func(t *testing.T) {
				t.Parallel()
				turns <- struct{}{}
				defer func() { <-turns }()
				play(t, round)
			})
		}
	})
	slices.Sort(delays)
	if len(delays) != count {
		t.Fatalf("%d of %d rounds", len(delays), count)
	}
	p99 := delays[(len(delays)*99+99)/100-1]
	t.Logf("%d rounds: the loss was told after %v (median), %v (p99), %v (longest)",
		count, delays[len(delays)/2], p99, delays[len(delays)-1])
	if isMeasured && p99 > 200*time.Millisecond {
		t.Errorf("the loss was told %v after waking", p99)
	}
}

func (p *process) signal(signal syscall.Signal) {
	p.t.Helper()
	if err := p.command.Process.Signal(signal); err != nil {
		p.t.Fatal(err)
	}
}

// Loss is told by the clock alone, when no node answers any more.
func TestLossIsToldWithoutANetwork(t *testing.T) {
	cluster := clustertest.Start(t, 1)
	p := startDriver(t)
	p.held(cluster, "cut-off", 2)
	p.do("lock.probe", map[string]any{"lock": "l"})
	cluster.Nodes[0].Pause()
	lost, probe := p.event("lost", map[string]any{"lock": "l"}), p.event("probe", nil)
	cluster.Nodes[0].Resume()
	if lost["cause"] != "expired" {
		t.Fatalf("%v", lost)
	}
	late := time.Duration(nanosOf(t, lost, "at_ns") - nanosOf(t, probe, "first_false_ns"))
	t.Logf("told %v after the clock said so", late)
	if _, isMeasured := clustertest.Rounds(t, 1); isMeasured && late > 200*time.Millisecond {
		t.Errorf("told %v after the clock said so", late)
	}
	// The node answers the renewals late, since it ended no lease while it stood still. Nothing comes back by that.
	p.do("session.new", map[string]any{"client": "c", "session": "later", "ttl_seconds": 2})
	if held := p.do("lock.held", map[string]any{"lock": "l"}); held["held"] != false {
		t.Errorf("a late answer revived it: %v", held)
	}
	if kind := p.kind("lock.check", map[string]any{"lock": "l"}); kind != "lost" {
		t.Error(kind)
	}
}
