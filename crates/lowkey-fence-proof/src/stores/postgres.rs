//! A log in PostgreSQL.

use futures::FutureExt as _;
use futures::future::BoxFuture;
use lowkey_fence::{Fence, Marks, PostgresFence, Resource, Token};
use tokio::task::AbortHandle;
use tokio_postgres::{Client, NoTls};

use super::{Entry, Holder, Stop, Store, Way, answer, pass};
use crate::Failure;
use crate::servers::Server;

pub(super) struct Postgres {
    server: Server,
}

/// A connection, which ends at once when this is dropped.
pub(crate) struct Connected {
    pub(crate) client: Client,
    connection: AbortHandle,
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

pub(crate) async fn connect(address: &str) -> Result<Connected, Failure> {
    let (client, connection) = tokio_postgres::connect(address, NoTls).await?;
    Ok(Connected { client, connection: tokio::spawn(connection).abort_handle() })
}

impl Postgres {
    pub(super) async fn new(server: Server) -> Result<Self, Failure> {
        let mut connected = connect(&server.address).await?;
        PostgresFence::install(&mut connected.client).await?;
        let table =
            "CREATE TABLE log (number bigserial PRIMARY KEY, resource text NOT NULL, entry text NOT NULL);
                     CREATE INDEX ON log (resource)";
        connected.client.batch_execute(table).await?;
        Ok(Self { server })
    }
}

impl Store for Postgres {
    fn connect<'a>(&'a self, resource: &'a str) -> BoxFuture<'a, Result<Box<dyn Holder>, Failure>> {
        async move {
            let connected = connect(&self.server.address).await?;
            let fence = PostgresFence::new(Resource::parse(resource)?);
            let holder = PostgresHolder { connected, resource: resource.to_owned(), fence };
            Ok(Box::new(holder) as Box<dyn Holder>)
        }
        .boxed()
    }
}

struct PostgresHolder {
    connected: Connected,
    resource: String,
    fence: PostgresFence,
}

impl PostgresHolder {
    async fn write_fenced(&mut self, fence: &Fence, id: u64, stop: Stop) -> Result<bool, Failure> {
        let mut stop = Some(stop);
        // Every other one stops before its transaction instead of in it.
        if id.is_multiple_of(2) {
            pass(&mut stop).await?;
        }
        let transaction = match self.fence.begin(&mut self.connected.client, fence).await {
            Ok(transaction) => transaction,
            Err(error) => return answer::<(), _>(Err(error)),
        };
        pass(&mut stop).await?;
        let entry = Entry::new(id, fence).to_string();
        let insert = "INSERT INTO log (resource, entry) VALUES ($1, $2)";
        transaction.execute(insert, &[&self.resource, &entry]).await?;
        transaction.commit().await?;
        Ok(true)
    }

    async fn write_naively(&mut self, fence: &Fence, id: u64, stop: Stop) -> Result<bool, Failure> {
        let mut marks = self.read_marks().await?;
        if !marks.accept(fence.token(), fence.mode()) {
            return Ok(false);
        }
        pass(&mut Some(stop)).await?;
        let transaction = self.connected.client.transaction().await?;
        let entry = Entry::new(id, fence).to_string();
        let insert = "INSERT INTO log (resource, entry) VALUES ($1, $2)";
        transaction.execute(insert, &[&self.resource, &entry]).await?;
        let update = "UPDATE lowkey_fence SET exclusive = $2, shared = $3 WHERE resource = $1";
        let (exclusive, shared) = (marks.exclusive.0.cast_signed(), marks.shared.0.cast_signed());
        transaction.execute(update, &[&self.resource, &exclusive, &shared]).await?;
        transaction.commit().await?;
        Ok(true)
    }

    async fn read_marks(&self) -> Result<Marks, Failure> {
        let select = "SELECT exclusive, shared FROM lowkey_fence WHERE resource = $1";
        let row = self.connected.client.query_opt(select, &[&self.resource]).await?;
        let mark = |column| row.as_ref().map_or(0, |row| row.get::<_, i64>(column)).cast_unsigned();
        Ok(Marks { exclusive: Token(mark(0)), shared: Token(mark(1)) })
    }
}

impl Holder for PostgresHolder {
    fn claim<'a>(&'a mut self, fence: &'a Fence) -> BoxFuture<'a, Result<bool, Failure>> {
        async move { answer(self.fence.claim(&self.connected.client, fence).await) }.boxed()
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
            let select = "SELECT entry FROM log WHERE resource = $1 ORDER BY number";
            let rows = self.connected.client.query(select, &[&self.resource]).await?;
            rows.iter().map(|row| row.get::<_, &str>(0).parse()).collect()
        }
        .boxed()
    }

    fn marks(&mut self) -> BoxFuture<'_, Result<Marks, Failure>> {
        self.read_marks().boxed()
    }
}
