//! Members.

use lowkey_api::ApiError;
use lowkey_api::v1::{AddPeerRequest, AddPeerResponse};
use lowkey_core::limits::ADDRESS_BYTES_MAX;
use lowkey_core::{Command, Invalid, NodeIdentity, NodeInfo, NodeName, Reply};
use lowkey_replica::{Request, Response};

use super::{Operation, unexpected, with_request_id};

impl Operation for AddPeerRequest {
    type Response = AddPeerResponse;
    const NAME: &'static str = "AddPeer";
    const NUMBER: u32 = 7;
    const CHANGES: bool = true;
    with_request_id!();

    fn parse(&self) -> Result<Request, Invalid> {
        Ok(Request::Command(Command::AddMember {
            node: NodeInfo {
                name: NodeName::parse(&self.node_id)?,
                identity: parse_identity(&self.identity)?,
                raft_address: parse_address("raft_address", &self.raft_address)?,
                grpc_address: parse_address("grpc_address", &self.grpc_address)?,
                http_address: parse_address("http_address", &self.http_address)?,
                command_version: self.command_version,
            },
        }))
    }

    fn respond(&self, response: Response) -> Result<AddPeerResponse, ApiError> {
        match response {
            // The service adds what is not the replica's to say: the cluster and its members.
            Response::Applied(Reply::MemberAdded { member }) => {
                Ok(AddPeerResponse { member_id: member.0, ..AddPeerResponse::default() })
            }
            other => Err(unexpected(&other)),
        }
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
    let invalid = || Invalid::new(field, format!("must be HOST:PORT with a port above 0, and is {text:?}"));
    let (host, port) = text.rsplit_once(':').ok_or_else(invalid)?;
    let port_is_good = port.parse::<u16>().is_ok_and(|port| port > 0);
    let host_is_good = !host.is_empty()
        && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte));
    if !port_is_good || !host_is_good || text.len() > ADDRESS_BYTES_MAX {
        return Err(invalid());
    }
    Ok(text.to_owned())
}
