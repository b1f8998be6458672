//! The operations of the API: how each becomes a request to the replica, and how the outcome is told.
//!
//! This is the one place where words of the wire become values of the domain and back, and where
//! every refusal gets its reason. An operation that a follower forwards goes through the very same
//! lines on the leader.

use std::time::{SystemTime, UNIX_EPOCH};

use lowkey_api::v1::{
    AcquireLockRequest, AcquireLockResponse, AddPeerRequest, AddPeerResponse, CreateLeaseRequest,
    CreateLeaseResponse, GetLockRequest, GetLockResponse, LockHolder, Mode, ReleaseLockRequest,
    ReleaseLockResponse, RenewLeaseRequest, RenewLeaseResponse, RevokeLeaseRequest, RevokeLeaseResponse,
    Scope,
};
use lowkey_api::{ApiError, Reason};
use lowkey_core::limits::{ADDRESS_BYTES_MAX, IN_FLIGHT_PER_LEASE_MAX, LOCKS_PER_LEASE_MAX};
use lowkey_core::{
    AcquireWith, Command, GrantRef, Invalid, LeaseId, LockName, NodeIdentity, NodeInfo, NodeName, OwnerId,
    Refusal, Reply, RequestId, Requester, Token, Ttl,
};
use lowkey_replica::{Failure, Request, Response};

/// An operation of the API.
pub(crate) trait Operation: prost::Message + Default + Clone {
    /// What its caller gets.
    type Response: prost::Message + Default;
    /// Its number between nodes; never reused.
    const NUMBER: u32;
    /// It changes the state: if its outcome is not known, doing it again is not harmless.
    const CHANGES: bool;

    /// Gives it a request id if it has none and wants one.
    fn name_request(&mut self, _make_id: impl FnOnce() -> String) {}

    /// The id that its caller can ask again with.
    fn request_id(&self) -> &str {
        ""
    }

    /// What the replica is asked, or what is wrong with it.
    fn parse(&self) -> Result<Request, Invalid>;

    /// What the caller is told.
    fn respond(&self, response: Response) -> Result<Self::Response, ApiError>;
}

/// The request id of operations that have one.
macro_rules! with_request_id {
    () => {
        fn name_request(&mut self, make_id: impl FnOnce() -> String) {
            if self.request_id.is_empty() {
                self.request_id = make_id();
            }
        }

        fn request_id(&self) -> &str {
            &self.request_id
        }
    };
}

impl Operation for CreateLeaseRequest {
    type Response = CreateLeaseResponse;
    const NUMBER: u32 = 1;
    const CHANGES: bool = true;
    with_request_id!();

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
    type Response = RenewLeaseResponse;
    const NUMBER: u32 = 2;
    const CHANGES: bool = false;

    fn parse(&self) -> Result<Request, Invalid> {
        Ok(Request::Renew { lease: lease_id(self.lease_id)? })
    }

    fn respond(&self, response: Response) -> Result<RenewLeaseResponse, ApiError> {
        match response {
            Response::Renewed { ttl } => Ok(RenewLeaseResponse { ttl_seconds: ttl.seconds() }),
            other => Err(unexpected(&other)),
        }
    }
}

impl Operation for RevokeLeaseRequest {
    type Response = RevokeLeaseResponse;
    const NUMBER: u32 = 3;
    const CHANGES: bool = true;
    with_request_id!();

