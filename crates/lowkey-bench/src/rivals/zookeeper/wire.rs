//! The few requests of ZooKeeper that are needed, on one connection.
//!
//! A packet is its length and its content. Numbers are big-endian; texts and bytes have their length in front.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::system::BenchProblem;

const CREATE: i32 = 1;
const DELETE: i32 = 2;
const EXISTS: i32 = 3;
const CHILDREN: i32 = 8;
const CLOSE: i32 = -11;
/// The number of what nobody asked for: something that is watched has changed.
const EVENT: i32 = -1;
const ALL_RIGHTS: i32 = 31;
/// More than any answer that is expected: names of very many nodes.
const LENGTH_MAX: usize = 1 << 30;

pub(super) const NO_NODE: i32 = -101;
pub(super) const NODE_EXISTS: i32 = -110;

#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(super) enum Kind {
    Persistent = 0,
    Ephemeral = 1,
    EphemeralSequential = 3,
}

/// What a connection may end without: ephemeral nodes belong to it until its time is over.
#[derive(Clone, Debug, Default)]
pub(super) struct ZooKeeperSession {
    id: i64,
    password: Vec<u8>,
}

/// Something to ask.
#[derive(Clone, Debug)]
pub(super) struct ZooKeeperRequest {
    operation: i32,
    body: Writer,
}

impl ZooKeeperRequest {
    pub(super) fn create(path: &str, kind: Kind) -> Self {
        let who = |writer: Writer| writer.int(1).int(ALL_RIGHTS).text("world").text("anyone");
        Self { operation: CREATE, body: who(Writer::default().text(path).bytes(&[])).int(kind as i32) }
    }

    /// Whatever its version.
    pub(super) fn delete(path: &str) -> Self {
        Self { operation: DELETE, body: Writer::default().text(path).int(-1) }
    }

    pub(super) fn children(path: &str) -> Self {
        Self { operation: CHILDREN, body: Writer::default().text(path).flag(false) }
    }

    /// Whether there is such a node; if so, its next change will be told.
    pub(super) fn watch(path: &str) -> Self {
        Self { operation: EXISTS, body: Writer::default().text(path).flag(true) }
    }

    pub(super) fn close() -> Self {
        Self { operation: CLOSE, body: Writer::default() }
    }
}

/// What a request led to: the transaction at which the server was, and the rest of the answer, or why it was refused.
pub(super) struct ZooKeeperReply {
    pub(super) zxid: i64,
    pub(super) outcome: Result<Reader, i32>,
}

/// One request is under way at a time. Events that come between are kept.
pub(super) struct ZooKeeperConnection {
    stream: TcpStream,
    /// What was read and belongs to no whole packet yet.
    unread: Vec<u8>,
    xid: i32,
    /// Paths of which something was told.
    events: BTreeSet<String>,
}

impl ZooKeeperConnection {
    /// Connects, with a session that it had before, or else with a new one.
    pub(super) async fn open(
        address: &str,
        ttl: Duration,
        session: &ZooKeeperSession,
    ) -> Result<(Self, ZooKeeperSession), BenchProblem> {
        let stream = TcpStream::connect(address).await.map_err(broken)?;
        stream.set_nodelay(true).map_err(broken)?;
        let mut connection = Self { stream, unread: Vec::new(), xid: 0, events: BTreeSet::new() };
        connection.send(&hello(ttl, session)).await?;
        let mut welcome = connection.packet().await?;
        let (_version, granted_ms) = (welcome.int()?, welcome.int()?);
        if granted_ms <= 0 {
            return Err(BenchProblem::wrong("zookeeper: a session is gone before its time"));
        }
        Ok((connection, ZooKeeperSession { id: welcome.long()?, password: welcome.bytes()? }))
    }

    pub(super) async fn ask(&mut self, request: &ZooKeeperRequest) -> Result<ZooKeeperReply, BenchProblem> {
        self.xid += 1;
        let mut packet = Writer::default().int(self.xid).int(request.operation);
        packet.0.extend(&request.body.0);
        self.send(&packet).await?;
        loop {
            let packet = self.packet().await?;
            if let Some(reply) = self.take(packet)? {
                return Ok(reply);
            }
        }
    }

    /// Waits until something is told of a node.
    pub(super) async fn told_of(&mut self, path: &str, wait: Duration) -> Result<(), BenchProblem> {
        let deadline = Instant::now() + wait;
        while !self.events.remove(path) {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(packet) = timeout(left, self.packet()).await else {
                return Err(BenchProblem::failed(format!(
                    "zookeeper: {path} was waited for in vain for {wait:?}"
                )));
            };
            self.take(packet?)?;
        }
        Ok(())
    }

    /// Sorts a packet: an event is kept, an answer is given back.
    fn take(&mut self, mut packet: Reader) -> Result<Option<ZooKeeperReply>, BenchProblem> {
        let (xid, zxid, code) = (packet.int()?, packet.long()?, packet.int()?);
        match xid {
            EVENT => {
                let (_kind, _state, path) = (packet.int()?, packet.int()?, packet.text()?);
                self.events.insert(path);
                Ok(None)
            }
            xid if xid == self.xid => {
                let outcome = if code == 0 { Ok(packet) } else { Err(code) };
                Ok(Some(ZooKeeperReply { zxid, outcome }))
            }
            _ => Err(BenchProblem::failed("zookeeper: an answer to another question")),
        }
    }

