//! Questions about grants that are over: rows, and the story of a lock.

use lowkey_api::v1::{
    self, AuditedGrant, ExplainRequest, ExplainResponse, GetLeaseRequest, GetLockRequest, QueryAuditRequest,
    QueryAuditResponse,
};
use lowkey_api::{ApiError, Reason};
use lowkey_audit::{Cause, Position, Query, Row};
use lowkey_core::{Invalid, LockName, OwnerId, Silence};

use super::Answer;
use super::reads::page_size;
use crate::access::Permitted;
use crate::audit::story::{Story, StoryHolder};
use crate::edge::Node as _;
use crate::node::unix_ms;
use crate::service::Service;

/// So many grants of a lock are looked at for what is odd.
const LOOKED_AT: u32 = 100;
/// So many of them are told.
const TOLD_MAX: usize = 20;
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
        silent_ms: row.silence.map(|silence| ms(silence.silent_ms)),
        stalled_ms: row.silence.map_or(0, |silence| ms(silence.stalled_ms)),
        leader_changed: row.silence.is_some_and(|silence| silence.leader_changed),
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
    let mut holders = Vec::new();
    for holder in now.holders.iter().take(HOLDERS_MAX) {
        let lease = GetLeaseRequest { lease_id: holder.lease_id, page_size: 1, ..GetLeaseRequest::default() };
        let lease = service.operate(service.guard().for_node(lease)).await.ok().and_then(|lease| lease.lease);
        let ttl_seconds = lease.map_or(0, |lease| lease.ttl_seconds);
        holders.push(StoryHolder { holder: holder.clone(), ttl_seconds });
    }
    let audit = OfLock { call, service, name: &name };
    let (mut rows, gaps) = match request.fencing_token {
        0 => audit.last_rows().await?,
        // It is not over.
        token if holders.iter().any(|it| it.holder.fencing_token == token) => Default::default(),
        token => audit.rows_of_token(token).await?,
    };
    rows.retain(|row| !now.holders.iter().any(|holder| holder.fencing_token == row.token));
    let since = unix_ms().saturating_sub(24 * 3600 * 1000);
    let happenings = service.happenings(since).await?;
    let story =
        Story { now_unix_ms: unix_ms(), lock: &now, holders: &holders, rows: &rows, happenings: &happenings };
    let (sentences, oddities, told) = match request.fencing_token {
        0 => (story.sentences(), story.oddities(), &rows[..rows.len().min(TOLD_MAX)]),
        token => (story.of_token(token, &rows), Vec::new(), &rows[..]),
    };
    let mut sentences = sentences;
    if !gaps.is_empty() {
        sentences.push(format!(
            "Not everything is on record at the nodes that answered: {} gap(s) lie before revision {}; `lowkey audit query` tells where.",
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

/// The audit of one lock: this node's own, and other nodes' where this one has a gap.
struct OfLock<'a> {
    call: &'a Permitted<ExplainRequest>,
    service: &'a Service,
    name: &'a str,
}

impl OfLock<'_> {
    fn query(&self) -> Query {
        Query { lock: Some(self.name.to_owned()), count_max: 1, ..Query::default() }
    }

    async fn page(&self, request: QueryAuditRequest) -> Result<QueryAuditResponse, ApiError> {
        let request = QueryAuditRequest { lock_name: self.name.to_owned(), ..request };
        self.service.audit_page_recorded(&self.call.as_part(request)).await
    }

    /// The last grants that are over, the last first, and what is not known.
    async fn last_rows(&self) -> Result<(Vec<Row>, Vec<v1::AuditGap>), ApiError> {
        let request =
            QueryAuditRequest { newest_first: true, page_size: LOOKED_AT, ..QueryAuditRequest::default() };
        let page = self.page(request).await?;
        let rows: Result<Vec<Row>, ApiError> = page.grants.into_iter().map(row_of).collect();
        Ok((rows?, page.gaps))
    }

    /// The grant with a token and the one after it, as far as they are over, and what is not known.
    async fn rows_of_token(&self, token: u64) -> Result<(Vec<Row>, Vec<v1::AuditGap>), ApiError> {
        let (grant, mut gaps) = self.grant(token).await?;
        let mut rows: Vec<Row> = grant.into_iter().collect();
        if let Some(row) = rows.first() {
            let (next, unknown) = self.successor(token, row.granted_revision).await?;
            rows.extend(next);
            gaps = unknown;
        }
        Ok((rows, gaps))
    }

    /// The grant with a token. There is one: if this node has it, nobody else is asked.
    async fn grant(&self, token: u64) -> Result<(Option<Row>, Vec<v1::AuditGap>), ApiError> {
        let own = self.service.audit_rows(Query { token: Some(token), ..self.query() }).await?;
        if !own.rows.is_empty() || own.gaps.is_empty() {
            return Ok((own.rows.into_iter().next(), Vec::new()));
        }
        let request = QueryAuditRequest { fencing_token: token, ..QueryAuditRequest::default() };
        let page = self.page(request).await?;
        let row = page.grants.into_iter().next().map(row_of).transpose()?;
        Ok((row, page.gaps))
    }

    /// The first grant to end with a higher token than one that was made at this revision.
    async fn successor(
        &self,
        token: u64,
        granted_revision: u64,
    ) -> Result<(Option<Row>, Vec<v1::AuditGap>), ApiError> {
        // A later grant ended later than this one was made: what ended before is not looked through.
        let after = Position { revision: granted_revision, ordinal: 0 };
        let own = self.service.audit_rows(Query { token_above: Some(token), after, ..self.query() }).await?;
        if own.gaps.is_empty() {
            return Ok((own.rows.into_iter().next(), Vec::new()));
        }
        let mut request = QueryAuditRequest {
            after: format!("{granted_revision}.0"),
            page_size: LOOKED_AT,
            ..QueryAuditRequest::default()
        };
        let mut gaps = Vec::new();
        loop {
            let page = self.page(request.clone()).await?;
            gaps.extend(page.gaps);
            // Others that share the lock may have been granted before.
            if let Some(next) = page.grants.into_iter().find(|grant| grant.fencing_token > token) {
                gaps.retain(|gap| gap.after_revision < next.ended_revision);
                return Ok((Some(row_of(next)?), gaps));
            }
            if !page.more {
                return Ok((None, gaps));
            }
            request.after = page.through;
        }
    }
}

/// A row as a node told of it.
fn row_of(grant: AuditedGrant) -> Result<Row, ApiError> {
    let known = |ms: i64| u64::try_from(ms).ok().filter(|ms| *ms > 0);
    let wrong =
        |what: String| ApiError::new(Reason::Internal, format!("a node's audit makes no sense: {what}"));
    let cause =
        Cause::named(&grant.cause).ok_or_else(|| wrong(format!("there is no cause {}", grant.cause)))?;
    let ended: lowkey_api::Position =
        grant.position.parse().map_err(|problem| wrong(format!("{problem}")))?;
    let silence = grant.silent_ms.map(|silent_ms| Silence {
        silent_ms: known(silent_ms).unwrap_or(0),
        stalled_ms: known(grant.stalled_ms).unwrap_or(0),
        leader_changed: grant.leader_changed,
    });
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
        ended: Position { revision: ended.revision, ordinal: ended.ordinal },
        term: grant.term,
        cause,
        actor: (!grant.actor.is_empty()).then_some(grant.actor),
        silence,
        is_perhaps_uncommitted: grant.perhaps_uncommitted,
    })
}
