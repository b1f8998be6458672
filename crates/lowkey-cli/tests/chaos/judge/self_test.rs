//! The judge must be able to condemn: a sound history, then the same with one thing wrong in it, for
//! every kind of broken promise.

use lowkey_api::v1::{EventType, WatchEvent};
use lowkey_api::{ApiError, Reason};
use lowkey_core::{LeaseId, LockView, Mode, Scope, Token};
use lowkey_sim::judge::{PlainClaim, Violation};

use crate::history::{
    Answer, Asked, Belief, Call, Final, History, LetGo, Line, Observed, Outcome, Refused, Renewal, SECOND,
    Watched, Written, lock_name, owner, value,
};
use crate::judge::judge;

const TIME: u64 = 1_000 * SECOND;

fn event(kind: EventType, at: (u64, u32), name: &str, who: &str, lease_id: u64, token: u64) -> WatchEvent {
    let shown = if kind == EventType::Acquired { format!("{who}-1") } else { String::new() };
    WatchEvent {
        r#type: kind.into(),
        name: name.to_owned(),
        owner: who.to_owned(),
        fencing_token: token,
        revision: at.0,
        ordinal: at.1,
        lease_id,
        value: shown,
        in_touch: true,
        ..WatchEvent::default()
    }
}

fn claim(lock: &str, lease: u64) -> PlainClaim {
    let lease = Some(LeaseId(lease));
    PlainClaim { lock: lock_name(lock), lease, mode: Mode::Exclusive, scope: Scope::Name }
}

fn call(who: &str, request: &str, asked: Asked, seconds: (u64, u64), outcome: Outcome) -> Call {
    Call {
        owner: who.to_owned(),
        request: request.to_owned(),
        asked,
        invoked: TIME + seconds.0 * SECOND,
        ended: TIME + seconds.1 * SECOND,
        outcome,
        again: false,
        counted_on_until: None,
    }
}

fn yes(token: u64, lease: u64, revision: u64) -> Outcome {
    Outcome::Yes(Answer::Granted { token: Token(token), lease: LeaseId(lease), revision, waited_ms: 0 })
}

fn acquire(lock: &str, lease: u64) -> Asked {
    Asked::Acquire { claim: claim(lock, lease) }
}

fn release(lock: &str, token: u64) -> Asked {
    Asked::Release { lock: lock_name(lock), token: Token(token) }
}

fn belief(who: &str, lease: u64, token: u64, seconds: (u64, u64)) -> Belief {
    let (from, until) = (TIME + seconds.0 * SECOND, TIME + seconds.1 * SECOND);
    Belief {
        owner: who.to_owned(),
        claim: claim("a", lease),
        token: Token(token),
        from,
        until,
        renews_every: Some(SECOND),
    }
}

fn empty(lock: &str) -> LockView {
    LockView {
        lock: lock_name(lock),
        holders: Vec::new(),
        holder_count: 0,
        waiters: Vec::new(),
        waiter_count: 0,
        covered_by: None,
    }
}

/// `x` holds `a` from second 1 to 3, `y` waits, has it from 3 to 5, and lets it expire at 6; `z` gives up
/// waiting at 5 and is refused before.
fn sound() -> History {
    use EventType::{Acquired, Cancelled, Expired, Released, Waiting};
    let held = ApiError::new(Reason::LockHeld, "held").with("lock_name", "a").with("fencing_token", 1);
    let events: Vec<(u64, WatchEvent)> = [
        (1, event(Acquired, (10, 0), "a", "x", 1, 1)),
        (2, event(Waiting, (11, 0), "a", "y", 2, 0)),
        (2, event(Waiting, (12, 0), "a", "z", 3, 0)),
        (3, event(Released, (13, 0), "a", "x", 1, 1)),
        (3, event(Acquired, (13, 1), "a", "y", 2, 2)),
        (5, event(Cancelled, (14, 0), "a", "z", 3, 0)),
        (6, event(Expired, (15, 0), "a", "y", 2, 2)),
    ]
    .map(|(second, event)| (TIME + second * SECOND, event))
    .into();
    let watched = || Watched { events: events.clone(), ..Watched::default() };
    let read = Outcome::Yes(Answer::Lock { view: empty("a"), revision: 15 });
    let ended =
        |node: &str| Final { node: node.to_owned(), revision: 15, locks: Vec::new(), counts: (0, 0, 0, 2) };
    History {
        calls: vec![
            call("x", "x-1", acquire("a", 1), (0, 1), yes(1, 1, 10)),
            call("w", "w-1", acquire("a", 4), (1, 2), Outcome::No(held)),
            call("x", "x-2", release("a", 1), (2, 3), Outcome::Yes(Answer::Done)),
            call("y", "y-1", acquire("a", 2), (1, 3), yes(2, 2, 13)),
            call("z", "z-1", acquire("a", 3), (1, 5), Outcome::No(ApiError::new(Reason::WaitTimeout, ""))),
            call("r", "", Asked::Get { lock: lock_name("a"), stale: false }, (7, 8), read),
        ],
        beliefs: vec![belief("x", 1, 1, (1, 2)), belief("y", 2, 2, (3, 5))],
        watched: vec![watched(), watched()],
        observed: vec![Observed {
            observer: 0,
            leader: Some((owner("y"), Token(2), value("y-1"))),
            revision: 13,
        }],
        finals: vec![ended("n1"), ended("n2")],
        election: Some(lock_name("a")),
        ..History::default()
    }
}

