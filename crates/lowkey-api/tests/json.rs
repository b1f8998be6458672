//! The JSON form of the messages, as HTTP clients see it.

use lowkey_api::v1::{
    AcquireLockRequest, AcquireLockResponse, CreateLeaseRequest, CreateLeaseResponse, GetLockResponse,
    GetStatusResponse, Mode, ReleaseLockResponse, Scope,
};

#[test]
fn responses_are_camel_case_with_64_bit_integers_as_strings() {
    let lease = CreateLeaseResponse { lease_id: 1, ttl_seconds: 10 };
    assert_eq!(serde_json::to_string(&lease).unwrap(), r#"{"leaseId":"1","ttlSeconds":"10"}"#);

    let grant =
        AcquireLockResponse { fencing_token: 1, lease_ttl_seconds: 10, ..AcquireLockResponse::default() };
    let json = serde_json::to_string(&grant).unwrap();
    assert!(json.starts_with(r#"{"fencingToken":"1","leaseTtlSeconds":"10""#), "{json}");

    let released = ReleaseLockResponse { released: true };
    assert_eq!(serde_json::to_string(&released).unwrap(), r#"{"released":true}"#);
}

#[test]
fn zero_values_are_written_out() {
    let lock = GetLockResponse { lock_name: "jobs".into(), ..GetLockResponse::default() };
    let json = serde_json::to_string(&lock).unwrap();
    assert_eq!(json, r#"{"lockName":"jobs","holders":[],"waiters":[],"revision":"0"}"#);

    let json = serde_json::to_value(GetStatusResponse::default()).unwrap();
    assert_eq!(json["isLeader"], false);
    assert_eq!(json["leaderAddress"], "");
    assert_eq!(json["clusterSize"], 0);
}

#[test]
fn both_casings_are_read_and_integers_as_numbers_or_strings() {
    for json in [
        r#"{"owner_id":"a","ttl_seconds":10}"#,
        r#"{"ownerId":"a","ttlSeconds":"10"}"#,
        r#"{"ownerId":"a","ttl_seconds":10,"surprise":{"x":[1,2]}}"#,
    ] {
        let request: CreateLeaseRequest = serde_json::from_str(json).unwrap();
        assert_eq!((request.owner_id.as_str(), request.ttl_seconds), ("a", 10), "{json}");
    }
}

#[test]
fn modes_and_scopes_are_words() {
    let request: AcquireLockRequest = serde_json::from_str(r#"{"mode":"SHARED","scope":"SUBTREE"}"#).unwrap();
    assert_eq!((request.mode(), request.scope()), (Mode::Shared, Scope::Subtree));
    assert!(serde_json::from_str::<AcquireLockRequest>(r#"{"mode":"LOOSELY"}"#).is_err());
}

#[test]
fn integers_beyond_their_type_are_refused() {
    for json in [r#"{"ttlSeconds":9223372036854775808}"#, r#"{"ttlSeconds":"9223372036854775808"}"#] {
        assert!(serde_json::from_str::<CreateLeaseRequest>(json).is_err(), "{json}");
    }
}
