//! Members.

use lowkey_api::v1::{
    AddPeerRequest, AddPeerResponse, InvitePeerRequest, InvitePeerResponse, RemovePeerRequest,
    RemovePeerResponse, TransferLeaderRequest, TransferLeaderResponse,
};
use lowkey_api::{ApiError, Reason};
use lowkey_core::limits::{ADDRESS_BYTES_MAX, INVITATION_SECONDS_MAX};
use lowkey_core::{
    Command, Invalid, InvitationHash, KeyHash, MemberId, NodeIdentity, NodeInfo, NodeName, Reply,
};
use lowkey_replica::{RaftTick, Request, Response};

use super::{Answer, Operation, unexpected};
use crate::access::Permitted;
use crate::edge::Node as _;
use crate::error::StartError;
use crate::invitation::{JoinToken, LIFETIME_SECONDS, Secret};
use crate::join::REMOVED_MEMBER;
use crate::peers::known::{KnownMember, registered};
use crate::peers::proto::{InviteRequest, InviteResponse, JoinRequest, JoinResponse};
use crate::service::{Service, members};

impl Operation for AddPeerRequest {
    fn parse(&self) -> Result<Request, Invalid> {
        let name = NodeName::parse(&self.node_id)?;
        // A request that only announces an expected node leaves out everything that only the node itself
        // can know.
        let is_expected = self.identity.is_empty()
            && self.grpc_address.is_empty()
            && self.http_address.is_empty()
            && (self.command_version, self.member_id) == (0, 0);
        let raft_address = |text| parse_address("raft_address", text);
        if is_expected {
            return Ok(Request::Command(Command::AddMember {
                node: Box::new(NodeInfo {
                    name,
                    identity: None,
                    raft_address: raft_address(&self.raft_address)?,
                    grpc_address: String::new(),
                    http_address: String::new(),
                    command_version: 0,
                    key_hash: None,
                }),
                invitation: None,
            }));
        }
        let node = Box::new(NodeInfo {
            name,
            identity: Some(parse_identity(&self.identity)?),
            raft_address: raft_address(&self.raft_address)?,
            grpc_address: parse_address("grpc_address", &self.grpc_address)?,
            http_address: parse_address("http_address", &self.http_address)?,
            command_version: self.command_version,
            key_hash: parse_key_hash(&self.key_hash)?,
        });
        Ok(Request::Command(match self.member_id {
            0 => Command::AddMember { node, invitation: None },
            member => Command::UpdateMember { member: MemberId(member), node },
        }))
    }

    /// A node needs the cluster's tick. A new one also needs an invitation, unless nobody else could come here, or the
    /// operator said that anybody may.
    fn permit(&self, service: &Service) -> Result<(), ApiError> {
        // Who announces a node does not know its tick.
        if !self.identity.is_empty() {
            check_tick(self.raft_tick_ms, service)?;
        }
        let is_new = !self.identity.is_empty() && self.member_id == 0;
        if !is_new || service.lets_anybody_join() && !service.guard().is_required() {
            return Ok(());
        }
        Err(ApiError::new(
            Reason::InvitationNeeded,
            "a node joins this cluster with an invitation: `lowkey member invite` at a member makes one; give it to the \
             new node with --join-token-file",
        ))
    }

    fn respond(&self, response: Response) -> Result<AddPeerResponse, ApiError> {
        match response {
            Response::Applied(Reply::MemberAdded { member }) => {
                Ok(AddPeerResponse { member_id: member.0, ..AddPeerResponse::default() })
            }
            other => Err(unexpected(&other)),
        }
    }

    fn complete(
        &self,
        service: &Service,
        outcome: Result<AddPeerResponse, ApiError>,
    ) -> Result<AddPeerResponse, ApiError> {
        let status = service.lanes.root().view.status();
        let member = MemberId(self.member_id);
        let response = outcome.map_err(|error| {
            // A removed node that renews its addresses may have no other way to learn that it was removed.
            match error.reason == Reason::NodeNotFound && status.has_removed(member) {
                true => error.with(REMOVED_MEMBER, member),
                false => error,
            }
        })?;
        let cluster_id = service.hello.cluster.to_string();
        Ok(AddPeerResponse { cluster_id, members: members(&status), ..response })
    }
}

