//! A new beginning: how a cluster goes on that lost its quorum for good, or comes back from a copy.
//!
//! What one survivor knows may be old: the majority that is gone may have granted, released and renewed without it.
//! So nothing of what is held is carried over, and what must never come twice is moved far beyond all that the lost
//! majority can have reached:
//!
//! - **Tokens and leases** begin at the first number of an [`Epoch`] that was claimed for this cluster alone, exactly
//!   there.
//! - **Without a place to claim one** they go on at `max(old + 2^32, unix_minutes · 2^32) + spread`. The first term covers a
//!   clock that is wrong, the second one a survivor that is far behind: nobody makes 2^31 grants in a minute.
//! - **The spread** is random, below 2^31. Two survivors of one cluster may both be recovered, in the same minute, and
//!   neither knows of the other: without it both would grant the same tokens. It takes half of a minute's numbers, so
//!   that a recovery in a later minute still lies above all that one of an earlier minute can have granted. A
//!   cluster that begins at a later minute, in place of any of them, lies above them too.
//! - **Revisions** jump in the same way, so that every position that a watcher of before may have lies below the first
//!   one of the new cluster, and is answered as compacted.
//! - **Leases, locks, waits and remembered requests** are dropped. Their owners cannot talk to the new cluster: clients
//!   stay with the cluster id that they began with.
//! - **Who may do what** is carried over: a cluster that was closed must not come back open.
//! - **Who may do what** is kept; bearer tokens are, too, after a recovery. After a restore they are not, unless somebody
//!   wants that: a backup may be older than the revocation of a token.
//! - **The place of a group among others** is kept: its range, its stripe of lease ids, and the map if it is the root.
//! - **The schedule of backups** is kept: a cluster that made backups goes on making them.
//! - **Members** are dropped but for the survivor, which comes in as a new one: no number is given twice.
//! - **Quarantine**: clients of before may still believe that they hold something. Until they cannot any more, nothing
//!   is granted. For how long that is, only the leader knows (R5): it ends with [`crate::Command::EndQuarantine`].

use super::State;
use crate::command::NodeInfo;
use crate::epoch::Epoch;
use crate::mutants;
use crate::name::{ClusterId, LeaseId, MemberId, Token};

/// How far counters move at least: more than can have happened without the survivor's knowing.
const STEP: u64 = 1 << 32;

/// No counter goes beyond this: tokens are kept in signed columns, too.
const COUNTER_MAX: u64 = i64::MAX as u64;

/// What a new cluster is to begin with.
#[derive(Clone, Debug)]
pub struct NewBeginning {
    /// Its id: one that no cluster ever had.
    pub cluster: ClusterId,
    /// Its only node, with an identity that no node ever had.
    pub node: NodeInfo,
    /// Where its counters begin.
    pub numbers: FirstNumbers,
    /// Bearer tokens of principals stay good. Not after a restore: a backup may be older than the revocation of a token.
    pub keep_tokens: bool,
    /// Grant nothing until a leader has waited for the longest time to live.
    pub quarantine: bool,
}

/// What a cluster is to begin with that several nodes found at once.
#[derive(Clone, Debug)]
pub struct FirstMembers {
    /// Its id: one that no cluster ever had.
    pub cluster: ClusterId,
    /// Its nodes, in the order of the numbers that they get.
    pub nodes: Vec<NodeInfo>,
    /// The wall clock, in minutes since 1970.
    pub unix_minutes: u64,
    /// Random: all but its lowest bit keeps two beginnings within one minute apart.
    pub spread: u32,
}

/// Where the counters of a new cluster begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstNumbers {
    /// At an epoch that no other cluster has.
    Claimed(Epoch),
    /// There was no place to claim one: far above what is known, and at random.
    Unclaimed {
        /// The wall clock, in minutes since 1970.
        unix_minutes: u64,
        /// Random: all but its lowest bit keeps two beginnings within one minute apart.
        spread: u32,
    },
}

impl FirstNumbers {
    /// Where a counter begins that stands at this number.
    fn behind(self, old: u64) -> Result<u64, CountersSpent> {
        let counter = match self {
            Self::Claimed(_) if mutants::A_RESTORE_GOES_ON_COUNTING.is_active() => old,
            // Never more than that: further up it could be somebody else's. Who claimed it knew of the old number.
            Self::Claimed(epoch) if old < epoch.first_counter() => epoch.first_counter(),
            Self::Claimed(_) => return Err(CountersSpent),
            Self::Unclaimed { unix_minutes, spread } => {
                let floor = unix_minutes.checked_mul(STEP).ok_or(CountersSpent)?;
                let counter = old.checked_add(STEP).ok_or(CountersSpent)?.max(floor);
                counter.checked_add(u64::from(spread >> 1)).ok_or(CountersSpent)?
            }
        };
        if counter <= COUNTER_MAX { Ok(counter) } else { Err(CountersSpent) }
    }

