//! The near end of a connection for messages: see [`super::messages`].
//!
//! The thread that writes also encrypts: what is sent at the end of a turn is sealed into as few records as there can be,
//! and leaves in one system call.

use std::io::{self, Write as _};
use std::net::TcpStream as StdTcpStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use bytes::{Buf as _, BytesMut};
use http::{HeaderValue, StatusCode, header};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustix::net::sockopt;
use rustls::client::ClientConnection;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tonic::Status;

use super::frames::fitting;
use super::hello::{read_refusal, says_key_needed, says_removed};
use super::link::{RETRY_PAUSE, Wire};
use super::messages::{PATH, PROTOCOL, UPGRADE};
use super::tls::PeerStream;
use super::unreachable;
use crate::lane::inbox::Event;

/// How long a callee may take to let a caller in.
const HELLO_TIMEOUT: Duration = Duration::from_secs(1);
/// How long sent bytes may stay unacknowledged before the connection counts as broken.
const SILENCE_MAX: Duration = Duration::from_secs(2);
/// How often a silent connection is probed, and how many probes may fail.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
const PROBES: u32 = 3;
/// A connection that lasts this long was not cut short.
const LASTING: Duration = Duration::from_secs(1);
/// How many connections may be cut short before the next ones must wait longer. Nodes that start and join
/// cause some.
const QUICK_CALLS: u32 = 10;
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(1);
/// An unreachable member is called this many times, which takes some seconds, before it is called more
/// rarely. Most restarts are over by then, and a member that comes back later calls by itself.
const AWAY_CALLS: u32 = 100;
const AWAY_PAUSE: Duration = Duration::from_millis(400);
/// How many bytes may wait for a slow member: many times the largest message.
const UNSENT_MAX: usize = 32 * 1024 * 1024;

/// Where the messages for one member leave. The thread that takes the replica's turn writes. A task keeps
/// the outlet connected.
#[derive(Clone, Default)]
pub(super) struct Outlet {
    connected: Arc<Mutex<Option<Connected>>>,
}

struct Connected {
    /// In non-blocking mode.
    stream: StdTcpStream,
    unsent: Unsent,
    /// Tells the task that this connection, and no later one, is broken.
    broken: Arc<Notify>,
}

/// What the socket did not take yet.
enum Unsent {
    /// Of a member that has no key yet.
    Plain(BytesMut),
    Sealed {
        /// Keeps the records that wait.
        tls: Box<ClientConnection>,
        /// About how many bytes wait; 0 exactly if none do.
        count: usize,
    },
}

impl Connected {
    fn new(stream: StdTcpStream, tls: Option<Box<ClientConnection>>) -> Self {
        let unsent = match tls {
            None => Unsent::Plain(BytesMut::new()),
            Some(mut tls) => {
                // What may wait is limited here, for all connections alike.
                tls.set_buffer_limit(None);
                Unsent::Sealed { tls, count: 0 }
            }
        };
        Self { stream, unsent, broken: Arc::default() }
    }

    fn unsent_bytes(&self) -> usize {
        match &self.unsent {
            Unsent::Plain(unsent) => unsent.len(),
            Unsent::Sealed { count, .. } => *count,
        }
    }

    /// Sends frames behind what waits, as many as the socket takes now.
    fn send(&mut self, frames: &[u8]) -> io::Result<()> {
        match &mut self.unsent {
            Unsent::Plain(unsent) if unsent.is_empty() => {
                let count = write(&mut self.stream, frames)?;
                unsent.extend_from_slice(&frames[count..]);
                Ok(())
            }
            Unsent::Plain(unsent) => {
                unsent.extend_from_slice(frames);
                write_some(&mut self.stream, unsent)
            }
            Unsent::Sealed { tls, count } => {
                tls.writer().write_all(frames)?;
                *count += frames.len();
                write_records(&mut self.stream, tls, count)
            }
        }
    }

    /// Sends what waits, as much as the socket takes now.
    fn flush(&mut self) -> io::Result<()> {
        match &mut self.unsent {
            Unsent::Plain(unsent) => write_some(&mut self.stream, unsent),
            Unsent::Sealed { tls, count } => write_records(&mut self.stream, tls, count),
        }
    }

