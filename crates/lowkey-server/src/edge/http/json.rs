//! From the bytes of a body to a message, or to a refusal that names the field at fault.

use lowkey_api::v1::{
    AcquireLockRequest, AddPeerRequest, CampaignRequest, CheckTokenRequest, CreateLeaseRequest,
    ProclaimRequest, ReleaseLockRequest, RenewLeaseRequest, ResignRequest, RevokeLeaseRequest,
    TransferLeaderRequest,
};
use lowkey_api::{ApiError, Reason};
use lowkey_core::limits::{TTL_SECONDS_MAX, TTL_SECONDS_MIN, WAIT_MS_MAX};
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use super::strict::{self, Problem, Strict, Unique};
use crate::edge::shown;

/// A message that can be a request's body.
pub(super) trait JsonRequest: DeserializeOwned {
    /// What a body looks like, for those who sent none.
    const EXAMPLE: &str;

    /// Where the request's id goes, if it has one.
    fn request_id(&mut self) -> Option<&mut String>;
}

macro_rules! json_request {
    ($message:ty, $example:literal) => {
        json_request!($message, $example, |message| Some(&mut message.request_id));
    };
    ($message:ty, $example:literal, |$self:ident| $request_id:expr) => {
        impl JsonRequest for $message {
            const EXAMPLE: &str = $example;

            fn request_id(&mut self) -> Option<&mut String> {
                let $self = self;
                $request_id
            }
        }
    };
}

