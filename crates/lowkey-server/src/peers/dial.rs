//! How one node calls another: encrypted, and only if the other has the key that it is registered with.
//!
//! A member that has no key yet is called without encryption, as it always was. It may have got its key already, and this
//! node not have heard of it: then it refuses, and says so, and from then on the call is encrypted to whatever key it
//! shows. That is no worse than the plain call was, and ends when this node has applied what the others have.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use lowkey_core::KeyHash;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};

use super::link::CONNECT_TIMEOUT;
use super::tls::{PeerStream, PeerTls};

/// How long a handshake may take, on the side that calls.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(1);

/// A node's address and key.
#[derive(Clone)]
pub(super) struct Dial {
    tls: Arc<PeerTls>,
    pub(super) address: Arc<str>,
    endpoint: Endpoint,
    key: Option<KeyHash>,
    /// True if connections are to be encrypted though the key is not known.
    encrypted: Arc<AtomicBool>,
}

impl Dial {
    /// An error if the address is none.
    pub(super) fn new(
        tls: Arc<PeerTls>,
        address: String,
        key: Option<KeyHash>,
    ) -> Result<Self, tonic::transport::Error> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))?
            .http2_keep_alive_interval(Duration::from_secs(1))
            .keep_alive_timeout(Duration::from_secs(2))
            .keep_alive_while_idle(true);
        Ok(Self { tls, address: address.into(), endpoint, key, encrypted: Arc::default() })
    }

    /// Encrypts from now on. True if that changes anything.
    pub(super) fn encrypt(&self) -> bool {
        self.key.is_none() && !self.encrypted.swap(true, Ordering::Relaxed)
    }

    /// A new connection.
    pub(super) async fn connect(&self) -> io::Result<PeerStream> {
        let timed_out = |_| io::Error::from(io::ErrorKind::TimedOut);
        let stream =
            timeout(CONNECT_TIMEOUT, TcpStream::connect(&*self.address)).await.map_err(timed_out)??;
        stream.set_nodelay(true)?;
        if self.key.is_none() && !self.encrypted.load(Ordering::Relaxed) {
            return Ok(PeerStream::Plain(stream));
        }
        timeout(HANDSHAKE_TIMEOUT, self.tls.connect(self.key, stream)).await.map_err(timed_out)?
    }

    /// A channel for calls, which makes its connections as they are needed.
    pub(super) fn channel(&self) -> Channel {
        let dial = self.clone();
        let connector = tower::service_fn(move |_: Uri| {
            let dial = dial.clone();
            async move { dial.connect().await.map(TokioIo::new) }
        });
        self.endpoint.connect_with_connector_lazy(connector)
    }
}
