//! What fencing costs in PostgreSQL: the same transaction with and without the check, in turns, in one run.

use std::fmt;
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use lowkey_fence::{Fence, Mode, PostgresFence, Resource, Token};

use crate::Failure;
use crate::servers;
use crate::stores::{Connected, connect_postgres};

/// How one kind of transaction fared.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Which kind.
    pub name: &'static str,
    /// How many in a second, over all connections.
    pub per_second: f64,
    /// The median of one.
    pub p50: Duration,
    /// What 99 of 100 stay below.
    pub p99: Duration,
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, per_second, p50, p99 } = self;
        write!(f, "{name:<28} {per_second:>8.0} tx/s   p50 {p50:>9.2?}   p99 {p99:>9.2?}")
    }
}

/// The kinds that are compared.
#[derive(Clone, Copy)]
enum Kind {
    Unfenced,
    OwnResource,
    OneResource,
}

impl Kind {
    const ALL: [(Self, &'static str); 3] = [
        (Self::Unfenced, "unfenced"),
        (Self::OwnResource, "fenced, a resource each"),
        (Self::OneResource, "fenced, all on one resource"),
    ];
}

/// Measures on a server of its own, with so many connections, for so long each.
pub async fn cost(connections: usize, time: Duration) -> Result<Vec<Figure>, Failure> {
    let server = servers::postgres().await?;
    let mut first = connect_postgres(&server.address).await?;
    PostgresFence::install(&mut first.client).await?;
    let table = "CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL);
                 INSERT INTO accounts SELECT number, 0 FROM generate_series(0, 999) AS number";
    first.client.batch_execute(table).await?;
    let mut clients = try_join_all((0..connections).map(|_| connect_postgres(&server.address))).await?;
    let mut samples: [Vec<Duration>; 3] = Default::default();
    let mut spent = [Duration::ZERO; 3];
    // In turns, so that whatever else the machine does falls on all of them alike.
    const TURNS: u32 = 10;
    for _ in 0..TURNS {
        for (number, (kind, _)) in Kind::ALL.into_iter().enumerate() {
            let started = Instant::now();
            let all = clients.iter_mut().enumerate().map(|(id, client)| work(client, kind, id, time / TURNS));
            samples[number].extend(try_join_all(all).await?.into_iter().flatten());
            spent[number] += started.elapsed();
        }
    }
    let figures = Kind::ALL.into_iter().zip(samples).zip(spent).map(|(((_, name), mut samples), spent)| {
        samples.sort_unstable();
        let at = |part: usize| samples.get(samples.len() * part / 100).copied().unwrap_or_default();
        Figure { name, per_second: samples.len() as f64 / spent.as_secs_f64(), p50: at(50), p99: at(99) }
    });
    Ok(figures.collect())
}

async fn work(
    connected: &mut Connected,
    kind: Kind,
    id: usize,
    time: Duration,
) -> Result<Vec<Duration>, Failure> {
    let resource = match kind {
        Kind::OwnResource => format!("accounts/{id}"),
        _ => "accounts".to_owned(),
    };
    let (resource, fence) =
        (PostgresFence::new(Resource::parse(resource)?), Fence::new("billing", Token(34), Mode::Exclusive));
    let update = connected.client.prepare("UPDATE accounts SET balance = balance + 1 WHERE id = $1").await?;
    let (mut samples, deadline, id) = (Vec::new(), Instant::now() + time, i64::try_from(id)?);
    while Instant::now() < deadline {
        let started = Instant::now();
        let transaction = match kind {
            Kind::Unfenced => connected.client.transaction().await?,
            _ => resource.begin(&mut connected.client, &fence).await?,
        };
        transaction.execute(&update, &[&id]).await?;
        transaction.commit().await?;
        samples.push(started.elapsed());
    }
    Ok(samples)
}
