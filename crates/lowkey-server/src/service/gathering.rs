//! How every node of the cluster is: gathered from all of them, for people who look at the whole.
//!
//! Each node reports for itself, from what it has at hand: no replica is asked, and nothing is read from a disk.
//! The asked node asks the others over the links that forward requests, all at once, and waits for
//! [`REPORT_WAIT`] at most. So this is answered in any state of the cluster, and that a node does not answer is
//! itself a part of the answer.

use std::collections::BTreeMap;
use std::time::Duration;

use lowkey_api::v1::{
    GetBackupScheduleResponse, GetClusterStatusRequest, GetClusterStatusResponse, Member, NodeReport,
    RequireAccessResponse, WouldBeRefused,
};
use lowkey_api::{ApiError, ErrorDetail};
use lowkey_core::{Caller, GroupId, MemberId};
use prost::Message as _;
use tokio::time::{Instant, timeout};

use super::{PassedOn, Service};
use crate::access::Permitted;
use crate::call::{REHEARSED, REPORT};
use crate::edge::Node as _;
use crate::operation::Answer;
use crate::peers::ForwardError;
use crate::peers::proto::Report;
use crate::peers::proto::forward_reply::Outcome;

/// How long a node may take to report. More than a link needs that is slow but there, and little enough for a
/// page that asks every second.
const REPORT_WAIT: Duration = Duration::from_millis(400);

impl Answer for GetClusterStatusRequest {
    async fn answer(_: Permitted<Self>, service: &Service) -> Result<GetClusterStatusResponse, ApiError> {
        let timed = service.metrics.begin("GetClusterStatus");
        let answer = Ok(service.gather().await);
        timed.end(&answer);
        answer
    }
}

impl Service {
    /// How this node is. Only a leader knows how far the others are: it tells them all, so that the asked node can.
    pub(super) fn report(&self) -> Report {
        let status = self.get_status();
        let lane = self.lanes.root();
        let mut node = NodeReport {
            state: status.state,
            version: status.version,
            term: status.term,
            leader_id: status.leader_id,
            applied_index: status.applied_index,
            commit_index: status.commit_index,
            stats: status.stats,
            watch_streams: u32::try_from(lane.hub.open_streams()).unwrap_or(u32::MAX),
            ..NodeReport::default()
        };
        self.metrics.report(lane.view.status().expired_leases, &mut node);
        let seen = status.members.iter().filter(|_| status.is_leader).map(Member::encode_to_vec).collect();
        let backups = if status.is_leader { self.backups.report().encode_to_vec() } else { Vec::new() };
        Report { node: node.encode_to_vec(), seen, backups }
    }

    async fn gather(&self) -> GetClusterStatusResponse {
        let status = self.get_status();
        let asked = status.members.into_iter().map(|member| self.report_of(member));
        let (mut nodes, seen): (Vec<NodeReport>, Vec<Vec<Member>>) =
            futures::future::join_all(asked).await.into_iter().unzip();
        // There may be two that believe they lead, for a moment. The one with the higher term does.
        let leads = |node: &&NodeReport| node.state == "leader";
        let newest = nodes.iter().filter(leads).max_by_key(|node| node.term);
        let leader_id = newest.or_else(|| nodes.iter().max_by_key(|node| node.term));
        let leader_id = leader_id.map(|node| node.leader_id.clone()).unwrap_or_default();
        let seen = nodes.iter().zip(seen).filter(|(node, _)| leads(node)).max_by_key(|(node, _)| node.term);
        let seen = seen.map(|(_, seen)| seen).unwrap_or_default();
        for member in nodes.iter_mut().filter_map(|node| node.member.as_mut()) {
            if let Some(seen) = seen.iter().find(|seen| seen.member_id == member.member_id) {
                *member = seen.clone();
            }
            member.leader = !leader_id.is_empty() && member.node_id == leader_id;
        }
        GetClusterStatusResponse {
            cluster_id: status.cluster_id,
            node_id: status.node_id,
            leader_id,
            nodes,
            leaving: status.leaving,
            recovering_seconds: status.recovering_seconds,
        }
    }

