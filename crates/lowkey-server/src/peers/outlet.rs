//! The near end of a connection for messages: see [`super::messages`].

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
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tonic::Status;

use super::frames::fitting;
use super::hello::{read_refusal, says_removed};
use super::link::{CONNECT_TIMEOUT, RETRY_PAUSE, Wire};
use super::messages::{PATH, PROTOCOL, UPGRADE};
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
    /// What the socket did not take yet.
    unsent: BytesMut,
    /// Tells the task that this connection, and no later one, is broken.
    broken: Arc<Notify>,
}

impl Connected {
    fn new(stream: StdTcpStream) -> Self {
        Self { stream, unsent: BytesMut::new(), broken: Arc::default() }
    }
}

impl Outlet {
    /// Sends frames, without blocking. Returns false if some are lost: the last of them, or all.
    pub(super) fn send(&self, frames: &[u8]) -> bool {
        let mut connected = self.connected();
        let Some(Connected { stream, unsent, .. }) = connected.as_mut() else { return false };
        let fitting = fitting(frames, UNSENT_MAX.saturating_sub(unsent.len()));
        let sent = match unsent.is_empty() {
            true => write(stream, fitting).map(|count| unsent.extend_from_slice(&fitting[count..])),
            false => {
                unsent.extend_from_slice(fitting);
                write_some(stream, unsent)
            }
        };
        Self::judge(connected, sent) && fitting.len() == frames.len()
    }

    /// Sends what a full socket did not take. Call this regularly.
    pub(super) fn flush(&self) {
        let mut connected = self.connected();
        let Some(Connected { stream, unsent, .. }) = connected.as_mut().filter(|it| !it.unsent.is_empty())
        else {
            return;
        };
        let sent = write_some(stream, unsent);
        Self::judge(connected, sent);
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

/// Keeps an outlet connected for as long as the link lives.
pub(super) async fn keep_connected(wire: Wire, address: String, outlet: Outlet) {
    let mut patience = Patience::default();
    loop {
        let since = Instant::now();
        let (ended, was_answered) = match connect(&wire, &address).await {
            Ok(stream) => (stay_connected(stream, &outlet).await.err(), true),
            // Only a member that answers gives a reason of its own.
            Err(status) => {
                let was_answered = std::error::Error::source(&status).is_none();
                (Some(status), was_answered)
            }
        };
        let pause = patience.pause(was_answered, since.elapsed());
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
async fn connect(wire: &Wire, address: &str) -> Result<TcpStream, Status> {
    let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await.map_err(|_| timed_out())?;
    let stream = stream.map_err(away)?;
    prepare(&stream).map_err(away)?;
    timeout(HELLO_TIMEOUT, say_hello(wire, address, stream)).await.unwrap_or_else(|_| Err(timed_out()))
}

/// Makes messages leave at once. Also makes the kernel detect a member that vanished without a word, even
/// if nothing is sent to it, as by a follower that waits.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_tcp_user_timeout(stream, SILENCE_MAX.as_millis() as u32)?;
    sockopt::set_tcp_keepidle(stream, PROBE_INTERVAL)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    sockopt::set_socket_keepalive(stream, true)?;
    Ok(())
}

async fn say_hello(wire: &Wire, address: &str, stream: TcpStream) -> Result<TcpStream, Status> {
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
    let parts = upgraded.downcast::<TokioIo<TcpStream>>();
    parts.map(|parts| parts.io.into_inner()).map_err(|_| Status::internal("another connection came back"))
}

/// Lends a connection to the thread that writes, until the connection ends.
async fn stay_connected(stream: TcpStream, outlet: &Outlet) -> Result<(), Status> {
    let stream = stream.into_std().map_err(away)?;
    let mut listening = stream.try_clone().and_then(TcpStream::from_std).map_err(away)?;
    let connected = Connected::new(stream);
    let broken = Arc::clone(&connected.broken);
    *outlet.connected() = Some(connected);
    let _closing = Closing(outlet);
    tokio::select! {
        heard = listening.read_u8() => match heard {
            Ok(_) => Err(Status::failed_precondition("it speaks where it is to listen")),
            Err(error) => Err(away(error)),
        },
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

    use lowkey_core::{ClusterId, MemberId, NodeIdentity};
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;
    use tonic::transport::Endpoint;

    use super::*;
    use crate::peers::Hello;
    use crate::peers::complaints::OfMember;
    use crate::peers::frames::add_frame;
    use crate::peers::proto::peer_client::PeerClient;

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
        *outlet.connected() = Some(Connected::new(stream));
        let mut frames = Vec::new();
        (0..64).for_each(|number| add_frame(&mut frames, &vec![number; 1_000_000]));
        assert!(!outlet.send(&frames), "and that some are lost is said");
        let reader = std::thread::spawn(move || {
            let mut heard = Vec::new();
            far.read_to_end(&mut heard).unwrap();
            heard
        });
        while outlet.connected().as_ref().is_some_and(|it| !it.unsent.is_empty()) {
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
        *outlet.connected() = Some(Connected::new(stream));
        let mut sent = Vec::new();
        let is_full = |outlet: &Outlet| outlet.connected().as_ref().is_some_and(|it| !it.unsent.is_empty());
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

    /// A link's side of a connection to a member at this address.
    fn wire(address: &str) -> Wire {
        let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy();
        Wire {
            hello: Arc::new(Hello {
                cluster: ClusterId([7; 16]),
                own: MemberId(1),
                identity: NodeIdentity([1; 16]),
                raft_address: "127.0.0.1:1".to_owned(),
            }),
            lanes: crate::lane::tests::lanes(super::super::hello::tests::status(vec![], &[], 1)),
            to: MemberId(2),
            client: PeerClient::new(channel),
            told: OfMember::default(),
        }
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
        let link = tokio::spawn(keep_connected(wire(&address), address, Outlet::default()));
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
    async fn connected_pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let wire = wire(&address);
        let (near, far) = tokio::join!(connect(&wire, &address), answer_once(&listener, LET_IN));
        (near.unwrap(), far)
    }

    #[tokio::test]
    async fn the_kernel_probes_a_connection_on_which_nothing_is_sent() {
        let (near, _far) = connected_pair().await;
        assert!(sockopt::socket_keepalive(&near).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&near).unwrap(), PROBE_INTERVAL);
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
