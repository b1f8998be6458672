//! Where the counters of a cluster begin that takes the place of another one.
//!
//! Such a cluster, restored or recovered, does not know what the one before it granted last. So it does not go on
//! counting: it takes an *epoch*, and all its counters (tokens, leases, revisions) begin at the first number of that
//! epoch.
//!
//! - **An epoch is claimed, not computed.** [`Epoch::above`] only proposes one. Whoever wants it creates a file with
//!   its number in a place that all restores share, on the condition that there is none yet. So two clusters never
//!   have the same epoch, also if both were restored in the same second, from the same backup.
//! - **Counters begin at exactly the first number**, with no `max` of what was before: that would lead out of what
//!   was claimed, and two clusters could meet there.
//! - **Epochs are 2^32 numbers each, and those that are claimed lie 1024 apart**, so a cluster has 2^42 numbers until the
//!   next one could begin: at 10,000 grants in a second, fourteen years. The epoch is a floor, and no part of the
//!   token: the upper half of a token does not tell whose it is.
//! - **Numbers fit into a signed 64-bit integer**, as databases have them.

use std::fmt;

use crate::mutants;

/// Bits of the numbers within one epoch.
const BITS: u32 = 32;

/// How far two claims are apart.
const STEP: u64 = 1024;

/// The last epoch that can be claimed: all numbers up to the next one are positive as signed integers.
const MAX: u64 = (1 << 31) - STEP;

/// How many numbers may have been used that nobody here knows of.
const UNKNOWN_USES: u64 = STEP << BITS;

/// The epoch of a cluster that took the place of another: see the top of this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(u64); // 0 < it <= MAX, a multiple of STEP

/// What is known where an epoch is to be claimed. Any of it may be wrong or old, and none of it is needed: the highest
/// counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpochsKnown {
    /// The clock here, in minutes since 1970.
    pub own_minutes: u64,
    /// The store's clock.
    pub store_minutes: u64,
    /// When the newest backup in the store was made.
    pub backup_minutes: u64,
    /// The highest epoch that was ever claimed there.
    pub claimed: Option<Epoch>,
    /// The highest counter of any group in any backup, or of what is recovered.
    pub highest_counter: u64,
}

/// No epoch is left above what is known: some clock is wrong by thousands of years.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochsSpent;

impl fmt::Display for EpochsSpent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "fencing tokens cannot be raised as far as they would have to be: set the clock of this machine right, and \
             try again",
        )
    }
}

impl std::error::Error for EpochsSpent {}

impl Epoch {
    /// The epoch of this number; `None` if it is none that is ever claimed.
    pub fn new(number: u64) -> Option<Self> {
        (number > 0 && number <= MAX && number.is_multiple_of(STEP)).then_some(Self(number))
    }

    /// Its number.
    pub fn number(self) -> u64 {
        self.0
    }

    /// Where the counters begin: the first token is one above.
    pub fn first_counter(self) -> u64 {
        self.0 << BITS
    }

    /// The lowest epoch that can be claimed above all that is known. If somebody else has claimed it meanwhile, ask again
    /// with what is known then.
    pub fn above(known: &EpochsKnown) -> Result<Self, EpochsSpent> {
        let EpochsKnown { own_minutes, store_minutes, backup_minutes, claimed, highest_counter } = *known;
        let counted = highest_counter.checked_add(UNKNOWN_USES).ok_or(EpochsSpent)?.div_ceil(1 << BITS);
        let behind_claimed = claimed.map_or(0, |claimed| claimed.0 + STEP);
        let lowest = own_minutes.max(store_minutes).max(backup_minutes).max(behind_claimed).max(counted);
        Self::at_least(lowest)
    }

    /// The epoch of a cluster that is founded after everything was lost, and no place is left where one could be claimed:
    /// the clock is all that there is.
    pub fn after_total_loss(unix_minutes: u64) -> Result<Self, EpochsSpent> {
        let here = Self::at_least(unix_minutes.max(1))?;
        Self::at_least(here.0 + STEP)
    }

    fn at_least(lowest: u64) -> Result<Self, EpochsSpent> {
        lowest.checked_next_multiple_of(STEP).and_then(Self::new).ok_or(EpochsSpent)
    }
}

/// The claim of an epoch, on its way: which one to create next, until one could be created.
///
/// The caller does the creating, and only that: what comes of it is decided here.
#[derive(Clone, Debug)]
pub struct Claim {
    known: EpochsKnown,
}

impl Claim {
    /// Begins with what is known.
    pub fn new(known: EpochsKnown) -> Self {
        Self { known }
    }

    /// The epoch to create, on the condition that nobody has.
    pub fn wanted(&self) -> Result<Epoch, EpochsSpent> {
        Epoch::above(&self.known)
    }

    /// What came of creating this epoch: it is ours, or somebody else's, and another one is wanted.
    pub fn settle(&mut self, epoch: Epoch, is_created: bool) -> Option<Epoch> {
        self.known.claimed = self.known.claimed.max(Some(epoch));
        (is_created || mutants::AN_EPOCH_IS_NOT_CLAIMED.is_active()).then_some(epoch)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, proptest};

