//! The calls, one by one.

use std::time::Duration;

use http::HeaderValue;
use lowkey_api::v1::{
    AcquireLockRequest, AcquireLockResponse, AddPeerRequest, AddPeerResponse, CampaignRequest,
    CampaignResponse, CheckTokenRequest, CheckTokenResponse, CreateLeaseRequest, CreateLeaseResponse,
    GetLeaseRequest, GetLeaseResponse, GetLockRequest, GetLockResponse, GetStatusResponse, LeaderRequest,
    LeaderResponse, ListLeasesRequest, ListLeasesResponse, ListLocksRequest, ListLocksResponse, Member,
    ObserveEvent, ObserveRequest, ProclaimRequest, ProclaimResponse, ReleaseLockRequest, ReleaseLockResponse,
    RemovePeerRequest, RemovePeerResponse, RenewLeaseRequest, RenewLeaseResponse, ResignRequest,
    ResignResponse, RevokeLeaseRequest, RevokeLeaseResponse, Stats, TransferLeaderRequest,
    TransferLeaderResponse, WatchEvent, WatchRequest,
};
use lowkey_api::{ApiError, Reason};
use lowkey_core::MemberId;
use lowkey_core::limits::{TTL_SECONDS_MAX, WAIT_MS_MAX};
use lowkey_replica::{Role, Status};
use tokio::sync::watch;

use super::Service;
use crate::edge::{Events, Node};
use crate::join::REMOVED_MEMBER;
use crate::operation::diverged;

impl Node for Service {
    async fn create_lease(&self, request: CreateLeaseRequest) -> Result<CreateLeaseResponse, ApiError> {
        self.call(request).await
    }

    async fn renew_lease(&self, request: RenewLeaseRequest) -> Result<RenewLeaseResponse, ApiError> {
        self.call(request).await
    }

    async fn get_lease(&self, request: GetLeaseRequest) -> Result<GetLeaseResponse, ApiError> {
        self.call(request).await
    }

    async fn list_leases(&self, request: ListLeasesRequest) -> Result<ListLeasesResponse, ApiError> {
        self.call(request).await
    }

    async fn revoke_lease(&self, request: RevokeLeaseRequest) -> Result<RevokeLeaseResponse, ApiError> {
        self.call(request).await
    }

    async fn acquire_lock(&self, request: AcquireLockRequest) -> Result<AcquireLockResponse, ApiError> {
        self.call(request).await
    }

    async fn release_lock(&self, request: ReleaseLockRequest) -> Result<ReleaseLockResponse, ApiError> {
        self.call(request).await
    }

    async fn get_lock(&self, request: GetLockRequest) -> Result<GetLockResponse, ApiError> {
        self.call(request).await
    }

    async fn add_peer(&self, request: AddPeerRequest) -> Result<AddPeerResponse, ApiError> {
        let member = MemberId(request.member_id);
        let response = self.call(request).await.map_err(|error| {
            // A node that renews its addresses and is a member no longer may have nobody else to learn it from.
            match error.reason == Reason::NodeNotFound && self.view.status().has_removed(member) {
                true => error.with(REMOVED_MEMBER, member),
                false => error,
            }
        })?;
        Ok(AddPeerResponse {
            cluster_id: self.hello.cluster.to_string(),
            members: members(&self.view.status()),
            ..response
        })
    }

    async fn remove_peer(&self, request: RemovePeerRequest) -> Result<RemovePeerResponse, ApiError> {
        self.call(request).await
    }

    async fn transfer_leader(
        &self,
        request: TransferLeaderRequest,
    ) -> Result<TransferLeaderResponse, ApiError> {
        let TransferLeaderResponse { leader_id, .. } = self.call(request).await?;
        let status = self.view.status();
        let leader = status.members.iter().find(|member| member.node.name.as_str() == leader_id);
        let leader_address = leader.map(|leader| leader.node.grpc_address.clone()).unwrap_or_default();
        Ok(TransferLeaderResponse { leader_id, leader_address })
    }

    async fn list_locks(&self, request: ListLocksRequest) -> Result<ListLocksResponse, ApiError> {
        self.call(request).await
    }

    async fn check_token(&self, request: CheckTokenRequest) -> Result<CheckTokenResponse, ApiError> {
        self.call(request).await
    }

    async fn watch(&self, request: WatchRequest) -> Result<Events<WatchEvent>, ApiError> {
        self.begin_watch(request).await
    }

    async fn campaign(&self, request: CampaignRequest) -> Result<CampaignResponse, ApiError> {
        let acquire = AcquireLockRequest {
            lock_name: request.election,
            owner_id: request.owner_id,
            lease_id: request.lease_id,
            wait_ms: request.wait_ms.unwrap_or(WAIT_MS_MAX),
            value: request.value,
            ttl_seconds: request.ttl_seconds,
            request_id: request.request_id,
            ..AcquireLockRequest::default()
        };
        let granted = self.call(acquire).await.map_err(in_words_of_elections)?;
        Ok(CampaignResponse {
            fencing_token: granted.fencing_token,
            lease_ttl_seconds: granted.lease_ttl_seconds,
            lease_id: granted.lease_id,
            revision: granted.revision,
            waited_ms: granted.waited_ms,
        })
    }

