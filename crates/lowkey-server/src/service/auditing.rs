//! Grants that are over, asked of this node's audit, and of other nodes' where this one has a gap.
//!
//! Any node answers. It first asks how far the log is committed, and waits until its own recorder has come that far: what
//! ended before the question is in the answer. Order is by position, and the same on all nodes, so that the answers of
//! two nodes are merged by position.

use std::time::Duration;

use lowkey_api::v1::{AuditGap, AuditedGrant, QueryAuditRequest, QueryAuditResponse};
use lowkey_api::{ApiError, Position, Reason};
use lowkey_audit::{Happening, Page, Query};
use lowkey_core::{Caller, GroupId, MemberId};
use prost::Message as _;
use tokio::time::{Instant, sleep, timeout};

use super::{PassedOn, Service, check_standing, refusal};
use crate::access::Permitted;
use crate::audit::Audit;
use crate::lane::Lane;
use crate::operation::{audit_query, audited};
use crate::peers::proto::ReadRevisionRequest;
use crate::peers::proto::forward_reply::Outcome;

/// The number between nodes of a question for the asked node's own audit.
pub(super) const READ_AUDIT: u32 = 40;
/// How long a question waits until this node has recorded what happened before it.
const RECORDED_WAIT: Duration = Duration::from_secs(5);
/// How long another node may take to answer for its audit.
const OTHERS_WAIT: Duration = Duration::from_secs(2);
/// How long a node that is asked by another one waits until it has recorded what happened before. Then it answers
/// as far as it has come: that leaves the other one half the time that it waits.
const ASKED_WAIT: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(2);

impl Service {
    /// The audit, if this node keeps one.
    pub(crate) fn audit(&self) -> Result<&Audit, ApiError> {
        self.audit.as_deref().ok_or_else(|| {
            let message = "this node keeps no audit (--audit off); ask a node that does";
            ApiError::new(Reason::AuditOff, message)
        })
    }

    /// A page of grants that are over, of this node and, where it has a gap, of others.
    pub(crate) async fn audit_page(
        &self,
        permitted: &Permitted<QueryAuditRequest>,
    ) -> Result<QueryAuditResponse, ApiError> {
        // Before it waits for anything: what is not valid is refused at once.
        query_of(permitted.wanted())?;
        self.audit_recorded(permitted).await?;
        self.audit_page_recorded(permitted).await
    }

    /// The same for a call that has waited already until this node has recorded what happened before it.
    pub(crate) async fn audit_page_recorded(
        &self,
        permitted: &Permitted<QueryAuditRequest>,
    ) -> Result<QueryAuditResponse, ApiError> {
        let request = permitted.wanted();
        let query = query_of(request)?;
        let count_max = query.count_max;
        let mut page = told(find(self.audit()?, query).await?, request);
        for other in self.others() {
            if page.gaps.is_empty() {
                break;
            }
            if let Some(theirs) = self.ask_other(other, permitted).await {
                page = match request.newest_first {
                    false => merged(page, theirs, count_max),
                    true => merged_newest(page, theirs, count_max),
                };
            }
        }
        Ok(page)
    }

    /// Rows of this node alone, in any order.
    pub(crate) async fn audit_rows(&self, query: Query) -> Result<Page, ApiError> {
        find(self.audit()?, query).await
    }

    /// What happened to the cluster, as this node saw it.
    pub(crate) async fn happenings(&self, since_unix_ms: u64) -> Result<Vec<Happening>, ApiError> {
        self.audit()?.read(move |reader| reader.happenings(since_unix_ms, 100)).await
    }

    /// Waits until this node's recorder has what the leader had applied.
    pub(crate) async fn audit_recorded<T>(&self, permitted: &Permitted<T>) -> Result<u64, ApiError> {
        self.audit_recorded_within(permitted, RECORDED_WAIT).await
    }

    async fn audit_recorded_within<T>(
        &self,
        permitted: &Permitted<T>,
        wait: Duration,
    ) -> Result<u64, ApiError> {
        let audit = self.audit()?;
        let lane = self.lanes.root();
        check_standing(lane)?;
        let committed = self.operate(permitted.as_part(ReadRevisionRequest {})).await?.revision;
        audit.flush_refusals();
        let deadline = Instant::now() + wait;
        loop {
            let standing = audit.standing();
            if standing.recorded >= committed {
                return Ok(committed);
            }
            if standing.failure.is_some() || Instant::now() >= deadline {
                let why = standing.failure.unwrap_or_else(|| "it is behind".to_owned());
                let message =
                    format!("this node's audit is not complete yet ({why}); ask again, or another node");
                return Err(ApiError::new(Reason::AuditBehind, message).retry_after_ms(1_000));
            }
            audit.hurry();
            sleep(LOOK).await;
        }
    }

    fn others(&self) -> Vec<MemberId> {
        let lane = self.lanes.root();
        let status = lane.view.status();
        status.members.iter().map(|known| known.member).filter(|member| *member != lane.view.own()).collect()
    }

