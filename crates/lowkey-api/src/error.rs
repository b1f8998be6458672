//! Why a request was refused, told alike in gRPC, HTTP and the SDK.
//!
//! An [`ApiError`] travels in four forms, and each can be read back without looking at its text:
//!
//! - gRPC: a status whose details have a `google.rpc.ErrorInfo` of the domain [`DOMAIN`], and a
//!   `google.rpc.RetryInfo` where asking again later makes sense.
//! - HTTP: `{"code":9,"reason":"LOCK_HELD","message":"…","details":[…]}` with the same details, and a
//!   `google.rpc.Help` that says where the documents tell of the reason.
//! - On a `Session` stream, where a call that is refused ends nothing: a [`SessionError`].
//! - Between nodes: an [`ErrorDetail`], because a node that does not lead relays the leader's answer.

mod reason;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde::ser::SerializeStruct;
use tonic::Status;
use tonic_types::{ErrorDetails, StatusExt};

pub use reason::Reason;

use crate::v1::SessionError;

/// The domain of every reason, as `google.rpc.ErrorInfo` wants one.
pub const DOMAIN: &str = "lowkey";

/// The particular that has the name of a reason which this version does not know.
pub const RELAYED_REASON: &str = "relayed_reason";

const ERROR_INFO_TYPE: &str = "type.googleapis.com/google.rpc.ErrorInfo";
const RETRY_INFO_TYPE: &str = "type.googleapis.com/google.rpc.RetryInfo";
const HELP_TYPE: &str = "type.googleapis.com/google.rpc.Help";

/// A refusal: a stable reason for programs, a message for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// What programs decide by.
    pub reason: Reason,
    /// What people read. It may change from version to version.
    pub message: String,
    /// Particulars for programs, such as who holds a lock.
    pub metadata: BTreeMap<String, String>,
    /// When asking again may help.
    pub retry_after_ms: Option<u64>,
}

impl ApiError {
    /// A refusal without particulars.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), metadata: BTreeMap::new(), retry_after_ms: None }
    }

    /// A request field that is not as it must be. `field` is its name on the wire, in snake case.
    pub fn invalid(field: &'static str, problem: impl fmt::Display) -> Self {
        Self::new(Reason::Invalid(field), format!("{field}: {problem}")).with("field", field)
    }

    /// Adds a particular.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl ToString) -> Self {
        self.metadata.insert(key.into(), value.to_string());
        self
    }

    /// Says when asking again may help.
    #[must_use]
    pub fn retry_after_ms(mut self, retry_after_ms: u64) -> Self {
        self.retry_after_ms = Some(retry_after_ms);
        self
    }

    /// Whether the same request, with the same request id, may succeed if it is sent again.
    pub fn is_retryable(&self) -> bool {
        self.reason.is_retryable()
    }

    /// Whether the request may have taken effect although it was answered with this error.
    pub fn outcome_unknown(&self) -> bool {
        self.reason.outcome_unknown()
    }

    /// Reads the error back from a gRPC status. `None` if the status was not made from an
    /// [`ApiError`] (it came from the transport, say), or its reason is not known to this version.
    pub fn from_status(status: &Status) -> Option<Self> {
        let details = status.get_error_details();
        let info = details.error_info().filter(|info| info.domain == DOMAIN)?;
        let retry_delay = details.retry_info().and_then(|retry| retry.retry_delay);
        Some(Self {
            reason: Reason::parse(&info.reason)?,
            message: status.message().to_owned(),
            metadata: info.metadata.clone().into_iter().collect(),
            retry_after_ms: retry_delay.map(|delay| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)),
        })
    }

    /// An error that came with its reason as text. A reason that this version does not know, as a newer
    /// node may give, becomes [`Reason::Internal`], with its name under [`RELAYED_REASON`]: all that is
    /// certain then is that the outcome is not known here.
    fn relayed(
        reason: &str,
        message: String,
        metadata: BTreeMap<String, String>,
        retry_after_ms: Option<u64>,
    ) -> Self {
        match Reason::parse(reason) {
            Some(reason) => Self { reason, message, metadata, retry_after_ms },
            None => Self { reason: Reason::Internal, message, metadata, retry_after_ms }
                .with(RELAYED_REASON, reason),
        }
    }

    /// The body of an HTTP error. Serialising the error itself gives the same, its fields in the
    /// documented order.
    pub fn to_json(&self) -> serde_json::Value {
        // Strings and numbers under string keys: nothing that could fail to be JSON.
        serde_json::to_value(self).unwrap_or_default()
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason, self.message)
    }
}