    async fn proclaim(&self, request: ProclaimRequest) -> Result<ProclaimResponse, ApiError> {
        self.call(request).await
    }

    async fn resign(&self, request: ResignRequest) -> Result<ResignResponse, ApiError> {
        let release = ReleaseLockRequest {
            lock_name: request.election,
            lease_id: request.lease_id,
            fencing_token: request.fencing_token,
            acquire_request_id: request.campaign_request_id,
            owner_id: request.owner_id,
            actor: request.actor,
            request_id: request.request_id,
        };
        let ReleaseLockResponse { released } = self.call(release).await.map_err(in_words_of_elections)?;
        Ok(ResignResponse { resigned: released })
    }

    async fn leader(&self, request: LeaderRequest) -> Result<LeaderResponse, ApiError> {
        let LeaderRequest { election, stale } = request;
        let lock =
            self.call(GetLockRequest { lock_name: election, stale }).await.map_err(in_words_of_elections)?;
        Ok(LeaderResponse {
            leader: lock.holders.into_iter().min_by_key(|holder| holder.fencing_token),
            candidates: lock.waiter_count,
            revision: lock.revision,
        })
    }

    async fn observe(&self, request: ObserveRequest) -> Result<Events<ObserveEvent>, ApiError> {
        self.begin_observing(request).await
    }

    fn get_status(&self) -> GetStatusResponse {
        let status = self.view.status();
        let leader = status.members.iter().find(|member| Some(member.member) == status.leader);
        GetStatusResponse {
            node_id: self.node_name.clone(),
            is_leader: status.role == Role::Leader,
            leader_address: leader.map(|leader| leader.node.grpc_address.clone()).unwrap_or_default(),
            cluster_size: count(status.voters),
            state: state_name(&status).to_owned(),
            stats: Some(Stats {
                leases: count(status.leases),
                locks: count(status.locks),
                fencing_counter: status.last_token.0,
                waiters: count(status.waiters),
            }),
            cluster_id: self.hello.cluster.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            term: status.term,
            applied_index: status.applied,
            commit_index: status.committed,
            members: members(&status),
            leader_id: leader.map(|leader| leader.node.name.to_string()).unwrap_or_default(),
            leader_http_address: leader.map(|leader| leader.node.http_address.clone()).unwrap_or_default(),
            leaving: status.leaving.iter().map(|member| member.0).collect(),
            recovering_seconds: self.recovering_seconds(&status),
        }
    }

    fn ready(&self) -> Result<(), String> {
        let status = self.view.status();
        match (status.role, status.leader) {
            _ if self.view.is_removed() => Err("the node was removed from its cluster".into()),
            _ if *self.stopping.borrow() => Err("the node is stopping".into()),
            _ if status.divergence.is_some() => Err(diverged(status.divergence).message),
            (Role::Leader, _) if !status.serving => Err("this node was elected and is catching up".into()),
            (_, Some(_)) => Ok(()),
            (_, None) => Err("no leader is known".into()),
        }
    }

    fn metrics(&self) -> String {
        self.metrics.encode()
    }

    fn cluster_header(&self) -> Option<HeaderValue> {
        Some(self.cluster_header.clone())
    }

    fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }
}

impl Service {
    /// For how long at most nothing is granted: what is left on the leader, the longest elsewhere.
    fn recovering_seconds(&self, status: &Status) -> i64 {
        match status.quarantine_ends {
            _ if !status.quarantine => 0,
            Some(ends) => {
                let left = Duration::from_nanos(ends.since(self.clock.now()));
                i64::try_from(left.as_secs() + 1).unwrap_or(TTL_SECONDS_MAX).min(TTL_SECONDS_MAX)
            }
            None => TTL_SECONDS_MAX,
        }
    }
}

/// An election is a lock: what is wrong with the one is told in words of the other.
pub(super) fn in_words_of_elections(error: ApiError) -> ApiError {
    let field = match error.reason {
        Reason::Invalid("lock_name") => "election",
        Reason::Invalid("acquire_request_id") => "campaign_request_id",
        _ => return error,
    };
    let problem = error.message.split_once(": ").map_or(error.message.as_str(), |(_, problem)| problem);
    ApiError::invalid(field, problem)
}

fn state_name(status: &Status) -> &'static str {
    let own = status.members.iter().find(|member| member.member == status.member);
    match status.role {
        _ if status.divergence.is_some() => "diverged",
        Role::Leader => "leader",
        Role::Candidate => "candidate",
        Role::Follower if own.is_some_and(|own| own.voter) => "follower",
        Role::Follower => "learner",
    }
}

fn members(status: &Status) -> Vec<Member> {
    let member = |member: &lowkey_replica::MemberStatus| {
        let (lag, reachable) = member.progress.unwrap_or_default();
        Member {
            node_id: member.node.name.to_string(),
            member_id: member.member.0,
            raft_address: member.node.raft_address.clone(),
            grpc_address: member.node.grpc_address.clone(),
            http_address: member.node.http_address.clone(),
            voter: member.voter,
            leader: Some(member.member) == status.leader,
            lag,
            reachable,
            expected: member.node.identity.is_none(),
        }
    };
    status.members.iter().map(member).collect()
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
