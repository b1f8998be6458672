//! Lists, token checks and elections: what is asked arrives, and what is answered too.

use lowkey_api::v1::{
    CampaignRequest, CheckTokenRequest, GetLockRequest, LeaderRequest, ListLocksRequest, Mode,
    ProclaimRequest, ResignRequest, Scope,
};
use lowkey_api::{ApiError, Reason};
use tonic::Code;

use crate::fake::Asked;
use crate::support::Edge;

#[tokio::test]
async fn a_list_is_asked_for_with_parameters_in_either_casing() {
    let edge = Edge::start().await;
    let list = |prefix: &str, page_size, page_token: &str, stale| {
        Asked::List(ListLocksRequest {
            prefix: prefix.into(),
            page_size,
            page_token: page_token.into(),
            stale,
        })
    };
    for (target, asked) in [
        ("/v1/locks", list("", 0, "", false)),
        ("/v1/locks?prefix=a%2F&", list("a/", 0, "", false)),
        ("/v1/locks?page_size=7&page_token=t%3D&stale=true", list("", 7, "t=", true)),
        ("/v1/locks?pageSize=7&pageToken=t%3D&stale=1", list("", 7, "t=", true)),
    ] {
        let answer = edge.get(target).await;
        assert_eq!(answer.status, 200, "{target}");
        assert_eq!(edge.node.last_asked(), asked, "{target}");
        let json = answer.json();
        assert_eq!(
            (&json["locks"][0]["lockName"], &json["locks"][0]["waiterCount"]),
            (&"jobs".into(), &1.into())
        );
        assert_eq!((&json["nextPageToken"], &json["watchFrom"]), (&"more".into(), &"42".into()));
    }
}

