//! Redis: one server that syncs every change (`appendfsync always`). A lock is a key that is set if it does not exist, with
//! a time to live, and deleted by a script that looks whose it is. There are no fencing tokens, and nobody can wait.
//!
//! It is spoken to directly: the three commands that are needed take less than a crate for all of them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufStream};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{LONG_TTL, PATIENCE, find_program, until_up};
use crate::lowkey::tag;
use crate::process::{Cluster, Starter, free_ports};
use crate::system::{BenchProblem, Contender, HeldLock, LockClient, System, SystemAnswer};
use crate::workload::Workload;

/// Deletes a key if it has this value.
const RELEASE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";
const NAME: &str = "redis";

pub(super) fn contenders() -> Option<Vec<Arc<dyn Contender>>> {
    let program = find_program("redis-server", &[])?;
    Some(vec![Arc::new(RedisContender { program })])
}

struct RedisContender {
    program: PathBuf,
}

impl Contender for RedisContender {
    fn name(&self) -> String {
        NAME.to_owned()
    }

    fn sits_out(&self, workload: Workload, nodes: usize) -> Option<String> {
        let reason = match workload {
            Workload::Hot => "nobody can wait for a key; clients would have to poll",
            _ if nodes > 1 => {
                "its replicas follow after the answer, so that a lock may be lost; it takes part with --nodes 1"
            }
            Workload::Outage => "no server would be left",
            _ => return None,
        };
        Some(reason.to_owned())
    }

    fn start(&self, starter: &Starter, _nodes: usize) -> Result<Cluster, BenchProblem> {
        let mut cluster = Cluster::new(starter, NAME)?;
        let [port] = free_ports()?;
        let mut command = (starter.command)(&self.program);
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--daemonize", "no"]);
        command.args(["--appendonly", "yes", "--appendfsync", "always", "--save", ""]);
        command.arg("--dir").arg(cluster.folder());
        cluster.add(NAME, format!("127.0.0.1:{port}"), command)?;
        Ok(cluster)
    }

    fn connect(&self, cluster: Arc<Cluster>, _connections: usize) -> SystemAnswer<'_, Box<dyn System>> {
        async move {
            until_up(NAME, &cluster, || async {
                RedisConnection::open(&cluster.addresses()[0]).await?.ask(&["PING"]).await
            })
            .await?;
            Ok(Box::new(Redis { cluster }) as Box<dyn System>)
        }
        .boxed()
    }
}

struct Redis {
    cluster: Arc<Cluster>,
}

impl System for Redis {
    fn client(&self, _number: usize) -> SystemAnswer<'_, Box<dyn LockClient>> {
        async move {
            let mut connection = RedisConnection::open(&self.cluster.addresses()[0]).await?;
            let RedisReply::Text(script) = connection.ask(&["SCRIPT", "LOAD", RELEASE]).await? else {
                return Err(BenchProblem::failed("redis: the script was not taken"));
            };
            let client = RedisClient { connection, script, owner: tag(), held: None };
            Ok(Box::new(client) as Box<dyn LockClient>)
        }
        .boxed()
    }

    fn count_held<'a>(&'a self, prefix: &'a str) -> SystemAnswer<'a, usize> {
        async move {
            let mut connection = RedisConnection::open(&self.cluster.addresses()[0]).await?;
            match connection.ask(&["KEYS", &format!("{prefix}*")]).await? {
                RedisReply::Many(keys) => Ok(keys.len()),
                _ => Err(BenchProblem::failed("redis: an answer to another question")),
            }
        }
        .boxed()
    }

    fn leader(&self) -> SystemAnswer<'_, Option<String>> {
        async { Ok(Some(NAME.to_owned())) }.boxed()
    }

    fn is_whole(&self) -> SystemAnswer<'_, bool> {
        async { Ok(true) }.boxed()
    }

    fn nodes(&self) -> usize {
        1
    }

    fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }
}

struct RedisClient {
    connection: RedisConnection,
    /// The digest by which the script is known.
    script: String,
    owner: String,
    held: Option<String>,
}

impl RedisClient {
    async fn set(&mut self, lock: &str, ttl: Duration) -> Result<(), BenchProblem> {
        let ttl_ms = ttl.as_millis().to_string();
        match self.connection.ask(&["SET", lock, &self.owner, "NX", "PX", &ttl_ms]).await? {
            RedisReply::Text(_) => Ok(()),
            _ => Err(BenchProblem::wrong(format!("redis: {lock} exists, and was not set or deleted since"))),
        }
    }
}

impl LockClient for RedisClient {
    fn acquire<'a>(&'a mut self, lock: &'a str, _wait: Duration) -> SystemAnswer<'a, Option<u64>> {
        async move {
            self.set(lock, LONG_TTL).await?;
            self.held = Some(lock.to_owned());
            Ok(None)
        }
        .boxed()
    }

