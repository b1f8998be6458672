//! When faults stop, a leader emerges and service resumes (design, section 8, point 11).

use super::{Check, broken};
use crate::client::Client;

/// What the quiet phase must have brought.
pub(crate) struct Liveness;

impl Liveness {
    pub(crate) fn at_end(leaders: usize, clients: &[Client]) -> Check {
        if leaders != 1 {
            return broken("liveness", format!("{leaders} replicas serve when all is quiet"));
        }
        match clients.iter().find(|client| client.done_in_quiet == 0) {
            Some(client) => {
                broken("liveness", format!("{} got nothing done when all was quiet", client.owner))
            }
            None => Ok(()),
        }
    }
}
