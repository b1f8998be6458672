//! The operations of the API: how each becomes a request to the replica, and how the outcome is told.
//!
//! This is the one place where words of the wire become values of the domain and back, and where
//! every refusal gets its reason. An operation that a follower forwards goes through the very same
//! lines on the leader.
//!
//! - `leases.rs`, `locks.rs`, `reads.rs`, `cluster.rs`: the operations
//! - `failure.rs`: what is told when there is no good answer

mod cluster;
mod failure;
mod leases;
mod locks;
mod reads;

use std::time::Duration;

use lowkey_api::{ApiError, Reason};
use lowkey_core::{Invalid, LeaseId, OwnerId};
use lowkey_replica::{Request, Response};

pub(crate) use cluster::{parse_address, parse_hex};
pub(crate) use failure::{diverged, failure, outcome_unknown, place_kept};
pub(crate) use reads::{mode, scope};

/// An operation of the API.
pub(crate) trait Operation: prost::Message + Default + Clone {
    /// What its caller gets.
    type Response: prost::Message + Default;
    /// Its name, as it is counted.
    const NAME: &'static str;
    /// Its name if it may wait for its turn: that takes as long as it takes.
    const NAME_WAITING: &'static str = Self::NAME;
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

    /// How long it may wait for its turn.
    fn wait(&self) -> Duration {
        Duration::ZERO
    }

    /// It has waited already, and may do so for this long only.
    fn wait_on(&mut self, _left: Duration) {}

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
use with_request_id;

fn lease_id(lease: u64) -> Result<LeaseId, Invalid> {
    match lease {
        0 => Err(Invalid::new("lease_id", "must name a lease; ids start at 1")),
        lease => Ok(LeaseId(lease)),
    }
}

/// Who asks, if that was said.
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