impl std::error::Error for ApiError {}

impl From<ApiError> for Status {
    fn from(error: ApiError) -> Self {
        let ApiError { reason, message, metadata, retry_after_ms } = error;
        let metadata: std::collections::HashMap<_, _> = metadata.into_iter().collect();
        let mut details = ErrorDetails::with_error_info(reason.as_str(), DOMAIN, metadata);
        if let Some(retry_after_ms) = retry_after_ms {
            details.set_retry_info(Some(Duration::from_millis(retry_after_ms)));
        }
        Status::with_error_details(reason.grpc_code(), message, details)
    }
}

impl Serialize for ApiError {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut details = vec![Detail::ErrorInfo {
            kind: ERROR_INFO_TYPE,
            reason: self.reason.as_str(),
            domain: DOMAIN,
            metadata: &self.metadata,
        }];
        if let Some(ms) = self.retry_after_ms {
            let retry_delay = format!("{}.{:03}s", ms / 1000, ms % 1000);
            details.push(Detail::RetryInfo { kind: RETRY_INFO_TYPE, retry_delay });
        }
        let link = Link { description: self.reason.as_str(), url: self.reason.page() };
        details.push(Detail::Help { kind: HELP_TYPE, links: [link] });

        let mut body = serializer.serialize_struct("ApiError", 4)?;
        body.serialize_field("code", &i32::from(self.reason.grpc_code()))?;
        body.serialize_field("reason", self.reason.as_str())?;
        body.serialize_field("message", &self.message)?;
        body.serialize_field("details", &details)?;
        body.end()
    }
}

/// An element of `details`, in the JSON form that protobuf gives to `google.protobuf.Any`.
#[derive(Serialize)]
#[serde(untagged)]
enum Detail<'a> {
    ErrorInfo {
        #[serde(rename = "@type")]
        kind: &'static str,
        reason: &'static str,
        domain: &'static str,
        metadata: &'a BTreeMap<String, String>,
    },
    RetryInfo {
        #[serde(rename = "@type")]
        kind: &'static str,
        #[serde(rename = "retryDelay")]
        retry_delay: String,
    },
    Help {
        #[serde(rename = "@type")]
        kind: &'static str,
        links: [Link; 1],
    },
}

/// A link of `google.rpc.Help`.
#[derive(Serialize)]
struct Link {
    description: &'static str,
    url: String,
}

/// An [`ApiError`] as one node tells it to another.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ErrorDetail {
    /// [`Reason::as_str`].
    #[prost(string, tag = "1")]
    pub reason: String,
    /// [`ApiError::message`].
    #[prost(string, tag = "2")]
    pub message: String,
    /// [`ApiError::metadata`].
    #[prost(btree_map = "string, string", tag = "3")]
    pub metadata: BTreeMap<String, String>,
    /// [`ApiError::retry_after_ms`].
    #[prost(uint64, optional, tag = "4")]
    pub retry_after_ms: Option<u64>,
}

impl From<ApiError> for ErrorDetail {
    fn from(error: ApiError) -> Self {
        let ApiError { reason, message, metadata, retry_after_ms } = error;
        Self { reason: reason.as_str().to_owned(), message, metadata, retry_after_ms }
    }
}

impl From<ErrorDetail> for ApiError {
    /// A reason that this version does not know becomes [`Reason::Internal`]; see [`RELAYED_REASON`].
    fn from(detail: ErrorDetail) -> Self {
        let ErrorDetail { reason, message, metadata, retry_after_ms } = detail;
        Self::relayed(&reason, message, metadata, retry_after_ms)
    }
}

