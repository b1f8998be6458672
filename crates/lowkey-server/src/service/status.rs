//! What this node knows about itself and its cluster.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use lowkey_api::ApiError;
use lowkey_api::v1::{
    GetStatusRequest, GetStatusResponse, Member, ObserveEvent, ObserveRequest, Stats, WatchEvent,
    WatchRequest,
};
use lowkey_core::limits::TTL_SECONDS_MAX;
use lowkey_replica::{Role, Status};
use tokio::sync::watch;

use super::Service;
use crate::access::{Guard, Permitted};
use crate::call::Call;
use crate::edge::{Events, LeaseListener, Node};
use crate::host::clock::Clock;
use crate::operation::{Answer, diverged};

impl Node for Service {
    async fn call<C: Call>(&self, call: Permitted<C>) -> Result<C::Response, ApiError> {
        let ended = call.wanted().ended_lease();
        let outcome = C::answered_by(call, self).await;
        if outcome.is_ok() {
            self.lanes.tell_streams(ended);
        }
        outcome
    }

    fn call_on_stream<C: Call>(
        &self,
        call: Permitted<C>,
    ) -> impl Future<Output = Result<C::Response, ApiError>> + Send {
        C::answered_by(call, self)
    }

    async fn watch(&self, request: Permitted<WatchRequest>) -> Result<Events<WatchEvent>, ApiError> {
        self.begin_watch(request).await
    }

    async fn observe(&self, request: Permitted<ObserveRequest>) -> Result<Events<ObserveEvent>, ApiError> {
        self.begin_observing(request).await
    }

    fn guard(&self) -> &Arc<Guard> {
        &self.lanes.root().view.guard
    }

    fn lease_listener(&self) -> LeaseListener {
        self.lanes.root().hub.lease_listener()
    }

    fn get_status(&self) -> GetStatusResponse {
        let status = self.lanes.root().view.status();
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
            recovering_seconds: recovering_seconds(&status, self.clock),
            epoch: self.lanes.root().view.epoch(),
            raft_tick_ms: status.raft_tick.tell(),
        }
    }

    fn ready(&self) -> Result<(), String> {
        let view = &self.lanes.root().view;
        let status = view.status();
        match (status.role, status.leader) {
            _ if view.is_removed() => Err("the node was removed from its cluster".into()),
            _ if *self.stopping.borrow() => Err("the node is stopping".into()),
            _ if status.divergence.is_some() => Err(diverged(status.divergence).message),
            _ if status.members.is_empty() => {
                Err("this node has joined, and has not received the cluster's state yet".into())
            }
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

impl Answer for GetStatusRequest {
    async fn answer(_: Permitted<Self>, service: &Service) -> Result<GetStatusResponse, ApiError> {
        Ok(service.get_status())
    }
}

/// The longest time for which nothing is granted yet. The leader knows what is left of it; other nodes
/// tell the maximum.
pub(crate) fn recovering_seconds(status: &Status, clock: Clock) -> i64 {
    match status.quarantine_ends {
        _ if !status.quarantine => 0,
        Some(ends) => {
            let left = Duration::from_nanos(ends.since(clock.now()));
            i64::try_from(left.as_secs() + 1).unwrap_or(TTL_SECONDS_MAX).min(TTL_SECONDS_MAX)
        }
        None => TTL_SECONDS_MAX,
    }
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

/// The members, as clients are told of them.
pub(crate) fn members(status: &Status) -> Vec<Member> {
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
            key_hash: member.node.key_hash.map(|hash| hash.to_string()).unwrap_or_default(),
        }
    };
    status.members.iter().map(member).collect()
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
