//! One request id, one effect (design, section 8, point 9).

use std::collections::BTreeSet;

use lowkey_core::{Command, RequestId};

use super::{Check, Committed, broken};

#[derive(Default)]
pub(crate) struct Requests {
    /// The simulated clients never use an id twice, so that ids alone tell operations apart.
    effective: BTreeSet<RequestId>,
}

impl Requests {
    pub(crate) fn committed(&mut self, committed: &Committed) -> Check {
        let request = match &committed.command {
            Command::CreateLease { request, .. }
            | Command::RevokeLease { request, .. }
            | Command::Acquire { request, .. }
            | Command::Release { request, .. } => request,
            Command::Expire { .. } | Command::AddMember { .. } => return Ok(()),
        };
        if committed.applied.events.is_empty() || self.effective.insert(request.clone()) {
            return Ok(());
        }
        broken("requests", format!("request {request} had a second effect at {}", committed.index))
    }
}
