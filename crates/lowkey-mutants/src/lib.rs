//! Rules that can be switched off, so that the simulator can show that it would notice. For tests only.
//!
//! A rule asks for its [`Mutant`] where it is kept, after the rule itself:
//!
//! ```
//! # let (decided_term, term) = (1, 2);
//! if decided_term != term && !lowkey_mutants::EXPIRY_WITHOUT_THE_TERM_CHECK.is_active() {
//!     // The decision does not count.
//! }
//! ```
//!
//! - Every mutant is declared here, once; the hunt in `lowkey-sim` goes through [`ALL`].
//! - Without the feature `switchable`, which nothing but `lowkey-sim` ever asks for,
//!   [`Mutant::is_active`] is a constant `false`, and no trace of this is left in what is built.
//! - This crate has no dependencies: the log asks it too, and knows nothing of locks.
//!
//! `docs/internals/simulator.md` lists the mutants, and what catches each.

use Caught::{ByScenario, BySeeds, Never};

/// One rule that can be switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// What is wrong while it is active, in words.
    pub name: &'static str,
    /// What is expected to notice it.
    pub caught: Caught,
}

/// What notices that a rule is switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caught {
    /// One of the first worlds of the simulator.
    BySeeds,
    /// No seed of the first 200 has caught it: a scenario does, and is asked first.
    ByScenario,
    /// Nothing: it breaks no promise as things are.
    Never,
}

/// Declares each mutant as a constant, and [`ALL`] of them in this order.
macro_rules! mutants {
    ($($constant:ident: $caught:ident, $name:literal;)*) => {
        $(
            #[doc = concat!("The mutant `", $name, "`.")]
            pub const $constant: Mutant = Mutant { name: $name, caught: $caught };
        )*

        /// Every mutant that there is.
        pub const ALL: &[Mutant] = &[$($constant),*];
    };
}

