package lowkey

import (
	"context"
	mathrand "math/rand/v2"
	"time"

	"lowkey/lowkeypb"
)

const (
	// leasesAMessage is the most leases that one message renews.
	leasesAMessage = 2500
	// renewedTogether: leases that are due within this time are renewed together. Many leases cost few messages.
	renewedTogether = 50 * time.Millisecond
	// lookInterval: the clock is read at least this often, because it may have gone on while timers stood still.
	lookInterval = 100 * time.Millisecond
	// renewAgain is how soon a failed renewal is tried again.
	renewAgain = 100 * time.Millisecond
	// newStreamTime: after a new stream was opened, all leases are renewed within this time.
	newStreamTime = 500 * time.Millisecond
)

// keeper renews every lease of a client and updates the status of each session. One goroutine owns it.
//
// A lease is renewed when a third of its time to live has passed, many leases in one message. Only the client's
// own clock counts. Each acknowledgement is credited to the moment before its request was first sent. A session
// whose validity has run out is lost at that moment, whether or not any server answers.
//
// Times are those of bootNanos.
type keeper struct {
	mailbox *mailbox
	link    *link
	ended   chan struct{}

	// Only the keeper's own goroutine uses what follows.
	leases    map[uint64]*kept
	renewals  alarms[*kept]
	ends      alarms[*kept]
	isClosing bool
}

// kept is a lease that is kept alive. Both of its alarms are always set.
type kept struct {
	presence      *presence
	renewal, end  alarm[*kept]
	isReading     bool // because the service holds something else than is believed
	isChangedThen bool // something has changed since the read began
}

func newKeeper() *keeper {
	return &keeper{mailbox: newMailbox(), ended: make(chan struct{}), leases: map[uint64]*kept{}}
}

// keep keeps a lease alive until it is lost. It returns false if the client is closed.
func (k *keeper) keep(p *presence) bool {
	return k.mailbox.post(func() { k.add(p) })
}

// forget stops keeping a lease.
func (k *keeper) forget(leaseID uint64) {
	k.mailbox.post(func() { k.remove(leaseID) })
}

// notice takes in what the link hears about leases.
func (k *keeper) notice(notice leaseNotice) {
	k.mailbox.post(func() {
		if notice.leaseID != 0 {
			k.changed(notice.leaseID)
		} else {
			k.renewAllSoon()
		}
	})
}

// close ends the keeper. All sessions have ended before.
func (k *keeper) close() {
	k.mailbox.post(func() { k.isClosing = true })
}

func (k *keeper) run() {
	defer close(k.ended)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for !k.isClosing || !k.mailbox.closeIfEmpty() {
		for _, event := range k.mailbox.wait(timer, k.pause()) {
			event()
		}
		now := bootNanos()
		k.endOverdue(now)
		k.renewDue(now)
	}
}

func (k *keeper) pause() time.Duration {
	end := k.ends.first()
	if end == nil {
		return time.Hour
	}
	next := min(end.at, k.renewals.first().at)
	return min(max(time.Duration(next-bootNanos()), 0), lookInterval)
}

func (k *keeper) add(p *presence) {
	one := &kept{presence: p}
	one.renewal.item, one.end.item = one, one
	k.leases[p.leaseID] = one
	// Validity is 90 % of the time to live, which gives the time of creation. The lease is renewed a third of its
	// time to live after that.
	ttl := ttlNanos(p.ttlSeconds)
	k.plan(one, p.until()-ttl/10*9+ttl/3)
}

func (k *keeper) remove(leaseID uint64) {
	if one := k.leases[leaseID]; one != nil {
		delete(k.leases, leaseID)
		k.renewals.unset(&one.renewal)
		k.ends.unset(&one.end)
	}
}

func (k *keeper) plan(one *kept, nextRenewal int64) {
	k.renewals.set(&one.renewal, nextRenewal)
	k.ends.set(&one.end, one.presence.until())
}

// endOverdue ends what is no longer valid, no matter what the servers would say.
func (k *keeper) endOverdue(now int64) {
	for first := k.ends.first(); first != nil && first.at <= now; first = k.ends.first() {
		k.remove(first.item.presence.leaseID)
		first.item.presence.lose(Expired)
	}
}

func (k *keeper) renewDue(now int64) {
	for {
		renewal := &lowkeypb.RenewLeases{}
		shortestTTL := time.Hour
		for first := k.renewals.first(); first != nil && len(renewal.LeaseIds) < leasesAMessage; first = k.renewals.first() {
			isDue := first.at <= now || len(renewal.LeaseIds) > 0 && first.at <= now+int64(renewedTogether)
			if !isDue {
				break
			}
			one := first.item
			if !one.presence.isValid() {
				k.remove(one.presence.leaseID)
				continue
			}
			ttl := one.presence.ttl()
			// In jeopardy: by now a renewal should have been acknowledged, and a second one tried.
			if one.presence.remaining() < ttl/10*4 {
				one.presence.set(StatusInJeopardy)
			}
			shortestTTL = min(shortestTTL, ttl)
			told := one.presence.beliefs.told()
			renewal.LeaseIds = append(renewal.LeaseIds, one.presence.leaseID)
			renewal.Holds = append(renewal.Holds, &lowkeypb.Holds{Count: told.count, Digest: told.digest})
			// The answer changes this plan. If none comes, this is the time of the next attempt.
			k.plan(one, now+int64(ttl/6))
		}
		if len(renewal.LeaseIds) == 0 {
			return
		}
		go k.send(renewal, now, shortestTTL)
	}
}

