//! Leases.

use futures::future::join_all;
use lowkey_api::ApiError;
use lowkey_api::v1::{
    self, CreateLeaseRequest, CreateLeaseResponse, GetLeaseRequest, GetLeaseResponse, HeartbeatResponse,
    LeaseGrant, LeaseWait, LeasesRenewed, ListLeasesRequest, ListLeasesResponse, RenewLeaseRequest,
    RenewLeaseResponse, RenewLeases, RevokeLeaseRequest, RevokeLeaseResponse,
};
use lowkey_core::{
    Command, GrantView, Holds, Invalid, LeaseId, LeaseView, LockName, OwnerId, Reply, RequestId, Ttl,
    WaitView,
};
use lowkey_replica::{Query, Remaining, Request, Response};

use super::reads::{count, mode, page_size, page_token, read, remaining_ms, scope, unix_ms};
use super::{Answer, Operation, actor, lease_id, unexpected};
use crate::access::Permitted;
use crate::service::Service;

impl Operation for CreateLeaseRequest {
    fn parse(&self) -> Result<Request, Invalid> {
        Ok(Request::Command(Command::CreateLease {
            owner: OwnerId::parse(&self.owner_id)?,
            ttl: Ttl::parse(self.ttl_seconds)?,
            request: RequestId::parse(&self.request_id)?,
        }))
    }

    fn respond(&self, response: Response) -> Result<CreateLeaseResponse, ApiError> {
        match response {
            Response::Applied(Reply::LeaseCreated { lease, ttl }) => {
                Ok(CreateLeaseResponse { lease_id: lease.0, ttl_seconds: ttl.seconds() })
            }
            other => Err(unexpected(&other)),
        }
    }
}

impl Operation for RenewLeaseRequest {
    fn parse(&self) -> Result<Request, Invalid> {
        Ok(Request::Renew { lease: lease_id(self.lease_id)?, holds: holds(self) })
    }

    fn respond(&self, response: Response) -> Result<RenewLeaseResponse, ApiError> {
        match response {
            Response::Renewed { ttl, holds_differ } => {
                Ok(RenewLeaseResponse { ttl_seconds: ttl.seconds(), holds_differ })
            }
            other => Err(unexpected(&other)),
        }
    }
}

/// What the client believes that its lease holds.
pub(crate) fn holds(request: &RenewLeaseRequest) -> Option<Holds> {
    request.holds.map(|holds| Holds { count: holds.count, digest: holds.digest })
}

/// The outcome of a renewal, as streams tell it.
pub(crate) fn renewed(
    lease_id: u64,
    seq: u64,
    outcome: Result<RenewLeaseResponse, ApiError>,
) -> HeartbeatResponse {
    match outcome {
        Ok(RenewLeaseResponse { ttl_seconds, holds_differ }) => {
            HeartbeatResponse { lease_id, ttl_seconds, seq, holds_differ, ..HeartbeatResponse::default() }
        }
        Err(error) => HeartbeatResponse {
            lease_id,
            ttl_seconds: 0,
            seq,
            error_reason: error.reason.as_str().to_owned(),
            error_message: error.message,
            holds_differ: false,
        },
    }
}

impl Answer for RenewLeases {
    async fn answer(call: Permitted<Self>, service: &Service) -> Result<LeasesRenewed, ApiError> {
        let whole = call.as_part(());
        let Self { lease_ids, holds } = call.into_wanted();
        let holds = holds.into_iter().map(Some).chain(std::iter::repeat(None));
        let requests = lease_ids.into_iter().zip(holds);
        let requests: Vec<_> =
            requests.map(|(lease_id, holds)| RenewLeaseRequest { lease_id, holds }).collect();
        let settled = service.renew_together(&whole.as_part(&requests[..])).await;
        let alone = requests.iter().zip(&settled).filter(|(_, settled)| settled.is_none());
        let mut alone =
            join_all(alone.map(|(request, _)| service.operate(whole.as_part(*request)))).await.into_iter();
        let outcomes = settled.into_iter().filter_map(|settled| settled.or_else(|| alone.next()));
        let told = requests.iter().zip(outcomes);
        let told = told.map(|(request, outcome)| renewed(request.lease_id, 0, outcome));
        Ok(LeasesRenewed { renewals: told.collect() })
    }
}

