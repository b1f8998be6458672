//! PostgreSQL, by way of `tokio-postgres`.
//!
//! The function `lowkey_fence` of [`crate::sql`] upserts the marks first in the transaction that writes. Its row
//! lock lasts until the commit, so check and write are one step, at every isolation level. A plain `SELECT` of the
//! marks followed by an `UPDATE` would not be: under READ COMMITTED both of two holders pass it.

use lowkey_token::{Fence, Mode};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, GenericClient, Transaction};

use crate::marks::signed;
use crate::refusal::{FenceError, Refusal};
use crate::resource::Resource;
use crate::sql::{self, Dialect};

/// Keeps two installations from creating the same table at once.
const INSTALL_LOCK: i64 = 0x6c6f_776b_6579;

/// A resource in PostgreSQL: rows, tables, or all of a database that one lock protects.
///
/// ```no_run
/// # async fn example(
/// #     client: &mut tokio_postgres::Client,
/// #     fence: lowkey_fence::Fence,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// use lowkey_fence::{PostgresFence, Resource};
///
/// PostgresFence::install(client).await?; // once, or by `lowkey fence sql postgres`
///
/// let accounts = PostgresFence::new(Resource::parse("accounts")?);
/// let transaction = accounts.begin(client, &fence).await?; // the check
/// transaction.execute("UPDATE accounts SET balance = balance - 10 WHERE id = 7", &[]).await?;
/// transaction.commit().await?; // until here other holders wait
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct PostgresFence {
    resource: Resource,
}

impl PostgresFence {
    /// Names the resource. Nothing is asked of the database yet.
    pub fn new(resource: Resource) -> Self {
        Self { resource }
    }

    /// Creates the table and the functions, or brings them up to date.
    pub async fn install(client: &mut Client) -> Result<(), Error> {
        let transaction = client.transaction().await?;
        transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&INSTALL_LOCK]).await?;
        transaction.batch_execute(Dialect::Postgres.install()).await?;
        transaction.commit().await
    }

    /// Presents the token in a transaction of its own, before anything is read. From its end on no earlier holder
    /// writes. Not needed where one transaction reads and writes: [`PostgresFence::begin`].
    pub async fn claim(&self, client: &Client, fence: &Fence) -> Result<(), FenceError<Error>> {
        self.ask(client, fence).await
    }

    /// Begins a transaction, and presents the token in it. Read and write in this transaction.
    pub async fn begin<'a>(
        &self,
        client: &'a mut Client,
        fence: &Fence,
    ) -> Result<Transaction<'a>, FenceError<Error>> {
        let transaction = client.transaction().await.map_err(FenceError::Store)?;
        self.present(&transaction, fence).await?;
        Ok(transaction)
    }

    /// Presents the token in a transaction that has begun. Do so before its first read: what was read before may
    /// be old. A refusal aborts the transaction.
    pub async fn present(
        &self,
        transaction: &Transaction<'_>,
        fence: &Fence,
    ) -> Result<(), FenceError<Error>> {
        self.ask(transaction, fence).await
    }

    async fn ask(&self, client: &impl GenericClient, fence: &Fence) -> Result<(), FenceError<Error>> {
        let (token, is_shared) = (signed(fence)?, fence.mode() == Mode::Shared);
        // With their types, so that no round trip is spent on preparing the statement.
        let arguments: [(&(dyn ToSql + Sync), Type); 3] =
            [(&self.resource.as_str(), Type::TEXT), (&token, Type::INT8), (&is_shared, Type::BOOL)];
        match client.query_typed("SELECT lowkey_fence($1, $2, $3)", &arguments).await {
            Ok(_) => Ok(()),
            Err(error) => Err(self.refusal(fence, &error).map_or(FenceError::Store(error), Into::into)),
        }
    }

    /// What an error of the database says, if it is a refusal.
    fn refusal(&self, fence: &Fence, error: &Error) -> Option<Refusal> {
        let error = error.as_db_error().filter(|error| error.code().code() == sql::REFUSED)?;
        Some(Refusal::new(&self.resource, fence, sql::marks_in(error.detail().unwrap_or_default())))
    }
}
