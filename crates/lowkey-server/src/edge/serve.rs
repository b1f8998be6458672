//! One accept loop for every port: HTTP/1 and HTTP/2 on a listener, within limits.
//!
//! - Nothing a client does ends the loop. Errors of accepting (for example too many open files) are logged
//!   and waited out.
//! - No connection stays for ever without a living client behind it. The first bytes and every HTTP/1
//!   request head have a deadline, HTTP/2 connections are pinged, and the kernel probes connections of
//!   either kind. A call that waits for a day, and a stream that is silent for as long, have no deadline of
//!   their own.
//! - A TLS handshake has a deadline too, and a connection has its place from before the handshake: what has
//!   not asked anything yet makes room, encrypted or not (`beginning.rs`).
//! - A full port is not closed to everyone else: idle connections make room (`crowd.rs`).
//! - Memory that is kept for a client is charged to its connection (`charged.rs`), if the port has a
//!   budget.
//! - On stop nothing new is accepted. Requests under way may end, and those that do not end in time are cut
//!   off.

mod beginning;
mod crowd;
mod turned_away;
mod wrong_port;

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use tonic::codegen::Service;

use self::beginning::{Beginning, Protocol, Rewound, begin};
use self::crowd::{Crowd, Seat};
use self::wrong_port::{Complaints, SpeakTls};
use super::budget::{Account, Budget, MemoryLimits};
use super::tls::Tls;
use super::{CertificateNames, charged, stopped};
use crate::access::{ClientAddress, wants_addresses};
use crate::peers::tls::{PeerTls, Proof};

/// The pause after an error of accepting.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often such an error is logged while it lasts.
const ACCEPT_TOLD_INTERVAL: Duration = Duration::from_secs(30);
/// How long a connection that must go may take to end what is under way.
const LEAVE_TIME: Duration = Duration::from_secs(1);
/// How many connections may be leaving and not closed yet. Beyond that no new one is let in, because each
/// has a file descriptor.
const LEAVING_MAX: usize = 8;
/// How many clients at a time are told that there is no place for them. Other connections are merely
/// closed.
const TURNED_AWAY_MAX: usize = 8;
/// How many bytes a client may send ahead of what was read, on one stream and on all streams of a
/// connection.
///
/// h2 cuts off a connection whose small unread messages need more than half of its window, with 256 bytes
/// counted for each message. So the window of a stream is much smaller: a single session must wait before
/// it gets there, unless its messages have fewer than 16 bytes.
const STREAM_WINDOW_BYTES: u32 = 64 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 2 * 1024 * 1024;

/// The limits of a port.
#[derive(Clone, Copy, Debug)]
pub struct ServeLimits {
    /// Connections at a time. Further ones take the place of idle ones, or are closed at once.
    pub max_connections: usize,
    /// What may be kept for clients, on all ports that share a [`Budget`].
    pub memory: MemoryLimits,
    /// Requests at a time on one HTTP/2 connection.
    pub max_streams_per_connection: u32,
    /// How long a new connection may take to ask something, and an HTTP/1 one to send a request's head. An
    /// HTTP/1 connection that is idle for this long is closed. So is one that takes nothing of its answers
    /// while others need the room.
    pub header_read_timeout: Duration,
    /// How often a silent connection is pinged: by HTTP/2, and by TCP below either protocol.
    pub keep_alive_interval: Duration,
    /// How long the answer to a ping may take.
    pub keep_alive_timeout: Duration,
    /// How long what is under way may take once the port stops.
    pub shutdown_timeout: Duration,
}

impl Default for ServeLimits {
    fn default() -> Self {
        Self {
            max_connections: 10_000,
            memory: MemoryLimits::default(),
            max_streams_per_connection: 100,
            header_read_timeout: Duration::from_secs(30),
            keep_alive_interval: Duration::from_secs(10),
            keep_alive_timeout: Duration::from_secs(10),
            shutdown_timeout: Duration::from_secs(2),
        }
    }
}

/// What answers on a port.
pub trait Answering:
    Service<Request<Incoming>, Response = Response, Error = Infallible, Future: Send> + Clone + Send + 'static
{
}

impl<S> Answering for S where
    S: Service<Request<Incoming>, Response = Response, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static
{
}

/// Serves `service` on `listener` until `stop` becomes true (or its sender is gone). Then it ends what is
/// under way within [`ServeLimits::shutdown_timeout`]. Memory that is kept for clients is charged to
/// `budget`; without one, nothing is counted. With `tls` the port takes encrypted connections only.
pub async fn serve(
    listener: TcpListener,
    service: impl Answering,
    limits: ServeLimits,
    budget: Option<Arc<Budget>>,
    tls: Option<Arc<Tls>>,
    stop: watch::Receiver<bool>,
) {
    let cover = tls.map_or(Cover::None, Cover::Clients);
    serve_covered(listener, service, limits, budget, cover, stop).await;
}

