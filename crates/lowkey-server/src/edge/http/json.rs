//! Turns the bytes of a body into a message, or into a refusal that names the field at fault.

use lowkey_api::{ApiError, Reason};
use lowkey_core::limits::{TTL_SECONDS_MAX, TTL_SECONDS_MIN, WAIT_MS_MAX};
use serde_json::error::Category;
use serde_json::{Map, Value};

use super::routes::Routed;
use super::strict::{self, Problem, Strict, Unique};
use crate::edge::shown;

/// Fields that name a request or a grant. If they are empty, or 0, they name none, and the call would do
/// more than was meant.
const NAMING_FIELDS: [(&str, &str); 4] = [
    ("fencing_token", "leave it out, or give the grant's token, from 1"),
    ("request_id", "leave it out, or give 1 to 64 bytes"),
    ("acquire_request_id", "leave it out, or give the acquire's request id"),
    ("campaign_request_id", "leave it out, or give the campaign's request id"),
];

/// 2^64: the first whole number that no field can have.
const U64_END: f64 = 18_446_744_073_709_551_616.0;

/// Parses a body.
pub(super) fn parse<T: Routed>(bytes: &[u8]) -> Result<T, ApiError> {
    if bytes.trim_ascii().is_empty() {
        return Err(refuse_body::<T>("is empty"));
    }
    let Unique(value) = serde_json::from_slice(bytes).map_err(|error| match error.classify() {
        Category::Data => refuse_body::<T>(error),
        _ => refuse_body::<T>(format_args!("is not JSON: {error}")),
    })?;
    let Value::Object(fields) = &value else {
        return Err(refuse_body::<T>("must be a JSON object"));
    };
    let message = T::deserialize(Strict(&value)).map_err(|problem| match problem {
        Problem::Unknown { field, .. } if strict::is_named(&field, "request_id") => {
            strict::unknown_field("the field", &field, None, "this call takes none: repeating it is harmless")
        }
        Problem::Unknown { field, nearest } => {
            let advice = format!("a body looks like {}", T::EXAMPLE);
            strict::unknown_field("the field", &field, nearest, &advice)
        }
        Problem::Kind { field, value } => refuse_field::<T>(&field, &value),
        problem => refuse_body::<T>(problem),
    })?;
    if T::CHANGES {
        refuse_nameless(fields)?;
    }
    Ok(message)
}

/// Refuses a field that is there and names nothing.
fn refuse_nameless(fields: &Map<String, Value>) -> Result<(), ApiError> {
    for (field, advice) in NAMING_FIELDS {
        let given = fields.iter().find(|(key, _)| strict::is_named(key, field));
        match given {
            Some((_, value)) if is_nothing(field, value) => {
                return Err(ApiError::invalid(
                    field,
                    format_args!("is {value}, which names nothing: {advice}"),
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether a value that its message could read was read as if it were not there.
fn is_nothing(field: &str, value: &Value) -> bool {
    match value {
        Value::String(text) if field == "fencing_token" => text.parse() == Ok(0_u64),
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0),
        _ => false,
    }
}

fn refuse_body<T: Routed>(problem: impl std::fmt::Display) -> ApiError {
    ApiError::invalid("body", format_args!("{problem}; it should look like {}", T::EXAMPLE))
}

/// Refuses a value of the wrong kind; `path` is the field that has it, within which others if need be.
fn refuse_field<T: Routed>(path: &str, value: &str) -> ApiError {
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
        "command_version" | "raft_tick_ms" => "must be a whole number from 0 to 2^32-1".to_owned(),
        "every_seconds" | "keep" => "must be a whole number".to_owned(),
        "off" | "from_flags" => "must be true or false".to_owned(),
        "mode" => "must be EXCLUSIVE or SHARED".to_owned(),
        "scope" => "must be NAME or SUBTREE".to_owned(),
        _ => "must be a string".to_owned(),
    };
    // Beyond 64 bits only the size of a number is known, not its digits.
    let value = match value.parse::<f64>() {
        Ok(number) if number >= U64_END && !allowed.contains("string") => "larger",
        _ => value,
    };
    ApiError::invalid(field, format_args!("{allowed}, and is {value}"))
}

#[cfg(test)]
mod tests {
    use lowkey_api::v1::{
        AcquireLockRequest, CampaignRequest, CheckTokenRequest, ProclaimRequest, ReleaseLockRequest,
        RenewLeaseRequest, ResignRequest,
    };

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
            (r#"{"waitMs":1e99}"#, "0 to 86400000 milliseconds, and is larger"),
            (r#"{"leaseId":18446744073709551616}"#, "0 to 2^64-1, and is larger"),
            (r#"{"leaseId":"18446744073709551616"}"#, "and is \"18446744073709551616\""),
            (r#"{"leaseId":1.5}"#, "and is 1.5"),
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
    fn a_field_that_names_nothing_is_refused_where_it_would_be_taken_for_an_absent_one() {
        for (body, reason) in [
            (r#"{"fencingToken":0}"#, "INVALID_FENCING_TOKEN"),
            (r#"{"fencing_token":"0"}"#, "INVALID_FENCING_TOKEN"),
            (r#"{"fencing_token":"00"}"#, "INVALID_FENCING_TOKEN"),
            (r#"{"requestId":""}"#, "INVALID_REQUEST_ID"),
            (r#"{"acquire_request_id":""}"#, "INVALID_ACQUIRE_REQUEST_ID"),
        ] {
            let error = parse::<ReleaseLockRequest>(body.as_bytes()).expect_err(body);
            assert_eq!(error.reason.as_str(), reason, "{body}");
            assert!(error.message.contains("leave it out, or give"), "{}", error.message);
        }
        for refused in [
            parse::<ResignRequest>(br#"{"fencingToken":0}"#).map(drop),
            parse::<ResignRequest>(br#"{"campaignRequestId":""}"#).map(drop),
            parse::<ProclaimRequest>(br#"{"fencingToken":0}"#).map(drop),
            parse::<AcquireLockRequest>(br#"{"requestId":""}"#).map(drop),
        ] {
            assert!(refused.is_err_and(|error| error.message.contains("leave it out")));
        }
        for body in [r#"{"fencingToken":null,"requestId":null}"#, r#"{"requestId":"0"}"#, r#"{"leaseId":0}"#]
        {
            assert!(parse::<ReleaseLockRequest>(body.as_bytes()).is_ok(), "{body}");
        }
        // It only asks: 0 is no current token.
        assert!(parse::<CheckTokenRequest>(br#"{"lockName":"a","fencingToken":0}"#).is_ok());
    }

    #[test]
    fn who_gives_an_id_to_a_call_that_takes_none_is_told_that_none_is_needed() {
        for body in [r#"{"leaseId":1,"request_id":"a"}"#, r#"{"requestId":""}"#] {
            let error = parse::<RenewLeaseRequest>(body.as_bytes()).expect_err(body);
            assert_eq!((error.reason, error.metadata.get("nearest")), (Reason::UnknownField, None));
            assert!(error.message.contains("repeating it is harmless"), "{}", error.message);
        }
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
}
