//! Raft messages between two nodes: a connection of their own, one for each direction.
//!
//! A message is what every commit waits for, there and back. So the replica thread writes to the socket itself, all that
//! is for one member in one system call, and no other thread has to wake up for that; and what arrives takes one task
//! between the socket and the inbox. All else between nodes is gRPC.
//!
//! ```text
//! caller ─► GET /lowkey.peer.v1/messages, with its hello in the headers, to be upgraded
//! callee ─► 101, or a refusal as gRPC has it, in the headers
//! caller ─► frames: length (4 bytes, little endian), one message of `wire`
//! ```
//!
//! Invariants:
//! - A frame is sent whole or with the end of its connection: what a full socket does not take now is sent first later.
//! - What does not fit into [`UNSENT_MAX`] is dropped and reported: Raft lives with that.
//! - The callee says nothing after the 101: whatever is heard from it is the end of the connection.

use std::io::{self, Write as _};
use std::net::TcpStream as StdTcpStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::{Buf as _, BytesMut};
use http::{HeaderValue, StatusCode, header};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tonic::Status;
use tonic::metadata::MetadataMap;

use super::hello::{Caller, refuse_removed, says_removed};
use super::link::{CONNECT_TIMEOUT, FRAME_BYTES_MAX, RETRY_PAUSE, Wire};
use super::server::Peers;
use super::unreachable;
use crate::inbox::Event;

/// Where messages are sent to.
pub(super) const PATH: &str = "/lowkey.peer.v1/messages";
const PROTOCOL: HeaderValue = HeaderValue::from_static("lowkey-messages");
const UPGRADE: HeaderValue = HeaderValue::from_static("upgrade");
/// How long a callee may take to let a caller in.
const HELLO_TIMEOUT: Duration = Duration::from_secs(1);
/// How long what was sent may go without an acknowledgement before the connection counts as broken.
const SILENCE_MAX: Duration = Duration::from_secs(2);
/// How often it is looked whether a caller that says nothing is still a member.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// Bytes that may wait for a slow member.
const UNSENT_MAX: usize = 64 * 1024 * 1024;
const LENGTH_BYTES: usize = 4;
const READ_BYTES: usize = 64 * 1024;

/// Where the messages for one member leave. The thread that decides writes; a task keeps it connected.
#[derive(Clone, Default)]
pub(super) struct Outlet {
    connected: Arc<Mutex<Option<Connected>>>,
    broken: Arc<Notify>,
}

struct Connected {
    /// Does not block.
    stream: StdTcpStream,
    /// What the socket did not take yet.
    unsent: Vec<u8>,
}

/// Puts a message into a frame, behind the frames that are there.
pub(super) fn add_frame(frames: &mut Vec<u8>, message: &[u8]) {
    // A message is never larger than the largest frame, which is far below this.
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    frames.extend_from_slice(&length.to_le_bytes());
    frames.extend_from_slice(message);
}

impl Outlet {
    /// Sends frames; false if they are lost. Does not block.
    pub(super) fn send(&self, frames: &[u8]) -> bool {
        let mut connected = self.connected();
        let Some(Connected { stream, unsent }) = connected.as_mut() else { return false };
        if unsent.len() + frames.len() > UNSENT_MAX {
            return false;
        }
        let sent = match unsent.is_empty() {
            true => write(stream, frames).map(|count| unsent.extend_from_slice(&frames[count..])),
            false => {
                unsent.extend_from_slice(frames);
                write(stream, unsent).map(|count| _ = unsent.drain(..count))
            }
        };
        self.judge(connected, sent)
    }

