//! Members.

use lowkey_api::v1::{
    AddPeerRequest, AddPeerResponse, RemovePeerRequest, RemovePeerResponse, TransferLeaderRequest,
    TransferLeaderResponse,
};
use lowkey_api::{ApiError, Reason};
use lowkey_core::limits::ADDRESS_BYTES_MAX;
use lowkey_core::{Command, Invalid, MemberId, NodeIdentity, NodeInfo, NodeName, Reply};
use lowkey_replica::{Request, Response};

use super::{Operation, unexpected};
use crate::join::REMOVED_MEMBER;
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
                node: NodeInfo {
                    name,
                    identity: None,
                    raft_address: raft_address(&self.raft_address)?,
                    grpc_address: String::new(),
                    http_address: String::new(),
                    command_version: 0,
                },
            }));
        }
        let node = NodeInfo {
            name,
            identity: Some(parse_identity(&self.identity)?),
            raft_address: raft_address(&self.raft_address)?,
            grpc_address: parse_address("grpc_address", &self.grpc_address)?,
            http_address: parse_address("http_address", &self.http_address)?,
            command_version: self.command_version,
        };
        Ok(Request::Command(match self.member_id {
            0 => Command::AddMember { node },
            member => Command::UpdateMember { member: MemberId(member), node },
        }))
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

fn parse_identity(text: &str) -> Result<NodeIdentity, Invalid> {
    let problem = "must be 32 hexadecimal digits; a node makes its own when it is started with --join";
    parse_hex(text).map(NodeIdentity).ok_or_else(|| Invalid::new("identity", problem))
}

/// Sixteen bytes from 32 hexadecimal digits.
pub(crate) fn parse_hex(text: &str) -> Option<[u8; 16]> {
    if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    u128::from_str_radix(text, 16).ok().map(u128::to_be_bytes)
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
