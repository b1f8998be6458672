//! Redis and its kin, by way of crate `redis`.
//!
//! One script checks, raises the mark and writes: Redis runs it alone, so this is one step. Tokens are compared as
//! decimal text: numbers in Lua are floating point, and exact only up to 2^53.

use lowkey_token::{Fence, Token};
use redis::aio::ConnectionLike;
use redis::{ErrorKind, FromRedisValue, RedisError, Script, ToRedisArgs, Value, cmd};

use crate::marks::{Marks, signed};
use crate::refusal::{FenceError, Refusal};
use crate::resource::{InvalidResource, Resource};

/// Checks the token and raises its mark, or ends with the marks. What follows is the write.
const CHECK: &str = include_str!("redis/check.lua");

/// A resource in Redis: keys that one lock protects.
///
/// **It forgets at a failover.** Redis replicates asynchronously: a replica that takes over may not have seen the
/// last marks, nor the last writes, and then accepts a token that the old primary would have refused. The same
/// is true of a restart with `appendfsync everysec`. Where that must not happen, keep the marks in a database.
///
/// Keys must lie in the slot of the marks: make them with [`RedisFence::key`].
///
/// ```no_run
/// # async fn example(
/// #     connection: &mut (impl redis::aio::ConnectionLike + Send),
/// #     fence: lowkey_fence::Fence,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// use lowkey_fence::{RedisFence, RedisWrite, Resource};
///
/// RedisFence::check_server(connection).await?; // refuses a server that may evict the marks
/// let accounts = RedisFence::new(Resource::parse("accounts")?)?;
/// accounts.claim(connection, &fence).await?; // before anything is read
///
/// let charge = RedisWrite::new("return redis.call('DECRBY', KEYS[1], ARGV[1])");
/// let balance: i64 = accounts.write(connection, &fence, &charge, &[accounts.key("7")], &[10]).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RedisFence {
    resource: Resource,
    marks: String,
}

/// A write, in Lua. It sees its own `KEYS` and `ARGV`, runs after the check and in one step with it.
///
/// If it fails half-way, Redis keeps what was written until then, and the mark stays raised.
#[derive(Clone, Debug)]
pub struct RedisWrite {
    script: Script,
}

impl RedisWrite {
    /// The body of a Lua function. What it returns is the result.
    pub fn new(body: &str) -> Self {
        Self { script: Script::new(&CHECK.replace("--[[ the write ]]", body)) }
    }
}

impl RedisFence {
    /// Names the resource, without braces: they would change the slot that keys are in.
    pub fn new(resource: Resource) -> Result<Self, InvalidResource> {
        if resource.as_str().contains(['{', '}']) {
            return Err(InvalidResource);
        }
        Ok(Self { marks: format!("lowkey:fence:{{{resource}}}"), resource })
    }

    /// A key in the same slot as the marks, so that one script may use both in a cluster.
    pub fn key(&self, name: impl std::fmt::Display) -> String {
        format!("{{{}}}:{name}", self.resource)
    }

    /// The key of the marks: a hash with the fields `exclusive` and `shared`. Never give it a time to live.
    pub fn marks_key(&self) -> &str {
        &self.marks
    }

    /// Refuses a server that may evict keys without a time to live: it would forget marks when memory is short.
    pub async fn check_server(connection: &mut (impl ConnectionLike + Send)) -> Result<(), RedisError> {
        let info: String = cmd("INFO").arg("memory").query_async(connection).await?;
        let policy = info.lines().find_map(|line| line.trim().strip_prefix("maxmemory_policy:"));
        match policy {
            Some(policy) if policy.starts_with("allkeys-") => Err(RedisError::from((
                ErrorKind::InvalidClientConfig,
                "this server may evict marks: set maxmemory-policy to noeviction or to a volatile- policy",
                policy.to_owned(),
            ))),
            _ => Ok(()),
        }
    }

    /// Presents the token before anything is read. From now on no earlier holder writes.
    pub async fn claim(
        &self,
        connection: &mut (impl ConnectionLike + Send),
        fence: &Fence,
    ) -> Result<(), FenceError<RedisError>> {
        let nothing: [&str; 0] = [];
        self.write(connection, fence, &RedisWrite::new(""), &nothing, &nothing).await
    }

    /// Sets a key.
    pub async fn set(
        &self,
        connection: &mut (impl ConnectionLike + Send),
        fence: &Fence,
        key: &str,
        value: impl ToRedisArgs,
    ) -> Result<(), FenceError<RedisError>> {
        let set = RedisWrite::new("redis.call('SET', KEYS[1], ARGV[1])");
        self.write(connection, fence, &set, &[key], &[value]).await
    }

    /// Writes, if the token is accepted, and returns what the write returned.
    pub async fn write<T: FromRedisValue>(
        &self,
        connection: &mut (impl ConnectionLike + Send),
        fence: &Fence,
        write: &RedisWrite,
        keys: &[impl ToRedisArgs],
        arguments: &[impl ToRedisArgs],
    ) -> Result<T, FenceError<RedisError>> {
        let mut call = write.script.prepare_invoke();
        call.key(&self.marks).arg(signed(fence)?).arg(fence.mode().to_string());
        for key in keys {
            call.key(key);
        }
        for argument in arguments {
            call.arg(argument);
        }
        let answer: Vec<Value> = call.invoke_async(connection).await.map_err(FenceError::Store)?;
        self.read(fence, answer)
    }

    /// Forgets the marks. **Only when no client of the old cluster can write any more**: its token would be
    /// accepted beside the new holder's.
    pub async fn reset(&self, connection: &mut (impl ConnectionLike + Send)) -> Result<(), RedisError> {
        cmd("DEL").arg(&self.marks).query_async(connection).await
    }

    /// `1` and the result, or `0` and both marks.
    fn read<T: FromRedisValue>(
        &self,
        fence: &Fence,
        answer: Vec<Value>,
    ) -> Result<T, FenceError<RedisError>> {
        let mut answer = answer.into_iter();
        let is_accepted = answer.next() == Some(Value::Int(1));
        let mut next = || answer.next().unwrap_or(Value::Nil);
        if is_accepted {
            return T::from_redis_value(next()).map_err(|error| FenceError::Store(error.into()));
        }
        let mut mark = || u64::from_redis_value(next()).map(Token);
        let marks = mark().and_then(|exclusive| Ok(Marks { exclusive, shared: mark()? }));
        let marks = marks.map_err(|error| FenceError::Store(error.into()))?;
        Err(Refusal::new(&self.resource, fence, marks).into())
    }
}
