//! Judges a history after the fact, by the simulator's checks where they fit.
//!
//! What all watchers saw together, put in order, stands for the committed log: who held and who waited at
//! every revision is rebuilt from it (`Chronicle`), and every answer, belief and read is held against
//! that. Every grant shows the id of the request that it answers as its value, so that an event can be
//! told apart from every other.

// The tests of the SDKs share this file, from a folder of their own.
#[path = "judge/force.rs"]
mod force;
#[path = "judge/known.rs"]
mod known;
#[path = "judge/orphans.rs"]
mod orphans;
#[path = "judge/story.rs"]
mod story;
#[path = "judge/written.rs"]
mod written;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use lowkey_api::v1::{EventType, WatchEvent};
use lowkey_api::{Position, Reason};
use lowkey_core::{LeaseId, LockName, LockView, Ticket, Token};
use lowkey_sim::judge::{Chronicle, HoldSeen, PlainClaim, Tokens, Violation, WaitSeen};

use self::force::Forces;
use self::known::Known;
pub(crate) use self::story::around;
use crate::history::{
    Answer, Asked, Belief, Call, History, MILLISECOND, Outcome, PATH_DELAY_MAX_MS, lock_name, mode, owner,
    position, scope, value,
};

/// Holders and waiters that a read of one lock tells, and of each lock in a list.
const SHOWN_OF_ONE: usize = 1_000;
const SHOWN_OF_MANY: usize = 10;

/// How long a client may take to act on an answer, on a loaded machine.
const SLACK_NANOS: u64 = 1_500 * MILLISECOND;
/// The same where what it asks for, or is told, may be late, and nodes are down.
const SLACK_OF_PATHS_NANOS: u64 = SLACK_NANOS + PATH_DELAY_MAX_MS * MILLISECOND;

/// A broken promise, and what to look at.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    pub(crate) violation: Violation,
    pub(crate) at: Option<u64>,
    pub(crate) lock: Option<LockName>,
}

/// A grant, as the log tells of it.
struct Grant {
    lock: LockName,
    owner: String,
    lease: LeaseId,
    claim: PlainClaim,
    revision: u64,
    /// When the first watcher saw it.
    seen: u64,
    freed: Option<Freed>,
}

struct Freed {
    how: EventType,
    revision: u64,
    seen: u64,
}

/// What is judged, and what has been found.
struct Judge<'a> {
    history: &'a History,
    /// Every event that anyone saw, with when it was first seen.
    log: BTreeMap<Position, (u64, &'a WatchEvent)>,
    chronicle: Chronicle,
    tokens: Tokens,
    grants: BTreeMap<Token, Grant>,
    /// The tokens that a request was granted.
    granted: HashMap<&'a str, Vec<Token>>,
    /// Where waits of an owner for a lock were cancelled.
    cancelled: HashMap<(&'a str, &'a str), Vec<u64>>,
    forces: Forces,
    found: Vec<Finding>,
}

/// All that is wrong with a history.
pub(crate) fn judge(history: &History) -> Vec<Finding> {
    let mut judge = Judge {
        history,
        log: BTreeMap::new(),
        chronicle: Chronicle::default(),
        tokens: Tokens::default(),
        grants: BTreeMap::new(),
        granted: HashMap::new(),
        cancelled: HashMap::new(),
        forces: Forces::new(history),
        found: Vec::new(),
    };
    for (at, violation) in &history.found {
        judge.found.push(Finding { violation: violation.clone(), at: Some(*at), lock: None });
    }
    judge.merge_watches();
    judge.compare_watches();
    judge.follow_log();
    judge.requests_have_one_effect();
    judge.answers();
    judge.beliefs_exclude_each_other();
    judge.nothing_ends_early();
    judge.writes_in_belief();
    judge.force_is_noticed();
    judge.giving_up_is_final();
    judge.nothing_is_held_by_nobody();
    judge.commands_end_in_time();
    judge.observers();
    judge.final_states();
    judge.found
}

impl<'a> Judge<'a> {
    fn broken(&mut self, invariant: &'static str, at: Option<u64>, lock: Option<&LockName>, what: String) {
        let violation = Violation { invariant, what };
        self.found.push(Finding { violation, at, lock: lock.cloned() });
    }