impl From<ApiError> for SessionError {
    fn from(error: ApiError) -> Self {
        let ApiError { reason, message, metadata, retry_after_ms } = error;
        Self {
            reason: reason.as_str().to_owned(),
            message,
            metadata: metadata.into_iter().collect(),
            retry_after_ms: retry_after_ms.unwrap_or_default(),
        }
    }
}

impl From<SessionError> for ApiError {
    /// A reason that this version does not know becomes [`Reason::Internal`]; see [`RELAYED_REASON`].
    fn from(error: SessionError) -> Self {
        let SessionError { reason, message, metadata, retry_after_ms } = error;
        let retry_after_ms = (retry_after_ms > 0).then_some(retry_after_ms);
        Self::relayed(&reason, message, metadata.into_iter().collect(), retry_after_ms)
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    fn lock_held() -> ApiError {
        ApiError::new(Reason::LockHeld, "jobs is held by worker-1")
            .with("owner_id", "worker-1")
            .with("fencing_token", 7)
    }

    #[test]
    fn an_error_survives_the_way_through_a_grpc_status() {
        for error in
            [lock_held(), lock_held().retry_after_ms(1_250), ApiError::invalid("ttl_seconds", "is too long")]
        {
            let status = Status::from(error.clone());
            assert_eq!(status.code(), error.reason.grpc_code());
            assert_eq!(ApiError::from_status(&status), Some(error));
        }
    }

    #[test]
    fn a_status_from_elsewhere_is_no_api_error() {
        assert_eq!(ApiError::from_status(&Status::unavailable("connection refused")), None);
        let foreign =
            ErrorDetails::with_error_info("LOCK_HELD", "example.com", std::collections::HashMap::new());
        let status = Status::with_error_details(tonic::Code::Aborted, "no", foreign);
        assert_eq!(ApiError::from_status(&status), None);
    }

    #[test]
    fn an_error_survives_the_way_between_nodes() {
        let error = lock_held().retry_after_ms(5);
        let bytes = ErrorDetail::from(error.clone()).encode_to_vec();
        assert_eq!(ApiError::from(ErrorDetail::decode(bytes.as_slice()).unwrap()), error);
    }

    #[test]
    fn an_error_survives_the_way_through_a_session() {
        for error in
            [lock_held(), lock_held().retry_after_ms(1_250), ApiError::invalid("seq", "must not be 0")]
        {
            let bytes = SessionError::from(error.clone()).encode_to_vec();
            assert_eq!(ApiError::from(SessionError::decode(bytes.as_slice()).unwrap()), error);
        }
    }

    #[test]
    fn a_reason_from_a_newer_node_is_told_as_internal() {
        let detail = ErrorDetail { reason: "NEVER_HEARD_OF".into(), ..ErrorDetail::default() };
        let session_error = SessionError {
            reason: "NEVER_HEARD_OF".into(),
            message: "a new one".into(),
            retry_after_ms: 5,
            ..SessionError::default()
        };
        for error in [ApiError::from(detail), ApiError::from(session_error.clone())] {
            assert_eq!(error.reason, Reason::Internal);
            assert!(error.outcome_unknown());
            assert_eq!(error.metadata[RELAYED_REASON], "NEVER_HEARD_OF");
        }
        // What it says otherwise is kept.
        let error = ApiError::from(session_error);
        assert_eq!((error.message.as_str(), error.retry_after_ms), ("a new one", Some(5)));
    }

    #[test]
    fn the_http_body_has_the_documented_form() {
        let json = serde_json::to_string(&lock_held().retry_after_ms(1_050)).unwrap();
        assert_eq!(
            json,
            r#"{"code":9,"reason":"LOCK_HELD","message":"jobs is held by worker-1","details":["#.to_owned()
                + r#"{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"LOCK_HELD","domain":"lowkey","#
                + r#""metadata":{"fencing_token":"7","owner_id":"worker-1"}},"#
                + r#"{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"1.050s"},"#
                + r#"{"@type":"type.googleapis.com/google.rpc.Help","#
                + r#""links":[{"description":"LOCK_HELD","url":"docs/reference/errors.md#lock_held"}]}]}"#
        );
        assert_eq!(lock_held().to_json()["details"][0]["metadata"]["fencing_token"], "7");
    }
}
