//! The door to one name within one session: its tasks go in one after the other.
//!
//! The service gives a lease that asks twice the same grant twice. Two guards must not share a grant by accident:
//! the release of one would end the other. So a session asks for a name only when it neither holds it, nor asks
//! for it, nor gives it back. Those who come meanwhile wait in line here; those who want to share what is held
//! in shared mode get it at once.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use lowkey_api::v1::{Mode, Scope};
use tokio::sync::oneshot;

/// How a name is wanted or held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) mode: Mode,
    pub(crate) scope: Scope,
}

impl Way {
    fn can_join(self, held: Self) -> bool {
        self == held && self.mode == Mode::Shared
    }
}

/// All doors of a session. `G` is what is held.
pub(crate) struct Doors<G> {
    doors: Mutex<HashMap<String, Weak<Door<G>>>>,
}

impl<G> Default for Doors<G> {
    fn default() -> Self {
        Self { doors: Mutex::default() }
    }
}

impl<G> Doors<G> {
    pub(crate) fn of(&self, name: &str) -> Arc<Door<G>> {
        let mut doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(door) = doors.get(name).and_then(Weak::upgrade) {
            return door;
        }
        // Before the map grows: the cost of a sweep is shared by as many insertions.
        if doors.len() == doors.capacity() {
            doors.retain(|_, door| door.strong_count() > 0);
        }
        let door = Arc::new(Door::default());
        doors.insert(name.to_owned(), Arc::downgrade(&door));
        door
    }
}

pub(crate) struct Door<G> {
    inside: Mutex<Inside<G>>,
}

impl<G> Default for Door<G> {
    fn default() -> Self {
        Self { inside: Mutex::new(Inside { now: Now::Idle, line: VecDeque::new() }) }
    }
}

/// Invariant: while `now` is `Idle` nobody is in line.
struct Inside<G> {
    now: Now<G>,
    line: VecDeque<Waiter<G>>,
}

enum Now<G> {
    Idle,
    /// The service is asked; briefly if it answers at once.
    Asking {
        is_brief: bool,
    },
    Held {
        way: Way,
        grant: Weak<G>,
    },
    /// It is being given back.
    Leaving,
}

struct Waiter<G> {
    way: Way,
    /// Waits only for what is decided soon.
    is_brief: bool,
    entry: oneshot::Sender<Entry<G>>,
}

impl<G> Waiter<G> {
    fn is_there(&self) -> bool {
        !self.entry.is_closed()
    }
}

/// What lets a task in.
pub(crate) enum Entry<G> {
    /// Nobody else of the session has the name: ask for it.
    Turn(Turn<G>),
    /// Another task holds it in the same shared way.
    Share(Arc<G>),
}

pub(crate) enum Entering<G> {
    Now(Entry<G>),
    /// An error if a brief wait is over: another task has it, or waits for it.
    Later(oneshot::Receiver<Entry<G>>),
    /// Another task has it, or waits for it.
    Busy(Option<Arc<G>>),
}

impl<G> Door<G> {
    /// Goes in, or gets in line. Whoever is brief does so only behind what is decided soon.
    pub(crate) fn enter(self: &Arc<Self>, way: Way, is_brief: bool) -> Entering<G> {
        let mut inside = self.lock();
        match &inside.now {
            Now::Idle => {
                inside.now = Now::Asking { is_brief };
                drop(inside);
                return Entering::Now(Entry::Turn(Turn { door: Arc::clone(self) }));
            }
            Now::Held { way: held, grant } => {
                let grant = grant.upgrade();
                // Not past somebody in line, who would wait for ever while others join.
                let is_first =
                    !inside.line.iter().any(|waiter| waiter.is_there() && !waiter.way.can_join(*held));
                match grant {
                    Some(grant) if way.can_join(*held) && is_first => {
                        return Entering::Now(Entry::Share(grant));
                    }
                    Some(grant) if is_brief => return Entering::Busy(Some(grant)),
                    Some(_) => {}
                    // About to be given back.
                    None => {}
                }
            }
            Now::Asking { is_brief: false } if is_brief => return Entering::Busy(None),
            Now::Asking { .. } | Now::Leaving => {}
        }
        let (entry, receiver) = oneshot::channel();
        inside.line.push_back(Waiter { way, is_brief, entry });
        Entering::Later(receiver)
    }