impl Operation for JoinRequest {
    fn parse(&self) -> Result<Request, Invalid> {
        let bytes = |field, bytes: &[u8]| {
            <[u8; 32]>::try_from(bytes).map_err(|_| Invalid::new(field, "must be 32 bytes"))
        };
        let identity = <[u8; 16]>::try_from(self.identity.as_slice());
        let node = NodeInfo {
            name: NodeName::parse(&self.node_id)?,
            identity: Some(NodeIdentity(identity.map_err(|_| Invalid::new("identity", "must be 16 bytes"))?)),
            raft_address: parse_address("raft_address", &self.raft_address)?,
            grpc_address: parse_address("grpc_address", &self.grpc_address)?,
            http_address: parse_address("http_address", &self.http_address)?,
            command_version: self.command_version,
            key_hash: Some(KeyHash(bytes("key_hash", &self.key_hash)?)),
        };
        let invitation = Some(InvitationHash(bytes("body", &self.invitation)?));
        Ok(Request::Command(Command::AddMember { node: Box::new(node), invitation }))
    }

    fn permit(&self, service: &Service) -> Result<(), ApiError> {
        check_tick(self.raft_tick_ms, service)
    }

    fn respond(&self, response: Response) -> Result<JoinResponse, ApiError> {
        match response {
            Response::Applied(Reply::MemberAdded { member }) => {
                Ok(JoinResponse { member_id: member.0, ..JoinResponse::default() })
            }
            other => Err(unexpected(&other)),
        }
    }

    fn complete(
        &self,
        service: &Service,
        outcome: Result<JoinResponse, ApiError>,
    ) -> Result<JoinResponse, ApiError> {
        let status = service.lanes.root().view.status();
        let members = registered(&status).map(Into::into).collect();
        Ok(JoinResponse { cluster_id: service.hello.cluster.0.to_vec(), members, ..outcome? })
    }
}

impl Operation for InviteRequest {
    fn parse(&self) -> Result<Request, Invalid> {
        let invitation = <[u8; 32]>::try_from(self.invitation.as_slice());
        let invitation = invitation.map_err(|_| Invalid::new("body", "must be 32 bytes"))?;
        Ok(Request::Command(Command::Invite {
            invitation: InvitationHash(invitation),
            lifetime_seconds: self.lifetime_seconds,
            since_unix_ms: 0,
        }))
    }

    fn respond(&self, response: Response) -> Result<InviteResponse, ApiError> {
        match response {
            Response::Applied(Reply::Invited { expires_unix_ms }) => Ok(InviteResponse { expires_unix_ms }),
            other => Err(unexpected(&other)),
        }
    }
}

impl Answer for InvitePeerRequest {
    async fn answer(call: Permitted<Self>, service: &Service) -> Result<InvitePeerResponse, ApiError> {
        let lifetime_seconds = match u64::try_from(call.wanted().ttl_seconds) {
            Ok(0) => LIFETIME_SECONDS,
            Ok(seconds @ 1..=INVITATION_SECONDS_MAX) => seconds,
            _ => {
                let problem = format!("must be 1 to {INVITATION_SECONDS_MAX}, or 0 for an hour");
                return Err(ApiError::invalid("ttl_seconds", problem));
            }
        };
        let internal = |error: StartError| ApiError::new(Reason::Internal, error.to_string());
        // The secret is made here and told to whom asks. The leader, and the log, see its hash.
        let secret = Secret(crate::random_bytes().map_err(internal)?);
        let invite = InviteRequest { invitation: secret.hash().0.to_vec(), lifetime_seconds };
        let InviteResponse { expires_unix_ms } = service.operate(call.as_part(invite)).await?;
        let status = service.lanes.root().view.status();
        let members: Vec<KnownMember> = registered(&status).filter(|member| member.key.is_some()).collect();
        if members.is_empty() {
            let problem = "no member's key is known here yet; try again in a moment";
            return Err(ApiError::new(Reason::UpgradeUnderWay, problem).retry_after_ms(1000));
        }
        let token = JoinToken { cluster: service.hello.cluster, secret, members }.reveal();
        Ok(InvitePeerResponse { token, expires_unix_ms })
    }
}

