//! What would have been refused, had access been required: for who is about to require it.
//!
//! Noted while there are principals and access is not required: by each node what it was asked itself. The owner that a
//! call names is judged with it, though the leader does that otherwise. What is not noted: leases of other owners that
//! are renewed, revoked or released by their number.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lowkey_core::Denied;
use tokio::time::Instant;

use super::{Rule, Shown};

/// How long it is remembered.
const SPAN: Duration = Duration::from_secs(3600);
/// How much is remembered. What comes on top is counted under one name.
const NOTED_MAX: usize = 1_000;

/// What would have been refused, to whom and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WouldBeRefused {
    /// The principal, or the address.
    pub(crate) client: String,
    /// What it lacks.
    pub(crate) why: String,
    /// How often.
    pub(crate) count: u64,
}

#[derive(Default)]
pub(super) struct Rehearsal {
    noted: Mutex<HashMap<(String, String), (Instant, u64)>>,
}

impl Rehearsal {
    pub(super) fn note(&self, shown: &Shown, rule: Rule<'_>, denied: &Denied) {
        let address = shown.address().map(|address| address.to_string()).unwrap_or_else(|| "unknown".into());
        let (client, why) = match (denied, rule) {
            (Denied::Unproven, _) if shown.failure().is_some() => (address, "its token is not valid".into()),
            (Denied::Unproven, _) => (address, "it shows neither a token nor a known certificate".into()),
            (Denied::NotGranted { principal, .. }, Rule::Granted(verb, on)) => {
                (principal.to_string(), format!("it has no {verb} {on}"))
            }
            (Denied::NotOwn { principal, .. }, _) => {
                let why = format!("it names owners that are not {principal}, and not below {principal}/");
                (principal.to_string(), why)
            }
            (Denied::NotGranted { principal, .. }, _) => (principal.to_string(), "it lacks a grant".into()),
        };
        let now = Instant::now();
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let mut key = (client, why);
        if noted.len() >= NOTED_MAX && !noted.contains_key(&key) {
            noted.retain(|_, (last, _)| now - *last < SPAN);
            if noted.len() >= NOTED_MAX {
                key = ("others".into(), "there are more than are remembered".into());
            }
        }
        let (last, count) = noted.entry(key).or_insert((now, 0));
        if now - *last >= SPAN {
            *count = 0;
        }
        (*last, *count) = (now, *count + 1);
    }

    pub(super) fn told(&self) -> Vec<WouldBeRefused> {
        let now = Instant::now();
        let noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = noted.iter().filter(|(_, (last, _))| now - *last < SPAN);
        let mut told: Vec<_> = recent
            .map(|((client, why), (_, count))| WouldBeRefused {
                client: client.clone(),
                why: why.clone(),
                count: *count,
            })
            .collect();
        told.sort_by(|one, other| (&one.client, &one.why).cmp(&(&other.client, &other.why)));
        told
    }
}
