//! Rounds: two holders, and the first stops between its check and its write while the second claims and writes.
//!
//! After its claim the second holder reads the log. From then on nothing but its own write may be added: anything
//! else came late.

use std::fmt;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use lowkey_client::Client;
use lowkey_fence::{Fence, Mode, Token};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::Failure;
use crate::stores::{Entry, Store, Way, no_stop};

/// So many rounds run at once: those with the service wait for leases to end.
const PLAYED_AT_ONCE: usize = 8;
const SERVED_AT_ONCE: usize = 25;

/// The first holder's lease, which nobody renews.
const SHORT_TTL: Duration = Duration::from_secs(1);
const LONG_TTL: Duration = Duration::from_secs(60);

/// The first holder goes on after this time at the latest: a transaction that it has begun may keep the second
/// waiting. It differs from round to round.
const STOPS_MS: u64 = 20;
/// A naive first holder keeps nobody waiting. It goes on when the second has claimed, however slow the machine is.
const CLAIM_WAIT: Duration = Duration::from_secs(60);

/// Where tokens come from.
pub enum Tokens {
    /// Made up, and rising.
    Played,
    /// The lock service: the first holder's lease ends, and the second is next.
    Service(Client),
}

/// What came of the rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many there were.
    pub rounds: u64,
    /// The first holder's write was added after the second had claimed, or took the second's away.
    pub late: u64,
    /// The first holder was refused.
    pub refused: u64,
    /// The first holder's write was there before the second claimed: it was not late.
    pub in_time: u64,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rounds, late, refused, in_time } = self;
        write!(f, "{rounds} rounds: {late} late writes, {refused} refused, {in_time} in time")
    }
}

/// Plays so many rounds. In every other one the first holder has the whole subtree, and the second a name in it.
pub async fn rounds(store: &dyn Store, tokens: &Tokens, way: Way, count: u64) -> Result<Tally, Failure> {
    let run = getrandom::u64()?;
    let at_once = match tokens {
        Tokens::Played => PLAYED_AT_ONCE,
        Tokens::Service(_) => SERVED_AT_ONCE,
    };
    let tallies = stream::iter(0..count).map(|number| round(store, tokens, way, run, number));
    tallies
        .buffer_unordered(at_once)
        .try_fold(Tally::default(), |sum, one| async move {
            Ok(Tally {
                rounds: sum.rounds + one.rounds,
                late: sum.late + one.late,
                refused: sum.refused + one.refused,
                in_time: sum.in_time + one.in_time,
            })
        })
        .await
}

async fn round(
    store: &dyn Store,
    tokens: &Tokens,
    way: Way,
    run: u64,
    number: u64,
) -> Result<Tally, Failure> {
    let resource = format!("rounds-{run:x}/{number}");
    let (mut first, mut second) = (store.connect(&resource).await?, store.connect(&resource).await?);
    let child = if number % 4 < 2 { resource.clone() } else { format!("{resource}/child") };

    let first_fence = tokens.first(&resource).await?;
    if !first.claim(&first_fence).await? {
        return Err("the first holder was refused".into());
    }
    let (stops, has_stopped) = oneshot::channel();
    let (goes_on, may_go_on) = oneshot::channel::<()>();
    let stop = Box::pin(async move {
        let _ = stops.send(());
        may_go_on.await.is_ok()
    });
    let first_id = number % 2 + 1;
    let stale = tokio::spawn({
        let fence = first_fence.clone();
        async move { first.write(&fence, first_id, way, stop).await }
    });
    let _ = has_stopped.await;

    let second_fence = tokens.second(&child, &first_fence).await?;
    let second_id = 10 + first_id;
    let (claims, has_claimed) = oneshot::channel();
    let mut successor = Box::pin(async {
        if !second.claim(&second_fence).await? {
            return Err::<_, Failure>("the second holder's claim was refused".into());
        }
        let _ = claims.send(());
        let before = second.log().await?;
        if !second.write(&second_fence, second_id, way, no_stop()).await? {
            return Err("the second holder's write was refused".into());
        }
        Ok(before)
    });
    let pause = Duration::from_millis(number * 7919 % STOPS_MS);
    let stop_is_over = async {
        if way == Way::Naive {
            let _ = timeout(CLAIM_WAIT, has_claimed).await;
        }
        sleep(pause).await;
    };
    let early = tokio::select! {
        before = &mut successor => Some(before),
        () = stop_is_over => None,
    };
    let _ = goes_on.send(());
    let before = match early {
        Some(before) => before?,
        None => successor.as_mut().await?,
    };
    drop(successor);
    let was_accepted = stale.await??;

    let mut expected = before.clone();
    expected.push(Entry::new(second_id, &second_fence));
    let is_late = second.log().await? != expected;
    let is_in_time = before.iter().any(|entry| entry.id == first_id);
    Ok(Tally { rounds: 1, late: is_late.into(), refused: (!was_accepted).into(), in_time: is_in_time.into() })
}

impl Tokens {
    async fn first(&self, lock: &str) -> Result<Fence, Failure> {
        match self {
            Self::Played => Ok(Fence::new(lock, Token(33), Mode::Exclusive)),
            Self::Service(client) => {
                Ok(client.detached(lock, SHORT_TTL).subtree().try_acquire().await?.fence())
            }
        }
    }

    async fn second(&self, lock: &str, first: &Fence) -> Result<Fence, Failure> {
        match self {
            Self::Played => Ok(Fence::new(lock, Token(first.token().0 + 1), Mode::Exclusive)),
            Self::Service(client) => Ok(client.detached(lock, LONG_TTL).acquire().await?.fence()),
        }
    }
}