    /// The report of a member, or why there is none; and all members as it sees them, if it leads.
    async fn report_of(&self, member: Member) -> (NodeReport, Vec<Member>) {
        let started = Instant::now();
        let report = if member.node_id == self.node_name {
            Ok(self.report())
        } else if member.expected {
            Err("it is expected: no node has joined under this name yet".to_owned())
        } else {
            self.ask_for(MemberId(member.member_id), REPORT).await
        };
        let answered_in_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        match report.and_then(decoded) {
            Ok((node, seen)) => (NodeReport { member: Some(member), answered_in_us, ..node }, seen),
            Err(problem) => {
                (NodeReport { member: Some(member), problem, ..NodeReport::default() }, Vec::new())
            }
        }
    }

    /// What the leader makes of the schedule of backups, in its own words; nothing if it does not tell.
    pub(crate) async fn leaders_backups(&self) -> Option<GetBackupScheduleResponse> {
        let status = self.get_status();
        let leader = status.members.iter().find(|member| member.leader)?;
        let mut told = match leader.node_id == self.node_name {
            true => self.backups.report(),
            false => {
                let report: Report = self.ask_for(MemberId(leader.member_id), REPORT).await.ok()?;
                // A node of the version before tells nothing, and one that does not lead any more, too.
                let told = (!report.backups.is_empty()).then_some(report.backups)?;
                GetBackupScheduleResponse::decode(told.as_slice()).ok()?
            }
        };
        told.leader_id.clone_from(&leader.node_id);
        Some(told)
    }

    /// What this node would have refused in the last hour, had access been required.
    pub(super) fn rehearsed(&self) -> RequireAccessResponse {
        let told = self.guard().would_be_refused().into_iter();
        let told = told.map(|one| WouldBeRefused { client: one.client, why: one.why, count: one.count });
        RequireAccessResponse { would_be_refused: told.collect() }
    }

    /// The same of all nodes. One that does not answer is told among them: what it saw is not known.
    pub(crate) async fn rehearsed_everywhere(&self) -> RequireAccessResponse {
        let members = self.get_status().members.into_iter().filter(|member| !member.expected);
        let asked = members.map(async |member| {
            let told = match member.node_id == self.node_name {
                true => Ok(self.rehearsed()),
                false => self.ask_for(MemberId(member.member_id), REHEARSED).await,
            };
            told.map_or_else(
                |problem| {
                    let why = format!("node {} knows more, and {problem}: ask again", member.node_id);
                    vec![WouldBeRefused { client: "unknown".to_owned(), why, count: 0 }]
                },
                |told| told.would_be_refused,
            )
        });
        let mut counts: BTreeMap<(String, String), u64> = BTreeMap::new();
        for one in futures::future::join_all(asked).await.into_iter().flatten() {
            *counts.entry((one.client, one.why)).or_default() += one.count;
        }
        let told = counts.into_iter().map(|((client, why), count)| WouldBeRefused { client, why, count });
        RequireAccessResponse { would_be_refused: told.collect() }
    }

    /// Asks another node for something that each node tells of itself.
    async fn ask_for<T: prost::Message + Default>(&self, member: MemberId, what: u32) -> Result<T, String> {
        let unreachable = || "it cannot be reached from here".to_owned();
        let forwarder = self.forwarders.get(member).ok_or_else(unreachable)?;
        let asked = PassedOn::send(forwarder, GroupId::ROOT, what, Vec::new(), &Caller::Node);
        let mut asked = asked.ok_or_else(unreachable)?;
        match timeout(REPORT_WAIT, asked.answer()).await {
            Ok(Ok(Outcome::Response(bytes))) => T::decode(bytes.as_slice()).map_err(senseless),
            Ok(Ok(Outcome::Error(bytes))) => {
                let detail = ErrorDetail::decode(bytes.as_slice()).map_err(senseless)?;
                Err(format!("it does not tell: {}", ApiError::from(detail).message))
            }
            Ok(Ok(Outcome::NotLeader(_) | Outcome::Interrupted(_)) | Err(ForwardError::NotSent)) => {
                Err(unreachable())
            }
            Ok(Err(ForwardError::Lost)) => Err("the connection to it broke".to_owned()),
            Err(_elapsed) => Err(format!("it did not answer within {} ms", REPORT_WAIT.as_millis())),
        }
    }
}

fn decoded(report: Report) -> Result<(NodeReport, Vec<Member>), String> {
    let node = NodeReport::decode(report.node.as_slice()).map_err(senseless)?;
    let seen = report.seen.iter().map(|member| Member::decode(member.as_slice()));
    Ok((node, seen.collect::<Result<_, _>>().map_err(senseless)?))
}

fn senseless(_: prost::DecodeError) -> String {
    "its answer makes no sense".to_owned()
}