    /// The callee said something. An error if that ends the connection: it is to listen. Only TLS itself may speak.
    fn hear(&mut self, mut heard: &[u8]) -> Result<(), Status> {
        let Unsent::Sealed { tls, .. } = &mut self.unsent else { return Err(speaks()) };
        while !heard.is_empty() {
            tls.read_tls(&mut heard).map_err(away)?;
            let state = tls.process_new_packets().map_err(away)?;
            if state.plaintext_bytes_to_read() > 0 {
                return Err(speaks());
            }
            if state.peer_has_closed() {
                return Err(away(io::Error::from(io::ErrorKind::UnexpectedEof)));
            }
        }
        Ok(())
    }
}

fn speaks() -> Status {
    Status::failed_precondition("it speaks where it is to listen")
}

impl Outlet {
    /// Sends frames, without blocking. Returns false if some are lost: the last of them, or all.
    pub(super) fn send(&self, frames: &[u8]) -> bool {
        let mut guard = self.connected();
        let Some(connected) = guard.as_mut() else { return false };
        let fitting = fitting(frames, UNSENT_MAX.saturating_sub(connected.unsent_bytes()));
        let sent = connected.send(fitting);
        Self::judge(guard, sent) && fitting.len() == frames.len()
    }

    /// Sends what a full socket did not take. Call this regularly.
    pub(super) fn flush(&self) {
        let mut guard = self.connected();
        let Some(connected) = guard.as_mut().filter(|it| it.unsent_bytes() > 0) else { return };
        let sent = connected.flush();
        Self::judge(guard, sent);
    }

    fn judge(mut connected: MutexGuard<'_, Option<Connected>>, sent: io::Result<()>) -> bool {
        if sent.is_err()
            && let Some(broken) = connected.take()
        {
            broken.broken.notify_one();
        }
        sent.is_ok()
    }

