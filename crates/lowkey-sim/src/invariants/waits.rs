//! What a waiter is told (`docs/internals/invariants.md`, point 3; R7, R10).
//!
//! A timeout is told only from the entry that ended the wait, and never to a request that had been
//! granted. How long a wait was is never told too long: validity is counted from it. When all is quiet,
//! whoever waits is told of the end of its wait at once.

use std::collections::BTreeMap;

use lowkey_core::{Command, Event, RequestId, Ticket, WaitEnd};
use lowkey_replica::{Failure, Response};

use super::{Check, Committed, Ledger, broken};
use crate::plan::MILLISECOND;

const NAME: &str = "waits";
/// Clocks run at most so many thousandths too fast.
const SKEW_PERMILLE: u64 = 41;
/// How long it may take, when all is quiet, until a waiter hears of its wait's end.
const NEWS_NANOS: u64 = 1_000 * MILLISECOND;

/// One place in a queue.
struct WaitPlace {
    ticket: Ticket,
    since: u64,
    end: Option<End>,
}

struct End {
    revision: u64,
    at: u64,
    how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Granted,
    Cancelled,
    GivenUp,
    LeaseGone,
}

#[derive(Default)]
pub(crate) struct WaitRecords {
    /// The places that a request ever had, in order.
    places: BTreeMap<RequestId, Vec<WaitPlace>>,
    requests: BTreeMap<Ticket, RequestId>,
    pub(crate) granted: u64,
    pub(crate) timeouts: u64,
}

impl WaitRecords {
    pub(crate) fn committed(&mut self, committed: &Committed, ledger: &Ledger, now: u64) {
        if let Command::Acquire { request, .. } = &committed.command
            && let Some(waiting) = ledger.waiters.last().filter(|last| last.ticket.0 == committed.index)
        {
            let place = WaitPlace { ticket: waiting.ticket, since: now, end: None };
            self.requests.insert(waiting.ticket, request.clone());
            self.places.entry(request.clone()).or_default().push(place);
        }
        for event in &committed.applied.events {
            let Event::WaitEnded { ticket, end } = event else { continue };
            let how = match end {
                WaitEnd::Granted(_) => How::Granted,
                WaitEnd::Cancelled { .. } => How::Cancelled,
                WaitEnd::GivenUp { .. } => How::GivenUp,
                WaitEnd::LeaseGone { .. } => How::LeaseGone,
            };
            let places = self.requests.get(ticket).and_then(|request| self.places.get_mut(request));
            let place = places.into_iter().flatten().find(|place| place.ticket == *ticket);
            if let Some(place) = place {
                place.end = Some(End { revision: committed.index, at: now, how });
            }
        }
    }

    /// The end of a request's wait in this way, and since when it had waited.
    fn ended(&self, request: &RequestId, how: How) -> Option<(&WaitPlace, &End)> {
        let places = self.places.get(request).into_iter().flatten();
        places.filter_map(|place| Some((place, place.end.as_ref()?))).find(|(_, end)| end.how == how)
    }

    /// A node answers a request that may have waited.
    pub(crate) fn answered(
        &mut self,
        request: &RequestId,
        answer: &Result<Response, Failure>,
        now: u64,
    ) -> Check {
        match answer {
            Ok(Response::GrantedAfter { waited_ms, .. }) => {
                let Some((place, _)) = self.ended(request, How::Granted) else {
                    return broken(NAME, format!("{request} is told of a grant, and still waits"));
                };
                let waited = now - place.since;
                let counted = waited + waited / 1000 * SKEW_PERMILLE + MILLISECOND;
                if waited_ms * MILLISECOND > counted {
                    return broken(
                        NAME,
                        format!("{request} waited {} ms, and is told {waited_ms}", waited / MILLISECOND),
                    );
                }
                self.granted += 1;
            }
            Err(Failure::WaitTimeout { .. }) => {
                let Some((_, cancelled)) = self.ended(request, How::Cancelled) else {
                    return broken(
                        NAME,
                        format!("{request} is told of a timeout, and its place is not gone"),
                    );
                };
                if let Some((_, granted)) = self.ended(request, How::Granted)
                    && granted.revision < cancelled.revision
                {
                    return broken(NAME, format!("{request} was granted, and is told of a timeout"));
                }
                self.timeouts += 1;
            }
            Err(Failure::WaitGivenUp { .. }) if self.ended(request, How::GivenUp).is_none() => {
                return broken(NAME, format!("{request} is told that it gave up, and it did not"));
            }
            _ => {}
        }
        Ok(())
    }

    /// A caller has waited since then for an answer to this request, and nothing is broken: its wait has
    /// not been over for long.
    pub(crate) fn is_told(&self, request: &RequestId, asked_at: u64, now: u64) -> Check {
        let Some(place) = self.places.get(request).and_then(|places| places.last()) else { return Ok(()) };
        match &place.end {
            Some(end) if now.saturating_sub(end.at.max(asked_at)) > NEWS_NANOS => {
                let ms = (now - end.at) / MILLISECOND;
                broken(
                    NAME,
                    format!("the wait of {request} ended {ms} ms ago ({:?}): it was not told", end.how),
                )
            }
            _ => Ok(()),
        }
    }
}
