//! The gRPC port, as the SDK sees it.

use std::convert::Infallible;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};
use lowkey_api::v1::{
    AcquireLockRequest, CreateLeaseRequest, GetStatusRequest, HeartbeatRequest, HeartbeatResponse,
};
use lowkey_api::{ApiError, Reason};
use prost::Message as _;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

use crate::fake::{CLUMSY_OWNER, CLUSTER_ID, EAGER_OWNER, SLOW_LEASE};
use crate::support::{Edge, soon, until};

fn lease_of(owner_id: &str) -> CreateLeaseRequest {
    CreateLeaseRequest { owner_id: owner_id.into(), ttl_seconds: 10, request_id: String::new() }
}

#[tokio::test]
async fn calls_are_answered_and_name_the_cluster() {
    let edge = Edge::start().await;
    let mut client = edge.client().await;
    let lease = client.create_lease(lease_of("a")).await.unwrap();
    assert_eq!(lease.metadata().get("lowkey-cluster").unwrap(), CLUSTER_ID);
    assert_eq!((lease.get_ref().lease_id, lease.get_ref().ttl_seconds), (1, 10));
    assert_eq!(client.get_status(GetStatusRequest {}).await.unwrap().into_inner().node_id, "node-1");
}

#[tokio::test]
async fn a_refusal_carries_its_reason_particulars_and_cluster() {
    let edge = Edge::start().await;
    let mut client = edge.client().await;
    let acquire = |owner: &str| AcquireLockRequest {
        lock_name: "jobs".into(),
        owner_id: owner.into(),
        lease_id: 1,
        ..AcquireLockRequest::default()
    };
    client.acquire_lock(acquire("a")).await.unwrap();
    let status = client.acquire_lock(acquire("b")).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert_eq!(status.metadata().get("lowkey-cluster").unwrap(), CLUSTER_ID);
    let error = ApiError::from_status(&status).unwrap();
    assert_eq!((error.reason, error.metadata["owner_id"].as_str()), (Reason::LockHeld, "a"));

    let status = client.create_lease(lease_of(EAGER_OWNER)).await.unwrap_err();
    assert_eq!(ApiError::from_status(&status).unwrap().retry_after_ms, Some(1_200));
}

#[tokio::test]
async fn a_message_beyond_the_limit_is_refused() {
    let edge = Edge::start().await;
    let mut client = edge.client().await;
    assert!(client.create_lease(lease_of(&"a".repeat(60 * 1024))).await.is_ok());
    let status = client.create_lease(lease_of(&"a".repeat(65 * 1024))).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange);
    assert!(client.create_lease(lease_of("a")).await.is_ok());
}

#[tokio::test]
async fn a_panic_is_answered_and_harms_no_other_call_of_the_connection() {
    let edge = Edge::start().await;
    let mut client = edge.client().await;
    let status = client.create_lease(lease_of(CLUMSY_OWNER)).await.unwrap_err();
    assert_eq!(ApiError::from_status(&status).unwrap().reason, Reason::Internal);
    assert!(client.create_lease(lease_of("a")).await.is_ok());
}

/// What becomes of a call of `CreateLease` whose body comes in these frames: its message and status.
async fn call_in_frames(edge: &Edge, frames: &[&[u8]]) -> (Vec<u8>, String) {
    call_as(edge, "CreateLease", "identity", frames).await
}

