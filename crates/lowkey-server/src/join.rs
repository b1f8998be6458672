//! How a new node asks the members of a cluster to take it in.

use std::sync::Arc;
use std::time::Duration;

use lowkey_api::v1::lock_service_client::LockServiceClient;
use lowkey_api::v1::{AddPeerRequest, AddPeerResponse, GetStatusRequest};
use lowkey_api::{ApiError, Reason};
use lowkey_core::{ClusterId, KeyHash, MemberId, NodeInfo};
use lowkey_replica::RaftTick;
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::Channel;

use crate::dial::Dialer;
use crate::error::StartError;
use crate::invitation::JoinToken;
use crate::operation::parse_hex;
use crate::peers;
use crate::peers::known::KnownMember;
use crate::peers::proto::{JoinRequest, JoinResponse};
use crate::peers::tls::PeerTls;

/// How long a first join keeps trying.
const JOIN_WAIT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const CALL_TIMEOUT: Duration = Duration::from_secs(3);
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// In the details of a refusal: the number of the node that asks, which is no longer a member's.
pub(crate) const REMOVED_MEMBER: &str = "removed_member_id";

/// A node's request to join.
pub(crate) fn request((info, raft_tick): (&NodeInfo, RaftTick)) -> AddPeerRequest {
    AddPeerRequest {
        node_id: info.name.to_string(),
        raft_address: info.raft_address.clone(),
        identity: info.identity.map(|identity| identity.to_string()).unwrap_or_default(),
        grpc_address: info.grpc_address.clone(),
        http_address: info.http_address.clone(),
        command_version: info.command_version,
        key_hash: info.key_hash.map(|hash| hash.to_string()).unwrap_or_default(),
        raft_tick_ms: raft_tick.tell(),
        ..AddPeerRequest::default()
    }
}

/// Asks the members one after another until one lets the node join.
pub(crate) async fn join(
    dialer: &Dialer,
    addresses: &[String],
    asking: (&NodeInfo, RaftTick),
) -> Result<Joined, StartError> {
    let request = request(asking);
    let gave_up = |problem: &str| {
        format!(
            "could not join a cluster through {} within {} s: {problem}; check that these are gRPC addresses of \
             running members",
            addresses.join(", "),
            JOIN_WAIT.as_secs()
        )
    };
    membership(&keep_asking(gave_up, async || ask_any(dialer, addresses, &request).await).await?)
}

/// Asks until the node is let in, is refused for good, or the time is up.
async fn keep_asking<R>(
    gave_up: impl Fn(&str) -> String,
    mut ask: impl AsyncFnMut() -> Result<R, Problem>,
) -> Result<R, StartError> {
    let deadline = Instant::now() + JOIN_WAIT;
    let mut told = String::new();
    loop {
        let problem = match ask().await {
            Ok(response) => return Ok(response),
            Err(Problem::Final(problem)) => return Err(StartError::Join { problem }),
            Err(Problem::Passing(problem) | Problem::Removed(problem)) => problem,
        };
        if Instant::now() >= deadline {
            return Err(StartError::Join { problem: gave_up(&problem) });
        }
        if told != problem {
            tracing::info!(problem, "not joined yet; trying again");
            told = problem;
        }
        sleep(RETRY_PAUSE).await;
    }
}

