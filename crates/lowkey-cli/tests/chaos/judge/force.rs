//! Locks that were taken from their holders by somebody else. Such a holder cannot know at once: it may believe
//! until its next renewal, and others may hold meanwhile. It must not believe for longer.

use std::collections::HashMap;

use lowkey_api::v1::EventType;
use lowkey_core::{LeaseId, Token};

use super::{Judge, SLACK_NANOS, SLACK_OF_PATHS_NANOS};
use crate::history::{Answer, Asked, Belief, History, MILLISECOND, Outcome, Renewal};

/// One call that may have taken something.
#[derive(Clone, Copy, Debug)]
pub(super) struct Force {
    /// It had no effect before.
    pub(super) invoked: u64,
    /// It had its effect by then, if that is known.
    done: Option<u64>,
}

/// All that was taken by force.
#[derive(Default)]
pub(super) struct Forces {
    tokens: HashMap<Token, Vec<Force>>,
    leases: HashMap<LeaseId, Vec<Force>>,
}

impl Forces {
    pub(super) fn new(history: &History) -> Self {
        let mut forces = Self::default();
        for call in &history.calls {
            let done = match &call.outcome {
                Outcome::Yes(Answer::Done) => Some(call.ended),
                Outcome::Unknown(_) => None,
                _ => continue,
            };
            let force = Force { invoked: call.invoked, done };
            match &call.asked {
                Asked::ForceRelease { token, .. } => forces.tokens.entry(*token).or_default().push(force),
                Asked::ForceRevoke { lease } => forces.leases.entry(*lease).or_default().push(force),
                _ => {}
            }
        }
        forces
    }

    /// Somebody may have ended the lease before a time.
    pub(super) fn is_revoked(&self, lease: LeaseId, time: u64) -> bool {
        self.leases.get(&lease).is_some_and(|forces| forces.iter().any(|force| force.invoked < time))
    }
}

impl Judge<'_> {
    /// How long a client may take to act on what it was told.
    pub(super) fn slack_nanos(&self) -> u64 {
        if self.history.is_calm { SLACK_NANOS } else { SLACK_OF_PATHS_NANOS }
    }

    /// The call that ended a grant, if that was not its holder's, and when it was certainly done.
    pub(super) fn forced(&self, token: Token) -> Option<(Force, u64)> {
        let grant = self.grants.get(&token)?;
        let freed = grant.freed.as_ref()?;
        let forces = match freed.how {
            EventType::Released => self.forces.tokens.get(&token)?,
            EventType::Revoked => self.forces.leases.get(&grant.lease)?,
            _ => return None,
        };
        let force = forces.iter().filter(|force| force.invoked < freed.seen).min_by_key(|f| f.invoked)?;
        Some((*force, force.done.map_or(freed.seen, |done| done.min(freed.seen))))
    }

    /// The first acknowledged renewal of a lease that was sent at a time or later.
    pub(super) fn renewal_after(&self, lease: LeaseId, time: u64) -> Option<&Renewal> {
        self.history.renewals.get(&lease)?.iter().find(|renewal| renewal.sent >= time)
    }

    /// Until when a belief stands for itself: what was taken by force, others may hold.
    pub(super) fn stands_until(&self, belief: &Belief) -> u64 {
        self.forced(belief.token).map_or(belief.until, |(force, _)| belief.until.min(force.invoked))
    }

    /// Who renews and says what it holds knows with the next renewal that it was taken.
    pub(super) fn force_is_noticed(&mut self) {
        let history = self.history;
        for belief in &history.beliefs {
            let Some(every) = belief.renews_every else { continue };
            let (Some((_, done)), Some(lease)) = (self.forced(belief.token), belief.claim.lease) else {
                continue;
            };
            let renewed = self.renewal_after(lease, done).map(|renewal| renewal.acknowledged);
            let due = history.is_calm.then_some(done + every);
            let Some(known) = renewed.into_iter().chain(due).min() else { continue };
            if belief.until > known + self.slack_nanos() {
                let what = format!(
                    "{} lost {} (token {}) by force, should have known {} ms later, and believed for {} ms",
                    belief.owner,
                    belief.claim.lock,
                    belief.token,
                    (known - done) / MILLISECOND,
                    (belief.until - done) / MILLISECOND
                );
                self.broken("force", Some(done), Some(&belief.claim.lock), what);
            }
        }
    }

    /// A resource refuses nobody who believes, but for those whose lock was taken.
    pub(super) fn writes_in_belief(&mut self) {
        let history = self.history;
        for refused in &history.refused {
            let is_forced = self.forced(refused.token).is_some_and(|(force, _)| force.invoked < refused.at);
            if !is_forced {
                let violation = &refused.violation;
                self.broken(violation.invariant, Some(refused.at), None, violation.what.clone());
            }
        }
    }
}
