//! MySQL and MariaDB, by way of `mysql_async`.
//!
//! The procedure `lowkey_fence` of [`crate::sql`] raises what may rise and then compares on the locked row. A plain
//! `SELECT` would read the transaction's snapshot, which is old; `INSERT IGNORE` with `FOR UPDATE` can deadlock.

use lowkey_token::{Fence, Mode};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Transaction, TxOpts};

use crate::marks::signed;
use crate::refusal::{FenceError, Refusal};
use crate::resource::Resource;
use crate::sql::{self, Dialect};

/// Keeps two installations from replacing the procedure at once.
const INSTALL_LOCK: &str = "lowkey_fence_install";

/// A resource in MySQL or MariaDB: rows, tables, or all of a database that one lock protects.
///
/// Its tables must be InnoDB: others know no transactions.
///
/// ```no_run
/// # async fn example(
/// #     conn: &mut mysql_async::Conn,
/// #     fence: lowkey_fence::Fence,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// use lowkey_fence::{MysqlFence, Resource};
/// use mysql_async::prelude::Queryable;
///
/// MysqlFence::install(conn).await?; // once, or by `lowkey fence sql mysql`
///
/// let accounts = MysqlFence::new(Resource::parse("accounts")?);
/// let mut transaction = accounts.begin(conn, &fence).await?; // the check
/// transaction.query_drop("UPDATE accounts SET balance = balance - 10 WHERE id = 7").await?;
/// transaction.commit().await?; // until here other holders wait
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct MysqlFence {
    resource: Resource,
}

impl MysqlFence {
    /// Names the resource. Nothing is asked of the database yet.
    pub fn new(resource: Resource) -> Self {
        Self { resource }
    }

    /// Creates the table and the procedure, or brings them up to date. A fenced write in that very moment fails,
    /// and may be tried again.
    pub async fn install(conn: &mut Conn) -> Result<(), Error> {
        conn.exec_drop("DO GET_LOCK(?, 60)", (INSTALL_LOCK,)).await?;
        let mut outcome = Ok(());
        for statement in Dialect::Mysql.statements() {
            outcome = conn.query_drop(statement).await;
            if outcome.is_err() {
                break;
            }
        }
        conn.exec_drop("DO RELEASE_LOCK(?)", (INSTALL_LOCK,)).await?;
        outcome
    }

    /// Presents the token in a transaction of its own, before anything is read. From its end on no earlier holder
    /// writes. Not needed where one transaction reads and writes: [`MysqlFence::begin`].
    pub async fn claim(&self, conn: &mut Conn, fence: &Fence) -> Result<(), FenceError<Error>> {
        self.begin(conn, fence).await?.commit().await.map_err(FenceError::Store)
    }

    /// Begins a transaction, and presents the token in it. Read and write in this transaction.
    pub async fn begin<'a>(
        &self,
        conn: &'a mut Conn,
        fence: &Fence,
    ) -> Result<Transaction<'a>, FenceError<Error>> {
        let mut transaction = conn.start_transaction(TxOpts::default()).await.map_err(FenceError::Store)?;
        match self.present(&mut transaction, fence).await {
            Ok(()) => Ok(transaction),
            Err(error) => {
                // What counts is why it failed. A transaction that cannot be rolled back ends with its connection.
                let _ = transaction.rollback().await;
                Err(error)
            }
        }
    }

    /// Presents the token in a transaction that has begun. Do so before its first read: what was read before may
    /// be old, and stays so. **Roll back after a refusal**: MySQL undoes the statement, and not the transaction.
    pub async fn present(
        &self,
        transaction: &mut Transaction<'_>,
        fence: &Fence,
    ) -> Result<(), FenceError<Error>> {
        let (token, is_shared) = (signed(fence)?, fence.mode() == Mode::Shared);
        let arguments = (self.resource.as_str(), token, is_shared);
        match transaction.exec_drop("CALL lowkey_fence(?, ?, ?)", arguments).await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.refusal(fence, &error).map_or(FenceError::Store(error), Into::into)),
        }
    }

    /// What an error of the database says, if it is a refusal.
    fn refusal(&self, fence: &Fence, error: &Error) -> Option<Refusal> {
        match error {
            Error::Server(error) if error.state == sql::REFUSED => {
                Some(Refusal::new(&self.resource, fence, sql::marks_in(&error.message)))
            }
            _ => None,
        }
    }
}