    async fn ask_other(
        &self,
        other: MemberId,
        permitted: &Permitted<QueryAuditRequest>,
    ) -> Option<QueryAuditResponse> {
        let forwarder = self.forwarders.get(other)?;
        let (request, caller) = (permitted.wanted().encode_to_vec(), permitted.caller());
        let mut asked = PassedOn::send(forwarder, GroupId::ROOT, READ_AUDIT, request, caller)?;
        match timeout(OTHERS_WAIT, asked.answer()).await {
            Ok(Ok(Outcome::Response(bytes))) => QueryAuditResponse::decode(bytes.as_slice()).ok(),
            _ => None,
        }
    }

    /// Answers another node for this node's own audit.
    pub(super) async fn answer_audit(&self, lane: &Lane, request: &[u8], caller: &Caller) -> Outcome {
        let answer = async {
            let request = QueryAuditRequest::decode(request)
                .map_err(|error| ApiError::new(Reason::Internal, error.to_string()))?;
            let permitted = lane.view.guard.permit_forwarded(caller, request)?;
            let request = permitted.wanted();
            let query = query_of(request)?;
            let audit = self.audit()?;
            // What it has not recorded yet is no failure: the page says how far it goes.
            let _ = timeout(ASKED_WAIT, self.audit_recorded_within(&permitted, ASKED_WAIT)).await;
            Ok(told(find(audit, query).await?, request))
        };
        match answer.await {
            Ok(page) => Outcome::Response(page.encode_to_vec()),
            Err(error) => refusal(error),
        }
    }
}

fn query_of(request: &QueryAuditRequest) -> Result<Query, ApiError> {
    audit_query(request).map_err(|invalid| ApiError::invalid(invalid.field, invalid.problem))
}

async fn find(audit: &Audit, query: Query) -> Result<Page, ApiError> {
    audit.read(move |reader| reader.find(&query)).await
}

fn told(page: Page, request: &QueryAuditRequest) -> QueryAuditResponse {
    let more = page.rows.len() == audit_query(request).map_or(0, |query| query.count_max);
    QueryAuditResponse {
        grants: page.rows.iter().map(audited).collect(),
        through: Position { revision: page.through.revision, ordinal: page.through.ordinal }.to_string(),
        gaps: page.gaps.iter().map(gap).collect(),
        more,
    }
}

fn gap(gap: &lowkey_audit::Gap) -> AuditGap {
    AuditGap { after_revision: gap.after, through_revision: gap.through, cause: gap.cause.name().to_owned() }
}

/// What two nodes know together. The other one only fills gaps: what this node has stays, as far as it has looked.
fn merged(own: QueryAuditResponse, theirs: QueryAuditResponse, count_max: usize) -> QueryAuditResponse {
    let mut through = position(&own.through);
    let theirs_through = position(&theirs.through).revision;
    let mut gaps: Vec<_> = own.gaps.iter().flat_map(|gap| left(gap, &theirs.gaps, theirs_through)).collect();
    let mut grants: Vec<AuditedGrant> = own.grants.into_iter().chain(theirs.grants).collect();
    grants.retain(|grant| position(&grant.position) <= through);
    grants.sort_by_key(|grant| position(&grant.position));
    grants.dedup_by_key(|grant| position(&grant.position));
    let mut more = own.more;
    if grants.len() >= count_max {
        // The next page begins behind the last row that fits, and tells of the gaps behind it.
        grants.truncate(count_max);
        more = true;
        through = grants.last().map_or(through, |last| position(&last.position));
        gaps.retain(|gap| gap.after_revision < through.revision);
    }
    QueryAuditResponse { grants, through: through.to_string(), gaps, more }
}

/// The same for the last grants, the last first: as far back as this node has looked.
fn merged_newest(
    own: QueryAuditResponse,
    theirs: QueryAuditResponse,
    count_max: usize,
) -> QueryAuditResponse {
    let begin = |page: &QueryAuditResponse| match page.grants.last() {
        Some(oldest) if page.more => position(&oldest.position),
        _ => Position { revision: 0, ordinal: 0 },
    };
    let own_begin = begin(&own);
    let theirs_through = position(&theirs.through).revision;
    // The other node has not looked at what is before its oldest row.
    let before = AuditGap { through_revision: begin(&theirs).revision, ..AuditGap::default() };
    let unknown: Vec<AuditGap> = theirs.gaps.into_iter().chain([before]).collect();
    let mut gaps: Vec<_> = own.gaps.iter().flat_map(|gap| left(gap, &unknown, theirs_through)).collect();
    let mut grants: Vec<AuditedGrant> = own.grants.into_iter().chain(theirs.grants).collect();
    grants.retain(|grant| position(&grant.position) >= own_begin);
    grants.sort_by_key(|grant| std::cmp::Reverse(position(&grant.position)));
    grants.dedup_by_key(|grant| position(&grant.position));
    let mut more = own.more;
    if grants.len() > count_max {
        grants.truncate(count_max);
        more = true;
        let oldest = grants.last().map_or(0, |last| position(&last.position).revision);
        gaps.retain(|gap| gap.through_revision >= oldest);
    }
    QueryAuditResponse { grants, through: own.through, gaps, more }
}

