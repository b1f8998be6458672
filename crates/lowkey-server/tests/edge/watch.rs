//! Watching and observing: gRPC streams and server-sent events.

use lowkey_api::v1::{EventType, LockHolder, ObserveEvent, ObserveRequest, WatchEvent, WatchRequest};
use lowkey_api::{ApiError, Reason};
use tonic::Code;

use crate::fake::{Asked, CLUSTER_ID, GONE_REVISION};
use crate::support::{Edge, EventSource, exchange, soon, until};

fn event(kind: EventType, revision: u64, ordinal: u32) -> WatchEvent {
    WatchEvent { r#type: kind.into(), revision, ordinal, in_touch: true, ..WatchEvent::default() }
}

fn acquired() -> WatchEvent {
    WatchEvent {
        name: "jobs/nightly".into(),
        owner: "worker-1".into(),
        fencing_token: 7,
        lease_id: 9,
        value: "a\nb".into(),
        ..event(EventType::Acquired, 42, 3)
    }
}

const ACQUIRED: &str = concat!(
    "id: 42.3\n",
    r#"data: {"type":"ACQUIRED","name":"jobs/nightly","owner":"worker-1","fencingToken":"7","revision":"42","#,
    r#""ordinal":3,"leaseId":"9","mode":"EXCLUSIVE","scope":"NAME","value":"a\nb","inTouch":true,"endReason":"","atUnixMs":"0","actor":""}"#,
    "\n\n",
);

const HEARTBEAT: &str = concat!(
    "event: heartbeat\n",
    "id: 50\n",
    r#"data: {"type":"HEARTBEAT","name":"","owner":"","fencingToken":"0","revision":"50","ordinal":4294967295,"#,
    r#""leaseId":"0","mode":"EXCLUSIVE","scope":"NAME","value":"","inTouch":true,"endReason":"","atUnixMs":"0","actor":""}"#,
    "\n\n",
);

const END: &str = concat!(
    "event: end\n",
    "id: 50.1\n",
    r#"data: {"type":"END","name":"","owner":"","fencingToken":"0","revision":"50","ordinal":1,"#,
    r#""leaseId":"0","mode":"EXCLUSIVE","scope":"NAME","value":"","inTouch":true,"endReason":"NODE_STOPPING","atUnixMs":"0","actor":""}"#,
    "\n\n",
);

const ERROR: &str = concat!(
    "event: error\n",
    r#"data: {"code":11,"reason":"COMPACTED","message":"that is gone","details":["#,
    r#"{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"COMPACTED","domain":"lowkey","metadata":{}},"#,
    r#"{"@type":"type.googleapis.com/google.rpc.Help","#,
    r#""links":[{"description":"COMPACTED","url":"docs/reference/errors.md#compacted"}]}]}"#,
    "\n\n",
);

#[tokio::test]
async fn a_watch_answers_at_once_and_then_tells_each_event_in_a_chunk_of_its_own() {
    let edge = Edge::start().await;
    // The head arrives although nothing has happened.
    let mut source = EventSource::open(edge.http, "/v1/watch?name=jobs/nightly", "").await;
    assert_eq!(source.head.status, 200);
    for (header, value) in [
        ("content-type", "text/event-stream"),
        ("cache-control", "no-store"),
        ("x-accel-buffering", "no"),
        ("lowkey-revision", "41"),
        ("lowkey-cluster", CLUSTER_ID),
        ("content-length", ""),
        ("content-encoding", ""),
    ] {
        assert_eq!(source.head.header(header), value, "{header}");
    }

    let sender = edge.node.watch_sender();
    sender.send(Ok(acquired())).unwrap();
    assert_eq!(source.chunk().await, ACQUIRED);
    sender.send(Ok(event(EventType::Heartbeat, 50, u32::MAX))).unwrap();
    assert_eq!(source.chunk().await, HEARTBEAT);
    // Two at once are two events.
    sender.send(Ok(acquired())).unwrap();
    sender
        .send(Ok(WatchEvent { end_reason: "NODE_STOPPING".into(), ..event(EventType::End, 50, 1) }))
        .unwrap();
    drop(sender);
    assert_eq!(source.chunk().await, ACQUIRED);
    assert_eq!(source.chunk().await, END);
    assert_eq!(source.chunk().await, "", "the end of the body");
    until(|| edge.node.present() == 0).await;
}

#[tokio::test]
async fn a_stream_that_breaks_says_why_and_ends() {
    let edge = Edge::start().await;
    let mut source = EventSource::open(edge.http, "/v1/watch?prefix=", "").await;
    let sender = edge.node.watch_sender();
    sender.send(Ok(acquired())).unwrap();
    sender.send(Err(ApiError::new(Reason::Compacted, "that is gone"))).unwrap();
    sender.send(Ok(acquired())).unwrap();
    assert_eq!(source.chunk().await, ACQUIRED);
    assert_eq!(source.chunk().await, ERROR);
    assert_eq!(source.chunk().await, "", "the end of the body");
    until(|| sender.is_closed()).await;
}

#[tokio::test]
async fn a_watch_that_is_refused_is_an_ordinary_error() {
    let edge = Edge::start().await;
    let refused = edge.get(&format!("/v1/watch?name=a&from={GONE_REVISION}")).await;
    assert_eq!((refused.status, refused.reason().as_str()), (410, "COMPACTED"));
    assert_eq!(refused.header("lowkey-cluster"), CLUSTER_ID);

    let request = WatchRequest { name: "a".into(), from: GONE_REVISION, ..WatchRequest::default() };
    let status = edge.client().await.watch(request).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange);
    assert_eq!(ApiError::from_status(&status).unwrap().reason, Reason::Compacted);
}

