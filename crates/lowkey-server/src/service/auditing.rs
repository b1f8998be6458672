//! Grants that are over, asked of this node's audit, and of other nodes' where this one has a gap.
//!
//! Any node answers. It first asks how far the log is committed, and waits until its own recorder has come that far: what
//! ended before the question is in the answer. Order is by position, and the same on all nodes, so that the answers of
//! two nodes are merged by position.

use std::time::Duration;

use lowkey_api::v1::{AuditGap, AuditedGrant, QueryAuditRequest, QueryAuditResponse};
use lowkey_api::{ApiError, Position, Reason};
use lowkey_audit::{Happening, Page, Query, Reader};
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
        let request = permitted.wanted();
        let query = audit_query(request).map_err(|it| ApiError::invalid(it.field, it.problem))?;
        self.audit_recorded(permitted).await?;
        let own = told(find(self.audit()?, query).await?, request);
        if own.gaps.is_empty() {
            return Ok(own);
        }
        let others = self.others();
        let mut page = own;
        for other in others {
            if let Some(theirs) = self.ask_other(other, permitted).await {
                page = match request.newest_first {
                    false => merged(page, theirs),
                    true => merged_newest(page, theirs),
                };
            }
            if page.gaps.is_empty() {
                break;
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
        let reader = self.audit()?.reader();
        read(reader, move |reader| reader.happenings(since_unix_ms, 100)).await
    }

    /// Waits until this node's recorder has what the leader had applied.
    pub(crate) async fn audit_recorded<T>(&self, permitted: &Permitted<T>) -> Result<u64, ApiError> {
        let audit = self.audit()?;
        let lane = self.lanes.root();
        check_standing(lane)?;
        let committed = self.operate(permitted.as_part(ReadRevisionRequest {})).await?.revision;
        audit.flush_refusals();
        let deadline = Instant::now() + RECORDED_WAIT;
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
            let request = lane.view.guard.permit_forwarded(caller, request)?.into_wanted();
            let query = audit_query(&request).map_err(|it| ApiError::invalid(it.field, it.problem))?;
            let audit = self.audit()?;
            audit.hurry();
            Ok(told(find(audit, query).await?, &request))
        };
        match answer.await {
            Ok(page) => Outcome::Response(page.encode_to_vec()),
            Err(error) => refusal(error),
        }
    }
}

async fn find(audit: &Audit, query: Query) -> Result<Page, ApiError> {
    read(audit.reader(), move |reader| reader.find(&query)).await
}

/// Reads files, which may take long, beside the runtime's threads.
async fn read<T: Send + 'static>(
    reader: Reader,
    ask: impl FnOnce(&Reader) -> Result<T, lowkey_audit::AuditError> + Send + 'static,
) -> Result<T, ApiError> {
    let failed = |what: String| ApiError::new(Reason::Internal, format!("the audit cannot be read: {what}"));
    match tokio::task::spawn_blocking(move || ask(&reader)).await {
        Ok(found) => found.map_err(|error| failed(error.to_string())),
        Err(error) => Err(failed(error.to_string())),
    }
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

pub(crate) fn gap(gap: &lowkey_audit::Gap) -> AuditGap {
    AuditGap { after_revision: gap.after, through_revision: gap.through, cause: gap.cause.name().to_owned() }
}

/// What two nodes know together, as far as both have looked.
fn merged(own: QueryAuditResponse, theirs: QueryAuditResponse) -> QueryAuditResponse {
    let through = |page: &QueryAuditResponse| position(&page.through);
    let end = through(&own).min(through(&theirs));
    let more = own.more || theirs.more;
    let gaps = own.gaps.iter().flat_map(|gap| common(gap, &theirs.gaps)).collect();
    let mut grants: Vec<AuditedGrant> = own.grants.into_iter().chain(theirs.grants).collect();
    grants.retain(|grant| position(&grant.position) <= end);
    grants.sort_by_key(|grant| position(&grant.position));
    grants.dedup_by_key(|grant| position(&grant.position));
    QueryAuditResponse { grants, through: end.to_string(), gaps, more }
}

/// The same for the last grants, the last first: as far back as both have looked.
fn merged_newest(own: QueryAuditResponse, theirs: QueryAuditResponse) -> QueryAuditResponse {
    let begin = |page: &QueryAuditResponse| match page.grants.last() {
        Some(oldest) if page.more => position(&oldest.position),
        _ => Position { revision: 0, ordinal: 0 },
    };
    let begin = begin(&own).max(begin(&theirs));
    let through = position(&own.through).max(position(&theirs.through)).to_string();
    let more = own.more || theirs.more;
    let gaps = own.gaps.iter().flat_map(|gap| common(gap, &theirs.gaps)).collect();
    let mut grants: Vec<AuditedGrant> = own.grants.into_iter().chain(theirs.grants).collect();
    grants.retain(|grant| position(&grant.position) >= begin);
    grants.sort_by_key(|grant| std::cmp::Reverse(position(&grant.position)));
    grants.dedup_by_key(|grant| position(&grant.position));
    QueryAuditResponse { grants, through, gaps, more }
}

/// What lies in a gap here and in one there.
fn common<'a>(own: &'a AuditGap, theirs: &'a [AuditGap]) -> impl Iterator<Item = AuditGap> + 'a {
    theirs.iter().filter_map(|gap| {
        let after_revision = own.after_revision.max(gap.after_revision);
        let through_revision = own.through_revision.min(gap.through_revision);
        let cause = own.cause.clone();
        (after_revision < through_revision).then_some(AuditGap { after_revision, through_revision, cause })
    })
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

    #[test]
    fn the_last_grants_of_two_nodes_are_merged_as_far_back_as_both_have_looked() {
        let own = page(&[9, 3, 2], "10", &[(3, 8)]);
        let part = QueryAuditResponse { more: true, ..page(&[9, 6, 4], "10", &[]) };
        let both = QueryAuditResponse { more: true, ..page(&[9, 6, 4], "10", &[]) };
        assert_eq!(merged_newest(own, part), both);
    }

    #[test]
    fn a_gap_of_one_node_is_filled_by_another_as_far_as_that_one_has_looked() {
        let own = page(&[2, 9], "10", &[(3, 8)]);
        let whole = page(&[2, 4, 6, 9], "10", &[]);
        assert_eq!(merged(own.clone(), whole), page(&[2, 4, 6, 9], "10", &[]));
        // It has a gap of its own, and was full before it came to the end.
        let part = page(&[2, 6], "7.0", &[(3, 5)]);
        assert_eq!(merged(own, part), page(&[2, 6], "7.0", &[(3, 5)]));
    }
}
