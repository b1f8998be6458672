//! Questions about grants that are over: rows, and the story of a lock.

use lowkey_api::v1::{
    self, AuditedGrant, ExplainRequest, ExplainResponse, GetLeaseRequest, GetLockRequest, QueryAuditRequest,
    QueryAuditResponse,
};
use lowkey_api::{ApiError, Reason};
use lowkey_audit::{Cause, Position, Query, Row};
use lowkey_core::{Invalid, LockName, OwnerId};

use super::Answer;
use super::reads::page_size;
use crate::access::Permitted;
use crate::audit::story::{Story, StoryHolder};
use crate::edge::Node as _;
use crate::node::unix_ms;
use crate::service::{Service, audit_gap};

/// So many grants of a lock are looked at for what is odd.
const LOOKED_AT: usize = 100;
/// So many holders and waiters are asked about.
const HOLDERS_MAX: usize = 3;

impl Answer for QueryAuditRequest {
    async fn answer(call: Permitted<Self>, service: &Service) -> Result<QueryAuditResponse, ApiError> {
        let timed = service.metrics.begin("QueryAudit");
        let outcome = service.audit_page(&call).await;
        timed.end(&outcome);
        outcome
    }
}

/// What a request asks the audit for.
pub(crate) fn audit_query(request: &QueryAuditRequest) -> Result<Query, Invalid> {
    let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    if !request.lock_name.is_empty() {
        LockName::parse(request.lock_name.strip_suffix('/').unwrap_or(&request.lock_name))?;
    }
    if request.newest_first && !request.after.is_empty() {
        return Err(Invalid::new("after", "cannot be given with newest_first, which has one page"));
    }
    if !request.owner_id.is_empty() {
        OwnerId::parse(&request.owner_id)?;
    }
    let cause = match request.cause.as_str() {
        "" => None,
        name => Some(Cause::named(name).ok_or_else(|| {
            let names = Cause::ALL.map(Cause::name).join(", ");
            Invalid::new("cause", format!("must be one of {names}"))
        })?),
    };
    let since_unix_ms = u64::try_from(request.since_unix_ms)
        .map_err(|_| Invalid::new("since_unix_ms", "must be milliseconds since 1970, from 0"))?;
    let after = match request.after.as_str() {
        "" => Position::default(),
        text => {
            let position: lowkey_api::Position =
                text.parse().map_err(|problem| Invalid::new("after", format!("{problem}")))?;
            Position { revision: position.revision, ordinal: position.ordinal }
        }
    };
    Ok(Query {
        lock: given(&request.lock_name),
        owner: given(&request.owner_id),
        token: (request.fencing_token != 0).then_some(request.fencing_token),
        since_unix_ms: (since_unix_ms != 0).then_some(since_unix_ms),
        cause,
        after,
        count_max: page_size(request.page_size)?,
        newest_first: request.newest_first,
        ..Query::default()
    })
}

/// A row, as clients are told of it.
pub(crate) fn audited(row: &Row) -> AuditedGrant {
    let ms = |unix_ms: u64| i64::try_from(unix_ms).unwrap_or(i64::MAX);
    AuditedGrant {
        lock_name: row.lock.clone(),
        fencing_token: row.token,
        owner_id: row.owner.clone(),
        lease_id: row.lease,
        mode: if row.is_shared { v1::Mode::Shared } else { v1::Mode::Exclusive }.into(),
        scope: if row.is_subtree { v1::Scope::Subtree } else { v1::Scope::Name }.into(),
        ttl_seconds: row.ttl_seconds,
        asked_unix_ms: ms(row.asked_unix_ms.unwrap_or(0)),
        granted_unix_ms: ms(row.granted_unix_ms),
        granted_revision: row.granted_revision,
        ended_unix_ms: ms(row.ended_unix_ms.unwrap_or(0)),
        ended_revision: row.ended.revision,
        position: format!("{}.{}", row.ended.revision, row.ended.ordinal),
        cause: row.cause.name().to_owned(),
        detail: row.detail(),
        actor: row.actor.clone().unwrap_or_default(),
        term: row.term,
        cluster_id: row.cluster.clone(),
        perhaps_uncommitted: row.is_perhaps_uncommitted,
    }
}

impl Answer for ExplainRequest {
    async fn answer(call: Permitted<Self>, service: &Service) -> Result<ExplainResponse, ApiError> {
        let timed = service.metrics.begin("Explain");
        let outcome = explain(&call, service).await;
        timed.end(&outcome);
        outcome
    }
}