/// Asks the members that an invitation names, one after another, until one lets the node join. Each must have the key
/// that the invitation says.
pub(crate) async fn join_invited(
    token: &JoinToken,
    (info, raft_tick): (&NodeInfo, RaftTick),
    tls: &Arc<PeerTls>,
) -> Result<Joined, StartError> {
    let request = JoinRequest {
        node_id: info.name.to_string(),
        raft_address: info.raft_address.clone(),
        identity: info.identity.map(|identity| identity.0.to_vec()).unwrap_or_default(),
        grpc_address: info.grpc_address.clone(),
        http_address: info.http_address.clone(),
        command_version: info.command_version,
        key_hash: info.key_hash.map(|hash| hash.0.to_vec()).unwrap_or_default(),
        secret: token.secret.0.to_vec(),
        invitation: Vec::new(),
        raft_tick_ms: raft_tick.tell(),
    };
    let gave_up = |problem: &str| {
        format!(
            "could not join with this invitation within {} s: {problem}; check that the members run, and that their \
             --raft-addr can be reached from here",
            JOIN_WAIT.as_secs()
        )
    };
    let ask = async || {
        let mut last = Problem::Passing("the invitation names nobody".into());
        for member in &token.members {
            match peers::ask_to_join(tls, member, request.clone(), CALL_TIMEOUT).await {
                Err(problem @ Problem::Passing(_)) => last = problem,
                outcome => return outcome,
            }
        }
        Err(last)
    };
    invited(token, keep_asking(gave_up, ask).await?)
}

fn invited(token: &JoinToken, response: JoinResponse) -> Result<Joined, StartError> {
    let JoinResponse { member_id, cluster_id, members } = response;
    if member_id == 0 || cluster_id != token.cluster.0 {
        return Err(StartError::Join {
            problem: "a member answered for another cluster than the invitation's".into(),
        });
    }
    let members = members.into_iter().filter_map(|member| member.try_into().ok()).collect();
    Ok(Joined { cluster: token.cluster, member: MemberId(member_id), members })
}

/// Why a node could not join.
#[derive(Debug)]
pub(crate) enum Problem {
    /// It never can.
    Final(String),
    /// It may later.
    Passing(String),
    /// It was removed, and renewed its addresses in vain.
    Removed(String),
}

impl Problem {
    /// What a refusal means for the node that asked. `by` names the node that refused, as the beginning of
    /// the text.
    pub(crate) fn of(error: &ApiError, by: &str) -> Self {
        let problem = format!("{by}{}", error.message);
        match error.reason {
            _ if says_removed(error) => Self::Removed(problem),
            // Nodes have no tokens.
            Reason::Unauthenticated => Self::Final(format!(
                "{by}access is required in this cluster, and nodes come with an invitation only: make one with `lowkey \
                 member invite`, and give it to the node with --join-token-file"
            )),
            reason if is_final(reason) => Self::Final(problem),
            _ => Self::Passing(problem),
        }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Final(problem) | Self::Passing(problem) | Self::Removed(problem)) = self;
        f.write_str(problem)
    }
}

/// Asks each member once.
pub(crate) async fn ask_any(
    dialer: &Dialer,
    addresses: &[String],
    request: &AddPeerRequest,
) -> Result<AddPeerResponse, Problem> {
    let mut last = Problem::Passing("there is nobody to ask".into());
    for address in addresses {
        match ask(dialer, address, request).await {
            Ok(response) => return Ok(response),
            Err(problem @ (Problem::Final(_) | Problem::Removed(_))) => return Err(problem),
            Err(problem) => last = problem,
        }
    }
    Err(last)
}

async fn ask(dialer: &Dialer, address: &str, request: &AddPeerRequest) -> Result<AddPeerResponse, Problem> {
    let mut client = client(dialer, address).map_err(Problem::Final)?;
    let passing = |problem: String| Problem::Passing(format!("{address}: {problem}"));
    match timeout(CALL_TIMEOUT, client.add_peer(request.clone())).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => match ApiError::from_status(&status) {
            Some(error) => Err(Problem::of(&error, &format!("{address}: "))),
            None if status.message().is_empty() => Err(passing(format!(
                "{:?}; is this the gRPC port of a node? that is 9000 by default, 7000 is for nodes among themselves",
                status.code()
            ))),
            None => Err(passing(status.message().to_owned())),
        },
        Err(_) => Err(passing(format!("no answer within {} s", CALL_TIMEOUT.as_secs()))),
    }
}

/// True if a node that renewed its addresses is told that it is no longer a member.
fn says_removed(error: &ApiError) -> bool {
    error.reason == Reason::NodeNotFound && error.metadata.contains_key(REMOVED_MEMBER)
}

