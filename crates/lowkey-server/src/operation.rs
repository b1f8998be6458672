//! The operations of the API: how each becomes a request to the replica, and how its outcome becomes an
//! answer.
//!
//! This is the only place where wire messages become domain values and back, and where every refusal gets
//! its reason. An operation that a follower forwards runs through the same code on the leader.
//!
//! - `leases.rs`, `locks.rs`, `reads.rs`, `cluster.rs`, `access.rs`: the operations
//! - `audit.rs`: questions about grants that are over
//! - `backups.rs`: backups at a client's wish, which the asked node makes
//! - `elections.rs`: calls that become operations on the election's lock
//! - `failure.rs`: the answers when there is no good one

mod access;
mod audit;
mod backups;
mod cluster;
mod elections;
mod failure;
mod leases;
mod locks;
mod reads;

use std::future::Future;
use std::time::Duration;

use lowkey_api::{ApiError, Reason};
use lowkey_core::{Invalid, LeaseId, OwnerId};
use lowkey_replica::{Request, Response};

use crate::access::Permitted;
use crate::call::{Call, Numbered};
use crate::service::Service;

pub(crate) use audit::{audit_query, audited};
pub(crate) use cluster::{parse_address, parse_hex};
pub(crate) use elections::in_words_of_elections;
pub(crate) use failure::{diverged, failure, outcome_unknown, place_kept};
pub(crate) use leases::{holds, renewed};
pub(crate) use reads::{mode, scope};

/// A call that a replica answers: how it becomes a request, and how the outcome becomes an answer.
pub(crate) trait Operation: Call + Numbered {
    /// How long it may wait for its turn.
    fn wait(&self) -> Duration {
        Duration::ZERO
    }

    /// It has waited already, and may wait only this much longer.
    fn wait_on(&mut self, _left: Duration) {}

    /// Whether a client may ask for it at this node.
    fn permit(&self, _service: &Service) -> Result<(), ApiError> {
        Ok(())
    }

    /// The request for the replica, or what is wrong with the call.
    fn parse(&self) -> Result<Request, Invalid>;

    /// The answer for the caller.
    fn respond(&self, response: Response) -> Result<Self::Response, ApiError>;

    /// Adds what the replica does not say but the node that the client asked knows.
    fn complete(
        &self,
        _service: &Service,
        outcome: Result<Self::Response, ApiError>,
    ) -> Result<Self::Response, ApiError> {
        outcome
    }
}

/// A call that no replica answers as it is. It is asked as another call, or this node answers it alone.
pub(crate) trait Answer: Call {
    /// The answer for the caller.
    fn answer(
        call: Permitted<Self>,
        service: &Service,
    ) -> impl Future<Output = Result<Self::Response, ApiError>> + Send;
}

fn lease_id(lease: u64) -> Result<LeaseId, Invalid> {
    match lease {
        0 => Err(Invalid::new("lease_id", "must name a lease; ids start at 1")),
        lease => Ok(LeaseId(lease)),
    }
}

/// The actor that asks, if the request names one.
fn actor(actor: &str) -> Result<Option<OwnerId>, Invalid> {
    match actor {
        "" => Ok(None),
        actor => match OwnerId::parse(actor) {
            Ok(actor) => Ok(Some(actor)),
            Err(invalid) => Err(Invalid::new("actor", invalid.problem)),
        },
    }
}

fn unexpected(response: &Response) -> ApiError {
    ApiError::new(Reason::Internal, format!("the replica gave an answer to another question: {response:?}"))
}