    fn release(&mut self) -> SystemAnswer<'_, ()> {
        async move {
            let Some(lock) = self.held.take() else { return Ok(()) };
            match self.connection.ask(&["EVALSHA", &self.script, "1", &lock, &self.owner]).await? {
                RedisReply::Number(1) => Ok(()),
                _ => Err(BenchProblem::wrong(format!("redis: {lock} was set, and is gone"))),
            }
        }
        .boxed()
    }

    fn hold<'a>(&'a mut self, lock: &'a str, ttl: Duration) -> SystemAnswer<'a, HeldLock> {
        async move {
            self.set(lock, ttl).await?;
            Ok(HeldLock { token: None, lease: None })
        }
        .boxed()
    }

    fn close(self: Box<Self>) -> SystemAnswer<'static, ()> {
        async { Ok(()) }.boxed()
    }
}

/// What Redis answers.
#[derive(Debug, PartialEq, Eq)]
enum RedisReply {
    Nothing,
    Number(i64),
    Text(String),
    Many(Vec<RedisReply>),
}

/// More than any text that is expected.
const LENGTH_MAX: i64 = 1 << 20;

struct RedisConnection(BufStream<TcpStream>);

impl RedisConnection {
    async fn open(address: &str) -> Result<Self, BenchProblem> {
        let broken = |error: std::io::Error| BenchProblem::failed(format!("redis at {address}: {error}"));
        let stream = TcpStream::connect(address).await.map_err(broken)?;
        stream.set_nodelay(true).map_err(broken)?;
        Ok(Self(BufStream::new(stream)))
    }

    async fn ask(&mut self, words: &[&str]) -> Result<RedisReply, BenchProblem> {
        let broken = |error: std::io::Error| BenchProblem::failed(format!("redis: {error}"));
        let asking = async {
            self.0.write_all(&encoded(words)).await.map_err(broken)?;
            self.0.flush().await.map_err(broken)?;
            self.reply().await
        };
        timeout(PATIENCE, asking).await.map_err(|_| BenchProblem::failed("redis does not answer"))?
    }

    fn reply(&mut self) -> BoxFuture<'_, Result<RedisReply, BenchProblem>> {
        async move {
            let broken = |error: std::io::Error| BenchProblem::failed(format!("redis: {error}"));
            let mut line = String::new();
            if self.0.read_line(&mut line).await.map_err(broken)? == 0 {
                return Err(BenchProblem::failed("redis has closed the connection"));
            }
            let strange = || BenchProblem::failed(format!("redis: an answer that nobody knows: {line:?}"));
            let (kind, rest) = line.trim_end().split_at_checked(1).ok_or_else(strange)?;
            let number = || rest.parse::<i64>().map_err(|_| strange());
            match kind {
                "+" => Ok(RedisReply::Text(rest.to_owned())),
                "-" => Err(BenchProblem::failed(format!("redis: {rest}"))),
                ":" => Ok(RedisReply::Number(number()?)),
                "$" => match number()? {
                    ..0 => Ok(RedisReply::Nothing),
                    length @ 0..LENGTH_MAX => {
                        let length = usize::try_from(length).unwrap_or_default();
                        let mut bytes = vec![0; length + 2]; // with the end of the line
                        self.0.read_exact(&mut bytes).await.map_err(broken)?;
                        bytes.truncate(length);
                        Ok(RedisReply::Text(String::from_utf8_lossy(&bytes).into_owned()))
                    }
                    _ => Err(strange()),
                },
                "*" => {
                    let mut many = Vec::new();
                    for _ in 0..number()? {
                        many.push(self.reply().await?);
                    }
                    Ok(RedisReply::Many(many))
                }
                _ => Err(strange()),
            }
        }
        .boxed()
    }
}

fn encoded(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).into_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_arrays_of_texts_with_their_lengths() {
        assert_eq!(encoded(&["SET", "é"]), "*2\r\n$3\r\nSET\r\n$2\r\né\r\n".as_bytes());
    }

    /// What a client makes of these bytes.
    async fn heard(bytes: &'static [u8]) -> Result<RedisReply, BenchProblem> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let answering = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(bytes).await.unwrap();
        };
        let asking = async { RedisConnection::open(&address).await?.reply().await };
        futures::future::join(answering, asking).await.1
    }

    #[tokio::test]
    async fn replies_of_every_kind_are_understood() {
        let text = |text: &str| RedisReply::Text(text.to_owned());
        assert_eq!(heard(b"+OK\r\n").await.unwrap(), text("OK"));
        assert_eq!(heard(b":1\r\n").await.unwrap(), RedisReply::Number(1));
        assert_eq!(heard(b"$-1\r\n").await.unwrap(), RedisReply::Nothing);
        let two = RedisReply::Many(vec![text("a\r\n"), RedisReply::Number(2)]);
        assert_eq!(heard(b"*2\r\n$3\r\na\r\n\r\n:2\r\n").await.unwrap(), two);
        assert_eq!(heard(b"-ERR no\r\n").await.unwrap_err().to_string(), "redis: ERR no");
    }

    #[tokio::test]
    async fn nonsense_is_an_error() {
        for bytes in [&b"?\r\n"[..], b"", b"$9\r\na\r\n", b":x\r\n", b"$99999999999\r\n", b"\xff\r\n"] {
            assert!(heard(bytes).await.is_err(), "{bytes:?}");
        }
    }
}