async fn explain(call: &Permitted<ExplainRequest>, service: &Service) -> Result<ExplainResponse, ApiError> {
    let request = call.wanted();
    let lock = LockName::parse(&request.lock_name)
        .map_err(|invalid| ApiError::invalid(invalid.field, invalid.problem))?;
    let name = lock.as_str().to_owned();
    // First who holds it now, then what is over: so that nothing falls between the two. A grant that ends meanwhile is in
    // both, and is told once. The node asks for itself: who may be told the story (verb `audit`, judged already) may be
    // told this part of it, without `read` on the lock or leases of its own.
    let now = GetLockRequest { lock_name: name.clone(), stale: false };
    let now = service.operate(service.guard().for_node(now)).await?;
    let revision = service.audit_recorded(call).await?;
    let of_lock = Query { lock: Some(name.clone()), ..Query::default() };
    let newest = Query { newest_first: true, count_max: LOOKED_AT, ..of_lock.clone() };
    let page = service.audit_rows(newest).await?;
    let mut rows = page.rows;
    let mut gaps: Vec<_> = page.gaps.iter().map(audit_gap).collect();
    let mut holders = Vec::new();
    for holder in now.holders.iter().take(HOLDERS_MAX) {
        let lease = GetLeaseRequest { lease_id: holder.lease_id, page_size: 1, ..GetLeaseRequest::default() };
        let lease = service.operate(service.guard().for_node(lease)).await.ok().and_then(|lease| lease.lease);
        let ttl_seconds = lease.map_or(0, |lease| lease.ttl_seconds);
        holders.push(StoryHolder { holder: holder.clone(), ttl_seconds });
    }
    let mut token_rows = Vec::new();
    if request.fencing_token != 0 {
        let token = request.fencing_token;
        token_rows = rows_of_token((call, service), &name, token, &mut gaps).await?;
        if let Some(row) = token_rows.first() {
            // A later grant ended later than this one was made: what ended before is not looked through.
            let after = Position { revision: row.granted_revision, ordinal: 0 };
            let next = Query { token_above: Some(token), after, count_max: 1, ..of_lock };
            token_rows.extend(service.audit_rows(next).await?.rows);
        }
        rows.clear();
    }
    rows.retain(|row| !now.holders.iter().any(|holder| holder.fencing_token == row.token));
    let since = unix_ms().saturating_sub(24 * 3600 * 1000);
    let happenings = service.happenings(since).await?;
    let story =
        Story { now_unix_ms: unix_ms(), lock: &now, holders: &holders, rows: &rows, happenings: &happenings };
    let (sentences, oddities) = match request.fencing_token {
        0 => (story.sentences(), story.oddities()),
        token => (story.of_token(token, &token_rows), Vec::new()),
    };
    let told = if request.fencing_token == 0 { &rows[..rows.len().min(20)] } else { &token_rows[..] };
    let mut sentences = sentences;
    if !gaps.is_empty() {
        sentences.push(format!(
            "Not everything is on record here: {} gap(s) lie before revision {}; `lowkey audit query` tells where.",
            gaps.len(),
            gaps.iter().map(|gap| gap.through_revision).max().unwrap_or(0)
        ));
    }
    Ok(ExplainResponse {
        lock_name: name,
        sentences,
        oddities,
        grants: told.iter().map(audited).collect(),
        holders: now.holders,
        waiters: now.waiters,
        waiter_count: now.waiter_count,
        gaps,
        revision,
    })
}

/// The grant with a token, also from other nodes if this one has it not and has gaps.
async fn rows_of_token(
    (call, service): (&Permitted<ExplainRequest>, &Service),
    lock: &str,
    token: u64,
    gaps: &mut Vec<v1::AuditGap>,
) -> Result<Vec<Row>, ApiError> {
    let query = Query { lock: Some(lock.to_owned()), token: Some(token), count_max: 1, ..Query::default() };
    let found = service.audit_rows(query).await?.rows;
    if !found.is_empty() || gaps.is_empty() {
        gaps.clear();
        return Ok(found);
    }
    let request = QueryAuditRequest {
        lock_name: lock.to_owned(),
        fencing_token: token,
        ..QueryAuditRequest::default()
    };
    let page = service.audit_page(&call.as_part(request)).await?;
    *gaps = page.gaps;
    page.grants.into_iter().map(row_of).collect()
}

/// A row as another node told of it.
fn row_of(grant: AuditedGrant) -> Result<Row, ApiError> {
    let known = |ms: i64| u64::try_from(ms).ok().filter(|ms| *ms > 0);
    let cause = Cause::named(&grant.cause)
        .ok_or_else(|| ApiError::new(Reason::Internal, format!("no such cause: {}", grant.cause)))?;
    Ok(Row {
        cluster: grant.cluster_id,
        lock: grant.lock_name,
        token: grant.fencing_token,
        owner: grant.owner_id,
        lease: grant.lease_id,
        is_shared: grant.mode == i32::from(v1::Mode::Shared),
        is_subtree: grant.scope == i32::from(v1::Scope::Subtree),
        ttl_seconds: grant.ttl_seconds,
        asked_unix_ms: known(grant.asked_unix_ms),
        granted_unix_ms: known(grant.granted_unix_ms).unwrap_or(0),
        granted_revision: grant.granted_revision,
        ended_unix_ms: known(grant.ended_unix_ms),
        ended: Position { revision: grant.ended_revision, ordinal: 0 },
        term: grant.term,
        cause,
        actor: (!grant.actor.is_empty()).then_some(grant.actor),
        silence: None,
        is_perhaps_uncommitted: grant.perhaps_uncommitted,
    })
}
