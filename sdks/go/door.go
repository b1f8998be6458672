package lowkey

import (
	"context"
	"slices"
	"sync"

	"lowkey/lowkeypb"
)

// way is how a name is wanted or held.
type way struct {
	mode  lowkeypb.Mode
	scope lowkeypb.Scope
	// isLimited: a grant that is held for a limited time is nobody else's.
	isLimited bool
}

func (w way) canJoin(held way) bool {
	return w == held && w.mode == lowkeypb.Mode_SHARED && !w.isLimited
}

// doors lead to the names of one session: its goroutines go in one after the other.
//
// A lease that asks twice is given the same grant twice by the service. Two guards must not share a grant by
// accident, because the release of one would end the other. So a session asks for a name only when it neither
// holds it, nor asks for it, nor releases it. Who comes meanwhile waits in line here. Who wants to share a name
// that is held in shared mode gets it at once, and the grant is released with the last of its guards.
type doors struct {
	mu    sync.Mutex
	names map[string]*door
}

type doorState int

const (
	// asking: the service is being asked.
	asking doorState = iota
	// holding: the name is held.
	holding
	// leaving: the name is being released.
	leaving
)

// door is the door to one name. It exists while somebody is inside.
type door struct {
	state doorState
	// isBrief, while asking: the service answers at once.
	isBrief bool
	held    *grant // while holding
	line    []*doorWaiter
}

type doorWaiter struct {
	way way
	// isBrief: waits only for what is decided soon.
	isBrief bool
	// entry gets one value, and is closed without one if a brief wait is over.
	entry chan entry
}

// entry is what lets a goroutine in: a grant to share, or the turn to ask for the name.
type entry struct {
	turn *turn
	held *grant // one more of its guards is counted
}

// turn is the right to ask for a name, to hold it, and to release it.
type turn struct {
	doors *doors
	name  string
	once  sync.Once
}

// enter goes in, or gets in line and waits. If isBrief, it gets in line only behind what is decided soon.
// It returns an empty entry if it did not get in, with the grant that is in the way if there is one.
func (d *doors) enter(ctx context.Context, lost <-chan struct{}, name string, way way, isBrief bool) (entry, *grant) {
	d.mu.Lock()
	at := d.names[name]
	if at == nil {
		if d.names == nil {
			d.names = map[string]*door{}
		}
		d.names[name] = &door{state: asking, isBrief: isBrief}
		d.mu.Unlock()
		return entry{turn: &turn{doors: d, name: name}}, nil
	}
	if at.state == holding {
		// Do not pass a waiter that cannot join: it would wait for ever while others join.
		blocked := slices.ContainsFunc(at.line, func(w *doorWaiter) bool { return !w.way.canJoin(at.held.way) })
		if way.canJoin(at.held.way) && !blocked {
			at.held.guards++
			d.mu.Unlock()
			return entry{held: at.held}, nil
		}
	}
	if isBrief && (at.state == holding || at.state == asking && !at.isBrief) {
		held := at.held
		d.mu.Unlock()
		return entry{}, held
	}
	waiter := &doorWaiter{way: way, isBrief: isBrief, entry: make(chan entry, 1)}
	at.line = append(at.line, waiter)
	d.mu.Unlock()
	select {
	case got := <-waiter.entry:
		return got, nil
	case <-ctx.Done():
	case <-lost:
	}
	d.leaveLine(name, waiter)
	return entry{}, nil
}

// leaveLine takes a waiter out of the line, or passes on what it was given meanwhile.
func (d *doors) leaveLine(name string, waiter *doorWaiter) {
	d.mu.Lock()
	if at := d.names[name]; at != nil {
		at.line = slices.DeleteFunc(at.line, func(w *doorWaiter) bool { return w == waiter })
	}
	d.mu.Unlock()
	select {
	case got := <-waiter.entry:
		if got.turn != nil {
			got.turn.pass()
		} else if got.held != nil && got.held.drop() {
			// Nobody waits for this: what is not released in time is tried again in the background.
			go func() { _ = got.held.release() }()
		}
	default:
	}
}

// tryLeaving goes in to release something, if nobody holds the name, asks for it, or releases it.
func (d *doors) tryLeaving(name string) *turn {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names[name] != nil {
		return nil
	}
	if d.names == nil {
		d.names = map[string]*door{}
	}
	d.names[name] = &door{state: leaving}
	return &turn{doors: d, name: name}
}

// holds notes that the name is held. Those at the front of the line that want it in the same shared way get it.
func (t *turn) holds(held *grant) {
	t.doors.mu.Lock()
	defer t.doors.mu.Unlock()
	at := t.doors.names[t.name]
	at.state, at.held = holding, held
	for len(at.line) > 0 && at.line[0].way.canJoin(held.way) {
		held.guards++
		at.line[0].entry <- entry{held: held}
		at.line = at.line[1:]
	}
	at.sendBriefAway()
}

// leaves notes that the name is being released.
func (t *turn) leaves() {
	t.doors.mu.Lock()
	defer t.doors.mu.Unlock()
	t.doors.names[t.name].state = leaving
}

// sendBriefAway ends brief waits: what is decided now is not decided soon.
func (at *door) sendBriefAway() {
	at.line = slices.DeleteFunc(at.line, func(w *doorWaiter) bool {
		if w.isBrief {
			close(w.entry)
		}
		return w.isBrief
	})
}

// pass lets in the next in line. It has an effect once.
func (t *turn) pass() {
	t.once.Do(func() {
		t.doors.mu.Lock()
		defer t.doors.mu.Unlock()
		at := t.doors.names[t.name]
		if len(at.line) == 0 {
			delete(t.doors.names, t.name)
			return
		}
		next := at.line[0]
		at.line = at.line[1:]
		at.state, at.isBrief, at.held = asking, next.isBrief, nil
		if !next.isBrief {
			at.sendBriefAway()
		}
		next.entry <- entry{turn: &turn{doors: t.doors, name: t.name}}
	})
}