    /// Sends what a full socket did not take. To be called now and then.
    pub(super) fn flush(&self) {
        let mut connected = self.connected();
        let Some(Connected { stream, unsent }) = connected.as_mut().filter(|it| !it.unsent.is_empty()) else {
            return;
        };
        let sent = write(stream, unsent).map(|count| _ = unsent.drain(..count));
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
            let refusal = Status::from_header_map(response.headers());
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

/// Lends a connection to the thread that writes, until it ends.
async fn stay_connected(stream: TcpStream, outlet: &Outlet) -> io::Result<()> {
    let stream = stream.into_std()?;
    let mut listening = TcpStream::from_std(stream.try_clone()?)?;
    *outlet.connected() = Some(Connected { stream, unsent: Vec::new() });
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

/// Lets a caller in whose messages are to come, or says why not.
pub(super) async fn answer(State(peers): State<Arc<Peers>>, mut request: Request) -> Response {
    let metadata = MetadataMap::from_headers(std::mem::take(request.headers_mut()));
    let is_upgrade = metadata.get(header::UPGRADE.as_str()).is_some_and(|value| value == "lowkey-messages");
    let caller = match peers.let_in(&metadata) {
        Ok(_) if !is_upgrade => return Status::invalid_argument("messages need an upgrade").into_http(),
        Ok(caller) => caller,
        Err(status) => return status.into_http(),
    };
    let upgrading = hyper::upgrade::on(request);
    tokio::spawn(async move {
        // Who goes away before it begins has nothing to say.
        if let Ok(upgraded) = upgrading.await
            && let Err(refusal) = take_in(&peers, &caller, TokioIo::new(upgraded)).await
        {
            peers.complain(&refusal);
        }
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(header::CONNECTION, UPGRADE);
    response.headers_mut().insert(header::UPGRADE, PROTOCOL);
    response
}

/// Hands on what a member says, until it ends; an error if it is not listened to any more.
async fn take_in(peers: &Peers, caller: &Caller, mut stream: impl AsyncRead + Unpin) -> Result<(), Status> {
    let mut parting = peers.service.parting.subscribe();
    // A learner has nothing to say for as long as nobody speaks to it.
    let mut look_again = tokio::time::interval(LOOK_INTERVAL);
    let mut received = BytesMut::new();
    loop {
        // It may have been removed since it was let in; it is told so when it calls again.
        if peers.service.view.status().has_removed(caller.member) {
            return Err(refuse_removed(caller.member));
        }
        received.reserve(READ_BYTES);
        tokio::select! {
            count = stream.read_buf(&mut received) => match count {
                // It calls again.
                Ok(0) | Err(_) => return Ok(()),
                Ok(_) => peers.deliver(caller, || take_frame(&mut received))?,
            },
            _ = look_again.tick() => {}
            _ = parting.wait_for(|parting| *parting) => return Ok(()),
        }
    }
}

/// The next whole frame, if it is there.
fn take_frame(received: &mut BytesMut) -> Result<Option<BytesMut>, Status> {
    let Some(length) = received.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(Status::invalid_argument(format!("a frame of {length} bytes")));
    }
    if received.len() < LENGTH_BYTES + length {
        received.reserve(LENGTH_BYTES + length - received.len());
        return Ok(None);
    }
    received.advance(LENGTH_BYTES);
    Ok(Some(received.split_to(length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_as_they_went_in_however_they_arrive() {
        let mut sent = Vec::new();
        let messages: [&[u8]; 4] = [b"one", b"", &[7; 300], b"four"];
        for message in messages {
            add_frame(&mut sent, message);
        }
        let (mut received, mut heard) = (BytesMut::new(), Vec::new());
        for part in sent.chunks(7) {
            received.extend_from_slice(part);
            while let Some(frame) = take_frame(&mut received).unwrap() {
                heard.push(frame.to_vec());
            }
        }
        assert_eq!(heard, messages);
        assert!(received.is_empty());
    }

    #[test]
    fn a_frame_beyond_all_measure_is_refused_before_it_is_read() {
        let mut received = BytesMut::from(&u32::MAX.to_le_bytes()[..]);
        assert!(take_frame(&mut received).is_err());
    }

    #[test]
    fn what_a_full_socket_does_not_take_is_sent_first_later() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = StdTcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        let outlet = Outlet::default();
        assert!(!outlet.send(b"nobody is there"), "and it is said");
        *outlet.connected() = Some(Connected { stream, unsent: Vec::new() });
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
            io::Read::read_exact(&mut far, &mut heard).unwrap();
            heard
        });
        while is_full(&outlet) {
            outlet.flush();
            std::thread::yield_now();
        }
        assert!(reader.join().unwrap() == sent);
    }
}