impl Operation for GetLeaseRequest {
    fn parse(&self) -> Result<Request, Invalid> {
        let query = Query::Lease {
            lease: lease_id(self.lease_id)?,
            after: page_token(&self.page_token, |token| LockName::parse(token).ok())?,
            count_max: page_size(self.page_size)?,
        };
        Ok(read(query, self.stale))
    }

    fn respond(&self, response: Response) -> Result<GetLeaseResponse, ApiError> {
        let Response::Lease { lease, grants, more, waits, remaining, revision } = response else {
            return Err(unexpected(&response));
        };
        let last = grants.last().filter(|_| more);
        Ok(GetLeaseResponse {
            lease: Some(told(lease, &remaining)),
            next_page_token: last.map(|last| last.lock.to_string()).unwrap_or_default(),
            grants: grants.into_iter().map(grant).collect(),
            waits: waits.into_iter().map(wait).collect(),
            revision,
        })
    }
}

impl Operation for ListLeasesRequest {
    fn parse(&self) -> Result<Request, Invalid> {
        let owner = match self.owner_id.as_str() {
            "" => None,
            owner => Some(OwnerId::parse(owner)?),
        };
        let after = page_token(&self.page_token, |token| token.parse().ok().map(LeaseId))?;
        let query = Query::Leases { owner, after, count_max: page_size(self.page_size)? };
        Ok(read(query, self.stale))
    }

    fn respond(&self, response: Response) -> Result<ListLeasesResponse, ApiError> {
        let Response::Leases { leases, next, remaining, revision } = response else {
            return Err(unexpected(&response));
        };
        Ok(ListLeasesResponse {
            leases: leases.into_iter().map(|lease| told(lease, &remaining)).collect(),
            next_page_token: next.map(|next| next.to_string()).unwrap_or_default(),
            revision,
        })
    }
}

fn told(lease: LeaseView, remaining: &Remaining) -> v1::Lease {
    v1::Lease {
        lease_id: lease.lease.0,
        owner_id: lease.owner.to_string(),
        ttl_seconds: lease.ttl.seconds(),
        remaining_ms: remaining_ms(remaining, lease.lease),
        grant_count: count(lease.grant_count),
        wait_count: count(lease.wait_count),
        waiting: lease.is_waiting,
    }
}

fn grant(grant: GrantView) -> LeaseGrant {
    LeaseGrant {
        lock_name: grant.lock.to_string(),
        fencing_token: grant.token.0,
        mode: mode(grant.mode).into(),
        scope: scope(grant.scope).into(),
        acquire_request_id: grant.request.to_string(),
        since_unix_ms: unix_ms(grant.since_unix_ms),
    }
}

fn wait(wait: WaitView) -> LeaseWait {
    LeaseWait {
        lock_name: wait.lock.to_string(),
        mode: mode(wait.mode).into(),
        scope: scope(wait.scope).into(),
        acquire_request_id: wait.request.to_string(),
    }
}

impl Operation for RevokeLeaseRequest {
    fn parse(&self) -> Result<Request, Invalid> {
        Ok(Request::Command(Command::RevokeLease {
            lease: lease_id(self.lease_id)?,
            owner: OwnerId::parse(&self.owner_id)?,
            actor: actor(&self.actor)?,
            since_unix_ms: 0,
            request: RequestId::parse(&self.request_id)?,
        }))
    }

    fn respond(&self, response: Response) -> Result<RevokeLeaseResponse, ApiError> {
        match response {
            Response::Applied(Reply::LeaseRevoked { released }) => Ok(RevokeLeaseResponse { released }),
            other => Err(unexpected(&other)),
        }
    }
}
