//! Clients at the wrong port, and clients that make no sense at all.

use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use lowkey_api::v1::GetStatusRequest;
use lowkey_api::v1::lock_service_client::LockServiceClient;
use lowkey_api::{ApiError, Reason};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;
use tonic::transport::Endpoint;

use crate::fake::CLUSTER_ID;
use crate::support::{Edge, exchange, soon};

#[tokio::test]
async fn grpc_on_the_http_port_is_told_where_grpc_is() {
    let edge = Edge::start().await;
    let channel = Endpoint::from_shared(format!("http://{}", edge.http)).unwrap().connect().await.unwrap();
    let status = LockServiceClient::new(channel).get_status(GetStatusRequest {}).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.message().contains(&edge.grpc.to_string()), "{status:?}");
    assert_eq!(ApiError::from_status(&status).unwrap().reason, Reason::NoSuchRoute);
    assert_eq!(status.metadata().get("lowkey-cluster").unwrap(), CLUSTER_ID);
}

#[tokio::test]
async fn http_1_on_the_grpc_port_is_told_where_http_is() {
    let edge = Edge::start().await;
    for request in [
        "GET /v1/status HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
        "POST /v1/lease HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}",
        "POST /lowkey.v1.LockService/GetStatus HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/grpc\r\ncontent-length: 0\r\n\r\n",
    ] {
        let answer = exchange(edge.grpc, request).await;
        assert_eq!((answer.status, answer.reason().as_str()), (404, "NO_SUCH_ROUTE"), "{request}");
        assert!(answer.json()["message"].as_str().unwrap().contains(&edge.http.to_string()));
        assert_eq!(answer.header("lowkey-cluster"), CLUSTER_ID);
    }
}

/// Sends one HTTP/2 request; returns status, content type, cluster and body.
async fn http_2(address: std::net::SocketAddr, path: &str) -> (StatusCode, String, String, String) {
    let stream = TcpStream::connect(address).await.unwrap();
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    let request =
        Request::get(format!("http://{address}{path}")).body(Full::<bytes::Bytes>::default()).unwrap();
    let response = soon(sender.send_request(request)).await.unwrap();
    let header = |name| response.headers().get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
    let (status, content_type, cluster) =
        (response.status(), header("content-type"), header("lowkey-cluster"));
    let body = soon(response.into_body().collect()).await.unwrap().to_bytes();
    (status, content_type, cluster, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn http_2_without_grpc_on_the_grpc_port_is_told_where_http_is() {
    let edge = Edge::start().await;
    for path in ["/v1/status", "/lowkey.v1.LockService/GetStatus"] {
        let (status, content_type, cluster, body) = http_2(edge.grpc, path).await;
        assert_eq!(
            (status.as_u16(), content_type.as_str(), cluster.as_str()),
            (404, "application/json", CLUSTER_ID)
        );
        assert!(body.contains("NO_SUCH_ROUTE") && body.contains(&edge.http.to_string()), "{body}");
    }
}

#[tokio::test]
async fn json_is_spoken_over_http_2_too() {
    let edge = Edge::start().await;
    let (status, content_type, _, body) = http_2(edge.http, "/v1/status").await;
    assert_eq!((status.as_u16(), content_type.as_str()), (200, "application/json"));
    assert!(body.starts_with(r#"{"nodeId":"node-1""#), "{body}");
}

#[tokio::test]
async fn an_unknown_grpc_method_is_unimplemented() {
    let edge = Edge::start().await;
    let mut grpc = tonic::client::Grpc::new(edge.channel().await);
    for path in ["/lowkey.v1.LockService/Nonsense", "/nonsense.Service/Nonsense"] {
        grpc.ready().await.unwrap();
        let codec = tonic_prost_codec();
        let request = tonic::Request::new(GetStatusRequest {});
        let answer = grpc.unary(request, http::uri::PathAndQuery::from_static(path), codec).await;
        let status = answer.map(|_: tonic::Response<GetStatusRequest>| ()).unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented, "{path}");
    }
}

fn tonic_prost_codec() -> tonic_prost::ProstCodec<GetStatusRequest, GetStatusRequest> {
    tonic_prost::ProstCodec::default()
}

#[tokio::test]
async fn garbage_ends_its_own_connection_only() {
    let edge = Edge::start().await;
    let zeros = vec![0; 100_000];
    let long_line = vec![b'a'; 1_000_000];
    let garbage: [&[u8]; 6] = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\r\n\r\n\r\n\0\0\0garbage\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        b"GET / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\ntransfer-encoding: x\r\n\r\n",
        &zeros,
        &long_line,
    ];
    for address in [edge.http, edge.grpc] {
        for bytes in garbage {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let _ = stream.write_all(bytes).await;
            let _ = stream.shutdown().await;
            // The server ends the connection; whether it says something first is its own affair.
            let mut answer = Vec::new();
            let _ = soon(stream.read_to_end(&mut answer)).await;
        }
    }
    assert_eq!(edge.get("/v1/status").await.status, 200);
    assert!(edge.client().await.get_status(GetStatusRequest {}).await.is_ok());
}
