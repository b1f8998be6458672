//! Single gRPC calls with as little around them as there can be.
//!
//! The load shares its machine with what it measures: what a call costs here is missing there. So a call is a stream of
//! HTTP/2 and nothing else, and a request leaves with one write. General clients hand the message over when its
//! headers are gone already, which has the service woken twice. lowkey and etcd are called in the same way.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use h2::client::SendRequest;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, TE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, Request, Uri};
use lowkey_api::framing::{framed, unframed};
use prost::Message;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;
use tonic::{Code, Status};

use crate::system::BenchProblem;

/// What a caller shows to nodes, and whom it trusts.
#[derive(Clone, Default)]
pub(crate) struct Shown {
    /// For nodes at URLs that begin with `https://`.
    pub(crate) tls: Option<Arc<ClientConfig>>,
    /// On each call.
    pub(crate) authorization: Option<HeaderValue>,
}

/// Calls to one node, over one connection that is made when it is needed. Clones share it.
#[derive(Clone)]
pub(crate) struct UnaryCaller {
    authority: Authority,
    tls: Option<Arc<ClientConfig>>,
    authorization: Option<HeaderValue>,
    connection: Arc<Mutex<Option<SendRequest<Bytes>>>>,
}

impl UnaryCaller {
    /// For a node at a URL such as `http://127.0.0.1:9000`; with TLS, such as `https://127.0.0.1:9000`.
    pub(crate) fn new(url: &str, shown: Shown) -> Result<Self, BenchProblem> {
        let no_url =
            || BenchProblem::failed(format!("{url} is no URL such as http://127.0.0.1:9000, or https://…"));
        let uri: Uri = url.parse().map_err(|_| no_url())?;
        let authority = uri.authority().filter(|authority| authority.port().is_some()).cloned();
        let authority = authority.ok_or_else(no_url)?;
        let Shown { tls, authorization } = shown;
        let tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => None,
            Some(scheme) if *scheme == Scheme::HTTPS => Some(tls.ok_or_else(no_url)?),
            _ => return Err(no_url()),
        };
        Ok(Self { authority, tls, authorization, connection: Arc::default() })
    }

    /// Makes a call.
    pub(crate) async fn call<Q, A>(&self, path: &'static str, request: &Q) -> Result<A, Status>
    where
        Q: Message,
        A: Message + Default,
    {
        let mut connection = self.connection().await?;
        let (response, mut body) = connection.send_request(self.head(path), false).map_err(unavailable)?;
        body.send_data(framed(request).into(), true).map_err(unavailable)?;
        let response = response.await.map_err(unavailable)?;
        // Who refuses at once says so in the headers, and nothing follows.
        check(response.headers())?;
        let mut body = response.into_body();
        let mut answer = BytesMut::new();
        while let Some(data) = body.data().await {
            let data = data.map_err(unavailable)?;
            // A connection that ends has no use for it.
            let _ = body.flow_control().release_capacity(data.len());
            answer.extend_from_slice(&data);
        }
        if let Some(trailers) = body.trailers().await.map_err(unavailable)? {
            check(&trailers)?;
        }
        let message = unframed(&answer).ok_or_else(|| Status::internal("no whole message was sent"))?;
        A::decode(message).map_err(|error| Status::internal(format!("the answer cannot be read: {error}")))
    }

    /// The connection, if it is one that takes a call now; or else a new one.
    async fn connection(&self) -> Result<SendRequest<Bytes>, Status> {
        let mut kept = self.connection.lock().await;
        if let Some(connection) = kept.take()
            && let Ok(connection) = connection.ready().await
        {
            *kept = Some(connection.clone());
            return Ok(connection);
        }
        let stream = TcpStream::connect(self.authority.as_str()).await.map_err(unavailable)?;
        stream.set_nodelay(true).map_err(unavailable)?;
        let connection = match &self.tls {
            None => begin(stream).await?,
            Some(config) => {
                let host = self.authority.host().trim_matches(['[', ']']).to_owned();
                let name = ServerName::try_from(host).map_err(unavailable)?;
                let connecting = TlsConnector::from(Arc::clone(config)).connect(name, stream);
                begin(connecting.await.map_err(unavailable)?).await?
            }
        };
        *kept = Some(connection.clone());
        Ok(connection)
    }

    fn head(&self, path: &'static str) -> Request<()> {
        let mut uri = http::uri::Parts::default();
        uri.scheme = Some(if self.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP });
        uri.authority = Some(self.authority.clone());
        uri.path_and_query = Some(PathAndQuery::from_static(path));
        let mut head = Request::new(());
        *head.method_mut() = Method::POST;
        // All three parts are there, so it is one; without it the call would go to no service, and be refused.
        *head.uri_mut() = Uri::from_parts(uri).unwrap_or_default();
        head.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        head.headers_mut().insert(TE, HeaderValue::from_static("trailers"));
        if let Some(authorization) = &self.authorization {
            head.headers_mut().insert(AUTHORIZATION, authorization.clone());
        }
        head
    }
}

async fn begin(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<SendRequest<Bytes>, Status> {
    let (connection, driver) = h2::client::handshake(stream).await.map_err(unavailable)?;
    // How it ends is told to those who have a call under way.
    tokio::spawn(async move { driver.await.unwrap_or_default() });
    connection.ready().await.map_err(unavailable)
}

fn check(headers: &http::HeaderMap) -> Result<(), Status> {
    match Status::from_header_map(headers) {
        Some(status) if status.code() != Code::Ok => Err(status),
        _ => Ok(()),
    }
}

fn unavailable(error: impl std::error::Error) -> Status {
    Status::unavailable(error.to_string())
}
