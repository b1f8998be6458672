//! Grants that nobody has a guard for. A copy of an acquire may arrive after its client gave it up: then a
//! session that lives would renew, for ever, a lock that nobody holds.

use super::known::Known;
use super::{Grant, Judge};
use crate::history::{Answer, Asked, LetGo, MILLISECOND, Outcome};

impl Judge<'_> {
    /// What was let go is released with the next renewal at the latest.
    pub(super) fn nothing_is_held_by_nobody(&mut self) {
        let history = self.history;
        let mut found = Vec::new();
        for let_go in &history.let_go {
            for token in self.granted.get(let_go.request.as_str()).into_iter().flatten() {
                let grant = &self.grants[token];
                if let Some(age) = self.orphan_nanos(let_go, grant) {
                    let what = format!(
                        "{} has no guard for {} (token {token}), and its session renewed it for {} ms",
                        let_go.owner,
                        grant.lock,
                        age / MILLISECOND
                    );
                    found.push((let_go.at, grant.lock.clone(), what));
                }
            }
        }
        for (at, lock, what) in found {
            self.broken("orphans", Some(at), Some(&lock), what);
        }
    }

    /// For how long the session went on with a grant that nobody had a guard for, if that was too long.
    fn orphan_nanos(&self, let_go: &LetGo, grant: &Grant) -> Option<u64> {
        let since = let_go.at.max(grant.seen);
        let known = self.renewal_after(let_go.lease, since)?.acknowledged;
        let freed = grant.freed.as_ref().map_or(u64::MAX, |freed| freed.seen);
        let later = self.renewal_after(let_go.lease, known + self.slack_nanos())?;
        (grant.lease == let_go.lease && freed > later.acknowledged).then(|| later.acknowledged - since)
    }

    /// R10: when giving up was acknowledged, the acquire holds nothing and will hold nothing.
    pub(super) fn giving_up_is_final(&mut self) {
        let history = self.history;
        let known = Known::new(history, &self.grants);
        for call in &history.calls {
            let (Asked::GiveUp { lock, acquire }, Outcome::Yes(Answer::Done)) = (&call.asked, &call.outcome)
            else {
                continue;
            };
            // Whatever has a greater revision came after the answer.
            let after = known.after(call.ended);
            for token in self.granted.get(acquire.as_str()).cloned().into_iter().flatten() {
                let grant = &self.grants[&token];
                let freed = grant.freed.as_ref().map_or(u64::MAX, |freed| freed.revision);
                if freed > after {
                    let what = format!(
                        "{} gave up {acquire}, which was granted {lock} at {} and held it beyond {after}",
                        call.owner, grant.revision
                    );
                    self.broken("giving up", Some(call.ended), Some(lock), what);
                }
            }
        }
    }
}