    use super::*;

    /// A minute of the year 2026.
    const NOW: u64 = 29_900_000;

    #[test]
    fn an_epoch_is_rounded_up_and_its_counters_begin_at_its_first_number() {
        let epoch = Epoch::above(&EpochsKnown { own_minutes: NOW, ..EpochsKnown::default() }).unwrap();
        assert_eq!(epoch.number(), 29_900_800);
        assert_eq!(epoch.first_counter(), 29_900_800 << 32);
        // On a round minute it is that minute.
        let round = EpochsKnown { own_minutes: epoch.number(), ..EpochsKnown::default() };
        assert_eq!(Epoch::above(&round), Ok(epoch));
    }

    #[test]
    fn a_claim_in_the_same_minute_gets_the_next_epoch() {
        let first = Epoch::above(&EpochsKnown { own_minutes: NOW, ..EpochsKnown::default() }).unwrap();
        let known = EpochsKnown { own_minutes: NOW, claimed: Some(first), ..EpochsKnown::default() };
        assert_eq!(Epoch::above(&known).unwrap().number(), first.number() + 1024);
        let mut claim = Claim::new(EpochsKnown { own_minutes: NOW, ..EpochsKnown::default() });
        assert_eq!(claim.settle(first, false), None);
        let second = claim.wanted().unwrap();
        assert_eq!((second.number(), claim.settle(second, true)), (first.number() + 1024, Some(second)));
    }

    #[test]
    fn a_clock_that_is_a_year_behind_does_not_lead_back() {
        let year = 365 * 24 * 60;
        let store = EpochsKnown { own_minutes: NOW - year, store_minutes: NOW, ..EpochsKnown::default() };
        assert!(Epoch::above(&store).unwrap().number() >= NOW);
        let backup = EpochsKnown { own_minutes: NOW - year, backup_minutes: NOW, ..EpochsKnown::default() };
        assert!(Epoch::above(&backup).unwrap().number() >= NOW);
        let counter = EpochsKnown { highest_counter: (NOW << 32) + 20_000, ..EpochsKnown::default() };
        assert!(Epoch::above(&counter).unwrap().first_counter() >= (NOW << 32) + 20_000 + (1 << 42));
    }

    #[test]
    fn a_cluster_after_a_total_loss_lies_above_what_could_have_been_claimed_until_now() {
        let claimed = Epoch::above(&EpochsKnown { own_minutes: NOW, ..EpochsKnown::default() }).unwrap();
        assert!(Epoch::after_total_loss(NOW).unwrap() > claimed);
        assert_eq!(Epoch::after_total_loss(0).unwrap().number(), 2048);
    }

    #[test]
    fn what_is_no_epoch_is_refused() {
        for number in [0, 1, 1023, 1025, MAX + 1, MAX + STEP, u64::MAX] {
            assert_eq!(Epoch::new(number), None, "{number}");
        }
        for known in [
            EpochsKnown { own_minutes: u64::MAX, ..EpochsKnown::default() },
            EpochsKnown { store_minutes: MAX + 1, ..EpochsKnown::default() },
            EpochsKnown { claimed: Epoch::new(MAX), ..EpochsKnown::default() },
            EpochsKnown { highest_counter: u64::MAX, ..EpochsKnown::default() },
            EpochsKnown { highest_counter: i64::MAX as u64, ..EpochsKnown::default() },
        ] {
            assert_eq!(Epoch::above(&known), Err(EpochsSpent), "{known:?}");
        }
        assert_eq!(Epoch::after_total_loss(u64::MAX), Err(EpochsSpent));
    }

    proptest! {
        /// Clocks go anywhere, and so do counters; claims only rise, and leave room between them.
        #[test]
        fn claims_one_after_the_other_rise_and_leave_room(
            clocks in proptest::collection::vec((0..1_u64 << 30, 0..1_u64 << 30, 0..1_u64 << 30, 0..1_u64 << 62), 1..20)
        ) {
            let mut claimed: Option<Epoch> = None;
            for (own_minutes, store_minutes, backup_minutes, highest_counter) in clocks {
                let known = EpochsKnown { own_minutes, store_minutes, backup_minutes, claimed, highest_counter };
                let Ok(epoch) = Epoch::above(&known) else {
                    prop_assert!(highest_counter.max(claimed.map_or(0, Epoch::first_counter)) > 1 << 61);
                    continue;
                };
                prop_assert!(epoch.first_counter() >= highest_counter + (1 << 42));
                prop_assert!(epoch.number() >= own_minutes.max(store_minutes).max(backup_minutes));
                prop_assert!(claimed.is_none_or(|before| epoch.first_counter() >= before.first_counter() + (1 << 42)));
                prop_assert!(epoch.first_counter() + (1 << 42) - 1 <= i64::MAX as u64);
                claimed = Some(epoch);
            }
        }
    }
}