/// The invariants that a history breaks.
fn broken(history: &History) -> Vec<&'static str> {
    let mut found: Vec<_> = judge(history).into_iter().map(|finding| finding.violation.invariant).collect();
    found.sort_unstable();
    found.dedup();
    found
}

#[track_caller]
fn assert_found(invariant: &str, spoil: impl FnOnce(&mut History)) {
    let mut history = sound();
    spoil(&mut history);
    let found = broken(&history);
    assert!(found.contains(&invariant), "{invariant} should be among {found:?}");
}

/// In the record of every watcher.
fn in_log(history: &mut History, change: impl Fn(&mut Vec<(u64, WatchEvent)>)) {
    for watched in &mut history.watched {
        change(&mut watched.events);
    }
}

#[test]
fn a_sound_history_is_found_sound() {
    let found = judge(&sound());
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn beliefs_that_overlap_are_found() {
    assert_found("mutual exclusion", |history| history.beliefs[0].until = TIME + 4 * SECOND);
}

#[test]
fn a_grant_beside_a_belief_is_found_though_nobody_acts_on_it() {
    assert_found("mutual exclusion", |history| {
        history.beliefs[0].until = TIME + 4 * SECOND;
        history.beliefs.remove(1);
    });
}

#[test]
fn tokens_that_fall_or_repeat_are_found() {
    for token in [1, 0] {
        assert_found("tokens", |history| in_log(history, |log| log[4].1.fencing_token = token));
    }
}

#[test]
fn a_grant_while_another_holds_is_found() {
    assert_found("queue order", |history| {
        in_log(history, |log| {
            log.remove(3);
        });
    });
}

#[test]
fn whoever_overtakes_is_found() {
    assert_found("queue order", |history| {
        in_log(history, |log| {
            log[4].1.owner = "z".to_owned();
            log[4].1.lease_id = 3;
        });
    });
}

#[test]
fn a_waiter_that_could_be_granted_is_found() {
    assert_found("queue order", |history| {
        in_log(history, |log| {
            log.remove(4);
        });
    });
}

#[test]
fn a_grant_to_a_lease_that_is_gone_is_found() {
    assert_found("queue order", |history| {
        let late = event(EventType::Acquired, (16, 0), "b", "y", 2, 3);
        in_log(history, |log| log.push((TIME + 7 * SECOND, late.clone())));
    });
}

#[test]
fn an_acknowledged_grant_that_is_nowhere_is_found() {
    assert_found("acknowledged", |history| history.calls[0].outcome = yes(7, 1, 10));
}

#[test]
fn an_acknowledged_release_that_is_lost_is_found() {
    assert_found("acknowledged", |history| {
        let revoked = EventType::Revoked.into();
        in_log(history, |log| log[3].1.r#type = revoked);
    });
}

#[test]
fn a_grant_that_came_before_what_was_known_is_found() {
    assert_found("acknowledged", |history| {
        history.calls[0].invoked = TIME + 9 * SECOND;
        history.calls[0].ended = TIME + 10 * SECOND;
    });
}

#[test]
fn a_refusal_that_never_was_true_is_found() {
    assert_found("acknowledged", |history| {
        history.calls[1].invoked = TIME + 9 * SECOND;
        history.calls[1].ended = TIME + 10 * SECOND;
    });
}

#[test]
fn a_second_effect_of_a_request_is_found() {
    assert_found("requests", |history| in_log(history, |log| log[4].1.value = "x-1".to_owned()));
}

#[test]
fn an_answer_that_is_of_another_request_is_found() {
    assert_found("requests", |history| history.calls[0].request = "x-9".to_owned());
}

#[test]
fn a_timeout_of_who_did_not_wait_or_was_granted_is_found() {
    assert_found("waits", |history| history.calls[4].owner = "nobody".to_owned());
    assert_found("waits", |history| {
        // It was granted first.
        history.calls[4].request = "y-1".to_owned();
    });
}

#[test]
fn a_wait_that_is_told_too_long_is_found() {
    assert_found("waits", |history| {
        let (token, lease) = (Token(2), LeaseId(2));
        let told = Answer::Granted { token, lease, revision: 13, waited_ms: 2_500 };
        history.calls[3].outcome = Outcome::Yes(told);
    });
}

#[test]
fn a_lease_that_ends_early_is_found() {
    assert_found("expiry", |history| history.beliefs[1].until = TIME + 8 * SECOND);
    assert_found("expiry", |history| {
        let gone = Outcome::No(ApiError::new(Reason::LeaseNotFound, ""));
        let mut renewal = call("y", "", Asked::Renew { lease: LeaseId(2) }, (4, 5), gone);
        renewal.counted_on_until = Some(TIME + 6 * SECOND);
        history.calls.push(renewal);
    });
}

#[test]
fn a_holder_that_is_told_it_holds_nothing_is_found() {
    assert_found("acknowledged", |history| {
        history.calls[2].outcome = Outcome::No(ApiError::new(Reason::LockNotFound, ""));
        history.calls[2].counted_on_until = Some(TIME + 4 * SECOND);
    });
}

#[test]
fn a_read_of_the_past_or_of_what_never_was_is_found() {
    assert_found("reads", |history| {
        let old = Answer::Lock { view: empty("a"), revision: 9 };
        history.calls[5].outcome = Outcome::Yes(old);
    });
    assert_found("reads", |history| {
        let wrong = Answer::Locks { views: vec![empty("a")], revision: 15 };
        history.calls[5].asked = Asked::List { prefix: String::new(), stale: true };
        history.calls[5].outcome = Outcome::Yes(wrong);
    });
}

#[test]
fn gaps_repeats_and_lies_of_watches_are_found() {
    assert_found("watches", |history| {
        history.watched[0].events.remove(2);
    });
    assert_found("watches", |history| {
        let again = history.watched[1].events[2].clone();
        history.watched[1].events.insert(3, again);
    });
    assert_found("watches", |history| history.watched[0].events[2].1.owner = "somebody".to_owned());
}

#[test]
fn an_observer_that_goes_back_or_is_told_of_another_leader_is_found() {
    assert_found("elections", |history| {
        let earlier = Observed { observer: 0, leader: None, revision: 12 };
        history.observed.push(earlier);
    });
    assert_found("elections", |history| {
        history.observed[0].leader = Some((owner("x"), Token(9), value("x-1")));
    });
}

#[test]
fn nodes_that_differ_or_have_lost_something_are_found() {
    assert_found("agreement", |history| history.finals[1].counts.3 = 9);
    assert_found("acknowledged", |history| {
        in_log(history, |log| {
            log.pop();
        });
    });
}

#[test]
fn an_answer_that_nobody_may_give_is_found() {
    assert_found("answers", |history| {
        history.calls[0].outcome = Outcome::No(ApiError::new(Reason::Internal, "oh"));
    });
}

#[track_caller]
fn assert_sound(history: &History) {
    let found = judge(history);
    assert!(found.is_empty(), "{found:#?}");
}

fn renewal(lease: u64, sent: u64) -> (LeaseId, Vec<Renewal>) {
    let sent = TIME + sent * SECOND;
    (LeaseId(lease), vec![Renewal { sent, acknowledged: sent }])
}

/// The same, but that the release of `x` at second 3 was not its own; its belief lasts until then and longer.
fn forced(believed_until: u64) -> History {
    let mut history = sound();
    history.calls[2].owner = "meddler".to_owned();
    history.calls[2].asked = Asked::ForceRelease { lock: lock_name("a"), token: Token(1) };
    history.beliefs[0].until = TIME + believed_until * SECOND;
    history
}

#[test]
fn a_holder_may_believe_until_its_next_renewal_if_its_lock_is_taken_by_force() {
    let mut history = forced(5);
    history.renewals.extend([renewal(1, 4)]);
    let violation = Violation { invariant: "fencing", what: "a token".to_owned() };
    history.refused.push(Refused { at: TIME + 4 * SECOND, token: Token(1), violation });
    let mut release = call("x", "x-2", release("a", 1), (5, 6), no(Reason::LockNotFound));
    release.counted_on_until = Some(TIME + 9 * SECOND);
    history.calls.push(release);
    assert_sound(&history);
}

#[test]
fn a_holder_that_believes_beyond_its_next_renewal_is_found() {
    let mut history = forced(9);
    history.renewals.extend([renewal(1, 4)]);
    assert_eq!(broken(&history), ["force"]);
    // Without anything to keep the renewal up, the time for it counts.
    history.renewals.clear();
    assert_eq!(broken(&history), [""; 0]);
    history.is_calm = true;
    assert_eq!(broken(&history), ["force"]);
}

#[test]
fn force_excuses_nobody_before_it_was_used_and_no_other() {
    let mut history = forced(5);
    history.calls[2].invoked = TIME + 4 * SECOND;
    history.calls[2].ended = TIME + 5 * SECOND;
    assert!(broken(&history).contains(&"mutual exclusion"));
    let mut history = forced(5);
    history.calls[2].asked = Asked::ForceRelease { lock: lock_name("a"), token: Token(2) };
    assert!(broken(&history).contains(&"mutual exclusion"));
    assert_found("fencing", |history| {
        let violation = Violation { invariant: "fencing", what: "a token".to_owned() };
        history.refused.push(Refused { at: TIME + 4 * SECOND, token: Token(1), violation });
    });
}

#[test]
fn a_lease_that_was_revoked_by_force_may_be_told_gone_and_no_other() {
    for (lease, is_sound) in [(2, true), (3, false)] {
        let mut history = sound();
        let force = Asked::ForceRevoke { lease: LeaseId(lease) };
        history.calls.push(call("meddler", "m-1", force, (3, 4), Outcome::Unknown("SILENCE".to_owned())));
        let asked = Asked::Renew { lease: LeaseId(2) };
        let mut renewal = call("y", "", asked, (4, 5), no(Reason::LeaseNotFound));
        renewal.counted_on_until = Some(TIME + 6 * SECOND);
        history.calls.push(renewal);
        assert_eq!(broken(&history).is_empty(), is_sound, "{lease}");
    }
}

#[test]
fn a_release_that_is_repeated_after_its_lease_was_revoked_by_force_may_be_refused_and_no_other() {
    for (lease, is_sound) in [(1, true), (3, false)] {
        let mut history = sound();
        let force = Asked::ForceRevoke { lease: LeaseId(lease) };
        history.calls.push(call("meddler", "m-1", force, (3, 4), Outcome::Yes(Answer::Done)));
        let asked = Asked::Release { lock: lock_name("a"), token: Token(1) };
        let mut release = call("x", "x-2", asked, (4, 5), no(Reason::NotOwner));
        (release.counted_on_until, release.again) = (Some(TIME + 6 * SECOND), true);
        history.calls.push(release);
        assert_eq!(broken(&history).is_empty(), is_sound, "{lease}");
    }
}

fn no(reason: Reason) -> Outcome {
    Outcome::No(ApiError::new(reason, ""))
}

#[test]
fn a_grant_of_what_was_given_up_before_is_found() {
    let gives_up = |seconds| {
        let asked = Asked::GiveUp { lock: lock_name("a"), acquire: "y-1".to_owned() };
        let mut history = sound();
        history.calls.push(call("y", "y-2", asked, seconds, Outcome::Yes(Answer::Done)));
        // Something that certainly came after.
        let asked = Asked::Acquire { claim: claim("b", 5) };
        let late = event(EventType::Acquired, (16, 0), "b", "v", 5, 3);
        let freed = event(EventType::Released, (17, 0), "b", "v", 5, 3);
        let last = event(EventType::Acquired, (18, 0), "b", "u", 6, 4);
        let end = event(EventType::Expired, (19, 0), "b", "u", 6, 4);
        in_log(&mut history, |log| {
            log.extend(
                [late.clone(), freed.clone(), last.clone(), end.clone()]
                    .map(|event| (TIME + 9 * SECOND, event)),
            );
        });
        history.calls.push(call("v", "v-1", asked, (8, 9), yes(3, 5, 16)));
        for ended in &mut history.finals {
            (ended.revision, ended.counts.3) = (19, 4);
        }
        history
    };
    assert_sound(&gives_up((6, 7)));
    let mut history = gives_up((6, 7));
    // It was there for longer than that.
    in_log(&mut history, |log| {
        let expired = log.remove(6);
        log.insert(8, expired);
        (log[8].1.revision, log[8].1.ordinal) = (17, 1);
    });
    history.calls.retain(|call| call.owner != "r");
    assert_eq!(broken(&history), ["giving up"]);
}

#[test]
fn giving_up_that_is_refused_where_nothing_is_found_is_found() {
    assert_found("giving up", |history| {
        let asked = Asked::GiveUp { lock: lock_name("a"), acquire: "y-9".to_owned() };
        history.calls.push(call("y", "y-3", asked, (6, 7), no(Reason::LockNotFound)));
    });
}

#[test]
fn a_grant_that_nobody_has_a_guard_for_is_found() {
    let mut history = sound();
    let (owner, request) = ("y".to_owned(), "y-1".to_owned());
    let at = TIME + 2 * SECOND;
    history.let_go.push(LetGo { owner, lease: LeaseId(2), request, at });
    history.beliefs.remove(1);
    in_log(&mut history, |log| log[6].0 = TIME + 12 * SECOND);
    // One renewal shows it. Only a session that goes on renewing keeps it.
    history.renewals.extend([renewal(2, 4)]);
    assert_sound(&history);
    let (_, later) = renewal(2, 11);
    history.renewals.entry(LeaseId(2)).or_default().extend(later);
    assert_eq!(broken(&history), ["orphans"]);
    history.renewals.clear();
    history.renewals.extend([renewal(3, 4), renewal(2, 11)]);
    assert_sound(&history);
}

/// What commands wrote under the locks of `x` and `y`, by token and second.
fn writing(lines: &[(u64, u64)]) -> Written {
    let line = |(token, second): &(u64, u64)| Line { token: Token(*token), at: TIME + second * SECOND };
    Written { lock: lock_name("a"), ttl_nanos: 3 * SECOND, lines: lines.iter().map(line).collect() }
}

#[test]
fn a_command_that_outlives_its_lock_is_found() {
    let with = |lines| History { written: vec![writing(lines)], ..sound() };
    assert_sound(&with(&[(1, 1), (1, 2), (2, 4), (2, 5)]));
    // Behind the next one, after the end, and with a token of nobody.
    assert_eq!(broken(&with(&[(1, 1), (2, 3), (1, 3)])), ["lowkey run"]);
    assert_eq!(broken(&with(&[(1, 1), (1, 4)])), ["lowkey run"]);
    assert_eq!(broken(&with(&[(2, 4), (2, 7)])), ["lowkey run"]);
    assert_eq!(broken(&with(&[(9, 4)])), ["lowkey run"]);
}

#[test]
fn a_command_whose_lock_was_taken_ends_with_the_next_renewal_or_is_found() {
    let with = |lines| History { written: vec![writing(lines)], is_calm: true, ..forced(3) };
    assert_sound(&with(&[(1, 1), (2, 4), (1, 5)]));
    assert_eq!(broken(&with(&[(1, 1), (2, 4), (1, 6)])), ["lowkey run"]);
    // Stopped, it cannot renew; the end of its count is its end.
    let stopped = |lines| {
        let stopped = vec![(lock_name("a"), TIME + 2 * SECOND, TIME + 9 * SECOND)];
        History { stopped, ..with(lines) }
    };
    assert_sound(&stopped(&[(1, 1), (2, 4), (1, 6)]));
    assert_eq!(broken(&stopped(&[(1, 1), (2, 4), (1, 8)])), ["lowkey run"]);
}

#[test]
fn what_was_found_on_the_way_is_told() {
    assert_found("fencing", |history| {
        let violation = Violation { invariant: "fencing", what: "a token".to_owned() };
        history.found.push((TIME, violation));
    });
}