/// The same for the port of the peers, whose connections are encrypted: each request carries the [`Proof`] of its
/// caller's key.
pub(crate) async fn serve_peers(
    tls: Arc<PeerTls>,
    listener: TcpListener,
    service: impl Answering,
    limits: ServeLimits,
    stop: watch::Receiver<bool>,
) {
    serve_covered(listener, service, limits, None, Cover::Peers(tls), stop).await;
}

/// How the connections of a port are encrypted.
#[derive(Clone)]
enum Cover {
    /// Not at all.
    None,
    /// With the node's certificate, for clients.
    Clients(Arc<Tls>),
    /// With the nodes' own keys, for peers.
    Peers(Arc<PeerTls>),
}

async fn serve_covered(
    listener: TcpListener,
    service: impl Answering,
    limits: ServeLimits,
    budget: Option<Arc<Budget>>,
    cover: Cover,
    stop: watch::Receiver<bool>,
) {
    let builder = connection_builder(&limits);
    let crowd = Crowd::new(limits.max_connections);
    let turned_away = Arc::new(Semaphore::new(TURNED_AWAY_MAX));
    let open_max = limits.max_connections.saturating_add(LEAVING_MAX);
    let complaints = Arc::new(Complaints::default());
    let mut connections = JoinSet::new();
    let mut stop_signal = Box::pin(stopped(stop.clone()));
    // So that a crowd fills the port, but not the log.
    let mut is_full = false;
    let mut accept_told: Option<Instant> = None;
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut stop_signal => break,
            Some(ended) = connections.join_next() => {
                log_panic(ended);
                continue;
            }
            accepted = listener.accept(), if connections.len() < open_max => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let account = budget.as_ref().map(|budget| budget.open(peer.ip()));
                let Some(seat) = crowd.admit(peer.ip(), account.clone()) else {
                    if !is_full {
                        tracing::warn!(%peer, limit = limits.max_connections, "full: closing new connections");
                    }
                    is_full = true;
                    if let Ok(permit) = Arc::clone(&turned_away).try_acquire_owned() {
                        let cover = cover.clone();
                        tokio::spawn(async move {
                            turned_away::turn_away(stream, &cover, limits.max_connections).await;
                            drop(permit);
                        });
                    }
                    continue;
                };
                is_full = false;
                let (cover, complaints, stop) = (cover.clone(), Arc::clone(&complaints), stop.clone());
                let guest = Guest { stream, peer, seat, account, cover, complaints, stop };
                connections.spawn(connection(guest, service.clone(), builder.clone(), limits));
            }
            Err(error) if is_about_one_connection(&error) => {}
            Err(error) => {
                if accept_told.is_none_or(|told| told.elapsed() >= ACCEPT_TOLD_INTERVAL) {
                    tracing::warn!(%error, "cannot accept connections: will try again");
                    accept_told = Some(Instant::now());
                }
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let all_ended = async {
        while let Some(ended) = connections.join_next().await {
            log_panic(ended);
        }
    };
    if timeout(limits.shutdown_timeout, all_ended).await.is_err() {
        tracing::warn!(connections = connections.len(), "cut off connections that did not end in time");
    }
    connections.shutdown().await;
}

/// Whether an error of accepting means only that the client went away before it was accepted.
fn is_about_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

fn log_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a connection ended by a panic");
    }
}

fn connection_builder(limits: &ServeLimits) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(limits.header_read_timeout);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.max_streams_per_connection)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .keep_alive_interval(limits.keep_alive_interval)
        .keep_alive_timeout(limits.keep_alive_timeout);
    builder
}

/// Makes answers leave at once. Also makes the kernel detect clients that vanished without a word: an
/// HTTP/1 client that waits for its answer says nothing, and may be gone.
fn prepare(stream: &TcpStream, limits: &ServeLimits) -> io::Result<()> {
    /// Probes that may be lost.
    const PROBES: u32 = 4;
    // The kernel counts in whole seconds.
    let at_least_a_second = |duration: Duration| duration.max(Duration::from_secs(1));
    stream.set_nodelay(true)?;
    sockopt::set_tcp_keepidle(stream, at_least_a_second(limits.keep_alive_interval))?;
    sockopt::set_tcp_keepintvl(stream, at_least_a_second(limits.keep_alive_timeout / PROBES))?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    sockopt::set_socket_keepalive(stream, true)?;
    Ok(())
}

/// A connection, its place and its account.
struct Guest {
    stream: TcpStream,
    peer: SocketAddr,
    seat: Seat,
    account: Option<Arc<Account>>,
    cover: Cover,
    complaints: Arc<Complaints>,
    stop: watch::Receiver<bool>,
}

