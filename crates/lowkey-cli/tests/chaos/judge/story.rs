//! What happened around a finding, for whoever has to understand it.

use lowkey_api::v1::WatchEvent;

use super::Finding;
use crate::history::{Answer, Belief, Call, History, MILLISECOND, Outcome, SECOND};

/// The calls, beliefs and events of about that time, of that lock and its neighbours.
pub(crate) fn around(history: &History, finding: &Finding) -> Vec<String> {
    const LINES_MAX: usize = 40;
    let Some(at) = finding.at else { return Vec::new() };
    let near = |time: u64| time.abs_diff(at) < 2 * SECOND;
    let concerns = |lock: &str| {
        finding.lock.as_ref().is_none_or(|wanted| {
            let segment = |name: &str| name.split('/').next().map(str::to_owned);
            segment(wanted.as_str()) == segment(lock)
        })
    };
    let mut lines: Vec<(u64, String)> = Vec::new();
    for call in history.calls.iter().filter(|call| near(call.ended) || near(call.invoked)) {
        if call.asked.lock().is_none_or(|lock| concerns(lock.as_str())) {
            let Call { owner, request, asked, invoked, ended, outcome, .. } = call;
            let took = (ended - invoked) / MILLISECOND;
            let outcome = match outcome {
                Outcome::Yes(Answer::Lock { revision, .. } | Answer::Locks { revision, .. }) => {
                    format!("as of {revision}")
                }
                Outcome::No(error) => error.to_string(),
                outcome => format!("{outcome:?}"),
            };
            lines.push((*ended, format!("{owner} {request} {asked:?}, asked {took} ms before: {outcome}")));
        }
    }
    for belief in history.beliefs.iter().filter(|belief| concerns(belief.claim.lock.as_str())) {
        for (time, what) in [(belief.from, "begins"), (belief.until, "ends")] {
            if near(time) {
                let Belief { owner, claim, token, .. } = belief;
                lines.push((time, format!("{owner} {what} to believe in {claim:?}, token {token}")));
            }
        }
    }
    for (number, watched) in history.watched.iter().enumerate() {
        for (time, event) in
            watched.events.iter().filter(|(time, event)| near(*time) && concerns(&event.name))
        {
            let WatchEvent { name, owner, fencing_token, lease_id, revision, ordinal, .. } = event;
            let kind = event.r#type();
            let what = format!("{kind:?} {name} {owner} token {fencing_token} lease {lease_id}");
            lines.push((*time, format!("watcher {number} sees {revision}.{ordinal} {what}")));
        }
    }
    lines.sort();
    // Those that are nearest tell most.
    while lines.len() > LINES_MAX {
        let (first, last) = (lines[0].0.abs_diff(at), lines[lines.len() - 1].0.abs_diff(at));
        match first > last {
            true => lines.remove(0),
            false => lines.remove(lines.len() - 1),
        };
    }
    let told = |(time, line): (u64, String)| {
        let sign = if time < at { '-' } else { '+' };
        format!("{sign}{:>5} ms  {line}", time.abs_diff(at) / MILLISECOND)
    };
    lines.into_iter().map(told).collect()
}
