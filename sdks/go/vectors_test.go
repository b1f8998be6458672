package lowkey

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"lowkey/lowkeypb"
)

// The vectors are the same for all SDKs; `about` in each file says what it means.
func readVectors(t *testing.T, name string, into any) {
	t.Helper()
	bytes, err := os.ReadFile(filepath.Join("..", "..", "conformance", "vectors", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(bytes, into); err != nil {
		t.Fatal(err)
	}
}

// nanos is a number with 64 bits, written as text.
type nanos int64

func (n *nanos) UnmarshalText(text []byte) error {
	number, err := strconv.ParseInt(string(text), 10, 64)
	*n = nanos(number)
	return err
}

type token uint64

func (n *token) UnmarshalText(text []byte) error {
	number, err := strconv.ParseUint(string(text), 10, 64)
	*n = token(number)
	return err
}

func TestVectorsOfBelief(t *testing.T) {
	var file struct {
		Cases []struct {
			Name  string
			Steps []struct {
				Op         string
				FirstSent  nanos `json:"first_sent_ns"`
				Answered   nanos `json:"answered_ns"`
				At         nanos `json:"at_ns"`
				ExpectNs   nanos `json:"expect_ns"`
				TTLSeconds int64 `json:"ttl_seconds"`
				WaitedMs   int64 `json:"waited_ms"`
				MaxHold    int64 `json:"max_hold_seconds"`
				Expect     bool
			}
		}
	}
	readVectors(t, "belief.json", &file)
	if len(file.Cases) == 0 {
		t.Fatal("no cases")
	}
	for _, test := range file.Cases {
		t.Run(test.Name, func(t *testing.T) {
			var lease validity
			limit := int64(math.MaxInt64)
			for _, step := range test.Steps {
				switch step.Op {
				case "made":
					lease = validity{until: validUntil(int64(step.FirstSent), step.TTLSeconds), ttlSeconds: step.TTLSeconds}
				case "made_after_wait":
					until := validUntilAfterWait(int64(step.FirstSent), step.WaitedMs, step.TTLSeconds)
					lease = validity{until: until, ttlSeconds: step.TTLSeconds}
				case "renewed":
					lease.renewed(int64(step.FirstSent), int64(step.Answered))
				case "limited":
					limit = heldUntil(int64(step.FirstSent), step.WaitedMs, step.MaxHold)
				case "acquired":
					// A grant under a lease has no effect on its validity: there is nothing to call.
				case "gone", "closed":
					lease.isLost = true
				case "held":
					if held := lease.holdsAt(int64(step.At)) && int64(step.At) < limit; held != step.Expect {
						t.Fatalf("at %d held is %v", step.At, held)
					}
				case "valid_until":
					if lease.until != int64(step.ExpectNs) {
						t.Fatalf("valid until %d instead of %d", lease.until, step.ExpectNs)
					}
				default:
					t.Fatalf("unknown step %s", step.Op)
				}
			}
		})
	}
}

func TestVectorsOfErrors(t *testing.T) {
	var file struct {
		Reasons []struct {
			Reason         string
			Retryable      bool
			OutcomeUnknown bool `json:"outcome_unknown"`
		}
	}
	readVectors(t, "errors.json", &file)
	if len(file.Reasons) == 0 {
		t.Fatal("no reasons")
	}
	for _, row := range file.Reasons {
		err := refusal(row.Reason, "", nil, 0)
		if err.isTemporary() != row.Retryable || err.OutcomeUnknown() != row.OutcomeUnknown {
			t.Errorf("%s: retryable %v, unknown %v", row.Reason, err.isTemporary(), err.OutcomeUnknown())
		}
	}
}

func TestVectorsOfHolds(t *testing.T) {
	type named struct {
		Name  string
		Token token
		ID    string
	}
	var file struct {
		Mix []struct {
			Token token
			Mixed token
		}
		Holds []struct {
			Tokens []token
			Count  uint32
			Digest token
		}
		Judge []struct {
			Name          string
			Believed, Now []token
			GivenUp       []string `json:"given_up"`
			Asking        []string
			Grants        []named
			Lost          []token
			Release       []named
		}
	}
	readVectors(t, "holds.json", &file)
	if len(file.Mix) == 0 || len(file.Holds) == 0 || len(file.Judge) == 0 {
		t.Fatal("no cases")
	}
	for _, test := range file.Mix {
		if mixed := mixToken(uint64(test.Token)); mixed != uint64(test.Mixed) {
			t.Errorf("mix of %d is %d", test.Token, mixed)
		}
	}
	for _, test := range file.Holds {
		var told holds
		for _, token := range test.Tokens {
			told.add(uint64(token))
		}
		if told.count != test.Count || told.digest != uint64(test.Digest) {
			t.Errorf("%v: %+v", test.Tokens, told)
		}
	}
	for _, test := range file.Judge {
		t.Run(test.Name, func(t *testing.T) {
			lease := newPresence(1, 600, bootNanos())
			for _, token := range test.Now {
				lease.beliefs.add(uint64(token), &grant{token: uint64(token)})
			}
			for _, id := range test.GivenUp {
				lease.beliefs.giveUp(id)
			}
			for _, name := range test.Asking {
				lease.doors.enter(t.Context(), nil, name, way{}, false)
			}
			var grants []*lowkeypb.LeaseGrant
			for _, found := range test.Grants {
				grants = append(grants, &lowkeypb.LeaseGrant{
					LockName: found.Name, FencingToken: uint64(found.Token), AcquireRequestId: found.ID,
				})
			}
			var believed []uint64
			for _, token := range test.Believed {
				believed = append(believed, uint64(token))
			}
			lost, orphans := lease.beliefs.judge(believed, grants)
			var tokens []token
			for _, gone := range lost {
				tokens = append(tokens, token(gone.token))
			}
			var released []named
			for _, orphan := range orphans {
				if lease.doors.tryLeaving(orphan.name) != nil {
					released = append(released, named{Name: orphan.name, Token: token(orphan.token)})
				}
			}
			if !slices.Equal(tokens, test.Lost) || !slices.Equal(released, test.Release) {
				t.Fatalf("lost %v, released %v", tokens, released)
			}
		})
	}
}

type callVector struct {
	Name     string
	Outcomes []string
	Expect   struct {
		Told           string
		Reason         string
		OutcomeUnknown bool `json:"outcome_unknown"`
		Undo           bool
	}
}

func TestVectorsOfRetries(t *testing.T) {
	var file struct {
		Pauses []struct {
			Attempt  int
			Share    float64
			HintMs   int64 `json:"hint_ms"`
			ExpectUs int64 `json:"expect_us"`
		}
		Calls []callVector
		Times struct {
			FirstBoundMs int64 `json:"first_bound_ms"`
			LastBoundMs  int64 `json:"last_bound_ms"`
			LossSignalMs int64 `json:"loss_signal_within_ms"`
		}
	}
	readVectors(t, "retry.json", &file)
	if len(file.Pauses) == 0 || len(file.Calls) == 0 {
		t.Fatal("no cases")
	}
	for _, test := range file.Pauses {
		var pauses backoff
		for range test.Attempt {
			pauses.pauseOf(0, 0)
		}
		pause := pauses.pauseOf(test.Share, time.Duration(test.HintMs)*time.Millisecond)
		if pause != time.Duration(test.ExpectUs)*time.Microsecond {
			t.Errorf("attempt %d, share %v, hint %d ms: %v", test.Attempt, test.Share, test.HintMs, pause)
		}
	}
	if firstBound.Milliseconds() != file.Times.FirstBoundMs || lastBound.Milliseconds() != file.Times.LastBoundMs {
		t.Errorf("bounds are %v to %v", firstBound, lastBound)
	}
	if lookInterval.Milliseconds() > file.Times.LossSignalMs {
		t.Errorf("the clock is looked at every %v", lookInterval)
	}
	for _, test := range file.Calls {
		t.Run(test.Name, func(t *testing.T) { playCall(t, test) })
	}
}

// playCall lets the copies of one call meet these outcomes, and compares what the caller is told.
func playCall(t *testing.T, test callVector) {
	calls := newPending()
	acquire := &lowkeypb.SessionCall_AcquireLock{AcquireLock: &lowkeypb.AcquireLockRequest{LockName: "a"}}
	c := newPendingCall(&lowkeypb.SessionCall{Call: acquire}, 1, time.Hour, time.Second)
	c.number = 1
	var told *outcome
	c.reply = func(o outcome) { told = &o }
	calls.insert(c)
	now := int64(1)
	for _, what := range test.Outcomes {
		now += int64(time.Minute)
		calls.takeRetries(now)
		if what == "REFUSED_CONNECTION" {
			calls.noteProblem(unavailable("connection refused", false))
			continue
		}
		if calls.toSend(1, now, 0) == nil {
			t.Fatalf("no copy is sent to meet %s", what)
		}
		refused := refusal(what, what+"; nothing was done", nil, 0)
		switch {
		case what == "NO_ANSWER":
			calls.streamLeft()
		case what == "DONE":
			calls.answer(1, outcome{answer: &lowkeypb.SessionAnswer{}}, now)
		case refused.isTemporary():
			calls.retry(1, refused, now)
		default:
			calls.answer(1, outcome{err: refused}, now)
		}
	}
	calls.takeOverdue(int64(2 * time.Hour))
	if told == nil {
		t.Fatal("the caller was told nothing")
	}
	if told.err == nil {
		if test.Expect.Told != "DONE" {
			t.Fatalf("told that it is done instead of %+v", test.Expect)
		}
		return
	}
	as := "REFUSED"
	if told.err.kind == ErrUnavailable {
		as = "UNAVAILABLE"
	}
	reason := told.err.Reason
	if as == "UNAVAILABLE" {
		reason = ""
	}
	if as != test.Expect.Told || reason != test.Expect.Reason || told.err.OutcomeUnknown() != test.Expect.OutcomeUnknown ||
		told.err.mayHaveBeenDone() != test.Expect.Undo {
		t.Fatalf("told %s %s, unknown %v, undo %v", as, reason, told.err.OutcomeUnknown(), told.err.mayHaveBeenDone())
	}
}
