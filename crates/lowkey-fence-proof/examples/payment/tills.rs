//! Where the invoice is, and how it is charged: once for each kind of resource.

use std::sync::Arc;

use lowkey_fence::http::{FenceLayer, Fenced, write_headers};
use lowkey_fence::{
    Fence, FenceError, MemoryFence, ObjectFence, PostgresFence, RedisFence, RedisWrite, Refusal, Resource,
};
use lowkey_fence_proof::Failure;
use lowkey_fence_proof::servers::{self, BUCKET, Server};
use object_store::ObjectStoreExt as _;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use tokio_postgres::NoTls;

/// What came of a charge.
pub enum Charged {
    /// The customer was charged.
    Yes,
    /// The resource refused: the words of the refusal.
    Refused(String),
}

impl Charged {
    fn of<T, E: Into<Failure>>(outcome: Result<T, FenceError<E>>) -> Result<Self, Failure> {
        match outcome {
            Ok(_) => Ok(Self::Yes),
            Err(FenceError::Refused(refusal)) => Ok(Self::Refused(refusal.to_string())),
            Err(FenceError::Store(error)) => Err(error.into()),
            Err(_) => Err("the token is not one".into()),
        }
    }
}

/// The resource that a job writes to.
pub enum Till {
    Postgres(PostgresFence, tokio_postgres::Client),
    Redis(RedisFence, redis::aio::MultiplexedConnection),
    Objects(ObjectFence, AmazonS3),
    Http(String, reqwest::Client),
}

/// What runs while the story is played.
pub enum House {
    Server(Server),
    Service(String),
}

impl House {
    /// Starts the server of this kind.
    pub async fn open(kind: &str) -> Result<Self, Failure> {
        Ok(match kind {
            "postgres" => Self::Server(servers::postgres().await?),
            "redis" => Self::Server(servers::redis().await?),
            "objects" => Self::Server(servers::s3().await?),
            "http" => Self::Service(service().await?),
            _ => return Err(format!("{kind}: it is postgres, redis, objects or http").into()),
        })
    }

    pub fn address(&self) -> &str {
        match self {
            Self::Server(server) => &server.address,
            Self::Service(address) => address,
        }
    }
}

impl Till {
    pub async fn open(kind: &str, address: &str) -> Result<Self, Failure> {
        let invoices = Resource::parse("invoices")?;
        Ok(match kind {
            "postgres" => {
                let (client, connection) = tokio_postgres::connect(address, NoTls).await?;
                tokio::spawn(connection);
                Self::Postgres(PostgresFence::new(invoices), client)
            }
            "redis" => {
                let client = redis::Client::open(address)?;
                Self::Redis(RedisFence::new(invoices)?, client.get_multiplexed_async_connection().await?)
            }
            "objects" => {
                let store = AmazonS3Builder::new()
                    .with_endpoint(address)
                    .with_allow_http(true)
                    .with_bucket_name(BUCKET)
                    .with_access_key_id(BUCKET)
                    .with_secret_access_key(BUCKET)
                    .with_region("us-east-1")
                    .build()?;
                Self::Objects(ObjectFence::new(Arc::new(store.clone()), Path::from("invoices"))?, store)
            }
            _ => Self::Http(address.to_owned(), reqwest::Client::new()),
        })
    }

    /// Puts the invoice there, to be paid.
    pub async fn prepare(&mut self) -> Result<(), Failure> {
        match self {
            Self::Postgres(_, client) => {
                PostgresFence::install(client).await?;
                let tables =
                    "CREATE TABLE invoice (is_paid boolean NOT NULL); INSERT INTO invoice VALUES (false);
                              CREATE TABLE charge (amount bigint NOT NULL)";
                client.batch_execute(tables).await?;
            }
            Self::Redis(_, connection) => RedisFence::check_server(connection).await?,
            Self::Objects(_, store) => ObjectFence::check_store(store, &Path::from("scratch")).await?,
            Self::Http(..) => {}
        }
        Ok(())
    }

    /// The first act of a new holder, before it reads.
    pub async fn claim(&mut self, fence: &Fence) -> Result<(), Failure> {
        match self {
            Self::Postgres(invoices, client) => invoices.claim(client, fence).await?,
            Self::Redis(invoices, connection) => invoices.claim(connection, fence).await?,
            Self::Objects(invoice, _) => invoice.claim(fence).await?,
            Self::Http(address, client) => {
                if let Charged::Refused(why) = send(client, &format!("{address}/claim"), Some(fence)).await? {
                    return Err(why.into());
                }
            }
        }
        Ok(())
    }