mutants! {
    // R1 to R4: the leader's memory of deadlines.
    RENEWAL_WITHOUT_A_QUORUM_ROUND: BySeeds, "renewal without a quorum round";
    A_ROUND_IS_JOINED_LATE: ByScenario, "a round is joined late";
    REUSED_READINDEX_CONTEXT: ByScenario, "reused ReadIndex context";
    ROUNDS_SURVIVE_A_CHANGE_OF_LEAD: BySeeds, "rounds survive a change of lead";
    ARRIVAL_TAKEN_FROM_THE_TICK: BySeeds, "arrival taken from the tick";
    NO_RE_ARM_ON_ELECTION: BySeeds, "no re-arm on election";
    RE_ARM_BEFORE_THE_NO_OP: BySeeds, "re-arm before the no-op";
    AN_EXPIRING_LEASE_IS_RENEWED: BySeeds, "an expiring lease is renewed";
    // R6 and R9: what a client believes.
    VALIDITY_COUNTED_FROM_THE_REPLY: BySeeds, "validity counted from the reply";
    RENEWAL_COUNTED_FROM_THE_REPLY: BySeeds, "renewal counted from the reply";
    VALIDITY_COUNTED_FROM_THE_RETRY: BySeeds, "validity counted from the retry";
    AN_ANSWER_IS_CREDITED_TO_THE_LATEST_SEND: BySeeds, "an answer is credited to the latest send";
    BELIEF_ENDS_WHEN_THE_RELEASE_IS_ANSWERED: BySeeds, "belief ends when the release is answered";
    AN_ACQUIRE_UNDER_WAY_IS_RELEASED: BySeeds, "an acquire under way is released";
    // R5 and the state machine.
    A_CLOCK_IN_APPLY: BySeeds, "a clock in apply";
    TOKEN_FROM_MEMORY_INSTEAD_OF_STATE: BySeeds, "token from memory instead of state";
    GRANT_WITHOUT_A_LEASE_CHECK: BySeeds, "grant without a lease check";
    A_HELD_LOCK_IS_GRANTED_AGAIN: BySeeds, "a held lock is granted again";
    RELEASE_WITHOUT_TOKEN_CHECK: BySeeds, "release without token check";
    REQUESTS_OF_A_LEASE_ARE_NOT_REMEMBERED: BySeeds, "requests of a lease are not remembered";
    REQUESTS_THAT_MAKE_LEASES_ARE_NOT_REMEMBERED: BySeeds, "requests that make leases are not remembered";
    SNAPSHOT_WITHOUT_THE_COUNTER: BySeeds, "snapshot without the counter";
    SNAPSHOT_WITHOUT_THE_REQUESTS_OF_LEASES: BySeeds, "snapshot without the requests of leases";
    SNAPSHOT_WITHOUT_REQUESTS_THAT_MADE_LEASES: BySeeds, "snapshot without requests that made leases";
    SNAPSHOT_WITHOUT_WAITS: BySeeds, "snapshot without waits";
    SNAPSHOT_WITHOUT_VALUES: BySeeds, "snapshot without values";
    // Queues: who is in whose way, and whose turn it is.
    A_NEWCOMER_OVERTAKES: BySeeds, "a newcomer overtakes";
    SHARERS_ADMIT_AN_EXCLUSIVE_HOLDER: BySeeds, "sharers admit an exclusive holder";
    A_FREED_LOCK_IS_NOT_HANDED_OVER: BySeeds, "a freed lock is not handed over";
    THE_LAST_IN_LINE_GOES_FIRST: BySeeds, "the last in line goes first";
    A_SUBTREE_ABOVE_IS_NOT_SEEN: BySeeds, "a subtree above is not seen";
    A_SUBTREE_DOES_NOT_SEE_WHAT_IS_BELOW: BySeeds, "a subtree does not see what is below";
    A_PREFIX_COUNTS_AS_A_PARENT: BySeeds, "a prefix counts as a parent";
    A_RETRY_TAKES_A_SECOND_PLACE: BySeeds, "a retry takes a second place";
    WAITERS_OUTLIVE_THEIR_LEASE: BySeeds, "waiters outlive their lease";
    A_LOCK_IS_HANDED_TO_WHO_ENDS_IN_THE_SAME_ENTRY: BySeeds, "a lock is handed to who ends in the same entry";
    // R7 and R10: waiting.
    THE_WHOLE_WAIT_IS_COUNTED: BySeeds, "the whole wait is counted";
    A_GRANT_EXTENDS_ITS_LEASE: BySeeds, "a grant extends its lease";
    A_NEW_LEADER_OVERSTATES_WAITS: BySeeds, "a new leader overstates waits";
    THE_TIME_OF_A_WAITING_LEASE_RUNS: BySeeds, "the time of a waiting lease runs";
    A_LEASE_OUTLIVES_THE_WAIT_THAT_MADE_IT: BySeeds, "a lease outlives the wait that made it";
    A_CANCELLATION_ENDS_A_GRANT: BySeeds, "a cancellation ends a grant";
    A_GIVEN_UP_ACQUIRE_IS_GRANTED_LATER: BySeeds, "a given-up acquire is granted later";
    A_TIMEOUT_IS_TOLD_BEFORE_ITS_ENTRY: BySeeds, "a timeout is told before its entry";
    WHO_COMES_BACK_IS_TOLD_OF_THE_TIMEOUT: ByScenario, "who comes back is told of the timeout";
    THE_PLACE_OF_A_GONE_CALLER_IS_KEPT: ByScenario, "the place of a gone caller is kept";
    THE_PLACE_OF_A_GONE_CALLER_IS_CANCELLED_AT_ONCE: ByScenario, "the place of a gone caller is cancelled at once";
    A_NEW_LEADER_GIVES_WAITERS_NO_TIME: ByScenario, "a new leader gives waiters no time";
    A_CHANGE_OF_LEAD_IS_NOT_TOLD_TO_WAITERS: BySeeds, "a change of lead is not told to waiters";
    A_WAITER_IS_NOT_TOLD_THAT_ITS_LEASE_IS_GONE: BySeeds, "a waiter is not told that its lease is gone";
    // Grants that last for a limited time.
    A_HOLD_IS_ENDED_EARLY: ByScenario, "a hold is ended early";
    A_HOLD_COUNTS_FROM_THE_REPLY: BySeeds, "a hold counts from the reply";
    A_LIMITED_GRANT_IS_GIVEN_AGAIN: BySeeds, "a limited grant is given again";
    A_NEW_LEADER_TIMES_NO_HOLDS: ByScenario, "a new leader times no holds";
    THE_END_OF_A_HOLD_TAKES_A_LATER_GRANT: ByScenario, "the end of a hold takes a later grant";
    SNAPSHOT_WITHOUT_LIMITS: BySeeds, "snapshot without limits";
    // Watches.
    A_RESUMED_WATCH_REPEATS_AN_EVENT: BySeeds, "a resumed watch repeats an event";
    A_WATCH_SKIPS_THE_REST_OF_A_REVISION: BySeeds, "a watch skips the rest of a revision";
    A_COMPACTED_POSITION_IS_NOT_REFUSED: BySeeds, "a compacted position is not refused";
    // What a caller may be told, and when.
    REPLY_BEFORE_COMMIT: BySeeds, "reply before commit";
    REPLY_BEFORE_SYNC: BySeeds, "reply before sync";
    A_REFUSED_PROPOSAL_IS_ANSWERED_AS_DONE: BySeeds, "a refused proposal is answered as done";
    ANOTHER_ENTRYS_OUTCOME_IS_ANSWERED: BySeeds, "another entry's outcome is answered";
    READ_WITHOUT_READINDEX: BySeeds, "read without ReadIndex";
    REFUSAL_WITHOUT_READINDEX: BySeeds, "refusal without ReadIndex";
    // What must be on disk.
    VOTE_NOT_PERSISTED: ByScenario, "vote not persisted";
    LOG_SYNC_SKIPPED: BySeeds, "log sync skipped";
    RECOVERY_BELIEVES_THE_PAGE_CACHE: BySeeds, "recovery believes the page cache";
    LOG_CUT_BEFORE_ITS_SNAPSHOT_IS_ON_DISK: BySeeds, "log cut before its snapshot is on disk";
    AN_ENTRY_IS_LEFT_OUT_OF_A_SNAPSHOTS_MAKING: BySeeds, "an entry is left out of a snapshot's making";
    A_LONE_VOTER_SPEAKS_BEFORE_ITS_VOTE_IS_ON_DISK: BySeeds, "a lone voter speaks before its vote is on disk";
    // Who belongs to the cluster.
    A_LEADER_PROPOSES_ITS_OWN_REMOVAL: BySeeds, "a leader proposes its own removal";
    A_LEADER_APPLIES_THAT_IT_IS_GONE: ByScenario, "a leader applies that it is gone";
    A_REMOVAL_MAY_COST_THE_QUORUM: ByScenario, "a removal may cost the quorum";
    REMOVED_BEFORE_THE_CONFIGURATION_CHANGED: BySeeds, "removed before the configuration changed";
    AN_INVITATION_WORKS_TWICE: ByScenario, "an invitation works twice";
    A_NODES_KEY_CAN_BE_CHANGED: ByScenario, "a node's key can be changed";
    // Who may do what.
    A_GRANT_COVERS_WHAT_BEGINS_LIKE_IT: ByScenario, "a grant covers what begins like it";
    THE_LAST_ADMIN_CAN_GO: ByScenario, "the last admin can go";
    A_TOKENS_ID_IS_ENOUGH: ByScenario, "a token's id is enough";
    ANYBODYS_LEASES_ARE_TOUCHED: ByScenario, "anybody's leases are touched";
    A_REVOKED_TOKEN_GOES_ON: ByScenario, "a revoked token goes on";
    SNAPSHOT_WITHOUT_THE_SWITCH: ByScenario, "snapshot without the switch";
    SNAPSHOT_WITHOUT_THE_SCHEDULE: ByScenario, "snapshot without the schedule";
    THE_LEADER_BELIEVES_WHO_FORWARDS: ByScenario, "the leader believes who forwards";
    // Replicas that drift apart.
    A_MINORITY_GOES_ON: ByScenario, "a minority goes on";
    A_MINORITY_TAKES_NO_SNAPSHOT: ByScenario, "a minority takes no snapshot";
    WITHOUT_A_MAJORITY_ALL_GO_ON: ByScenario, "without a majority all go on";
    ONE_OTHER_DIGEST_IS_A_MAJORITY: ByScenario, "one other digest is a majority";
    // Timing that adapts.
    THE_TIMING_FACTOR_IS_NEVER_TOLD: ByScenario, "the timing factor is never told";
    THE_TIMING_FACTOR_IS_NEVER_TAKEN_BACK: ByScenario, "the timing factor is never taken back";
    R8_IS_STRETCHED: ByScenario, "R8 is stretched";
    THE_TICK_STRETCHES_R8: ByScenario, "the tick stretches R8";
    A_STALL_IS_NOT_GIVEN_BACK: ByScenario, "a stall is not given back";
    // What is kept of grants that are over.
    A_SNAPSHOT_IS_SAVED_BEFORE_ITS_AUDIT: BySeeds, "a snapshot is saved before its audit";
    AN_END_IS_STAMPED_WITH_ITS_GRANTS_TIME: BySeeds, "an end is stamped with its grant's time";
    // A cluster that began anew.
    A_LOCK_IS_GRANTED_IN_QUARANTINE: ByScenario, "a lock is granted in quarantine";
    QUARANTINE_ENDS_AT_ONCE: ByScenario, "quarantine ends at once";
    // Several nodes that found a cluster together.
    A_MAJORITY_FOUNDS: ByScenario, "a majority founds";
    A_WIPED_NODE_FOUNDS_AGAIN: ByScenario, "a wiped node founds again";
    A_PROMISE_IS_TOLD_BEFORE_IT_IS_ON_DISK: ByScenario, "a promise is told before it is on disk";
    A_PROMISE_IS_GIVEN_UP_ALONE: ByScenario, "a promise is given up alone";
    A_RESTORE_GOES_ON_COUNTING: ByScenario, "a restore goes on counting";
    AN_EPOCH_IS_NOT_CLAIMED: ByScenario, "an epoch is not claimed";
    // Groups that are split.
    A_NEW_GROUP_FORGETS_THE_COUNTER: ByScenario, "a new group forgets the counter";
    A_NEW_GROUP_KNOWS_NO_REQUESTS: ByScenario, "a new group knows no requests";
    A_NAME_THAT_MOVED_IS_GRANTED: ByScenario, "a name that moved is granted";
    A_SUBTREE_ACROSS_A_BOUNDARY_IS_GRANTED: ByScenario, "a subtree across a boundary is granted";
    A_SPLIT_MOVES_WHAT_IS_HELD: ByScenario, "a split moves what is held";
    LEASE_IDS_OF_TWO_GROUPS_COLLIDE: ByScenario, "lease ids of two groups collide";
    // What breaks no promise as things are: `docs/internals/simulator.md` says why.
    EXPIRY_WITHOUT_THE_TERM_CHECK: Never, "expiry without the term check";
    A_HOLD_IS_ENDED_BY_AN_OLD_TERM: Never, "a hold is ended by an old term";
    MEMBERS_CHANGE_BEFORE_THE_COMMIT_IS_DURABLE: Never, "members change before the commit is durable";
}