async fn call_as(edge: &Edge, method: &str, encoding: &str, frames: &[&[u8]]) -> (Vec<u8>, String) {
    let stream = TcpStream::connect(edge.grpc).await.unwrap();
    let (mut calls, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let frames: Vec<_> =
        frames.iter().map(|frame| Ok::<_, Infallible>(Frame::data(Bytes::copy_from_slice(frame)))).collect();
    let request = http::Request::post(format!("http://{}/lowkey.v1.LockService/{method}", edge.grpc))
        .header("content-type", "application/grpc")
        .header("grpc-encoding", encoding)
        .body(StreamBody::new(futures::stream::iter(frames)))
        .unwrap();
    let response = soon(calls.send_request(request)).await.unwrap();
    assert_eq!(response.headers()["lowkey-cluster"], CLUSTER_ID);
    let early = response.headers().get("grpc-status").cloned();
    let body = soon(response.into_body().collect()).await.unwrap();
    let status = early.or_else(|| body.trailers().and_then(|trailers| trailers.get("grpc-status")).cloned());
    (body.to_bytes().to_vec(), status.unwrap().to_str().unwrap().to_owned())
}

#[tokio::test]
async fn a_message_may_come_in_pieces_and_what_is_none_is_refused() {
    let edge = Edge::start().await;
    let message = lease_of("somebody").encode_to_vec();
    let whole = [&[0, 0, 0, 0, message.len() as u8], &message[..]].concat();
    for cut in 0..=whole.len() {
        let (first, second) = whole.split_at(cut);
        let answer = vec![0, 0, 0, 0, 4, 8, 1, 16, 10];
        assert_eq!(call_in_frames(&edge, &[first, second]).await, (answer, "0".to_owned()), "cut at {cut}");
    }
    let compressed = [&[1], &whole[1..]].concat();
    let garbled = [&whole[..5], &[0xff; 22][..message.len()]].concat();
    for frames in [&[&compressed[..]][..], &[&garbled[..]], &[&whole[..9]], &[&whole[..5], &[]], &[]] {
        let (answer, status) = call_in_frames(&edge, frames).await;
        assert_eq!((answer.len(), status.as_str()), (0, "13"), "{frames:?}");
    }
    assert!(edge.client().await.create_lease(lease_of("a")).await.is_ok());
}

#[tokio::test]
async fn what_is_no_method_and_what_may_be_compressed_is_refused() {
    let edge = Edge::start().await;
    let message = lease_of("somebody").encode_to_vec();
    let whole = [&[0, 0, 0, 0, message.len() as u8], &message[..]].concat();
    for (method, encoding) in [
        ("CreateLeases", "identity"),
        ("x/CreateLease", "identity"),
        ("/CreateLease", "identity"),
        ("CreateLease/", "identity"),
        ("CreateLease", "gzip"),
        ("GetStatus", "gzip"),
    ] {
        let (answer, status) = call_as(&edge, method, encoding, &[&whole]).await;
        assert_eq!((answer.len(), status.as_str()), (0, "12"), "{method}, {encoding}");
    }
}

/// A heartbeat stream with its sending side.
async fn heartbeat(edge: &Edge) -> (mpsc::Sender<HeartbeatRequest>, Streaming<HeartbeatResponse>) {
    let (sender, receiver) = mpsc::channel(1024);
    let answers = edge.client().await.heartbeat(ReceiverStream::new(receiver)).await.unwrap();
    (sender, answers.into_inner())
}

async fn next(answers: &mut Streaming<HeartbeatResponse>) -> Option<HeartbeatResponse> {
    soon(answers.message()).await.unwrap()
}

#[tokio::test]
async fn every_heartbeat_is_answered_and_a_failure_ends_nothing() {
    let edge = Edge::start().await;
    let (sender, mut answers) = heartbeat(&edge).await;

    sender.send(HeartbeatRequest { lease_id: 1, seq: 7, holds: None }).await.unwrap();
    let renewed = HeartbeatResponse { lease_id: 1, ttl_seconds: 10, seq: 7, ..HeartbeatResponse::default() };
    assert_eq!(next(&mut answers).await, Some(renewed));

    sender.send(HeartbeatRequest { lease_id: 99, seq: 8, holds: None }).await.unwrap();
    let refused = next(&mut answers).await.unwrap();
    assert_eq!((refused.lease_id, refused.seq, refused.ttl_seconds), (99, 8, 0));
    assert_eq!(refused.error_reason, "LEASE_NOT_FOUND");
    assert!(refused.error_message.contains("99"));

    sender.send(HeartbeatRequest { lease_id: 1, seq: 9, holds: None }).await.unwrap();
    assert_eq!(next(&mut answers).await.unwrap().seq, 9);

    drop(sender);
    assert_eq!(next(&mut answers).await, None);
}

#[tokio::test]
async fn thousands_of_slow_renewals_hold_up_no_other_and_keep_their_stream() {
    // More than an HTTP/2 connection bears unread.
    const SLOW: u64 = 3_000;
    let edge = Edge::start().await;
    let (sender, mut answers) = heartbeat(&edge).await;
    for seq in 1..=SLOW {
        sender.send(HeartbeatRequest { lease_id: SLOW_LEASE, seq, holds: None }).await.unwrap();
    }
    until(|| edge.node.slow_begun.load(Ordering::SeqCst) as u64 == SLOW).await;
    sender.send(HeartbeatRequest { lease_id: 1, seq: SLOW + 1, holds: None }).await.unwrap();
    assert_eq!(next(&mut answers).await.unwrap().seq, SLOW + 1);

    edge.node.slow.add_permits(SLOW as usize);
    let mut seqs = Vec::new();
    for _ in 0..SLOW {
        seqs.push(next(&mut answers).await.unwrap().seq);
    }
    seqs.sort_unstable();
    assert_eq!(seqs, (1..=SLOW).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_node_that_stops_answers_what_is_under_way_then_says_so_and_ends_the_stream() {
    let edge = Edge::start().await;
    let (sender, mut answers) = heartbeat(&edge).await;
    sender.send(HeartbeatRequest { lease_id: SLOW_LEASE, seq: 1, holds: None }).await.unwrap();
    until(|| edge.node.slow_begun.load(Ordering::SeqCst) == 1).await;

    edge.node.stopping.send_replace(true);
    edge.node.slow.add_permits(1);
    assert_eq!(next(&mut answers).await.unwrap().ttl_seconds, 20);
    let last = next(&mut answers).await.unwrap();
    assert_eq!((last.lease_id, last.seq, last.error_reason.as_str()), (0, 0, "NODE_STOPPING"));
    assert_eq!(next(&mut answers).await, None);
    soon(edge.served).await.unwrap();
}

#[tokio::test]
async fn a_renewal_that_never_ends_does_not_hold_up_the_stop() {
    let edge = Edge::start().await;
    let (sender, mut answers) = heartbeat(&edge).await;
    sender.send(HeartbeatRequest { lease_id: SLOW_LEASE, seq: 1, holds: None }).await.unwrap();
    until(|| edge.node.slow_begun.load(Ordering::SeqCst) == 1).await;

    edge.node.stopping.send_replace(true);
    let cut_off = next(&mut answers).await.unwrap();
    assert_eq!((cut_off.seq, cut_off.error_reason.as_str()), (1, "NODE_STOPPING"));
    assert_eq!(next(&mut answers).await.unwrap().error_reason, "NODE_STOPPING");
    assert_eq!(next(&mut answers).await, None);
    soon(edge.served).await.unwrap();
}

#[tokio::test]
async fn health_follows_readiness() {
    let edge = Edge::start().await;
    let mut health = HealthClient::new(edge.channel().await);
    let service = |name: &str| HealthCheckRequest { service: name.into() };
    let mut watch = health.watch(service("")).await.unwrap().into_inner();
    for name in ["", "lowkey.v1.LockService", "lowkey.v1.ElectionService"] {
        let checked = health.check(service(name)).await.unwrap().into_inner();
        assert_eq!(checked.status(), ServingStatus::Serving, "{name}");
    }
    assert_eq!(health.check(service("nonsense")).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(soon(watch.message()).await.unwrap().unwrap().status(), ServingStatus::Serving);

    edge.node.ready.store(false, Ordering::SeqCst);
    let checked = health.check(service("lowkey.v1.LockService")).await.unwrap().into_inner();
    assert_eq!(checked.status(), ServingStatus::NotServing);
    assert_eq!(soon(watch.message()).await.unwrap().unwrap().status(), ServingStatus::NotServing);

    edge.node.stopping.send_replace(true);
    assert!(soon(watch.message()).await.unwrap().is_none());
}

#[tokio::test]
async fn reflection_lists_the_services() {
    let edge = Edge::start().await;
    let ask = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut reflection = ServerReflectionClient::new(edge.channel().await);
    let mut answers =
        reflection.server_reflection_info(tokio_stream::iter([ask])).await.unwrap().into_inner();
    let answer: ServerReflectionResponse = soon(answers.message()).await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("{answer:?}");
    };
    let names: Vec<&str> = list.service.iter().map(|service| service.name.as_str()).collect();
    for name in ["lowkey.v1.LockService", "lowkey.v1.ElectionService", "grpc.health.v1.Health"] {
        assert!(names.contains(&name), "{names:?}");
    }
}

#[tokio::test]
async fn reflection_describes_the_details_of_refusals() {
    use prost::Message;
    use prost_types::FileDescriptorProto;

    let edge = Edge::start().await;
    let mut reflection = ServerReflectionClient::new(edge.channel().await);
    let mut ask = async |message_request| {
        let ask = ServerReflectionRequest { host: String::new(), message_request: Some(message_request) };
        let answers = reflection.server_reflection_info(tokio_stream::iter([ask])).await.unwrap();
        let answer: ServerReflectionResponse = soon(answers.into_inner().message()).await.unwrap().unwrap();
        match answer.message_response {
            Some(MessageResponse::FileDescriptorResponse(files)) => {
                FileDescriptorProto::decode(files.file_descriptor_proto[0].as_slice()).unwrap()
            }
            other => panic!("{other:?}"),
        }
    };
    for message in ["ErrorInfo", "RetryInfo", "Status"] {
        let file = ask(MessageRequest::FileContainingSymbol(format!("google.rpc.{message}"))).await;
        assert!(file.message_type.iter().any(|known| known.name() == message), "{message}: {}", file.name());
        // What it is built on is there, too.
        for dependency in file.dependency {
            assert_eq!(ask(MessageRequest::FileByFilename(dependency.clone())).await.name(), dependency);
        }
    }
}

#[tokio::test]
async fn reflection_speaks_the_older_version_too() {
    use tonic_reflection::pb::v1alpha;
    use v1alpha::server_reflection_client::ServerReflectionClient;
    use v1alpha::server_reflection_request::MessageRequest;

    let edge = Edge::start().await;
    let ask = v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::FileContainingSymbol("lowkey.v1.LockService".into())),
    };
    let mut reflection = ServerReflectionClient::new(edge.channel().await);
    let mut answers =
        reflection.server_reflection_info(tokio_stream::iter([ask])).await.unwrap().into_inner();
    assert!(soon(answers.message()).await.unwrap().unwrap().message_response.is_some());
}
