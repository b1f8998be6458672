//! A connection for streams: encrypted if its node is, and with what its client shows.

use std::io;
use std::sync::Arc;

use http::Uri;
use http::header::HeaderValue;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::Request;
use tonic::transport::{Channel, Endpoint};

use crate::caller::Shown;
use crate::system::BenchProblem;

/// To one node. Clones share the connection.
#[derive(Clone)]
pub(crate) struct NodeChannel {
    pub(super) channel: Channel,
    authorization: Option<HeaderValue>,
    /// What owners are called that use it: below the principal, if there is one.
    pub(super) owner: String,
}

impl NodeChannel {
    pub(super) fn new(url: &str, shown: Shown, owner: String) -> Result<Self, BenchProblem> {
        let no_url =
            |error: &dyn std::fmt::Display| BenchProblem::failed(format!("{url} is no good URL: {error}"));
        let Shown { tls, authorization } = shown;
        let channel = match (url.strip_prefix("https://"), tls) {
            (Some(authority), Some(config)) => {
                // The connector encrypts, so the address below it is a plain one.
                let endpoint = Endpoint::from_shared(format!("http://{authority}"));
                let origin = url.parse().map_err(|error| no_url(&error))?;
                let endpoint = endpoint.map_err(|error| no_url(&error))?.origin(origin);
                endpoint.connect_with_connector_lazy(tower::service_fn(move |uri| {
                    encrypted(Arc::clone(&config), uri)
                }))
            }
            _ => Endpoint::from_shared(url.to_owned()).map_err(|error| no_url(&error))?.connect_lazy(),
        };
        Ok(Self { channel, authorization, owner })
    }

    /// A request with what the client shows.
    pub(super) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(authorization) = self.authorization.as_ref().and_then(|value| value.to_str().ok())
            && let Ok(value) = authorization.parse()
        {
            request.metadata_mut().insert("authorization", value);
        }
        request
    }
}

async fn encrypted(config: Arc<ClientConfig>, uri: Uri) -> io::Result<TokioIo<TlsStream<TcpStream>>> {
    let invalid = || io::Error::new(io::ErrorKind::InvalidInput, format!("{uri} names no node"));
    let (host, port) = uri.host().zip(uri.port_u16()).ok_or_else(invalid)?;
    let host = host.trim_matches(['[', ']']);
    let name = ServerName::try_from(host.to_owned()).map_err(|_| invalid())?;
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    Ok(TokioIo::new(TlsConnector::from(config).connect(name, stream).await?))
}