    /// How often the customer was charged.
    pub async fn charges(&mut self) -> Result<usize, Failure> {
        Ok(match self {
            Self::Postgres(_, client) => {
                let count: i64 = client.query_one("SELECT count(*) FROM charge", &[]).await?.get(0);
                usize::try_from(count)?
            }
            Self::Redis(invoices, connection) => {
                redis::cmd("LLEN").arg(invoices.key("charges")).query_async(connection).await?
            }
            Self::Objects(invoice, _) => lines(invoice.read().await?.as_deref()),
            Self::Http(address, client) => {
                client.get(format!("{address}/charges")).send().await?.text().await?.parse()?
            }
        })
    }

    /// Charges the customer. Without a fence nobody asks whether the lock is still held.
    pub async fn charge(&mut self, fence: Option<&Fence>) -> Result<Charged, Failure> {
        match self {
            Self::Postgres(invoices, client) => {
                let charge =
                    "WITH paid AS (UPDATE invoice SET is_paid = true) INSERT INTO charge VALUES (10)";
                let Some(fence) = fence else {
                    client.execute(charge, &[]).await?;
                    return Ok(Charged::Yes);
                };
                let transaction = match invoices.begin(client, fence).await {
                    Ok(transaction) => transaction,
                    Err(error) => return Charged::of(Err::<(), _>(error)),
                };
                transaction.execute(charge, &[]).await?;
                transaction.commit().await?;
                Ok(Charged::Yes)
            }
            Self::Redis(invoices, connection) => {
                let charges = invoices.key("charges");
                let Some(fence) = fence else {
                    redis::cmd("RPUSH").arg(charges).arg(10).query_async::<()>(connection).await?;
                    return Ok(Charged::Yes);
                };
                let charge = RedisWrite::new("return redis.call('RPUSH', KEYS[1], ARGV[1])");
                Charged::of(invoices.write::<i64>(connection, fence, &charge, &[charges], &[10]).await)
            }
            Self::Objects(invoice, store) => {
                let one_more =
                    |content: Option<&[u8]>| [content.unwrap_or_default(), b"charge 10\n"].concat();
                let Some(fence) = fence else {
                    let content = one_more(invoice.read().await?.as_deref());
                    store.put(&Path::from("invoices"), content.into()).await?;
                    return Ok(Charged::Yes);
                };
                let change = |content: Option<axum::body::Bytes>| Some(one_more(content.as_deref()).into());
                Charged::of(invoice.update(fence, change).await)
            }
            Self::Http(address, client) => {
                let way = if fence.is_some() { "charge" } else { "charge-unfenced" };
                send(client, &format!("{address}/{way}"), fence).await
            }
        }
    }
}

fn lines(content: Option<&[u8]>) -> usize {
    content.unwrap_or_default().iter().filter(|byte| **byte == b'\n').count()
}

async fn send(client: &reqwest::Client, url: &str, fence: Option<&Fence>) -> Result<Charged, Failure> {
    let mut headers = reqwest::header::HeaderMap::new();
    if let Some(fence) = fence {
        write_headers(fence, &mut headers);
    }
    let answer = client.post(url).headers(headers).send().await?;
    match answer.status() {
        reqwest::StatusCode::OK => Ok(Charged::Yes),
        reqwest::StatusCode::CONFLICT => Ok(Charged::Refused(answer.text().await?)),
        status => Err(format!("{status}: {}", answer.text().await?).into()),
    }
}

/// The service that keeps the invoice: the layer reads the headers, the handler's own store checks the token.
async fn service() -> Result<String, Failure> {
    use axum::Router;
    use axum::extract::State;
    use axum::routing::{get, post};

    type Charges = Arc<MemoryFence<usize>>;

    async fn claim(State(charges): State<Charges>, Fenced(fence): Fenced) -> Result<(), Refusal> {
        charges.claim(&fence)
    }

    async fn charge(State(charges): State<Charges>, Fenced(fence): Fenced) -> Result<(), Refusal> {
        charges.write(&fence, |count| *count += 1)
    }

    /// What a service does that knows of no tokens. Here it needs one that nobody can be late with.
    async fn charge_unfenced(State(charges): State<Charges>) {
        let marks = charges.marks();
        let latest = marks.exclusive.max(marks.shared).max(lowkey_fence::Token(1));
        let anybody = Fence::new("anybody", latest, lowkey_fence::Mode::Exclusive);
        let _ = charges.write(&anybody, |count| *count += 1);
    }

    async fn count(State(charges): State<Charges>) -> String {
        charges.read(usize::to_string)
    }

    let fenced = Router::new().route("/claim", post(claim)).route("/charge", post(charge));
    let service = fenced
        .layer(FenceLayer::required())
        .route("/charge-unfenced", post(charge_unfenced))
        .route("/charges", get(count))
        .with_state(Arc::new(MemoryFence::new(Resource::parse("invoices")?, 0)));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, service).await });
    Ok(address)
}
