//! Errors as data, with feature `serde`: for structured logs, and for services that pass them on.
//!
//! The form is stable: `kind`, `message`, `retryable`, `outcomeUnknown`, and where there is one `reason` and
//! `heldBy`. 64-bit numbers are texts, as in the JSON of the service: many readers keep only 53 bits.

use serde::ser::{Serialize, SerializeStruct, Serializer};

use crate::error::{Error, ErrorKind, HeldBy, Lost};
use crate::session::LossCause;

impl Serialize for Error {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Error", 6)?;
        fields.serialize_field("kind", kind(self.kind()))?;
        fields.serialize_field("message", &self.to_string())?;
        fields.serialize_field("retryable", &self.is_retryable())?;
        fields.serialize_field("outcomeUnknown", &self.outcome_unknown())?;
        match self.reason() {
            Some(reason) => fields.serialize_field("reason", reason.as_str())?,
            None => fields.skip_field("reason")?,
        }
        match self.held_by() {
            Some(held_by) => fields.serialize_field("heldBy", held_by)?,
            None => fields.skip_field("heldBy")?,
        }
        fields.end()
    }
}

fn kind(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::LockHeld(_) => "LOCK_HELD",
        ErrorKind::WaitTimeout(_) => "WAIT_TIMEOUT",
        ErrorKind::SessionLost(_) => "SESSION_LOST",
        ErrorKind::Refused(_) => "REFUSED",
        ErrorKind::Unavailable { .. } => "UNAVAILABLE",
        ErrorKind::WrongCluster { .. } => "WRONG_CLUSTER",
        ErrorKind::Invalid(_) => "INVALID",
    }
}

impl Serialize for HeldBy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("HeldBy", 6)?;
        fields.serialize_field("name", &self.name)?;
        fields.serialize_field("owner", &self.owner)?;
        fields.serialize_field("leaseId", &self.lease_id.to_string())?;
        fields.serialize_field("fencingToken", &self.fencing_token.to_string())?;
        fields.serialize_field("sinceUnixMs", &self.since_unix_ms.to_string())?;
        fields.serialize_field("waiters", &self.waiters.to_string())?;
        fields.end()
    }
}

impl Serialize for LossCause {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Self::Expired => "EXPIRED",
            Self::Gone => "GONE",
            Self::Closed => "CLOSED",
            Self::ReleasedElsewhere => "RELEASED_ELSEWHERE",
            Self::HeldTooLong => "HELD_TOO_LONG",
        })
    }
}

impl Serialize for Lost {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Lost", 3)?;
        fields.serialize_field("kind", "LOST")?;
        fields.serialize_field("message", &self.to_string())?;
        fields.serialize_field("cause", &self.cause)?;
        fields.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_in_json_what_it_says_in_rust() {
        let held_by =
            HeldBy { name: "a".into(), owner: "b".into(), fencing_token: u64::MAX, ..HeldBy::default() };
        let told = serde_json::to_value(Error::new(ErrorKind::LockHeld(held_by))).unwrap();
        assert_eq!((&told["kind"], &told["outcomeUnknown"]), (&"LOCK_HELD".into(), &false.into()));
        assert_eq!(told["heldBy"]["fencingToken"], u64::MAX.to_string());
        assert!(told.get("reason").is_none_or(|reason| reason == "LOCK_HELD"), "{told}");
        let told = serde_json::to_value(Error::unavailable("nobody is there", true)).unwrap();
        assert_eq!((&told["kind"], &told["outcomeUnknown"]), (&"UNAVAILABLE".into(), &true.into()));
        assert!(told.get("heldBy").is_none());
        assert_eq!(serde_json::to_value(LossCause::ReleasedElsewhere).unwrap(), "RELEASED_ELSEWHERE");
    }
}