#[tokio::test]
async fn reads_may_be_stale() {
    let edge = Edge::start().await;
    edge.get("/v1/lock?name=a&stale=true").await;
    assert_eq!(edge.node.last_asked(), Asked::Get(GetLockRequest { lock_name: "a".into(), stale: true }));
    let answer = edge.get("/v1/election/leader?election=e&stale=1").await;
    assert_eq!((answer.status, answer.text()), (200, r#"{"candidates":2,"revision":"41"}"#));
    assert_eq!(edge.node.last_asked(), Asked::Leader(LeaderRequest { election: "e".into(), stale: true }));
}

#[tokio::test]
async fn bad_parameters_are_named_and_never_reach_the_node() {
    let edge = Edge::start().await;
    for (target, reason, allowed) in [
        ("/v1/locks?page_size=many", "INVALID_PAGE_SIZE", "1 to 1000"),
        ("/v1/locks?pageSize=-1", "INVALID_PAGE_SIZE", "1 to 1000"),
        ("/v1/locks?pageSize=4294967296", "INVALID_PAGE_SIZE", "1 to 1000"),
        ("/v1/locks?pageSize=1&page_size=1", "INVALID_PAGE_SIZE", "once"),
        ("/v1/locks?page_token=%f", "INVALID_PAGE_TOKEN", "hexadecimal"),
        ("/v1/locks?prefix=%ff", "INVALID_PREFIX", "UTF-8"),
        ("/v1/locks?prefix=a&prefix=b", "INVALID_PREFIX", "once"),
        ("/v1/locks?stale=perhaps", "INVALID_STALE", "true or false"),
        ("/v1/lock?name=a&stale=", "INVALID_STALE", "true or false"),
        ("/v1/election/leader", "INVALID_ELECTION", "leader?election=NAME"),
        ("/v1/election/leader?election=%ff", "INVALID_ELECTION", "UTF-8"),
        ("/v1/election/leader?election=e&stale=2", "INVALID_STALE", "true or false"),
    ] {
        let refused = edge.get(target).await;
        assert_eq!((refused.status, refused.reason().as_str()), (400, reason), "{target}");
        assert!(refused.json()["message"].as_str().unwrap().contains(allowed), "{}", refused.body);
    }
    assert!(edge.node.asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn bad_bodies_are_named_by_their_field_and_never_reach_the_node() {
    let edge = Edge::start().await;
    for (path, body, reason, allowed) in [
        ("/v1/lock/acquire", r#"{"lockName":"a","mode":"LOOSELY"}"#, "INVALID_MODE", "EXCLUSIVE or SHARED"),
        ("/v1/lock/acquire", r#"{"lockName":"a","scope":"TREE"}"#, "INVALID_SCOPE", "NAME or SUBTREE"),
        ("/v1/lock/acquire", r#"{"lockName":"a","waitMs":1e99}"#, "INVALID_WAIT_MS", "0 to 86400000"),
        ("/v1/lock/acquire", r#"{"lockName":"a","wait_ms":"abc"}"#, "INVALID_WAIT_MS", "0 to 86400000"),
        ("/v1/lock/check", r#"{"lockName":"a","fencingToken":-1}"#, "INVALID_FENCING_TOKEN", "0 to 2^64-1"),
        ("/v1/lock/check", "", "INVALID_BODY", r#""fencingToken":1}"#),
        ("/v1/election/campaign", r#"{"election":7}"#, "INVALID_ELECTION", "string"),
        ("/v1/election/campaign", r#"{"election":"e","waitMs":"abc"}"#, "INVALID_WAIT_MS", "0 to 86400000"),
        ("/v1/election/campaign", "[]", "INVALID_BODY", r#""value":"10.0.0.1:80"}"#),
        ("/v1/election/proclaim", r#"{"value":{}}"#, "INVALID_VALUE", "string"),
        ("/v1/election/resign", r#"{"campaignRequestId":7}"#, "INVALID_CAMPAIGN_REQUEST_ID", "string"),
    ] {
        let refused = edge.post(path, body).await;
        assert_eq!((refused.status, refused.reason().as_str()), (400, reason), "{path} {body}");
        assert!(refused.json()["message"].as_str().unwrap().contains(allowed), "{}", refused.body);
    }
    assert!(edge.node.asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn modes_scopes_waits_and_values_arrive() {
    let edge = Edge::start().await;
    let body =
        r#"{"lockName":"a","ownerId":"o","mode":"SHARED","scope":"SUBTREE","value":"v","ttlSeconds":5}"#;
    assert_eq!(edge.post("/v1/lock/acquire", body).await.status, 200);
    let Asked::Acquire(asked) = edge.node.last_asked() else { panic!() };
    assert_eq!((asked.mode(), asked.scope(), asked.value.as_str()), (Mode::Shared, Scope::Subtree, "v"));

    let body = r#"{"election":"e","ownerId":"o","leaseId":"1","value":"v","waitMs":0}"#;
    let elected = edge.post("/v1/election/campaign", body).await;
    let expected = r#"{"fencingToken":"7","leaseTtlSeconds":"10","leaseId":"1","revision":"0","waitedMs":"0","epoch":"0"}"#;
    assert_eq!((elected.status, elected.text()), (200, expected));
    let expected = CampaignRequest {
        election: "e".into(),
        owner_id: "o".into(),
        lease_id: 1,
        value: "v".into(),
        wait_ms: Some(0),
        ..CampaignRequest::default()
    };
    assert_eq!(edge.node.last_asked(), Asked::Campaign(expected));
}

#[tokio::test]
async fn tokens_are_checked_and_terms_of_office_change() {
    let edge = Edge::start().await;
    let checked = edge.post("/v1/lock/check", r#"{"lock_name":"a","fencing_token":"7"}"#).await;
    assert_eq!((checked.status, checked.text()), (200, r#"{"current":true,"revision":"41"}"#));
    let expected = CheckTokenRequest { lock_name: "a".into(), fencing_token: 7 };
    assert_eq!(edge.node.last_asked(), Asked::Check(expected));

    let body = r#"{"election":"e","ownerId":"o","leaseId":1,"fencingToken":7,"value":"w"}"#;
    let proclaimed = edge.post("/v1/election/proclaim", body).await;
    assert_eq!((proclaimed.status, proclaimed.text()), (200, r#"{"revision":"41"}"#));
    let expected = ProclaimRequest {
        election: "e".into(),
        owner_id: "o".into(),
        lease_id: 1,
        fencing_token: 7,
        value: "w".into(),
        request_id: String::new(),
    };
    assert_eq!(edge.node.last_asked(), Asked::Proclaim(expected));

    let resigned = edge.post("/v1/election/resign", r#"{"election":"e","campaign_request_id":"c"}"#).await;
    assert_eq!((resigned.status, resigned.text()), (200, r#"{"resigned":true}"#));
    let Asked::Resign(asked) = edge.node.last_asked() else { panic!() };
    assert_eq!((asked.election.as_str(), asked.campaign_request_id.as_str()), ("e", "c"));
}

#[tokio::test]
async fn the_idempotency_key_names_what_changes_an_election() {
    let edge = Edge::start().await;
    let without_wait = r#"{"election":"e"}"#;
    let bodies = [
        ("campaign", r#"{"election":"e","waitMs":0}"#),
        ("proclaim", without_wait),
        ("resign", without_wait),
    ];
    for (path, body) in bodies {
        let path = format!("/v1/election/{path}");
        let answer = edge.post_with(&path, "idempotency-key: r-1\r\n", body).await;
        assert_eq!(answer.status, 200, "{path}");
        let request_id = match edge.node.last_asked() {
            Asked::Campaign(asked) => asked.request_id,
            Asked::Proclaim(asked) => asked.request_id,
            Asked::Resign(asked) => asked.request_id,
            other => panic!("{other:?}"),
        };
        assert_eq!(request_id, "r-1", "{path}");
    }
}

#[tokio::test]
async fn new_routes_take_one_method_each() {
    let edge = Edge::start().await;
    for path in ["/v1/locks", "/v1/watch", "/v1/election/leader", "/v1/election/observe"] {
        let refused = edge.post(path, "{}").await;
        assert_eq!((refused.status, refused.header("allow")), (405, "GET,HEAD"), "{path}");
    }
    for path in ["/v1/lock/check", "/v1/election/campaign", "/v1/election/proclaim", "/v1/election/resign"] {
        let refused = edge.get(path).await;
        assert_eq!((refused.status, refused.header("allow")), (405, "POST"), "{path}");
    }
    assert_eq!(edge.get("/v1/election").await.status, 404);
}

#[tokio::test]
async fn everything_is_asked_over_grpc_too() {
    let edge = Edge::start().await;
    let mut locks = edge.client().await;
    let list = ListLocksRequest { prefix: "a".into(), page_size: 3, ..ListLocksRequest::default() };
    assert_eq!(locks.list_locks(list.clone()).await.unwrap().into_inner().watch_from, 42);
    assert_eq!(edge.node.last_asked(), Asked::List(list));
    let check = CheckTokenRequest { lock_name: "a".into(), fencing_token: 7 };
    assert!(locks.check_token(check.clone()).await.unwrap().into_inner().current);
    assert_eq!(edge.node.last_asked(), Asked::Check(check));

    let mut elections = edge.elections().await;
    let campaign = CampaignRequest { election: "e".into(), wait_ms: Some(0), ..CampaignRequest::default() };
    assert_eq!(elections.campaign(campaign.clone()).await.unwrap().into_inner().fencing_token, 7);
    assert_eq!(edge.node.last_asked(), Asked::Campaign(campaign));
    let proclaim = ProclaimRequest { election: "e".into(), value: "v".into(), ..ProclaimRequest::default() };
    assert_eq!(elections.proclaim(proclaim.clone()).await.unwrap().into_inner().revision, 41);
    assert_eq!(edge.node.last_asked(), Asked::Proclaim(proclaim));
    let resign = ResignRequest { election: "e".into(), lease_id: 1, ..ResignRequest::default() };
    assert!(elections.resign(resign.clone()).await.unwrap().into_inner().resigned);
    assert_eq!(edge.node.last_asked(), Asked::Resign(resign));
    let leader = LeaderRequest { election: "e".into(), stale: true };
    assert_eq!(elections.leader(leader.clone()).await.unwrap().into_inner().candidates, 2);
    assert_eq!(edge.node.last_asked(), Asked::Leader(leader));
}

#[tokio::test]
async fn an_election_message_beyond_the_limit_is_refused() {
    let edge = Edge::start().await;
    let mut elections = edge.elections().await;
    let leader = |length| LeaderRequest { election: "e".repeat(length), stale: false };
    assert!(elections.leader(leader(60 * 1024)).await.is_ok());
    let status = elections.leader(leader(65 * 1024)).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange);
    // The library's own status, as documented.
    assert_eq!(ApiError::from_status(&status).map(|error| error.reason), None::<Reason>);
}