    /// Goes in if no task has the name, asks for it, or gives it back.
    pub(crate) fn try_enter(self: &Arc<Self>) -> Option<Turn<G>> {
        let mut inside = self.lock();
        let is_free = matches!(inside.now, Now::Idle);
        is_free.then(|| {
            inside.now = Now::Leaving;
            Turn { door: Arc::clone(self) }
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inside<G>> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to ask for a name, to hold it, and to give it back. The next in line goes in when it is dropped.
pub(crate) struct Turn<G> {
    door: Arc<Door<G>>,
}

impl<G> Turn<G> {
    /// The name is held. Those at the front of the line who want it in the same shared way have it, too.
    pub(crate) fn held(&self, way: Way, grant: &Arc<G>) {
        let mut joining = Vec::new();
        let mut inside = self.door.lock();
        inside.now = Now::Held { way, grant: Arc::downgrade(grant) };
        while inside.line.front().is_some_and(|waiter| !waiter.is_there() || waiter.way.can_join(way)) {
            joining.extend(inside.line.pop_front());
        }
        inside.line.retain(|waiter| !waiter.is_brief);
        drop(inside);
        for waiter in joining {
            // Who has gone needs nothing.
            let _ = waiter.entry.send(Entry::Share(Arc::clone(grant)));
        }
    }

    /// It is being given back.
    pub(crate) fn leaving(&self) {
        self.door.lock().now = Now::Leaving;
    }
}

impl<G> Drop for Turn<G> {
    fn drop(&mut self) {
        let mut inside = self.door.lock();
        while inside.line.front().is_some_and(|waiter| !waiter.is_there()) {
            inside.line.pop_front();
        }
        let Some(next) = inside.line.pop_front() else {
            inside.now = Now::Idle;
            return;
        };
        inside.now = Now::Asking { is_brief: next.is_brief };
        if !next.is_brief {
            inside.line.retain(|waiter| !waiter.is_brief);
        }
        drop(inside);
        // If it has gone just now, this drops the turn, and with it lets in the one after.
        let _ = next.entry.send(Entry::Turn(Self { door: Arc::clone(&self.door) }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: Way = Way { mode: Mode::Exclusive, scope: Scope::Name };
    const TOGETHER: Way = Way { mode: Mode::Shared, scope: Scope::Name };

    fn turn(entering: Entering<u8>) -> Turn<u8> {
        match entering {
            Entering::Now(Entry::Turn(turn)) => turn,
            _ => panic!("not now"),
        }
    }

    fn later(entering: Entering<u8>) -> oneshot::Receiver<Entry<u8>> {
        match entering {
            Entering::Later(receiver) => receiver,
            _ => panic!("not later"),
        }
    }

    #[test]
    fn one_goes_in_after_the_other_and_those_who_left_the_line_are_passed_over() {
        let door = Arc::new(Door::default());
        let first = turn(door.enter(ALONE, false));
        let gone = later(door.enter(ALONE, false));
        let mut second = later(door.enter(ALONE, false));
        drop(gone);
        first.held(ALONE, &Arc::new(1));
        assert!(second.try_recv().is_err());
        drop(first);
        let Ok(Entry::Turn(second)) = second.try_recv() else { panic!("not in") };
        drop(second);
        turn(door.enter(ALONE, false));
    }

    #[test]
    fn who_left_with_the_turn_in_hand_passes_it_on() {
        let door = Arc::new(Door::default());
        let first = turn(door.enter(ALONE, false));
        let (gone, mut last) = (later(door.enter(ALONE, false)), later(door.enter(ALONE, false)));
        drop(first);
        drop(gone);
        assert!(matches!(last.try_recv(), Ok(Entry::Turn(_))));
    }

    #[test]
    fn those_who_share_get_the_same_unless_somebody_in_line_would_starve() {
        let door = Arc::new(Door::default());
        let first = turn(door.enter(TOGETHER, false));
        let mut second = later(door.enter(TOGETHER, false));
        let grant = Arc::new(7);
        first.held(TOGETHER, &grant);
        assert!(matches!(second.try_recv(), Ok(Entry::Share(_))));
        assert!(matches!(door.enter(TOGETHER, true), Entering::Now(Entry::Share(_))));
        assert!(matches!(door.enter(Way { scope: Scope::Subtree, ..TOGETHER }, true), Entering::Busy(_)));
        let writer = later(door.enter(ALONE, false));
        let reader = later(door.enter(TOGETHER, false));
        assert!(matches!(door.enter(TOGETHER, true), Entering::Busy(Some(_))));
        drop((first, writer, reader));
        turn(door.enter(ALONE, true));
    }

    #[test]
    fn whoever_is_brief_waits_for_what_is_decided_soon_and_for_nothing_else() {
        let door = Arc::new(Door::default());
        let first = turn(door.enter(ALONE, true));
        let mut brief = later(door.enter(ALONE, true));
        let grant = Arc::new(1);
        first.held(ALONE, &grant);
        assert!(matches!(brief.try_recv(), Err(oneshot::error::TryRecvError::Closed)), "it is held now");
        assert!(matches!(door.enter(ALONE, true), Entering::Busy(Some(_))));
        first.leaving();
        let mut brief = later(door.enter(ALONE, true));
        drop(first);
        let Ok(Entry::Turn(second)) = brief.try_recv() else { panic!("not in") };
        second.leaving();
        let (mut patient, mut brief) = (later(door.enter(ALONE, false)), later(door.enter(ALONE, true)));
        drop(second);
        assert!(matches!(patient.try_recv(), Ok(Entry::Turn(_))));
        assert!(
            matches!(brief.try_recv(), Err(oneshot::error::TryRecvError::Closed)),
            "another waits for it"
        );
    }
}