impl Operation for RemovePeerRequest {
    fn parse(&self) -> Result<Request, Invalid> {
        Ok(Request::Command(Command::RemoveMember {
            name: NodeName::parse(&self.node_id)?,
            member: (self.member_id != 0).then_some(MemberId(self.member_id)),
        }))
    }

    fn respond(&self, response: Response) -> Result<RemovePeerResponse, ApiError> {
        match response {
            Response::Applied(Reply::MemberRemoved { member }) => {
                Ok(RemovePeerResponse { member_id: member.0 })
            }
            other => Err(unexpected(&other)),
        }
    }
}

impl Operation for TransferLeaderRequest {
    fn parse(&self) -> Result<Request, Invalid> {
        Ok(Request::Transfer { to: NodeName::parse(&self.node_id)? })
    }

    fn respond(&self, response: Response) -> Result<TransferLeaderResponse, ApiError> {
        match response {
            Response::Leads { .. } => Ok(TransferLeaderResponse {
                leader_id: self.node_id.clone(),
                ..TransferLeaderResponse::default()
            }),
            other => Err(unexpected(&other)),
        }
    }

    fn complete(
        &self,
        service: &Service,
        outcome: Result<TransferLeaderResponse, ApiError>,
    ) -> Result<TransferLeaderResponse, ApiError> {
        let TransferLeaderResponse { leader_id, .. } = outcome?;
        let status = service.lanes.root().view.status();
        let leader = status.members.iter().find(|member| member.node.name.as_str() == leader_id);
        let leader_address = leader.map(|leader| leader.node.grpc_address.clone()).unwrap_or_default();
        Ok(TransferLeaderResponse { leader_id, leader_address })
    }
}

/// A node with another tick than this one would join, and nobody would hear it.
fn check_tick(raft_tick_ms: u32, service: &Service) -> Result<(), ApiError> {
    let own = service.hello.raft_tick;
    if RaftTick::told(raft_tick_ms) == Some(own) {
        return Ok(());
    }
    let theirs =
        RaftTick::told(raft_tick_ms).map_or_else(|| format!("{raft_tick_ms}ms"), |tick| tick.to_string());
    let problem = format!(
        "the nodes of this cluster run with --raft-tick {own}, and the one that asks with {theirs}: start it with \
         --raft-tick {own}"
    );
    Err(ApiError::invalid("raft_tick_ms", problem))
}

fn parse_identity(text: &str) -> Result<NodeIdentity, Invalid> {
    let problem = "must be 32 hexadecimal digits; a node makes its own when it is started with --join";
    parse_hex(text).map(NodeIdentity).ok_or_else(|| Invalid::new("identity", problem))
}

/// The hash of a node's key; none of a node of before.
fn parse_key_hash(text: &str) -> Result<Option<KeyHash>, Invalid> {
    if text.is_empty() {
        return Ok(None);
    }
    let hash = parse_hex(text).map(KeyHash);
    hash.map(Some).ok_or_else(|| Invalid::new("key_hash", "must be 64 hexadecimal digits, or empty"))
}

/// Bytes from twice as many hexadecimal digits.
pub(crate) fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(bytes)
}

/// `HOST:PORT`, as others can dial it.
pub(crate) fn parse_address(field: &'static str, text: &str) -> Result<String, Invalid> {
    let invalid = || {
        let scheme = text.find("://").map_or("", |end| &text[..end + "://".len()]);
        let without = if scheme.is_empty() { String::new() } else { format!(", without {scheme}") };
        Invalid::new(field, format!("must be HOST:PORT with a port above 0{without}, and is {text:?}"))
    };
    let (host, port) = text.rsplit_once(':').ok_or_else(invalid)?;
    let port_is_good = port.parse::<u16>().is_ok_and(|port| port > 0);
    let host_is_good = !host.is_empty()
        && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte));
    if !port_is_good || !host_is_good || text.len() > ADDRESS_BYTES_MAX {
        return Err(invalid());
    }
    Ok(text.to_owned())
}
