package lowkey

import (
	"context"
	"testing"
	"testing/synctest"

	"lowkey/lowkeypb"
)

var (
	alone    = way{}
	together = way{mode: lowkeypb.Mode_SHARED}
)

// arrival is somebody who came to a door, and what he got.
type arrival struct {
	leave  context.CancelFunc
	isBack bool
	got    entry
	held   *grant
}

// come comes to the door, and returns when it is decided or he waits in line.
func come(t *testing.T, d *doors, way way, isBrief bool) *arrival {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	t.Cleanup(leave)
	a := &arrival{leave: leave}
	go func() {
		a.got, a.held = d.enter(ctx, nil, "name", way, isBrief)
		a.isBack = true
	}()
	synctest.Wait()
	return a
}

// grantAt is a grant that is held by whoever has this turn.
func grantAt(d *doors, turn *turn, way way) *grant {
	g := &grant{session: &Session{presence: &presence{}}, name: "name", way: way, guards: 1, turn: turn}
	turn.holds(g)
	synctest.Wait()
	return g
}

func TestOneGoesInAfterTheOtherAndThoseWhoLeftArePassedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &doors{}
		first, gone, second := come(t, d, alone, false), come(t, d, alone, false), come(t, d, alone, false)
		if first.got.turn == nil || gone.isBack || second.isBack {
			t.Fatal("one at a time")
		}
		grantAt(d, first.got.turn, alone)
		gone.leave()
		synctest.Wait()
		first.got.turn.pass()
		first.got.turn.pass()
		synctest.Wait()
		if gone.got.turn != nil || second.got.turn == nil {
			t.Fatal("not the next in line")
		}
		second.got.turn.pass()
		if len(d.names) != 0 {
			t.Fatal("a door without anybody is kept")
		}
	})
}

func TestThoseWhoShareGetTheSameUnlessSomebodyInLineWouldStarve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &doors{}
		first, second := come(t, d, together, false), come(t, d, together, false)
		held := grantAt(d, first.got.turn, together)
		if second.got.held != held || come(t, d, together, true).got.held != held || held.guards != 3 {
			t.Fatalf("%d guards", held.guards)
		}
		if other := come(t, d, way{mode: together.mode, scope: lowkeypb.Scope_SUBTREE}, true); other.held != held {
			t.Fatal("another scope is shared")
		}
		writer, reader := come(t, d, alone, false), come(t, d, together, false)
		if writer.isBack || reader.isBack || come(t, d, together, true).held != held {
			t.Fatal("readers pass a writer")
		}
	})
}

func TestWhoIsBriefWaitsForWhatIsDecidedSoonAndForNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &doors{}
		first, brief := come(t, d, alone, true), come(t, d, alone, true)
		if brief.isBack {
			t.Fatal("the answer comes soon")
		}
		grantAt(d, first.got.turn, alone)
		if !brief.isBack || brief.got.turn != nil {
			t.Fatal("it is held now")
		}
		first.got.turn.leaves()
		brief = come(t, d, alone, true)
		if brief.isBack {
			t.Fatal("it is free soon")
		}
		first.got.turn.pass()
		synctest.Wait()
		if brief.got.turn == nil {
			t.Fatal("not in")
		}
		brief.got.turn.leaves()
		patient, second := come(t, d, alone, false), come(t, d, alone, true)
		brief.got.turn.pass()
		synctest.Wait()
		if patient.got.turn == nil || !second.isBack || second.got.turn != nil {
			t.Fatal("another waits for it")
		}
	})
}

func TestADirectoryKnowsTheMembersAndBeginsWithAnotherAfterAFailure(t *testing.T) {
	d := directory{endpoints: []string{"http://a:1"}, given: 1}
	d.met(&stream{endpoint: "http://b:1", clusterID: "c", members: []string{"http://a:1", "http://b:1", "http://c:1"}})
	if len(d.endpoints) != 3 || d.next != 1 || d.clusterID != "c" {
		t.Fatalf("%+v", d)
	}
	d.avoidCurrent()
	if d.avoided != "http://b:1" || d.next != 2 {
		t.Fatalf("%+v", d)
	}
	d.met(&stream{endpoint: "http://d:1", clusterID: "c", members: []string{"http://d:1"}})
	if len(d.endpoints) != 2 || d.next != 1 || d.avoided != "" {
		t.Fatalf("%+v", d)
	}
}
