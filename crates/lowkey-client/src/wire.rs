//! Connections to nodes: encrypted or not, and with a token on each call if there is one.

use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response, Uri, header};
use tonic::transport::{Channel, Endpoint};

use crate::error::Error;
use crate::link::{CONNECT_TIME, root_cause};
use crate::tls::{Configs, Tls};
use crate::token_file::TokenFile;

/// How often, and how far apart, the files of a client that begins are looked at.
const LOOKS: usize = 6;
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// A connection. Each request on it carries the client's token.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    channel: Channel,
    token: Option<Arc<TokenFile>>,
}

impl Service<Request<Body>> for Wire {
    type Response = Response<Body>;
    type Error = tonic::transport::Error;
    type Future = <Channel as Service<Request<Body>>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.channel.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if let Some(token) = &self.token {
            request.headers_mut().insert(header::AUTHORIZATION, token.header());
        }
        self.channel.call(request)
    }
}

/// Makes connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dialer {
    configs: Arc<Configs>,
    token: Option<Arc<TokenFile>>,
}

impl Dialer {
    pub(crate) fn new(tls: Tls, token: Option<TokenFile>) -> Self {
        Self { configs: Arc::new(Configs::new(tls)), token: token.map(Arc::new) }
    }

    /// The same with this token, if there is one.
    pub(crate) fn with_token(&self, token: Option<TokenFile>) -> Self {
        Self { configs: Arc::clone(&self.configs), token: token.map(Arc::new) }
    }

    /// Finds mistakes that no waiting changes, before anything is sent.
    pub(crate) fn check(&self, endpoint: &str) -> Result<(), Error> {
        let (scheme, _) = split(endpoint)?;
        match scheme {
            Scheme::Https => self.configs.now().map(|_| ()),
            Scheme::Http if self.token.is_some() && !is_loopback(endpoint) => Err(Error::invalid(format!(
                "{endpoint}: a token is sent to other machines over https:// only; begin the endpoint with https://"
            ))),
            Scheme::Http | Scheme::Unix => Ok(()),
        }
    }

    /// The same of all endpoints, for a client that begins. Certificate and key may be about to be
    /// replaced, one after the other: a pair that does not match gets a moment to become one.
    pub(crate) async fn check_all(&self, endpoints: &[String]) -> Result<(), Error> {
        let check = || endpoints.iter().try_for_each(|endpoint| self.check(endpoint));
        for _ in 1..LOOKS {
            if check().is_ok() || !self.configs.has_identity() {
                break;
            }
            sleep(LOOK_PAUSE).await;
        }
        check()
    }

    /// Connects.
    pub(crate) async fn connect(&self, endpoint: &str) -> Result<Wire, Error> {
        self.check(endpoint)?;
        let (scheme, to) = prepared(endpoint)?;
        let connecting = async {
            match scheme {
                Scheme::Http => to.connect().await,
                Scheme::Https => to.connect_with_connector(self.encrypting()).await,
                Scheme::Unix => to.connect_with_connector(Socket::of(endpoint)).await,
            }
        };
        match timeout(CONNECT_TIME, connecting).await {
            Ok(Ok(channel)) => Ok(self.wire(channel)),
            Ok(Err(error)) => Err(match self.configs.words_of(&error) {
                Some(words) => Error::invalid(format!("{endpoint}: {words}")),
                None => Error::unavailable(format!("{endpoint}: {}", root_cause(&error)), false),
            }),
            Err(_) => Err(Error::unavailable(format!("{endpoint} does not answer"), false)),
        }
    }

    /// Connects when the connection is first used.
    pub(crate) fn connect_lazy(&self, endpoint: &str) -> Result<Wire, Error> {
        self.check(endpoint)?;
        let (scheme, to) = prepared(endpoint)?;
        Ok(self.wire(match scheme {
            Scheme::Http => to.connect_lazy(),
            Scheme::Https => to.connect_with_connector_lazy(self.encrypting()),
            Scheme::Unix => to.connect_with_connector_lazy(Socket::of(endpoint)),
        }))
    }