/// What is left of a gap here: what lies in one there, or behind what that node has looked at.
fn left(own: &AuditGap, theirs: &[AuditGap], through: u64) -> Vec<AuditGap> {
    let unknown = theirs.iter().map(|gap| (gap.after_revision, gap.through_revision));
    let mut unknown: Vec<(u64, u64)> = unknown
        .chain([(through, u64::MAX)])
        .map(|(after, through)| (after.max(own.after_revision), through.min(own.through_revision)))
        .filter(|(after, through)| after < through)
        .collect();
    unknown.sort_unstable();
    let mut left: Vec<AuditGap> = Vec::new();
    for (after_revision, through_revision) in unknown {
        match left.last_mut().filter(|last| after_revision <= last.through_revision) {
            Some(last) => last.through_revision = last.through_revision.max(through_revision),
            None => left.push(AuditGap { after_revision, through_revision, cause: own.cause.clone() }),
        }
    }
    left
}

fn position(text: &str) -> Position {
    text.parse().unwrap_or(Position { revision: 0, ordinal: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(revisions: &[u64], through: &str, gaps: &[(u64, u64)]) -> QueryAuditResponse {
        let grant =
            |revision: &u64| AuditedGrant { position: format!("{revision}.0"), ..AuditedGrant::default() };
        let gap = |(after_revision, through_revision): &(u64, u64)| AuditGap {
            after_revision: *after_revision,
            through_revision: *through_revision,
            cause: "lost".into(),
        };
        QueryAuditResponse {
            grants: revisions.iter().map(grant).collect(),
            through: through.into(),
            gaps: gaps.iter().map(gap).collect(),
            more: false,
        }
    }

    const MANY: usize = 100;

    #[test]
    fn the_last_grants_of_two_nodes_are_merged_and_what_neither_looked_at_stays_a_gap() {
        let own = page(&[9, 3, 2], "10", &[(3, 8)]);
        let part = QueryAuditResponse { more: true, ..page(&[9, 6, 4], "10", &[]) };
        assert_eq!(merged_newest(own.clone(), part, MANY), page(&[9, 6, 4, 3, 2], "10", &[(3, 4)]));
        // One that is behind takes no row away.
        assert_eq!(merged_newest(own, page(&[2], "3", &[]), MANY), page(&[9, 3, 2], "10", &[(3, 8)]));
        let full = merged_newest(page(&[9, 3], "10", &[(3, 8)]), page(&[9, 6, 3], "10", &[]), 2);
        assert_eq!(full, QueryAuditResponse { more: true, ..page(&[9, 6], "10", &[]) });
    }

    #[test]
    fn a_gap_of_one_node_is_filled_by_another() {
        let own = page(&[2, 9], "10", &[(3, 8)]);
        let whole = page(&[2, 4, 6, 9], "10", &[]);
        assert_eq!(merged(own.clone(), whole, MANY), page(&[2, 4, 6, 9], "10", &[]));
        let other_gap = page(&[2, 6, 9], "10", &[(1, 5)]);
        assert_eq!(merged(own, other_gap, MANY), page(&[2, 6, 9], "10", &[(3, 5)]));
    }

    #[test]
    fn another_node_that_is_behind_takes_no_row_away() {
        let own = page(&[2, 9, 20], "20", &[(3, 8)]);
        let behind = page(&[2, 4], "5", &[]);
        assert_eq!(merged(own.clone(), behind, MANY), page(&[2, 4, 9, 20], "20", &[(5, 8)]));
        // It has a gap of its own, which reaches to where it has come.
        let worse = page(&[2], "5", &[(2, 6)]);
        assert_eq!(merged(own.clone(), worse, MANY), page(&[2, 9, 20], "20", &[(3, 8)]));
        // One that keeps nothing fills nothing.
        assert_eq!(merged(own.clone(), page(&[], "0", &[]), MANY), own);
    }

    #[test]
    fn a_page_that_is_full_ends_behind_its_last_row_and_says_that_there_is_more() {
        let own = page(&[2, 9], "10", &[(3, 8)]);
        let full = QueryAuditResponse { more: true, ..page(&[2, 4, 5], "5.0", &[]) };
        let merged = merged(own, full, 3);
        // The gap goes on behind it: with the page that is asked for next, it is filled.
        assert_eq!(merged, QueryAuditResponse { more: true, ..page(&[2, 4, 5], "5.0", &[]) });
    }

    #[test]
    fn what_another_node_knows_beyond_this_one_is_for_a_later_question() {
        let own = page(&[2, 9], "10", &[(3, 8)]);
        let ahead = page(&[2, 4, 9, 11], "12", &[]);
        assert_eq!(merged(own, ahead, MANY), page(&[2, 4, 9], "10", &[]));
    }
}
