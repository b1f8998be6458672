//! How a node connects to the gRPC port of another one: encrypted, if its own is.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint};

use crate::edge::tls::Tls;

/// Makes connections to other nodes' gRPC ports.
#[derive(Clone, Default)]
pub(crate) struct Dialer {
    tls: Option<Arc<Tls>>,
}

impl Dialer {
    pub(crate) fn new(tls: Option<Arc<Tls>>) -> Self {
        Self { tls }
    }

    /// A connection that is made when it is first used.
    pub(crate) fn to(
        &self,
        address: &str,
        connect_timeout: Duration,
    ) -> Result<Channel, tonic::transport::Error> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))?.connect_timeout(connect_timeout);
        Ok(match &self.tls {
            Some(tls) => endpoint.connect_with_connector_lazy(Encrypting { tls: Arc::clone(tls) }),
            None => endpoint.connect_lazy(),
        })
    }
}

impl Dialer {
    /// The same to one address of a host, whatever else its name stands for. Made when it is first used.
    pub(crate) fn at(
        &self,
        name: &str,
        address: SocketAddr,
        connect_timeout: Duration,
    ) -> Result<Channel, tonic::transport::Error> {
        let endpoint = Endpoint::from_shared(format!("http://{name}"))?.connect_timeout(connect_timeout);
        let tls = self.tls.clone();
        let connect = move |uri: Uri| {
            let tls = tls.clone();
            async move {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                let io: Box<dyn Io> = match tls {
                    Some(tls) => Box::new(
                        TlsConnector::from(tls.as_client()).connect(server_name(&uri)?, stream).await?,
                    ),
                    None => Box::new(stream),
                };
                io::Result::Ok(TokioIo::new(io))
            }
        };
        Ok(endpoint.connect_with_connector_lazy(tower::service_fn(connect)))
    }
}

/// A connection, encrypted or not.
trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// The name that a certificate must have.
fn server_name(uri: &Uri) -> io::Result<ServerName<'static>> {
    let invalid = || io::Error::new(io::ErrorKind::InvalidInput, format!("{uri}: no name for TLS"));
    let host = uri.host().ok_or_else(invalid)?.trim_matches(['[', ']']);
    ServerName::try_from(host.to_owned()).map_err(|_| invalid())
}

/// Connects with the node's own certificate.
struct Encrypting {
    tls: Arc<Tls>,
}

impl Service<Uri> for Encrypting {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let config = self.tls.as_client();
        Box::pin(async move {
            let invalid =
                |problem: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("{uri}: {problem}"));
            let (Some(host), Some(port)) = (uri.host(), uri.port_u16()) else {
                return Err(invalid("no HOST:PORT"));
            };
            let host = host.trim_matches(['[', ']']);
            let name = server_name(&uri)?;
            let stream = TcpStream::connect((host, port)).await?;
            stream.set_nodelay(true)?;
            Ok(TokioIo::new(TlsConnector::from(config).connect(name, stream).await?))
        })
    }
}
