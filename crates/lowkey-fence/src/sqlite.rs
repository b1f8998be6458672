//! SQLite, by way of `rusqlite`.
//!
//! The transaction is `BEGIN IMMEDIATE`: it is the one writer from its first statement on, so check and write are
//! one step. A deferred transaction would read the marks first and become a writer later, or fail to.

use lowkey_token::{Fence, Mode, Token};
use rusqlite::{Connection, Error, Transaction, TransactionBehavior};

use crate::marks::{Marks, signed};
use crate::refusal::{FenceError, Refusal};
use crate::resource::Resource;
use crate::sql::Dialect;

/// How a refusal of the trigger begins.
const STALE: &str = "STALE_TOKEN";

/// A resource in SQLite: rows, tables, or all of a file that one lock protects.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use lowkey_fence::{Fence, Mode, Resource, SqliteFence, Token};
///
/// let mut connection = rusqlite::Connection::open_in_memory()?;
/// connection.execute_batch("CREATE TABLE accounts (balance INTEGER); INSERT INTO accounts VALUES (100)")?;
/// SqliteFence::install(&mut connection)?; // once, or by `lowkey fence sql sqlite`
///
/// let accounts = SqliteFence::new(Resource::parse("accounts")?);
/// let fence = Fence::new("billing", Token(34), Mode::Exclusive); // or guard.fence()
/// let transaction = accounts.begin(&mut connection, &fence)?; // the check
/// transaction.execute("UPDATE accounts SET balance = balance - 10", [])?;
/// transaction.commit()?;
///
/// let late = Fence::new("billing", Token(33), Mode::Exclusive);
/// assert!(accounts.begin(&mut connection, &late).is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SqliteFence {
    resource: Resource,
}

impl SqliteFence {
    /// Names the resource. Nothing is asked of the database yet.
    pub fn new(resource: Resource) -> Self {
        Self { resource }
    }

    /// Creates the table, the view and its trigger, or brings them up to date.
    pub fn install(connection: &mut Connection) -> Result<(), Error> {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute_batch(Dialect::Sqlite.install())?;
        transaction.commit()
    }

    /// Presents the token in a transaction of its own, before anything is read. From its end on no earlier holder
    /// writes. Not needed where one transaction reads and writes: [`SqliteFence::begin`].
    pub fn claim(&self, connection: &mut Connection, fence: &Fence) -> Result<(), FenceError<Error>> {
        self.begin(connection, fence)?.commit().map_err(FenceError::Store)
    }

    /// Begins an immediate transaction, and presents the token in it. Read and write in this transaction.
    ///
    /// Other writers make it wait: set `Connection::busy_timeout`.
    pub fn begin<'a>(
        &self,
        connection: &'a mut Connection,
        fence: &Fence,
    ) -> Result<Transaction<'a>, FenceError<Error>> {
        let transaction = connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(FenceError::Store)?;
        self.present(&transaction, fence)?;
        Ok(transaction)
    }

    /// Presents the token in a transaction that has begun, with `BEGIN IMMEDIATE`. Roll back after a refusal.
    pub fn present(&self, transaction: &Transaction<'_>, fence: &Fence) -> Result<(), FenceError<Error>> {
        let (token, is_shared) = (signed(fence)?, fence.mode() == Mode::Shared);
        let insert = "INSERT INTO lowkey_present (resource, token, shared) VALUES (?1, ?2, ?3)";
        let outcome = transaction
            .prepare_cached(insert)
            .and_then(|mut insert| insert.execute((self.resource.as_str(), token, i64::from(is_shared))));
        match outcome {
            Ok(_) => Ok(()),
            Err(Error::SqliteFailure(_, Some(message))) if message.starts_with(STALE) => {
                let marks = self.marks(transaction).map_err(FenceError::Store)?;
                Err(Refusal::new(&self.resource, fence, marks).into())
            }
            Err(error) => Err(FenceError::Store(error)),
        }
    }

    fn marks(&self, transaction: &Transaction<'_>) -> Result<Marks, Error> {
        let select = "SELECT exclusive, shared FROM lowkey_fence WHERE resource = ?1";
        transaction.query_row(select, [self.resource.as_str()], |row| {
            let mark = |column| row.get::<_, i64>(column).map(|mark| Token(mark.unsigned_abs()));
            Ok(Marks { exclusive: mark(0)?, shared: mark(1)? })
        })
    }
}
