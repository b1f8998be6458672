//go:build linux

// Command conformance-driver does with the SDK what it is told on standard input, and says on standard output what
// the SDK answered. The protocol is in conformance/DRIVER.md of the repository.
//
// It decides nothing, retries nothing and waits for nothing on its own.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"lowkey"
)

// command is one line of input. Fields that a command does not take are empty.
type command struct {
	ID      int64  `json:"id"`
	Op      string `json:"op"`
	Client  string `json:"client"`
	Session string `json:"session"`
	Lock    string `json:"lock"`
	Watch   string `json:"watch"`
	Elect   string `json:"elect"`
	Target  int64  `json:"target"`

	Endpoints     []string `json:"endpoints"`
	Owner         string   `json:"owner"`
	CallTimeoutMs int64    `json:"call_timeout_ms"`
	CA            string   `json:"ca"`
	Cert          string   `json:"cert"`
	Key           string   `json:"key"`
	TokenFile     string   `json:"token_file"`

	TTLSeconds int64  `json:"ttl_seconds"`
	Name       string `json:"name"`
	Prefix     string `json:"prefix"`
	After      string `json:"after"`
	Mode       string `json:"mode"`
	Scope      string `json:"scope"`
	Value      string `json:"value"`
	WaitMs     *int64 `json:"wait_ms"`

	AtMostSeconds int64 `json:"at_most_seconds"`
}

// fields is an object of JSON.
type fields map[string]any

// driverError is an error of the command itself.
type driverError string

func (e driverError) Error() string { return string(e) }

// output writes whole lines, each at once.
type output struct {
	mu     sync.Mutex
	writer io.Writer
}

func (o *output) line(line fields) {
	bytes, err := json.Marshal(line)
	if err != nil {
		// All that is written are texts, numbers and lists of them.
		panic(err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, err := o.writer.Write(append(bytes, '\n')); err != nil {
		os.Exit(0)
	}
}

// event says what happened by itself.
func (o *output) event(name string, line fields) {
	line["event"] = name
	o.line(line)
}

// nowNanos reads CLOCK_BOOTTIME, which is the same for all processes of a machine.
func nowNanos() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		panic(err)
	}
	return now.Nano()
}

func number[N int64 | uint64](n N) string {
	return fmt.Sprint(n)
}

func main() {
	driver := newDriver(&output{writer: os.Stdout})
	driver.out.event("ready", fields{"sdk": "go", "version": lowkey.Version, "protocol": 1})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var asked command
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			driver.answer(asked.ID, nil, driverError("not a command: "+err.Error()))
			continue
		}
		if asked.Op == "exit" {
			driver.answer(asked.ID, nil, nil)
			return
		}
		driver.begin(&asked)
	}
}

// answer says what came of a command.
func (d *driver) answer(id int64, ok fields, err error) {
	if err != nil {
		d.out.line(fields{"id": id, "error": told(err)})
		return
	}
	if ok == nil {
		ok = fields{}
	}
	d.out.line(fields{"id": id, "ok": ok})
}

// told is an error in the words of the protocol.
func told(err error) fields {
	line := fields{"message": err.Error(), "outcome_unknown": false, "kind": kindOf(err)}
	var refused *lowkey.Error
	if errors.As(err, &refused) {
		line["outcome_unknown"] = refused.OutcomeUnknown()
		if refused.Reason != "" {
			line["reason"] = refused.Reason
		}
	}
	var session *lowkey.SessionLostError
	if errors.As(err, &session) {
		line["cause"] = causeName(session.Cause)
	}
	var lost *lowkey.LostError
	if errors.As(err, &lost) {
		line["cause"] = causeName(lost.Cause)
	}
	return line
}

func kindOf(err error) string {
	var wrong driverError
	switch {
	case errors.As(err, &wrong):
		return "driver"
	case errors.Is(err, errCancelled):
		return "cancelled"
	case errors.Is(err, lowkey.ErrWaitTimeout):
		return "wait_timeout"
	case errors.Is(err, lowkey.ErrHeld):
		return "held"
	case errors.Is(err, lowkey.ErrSessionLost):
		return "session_lost"
	case errors.Is(err, lowkey.ErrLost):
		return "lost"
	case errors.Is(err, lowkey.ErrUnavailable):
		return "unavailable"
	case errors.Is(err, lowkey.ErrWrongCluster):
		return "wrong_cluster"
	case errors.Is(err, lowkey.ErrInvalid):
		return "invalid"
	default:
		return "refused"
	}
}

func causeName(cause lowkey.LossCause) string {
	switch cause {
	case lowkey.HeldTooLong:
		return "held_too_long"
	case lowkey.Expired:
		return "expired"
	case lowkey.Gone:
		return "gone"
	case lowkey.Closed:
		return "closed"
	case lowkey.ReleasedElsewhere:
		return "released_elsewhere"
	default:
		return strconv.Itoa(int(cause))
	}
}
