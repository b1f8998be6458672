//! Locks: acquiring them, waiting for them, releasing them, and what is shown with them.

use std::time::Duration;

use lowkey_api::ApiError;
use lowkey_api::v1::{
    self, AcquireLockRequest, AcquireLockResponse, ProclaimRequest, ProclaimResponse, ReleaseLockRequest,
    ReleaseLockResponse,
};
use lowkey_core::limits::{MAX_HOLD_SECONDS_MAX, WAIT_MS_MAX};
use lowkey_core::{
    AcquireWith, Command, GrantRef, Invalid, LeaseId, LockName, MaxHold, Mode, OwnerId, Reply, RequestId,
    Requester, Scope, Token, Ttl, Value, WaitTime,
};
use lowkey_replica::{Request, Response};

use super::{Operation, actor, lease_id, unexpected};
use crate::service::Service;

// The limits that clients are told are the limits of the state machine.
const _: () = assert!(lowkey_api::limits::MAX_HOLD_MAX.as_secs() == MAX_HOLD_SECONDS_MAX as u64);
const _: () = assert!(lowkey_api::limits::WAIT_MAX.as_millis() == WAIT_MS_MAX as u128);

impl Operation for AcquireLockRequest {
    fn wait(&self) -> Duration {
        Duration::from_millis(u64::try_from(self.wait_ms).unwrap_or_default())
    }

    fn wait_on(&mut self, left: Duration) {
        // Not 0: that would mean "do not wait".
        self.wait_ms = i64::try_from(left.as_millis()).unwrap_or(i64::MAX).max(1);
    }

    fn parse(&self) -> Result<Request, Invalid> {
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
        let wait = WaitTime::parse(self.wait_ms)?;
        let command = Command::Acquire {
            lock: LockName::parse_wanted(&self.lock_name)?,
            owner: OwnerId::parse(&self.owner_id)?,
            with,
            mode: mode(self.mode)?,
            scope: scope(self.scope)?,
            value: Value::parse(&self.value)?,
            wait: wait > WaitTime::NONE,
            max_hold: MaxHold::parse(self.max_hold_seconds)?,
            since_unix_ms: 0,
            keeps_asked: false,
            request: RequestId::parse(&self.request_id)?,
        };
        Ok(match wait {
            WaitTime::NONE => Request::Command(command),
            wait => Request::Wait { command, wait },
        })
    }

    fn respond(&self, response: Response) -> Result<AcquireLockResponse, ApiError> {
        let (reply, waited_ms) = match response {
            Response::Applied(reply) => (reply, 0),
            Response::GrantedAfter { reply, waited_ms } => (reply, waited_ms),
            other => return Err(unexpected(&other)),
        };
        match reply {
            Reply::Granted { token, lease, ttl, revision } => Ok(AcquireLockResponse {
                fencing_token: token.0,
                lease_ttl_seconds: ttl.seconds(),
                lease_id: lease.0,
                revision,
                waited_ms: i64::try_from(waited_ms).unwrap_or(i64::MAX),
                epoch: 0,
            }),
            other => Err(unexpected(&Response::Applied(other))),
        }
    }

    /// The epoch is the same for every grant of a cluster: the node that was asked knows it.
    fn complete(
        &self,
        service: &Service,
        outcome: Result<AcquireLockResponse, ApiError>,
    ) -> Result<AcquireLockResponse, ApiError> {
        let epoch = service.lanes.root().view.epoch();
        outcome.map(|granted| AcquireLockResponse { epoch, ..granted })
    }
}

fn mode(number: i32) -> Result<Mode, Invalid> {
    match v1::Mode::try_from(number) {
        Ok(v1::Mode::Exclusive) => Ok(Mode::Exclusive),
        Ok(v1::Mode::Shared) => Ok(Mode::Shared),
        Err(_) => Err(Invalid::new("mode", format!("must be EXCLUSIVE (0) or SHARED (1), and is {number}"))),
    }
}

fn scope(number: i32) -> Result<Scope, Invalid> {
    match v1::Scope::try_from(number) {
        Ok(v1::Scope::Name) => Ok(Scope::Name),
        Ok(v1::Scope::Subtree) => Ok(Scope::Subtree),
        Err(_) => Err(Invalid::new("scope", format!("must be NAME (0) or SUBTREE (1), and is {number}"))),
    }
}

fn given_token(fencing_token: u64) -> Option<Token> {
    (fencing_token != 0).then_some(Token(fencing_token))
}

impl Operation for ReleaseLockRequest {
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
                GrantRef::GivenUp(acquire, requester)
            }
        };
        Ok(Request::Command(Command::Release {
            lock: LockName::parse(&self.lock_name)?,
            grant,
            token: given_token(self.fencing_token),
            actor: actor(&self.actor)?,
            since_unix_ms: 0,
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

impl Operation for ProclaimRequest {
    fn parse(&self) -> Result<Request, Invalid> {
        Ok(Request::Command(Command::SetValue {
            lock: election(&self.election)?,
            owner: OwnerId::parse(&self.owner_id)?,
            lease: lease_id(self.lease_id)?,
            token: given_token(self.fencing_token),
            value: Value::parse(&self.value)?,
            since_unix_ms: 0,
            request: RequestId::parse(&self.request_id)?,
        }))
    }

    fn respond(&self, response: Response) -> Result<ProclaimResponse, ApiError> {
        match response {
            Response::Applied(Reply::ValueSet { revision }) => Ok(ProclaimResponse { revision }),
            other => Err(unexpected(&other)),
        }
    }
}

/// An election is the lock of its name.
fn election(name: &str) -> Result<LockName, Invalid> {
    LockName::parse(name).map_err(|invalid| Invalid::new("election", invalid.problem))
}