/// The mutant of this name.
pub fn named(name: &str) -> Option<Mutant> {
    ALL.iter().copied().find(|mutant| mutant.name == name)
}

#[cfg(not(feature = "switchable"))]
impl Mutant {
    /// True if this rule is broken on purpose, on this thread.
    #[inline]
    pub const fn is_active(self) -> bool {
        false
    }
}

/// A count that is in no log and in no snapshot.
#[cfg(not(feature = "switchable"))]
pub const fn count_in_memory() -> u64 {
    0
}

#[cfg(feature = "switchable")]
pub use switched::{activate, count_in_memory};

#[cfg(feature = "switchable")]
mod switched {
    use std::cell::Cell;

    use super::Mutant;

    thread_local! {
        static ACTIVE: Cell<Option<Mutant>> = const { Cell::new(None) };
        static COUNT: Cell<u64> = const { Cell::new(0) };
    }

    /// Breaks this rule on this thread, and keeps all others.
    pub fn activate(mutant: Option<Mutant>) {
        ACTIVE.set(mutant);
        COUNT.set(0);
    }

    impl Mutant {
        /// True if this rule is broken on purpose, on this thread.
        pub fn is_active(self) -> bool {
            ACTIVE.get() == Some(self)
        }
    }

    /// A count that is in no log and in no snapshot.
    pub fn count_in_memory() -> u64 {
        COUNT.set(COUNT.get() + 1);
        COUNT.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_means_one_mutant() {
        for mutant in ALL {
            assert_eq!(ALL.iter().filter(|other| other.name == mutant.name).count(), 1, "{}", mutant.name);
        }
    }
}
