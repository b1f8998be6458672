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
use crate::inbox::Event;

/// How long a callee may take to let a caller in.
const HELLO_TIMEOUT: Duration = Duration::from_secs(1);
/// How long what was sent may go without an acknowledgement before the connection counts as broken.
const SILENCE_MAX: Duration = Duration::from_secs(2);
/// Bytes that may wait for a slow member: many times the largest message.
const UNSENT_MAX: usize = 32 * 1024 * 1024;

/// Where the messages for one member leave. Who takes the replica's turn writes; a task keeps it connected.
#[derive(Clone, Default)]
pub(super) struct Outlet {
    connected: Arc<Mutex<Option<Connected>>>,
    broken: Arc<Notify>,
}

struct Connected {
    /// Does not block.
    stream: StdTcpStream,
    /// What the socket did not take yet.
    unsent: BytesMut,
}

impl Outlet {
    /// Sends frames; false if some are lost, the last of them or all. Does not block.
    pub(super) fn send(&self, frames: &[u8]) -> bool {
        let mut connected = self.connected();
        let Some(Connected { stream, unsent }) = connected.as_mut() else { return false };
        let fitting = fitting(frames, UNSENT_MAX.saturating_sub(unsent.len()));
        let sent = match unsent.is_empty() {
            true => write(stream, fitting).map(|count| unsent.extend_from_slice(&fitting[count..])),
            false => {
                unsent.extend_from_slice(fitting);
                write_some(stream, unsent)
            }
        };
        self.judge(connected, sent) && fitting.len() == frames.len()
    }

    /// Sends what a full socket did not take. To be called now and then.
    pub(super) fn flush(&self) {
        let mut connected = self.connected();
        let Some(Connected { stream, unsent }) = connected.as_mut().filter(|it| !it.unsent.is_empty()) else {
            return;
        };
        let sent = write_some(stream, unsent);
        self.judge(connected, sent);
    }

    fn judge(&self, mut connected: MutexGuard<'_, Option<Connected>>, sent: io::Result<()>) -> bool {
        if sent.is_err() {
            *connected = None;
            self.broken.notify_one();
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
    // What a bad time needed is not kept for all the good ones.
    if unsent.is_empty() {
        *unsent = BytesMut::new();
    }
    Ok(())
}

/// Keeps an outlet connected for as long as the link lives.
pub(super) async fn keep_connected(wire: Wire, address: String, outlet: Outlet) {
    loop {
        let since = Instant::now();
        let ended = match connect(&wire, &address).await {
            Ok(stream) => stay_connected(stream, &outlet).await.err().map(away),
            Err(status) => Some(status),
        };
        if ended.as_ref().is_some_and(says_removed) {
            wire.inbox.report(Event::Removed);
        }
        wire.told.failed(wire.to, "messages", since, ended);
        wire.inbox.report(unreachable(wire.to));
        sleep(RETRY_PAUSE).await;
    }
}

/// Somebody cannot be reached, as opposed to one who says no.
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
    stream.set_nodelay(true).map_err(away)?;
    sockopt::set_tcp_user_timeout(&stream, SILENCE_MAX.as_millis() as u32)
        .map_err(io::Error::from)
        .map_err(away)?;
    timeout(HELLO_TIMEOUT, say_hello(wire, address, stream)).await.unwrap_or_else(|_| Err(timed_out()))
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
    // The connection does something only while it is polled. It ends with the upgrade, and not with a refusal.
    let upgraded = tokio::select! {
        upgraded = &mut exchange => upgraded?,
        _ = connection.with_upgrades() => exchange.await?,
    };
    let parts = upgraded.downcast::<TokioIo<TcpStream>>();
    parts.map(|parts| parts.io.into_inner()).map_err(|_| Status::internal("another connection came back"))
}

/// Lends a connection to whoever writes, until it ends.
async fn stay_connected(stream: TcpStream, outlet: &Outlet) -> io::Result<()> {
    let stream = stream.into_std()?;
    let mut listening = TcpStream::from_std(stream.try_clone()?)?;
    *outlet.connected() = Some(Connected { stream, unsent: BytesMut::new() });
    let _closing = Closing(outlet);
    tokio::select! {
        heard = listening.read_u8() => heard.map(|_| ()),
        () = outlet.broken.notified() => Ok(()),
    }
}

/// Takes the connection back, whatever happens.
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
        *outlet.connected() = Some(Connected { stream, unsent: BytesMut::new() });
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
        *outlet.connected() = Some(Connected { stream, unsent: BytesMut::new() });
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
            inbox: Arc::default(),
            to: MemberId(2),
            client: PeerClient::new(channel),
            told: OfMember::default(),
        }
    }

    /// Somebody who is called, listens to the hello, and then says this.
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
}