/// Reasons that waiting does not change.
fn is_final(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::NodeNameTaken
            | Reason::NodeTooOld
            | Reason::NodeKeyDiffers
            | Reason::InvitationNeeded
            | Reason::InvitationNotValid
            | Reason::Invalid(_)
    )
}

/// A node's answer to the question whether it has a cluster.
enum Answer {
    HasCluster,
    /// Nothing listens at its address: it has not been started.
    NobodyThere,
    /// A node may be there, but does not answer.
    Silence,
}

/// True if one of the members has a cluster; false if none of them has been started yet. Silence is
/// neither: founding a cluster beside a living one would be a split brain.
pub(crate) async fn any_has_cluster(dialer: &Dialer, addresses: &[String]) -> Result<bool, StartError> {
    let deadline = Instant::now() + JOIN_WAIT;
    loop {
        let mut silent = Vec::new();
        for address in addresses {
            match has_cluster(dialer, address).await {
                Answer::HasCluster => return Ok(true),
                Answer::NobodyThere => {}
                Answer::Silence => silent.push(address.as_str()),
            }
        }
        if silent.is_empty() {
            return Ok(false);
        }
        if Instant::now() >= deadline {
            let problem = format!(
                "{} did not say within {} s whether there is a cluster already, so none was founded; give --bootstrap to \
                 one node only, and leave --join away where it is sure that there is none",
                silent.join(", "),
                JOIN_WAIT.as_secs()
            );
            return Err(StartError::Join { problem });
        }
        sleep(RETRY_PAUSE).await;
    }
}

async fn has_cluster(dialer: &Dialer, address: &str) -> Answer {
    match timeout(CONNECT_TIMEOUT, tokio::net::TcpStream::connect(address)).await {
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            return Answer::NobodyThere;
        }
        Ok(Ok(_)) => {}
        Ok(Err(_)) | Err(_) => return Answer::Silence,
    }
    let Ok(mut client) = client(dialer, address) else { return Answer::Silence };
    // A node that serves clients belongs to a cluster: it opens its ports to clients only then.
    match timeout(CALL_TIMEOUT, client.get_status(GetStatusRequest {})).await {
        Ok(Ok(_)) => Answer::HasCluster,
        // Only a cluster wants to know who asks.
        Ok(Err(status)) if wants_a_proof(&status) => Answer::HasCluster,
        Ok(Err(_)) | Err(_) => Answer::Silence,
    }
}

fn wants_a_proof(status: &tonic::Status) -> bool {
    ApiError::from_status(status).is_some_and(|error| error.reason == Reason::Unauthenticated)
}

fn client(dialer: &Dialer, address: &str) -> Result<LockServiceClient<Channel>, String> {
    let channel = dialer
        .to(address, CONNECT_TIMEOUT)
        .map_err(|error| format!("--join: {address:?} is not HOST:PORT: {error}"))?;
    Ok(LockServiceClient::new(channel))
}

/// Where a node belongs, and with whom.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) cluster: ClusterId,
    pub(crate) member: MemberId,
    /// The members as they were then.
    pub(crate) members: Vec<KnownMember>,
}

fn membership(response: &AddPeerResponse) -> Result<Joined, StartError> {
    let cluster = parse_hex(&response.cluster_id);
    match (cluster, response.member_id) {
        (Some(cluster), member @ 1..) => {
            let known = |member: &lowkey_api::v1::Member| KnownMember {
                member: MemberId(member.member_id),
                key: parse_hex(&member.key_hash).map(KeyHash),
                raft_address: member.raft_address.clone(),
            };
            let members = response.members.iter().filter(|member| !member.expected).map(known).collect();
            Ok(Joined { cluster: ClusterId(cluster), member: MemberId(member), members })
        }
        _ => Err(StartError::Join {
            problem: "the member's answer names no cluster; is it of another version?".into(),
        }),
    }
}
