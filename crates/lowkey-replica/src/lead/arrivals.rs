//! Requests that reached a leader and are not taken up yet.
//!
//! `raft` makes a node the leader some time before it may touch leases (R1). Requests that come meanwhile gather here, and
//! so do later ones, until a round begins or a wait is parked. So this is not part of a lead. It may take long until a
//! leader's first entry is committed, if its followers' disks are full, for instance. Hence the limit on how many may
//! gather; and a caller that goes away leaves nothing behind.
//!
//! A change of term or role fails them all ([`Arrivals::fail_all`]).

use std::collections::BTreeMap;

use lowkey_core::{Command, WaitTime, mutants};

use crate::input::CallId;
use crate::lead::rounds::{Participant, Wish};

/// How many may wait for a round to begin.
const GATHERING_MAX: usize = 65_536;

/// A command that is to come into the log, and who asked for it.
#[derive(Debug, PartialEq)]
pub(crate) struct PendingCommand {
    pub(crate) call: CallId,
    pub(crate) command: Command,
    /// How long its caller would wait for a lock.
    pub(crate) wait: WaitTime,
}

/// Invariant: nobody is here who waits for a lock, or was answered. The same caller may gather and be on its way.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    /// Those who take part in the next round.
    gathering: BTreeMap<CallId, Wish>,
    /// Those whose request may end in a wait.
    on_their_way: BTreeMap<CallId, OnItsWay>,
    /// Rises with every round and outlives a lead, so that no context is ever used twice by one process.
    rounds_begun: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnItsWay {
    Expected,
    /// It left, and leaves its place as soon as it has one.
    Left,
}

impl Arrivals {
    /// Takes part in the next round to begin; false if too many do already.
    pub(crate) fn join(&mut self, call: CallId, wish: Wish) -> bool {
        if self.gathering.len() >= GATHERING_MAX {
            return false;
        }
        self.gathering.insert(call, wish);
        true
    }

    /// True if someone waits for a round.
    pub(crate) fn wait_for_a_round(&self) -> bool {
        !self.gathering.is_empty()
    }

    /// All who gathered, and the number of the round that begins for them.
    pub(super) fn take_gathered(&mut self) -> (u64, Vec<Participant>) {
        if !mutants::REUSED_READINDEX_CONTEXT.is_active() {
            self.rounds_begun += 1;
        }
        let gathered = std::mem::take(&mut self.gathering).into_iter();
        (self.rounds_begun, gathered.map(|(call, wish)| Participant { call, wish }).collect())
    }

    /// A caller asks to wait, and may have to.
    pub(crate) fn expect(&mut self, call: CallId) {
        self.on_their_way.insert(call, OnItsWay::Expected);
    }

    /// A caller was answered, whether it was on its way or never meant to wait.
    pub(crate) fn answered(&mut self, call: CallId) {
        self.on_their_way.remove(&call);
    }

    /// A caller waits from now on; true if it left while it was on its way.
    pub(super) fn has_arrived(&mut self, call: CallId) -> bool {
        self.on_their_way.remove(&call) == Some(OnItsWay::Left)
    }

    /// A caller is gone; true if it was here. One that takes part in no round that has begun has had no effect, and is
    /// forgotten. One whose command is under way leaves when that is applied.
    pub(crate) fn leave(&mut self, call: CallId) -> bool {
        if self.gathering.remove(&call).is_some() {
            self.on_their_way.remove(&call);
            return true;
        }
        match self.on_their_way.get_mut(&call) {
            Some(on_its_way) => {
                *on_its_way = OnItsWay::Left;
                true
            }
            None => false,
        }
    }

    /// The term or the role changed: gives those who waited for a round. Who is on its way will not wait here either, and
    /// is answered by what its command is a part of.
    pub(crate) fn fail_all(&mut self) -> impl Iterator<Item = CallId> + use<> {
        self.on_their_way.clear();
        std::mem::take(&mut self.gathering).into_keys()
    }
}

#[cfg(test)]
impl Arrivals {
    pub(crate) fn is_empty(&self) -> bool {
        self.gathering.is_empty() && self.on_their_way.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reads::Query;

    fn read() -> Wish {
        Wish::Read(Query::Revision)
    }

    #[test]
    fn who_goes_away_before_a_round_begins_makes_room_for_another() {
        let mut arrivals = Arrivals::default();
        for call in 0..GATHERING_MAX as u64 {
            assert!(arrivals.join(CallId(call), read()));
        }
        assert!(!arrivals.join(CallId(u64::MAX), read()));
        assert!(arrivals.leave(CallId(7)) && !arrivals.leave(CallId(7)));
        assert!(arrivals.join(CallId(u64::MAX), read()));
        let (_, gathered) = arrivals.take_gathered();
        assert_eq!(gathered.len(), GATHERING_MAX);
        assert!(gathered.iter().all(|participant| participant.call != CallId(7)));
    }

    #[test]
    fn who_leaves_on_the_way_is_told_apart_when_it_arrives() {
        let mut arrivals = Arrivals::default();
        arrivals.expect(CallId(1));
        arrivals.expect(CallId(2));
        assert!(arrivals.leave(CallId(1)) && arrivals.leave(CallId(1)));
        assert!(arrivals.has_arrived(CallId(1)) && !arrivals.has_arrived(CallId(2)));
        assert!(arrivals.is_empty());
    }

    #[test]
    fn who_leaves_after_the_answer_is_not_remembered() {
        let mut arrivals = Arrivals::default();
        arrivals.expect(CallId(2));
        arrivals.leave(CallId(2));
        arrivals.answered(CallId(2));
        assert!(!arrivals.leave(CallId(2)) && arrivals.is_empty());
    }

    #[test]
    fn a_change_of_lead_fails_who_gathered_and_forgets_who_is_on_the_way() {
        let mut arrivals = Arrivals::default();
        arrivals.join(CallId(1), read());
        arrivals.expect(CallId(3));
        assert!(arrivals.fail_all().eq([CallId(1)]));
        assert!(!arrivals.leave(CallId(3)) && arrivals.is_empty());
    }
}