// send sends a message of renewals and posts its outcome.
func (k *keeper) send(renewal *lowkeypb.RenewLeases, firstSent int64, shortestTTL time.Duration) {
	call := &lowkeypb.SessionCall{Call: &lowkeypb.SessionCall_RenewLeases{RenewLeases: renewal}}
	// An answer may come while the next attempt is under way. Silence is noticed sooner.
	patience := min(max(shortestTTL/6, 150*time.Millisecond), time.Second)
	answer, err := k.link.callPatiently(context.Background(), call, shortestTTL/2, patience)
	k.mailbox.post(func() {
		if err == nil && answer.GetRenewLeases() != nil {
			for _, one := range answer.GetRenewLeases().GetRenewals() {
				k.takeIn(firstSent, one)
			}
			return
		}
		// No node answered: try again very soon.
		k.again(renewal.LeaseIds...)
	})
}

func (k *keeper) again(leaseIDs ...uint64) {
	soon := bootNanos() + int64(renewAgain)
	for _, leaseID := range leaseIDs {
		if one := k.leases[leaseID]; one != nil {
			k.plan(one, soon)
		}
	}
}

func (k *keeper) takeIn(firstSent int64, renewal *lowkeypb.HeartbeatResponse) {
	one := k.leases[renewal.GetLeaseId()]
	if one == nil {
		return
	}
	switch renewal.GetErrorReason() {
	case "":
		one.presence.renewed(firstSent)
		k.plan(one, firstSent+int64(one.presence.ttl()/3))
		if renewal.GetHoldsDiffer() {
			k.read(one)
		}
	case reasonLeaseNotFound:
		k.gone(one)
	default:
		k.again(renewal.GetLeaseId())
	}
}

// renewAllSoon renews all leases soon after a new stream was opened. A node tells a stream what others do to the
// leases that were renewed on it. Many clients may come to a node at the same time, so the pause is random.
func (k *keeper) renewAllSoon() {
	soon := bootNanos() + mathrand.Int64N(int64(newStreamTime))
	for _, one := range k.leases {
		if one.renewal.at > soon {
			k.plan(one, soon)
		}
	}
}

func (k *keeper) gone(one *kept) {
	k.remove(one.presence.leaseID)
	one.presence.lose(Gone)
}

// changed: another client has ended a grant of the lease.
func (k *keeper) changed(leaseID uint64) {
	one := k.leases[leaseID]
	switch {
	case one == nil:
	case one.isReading:
		one.isChangedThen = true
	default:
		k.read(one)
	}
}

// read reads what a lease holds, one read at a time.
func (k *keeper) read(one *kept) {
	if one.isReading {
		return
	}
	one.isReading = true
	p := one.presence
	believed := p.beliefs.tokens()
	go func() {
		lease, err := readLease(context.Background(), k.link, p.leaseID, p.ttl()/2)
		k.mailbox.post(func() {
			if k.leases[p.leaseID] == one {
				k.compare(one, believed, lease, err)
			}
		})
	}()
}

// compare ends belief in grants that are gone, and releases grants that nobody wants: see beliefs.
func (k *keeper) compare(one *kept, believed []uint64, lease *lowkeypb.GetLeaseResponse, err *Error) {
	one.isReading = false
	hasChanged := one.isChangedThen
	one.isChangedThen = false
	p := one.presence
	if err != nil {
		if err.Reason == reasonLeaseNotFound {
			k.gone(one)
		}
		// If the lease could not be read, the next renewal reports the difference again.
		return
	}
	lost, orphans := p.beliefs.judge(believed, lease.GetGrants())
	for _, held := range lost {
		held.lose(ReleasedElsewhere)
	}
	for _, orphan := range orphans {
		// While somebody asks for the name he may be given this very grant, and that answer may be under way.
		if turn := p.doors.tryLeaving(orphan.name); turn != nil {
			k.link.tell(releaseByToken(orphan.name, p.leaseID, orphan.token), turn.pass)
		}
	}
	if hasChanged {
		k.read(one)
	}
}

// readLease reads all pages of a lease, each within this time.
func readLease(ctx context.Context, l *link, leaseID uint64, limit time.Duration) (*lowkeypb.GetLeaseResponse, *Error) {
	request := &lowkeypb.GetLeaseRequest{LeaseId: leaseID, PageSize: 1000}
	var whole *lowkeypb.GetLeaseResponse
	for {
		call := &lowkeypb.SessionCall{Call: &lowkeypb.SessionCall_GetLease{GetLease: request}}
		answer, err := l.call(ctx, call, limit)
		if err != nil {
			return nil, err
		}
		page := answer.GetGetLease()
		if page == nil {
			return nil, wrongAnswer()
		}
		if whole == nil {
			whole = page
		} else {
			whole.Grants = append(whole.Grants, page.GetGrants()...)
		}
		if page.GetNextPageToken() == "" {
			return whole, nil
		}
		request = &lowkeypb.GetLeaseRequest{LeaseId: leaseID, PageSize: 1000, PageToken: page.GetNextPageToken()}
	}
}
