package lowkey

import (
	"slices"
	"testing"
	"time"

	"lowkey/lowkeypb"
)

func acquireCall(wait time.Duration) *lowkeypb.SessionCall {
	acquire := &lowkeypb.AcquireLockRequest{WaitMs: wait.Milliseconds()}
	return &lowkeypb.SessionCall{Call: &lowkeypb.SessionCall_AcquireLock{AcquireLock: acquire}}
}

// add makes a call at moment 1.
func (p *pending) add(number uint64, call *lowkeypb.SessionCall, isTold bool) *pendingCall {
	c := newPendingCall(call, 1, time.Hour, 200*time.Millisecond)
	c.number, c.isTold, c.reply = number, isTold, func(outcome) {}
	p.insert(c)
	return c
}

func (p *pending) sendAll(now int64) (sent int) {
	for _, number := range p.unanswered() {
		if p.toSend(number, now, 0) != nil {
			sent++
		}
	}
	return sent
}

func TestOnlySoManyWaitsAreOnTheWayAndTheRestFollows(t *testing.T) {
	calls, total := newPending(), uint64(waitsOnTheWay+3)
	for number := uint64(1); number <= total; number++ {
		calls.add(number, acquireCall(time.Minute), false)
	}
	if sent := calls.sendAll(1); sent != waitsOnTheWay || calls.nextWithRoom() != 0 {
		t.Fatalf("%d are on the way", sent)
	}
	// Others do not wait for them.
	calls.add(total+1, acquireCall(0), false)
	if calls.toSend(total+1, 1, 0) == nil {
		t.Fatal("a call that does not wait is held up")
	}
	// One is answered, one put off, one given up before it was sent: there is room for two.
	calls.remove(1)
	calls.retry(2, refusal(reasonLimitMemory, "full", nil, 0), 1)
	calls.remove(total - 2)
	var sent []uint64
	for number := calls.nextWithRoom(); number != 0; number = calls.nextWithRoom() {
		if calls.toSend(number, 1, 0) != nil {
			sent = append(sent, number)
		}
	}
	if !slices.Equal(sent, []uint64{total - 1, total}) {
		t.Fatalf("%v", sent)
	}
	// A new stream begins with none. The one that is put off is not sent yet.
	calls.streamLeft()
	if sent := calls.sendAll(1); sent != waitsOnTheWay+1 {
		t.Fatalf("%d are on the way", sent)
	}
}

func TestWhatIsLeftOfAWaitIsSent(t *testing.T) {
	calls := newPending()
	calls.add(1, acquireCall(time.Second), false)
	for at, left := range map[time.Duration]int64{400 * time.Millisecond: 600, time.Hour: 1} {
		if sent := calls.toSend(1, 1+int64(at), 0).GetAcquireLock().GetWaitMs(); sent != left {
			t.Errorf("after %v: %d ms", at, sent)
		}
	}
}

func TestOfManyReleasesSomeAreOnTheWayAndTheEndOfTheLeaseMakesTheOthersNeedless(t *testing.T) {
	calls := newPending()
	release := func(leaseID uint64) *lowkeypb.SessionCall { return releaseByToken("a", leaseID, 1) }
	for number := uint64(1); number <= 100; number++ {
		calls.add(number, release(7), true)
	}
	if sent := calls.sendAll(1); sent != releasesOnTheWay {
		t.Fatalf("%d are on the way", sent)
	}
	calls.add(200, release(8), true)
	if calls.toSend(200, 1, 0) == nil {
		t.Fatal("another lease has its own")
	}
	// One is answered: the next goes.
	calls.answer(1, outcome{answer: &lowkeypb.SessionAnswer{}}, 1)
	if due := calls.takeRetries(1); !slices.Equal(due, []uint64{releasesOnTheWay + 1}) {
		t.Fatalf("%v", due)
	}
	calls.add(300, revocation(7, "me"), true)
	if len(calls.calls) != releasesOnTheWay+2 || calls.told != releasesOnTheWay+2 {
		t.Fatalf("%d calls, %d told", len(calls.calls), calls.told)
	}
	for number := range calls.calls {
		calls.answer(number, outcome{answer: &lowkeypb.SessionAnswer{}}, 1)
	}
	if calls.told != 0 || len(calls.releases) != 0 || calls.nextTime() != farFuture {
		t.Fatalf("%+v", calls)
	}
}

func TestANodeIsDoubtedWhenItHasSaidNothingSince(t *testing.T) {
	const sent, patience = int64(time.Second), int64(200 * time.Millisecond)
	isDoubtful := func(wait, latency time.Duration, now, heardAt int64) bool {
		calls := newPending()
		calls.add(1, acquireCall(wait), false)
		calls.toSend(1, sent, latency)
		return calls.isDoubtful(now, heardAt)
	}
	for name, test := range map[string]struct {
		is, wanted bool
	}{
		"too soon":               {isDoubtful(0, 0, sent+patience/2, 0), false},
		"silent":                 {isDoubtful(0, 0, sent+patience, 0), true},
		"it said something else": {isDoubtful(0, 0, sent+patience, sent+1), false},
		"the way is slow":        {isDoubtful(0, 200*time.Millisecond, sent+patience, 0), false},
		"a wait takes its time":  {isDoubtful(time.Second, 0, sent+patience, 0), false},
	} {
		if test.is != test.wanted {
			t.Errorf("%s: %v", name, test.is)
		}
	}
}

func TestAClearRefusalIsNotPutInDoubtByACopyThatHasNoTime(t *testing.T) {
	calls := newPending()
	c := calls.add(1, acquireCall(0), false)
	var told *Error
	c.reply = func(o outcome) { told = o.err }
	refused := refusal(reasonNoLeader, "none", nil, 0)
	// It took almost all of the time to be refused: another copy could not be answered.
	calls.toSend(1, 1, 0)
	calls.retry(1, refused, c.deadline-int64(time.Minute))
	if due := calls.takeRetries(c.deadline - 1); len(due) != 0 {
		t.Fatalf("%v", due)
	}
	calls.takeOverdue(c.deadline)
	if told == nil || told.Reason != reasonNoLeader || told.mayHaveBeenDone() {
		t.Fatalf("%v", told)
	}
}

func TestAsManyLeasesAsAreRenewedTogetherFitIntoARequest(t *testing.T) {
	renewal := &lowkeypb.RenewLeases{}
	for range leasesAMessage {
		renewal.LeaseIds = append(renewal.LeaseIds, 1<<63-1)
		renewal.Holds = append(renewal.Holds, &lowkeypb.Holds{Count: 10_000, Digest: 1<<64 - 1})
	}
	call := &lowkeypb.SessionCall{Call: &lowkeypb.SessionCall_RenewLeases{RenewLeases: renewal}}
	if size := sizeOf(call); size > callBytesMax {
		t.Fatalf("%d bytes", size)
	}
}