    /// Every position has one event, whoever tells of it.
    fn merge_watches(&mut self) {
        let history = self.history;
        for (number, watched) in history.watched.iter().enumerate() {
            for (at, event) in &watched.events {
                let first = self.log.entry(position(event)).or_insert((*at, event));
                if !is_same(first.1, event) {
                    let what = format!("watcher {number} saw {event:?}, another saw {:?}", first.1);
                    self.broken("watches", Some(*at), None, what);
                } else if *at < first.0 {
                    *first = (*at, event);
                }
            }
        }
    }

    /// A watcher sees all that anyone saw of what it watches, from its first event to its last, once and in
    /// order.
    fn compare_watches(&mut self) {
        let history = self.history;
        for (number, watched) in history.watched.iter().enumerate() {
            for pair in watched.events.windows(2) {
                let (before, after) = (position(&pair[0].1), position(&pair[1].1));
                if after <= before {
                    let what = format!("watcher {number} was told of {after} after {before}");
                    self.broken("watches", Some(pair[1].0), None, what);
                }
            }
            let (Some((_, first)), Some((_, last))) = (watched.events.first(), watched.events.last()) else {
                continue;
            };
            let range = position(first)..=position(last).max(position(first));
            let seen: BTreeSet<Position> = watched.events.iter().map(|(_, event)| position(event)).collect();
            let missed: Vec<(Position, u64)> = self
                .log
                .range(range)
                .filter(|(at, (_, event))| event.name.starts_with(&watched.prefix) && !seen.contains(at))
                .map(|(at, (seen, _))| (*at, *seen))
                .collect();
            if let Some((first, at)) = missed.first() {
                let what = format!("watcher {number} was never told of {first} ({} such)", missed.len());
                self.broken("watches", Some(*at), None, what);
            }
        }
    }

    /// Rebuilds who held and who waited, and checks every step.
    fn follow_log(&mut self) {
        let mut gone: BTreeMap<LeaseId, Position> = BTreeMap::new();
        let log: Vec<(Position, u64, &WatchEvent)> =
            self.log.iter().map(|(at, (seen, event))| (*at, *seen, *event)).collect();
        let mut last = 0;
        for (at, seen, event) in log {
            if at.revision != last && last != 0 {
                self.settle(last);
            }
            last = at.revision;
            let lease = LeaseId(event.lease_id);
            if event.r#type() == EventType::Acquired
                && let Some(ended) = gone.get(&lease)
            {
                let what =
                    format!("{} is granted at {at} to lease {lease}, which ended at {ended}", event.name);
                self.broken("queue order", Some(seen), Some(&lock_name(&event.name)), what);
            }
            self.follow(at, seen, event);
            if matches!(event.r#type(), EventType::Expired | EventType::Revoked) {
                gone.insert(lease, at);
            }
        }
        self.settle(last);
    }

    fn settle(&mut self, revision: u64) {
        if let Err(violation) = self.chronicle.settled(revision) {
            let at = self.log.range(Position { revision, ordinal: 0 }..).next().map(|(_, (seen, _))| *seen);
            self.found.push(Finding { violation, at, lock: None });
        }
    }