    async fn send(&mut self, packet: &Writer) -> Result<(), BenchProblem> {
        self.stream.write_all(&Writer::default().bytes(&packet.0).0).await.map_err(broken)
    }

    /// Nothing is lost if nobody waits for it to the end.
    async fn packet(&mut self) -> Result<Reader, BenchProblem> {
        loop {
            if let Some((length, rest)) = self.unread.split_first_chunk() {
                let length = usize::try_from(i32::from_be_bytes(*length)).unwrap_or(usize::MAX);
                if length > LENGTH_MAX {
                    return Err(BenchProblem::failed("zookeeper: a packet of no sensible length"));
                }
                if rest.len() >= length {
                    let packet = rest[..length].to_vec();
                    self.unread.drain(..4 + length);
                    return Ok(Reader(packet, 0));
                }
            }
            if self.stream.read_buf(&mut self.unread).await.map_err(broken)? == 0 {
                return Err(BenchProblem::failed("zookeeper has closed the connection"));
            }
        }
    }
}

/// Protocol version, last transaction seen, time to live, the session and its password, whether to read only.
fn hello(ttl: Duration, session: &ZooKeeperSession) -> Writer {
    let ttl_ms = i32::try_from(ttl.as_millis()).unwrap_or(i32::MAX);
    let password = if session.password.is_empty() { &[0; 16] } else { &session.password[..] };
    Writer::default().int(0).long(0).int(ttl_ms).long(session.id).bytes(password).flag(false)
}

/// What a server says about itself, in lines; it needs no session for that.
pub(super) async fn describe(address: &str) -> Result<String, BenchProblem> {
    let mut stream = TcpStream::connect(address).await.map_err(broken)?;
    stream.write_all(b"srvr").await.map_err(broken)?;
    let mut said = String::new();
    stream.read_to_string(&mut said).await.map_err(broken)?;
    Ok(said)
}

fn broken(error: std::io::Error) -> BenchProblem {
    BenchProblem::failed(format!("zookeeper: {error}"))
}

pub(super) fn refused(code: i32) -> BenchProblem {
    BenchProblem::failed(format!("zookeeper refuses with code {code}"))
}

#[derive(Clone, Debug, Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn int(mut self, value: i32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn long(mut self, value: i64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn flag(mut self, value: bool) -> Self {
        self.0.push(u8::from(value));
        self
    }

    fn bytes(self, value: &[u8]) -> Self {
        let mut writer = self.int(i32::try_from(value.len()).unwrap_or(i32::MAX));
        writer.0.extend(value);
        writer
    }

    fn text(self, value: &str) -> Self {
        self.bytes(value.as_bytes())
    }
}

/// A packet, and how far it was read.
#[derive(Debug)]
pub(super) struct Reader(Vec<u8>, usize);

impl Reader {
    fn take(&mut self, length: usize) -> Result<&[u8], BenchProblem> {
        let end = self.1.saturating_add(length);
        let bytes =
            self.0.get(self.1..end).ok_or_else(|| BenchProblem::failed("zookeeper: a short packet"))?;
        self.1 = end;
        Ok(bytes)
    }

    fn int(&mut self) -> Result<i32, BenchProblem> {
        Ok(self.take(4)?.first_chunk().copied().map_or(0, i32::from_be_bytes))
    }

    fn long(&mut self) -> Result<i64, BenchProblem> {
        Ok(self.take(8)?.first_chunk().copied().map_or(0, i64::from_be_bytes))
    }

    fn bytes(&mut self) -> Result<Vec<u8>, BenchProblem> {
        // Nothing at all is said by a length below zero.
        let length = usize::try_from(self.int()?).unwrap_or_default();
        Ok(self.take(length)?.to_vec())
    }

    pub(super) fn text(&mut self) -> Result<String, BenchProblem> {
        Ok(String::from_utf8_lossy(&self.bytes()?).into_owned())
    }

    pub(super) fn texts(&mut self) -> Result<Vec<String>, BenchProblem> {
        (0..self.int()?).map(|_| self.text()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_begins_with_a_hello_of_45_bytes() {
        let bytes = hello(Duration::from_millis(0x102), &ZooKeeperSession::default()).0;
        let head = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16];
        assert_eq!(bytes, [&head[..], &[0; 17]].concat());
        let again = hello(Duration::ZERO, &ZooKeeperSession { id: 7, password: vec![9; 16] }).0;
        assert_eq!(again[16..29], [0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 16, 9]);
    }

    #[test]
    fn a_node_is_created_with_all_rights_for_everybody() {
        let request = ZooKeeperRequest::create("/a", Kind::EphemeralSequential);
        let expected = [
            &[0, 0, 0, 2, b'/', b'a', 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 31, 0, 0, 0, 5][..],
            b"world\0\0\0\x06anyone",
            &[0, 0, 0, 3],
        ];
        assert_eq!((request.operation, request.body.0), (1, expected.concat()));
    }

    #[test]
    fn what_is_written_is_read() {
        let packet = Writer::default().int(2).text("a").text("é");
        assert_eq!(packet.0[..5], [0, 0, 0, 2, 0]);
        assert_eq!(Reader(packet.0, 0).texts().unwrap(), ["a", "é"]);
    }

    #[test]
    fn a_short_packet_is_noticed() {
        assert!(Reader(vec![0, 0, 0, 9, b'a'], 0).text().is_err());
        assert!(Reader(vec![0, 0, 9], 0).int().is_err());
    }
}
