//! What anyone knew when: between what was told before a call began and what was asked for after it
//! ended lies all that its answer may say.

use std::collections::BTreeMap;

use lowkey_core::Token;

use super::Grant;
use crate::history::{Answer, Asked, History, Outcome};

/// What anyone knew when.
pub(super) struct Known {
    /// The highest revision that anyone had been told of by a time.
    told: Vec<(u64, u64)>,
    /// The lowest revision of an effect that was asked for from a time on.
    asked: Vec<(u64, u64)>,
}

impl Known {
    pub(super) fn new(history: &History, grants: &BTreeMap<Token, Grant>) -> Self {
        let mut told = Vec::new();
        let mut asked = Vec::new();
        for call in &history.calls {
            let (revision, is_effect) = match (&call.outcome, &call.asked) {
                (Outcome::Yes(Answer::Granted { revision, .. }), _) => (*revision, true),
                (Outcome::Yes(Answer::Done), Asked::Release { token, .. }) => {
                    let freed = grants.get(token).and_then(|grant| grant.freed.as_ref());
                    (freed.map_or(0, |freed| freed.revision), true)
                }
                (
                    Outcome::Yes(Answer::Lock { revision, .. } | Answer::Locks { revision, .. }),
                    Asked::Get { stale: false, .. } | Asked::List { stale: false, .. },
                ) => (*revision, false),
                _ => continue,
            };
            told.push((call.ended, revision));
            if is_effect && !call.again && revision > 0 {
                asked.push((call.invoked, revision));
            }
        }
        told.sort_unstable();
        asked.sort_unstable();
        let mut highest = 0;
        for (_, revision) in &mut told {
            highest = highest.max(*revision);
            *revision = highest;
        }
        let mut lowest = u64::MAX;
        for (_, revision) in asked.iter_mut().rev() {
            lowest = lowest.min(*revision);
            *revision = lowest;
        }
        Self { told, asked }
    }

    /// The highest revision that anyone had been told of before a time.
    pub(super) fn before(&self, time: u64) -> u64 {
        let at = self.told.partition_point(|(ended, _)| *ended < time);
        at.checked_sub(1).map_or(0, |at| self.told[at].1)
    }

    /// The lowest revision of what was asked for after a time.
    pub(super) fn after(&self, time: u64) -> u64 {
        let at = self.asked.partition_point(|(invoked, _)| *invoked <= time);
        self.asked.get(at).map_or(u64::MAX, |(_, revision)| *revision)
    }
}