    fn follow(&mut self, at: Position, seen: u64, event: &'a WatchEvent) {
        let lock = lock_name(&event.name);
        let (token, lease) = (Token(event.fencing_token), LeaseId(event.lease_id));
        let (mode, scope) = (mode(event.mode), scope(event.scope));
        let place = |chronicle: &Chronicle| {
            let is_it = |waiting: &&WaitSeen| waiting.lease == lease && waiting.lock == lock;
            chronicle.waiters().iter().find(is_it).map(|waiting| waiting.ticket)
        };
        let outcome = match event.r#type() {
            EventType::Acquired => {
                let claim = PlainClaim { lock: lock.clone(), lease: Some(lease), mode, scope };
                let (owner_id, shown) = (owner(&event.owner), value(&event.value));
                let held =
                    HoldSeen { lock: lock.clone(), owner: owner_id, lease, token, mode, scope, value: shown };
                let outcome = self.tokens.granted(&lock, token).and_then(|()| self.chronicle.granted(held));
                if let Some(ticket) = place(&self.chronicle) {
                    self.chronicle.left(ticket);
                }
                let (lock, owner) = (lock.clone(), event.owner.clone());
                let grant = Grant { lock, owner, lease, claim, revision: at.revision, seen, freed: None };
                self.grants.insert(token, grant);
                // `lowkey run` shows none.
                if !event.value.is_empty() {
                    self.granted.entry(event.value.as_str()).or_default().push(token);
                }
                outcome
            }
            how @ (EventType::Released | EventType::Expired | EventType::Revoked) => {
                if let Some(grant) = self.grants.get_mut(&token) {
                    grant.freed = Some(Freed { how, revision: at.revision, seen });
                }
                self.chronicle.freed(token).map(|_| ()).ok_or_else(|| impossible(at, event))
            }
            EventType::Value => match self.chronicle.value_set(token, value(&event.value)) {
                true => Ok(()),
                false => Err(impossible(at, event)),
            },
            EventType::Waiting => {
                let (ticket, owner) = (Ticket(at.revision), owner(&event.owner));
                self.chronicle.waits(WaitSeen { ticket, lock: lock.clone(), owner, lease, mode, scope });
                Ok(())
            }
            EventType::Cancelled => {
                let key = (event.owner.as_str(), event.name.as_str());
                self.cancelled.entry(key).or_default().push(at.revision);
                let ticket = place(&self.chronicle);
                let left = ticket.and_then(|ticket| self.chronicle.left(ticket));
                left.map(|_| ()).ok_or_else(|| impossible(at, event))
            }
            EventType::Heartbeat | EventType::End | EventType::Vacant => Ok(()),
        };
        if let Err(violation) = outcome {
            self.found.push(Finding { violation, at: Some(seen), lock: Some(lock) });
        }
    }

    /// One request id, one grant.
    fn requests_have_one_effect(&mut self) {
        let twice: Vec<(String, Vec<Token>)> = self
            .granted
            .iter()
            .filter(|(_, tokens)| tokens.len() > 1)
            .map(|(request, tokens)| ((*request).to_owned(), tokens.clone()))
            .collect();
        for (request, tokens) in twice {
            let (seen, lock) = (self.grants[&tokens[1]].seen, self.grants[&tokens[1]].lock.clone());
            let what = format!("request {request} was granted {} times: {tokens:?}", tokens.len());
            self.broken("requests", Some(seen), Some(&lock), what);
        }
    }

    /// Every answer is what the log says, at a place behind all that was known before it was asked for.
    fn answers(&mut self) {
        let history = self.history;
        let known = Known::new(history, &self.grants);
        for call in &history.calls {
            let outcome = match &call.outcome {
                Outcome::Yes(answer) => self.accepted(call, answer, known.before(call.invoked)),
                Outcome::No(error) => {
                    let window = (known.before(call.invoked), known.after(call.ended));
                    self.refused(call, error, window)
                }
                Outcome::Unknown(_) => Ok(()),
            };
            if let Err((invariant, what)) = outcome {
                let what = format!("{} ({}): {what}", call.owner, call.asked.kind());
                self.broken(invariant, Some(call.ended), call.asked.lock(), what);
            }
        }
    }

    fn accepted(&self, call: &Call, answer: &Answer, before: u64) -> Result<(), (&'static str, String)> {
        const NAME: &str = "acknowledged";
        match (answer, &call.asked) {
            (Answer::Granted { token, lease, revision, waited_ms }, Asked::Acquire { claim }) => {
                let Some(grant) = self.grants.get(token) else {
                    return Err((NAME, format!("token {token} of {} is nowhere in the log", claim.lock)));
                };
                let told = (&claim.lock, call.owner.as_str(), *lease, claim.mode, claim.scope, *revision);
                let GrantParts(known) = parts(grant);
                if told != known {
                    return Err((NAME, format!("token {token} was told as {told:?}, and is {known:?}")));
                }
                let is_its = self.granted.get(call.request.as_str()).is_some_and(|all| all.contains(token));
                if !is_its {
                    return Err(("requests", format!("{} was answered with token {token}", call.request)));
                }
                // R7: validity is counted from it.
                let asked_for_ms = (call.ended - call.invoked) / MILLISECOND;
                if !call.again && *waited_ms > asked_for_ms + 1 {
                    return Err(("waits", format!("it asked for {asked_for_ms} ms and waited {waited_ms}")));
                }
                if !call.again && *revision <= before {
                    return Err((NAME, format!("granted at {revision}, though {before} was known before")));
                }
                Ok(())
            }
            // The SDK says that all is well when somebody else was quicker.
            (Answer::Done, Asked::Release { token, .. }) if self.forced(*token).is_some() => Ok(()),
            (Answer::Done, Asked::Release { token, .. } | Asked::ForceRelease { token, .. }) => {
                let freed = self.grants.get(token).and_then(|grant| grant.freed.as_ref());
                match freed {
                    Some(freed) if freed.how == EventType::Released => Ok(()),
                    Some(freed) => Err((NAME, format!("token {token} ended otherwise: {:?}", freed.how))),
                    None => Err((NAME, format!("the release of token {token} was acknowledged and is lost"))),
                }
            }
            (Answer::Done, Asked::Revoke { lease } | Asked::ForceRevoke { lease }) => {
                let held = self.grants.values().find(|grant| grant.lease == *lease && grant.freed.is_none());
                match held {
                    Some(grant) => Err((NAME, format!("revoked lease {lease} still holds {}", grant.lock))),
                    None => Ok(()),
                }
            }
            (Answer::Lock { view, revision }, Asked::Get { stale, lock }) => {
                if *lock != view.lock || !self.chronicle.at(lock, *revision).is_told_as(view, SHOWN_OF_ONE) {
                    let known = self.chronicle.at(lock, *revision);
                    return Err(("reads", format!("at {revision} it was told {view:?}, and was {known:?}")));
                }
                is_fresh(*stale, *revision, before)
            }
            (Answer::Locks { views, revision }, Asked::List { prefix, stale }) => {
                if let Some(problem) = self.list_problem(views, prefix, *revision) {
                    return Err(("reads", problem));
                }
                is_fresh(*stale, *revision, before)
            }
            _ => Ok(()),
        }
    }

    fn list_problem(&self, views: &[LockView], prefix: &str, revision: u64) -> Option<String> {
        let all = self.chronicle.all_at(revision).filter(|(lock, _)| lock.as_str().starts_with(prefix));
        let all: Vec<_> = all.collect();
        let same = views.len() == all.len()
            && views
                .iter()
                .zip(&all)
                .all(|(view, (lock, at))| view.lock == **lock && at.is_told_as(view, SHOWN_OF_MANY));
        (!same).then(|| {
            let differs = views
                .iter()
                .zip(&all)
                .find(|(view, (lock, at))| view.lock != **lock || !at.is_told_as(view, SHOWN_OF_MANY));
            format!(
                "{} locks at {revision} were listed, there were {}; first: {differs:?}",
                views.len(),
                all.len()
            )
        })
    }

    /// A refusal was true at some revision between what was known before it was asked for, and the first of
    /// what was asked for after it was told.
    fn refused(
        &self,
        call: &Call,
        error: &lowkey_api::ApiError,
        (before, after): (u64, u64),
    ) -> Result<(), (&'static str, String)> {
        let was_taken = match &call.asked {
            Asked::Acquire { claim } => claim.lease.is_some_and(|id| self.forces.is_revoked(id, call.ended)),
            Asked::Renew { lease } | Asked::Look { lease } => self.forces.is_revoked(*lease, call.ended),
            // A lease that is gone does not remember what was released before, and answered.
            Asked::Release { token, .. } => {
                let lease = self.grants.get(token).map(|grant| grant.lease);
                self.forced(*token).is_some_and(|(force, _)| force.invoked < call.ended)
                    || lease.is_some_and(|lease| self.forces.is_revoked(lease, call.ended))
            }
            _ => false,
        };
        let counted_on = !was_taken && call.counted_on_until.is_some_and(|until| until > call.ended);
        match (error.reason, &call.asked) {
            (
                Reason::LockNotFound | Reason::NotOwner | Reason::StaleToken | Reason::LeaseNotFound,
                Asked::ForceRelease { .. } | Asked::ForceRevoke { .. },
            ) => Ok(()),
            (Reason::LeaseNotFound, _) if counted_on => {
                Err(("expiry", "it was told that its lease is gone while it counted on it".to_owned()))
            }
            (Reason::LeaseNotFound, _) => Ok(()),
            (Reason::LockHeld, Asked::Acquire { claim }) => {
                let text = |key: &str| error.metadata.get(key).cloned();
                let held = text("held_name").or_else(|| text("lock_name")).unwrap_or_default();
                let token = text("fencing_token").and_then(|text| text.parse().ok()).map(Token);
                let so = |revision| {
                    let at = self.chronicle.at(&lock_name(&held), revision);
                    at.holders.iter().any(|held| Some(held.token) == token)
                        && self.chronicle.is_blocked(claim, revision)
                };
                match self.chronicle.was_between(before, after, so) {
                    true => Ok(()),
                    false => {
                        Err(("acknowledged", format!("{error}, and it never was so in {before}..={after}")))
                    }
                }
            }
            (Reason::WaitTimeout, Asked::Acquire { claim }) => {
                let cancelled = self.cancelled.get(&(call.owner.as_str(), claim.lock.as_str()));
                let ended = cancelled.into_iter().flatten().find(|revision| **revision > before);
                let granted = self.granted.get(call.request.as_str()).into_iter().flatten();
                let first = granted.map(|token| self.grants[token].revision).min();
                match (ended, first) {
                    (None, _) => Err(("waits", "a timeout was told, and no wait was cancelled".to_owned())),
                    (Some(ended), Some(granted)) if granted < *ended => Err((
                        "waits",
                        format!("it was granted at {granted}, and told of a timeout at {ended}"),
                    )),
                    _ => Ok(()),
                }
            }
            (Reason::LockNotFound | Reason::NotOwner | Reason::StaleToken, Asked::Release { .. })
                if counted_on =>
            {
                Err(("acknowledged", format!("a holder was told {error} while it counted on its lease")))
            }
            (Reason::LockNotFound | Reason::NotOwner | Reason::StaleToken, Asked::Release { .. }) => Ok(()),
            // It is remembered also where there is nothing to end.
            (Reason::LockNotFound | Reason::NotOwner, Asked::GiveUp { .. }) => {
                Err(("giving up", format!("it was answered {error}")))
            }
            (_, Asked::GiveUp { .. }) => Ok(()),
            (Reason::WaitCancelled, Asked::Acquire { .. }) => Ok(()),
            _ => Err(("answers", format!("{error} is no answer to {:?}", call.asked))),
        }
    }

    /// Beliefs that exclude each other do not overlap; and nobody is granted what a believer excludes.
    fn beliefs_exclude_each_other(&mut self) {
        let history = self.history;
        let stands = |belief: &Belief| Belief { until: self.stands_until(belief), ..belief.clone() };
        let mut beliefs: Vec<Belief> = history.beliefs.iter().map(stands).collect();
        beliefs.retain(|belief| belief.from < belief.until);
        beliefs.sort_by_key(|belief| belief.from);
        let mut found: Vec<(u64, LockName, String)> = Vec::new();
        let mut grants: Vec<(&Token, &Grant)> = self.grants.iter().collect();
        grants.sort_by_key(|(_, grant)| grant.seen);
        let mut next_grant = grants.into_iter().peekable();
        let mut active: Vec<&Belief> = Vec::new();
        for (number, belief) in beliefs.iter().enumerate() {
            active.retain(|other| other.until > belief.from);
            for other in active.iter().filter(|other| other.claim.excludes(&belief.claim)) {
                let what = format!(
                    "{} believes to hold {} with token {} while {} does {} with token {}, for {} ms",
                    belief.owner,
                    belief.claim.lock,
                    belief.token,
                    other.owner,
                    other.claim.lock,
                    other.token,
                    (other.until.min(belief.until) - belief.from) / MILLISECOND
                );
                found.push((belief.from, belief.claim.lock.clone(), what));
            }
            active.push(belief);
            let until = beliefs.get(number + 1).map_or(u64::MAX, |next| next.from);
            while let Some((token, grant)) = next_grant.next_if(|(_, grant)| grant.seen < until) {
                // It was granted before it was seen; an older one may be seen late.
                let rival = active.iter().find(|other| {
                    let believes = other.from <= grant.seen && grant.seen < other.until;
                    believes && *token > other.token && other.claim.excludes(&grant.claim)
                });
                if let Some(other) = rival {
                    let what = format!(
                        "{} has {} with token {token} while {} believes to hold {} with token {}",
                        grant.owner, grant.lock, other.owner, other.claim.lock, other.token
                    );
                    found.push((grant.seen, grant.lock.clone(), what));
                }
            }
        }
        for (at, lock, what) in found {
            self.broken("mutual exclusion", Some(at), Some(&lock), what);
        }
    }

    /// No grant is taken from a client that still counts on it.
    fn nothing_ends_early(&mut self) {
        let history = self.history;
        for belief in &history.beliefs {
            let freed = self.grants.get(&belief.token).and_then(|grant| grant.freed.as_ref());
            if let Some(freed) = freed.filter(|freed| freed.seen < self.stands_until(belief)) {
                let early = (belief.until - freed.seen) / MILLISECOND;
                let what = format!(
                    "token {} of {} ended ({:?}, revision {}) {early} ms before its belief did",
                    belief.token, belief.owner, freed.how, freed.revision
                );
                self.broken("expiry", Some(freed.seen), Some(&belief.claim.lock), what);
            }
        }
    }

    /// Observers are told of one leader after another, and of those who led.
    fn observers(&mut self) {
        let history = self.history;
        let Some(election) = &history.election else { return };
        let mut last: HashMap<usize, u64> = HashMap::new();
        for observed in &history.observed {
            let before = last.insert(observed.observer, observed.revision).unwrap_or(0);
            if observed.revision < before {
                let what = format!(
                    "observer {} went back from {before} to {}",
                    observed.observer, observed.revision
                );
                self.broken("elections", None, Some(election), what);
            }
            let Some((owner, token, shown)) = &observed.leader else { continue };
            let at = self.chronicle.at(election, observed.revision);
            let is_it = |held: &HoldSeen| (&held.owner, held.token, &held.value) == (owner, *token, shown);
            // A leader may be followed within the very revision in which it was told of.
            let was = self.grants.get(token).is_some_and(|grant| {
                grant.freed.as_ref().is_some_and(|freed| freed.revision == observed.revision)
            });
            if !was && !at.holders.iter().any(is_it) {
                let what =
                    format!("{owner} was said to lead at {} with token {token}: {at:?}", observed.revision);
                self.broken("elections", None, Some(election), what);
            }
        }
    }

    /// When all is quiet every node has the same state, and it is what the log says.
    fn final_states(&mut self) {
        let history = self.history;
        let Some(first) = history.finals.first() else { return };
        for other in &history.finals[1..] {
            let same =
                (first.revision, &first.locks, first.counts) == (other.revision, &other.locks, other.counts);
            if !same {
                let what = format!(
                    "{} at {} has {} locks and {:?}, {} at {} has {} and {:?}",
                    first.node,
                    first.revision,
                    first.locks.len(),
                    first.counts,
                    other.node,
                    other.revision,
                    other.locks.len(),
                    other.counts
                );
                self.broken("agreement", None, None, what);
            }
        }
        if let Some(problem) = self.list_problem(&first.locks, "", first.revision) {
            self.broken(
                "acknowledged",
                None,
                None,
                format!("the final state is not what was told: {problem}"),
            );
        }
    }
}

/// What identifies a grant.
struct GrantParts<'a>((&'a LockName, &'a str, LeaseId, lowkey_core::Mode, lowkey_core::Scope, u64));

fn parts(grant: &Grant) -> GrantParts<'_> {
    let Grant { lock, owner, lease, claim, revision, .. } = grant;
    GrantParts((lock, owner, *lease, claim.mode, claim.scope, *revision))
}

fn is_fresh(stale: bool, revision: u64, before: u64) -> Result<(), (&'static str, String)> {
    match !stale && revision < before {
        true => Err(("reads", format!("read as of {revision}, though {before} was known before"))),
        false => Ok(()),
    }
}

fn impossible(at: Position, event: &WatchEvent) -> Violation {
    let what = format!("{:?} of {} by {} at {at} cannot be", event.r#type(), event.name, event.owner);
    Violation { invariant: "queue order", what }
}

/// Whether a node is in touch with the leader is its own affair.
fn is_same(one: &WatchEvent, other: &WatchEvent) -> bool {
    WatchEvent { in_touch: false, ..one.clone() } == WatchEvent { in_touch: false, ..other.clone() }
}
