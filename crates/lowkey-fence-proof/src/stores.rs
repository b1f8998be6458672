//! The resources under test, all with one face: a log that holders append to.

mod http;
mod mysql;
mod objects;
mod postgres;
mod redis;
mod sqlite;

use std::fmt;
use std::str::FromStr;

use futures::future::BoxFuture;
use lowkey_fence::{Fence, FenceError, Marks, Mode, Refusal};

pub(crate) use self::postgres::{Connected, connect as connect_postgres};
use crate::Failure;
use crate::servers::{self, may_skip};

/// How a holder writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By the adapter.
    Fenced,
    /// Checks the token in one step, and writes in the next.
    Naive,
}

/// Where a writer stops: between its check and its write, or before both where they are one step of the server.
/// `true`: it goes on. `false`: it has crashed, and writes nothing.
pub type Stop = BoxFuture<'static, bool>;

/// For a writer that does not stop.
pub fn no_stop() -> Stop {
    Box::pin(async { true })
}

/// Stops here, if it has not stopped before.
async fn pass(stop: &mut Option<Stop>) -> Result<(), Failure> {
    match stop.take() {
        Some(stop) => stop.await.then_some(()).ok_or_else(|| "crashed".into()),
        None => Ok(()),
    }
}

/// One write, as the resource logs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Which write it was.
    pub id: u64,
    /// The token that it presented.
    pub token: u64,
    /// The mode of that token.
    pub mode: Mode,
}

impl Entry {
    /// What this write logs.
    pub fn new(id: u64, fence: &Fence) -> Self {
        Self { id, token: fence.token().0, mode: fence.mode() }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.id, self.token, self.mode)
    }
}

impl FromStr for Entry {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let mut words = text.split(' ');
        let mut word = || words.next().ok_or_else(|| format!("{text:?} is no entry"));
        Ok(Self { id: word()?.parse()?, token: word()?.parse()?, mode: word()?.parse()? })
    }
}

/// A server, and how to get at resources in it.
pub trait Store: Send + Sync {
    /// A connection of its own to a resource, which is made if it is not there.
    fn connect<'a>(&'a self, resource: &'a str) -> BoxFuture<'a, Result<Box<dyn Holder>, Failure>>;
}

/// One holder's connection to one resource. To drop it in the middle is to crash.
pub trait Holder: Send {
    /// Presents the token. `false`: refused.
    fn claim<'a>(&'a mut self, fence: &'a Fence) -> BoxFuture<'a, Result<bool, Failure>>;

    /// Appends an entry to the log. `false`: refused.
    fn write<'a>(
        &'a mut self,
        fence: &'a Fence,
        id: u64,
        way: Way,
        stop: Stop,
    ) -> BoxFuture<'a, Result<bool, Failure>>;

    /// What was written, in order.
    fn log(&mut self) -> BoxFuture<'_, Result<Vec<Entry>, Failure>>;

    /// What was accepted.
    fn marks(&mut self) -> BoxFuture<'_, Result<Marks, Failure>>;
}

/// The kinds of resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// PostgreSQL.
    Postgres,
    /// MariaDB.
    Mysql,
    /// SQLite.
    Sqlite,
    /// Redis.
    Redis,
    /// An S3 server.
    S3,
    /// A service behind the layer, with a value in memory.
    Http,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Postgres, Self::Mysql, Self::Sqlite, Self::Redis, Self::S3, Self::Http];

    /// Whether a check and an unchecked write can be two steps there.
    pub fn can_be_naive(self) -> bool {
        self != Self::Http
    }

    /// Starts the server, and prepares it.
    pub async fn start(self) -> Result<Box<dyn Store>, Failure> {
        Ok(match self {
            Self::Postgres => Box::new(postgres::Postgres::new(servers::postgres().await?).await?),
            Self::Mysql => Box::new(mysql::Mysql::new(servers::mariadb().await?).await?),
            Self::Sqlite => Box::new(sqlite::Sqlite::new()?),
            Self::Redis => Box::new(redis::Redis::new(servers::redis().await?).await?),
            Self::S3 => Box::new(objects::Objects::new(servers::s3().await?).await?),
            Self::Http => Box::new(http::Service::new().await?),
        })
    }

    /// The same for a test: `None`, with a word, if the server is not installed and may be missing.
    pub async fn start_or_skip(self) -> Option<Box<dyn Store>> {
        match self.start().await {
            Ok(store) => Some(store),
            Err(error) if may_skip(&error) => None,
            Err(error) => panic!("{self:?}: {error}"),
        }
    }
}

/// A refusal is an answer; anything else is a failure.
fn answer<T, E: Into<Failure>>(outcome: Result<T, FenceError<E>>) -> Result<bool, Failure> {
    match outcome {
        Ok(_) => Ok(true),
        Err(FenceError::Refused(refusal)) => told(&refusal),
        Err(FenceError::Store(error)) => Err(error.into()),
        Err(other) => Err(match other {
            FenceError::InvalidToken(invalid) => invalid.into(),
            _ => "an error of a new kind".into(),
        }),
    }
}

/// Every refusal must name the mark that it is below.
fn told(refusal: &Refusal) -> Result<bool, Failure> {
    let is_right = !refusal.marks().allow(refusal.fence().token(), refusal.fence().mode())
        && refusal.accepted() > refusal.fence().token()
        && refusal.to_string().ends_with(Refusal::ADVICE);
    if is_right { Ok(false) } else { Err(format!("a refusal that makes no sense: {refusal}").into()) }
}