/// Serves one connection to its end. An error here is caused by the client, and concerns no other.
async fn connection(
    guest: Guest,
    service: impl Answering,
    builder: auto::Builder<TokioExecutor>,
    limits: ServeLimits,
) {
    let Guest { stream, peer, seat, account, cover, complaints, stop } = guest;
    let mut stop_signal = Box::pin(stopped(stop));
    if let Err(error) = prepare(&stream, &limits) {
        tracing::debug!(%error, "cannot set the options of a connection");
    }
    let address = stream.local_addr().ok();
    let mut has_to_go = Box::pin(seat.has_to_go(limits.header_read_timeout));
    let beginning = tokio::select! {
        beginning = Box::pin(begin(stream, &cover, limits.header_read_timeout)) => beginning,
        () = &mut stop_signal => return,
        () = &mut has_to_go => return,
    };
    // Many of these futures exist at once. All but the usual branch are boxed, to keep them small.
    match beginning {
        Beginning::Plain(protocol, io) => {
            let talk = Talk { builder, protocol, account, address: peer.ip(), names: None, proof: None };
            talk.serve(io, service, stop_signal, has_to_go).await;
        }
        Beginning::Encrypted(protocol, io, holder) => {
            let talk =
                Talk { builder, protocol, account, address: peer.ip(), names: holder.names, proof: None };
            let uncovered = async {
                match &cover {
                    Cover::Clients(tls) if !holder.chain.is_empty() => tls.uncovered(holder.chain).await,
                    _ => std::future::pending().await,
                }
            };
            let has_to_go = async {
                tokio::select! {
                    () = has_to_go => {}
                    () = uncovered => tracing::info!(%peer, "closing: --tls-client-ca no longer covers its certificate"),
                }
            };
            Box::pin(talk.serve(io, service, stop_signal, Box::pin(has_to_go))).await;
        }
        Beginning::Peer(protocol, io, proof) => {
            let talk =
                Talk { builder, protocol, account, address: peer.ip(), names: None, proof: Some(proof) };
            Box::pin(talk.serve(io, service, stop_signal, has_to_go)).await;
        }
        Beginning::Unencrypted(protocol, io) => {
            complaints.tell(peer, "this port speaks TLS, and it does not; it must use https://");
            let talk = Talk { builder, protocol, account, address: peer.ip(), names: None, proof: None };
            Box::pin(talk.serve(io, SpeakTls { address }, stop_signal, has_to_go)).await;
        }
        Beginning::Unexpected(io) => {
            let cause = "it speaks TLS, and this port does not; give the node --tls-cert and --tls-key, or use http://";
            complaints.tell(peer, cause);
            // The builder finds no request in it, and says so in plain HTTP, which clients recognise.
            let talk = Talk {
                builder,
                protocol: Protocol::Http1,
                account,
                address: peer.ip(),
                names: None,
                proof: None,
            };
            Box::pin(talk.serve(io, service, stop_signal, has_to_go)).await;
        }
        // Silent, gone before it said anything, or refused by the handshake.
        Beginning::Over(advice) => {
            if let Some(advice) = advice {
                complaints.tell(peer, advice);
            }
        }
    }
}

/// How a connection is served once its beginning is known.
struct Talk {
    builder: auto::Builder<TokioExecutor>,
    protocol: Protocol,
    account: Option<Arc<Account>>,
    /// Where it comes from.
    address: IpAddr,
    names: Option<CertificateNames>,
    /// On the peers' port: which key the caller has.
    proof: Option<Proof>,
}

impl Talk {
    async fn serve<I>(
        self,
        io: Rewound<I>,
        service: impl Answering,
        mut stop_signal: impl Future<Output = ()> + Unpin,
        mut has_to_go: impl Future<Output = ()> + Unpin,
    ) where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self { builder, protocol, account, address, names, proof } = self;
        let builder = match protocol {
            Protocol::Http1 => builder.http1_only(),
            Protocol::Http2 => builder.http2_only(),
        };
        let service = service_fn(move |mut request: Request<Incoming>| {
            if wants_addresses() {
                request.extensions_mut().insert(ClientAddress(address));
            }
            if let Some(names) = &names {
                request.extensions_mut().insert(names.clone());
            }
            if let Some(proof) = proof {
                request.extensions_mut().insert(proof);
            }
            charged::answer(service.clone(), account.clone(), request)
        });
        let mut connection =
            std::pin::pin!(builder.serve_connection_with_upgrades(TokioIo::new(io), service));
        let ended = tokio::select! {
            ended = &mut connection => ended,
            () = &mut stop_signal => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
            () = &mut has_to_go => {
                connection.as_mut().graceful_shutdown();
                timeout(LEAVE_TIME, connection).await.unwrap_or(Ok(()))
            }
        };
        if let Err(error) = ended {
            tracing::debug!(error, "a connection ended early");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_kernel_probes_silent_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap());
        let (stream, _client) = tokio::join!(listener.accept(), client);
        let (stream, _) = stream.unwrap();
        for (interval, idle) in [(Duration::from_secs(10), 10), (Duration::from_millis(5), 1)] {
            prepare(&stream, &ServeLimits { keep_alive_interval: interval, ..ServeLimits::default() })
                .unwrap();
            assert!(stream.nodelay().unwrap() && sockopt::socket_keepalive(&stream).unwrap());
            assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), Duration::from_secs(idle));
        }
    }
}
