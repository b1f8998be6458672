//! The JSON form of the messages, as HTTP clients see it.

use lowkey_api::v1::{
    AcquireLockRequest, AcquireLockResponse, CampaignRequest, CheckTokenResponse, CreateLeaseRequest,
    CreateLeaseResponse, EventType, GetLockResponse, GetStatusResponse, LeaderResponse, ListLocksResponse,
    LockHolder, LockWaiter, Mode, ObserveEvent, ReleaseLockResponse, Scope, WatchEvent,
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
    assert_eq!(
        json,
        r#"{"lockName":"jobs","holders":[],"waiters":[],"revision":"0","waiterCount":0,"holderCount":0,"coveredBy":""}"#
    );

    let json = serde_json::to_string(&ListLocksResponse::default()).unwrap();
    assert_eq!(json, r#"{"locks":[],"nextPageToken":"","revision":"0","watchFrom":"0"}"#);

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
fn holders_and_waiters_tell_mode_and_scope_in_words() {
    let waiter = LockWaiter { mode: Mode::Shared.into(), position: 1, ..LockWaiter::default() };
    assert_eq!(
        serde_json::to_string(&waiter).unwrap(),
        r#"{"ownerId":"","leaseId":"0","mode":"SHARED","scope":"NAME","position":1,"askedUnixMs":"0"}"#
    );
    let holder = LockHolder { lease_id: 7, scope: Scope::Subtree.into(), ..LockHolder::default() };
    let json =
        serde_json::to_value(CheckTokenResponse { holder: Some(holder), ..Default::default() }).unwrap();
    assert_eq!((&json["current"], &json["revision"]), (&false.into(), &"0".into()));
    let holder = &json["holder"];
    assert_eq!((&holder["mode"], &holder["scope"]), (&"EXCLUSIVE".into(), &"SUBTREE".into()));
    assert_eq!((&holder["leaseId"], &holder["sinceUnixMs"]), (&"7".into(), &"0".into()));
}

#[test]
fn events_tell_everything_even_what_is_zero() {
    let event = WatchEvent {
        r#type: EventType::Acquired.into(),
        name: "jobs".into(),
        fencing_token: u64::MAX,
        revision: 12,
        ordinal: 3,
        ..WatchEvent::default()
    };
    assert_eq!(
        serde_json::to_string(&event).unwrap(),
        r#"{"type":"ACQUIRED","name":"jobs","owner":"","fencingToken":"18446744073709551615","revision":"12","#
            .to_owned()
            + r#""ordinal":3,"leaseId":"0","mode":"EXCLUSIVE","scope":"NAME","value":"","inTouch":false,"#
            + r#""endReason":"","atUnixMs":"0","actor":""}"#
    );
    assert_eq!(
        serde_json::to_string(&ObserveEvent::default()).unwrap(),
        r#"{"type":"HEARTBEAT","revision":"0","ordinal":0,"inTouch":false,"endReason":"","atUnixMs":"0","actor":""}"#
    );
}

#[test]
fn a_leader_that_is_not_there_is_left_out() {
    let json = serde_json::to_string(&LeaderResponse::default()).unwrap();
    assert_eq!(json, r#"{"candidates":0,"revision":"0"}"#);
}

#[test]
fn a_campaign_tells_no_wait_from_a_wait_that_was_left_out() {
    for (json, wait_ms) in [
        (r#"{"election":"e"}"#, None),
        (r#"{"election":"e","waitMs":null}"#, None),
        (r#"{"election":"e","wait_ms":0}"#, Some(0)),
        (r#"{"election":"e","waitMs":"1500"}"#, Some(1500)),
    ] {
        let request: CampaignRequest = serde_json::from_str(json).unwrap();
        assert_eq!(request.wait_ms, wait_ms, "{json}");
    }
}

#[test]
fn integers_beyond_their_type_are_refused() {
    for json in [r#"{"ttlSeconds":9223372036854775808}"#, r#"{"ttlSeconds":"9223372036854775808"}"#] {
        assert!(serde_json::from_str::<CreateLeaseRequest>(json).is_err(), "{json}");
    }
}