#[tokio::test]
async fn the_url_and_last_event_id_say_what_is_watched() {
    let edge = Edge::start().await;
    let watch = |name: &str, prefix: &str, from, after: &str| {
        Asked::Watch(WatchRequest { name: name.into(), prefix: prefix.into(), from, after: after.into() })
    };
    for (target, headers, asked) in [
        ("/v1/watch?name=a%2Fb", "", watch("a/b", "", 0, "")),
        ("/v1/watch?prefix=a/", "", watch("", "a/", 0, "")),
        ("/v1/watch", "", watch("", "", 0, "")),
        ("/v1/watch?name=a&from=5", "", watch("a", "", 5, "")),
        ("/v1/watch?name=a&after=5.1", "", watch("a", "", 0, "5.1")),
        ("/v1/watch?name=a&after=5", "", watch("a", "", 0, "5")),
        ("/v1/watch?name=a", "Last-Event-ID: 7.2\r\n", watch("a", "", 0, "7.2")),
        ("/v1/watch?name=a", "last-event-id: 7\r\n", watch("a", "", 0, "7")),
        ("/v1/watch?name=a&from=5", "last-event-id: 7.2\r\n", watch("a", "", 0, "7.2")),
        ("/v1/watch?name=a&after=5.1", "last-event-id: 7.2\r\n", watch("a", "", 0, "7.2")),
        ("/v1/watch?name=a&from=5", "last-event-id:\r\n", watch("a", "", 5, "")),
    ] {
        let source = EventSource::open(edge.http, target, headers).await;
        assert_eq!(source.head.status, 200, "{target}");
        assert_eq!(edge.node.last_asked(), asked, "{target} {headers}");
    }
}

#[tokio::test]
async fn a_watch_that_makes_no_sense_never_reaches_the_node() {
    let edge = Edge::start().await;
    for (target, headers, reason) in [
        ("/v1/watch?name=a&name=b", "", "INVALID_NAME"),
        ("/v1/watch?name=", "", "INVALID_NAME"),
        ("/v1/watch?name=%ff", "", "INVALID_NAME"),
        ("/v1/watch?name=a&prefix=b", "", "INVALID_PREFIX"),
        ("/v1/watch?name=a&from=0", "", "INVALID_FROM"),
        ("/v1/watch?name=a&from=-1", "", "INVALID_FROM"),
        ("/v1/watch?name=a&from=now", "", "INVALID_FROM"),
        ("/v1/watch?name=a&from=18446744073709551616", "", "INVALID_FROM"),
        ("/v1/watch?name=a&after=yesterday", "", "INVALID_AFTER"),
        ("/v1/watch?name=a&after=", "", "INVALID_AFTER"),
        ("/v1/watch?name=a", "last-event-id: yesterday\r\n", "INVALID_AFTER"),
        ("/v1/watch?name=a", "last-event-id: 1\r\nlast-event-id: 2\r\n", "INVALID_AFTER"),
        ("/v1/election/observe", "", "INVALID_ELECTION"),
        ("/v1/election/observe?election=a&election=a", "", "INVALID_ELECTION"),
    ] {
        let request =
            format!("GET {target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n");
        let refused = exchange(edge.http, request).await;
        assert_eq!((refused.status, refused.reason().as_str()), (400, reason), "{target} {headers}");
    }
    assert!(edge.node.asked.lock().unwrap().is_empty());
}

