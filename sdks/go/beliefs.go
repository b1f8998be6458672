package lowkey

import (
	"maps"
	"slices"
	"sync"

	"lowkey/lowkeypb"
)

// givenUpMax is how many given-up acquires are remembered at least: far more than can be under way (128), or are
// remembered by the service (256).
const givenUpMax = 1024

// beliefs is what a client believes that its lease holds, and how it compares that with what the service says.
//
// Every renewal carries a count and a digest of the tokens that the client believes in. If the leader's differ,
// the client reads the lease. Then:
//
//   - A token is lost if it was believed in before the lease was read, and is not there: another client released
//     it. Its guard is told at once. A token that this client is releasing is not believed in any more.
//   - A grant that this client does not believe in may be one whose answer is under way. It may also belong to
//     another program that was given the lease. It is left alone, unless it was granted to an acquire that this
//     client made and gave up. Such an orphan would be renewed for ever, so it is released by its token.
//
// Invariant: holds describes exactly the tokens in held.
type beliefs struct {
	mu      sync.Mutex
	holds   holds
	held    map[uint64]*grant
	givenUp []string // request ids of acquires, the oldest first
}

func (b *beliefs) add(token uint64, held *grant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held == nil {
		b.held = map[uint64]*grant{}
	}
	if _, known := b.held[token]; !known {
		b.holds.add(token)
	}
	b.held[token] = held
}

// remove ends belief in a token, for any reason.
func (b *beliefs) remove(token uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.removeLocked(token)
}

func (b *beliefs) removeLocked(token uint64) *grant {
	held, known := b.held[token]
	if known {
		delete(b.held, token)
		b.holds.remove(token)
	}
	return held
}

// giveUp notes that nobody waits for this acquire any more.
func (b *beliefs) giveUp(acquireRequestID string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.givenUp = append(b.givenUp, acquireRequestID)
	if len(b.givenUp) >= 2*givenUpMax {
		b.givenUp = slices.Clone(b.givenUp[givenUpMax:])
	}
}

func (b *beliefs) told() holds {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.holds
}

func (b *beliefs) tokens() []uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Keys(b.held))
}

// grants are all that is believed to be held.
func (b *beliefs) grants() []*grant {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Values(b.held))
}

// orphan is a grant that nobody wants.
type orphan struct {
	name  string
	token uint64
}

// judge judges what the lease holds. It was read after these tokens were believed in. Lost tokens are not
// believed in any more.
func (b *beliefs) judge(believed []uint64, grants []*lowkeypb.LeaseGrant) (lost []*grant, orphans []orphan) {
	b.mu.Lock()
	defer b.mu.Unlock()
	there := map[uint64]bool{}
	for _, found := range grants {
		there[found.GetFencingToken()] = true
	}
	for _, token := range believed {
		if held := b.held[token]; held != nil && !there[token] {
			lost = append(lost, b.removeLocked(token))
		}
	}
	for _, found := range grants {
		_, isBelieved := b.held[found.GetFencingToken()]
		if !isBelieved && slices.Contains(b.givenUp, found.GetAcquireRequestId()) {
			orphans = append(orphans, orphan{found.GetLockName(), found.GetFencingToken()})
		}
	}
	return lost, orphans
}
