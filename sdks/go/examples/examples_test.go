package examples

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"lowkey"
	"lowkey/internal/clustertest"
)

// program is an example that runs.
type program struct {
	t       *testing.T
	command *exec.Cmd
	mu      sync.Mutex
	output  bytes.Buffer
}

// Write takes in what the program prints.
func (p *program) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.Write(text)
}

func (p *program) printed() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.String()
}

func start(t *testing.T, cluster *clustertest.Cluster, name string, arguments ...string) *program {
	t.Helper()
	binary := filepath.Join(t.TempDir(), name)
	if output, err := exec.Command("go", "build", "-o", binary, "./"+name).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	p := &program{t: t, command: exec.Command(binary, arguments...)}
	p.command.Env = append(os.Environ(), "LOWKEY_ENDPOINTS="+strings.Join(cluster.Endpoints(), ","))
	p.command.Stdout, p.command.Stderr = p, p
	if err := p.command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.command.Process.Kill() })
	return p
}

func (p *program) waitFor(text string) {
	p.t.Helper()
	clustertest.WaitFor(p.t, text, func() bool { return strings.Contains(p.printed(), text) })
}

// end waits for the end of the program.
func (p *program) end() {
	p.t.Helper()
	if err := p.command.Wait(); err != nil {
		p.t.Fatalf("%v: %s", err, p.printed())
	}
}

func (p *program) interrupt() {
	p.t.Helper()
	if err := p.command.Process.Signal(os.Interrupt); err != nil {
		p.t.Fatal(err)
	}
	p.end()
}

func TestExamples(t *testing.T) {
	cluster := clustertest.Start(t, 1)

	t.Run("singleton", func(t *testing.T) {
		p := start(t, cluster, "singleton")
		p.end()
		p.waitFor("step 3 of the job, with token ")

		client, err := lowkey.Dial(t.Context(), cluster.Endpoints(), lowkey.Owner("machine-2"))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		session, err := client.Session(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := session.Lock(t.Context(), "examples/singleton"); err != nil {
			t.Fatal(err)
		}
		second := start(t, cluster, "singleton")
		second.end()
		second.waitFor("machine-2 runs it already")
	})

	t.Run("leader", func(t *testing.T) {
		first := start(t, cluster, "leader", "-address", "http://first")
		first.waitFor("leading with token ")
		second := start(t, cluster, "leader", "-address", "http://second")
		first.interrupt()
		second.waitFor("leading with token ")
		second.interrupt()
	})

	t.Run("controller", func(t *testing.T) {
		first := start(t, cluster, "controller", "-identity", "first")
		first.waitFor("reconciling with token ")
		second := start(t, cluster, "controller", "-identity", "second")
		second.waitFor("serving metrics")
		first.interrupt()
		second.waitFor("second leads with token ")
		second.waitFor("reconciling with token ")
		second.interrupt()
	})

	t.Run("fenced writer", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "counter.db")
		p := start(t, cluster, "fencedwriter", "-file", file)
		p.end()
		p.waitFor("wrote 2 with token ")
		p.waitFor("counter refused the exclusive token ")
	})

	t.Run("watcher", func(t *testing.T) {
		p := start(t, cluster, "watcher", "-prefix", "examples/")
		p.waitFor("watching from revision ")
		start(t, cluster, "singleton").end()
		p.waitFor("ACQUIRED examples/singleton by ")
		p.waitFor("RELEASED examples/singleton by ")
		p.interrupt()
	})
}
