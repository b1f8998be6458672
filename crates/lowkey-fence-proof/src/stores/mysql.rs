//! A log in MariaDB.

use futures::FutureExt as _;
use futures::future::BoxFuture;
use lowkey_fence::{Fence, Marks, MysqlFence, Resource, Token};
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, OptsBuilder, TxOpts};

use super::{Entry, Holder, Stop, Store, Way, answer, pass};
use crate::Failure;
use crate::servers::Server;

pub(super) struct Mysql {
    server: Server,
}

impl Mysql {
    pub(super) async fn new(server: Server) -> Result<Self, Failure> {
        let mut connection = connect(&server).await?;
        MysqlFence::install(&mut connection).await?;
        let table =
            "CREATE TABLE log (number BIGINT AUTO_INCREMENT PRIMARY KEY, resource VARCHAR(512) NOT NULL,
                                       entry VARCHAR(128) NOT NULL, KEY (resource)) ENGINE = InnoDB";
        connection.query_drop(table).await?;
        Ok(Self { server })
    }
}

async fn connect(server: &Server) -> Result<Conn, Failure> {
    let options =
        OptsBuilder::default().socket(Some(&server.address)).user(Some("root")).db_name(Some("proof"));
    Ok(Conn::new(options).await?)
}

impl Store for Mysql {
    fn connect<'a>(&'a self, resource: &'a str) -> BoxFuture<'a, Result<Box<dyn Holder>, Failure>> {
        async move {
            let connection = connect(&self.server).await?;
            let fence = MysqlFence::new(Resource::parse(resource)?);
            Ok(Box::new(MysqlHolder { connection, resource: resource.to_owned(), fence }) as Box<dyn Holder>)
        }
        .boxed()
    }
}

struct MysqlHolder {
    connection: Conn,
    resource: String,
    fence: MysqlFence,
}

const INSERT: &str = "INSERT INTO log (resource, entry) VALUES (?, ?)";

impl MysqlHolder {
    async fn write_fenced(&mut self, fence: &Fence, id: u64, stop: Stop) -> Result<bool, Failure> {
        let mut stop = Some(stop);
        // Every other one stops before its transaction instead of in it.
        if id.is_multiple_of(2) {
            pass(&mut stop).await?;
        }
        let mut transaction = match self.fence.begin(&mut self.connection, fence).await {
            Ok(transaction) => transaction,
            Err(error) => return answer::<(), _>(Err(error)),
        };
        pass(&mut stop).await?;
        transaction.exec_drop(INSERT, (&self.resource, Entry::new(id, fence).to_string())).await?;
        transaction.commit().await?;
        Ok(true)
    }

    async fn write_naively(&mut self, fence: &Fence, id: u64, stop: Stop) -> Result<bool, Failure> {
        let mut marks = self.read_marks().await?;
        if !marks.accept(fence.token(), fence.mode()) {
            return Ok(false);
        }
        pass(&mut Some(stop)).await?;
        let mut transaction = self.connection.start_transaction(TxOpts::default()).await?;
        transaction.exec_drop(INSERT, (&self.resource, Entry::new(id, fence).to_string())).await?;
        let update = "UPDATE lowkey_fence SET `exclusive` = ?, `shared` = ? WHERE resource = ?";
        transaction.exec_drop(update, (marks.exclusive.0, marks.shared.0, &self.resource)).await?;
        transaction.commit().await?;
        Ok(true)
    }

    async fn read_marks(&mut self) -> Result<Marks, Failure> {
        let select = "SELECT `exclusive`, `shared` FROM lowkey_fence WHERE resource = ?";
        let row: Option<(u64, u64)> = self.connection.exec_first(select, (&self.resource,)).await?;
        let (exclusive, shared) = row.unwrap_or_default();
        Ok(Marks { exclusive: Token(exclusive), shared: Token(shared) })
    }
}

impl Holder for MysqlHolder {
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
            let select = "SELECT entry FROM log WHERE resource = ? ORDER BY number";
            let rows: Vec<String> = self.connection.exec(select, (&self.resource,)).await?;
            rows.iter().map(|row| row.parse()).collect()
        }
        .boxed()
    }

    fn marks(&mut self) -> BoxFuture<'_, Result<Marks, Failure>> {
        self.read_marks().boxed()
    }
}