fn elected() -> ObserveEvent {
    let leader = LockHolder { owner_id: "node-1".into(), fencing_token: 7, ..LockHolder::default() };
    ObserveEvent {
        r#type: EventType::Acquired.into(),
        leader: Some(leader),
        revision: 42,
        ordinal: 1,
        in_touch: true,
        ..ObserveEvent::default()
    }
}

#[tokio::test]
async fn an_election_is_observed_as_a_lock_is_watched() {
    let edge = Edge::start().await;
    let mut source = EventSource::open(edge.http, "/v1/election/observe?election=e", "").await;
    assert_eq!(source.head.header("content-type"), "text/event-stream");
    assert_eq!(source.head.header("lowkey-revision"), "41");
    assert_eq!(edge.node.last_asked(), Asked::Observe(ObserveRequest { election: "e".into() }));

    let sender = edge.node.observe_sender();
    sender.send(Ok(elected())).unwrap();
    let expected = concat!(
        "id: 42.1\n",
        r#"data: {"type":"ACQUIRED","leader":{"ownerId":"node-1","leaseId":"0","fencingToken":"7","#,
        r#""mode":"EXCLUSIVE","scope":"NAME","value":"","sinceUnixMs":"0"},"revision":"42","ordinal":1,"#,
        r#""inTouch":true,"endReason":"","atUnixMs":"0","actor":""}"#,
        "\n\n",
    );
    assert_eq!(source.chunk().await, expected);
    let nobody = ObserveEvent { r#type: EventType::Expired.into(), revision: 43, ..ObserveEvent::default() };
    sender.send(Ok(nobody)).unwrap();
    let expected = concat!(
        "id: 43.0\n",
        r#"data: {"type":"EXPIRED","revision":"43","ordinal":0,"inTouch":false,"endReason":"","atUnixMs":"0","actor":""}"#,
        "\n\n",
    );
    assert_eq!(source.chunk().await, expected);
}

#[tokio::test]
async fn grpc_streams_tell_where_they_begin_then_events_then_why_they_end() {
    let edge = Edge::start().await;
    let request = WatchRequest { prefix: "a/".into(), after: "5.1".into(), ..WatchRequest::default() };
    // Answered before anything has happened.
    let response = soon(edge.client().await.watch(request.clone())).await.unwrap();
    assert_eq!(edge.node.last_asked(), Asked::Watch(request));
    assert_eq!(response.metadata().get("lowkey-revision").unwrap(), "41");
    assert_eq!(response.metadata().get("lowkey-cluster").unwrap(), CLUSTER_ID);
    let mut events = response.into_inner();
    let sender = edge.node.watch_sender();
    for told in [acquired(), event(EventType::Heartbeat, 50, u32::MAX), event(EventType::End, 50, 1)] {
        sender.send(Ok(told.clone())).unwrap();
        assert_eq!(soon(events.message()).await.unwrap(), Some(told));
    }
    drop(sender);
    assert_eq!(soon(events.message()).await.unwrap(), None);

    let request = ObserveRequest { election: "e".into() };
    let response = soon(edge.elections().await.observe(request)).await.unwrap();
    assert_eq!(response.metadata().get("lowkey-revision").unwrap(), "41");
    let mut events = response.into_inner();
    let sender = edge.node.observe_sender();
    sender.send(Ok(elected())).unwrap();
    assert_eq!(soon(events.message()).await.unwrap(), Some(elected()));
    sender.send(Err(ApiError::new(Reason::Compacted, "that is gone"))).unwrap();
    let status = soon(events.message()).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange);
    assert_eq!(ApiError::from_status(&status).unwrap().reason, Reason::Compacted);
    until(|| edge.node.present() == 0).await;
}

#[tokio::test]
async fn whoever_asks_for_the_head_alone_leaves_no_stream_behind() {
    let edge = Edge::start().await;
    let answer =
        exchange(edge.http, "HEAD /v1/watch?name=a HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            .await;
    assert_eq!((answer.status, answer.header("content-type")), (200, "text/event-stream"));
    until(|| edge.node.present() == 0).await;
}

#[tokio::test]
async fn a_client_of_http_1_0_gets_the_events_unwrapped() {
    let edge = Edge::start().await;
    let request = "GET /v1/watch?name=a HTTP/1.0\r\n\r\n";
    let (answer, ()) = tokio::join!(exchange(edge.http, request), async {
        until(|| edge.node.present() == 1).await;
        edge.node.watch_sender().send(Ok(acquired())).unwrap();
    });
    assert_eq!((answer.status, answer.body.as_str()), (200, ACQUIRED));
}