    /// The epoch, if one was claimed.
    fn epoch(self) -> Option<Epoch> {
        match self {
            Self::Claimed(epoch) => Some(epoch),
            Self::Unclaimed { .. } => None,
        }
    }
}

/// A counter cannot be moved as far as it would have to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountersSpent;

impl State {
    /// The first state of a new cluster that takes the place of this one, and the number of its only node.
    pub fn begin_anew(&self, beginning: NewBeginning) -> Result<(Self, MemberId), CountersSpent> {
        let NewBeginning { cluster, node, numbers, quarantine, keep_tokens } = beginning;
        let mut state = Self::new(cluster);
        state.revision = numbers.behind(self.revision)?;
        state.last_token = Token(numbers.behind(self.last_token.0)?);
        state.last_lease = LeaseId(numbers.behind(self.last_lease.0)?);
        state.last_member = MemberId(self.last_member.0.checked_add(1).ok_or(CountersSpent)?);
        state.put_member(state.last_member, node);
        for (name, principal) in self.access.principals() {
            let mut principal = principal.clone();
            if !keep_tokens {
                principal.tokens.clear();
            }
            state.put_principal(name, Some(principal));
        }
        state.require_access(self.access.is_required());
        state.set_backup_schedule(self.backup_schedule.clone());
        state.quarantine = quarantine;
        state.epoch = numbers.epoch();
        state.place = self.place.clone();
        // Nothing is in use any more that could be drained.
        state.change_place(|place| place.drain = None);
        let member = state.last_member;
        Ok((state, member))
    }

    /// The first state of a cluster that several nodes found at once, each of them a member from the beginning.
    ///
    /// Its counters begin at the clock's floor too. All of its nodes may have been wiped: then nothing is left that
    /// could tell of the cluster before, and tokens must still not come twice.
    pub fn begin_together(first: FirstMembers) -> Result<Self, CountersSpent> {
        let FirstMembers { cluster, nodes, unix_minutes, spread } = first;
        let mut state = Self::new(cluster);
        let floor = FirstNumbers::Unclaimed { unix_minutes, spread }.behind(0)?;
        (state.revision, state.last_token, state.last_lease) = (floor, Token(floor), LeaseId(floor));
        for (number, node) in (1..).zip(nodes) {
            state.last_member = MemberId(number);
            state.put_member(MemberId(number), node);
        }
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Command, Reply};
    use crate::name::{NodeIdentity, NodeName};

    fn beginning(unix_minutes: u64) -> NewBeginning {
        NewBeginning {
            cluster: ClusterId([9; 16]),
            node: NodeInfo {
                name: NodeName::parse("n3").unwrap(),
                identity: Some(NodeIdentity([4; 16])),
                raft_address: "a:1".into(),
                grpc_address: "a:2".into(),
                http_address: "a:3".into(),
                command_version: crate::COMMAND_VERSION,
                key_hash: None,
            },
            numbers: FirstNumbers::Unclaimed { unix_minutes, spread: 0 },
            keep_tokens: true,
            quarantine: true,
        }
    }

    /// The counters of a beginning: the last token, lease and revision that count as given.
    fn counters(unix_minutes: u64, spread: u32) -> [u64; 3] {
        let numbers = FirstNumbers::Unclaimed { unix_minutes, spread };
        let beginning = NewBeginning { numbers, ..beginning(unix_minutes) };
        let (state, _) = old().begin_anew(beginning).unwrap();
        [state.last_token.0, state.last_lease.0, state.revision]
    }

    fn old() -> State {
        let mut state = State::new(ClusterId([7; 16]));
        state.revision = 70;
        state.last_token = Token(10);
        state.last_lease = LeaseId(20);
        state.last_member = MemberId(3);
        state
    }

    #[test]
    fn counters_move_beyond_all_that_may_have_happened() {
        let (state, member) = old().begin_anew(beginning(0)).unwrap();
        assert_eq!(
            (state.revision, state.last_token, state.last_lease),
            (70 + STEP, Token(10 + STEP), LeaseId(20 + STEP))
        );
        assert_eq!((member, state.members.len(), state.cluster), (MemberId(4), 1, ClusterId([9; 16])));
        let (state, _) = old().begin_anew(beginning(30_000_000)).unwrap();
        assert_eq!((state.revision, state.last_token), (30_000_000 * STEP, Token(30_000_000 * STEP)));
        // Again, with a clock that went back.
        let (again, member) = state.begin_anew(beginning(5)).unwrap();
        assert_eq!((again.last_token, member), (Token(30_000_001 * STEP), MemberId(5)));
    }