    /// What a failed call means, if TLS is the cause.
    pub(crate) fn words_of(&self, error: &(dyn std::error::Error + 'static)) -> Option<String> {
        self.configs.words_of(error)
    }

    fn wire(&self, channel: Channel) -> Wire {
        Wire { channel, token: self.token.clone() }
    }

    fn encrypting(&self) -> Encrypting {
        Encrypting { configs: Arc::clone(&self.configs) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
    /// A socket on this machine: that of an admin.
    Unix,
}

/// What such an endpoint begins with. A path follows.
pub(crate) const UNIX: &str = "unix://";

fn split(endpoint: &str) -> Result<(Scheme, &str), Error> {
    match endpoint.split_once("://") {
        Some(("http", rest)) => Ok((Scheme::Http, rest)),
        Some(("https", rest)) => Ok((Scheme::Https, rest)),
        Some(("unix", path)) if !path.is_empty() => Ok((Scheme::Unix, path)),
        _ => Err(no_url(endpoint)),
    }
}

fn no_url(endpoint: &str) -> Error {
    Error::invalid(format!("{endpoint} is no URL such as http://127.0.0.1:9000 or https://127.0.0.1:9000"))
}

/// Whether an endpoint is on this machine.
fn is_loopback(endpoint: &str) -> bool {
    let Some(uri) = endpoint.parse::<Uri>().ok() else { return false };
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// How to connect to a node. Encryption is added by the connector, so the address below it is a plain one.
fn prepared(endpoint: &str) -> Result<(Scheme, Endpoint), Error> {
    let (scheme, mut rest) = split(endpoint)?;
    if scheme == Scheme::Unix {
        rest = "localhost";
    }
    let endpoint = if scheme == Scheme::Unix { "http://localhost" } else { endpoint };
    let origin = endpoint.parse::<Uri>().map_err(|_| no_url(endpoint))?;
    let parsed = Endpoint::from_shared(format!("http://{rest}")).map_err(|_| no_url(endpoint))?;
    let prepared = parsed
        .origin(origin)
        .connect_timeout(CONNECT_TIME)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(Duration::from_secs(1))
        .keep_alive_timeout(Duration::from_secs(1))
        .keep_alive_while_idle(true)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(1 << 21);
    Ok((scheme, prepared))
}

/// Connects to a socket on this machine.
struct Socket {
    path: PathBuf,
}

impl Socket {
    fn of(endpoint: &str) -> Self {
        Self { path: endpoint.strip_prefix(UNIX).unwrap_or(endpoint).into() }
    }
}

impl Service<Uri> for Socket {
    type Response = hyper_util::rt::TokioIo<UnixStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _uri: Uri) -> Self::Future {
        let path = self.path.clone();
        Box::pin(async move {
            // The path of a socket ends at 107 bytes, and this one may be longer.
            let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            let directory = std::fs::File::open(directory.unwrap_or(Path::new(".")))?;
            let name = path.file_name().unwrap_or_default();
            let short = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name);
            let stream = UnixStream::connect(short).await?;
            drop(directory);
            Ok(hyper_util::rt::TokioIo::new(stream))
        })
    }
}

/// Connects with TLS.
struct Encrypting {
    configs: Arc<Configs>,
}

impl Service<Uri> for Encrypting {
    type Response = hyper_util::rt::TokioIo<TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let config = self.configs.now();
        Box::pin(async move {
            let invalid = |problem: String| io::Error::new(io::ErrorKind::InvalidInput, problem);
            let config = config.map_err(|error| invalid(error.to_string()))?;
            let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
            let port = uri.port_u16().unwrap_or(443);
            let name = ServerName::try_from(host.to_owned())
                .map_err(|_| invalid(format!("{host} is no name for TLS")))?;
            let stream = TcpStream::connect((host, port)).await?;
            stream.set_nodelay(true)?;
            let stream = TlsConnector::from(config).connect(name, stream).await?;
            Ok(hyper_util::rt::TokioIo::new(stream))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_goes_to_other_machines_encrypted_only() {
        let path = std::env::temp_dir().join(format!("lowkey-wire-{}", std::process::id()));
        std::fs::write(&path, "lk_1_abc").unwrap();
        let dialer = Dialer::new(Tls::new(), Some(TokenFile::read(path.clone()).unwrap()));
        std::fs::remove_file(&path).unwrap();
        for endpoint in ["http://127.0.0.1:1", "http://[::1]:1", "http://localhost:1"] {
            assert!(dialer.check(endpoint).is_ok(), "{endpoint}");
        }
        for endpoint in
            ["http://10.0.0.1:1", "http://node-1:1", "http://localhost.example.com:1", "ftp://a:1"]
        {
            assert!(dialer.check(endpoint).is_err(), "{endpoint}");
        }
        assert!(Dialer::default().check("http://10.0.0.1:1").is_ok());
    }
}
