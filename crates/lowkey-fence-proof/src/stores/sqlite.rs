//! A log in SQLite.

use std::path::PathBuf;
use std::time::Duration;

use futures::FutureExt as _;
use futures::executor::block_on;
use futures::future::BoxFuture;
use lowkey_fence::{Fence, Marks, Resource, SqliteFence, Token};
use rusqlite::{Connection, OptionalExtension as _};
use tempfile::TempDir;

use super::{Entry, Holder, Stop, Store, Way, answer, pass};
use crate::Failure;

/// How long a writer waits for others: much longer than any experiment keeps one waiting.
const BUSY_WAIT: Duration = Duration::from_secs(60);

pub(super) struct Sqlite {
    folder: TempDir,
}

impl Sqlite {
    pub(super) fn new() -> Result<Self, Failure> {
        let store = Self { folder: tempfile::Builder::new().prefix("lowkey-proof-").tempdir()? };
        let mut connection = open(&store.file())?;
        SqliteFence::install(&mut connection)?;
        let table = "PRAGMA journal_mode = WAL;
                     CREATE TABLE log (number INTEGER PRIMARY KEY AUTOINCREMENT, resource TEXT, entry TEXT);
                     CREATE INDEX log_resource ON log (resource)";
        connection.execute_batch(table)?;
        Ok(store)
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("database")
    }
}

fn open(file: &PathBuf) -> Result<Connection, Failure> {
    let connection = Connection::open(file)?;
    connection.busy_timeout(BUSY_WAIT)?;
    Ok(connection)
}

impl Store for Sqlite {
    fn connect<'a>(&'a self, resource: &'a str) -> BoxFuture<'a, Result<Box<dyn Holder>, Failure>> {
        async move {
            let fence = SqliteFence::new(Resource::parse(resource)?);
            let inner = Some(Inner { connection: open(&self.file())?, resource: resource.to_owned(), fence });
            Ok(Box::new(SqliteHolder { inner }) as Box<dyn Holder>)
        }
        .boxed()
    }
}

/// It blocks its thread, so it works on one of its own.
struct SqliteHolder {
    /// `None` while a thread has it, and for ever after a crash.
    inner: Option<Inner>,
}

struct Inner {
    connection: Connection,
    resource: String,
    fence: SqliteFence,
}

impl SqliteHolder {
    async fn work<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Inner) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let mut inner = self.inner.take().ok_or("it has crashed")?;
        let (inner, outcome) = tokio::task::spawn_blocking(move || {
            let outcome = work(&mut inner);
            (inner, outcome)
        })
        .await?;
        self.inner = Some(inner);
        outcome
    }
}

impl Inner {
    fn write_fenced(&mut self, fence: &Fence, id: u64, stop: Stop) -> Result<bool, Failure> {
        let mut stop = Some(stop);
        // Every other one stops before its transaction instead of in it.
        if id.is_multiple_of(2) {
            block_on(pass(&mut stop))?;
        }
        let transaction = match self.fence.begin(&mut self.connection, fence) {
            Ok(transaction) => transaction,
            Err(error) => return answer::<(), _>(Err(error)),
        };
        block_on(pass(&mut stop))?;
        let entry = Entry::new(id, fence).to_string();
        transaction.execute("INSERT INTO log (resource, entry) VALUES (?1, ?2)", (&self.resource, entry))?;
        transaction.commit()?;
        Ok(true)
    }

    fn write_naively(&mut self, fence: &Fence, id: u64, stop: Stop) -> Result<bool, Failure> {
        let mut marks = self.read_marks()?;
        if !marks.accept(fence.token(), fence.mode()) {
            return Ok(false);
        }
        block_on(pass(&mut Some(stop)))?;
        let entry = Entry::new(id, fence).to_string();
        let transaction = self.connection.transaction()?;
        transaction.execute("INSERT INTO log (resource, entry) VALUES (?1, ?2)", (&self.resource, entry))?;
        let update = "UPDATE lowkey_fence SET exclusive = ?1, shared = ?2 WHERE resource = ?3";
        let (exclusive, shared) = (marks.exclusive.0.cast_signed(), marks.shared.0.cast_signed());
        transaction.execute(update, (exclusive, shared, &self.resource))?;
        transaction.commit()?;
        Ok(true)
    }

    fn read_marks(&self) -> Result<Marks, Failure> {
        let select = "SELECT exclusive, shared FROM lowkey_fence WHERE resource = ?1";
        let marks = self.connection.query_row(select, [&self.resource], |row| {
            let mark = |column| row.get::<_, i64>(column).map(|mark| Token(mark.cast_unsigned()));
            Ok(Marks { exclusive: mark(0)?, shared: mark(1)? })
        });
        Ok(marks.optional()?.unwrap_or_default())
    }

    fn read_log(&self) -> Result<Vec<Entry>, Failure> {
        let select = "SELECT entry FROM log WHERE resource = ?1 ORDER BY number";
        let mut select = self.connection.prepare(select)?;
        let rows = select.query_map([&self.resource], |row| row.get::<_, String>(0))?;
        rows.map(|row| row?.parse()).collect()
    }
}

impl Holder for SqliteHolder {
    fn claim<'a>(&'a mut self, fence: &'a Fence) -> BoxFuture<'a, Result<bool, Failure>> {
        let fence = fence.clone();
        self.work(move |inner| answer(inner.fence.claim(&mut inner.connection, &fence))).boxed()
    }

    fn write<'a>(
        &'a mut self,
        fence: &'a Fence,
        id: u64,
        way: Way,
        stop: Stop,
    ) -> BoxFuture<'a, Result<bool, Failure>> {
        let fence = fence.clone();
        self.work(move |inner| match way {
            Way::Fenced => inner.write_fenced(&fence, id, stop),
            Way::Naive => inner.write_naively(&fence, id, stop),
        })
        .boxed()
    }

    fn log(&mut self) -> BoxFuture<'_, Result<Vec<Entry>, Failure>> {
        self.work(|inner| inner.read_log()).boxed()
    }

    fn marks(&mut self) -> BoxFuture<'_, Result<Marks, Failure>> {
        self.work(|inner| inner.read_marks()).boxed()
    }
}
