//! The base of Raft's timing: a setting of the whole cluster, which every node is started with.
//!
//! `raft` counts in ticks of its own: 5 from one heartbeat to the next, 20 to 40 without a leader until a node stands for
//! election. While all is calm it sees one of them each [`RaftTick`]. Far apart zones need a longer one, and then wait
//! longer until they miss a leader that died.
//!
//! - No rule R1–R10 reads it. The replica itself is ticked every 10 ms in any case: deadlines, cancellations and R8 count
//!   true time.
//! - Nodes with different ones do not hear each other (`peers/hello.rs` in the server): one that is less patient would
//!   unseat leaders that the others still wait for.
//! - A node that tells none is one of before, when it could not be set: it has the shortest.

use std::fmt;

use crate::time::MILLISECOND;

/// How far apart `raft` sees ticks while all is calm: 10 to 100 ms, in whole steps of 10 ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaftTick {
    /// How many ticks of the replica make one of `raft`: from 1 to [`Self::STEPS_MAX`].
    steps: u32,
}

impl RaftTick {
    /// What it was before it could be set.
    pub const SHORTEST: Self = Self { steps: 1 };
    /// The step from one to the next: how often a replica is ticked.
    pub(crate) const STEP_NANOS: u64 = Self::STEP_MS * MILLISECOND;
    const STEP_MS: u64 = 10;
    const STEPS_MAX: u64 = 10;

    /// So many milliseconds, if that is one of the possible values.
    pub fn from_millis(ms: u64) -> Option<Self> {
        let steps = ms / Self::STEP_MS;
        let is_possible = ms.is_multiple_of(Self::STEP_MS) && (1..=Self::STEPS_MAX).contains(&steps);
        is_possible.then_some(Self { steps: steps as u32 })
    }

    /// What another node tells: so many milliseconds, or 0 if it tells nothing.
    pub fn told(ms: u32) -> Option<Self> {
        match ms {
            0 => Some(Self::SHORTEST),
            ms => Self::from_millis(ms.into()),
        }
    }

    /// As it is told.
    pub fn tell(self) -> u32 {
        self.steps * Self::STEP_MS as u32
    }

    /// In milliseconds.
    pub fn millis(self) -> u64 {
        u64::from(self.steps) * Self::STEP_MS
    }

    /// How many ticks of the replica make one of `raft`.
    pub(crate) fn steps(self) -> u32 {
        self.steps
    }
}

impl Default for RaftTick {
    fn default() -> Self {
        Self::SHORTEST
    }
}

impl fmt::Display for RaftTick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", self.millis())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_steps_up_to_a_tenth_of_a_second_are_possible() {
        for ms in (10..=100).step_by(10) {
            let tick = RaftTick::from_millis(ms).unwrap();
            assert_eq!(RaftTick::told(tick.tell()), Some(tick));
            assert_eq!((tick.millis(), tick.to_string()), (ms, format!("{ms}ms")));
        }
        assert_eq!(RaftTick::told(0), Some(RaftTick::SHORTEST));
        for ms in [0, 1, 5, 15, 99, 101, 110, 1_000, u64::MAX] {
            assert_eq!(RaftTick::from_millis(ms), None, "{ms}");
        }
        assert_eq!(RaftTick::default().millis(), 10);
    }
}