    #[test]
    fn a_cluster_of_several_begins_at_the_clocks_floor_with_all_of_them() {
        let node = |name: &str, number: u8| NodeInfo {
            name: NodeName::parse(name).unwrap(),
            identity: Some(NodeIdentity([number; 16])),
            ..beginning(0).node
        };
        let first = |unix_minutes| FirstMembers {
            cluster: ClusterId([9; 16]),
            nodes: vec![node("n1", 1), node("n2", 2), node("n3", 3)],
            unix_minutes,
            spread: 6,
        };
        let state = State::begin_together(first(30_000_000)).unwrap();
        let floor = 30_000_000 * STEP + 3;
        assert_eq!(
            (state.revision, state.last_token, state.last_lease),
            (floor, Token(floor), LeaseId(floor))
        );
        let members: Vec<u64> = state.members().map(|(member, _)| member.0).collect();
        assert_eq!((members, state.last_member), (vec![1, 2, 3], MemberId(3)));
        assert_eq!(State::decode_snapshot(&state.encode_snapshot()).unwrap(), state);
        assert!(State::begin_together(first(1 << 31)).is_err());
    }

    #[test]
    fn two_beginnings_of_one_minute_are_apart_and_a_later_minute_lies_above_both() {
        const MINUTE: u64 = 30_000_001;
        let [lowest, highest] = [0, u32::MAX].map(|spread| counters(MINUTE, spread));
        for (lowest, highest) in lowest.into_iter().zip(highest) {
            assert_eq!((lowest, highest), (MINUTE * STEP, MINUTE * STEP + STEP / 2 - 1));
        }
        // Room for 2^31 grants until then.
        assert!(counters(MINUTE + 1, 0)[0] > highest[0] + STEP / 2);
        // Epochs that are claimed in a store are multiples of 1024 minutes, the next one from now on.
        assert!(MINUTE.next_multiple_of(1024) * STEP > highest[0] + STEP / 2);
        // With a clock that is behind, too.
        assert_eq!(counters(0, 2)[0], counters(0, 0)[0] + 1);
    }

    #[test]
    fn with_an_epoch_all_counters_begin_at_its_first_number() {
        let epoch = Epoch::new(29_900_800).unwrap();
        let claimed = NewBeginning { numbers: FirstNumbers::Claimed(epoch), ..beginning(0) };
        let (state, _) = old().begin_anew(claimed.clone()).unwrap();
        let first = 29_900_800 * STEP;
        assert_eq!(
            (state.revision, state.last_token, state.last_lease),
            (first, Token(first), LeaseId(first))
        );
        assert_eq!((state.epoch(), state.is_in_quarantine()), (Some(epoch), true));
        let bytes = state.encode_snapshot();
        assert_eq!(bytes[..2], [0x08, 5]);
        assert_eq!(State::decode_snapshot(&bytes).as_ref(), Ok(&state));
        // A replica that forgot the epoch would be noticed, and one whose counters are below it is none.
        assert_ne!(State { epoch: None, ..state.clone() }.digest(), state.digest());
        let low = State { last_token: Token(first - 1), ..state.clone() };
        assert!(State::decode_snapshot(&low.encode_snapshot()).is_err());
        // What stands above it already was not known to who claimed it.
        for beyond in [
            State { last_token: Token(first), ..old() },
            State { last_lease: LeaseId(first + 7), ..old() },
            State { revision: first, ..old() },
        ] {
            assert_eq!(beyond.begin_anew(claimed.clone()), Err(CountersSpent));
        }
    }

    #[test]
    fn a_counter_that_cannot_move_is_refused() {
        assert_eq!(old().begin_anew(beginning(u64::MAX)), Err(CountersSpent));
        assert_eq!(old().begin_anew(beginning(1 << 31)), Err(CountersSpent));
        let spent = State { last_token: Token(u64::MAX), ..old() };
        assert_eq!(spent.begin_anew(beginning(0)), Err(CountersSpent));
    }

    #[test]
    fn quarantine_is_in_the_snapshot_and_only_then_is_it_of_a_newer_version() {
        let (mut state, _) = old().begin_anew(beginning(0)).unwrap();
        let bytes = state.encode_snapshot();
        assert_eq!(bytes[..2], [0x08, 3]);
        assert_eq!(State::decode_snapshot(&bytes).unwrap(), state);
        let applied = state.apply(state.revision + 1, 1, &Command::EndQuarantine);
        assert_eq!(applied.reply, Ok(Reply::QuarantineEnded));
        assert_eq!(state.encode_snapshot()[..2], [0x08, 2]);
    }
}