    fn connected(&self) -> MutexGuard<'_, Option<Connected>> {
        self.connected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes as much as the socket takes now.
fn write(stream: &mut StdTcpStream, bytes: &[u8]) -> io::Result<usize> {
    let mut count = 0;
    while count < bytes.len() {
        match stream.write(&bytes[count..]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => count += written,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

/// Writes as much of what waits as the socket takes now.
fn write_some(stream: &mut StdTcpStream, unsent: &mut BytesMut) -> io::Result<()> {
    unsent.advance(write(stream, unsent)?);
    // Do not keep the memory that a bad time needed.
    if unsent.is_empty() {
        *unsent = BytesMut::new();
    }
    Ok(())
}

/// Writes as many of the records that wait as the socket takes now.
fn write_records(stream: &mut StdTcpStream, tls: &mut ClientConnection, count: &mut usize) -> io::Result<()> {
    while tls.wants_write() {
        match tls.write_tls(stream) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            // At least one byte is left: records are longer than what is in them.
            Ok(written) => *count = count.saturating_sub(written).max(1),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    *count = 0;
    Ok(())
}

/// Keeps an outlet connected for as long as the link lives.
pub(super) async fn keep_connected(wire: Wire, outlet: Outlet) {
    let mut patience = Patience::default();
    loop {
        let since = Instant::now();
        let (ended, was_answered) = match connect(&wire).await {
            Ok(stream) => (stay_connected(stream, &outlet).await.err(), true),
            // Only a member that answers gives a reason of its own.
            Err(status) => {
                let was_answered = std::error::Error::source(&status).is_none();
                (Some(status), was_answered)
            }
        };
        let pause = patience.pause(was_answered, since.elapsed());
        if ended.as_ref().is_some_and(says_key_needed) {
            wire.dial.encrypt();
        }
        if ended.as_ref().is_some_and(says_removed) {
            wire.lanes.root().inbox.report(Event::RemovedSays(wire.to));
        }
        wire.told.failed(wire.to, "messages", since, ended);
        wire.lanes.report_all(|| unreachable(wire.to));
        sleep(pause).await;
    }
}

/// How soon a member is called again. A member that cannot be reached may be back at any moment, so it is
/// called soon; if it stays away, it is called more rarely. A member that answers and cuts the connection
/// short again and again is called ever more rarely.
#[derive(Default)]
struct Patience {
    cut_short: u32,
    /// Calls in a row that did not reach the member.
    away: u32,
}

impl Patience {
    fn pause(&mut self, was_answered: bool, lasted: Duration) -> Duration {
        if was_answered {
            self.away = 0;
        }
        if was_answered && lasted >= LASTING {
            self.cut_short = 0;
        } else if was_answered {
            self.cut_short += 1;
        } else {
            self.away = self.away.saturating_add(1);
            return if self.away > AWAY_CALLS { AWAY_PAUSE } else { RETRY_PAUSE };
        }
        let doubled = self.cut_short.saturating_sub(QUICK_CALLS).min(10);
        (RETRY_PAUSE * (1 << doubled)).min(RETRY_PAUSE_MAX)
    }
}

/// The error for a member that cannot be reached, as opposed to one that refuses.
fn away(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Status {
    Status::from_error(error.into())
}

fn timed_out() -> Status {
    away(io::Error::from(io::ErrorKind::TimedOut))
}

/// A connection to a member that lets this node in.
async fn connect(wire: &Wire) -> Result<PeerStream, Status> {
    let stream = wire.dial.connect().await.map_err(away)?;
    prepare(stream.tcp()).map_err(away)?;
    timeout(HELLO_TIMEOUT, say_hello(wire, stream)).await.unwrap_or_else(|_| Err(timed_out()))
}

/// Makes the kernel detect a member that vanished without a word, even if nothing is sent to it, as by a follower
/// that waits.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_tcp_user_timeout(stream, SILENCE_MAX.as_millis() as u32)?;
    sockopt::set_tcp_keepidle(stream, PROBE_INTERVAL)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    sockopt::set_socket_keepalive(stream, true)?;
    Ok(())
}

async fn say_hello(wire: &Wire, stream: PeerStream) -> Result<PeerStream, Status> {
    let address = &*wire.dial.address;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(away)?;
    let mut request = http::Request::new(Body::empty());
    *request.uri_mut() = http::Uri::from_static(PATH);
    *request.headers_mut() = wire.hello.sign(wire.to, ()).into_parts().0.into_headers();
    let host = HeaderValue::try_from(address).map_err(|error| Status::internal(error.to_string()))?;
    for (name, value) in [(header::HOST, host), (header::CONNECTION, UPGRADE), (header::UPGRADE, PROTOCOL)] {
        request.headers_mut().insert(name, value);
    }
    let exchange = async {
        let response = sender.send_request(request).await.map_err(away)?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let refusal = read_refusal(response.headers());
            let strange = || {
                Status::failed_precondition(format!(
                    "no node of this version is at {address}: HTTP status {}",
                    response.status()
                ))
            };
            return Err(refusal.unwrap_or_else(strange));
        }
        hyper::upgrade::on(response).await.map_err(away)
    };
    let mut exchange = std::pin::pin!(exchange);
    // The connection works only while it is polled. It ends with the upgrade, but not with a refusal.
    let upgraded = tokio::select! {
        upgraded = &mut exchange => upgraded?,
        _ = connection.with_upgrades() => exchange.await?,
    };
    let parts = upgraded.downcast::<TokioIo<PeerStream>>();
    parts.map(|parts| parts.io.into_inner()).map_err(|_| Status::internal("another connection came back"))
}

/// Lends a connection to the thread that writes, until the connection ends.
async fn stay_connected(stream: PeerStream, outlet: &Outlet) -> Result<(), Status> {
    let (stream, tls) = stream.into_parts();
    let stream = stream.into_std().map_err(away)?;
    let mut listening = stream.try_clone().and_then(TcpStream::from_std).map_err(away)?;
    let connected = Connected::new(stream, tls);
    let broken = Arc::clone(&connected.broken);
    *outlet.connected() = Some(connected);
    let _closing = Closing(outlet);
    let listen = async {
        let mut heard = [0; 1024];
        loop {
            match listening.read(&mut heard).await {
                Ok(0) => return Err(away(io::Error::from(io::ErrorKind::UnexpectedEof))),
                Ok(count) => match outlet.connected().as_mut() {
                    Some(connected) => connected.hear(&heard[..count])?,
                    None => return Ok(()),
                },
                Err(error) => return Err(away(error)),
            }
        }
    };
    tokio::select! {
        ended = listen => ended,
        () = broken.notified() => Ok(()),
    }
}

/// Takes the connection back in every case.
struct Closing<'a>(&'a Outlet);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        *self.0.connected() = None;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use lowkey_core::MemberId;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    use super::*;
    use crate::peers::complaints::OfMember;
    use crate::peers::dial::Dial;
    use crate::peers::frames::add_frame;
    use crate::peers::hello::tests::{hello, status};
    use crate::peers::link::client;
    use crate::peers::tls::tests::any_tls;

    /// Both ends of a connection; the near one does not block.
    fn pair() -> (StdTcpStream, StdTcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let near = StdTcpStream::connect(listener.local_addr().unwrap()).unwrap();
        near.set_nonblocking(true).unwrap();
        (near, listener.accept().unwrap().0)
    }

    #[test]
    fn of_more_than_may_wait_the_first_frames_are_sent_and_each_is_whole() {
        let (stream, mut far) = pair();
        let outlet = Outlet::default();
        *outlet.connected() = Some(Connected::new(stream, None));
        let mut frames = Vec::new();
        (0..64).for_each(|number| add_frame(&mut frames, &vec![number; 1_000_000]));
        assert!(!outlet.send(&frames), "and that some are lost is said");
        let reader = std::thread::spawn(move || {
            let mut heard = Vec::new();
            far.read_to_end(&mut heard).unwrap();
            heard
        });
        while outlet.connected().as_ref().is_some_and(|it| it.unsent_bytes() > 0) {
            outlet.flush();
            std::thread::yield_now();
        }
        *outlet.connected() = None;
        let heard = reader.join().unwrap();
        let frame_bytes = frames.len() / 64;
        assert!(
            heard.len() / frame_bytes >= 32 && heard.len().is_multiple_of(frame_bytes),
            "{}",
            heard.len()
        );
        assert!(frames.starts_with(&heard));
    }

    #[test]
    fn what_a_full_socket_does_not_take_is_sent_first_later() {
        let (stream, mut far) = pair();
        let outlet = Outlet::default();
        assert!(!outlet.send(b"nobody is there"), "and it is said");
        *outlet.connected() = Some(Connected::new(stream, None));
        let mut sent = Vec::new();
        let is_full = |outlet: &Outlet| outlet.connected().as_ref().is_some_and(|it| it.unsent_bytes() > 0);
        while !is_full(&outlet) {
            let part = vec![sent.len() as u8; 100_003];
            assert!(outlet.send(&part));
            sent.extend(part);
        }
        assert!(outlet.send(b"the end"));
        sent.extend(b"the end");
        let expected = sent.len();
        let reader = std::thread::spawn(move || {
            let mut heard = vec![0; expected];
            far.read_exact(&mut heard).unwrap();
            heard
        });
        while is_full(&outlet) {
            outlet.flush();
            std::thread::yield_now();
        }
        assert!(reader.join().unwrap() == sent);
    }

    /// A link's side of a connection to a member at this address, which has no key.
    fn wire(address: &str) -> Wire {
        wire_to(address, None)
    }

    fn wire_to(address: &str, key: Option<lowkey_core::KeyHash>) -> Wire {
        let hello = Arc::new(hello(1));
        let dial = Dial::new(Arc::clone(&hello.tls), address.to_owned(), key).unwrap();
        let lanes = crate::lane::tests::lanes(status(vec![], &[], 1));
        let told = OfMember::new(lanes.clone());
        Wire { hello, lanes, to: MemberId(2), client: client(&dial), dial, told }
    }

    /// A peer that accepts a call, reads the hello, and then says this.
    async fn answer_once(listener: &TcpListener, answer: &[u8]) -> TcpStream {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut hello = Vec::new();
        while !hello.ends_with(b"\r\n\r\n") {
            hello.push(stream.read_u8().await.unwrap());
        }
        stream.write_all(answer).await.unwrap();
        stream
    }

    #[tokio::test]
    async fn a_refusal_that_cannot_be_read_does_not_end_the_link() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let link = tokio::spawn(keep_connected(wire(&address), Outlet::default()));
        let refusal =
            b"HTTP/1.1 200 OK\r\ngrpc-status: 7\r\ngrpc-message: %\r\ngrpc-status-details-bin: %%%\r\n\
            content-length: 0\r\n\r\n";
        for _ in 0..2 {
            let called = timeout(Duration::from_secs(20), answer_once(&listener, refusal)).await;
            called.expect("it calls again");
        }
        link.abort();
    }

    const LET_IN: &[u8] =
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: lowkey-messages\r\n\r\n";

    /// A connection to a peer that let this node in, and the far end of it.
    async fn connected_pair() -> (PeerStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let wire = wire(&address);
        let (near, far) = tokio::join!(connect(&wire), answer_once(&listener, LET_IN));
        (near.unwrap(), far)
    }

    #[tokio::test]
    async fn what_is_sent_encrypted_arrives_whole_and_in_order_also_through_a_full_socket() {
        let (far_tls, listener) = (any_tls(), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let wire = wire_to(&listener.local_addr().unwrap().to_string(), Some(far_tls.own));
        let accepted = async { far_tls.accept(listener.accept().await.unwrap().0).await.unwrap().0 };
        let (near, mut far) = tokio::join!(wire.dial.connect(), accepted);
        let (tcp, tls) = near.unwrap().into_parts();
        let outlet = Outlet::default();
        *outlet.connected() = Some(Connected::new(tcp.into_std().unwrap(), tls));
        let is_full = |outlet: &Outlet| outlet.connected().as_ref().is_some_and(|it| it.unsent_bytes() > 0);
        let mut sent = Vec::new();
        while !is_full(&outlet) {
            let part = vec![sent.len() as u8; 100_003];
            assert!(outlet.send(&part));
            sent.extend(part);
        }
        assert!(outlet.send(b"the end"));
        sent.extend(b"the end");
        let mut heard = vec![0; sent.len()];
        let reading = far.read_exact(&mut heard);
        let flushing = async {
            while is_full(&outlet) {
                outlet.flush();
                tokio::task::yield_now().await;
            }
        };
        let (read, ()) = tokio::join!(reading, flushing);
        read.unwrap();
        assert!(heard == sent);
    }

    #[tokio::test]
    async fn the_kernel_probes_a_connection_on_which_nothing_is_sent() {
        let (near, _far) = connected_pair().await;
        assert!(sockopt::socket_keepalive(near.tcp()).unwrap());
        assert_eq!(sockopt::tcp_keepidle(near.tcp()).unwrap(), PROBE_INTERVAL);
    }

    #[tokio::test]
    async fn who_speaks_where_it_is_to_listen_is_complained_of() {
        let (near, mut far) = connected_pair().await;
        far.write_all(b"!").await.unwrap();
        let ended = stay_connected(near, &Outlet::default()).await.unwrap_err();
        assert!(ended.message().contains("it speaks"), "{ended:?}");
    }

    #[test]
    fn who_cuts_connections_short_is_called_ever_more_rarely_and_who_stays_away_more_rarely() {
        let mut patience = Patience::default();
        let short = Duration::from_millis(3);
        for _ in 0..2 {
            for _ in 0..AWAY_CALLS {
                assert_eq!(patience.pause(false, short), RETRY_PAUSE);
            }
            assert_eq!(patience.pause(false, LASTING), AWAY_PAUSE);
            assert_eq!(patience.pause(true, LASTING), RETRY_PAUSE, "it was back");
        }
        let pauses: Vec<Duration> = (0..100).map(|_| patience.pause(true, short)).collect();
        assert!(pauses[..10].iter().all(|pause| *pause == RETRY_PAUSE) && pauses.is_sorted());
        assert_eq!((pauses[10], pauses[99]), (2 * RETRY_PAUSE, RETRY_PAUSE_MAX));
        assert_eq!(patience.pause(true, LASTING), RETRY_PAUSE, "a connection that lasted");
    }

    #[tokio::test]
    async fn that_a_connection_broke_does_not_end_the_next_one() {
        let outlet = Outlet::default();
        // Whether the end is noticed by reading or by writing is a matter of chance.
        for _ in 0..20 {
            let (near, far) = connected_pair().await;
            let watched = outlet.clone();
            let first = tokio::spawn(async move { stay_connected(near, &watched).await });
            while outlet.connected().is_none() {
                tokio::task::yield_now().await;
            }
            drop(far);
            while outlet.send(b"lost") {
                std::thread::sleep(Duration::from_millis(1));
            }
            let _ = first.await.unwrap();
            let (near, _far) = connected_pair().await;
            let lasting = timeout(Duration::from_millis(20), stay_connected(near, &outlet)).await;
            assert!(lasting.is_err(), "{lasting:?}");
        }
    }
}