    fn parse(&self) -> Result<Request, Invalid> {
        Ok(Request::Command(Command::RevokeLease {
            lease: lease_id(self.lease_id)?,
            owner: OwnerId::parse(&self.owner_id)?,
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

impl Operation for AcquireLockRequest {
    type Response = AcquireLockResponse;
    const NUMBER: u32 = 4;
    const CHANGES: bool = true;
    with_request_id!();

    fn parse(&self) -> Result<Request, Invalid> {
        self.refuse_what_is_not_there_yet()?;
        let with = match (self.lease_id, self.ttl_seconds) {
            (0, 0) => {
                let problem = "must name a lease, or ttl_seconds must say how long a new one is to live";
                return Err(Invalid::new("lease_id", problem));
            }
            (0, ttl_seconds) => AcquireWith::NewLease(Ttl::parse(ttl_seconds)?),
            (lease, 0) => AcquireWith::Lease(LeaseId(lease)),
            (_, _) => {
                let problem = "makes a new lease, and so must be left out where lease_id names one";
                return Err(Invalid::new("ttl_seconds", problem));
            }
        };
        Ok(Request::Command(Command::Acquire {
            lock: LockName::parse(&self.lock_name)?,
            owner: OwnerId::parse(&self.owner_id)?,
            with,
            since_unix_ms: unix_ms(),
            request: RequestId::parse(&self.request_id)?,
        }))
    }

    fn respond(&self, response: Response) -> Result<AcquireLockResponse, ApiError> {
        match response {
            Response::Applied(Reply::Granted { token, lease, ttl, revision }) => Ok(AcquireLockResponse {
                fencing_token: token.0,
                lease_ttl_seconds: ttl.seconds(),
                lease_id: lease.0,
                revision,
                waited_ms: 0,
            }),
            other => Err(unexpected(&other)),
        }
    }
}

/// What the API has words for and this version does not do is refused, never silently done otherwise.
trait NotThereYet {
    fn refuse_what_is_not_there_yet(&self) -> Result<(), Invalid>;
}

impl NotThereYet for AcquireLockRequest {
    fn refuse_what_is_not_there_yet(&self) -> Result<(), Invalid> {
        if self.wait_ms != 0 {
            return Err(Invalid::new(
                "wait_ms",
                format!("must be 0 in this version, and is {}", self.wait_ms),
            ));
        }
        if self.mode != Mode::Exclusive as i32 {
            return Err(Invalid::new("mode", "must be EXCLUSIVE in this version"));
        }
        if self.scope != Scope::Name as i32 {
            return Err(Invalid::new("scope", "must be NAME in this version"));
        }
        if !self.value.is_empty() {
            return Err(Invalid::new("value", "must be empty in this version"));
        }
        Ok(())
    }
}

impl Operation for ReleaseLockRequest {
    type Response = ReleaseLockResponse;
    const NUMBER: u32 = 5;
    const CHANGES: bool = true;
    with_request_id!();

    fn parse(&self) -> Result<Request, Invalid> {
        let grant = match (self.lease_id, self.acquire_request_id.as_str()) {
            (0, "") => return Err(Invalid::new("lease_id", "must name the lease that holds the lock")),
            (lease, "") => GrantRef::Lease(LeaseId(lease)),
            (lease, acquire) => {
                let acquire = RequestId::parse(acquire)
                    .map_err(|invalid| Invalid::new("acquire_request_id", invalid.problem))?;
                let requester = match lease {
                    0 => Requester::Owner(OwnerId::parse(&self.owner_id)?),
                    lease => Requester::Lease(LeaseId(lease)),
                };
                GrantRef::Request(acquire, requester)
            }
        };
        Ok(Request::Command(Command::Release {
            lock: LockName::parse(&self.lock_name)?,
            grant,
            token: (self.fencing_token != 0).then_some(Token(self.fencing_token)),
            request: RequestId::parse(&self.request_id)?,
        }))
    }

    fn respond(&self, response: Response) -> Result<ReleaseLockResponse, ApiError> {
        match response {
            Response::Applied(Reply::Released) => Ok(ReleaseLockResponse { released: true }),
            other => Err(unexpected(&other)),
        }
    }
}

impl Operation for GetLockRequest {
    type Response = GetLockResponse;
    const NUMBER: u32 = 6;
    const CHANGES: bool = false;

    fn parse(&self) -> Result<Request, Invalid> {
        Ok(Request::GetLock { lock: LockName::parse(&self.lock_name)? })
    }

    fn respond(&self, response: Response) -> Result<GetLockResponse, ApiError> {
        match response {
            Response::Lock { holder, revision } => Ok(GetLockResponse {
                lock_name: self.lock_name.clone(),
                holders: holder
                    .into_iter()
                    .map(|holder| LockHolder {
                        owner_id: holder.owner.to_string(),
                        lease_id: holder.lease.0,
                        fencing_token: holder.token.0,
                        mode: Mode::Exclusive.into(),
                        scope: Scope::Name.into(),
                        value: String::new(),
                        since_unix_ms: i64::try_from(holder.since_unix_ms).unwrap_or(i64::MAX),
                    })
                    .collect(),
                waiters: Vec::new(),
                revision,
            }),
            other => Err(unexpected(&other)),
        }
    }
}

impl Operation for AddPeerRequest {
    type Response = AddPeerResponse;
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

fn lease_id(lease: u64) -> Result<LeaseId, Invalid> {
    match lease {
        0 => Err(Invalid::new("lease_id", "must name a lease; ids start at 1")),
        lease => Ok(LeaseId(lease)),
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

/// The wall clock, for display only.
fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn unexpected(response: &Response) -> ApiError {
    ApiError::new(Reason::Internal, format!("the replica gave an answer to another question: {response:?}"))
}

/// A refusal of the replica as the caller is told it; nothing if the caller should ask another node.
pub(crate) fn failure(failure: Failure, request_id: &str) -> Option<ApiError> {
    Some(match failure {
        Failure::NotLeader { .. } => return None,
        Failure::Refused(refusal) => refused(refusal),
        Failure::OutcomeUnknown => outcome_unknown(request_id),
        Failure::Busy => {
            ApiError::new(Reason::LimitBusy, "the leader has more to do than it can take in; try again shortly")
                .retry_after_ms(100)
        }
        Failure::TooManyInFlight { lease } => ApiError::new(
            Reason::LimitInFlight,
            format!("lease {lease} has {IN_FLIGHT_PER_LEASE_MAX} operations under way, as many as a lease may"),
        )
        .retry_after_ms(50),
        Failure::TooManyLeases { leases_max } => {
            ApiError::new(Reason::LimitLeases, format!("there are {leases_max} leases, as many as there may be"))
        }
        Failure::DiskFull => ApiError::new(
            Reason::LimitDisk,
            "the leader's disk is full: no new leases or locks until there is space; renewals and releases go on",
        )
        .retry_after_ms(1000),
    })
}

/// It may have happened: the caller can find out by asking again under the same id.
pub(crate) fn outcome_unknown(request_id: &str) -> ApiError {
    ApiError::new(
        Reason::OutcomeUnknown,
        format!("the outcome is not known: it may have happened, or may yet; ask again with request_id {request_id}"),
    )
    .with("request_id", request_id)
    .retry_after_ms(200)
}

fn refused(refusal: Refusal) -> ApiError {
    match refusal {
        Refusal::LeaseNotFound { lease } => {
            ApiError::new(Reason::LeaseNotFound, format!("lease {lease} does not exist: it never did, ran out, or was revoked"))
                .with("lease_id", lease)
        }
        Refusal::LockNotFound { lock } => {
            ApiError::new(Reason::LockNotFound, format!("nobody holds lock {lock}")).with("lock_name", lock)
        }
        Refusal::LockHeld { lock, holder } => ApiError::new(
            Reason::LockHeld,
            format!("lock {lock} is held by {} with lease {} and token {}", holder.owner, holder.lease, holder.token),
        )
        .with("lock_name", lock)
        .with("owner_id", holder.owner)
        .with("lease_id", holder.lease)
        .with("fencing_token", holder.token)
        .with("since_unix_ms", holder.since_unix_ms)
        .with("waiters", 0),
        Refusal::NotOwner { what } => ApiError::new(Reason::NotOwner, what),
        Refusal::StaleToken { lock, given, current } => ApiError::new(
            Reason::StaleToken,
            format!("token {given} is not the current one of lock {lock}, which is {current}; the newer grant was not touched"),
        )
        .with("lock_name", lock)
        .with("current_fencing_token", current),
        Refusal::TooManyLocks { lease } => ApiError::new(
            Reason::LimitLocksPerLease,
            format!("lease {lease} holds {LOCKS_PER_LEASE_MAX} locks, as many as a lease may"),
        ),
        Refusal::RequestReused { request } => ApiError::invalid(
            "request_id",
            format!("{request} was used before, for something else; every operation needs an id of its own"),
        ),
        Refusal::NodeNameTaken { name, by: _ } => ApiError::new(
            Reason::NodeNameTaken,
            // The other's identity is not told: it is what tells members from strangers.
            format!("another node named {name} is a member already; choose another --node-id"),
        ),
    }
}
