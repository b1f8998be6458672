//! Leases.

use lowkey_api::ApiError;
use lowkey_api::v1::{
    CreateLeaseRequest, CreateLeaseResponse, RenewLeaseRequest, RenewLeaseResponse, RevokeLeaseRequest,
    RevokeLeaseResponse,
};
use lowkey_core::{Command, Invalid, OwnerId, Reply, RequestId, Ttl};
use lowkey_replica::{Request, Response};

use super::{Operation, lease_id, unexpected, with_request_id};

impl Operation for CreateLeaseRequest {
    type Response = CreateLeaseResponse;
    const NAME: &'static str = "CreateLease";
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
    const NAME: &'static str = "RenewLease";
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
    const NAME: &'static str = "RevokeLease";
    const NUMBER: u32 = 3;
    const CHANGES: bool = true;
    with_request_id!();

    fn parse(&self) -> Result<Request, Invalid> {
        Ok(Request::Command(Command::RevokeLease {
            lease: lease_id(self.lease_id)?,
            owner: OwnerId::parse(&self.owner_id)?,
            since_unix_ms: 0,
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
