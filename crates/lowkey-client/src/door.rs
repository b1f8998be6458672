//! The door to one name within one session: its tasks go in one after the other.
//!
//! A lease that asks twice is given the same grant twice by the service. Two guards must not share a grant
//! by accident, because the release of one would end the other. So a session asks for a name only when it
//! neither holds it, nor asks for it, nor releases it. Tasks that come meanwhile wait in line here. Tasks
//! that want to share a name that is held in shared mode get it at once.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use lowkey_api::v1::{Mode, Scope};
use tokio::sync::oneshot;

/// How a name is wanted or held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) mode: Mode,
    pub(crate) scope: Scope,
    /// A grant that is held for a limited time is nobody else's.
    pub(crate) is_limited: bool,
}

impl Way {
    fn can_join(self, held: Self) -> bool {
        self == held && self.mode == Mode::Shared && !self.is_limited
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
        // Sweep before the map grows: the cost of a sweep is shared by as many insertions.
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

/// Invariant: while `now` is `Idle` the line is empty.
struct Inside<G> {
    now: Now<G>,
    line: VecDeque<DoorWaiter<G>>,
}

enum Now<G> {
    Idle,
    /// The service is being asked. `is_brief` if it answers at once.
    Asking {
        is_brief: bool,
    },
    Held {
        way: Way,
        grant: Weak<G>,
    },
    /// The name is being released.
    Leaving,
}

struct DoorWaiter<G> {
    way: Way,
    /// Waits only for what is decided soon.
    is_brief: bool,
    entry: oneshot::Sender<Entry<G>>,
}

impl<G> DoorWaiter<G> {
    fn is_there(&self) -> bool {
        !self.entry.is_closed()
    }
}

/// What lets a task in.
pub(crate) enum Entry<G> {
    /// No other task of the session has the name: ask for it.
    Turn(DoorTurn<G>),
    /// Another task holds it in the same shared way.
    Share(Arc<G>),
}

pub(crate) enum Entering<G> {
    Now(Entry<G>),
    /// An error if a brief wait is over: another task has the name, or waits for it.
    Later(oneshot::Receiver<Entry<G>>),
    /// Another task has the name, or waits for it.
    Busy(Option<Arc<G>>),
}

impl<G> Door<G> {
    /// Goes in, or gets in line. A brief task gets in line only behind what is decided soon.
    pub(crate) fn enter(self: &Arc<Self>, way: Way, is_brief: bool) -> Entering<G> {
        let mut inside = self.lock();
        match &inside.now {
            Now::Idle => {
                inside.now = Now::Asking { is_brief };
                drop(inside);
                return Entering::Now(Entry::Turn(DoorTurn { door: Arc::clone(self) }));
            }
            Now::Held { way: held, grant } => {
                let grant = grant.upgrade();
                // Do not pass a waiter that cannot join: it would wait for ever while others join.
                let is_first =
                    !inside.line.iter().any(|waiter| waiter.is_there() && !waiter.way.can_join(*held));
                match grant {
                    Some(grant) if way.can_join(*held) && is_first => {
                        return Entering::Now(Entry::Share(grant));
                    }
                    Some(grant) if is_brief => return Entering::Busy(Some(grant)),
                    Some(_) => {}
                    // About to be released.
                    None => {}
                }
            }
            Now::Asking { is_brief: false } if is_brief => return Entering::Busy(None),
            Now::Asking { .. } | Now::Leaving => {}
        }
        let (entry, receiver) = oneshot::channel();
        inside.line.push_back(DoorWaiter { way, is_brief, entry });
        Entering::Later(receiver)
    }

    /// Goes in if no task holds the name, asks for it, or releases it.
    pub(crate) fn try_enter(self: &Arc<Self>) -> Option<DoorTurn<G>> {
        let mut inside = self.lock();
        let is_free = matches!(inside.now, Now::Idle);
        is_free.then(|| {
            inside.now = Now::Leaving;
            DoorTurn { door: Arc::clone(self) }
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inside<G>> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to ask for a name, to hold it, and to release it. When it is dropped, the next in line goes
/// in.
pub(crate) struct DoorTurn<G> {
    door: Arc<Door<G>>,
}

impl<G> DoorTurn<G> {
    /// The name is held. Tasks at the front of the line that want it in the same shared way get it too.
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
            // A task that has gone needs nothing.
            let _ = waiter.entry.send(Entry::Share(Arc::clone(grant)));
        }
    }

    /// The name is being released.
    pub(crate) fn leaving(&self) {
        self.door.lock().now = Now::Leaving;
    }
}

impl<G> Drop for DoorTurn<G> {
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
        // If that task has just gone, this drops the turn, which lets in the one after it.
        let _ = next.entry.send(Entry::Turn(Self { door: Arc::clone(&self.door) }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: Way = Way { mode: Mode::Exclusive, scope: Scope::Name, is_limited: false };
    const TOGETHER: Way = Way { mode: Mode::Shared, scope: Scope::Name, is_limited: false };

    fn turn(entering: Entering<u8>) -> DoorTurn<u8> {
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
