//! A log in Redis.

use futures::FutureExt as _;
use futures::future::BoxFuture;
use lowkey_fence::{Fence, Marks, RedisFence, RedisWrite, Resource, Token};
use redis::aio::MultiplexedConnection;
use redis::{Client, cmd};

use super::{Entry, Holder, Stop, Store, Way, answer, pass};
use crate::Failure;
use crate::servers::Server;

pub(super) struct Redis {
    client: Client,
    _server: Server,
}

impl Redis {
    pub(super) async fn new(server: Server) -> Result<Self, Failure> {
        let client = Client::open(server.address.as_str())?;
        RedisFence::check_server(&mut client.get_multiplexed_async_connection().await?).await?;
        Ok(Self { client, _server: server })
    }
}

impl Store for Redis {
    fn connect<'a>(&'a self, resource: &'a str) -> BoxFuture<'a, Result<Box<dyn Holder>, Failure>> {
        async move {
            let connection = self.client.get_multiplexed_async_connection().await?;
            let fence = RedisFence::new(Resource::parse(resource)?)?;
            let append = RedisWrite::new("return redis.call('RPUSH', KEYS[1], ARGV[1])");
            let holder = RedisHolder { connection, log: fence.key("log"), fence, append };
            Ok(Box::new(holder) as Box<dyn Holder>)
        }
        .boxed()
    }
}

struct RedisHolder {
    connection: MultiplexedConnection,
    log: String,
    fence: RedisFence,
    append: RedisWrite,
}

impl RedisHolder {
    async fn write_fenced(&mut self, fence: &Fence, id: u64, stop: Stop) -> Result<bool, Failure> {
        pass(&mut Some(stop)).await?;
        let (keys, arguments) = ([&self.log], [Entry::new(id, fence).to_string()]);
        let outcome = self.fence.write::<i64>(&mut self.connection, fence, &self.append, &keys, &arguments);
        answer(outcome.await)
    }

    async fn write_naively(&mut self, fence: &Fence, id: u64, stop: Stop) -> Result<bool, Failure> {
        let mut marks = self.read_marks().await?;
        if !marks.accept(fence.token(), fence.mode()) {
            return Ok(false);
        }
        pass(&mut Some(stop)).await?;
        let entry = Entry::new(id, fence).to_string();
        let mut both = redis::pipe();
        both.atomic().cmd("RPUSH").arg(&self.log).arg(entry).ignore();
        both.cmd("HSET").arg(self.fence.marks_key());
        both.arg("exclusive").arg(marks.exclusive.0).arg("shared").arg(marks.shared.0).ignore();
        both.query_async::<()>(&mut self.connection).await?;
        Ok(true)
    }

    async fn read_marks(&mut self) -> Result<Marks, Failure> {
        let fields = cmd("HMGET").arg(self.fence.marks_key()).arg("exclusive").arg("shared").to_owned();
        let (exclusive, shared): (Option<u64>, Option<u64>) =
            fields.query_async(&mut self.connection).await?;
        Ok(Marks { exclusive: Token(exclusive.unwrap_or(0)), shared: Token(shared.unwrap_or(0)) })
    }
}

impl Holder for RedisHolder {
    fn claim<'a>(&'a mut self, fence: &'a Fence) -> BoxFuture<'a, Result<bool, Failure>> {
        async move { answer(self.fence.claim(&mut self.connection, fence).await) }.boxed()
    }

    fn write<'a>(
        &'a mut self,
        fence: &'a Fence,
        id: u64,
        way: Way,
        stop: Stop,
    ) -> BoxFuture<'a, Result<bool, Failure>> {
        match way {
            Way::Fenced => self.write_fenced(fence, id, stop).boxed(),
            Way::Naive => self.write_naively(fence, id, stop).boxed(),
        }
    }

    fn log(&mut self) -> BoxFuture<'_, Result<Vec<Entry>, Failure>> {
        async move {
            let all = cmd("LRANGE").arg(&self.log).arg(0).arg(-1).to_owned();
            let entries: Vec<String> = all.query_async(&mut self.connection).await?;
            entries.iter().map(|entry| entry.parse()).collect()
        }
        .boxed()
    }

    fn marks(&mut self) -> BoxFuture<'_, Result<Marks, Failure>> {
        self.read_marks().boxed()
    }
}
