//! Elections. An election is the lock of its name: its leader holds it, its candidates wait for it.

use futures::TryFutureExt as _;
use lowkey_api::v1::{
    AcquireLockRequest, AcquireLockResponse, CampaignRequest, CampaignResponse, GetLockRequest,
    GetLockResponse, LeaderRequest, LeaderResponse, ReleaseLockRequest, ReleaseLockResponse, ResignRequest,
    ResignResponse,
};
use lowkey_api::{ApiError, Reason};
use lowkey_core::limits::WAIT_MS_MAX;

use super::Answer;
use crate::access::Permitted;
use crate::service::Service;

impl Answer for CampaignRequest {
    fn answer(
        call: Permitted<Self>,
        service: &Service,
    ) -> impl Future<Output = Result<CampaignResponse, ApiError>> + Send {
        let acquire = call.by_way_of(|asked| AcquireLockRequest {
            lock_name: asked.election,
            owner_id: asked.owner_id,
            lease_id: asked.lease_id,
            wait_ms: asked.wait_ms.unwrap_or(WAIT_MS_MAX),
            value: asked.value,
            ttl_seconds: asked.ttl_seconds,
            request_id: asked.request_id,
            max_hold_seconds: asked.max_hold_seconds,
            ..AcquireLockRequest::default()
        });
        let told = |granted: AcquireLockResponse| CampaignResponse {
            fencing_token: granted.fencing_token,
            lease_ttl_seconds: granted.lease_ttl_seconds,
            lease_id: granted.lease_id,
            revision: granted.revision,
            waited_ms: granted.waited_ms,
            epoch: granted.epoch,
        };
        service.operate(acquire).map_ok(told).map_err(in_words_of_elections)
    }
}

impl Answer for ResignRequest {
    fn answer(
        call: Permitted<Self>,
        service: &Service,
    ) -> impl Future<Output = Result<ResignResponse, ApiError>> + Send {
        let release = call.by_way_of(|asked| ReleaseLockRequest {
            lock_name: asked.election,
            lease_id: asked.lease_id,
            fencing_token: asked.fencing_token,
            acquire_request_id: asked.campaign_request_id,
            owner_id: asked.owner_id,
            actor: asked.actor,
            request_id: asked.request_id,
        });
        let told = |ReleaseLockResponse { released }| ResignResponse { resigned: released };
        service.operate(release).map_ok(told).map_err(in_words_of_elections)
    }
}

impl Answer for LeaderRequest {
    fn answer(
        call: Permitted<Self>,
        service: &Service,
    ) -> impl Future<Output = Result<LeaderResponse, ApiError>> + Send {
        let read = call.by_way_of(|asked| GetLockRequest { lock_name: asked.election, stale: asked.stale });
        let told = |lock: GetLockResponse| LeaderResponse {
            leader: lock.holders.into_iter().min_by_key(|holder| holder.fencing_token),
            candidates: lock.waiter_count,
            revision: lock.revision,
        };
        service.operate(read).map_ok(told).map_err(in_words_of_elections)
    }
}

/// Rewrites an error about a lock as an error about its election.
pub(crate) fn in_words_of_elections(error: ApiError) -> ApiError {
    let field = match error.reason {
        Reason::Invalid("lock_name") => "election",
        Reason::Invalid("acquire_request_id") => "campaign_request_id",
        _ => return error,
    };
    let problem = error.message.split_once(": ").map_or(error.message.as_str(), |(_, problem)| problem);
    ApiError::invalid(field, problem)
}