json_request!(CreateLeaseRequest, r#"{"ownerId":"worker-1","ttlSeconds":10}"#);
json_request!(RenewLeaseRequest, r#"{"leaseId":1}"#, |_message| None);
json_request!(RevokeLeaseRequest, r#"{"leaseId":1,"ownerId":"worker-1"}"#);
json_request!(AcquireLockRequest, r#"{"lockName":"jobs/nightly","ownerId":"worker-1","leaseId":1}"#);
json_request!(ReleaseLockRequest, r#"{"lockName":"jobs/nightly","leaseId":1,"fencingToken":1}"#);
json_request!(CheckTokenRequest, r#"{"lockName":"jobs/nightly","fencingToken":1}"#, |_message| None);
json_request!(
    CampaignRequest,
    r#"{"election":"scheduler","ownerId":"node-1","leaseId":1,"value":"10.0.0.1:80"}"#
);
json_request!(
    ProclaimRequest,
    r#"{"election":"scheduler","ownerId":"node-1","leaseId":1,"value":"10.0.0.1:81"}"#
);
json_request!(ResignRequest, r#"{"election":"scheduler","leaseId":1,"fencingToken":1}"#);
json_request!(AddPeerRequest, r#"{"nodeId":"node-2","raftAddress":"127.0.0.1:7001"}"#);
json_request!(TransferLeaderRequest, r#"{"nodeId":"node-2"}"#);

/// Parses a body.
pub(super) fn parse<T: JsonRequest>(bytes: &[u8]) -> Result<T, ApiError> {
    if bytes.trim_ascii().is_empty() {
        return Err(refuse_body::<T>("is empty"));
    }
    let Unique(value) = serde_json::from_slice(bytes).map_err(|error| match error.classify() {
        Category::Data => refuse_body::<T>(error),
        _ => refuse_body::<T>(format_args!("is not JSON: {error}")),
    })?;
    if !value.is_object() {
        return Err(refuse_body::<T>("must be a JSON object"));
    }
    T::deserialize(Strict(&value)).map_err(|problem| match problem {
        Problem::Unknown { field, nearest } => {
            let advice = format!("a body looks like {}", T::EXAMPLE);
            strict::unknown_field("the field", &field, nearest, &advice)
        }
        Problem::Kind { field, value } => refuse_field::<T>(&field, &value),
        problem => refuse_body::<T>(problem),
    })
}

fn refuse_body<T: JsonRequest>(problem: impl std::fmt::Display) -> ApiError {
    ApiError::invalid("body", format_args!("{problem}; it should look like {}", T::EXAMPLE))
}

/// Refuses a value of the wrong kind; `path` is the field that has it, within which others if need be.
fn refuse_field<T: JsonRequest>(path: &str, value: &str) -> ApiError {
    let field = path.split('.').next().unwrap_or(path);
    let Some(Reason::Invalid(field)) = Reason::invalid_field(field) else {
        return refuse_body::<T>(format_args!("has a field {:?} of the wrong kind", shown(path)));
    };
    if path.contains('.') {
        return ApiError::invalid(field, format_args!("{} cannot be {value}", shown(path)));
    }
    let allowed = match field {
        "ttl_seconds" => format!("must be {TTL_SECONDS_MIN} to {TTL_SECONDS_MAX} seconds"),
        "wait_ms" => format!("must be 0 to {WAIT_MS_MAX} milliseconds"),
        "lease_id" | "fencing_token" | "member_id" => "must be a whole number from 0 to 2^64-1".to_owned(),
        "command_version" => "must be a whole number from 0 to 2^32-1".to_owned(),
        "mode" => "must be EXCLUSIVE or SHARED".to_owned(),
        "scope" => "must be NAME or SUBTREE".to_owned(),
        _ => "must be a string".to_owned(),
    };
    ApiError::invalid(field, format_args!("{allowed}, and is {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(body: &str) -> ApiError {
        parse::<AcquireLockRequest>(body.as_bytes()).expect_err(body)
    }

    #[test]
    fn the_field_at_fault_is_named_in_either_casing() {
        for (body, reason) in [
            (r#"{"ttlSeconds":9223372036854775808}"#, "INVALID_TTL_SECONDS"),
            (r#"{"ttl_seconds":"ten"}"#, "INVALID_TTL_SECONDS"),
            (r#"{"ttl_seconds":1.5}"#, "INVALID_TTL_SECONDS"),
            (r#"{"ttl_seconds":1e400}"#, "INVALID_BODY"),
            (r#"{"lock_name":7}"#, "INVALID_LOCK_NAME"),
            (r#"{"lockName":["a"]}"#, "INVALID_LOCK_NAME"),
            (r#"{"ownerId":"a","leaseId":-1}"#, "INVALID_LEASE_ID"),
            (r#"{"leaseId":18446744073709551616}"#, "INVALID_LEASE_ID"),
            (r#"{"mode":"LOOSELY"}"#, "INVALID_MODE"),
            (r#"{"scope":{}}"#, "INVALID_SCOPE"),
            (r#"{"mode":"exclusive"}"#, "INVALID_MODE"),
            (r#"{"mode":7}"#, "INVALID_MODE"),
            (r#"{"scope":"TREE"}"#, "INVALID_SCOPE"),
            (r#"{"waitMs":true}"#, "INVALID_WAIT_MS"),
            (r#"{"waitMs":1e99}"#, "INVALID_WAIT_MS"),
            (r#"{"wait_ms":"abc"}"#, "INVALID_WAIT_MS"),
            (r#"{"waitMs":0.5}"#, "INVALID_WAIT_MS"),
        ] {
            assert_eq!(refusal(body).reason.as_str(), reason, "{body}");
        }
    }

    #[test]
    fn a_refusal_says_what_is_allowed() {
        for (body, allowed) in [
            (r#"{"waitMs":1e99}"#, "0 to 86400000 milliseconds"),
            (r#"{"mode":"LOOSELY"}"#, "EXCLUSIVE or SHARED"),
            (r#"{"scope":"TREE"}"#, "NAME or SUBTREE"),
            (r#"{"fencingToken":-1}"#, "0 to 2^64-1"),
        ] {
            let body = body.as_bytes();
            let error = match parse::<AcquireLockRequest>(body).unwrap_err() {
                error if error.reason == Reason::UnknownField => {
                    parse::<CheckTokenRequest>(body).unwrap_err()
                }
                error => error,
            };
            assert!(error.message.contains(allowed), "{}", error.message);
        }
        let error = parse::<CampaignRequest>(br#"{"waitMs":"abc"}"#).unwrap_err();
        assert_eq!(error.reason.as_str(), "INVALID_WAIT_MS");
        assert!(error.message.contains("0 to 86400000"), "{}", error.message);
    }

    #[test]
    fn what_is_no_object_is_an_invalid_body() {
        let deep = "[".repeat(10_000);
        let deep_object = r#"{"ownerId":"#.repeat(10_000);
        for body in ["", " \n", "{", "null", "[]", "7", "\"x\"", "{}{}", "owner_id=a", &deep, &deep_object] {
            let error = refusal(body);
            assert_eq!(error.reason.as_str(), "INVALID_BODY", "{body:.40}");
            assert!(error.message.contains("lockName"), "{}", error.message);
        }
        assert_eq!(
            parse::<AcquireLockRequest>(b"{\"ownerId\":\"\xff\"}").expect_err("not UTF-8").reason,
            Reason::Invalid("body")
        );
    }

    #[test]
    fn a_field_given_twice_is_refused_also_as_null_and_in_the_other_casing() {
        for body in [
            r#"{"ownerId":"a","ownerId":"b"}"#,
            r#"{"ownerId":"a","owner_id":"b"}"#,
            r#"{"ownerId":"a","ownerId":null}"#,
            r#"{"owner_id":null,"owner_id":"a"}"#,
            r#"{"ownerId":null,"owner_id":"a"}"#,
            r#"{"ownerId":null,"ownerId":null}"#,
            r#"{"ownerId":"a","\u006fwnerId":"b"}"#,
            r#"{"ownerId":"a","leaseId":null,"ownerId":"a"}"#,
        ] {
            let error = refusal(body);
            assert_eq!(error.reason, Reason::Invalid("body"), "{body}");
            assert!(error.message.contains("twice") && error.message.contains("owner"), "{}", error.message);
        }
    }

    #[test]
    fn null_stands_for_an_absent_field() {
        let body = br#"{"ownerId":"a","leaseId":null,"mode":null}"#;
        let request: AcquireLockRequest = parse(body).expect("null is absent");
        assert_eq!((request.owner_id.as_str(), request.lease_id), ("a", 0));
    }

    #[test]
    fn an_unknown_field_is_named_with_the_nearest_known_one() {
        for (body, field, nearest) in [
            (r#"{"modus":"SHARED"}"#, "modus", "mode"),
            (r#"{"modus":null}"#, "modus", "mode"),
            (r#"{"lockname":"a"}"#, "lockname", "lockName"),
            (r#"{"lock_nam":"a"}"#, "lock_nam", "lock_name"),
        ] {
            let error = refusal(body);
            assert_eq!(error.reason, Reason::UnknownField, "{body}");
            assert_eq!((&*error.metadata["field"], &*error.metadata["nearest"]), (field, nearest));
            assert!(error.message.contains(&format!("did you mean {nearest}?")), "{}", error.message);
        }
        let error = refusal(r#"{"surprise":[]}"#);
        assert_eq!((error.reason, error.metadata.get("nearest")), (Reason::UnknownField, None));
        assert!(error.message.contains("lockName"), "{}", error.message);
    }

    #[test]
    fn a_refusal_does_not_grow_with_what_was_wrong() {
        let long = "x".repeat(60_000);
        let deep = format!(r#"{{"surprise":{}{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
        for body in [
            format!(r#"{{"{long}":1}}"#),
            format!(r#"{{"{long}":1,"{long}":1}}"#),
            format!(r#"{{"ownerId":"{long}","ownerId":"a"}}"#),
            format!(r#"{{"mode":{{"{long}":1}}}}"#),
            format!(r#"{{"mode":"{long}"}}"#),
            deep,
        ] {
            let error = refusal(&body);
            assert!(error.message.len() < 400, "{}", error.message);
            assert!(error.metadata.values().all(|value| value.len() < 100), "{error:?}");
        }
    }

    #[test]
    fn a_refusal_shows_no_more_than_the_beginning_of_a_value() {
        let body = format!(r#"{{"leaseId":"{}"}}"#, "é".repeat(10_000));
        assert!(refusal(&body).message.len() < 300);
    }

    #[test]
    fn every_example_is_a_valid_body() {
        fn check<T: JsonRequest>() {
            assert!(parse::<T>(T::EXAMPLE.as_bytes()).is_ok(), "{}", T::EXAMPLE);
        }
        check::<CreateLeaseRequest>();
        check::<RenewLeaseRequest>();
        check::<RevokeLeaseRequest>();
        check::<AcquireLockRequest>();
        check::<ReleaseLockRequest>();
        check::<CheckTokenRequest>();
        check::<CampaignRequest>();
        check::<ProclaimRequest>();
        check::<ResignRequest>();
        check::<AddPeerRequest>();
        check::<TransferLeaderRequest>();
    }
}
