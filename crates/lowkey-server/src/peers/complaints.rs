//! Log messages about nodes that cannot be reached, or that are refused. Connecting is tried many times a
//! second, but logged once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lowkey_core::MemberId;
use tokio::time::Instant;
use tracing::field::{DisplayValue, display};

use crate::lane::Lanes;

/// The shortest time until another cause is logged, or the same refusal again.
const INTERVAL: Duration = Duration::from_secs(30);
/// An attempt that lasted this long got through: a silent peer is given up sooner than this.
const REACHED_AFTER: Duration = Duration::from_secs(5);
/// How many causes are remembered. They come from other nodes, which may make up many.
const CAUSES_MAX: usize = 64;

/// A member's name, for the field `node` of a log line: people know nodes by their names, not by their numbers.
/// Nothing while it is not registered.
pub(super) fn name_of(member: MemberId, lanes: &Lanes) -> Option<DisplayValue<String>> {
    let status = lanes.root().view.status();
    let known = status.members.iter().find(|known| known.member == member)?;
    Some(display(known.node.name.to_string()))
}

/// What was logged about one member, by any task of its link. It is logged once until the member takes
/// messages again.
#[derive(Clone)]
pub(super) struct OfMember {
    said: Arc<Mutex<Said>>,
    lanes: Lanes,
}

#[derive(Default)]
struct Said {
    unreached: Once,
    refused: Once,
}

impl OfMember {
    pub(super) fn new(lanes: Lanes) -> Self {
        Self { said: Arc::default(), lanes }
    }

    /// An attempt that began at `since` failed.
    pub(super) fn failed(&self, to: MemberId, what: &str, since: Instant, status: Option<tonic::Status>) {
        let now = Instant::now();
        if now - since >= REACHED_AFTER {
            self.reached();
        }
        let Some(status) = status else { return };
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let node = name_of(to, &self.lanes);
        match transport_error(&status) {
            Some(cause) if said.unreached.is_news(&cause, now) => {
                tracing::warn!(member = to.0, node, cause, "cannot reach a member ({what}); trying again");
            }
            None if said.refused.is_news(status.message(), now) => {
                let cause = status.message();
                tracing::warn!(
                    member = to.0,
                    node,
                    cause,
                    "a member refuses this node ({what}); trying again"
                );
            }
            _ => {}
        }
    }

    /// The member takes what is sent to it.
    pub(super) fn reached(&self) {
        *self.said.lock().unwrap_or_else(PoisonError::into_inner) = Said::default();
    }
}

/// Reports one cause, and another one only after a while.
#[derive(Default)]
struct Once(Option<(String, Instant)>);

impl Once {
    fn is_news(&mut self, cause: &str, now: Instant) -> bool {
        let is_news = match &self.0 {
            None => true,
            Some((said, at)) => said != cause && now - *at >= INTERVAL,
        };
        if is_news {
            self.0 = Some((cause.to_owned(), now));
        }
        is_news
    }
}

/// Reports each cause once in a while, no matter how many there are at a time.
#[derive(Default)]
pub(super) struct Rarely {
    said: BTreeMap<String, Instant>,
}

impl Rarely {
    /// True if this cause was not logged recently.
    pub(super) fn is_news(&mut self, cause: &str) -> bool {
        self.is_news_at(cause, Instant::now())
    }

    fn is_news_at(&mut self, cause: &str, now: Instant) -> bool {
        self.said.retain(|_, at| now - *at < INTERVAL);
        if self.said.contains_key(cause) || self.said.len() >= CAUSES_MAX {
            return false;
        }
        self.said.insert(cause.to_owned(), now);
        true
    }
}

/// Why a connection failed. `None` if it did not fail, and the member itself refused. The innermost cause
/// says most: "connection refused" rather than "transport error".
fn transport_error(status: &tonic::Status) -> Option<String> {
    let mut cause = std::error::Error::source(status)?;
    while let Some(source) = cause.source() {
        cause = source;
    }
    Some(cause.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_is_away_is_told_of_once_and_a_new_cause_after_a_while() {
        let (mut once, begin) = (Once::default(), Instant::now());
        let after = |seconds| begin + Duration::from_secs(seconds);
        assert!(once.is_news("refused", begin));
        for seconds in 0..29 {
            assert!(!once.is_news("refused", after(seconds)));
            assert!(!once.is_news("timed out", after(seconds)), "causes alternate");
        }
        assert!(!once.is_news("refused", after(3_600)), "however long it lasts");
        assert!(once.is_news("timed out", after(3_601)));
    }

    #[test]
    fn who_answers_no_is_not_taken_for_one_who_is_away() {
        let refusal = tonic::Status::failed_precondition("this node belongs to cluster 7");
        assert_eq!(transport_error(&refusal), None);
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let away = tonic::Status::from_error(Box::new(refused));
        assert_eq!(transport_error(&away).as_deref(), Some("connection refused"));
    }

    #[test]
    fn refusals_are_told_each_by_itself_and_not_without_end() {
        let (mut rarely, begin) = (Rarely::default(), Instant::now());
        for _ in 0..3 {
            rarely.is_news_at("of another cluster", begin);
            rarely.is_news_at("not known here yet", begin);
        }
        assert!(
            !rarely.is_news_at("of another cluster", begin)
                && !rarely.is_news_at("not known here yet", begin)
        );
        let made_up = (0..1_000).filter(|number| rarely.is_news_at(&number.to_string(), begin)).count();
        assert_eq!(made_up, CAUSES_MAX - 2);
        assert!(rarely.is_news_at("of another cluster", begin + INTERVAL));
    }
}
