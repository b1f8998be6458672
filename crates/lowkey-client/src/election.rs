//! Leader election: a lock whose holder leads.

use std::fmt;
use std::time::Duration;

use lowkey_api::v1::ProclaimRequest;
use lowkey_api::v1::session_answer::Answer;
use lowkey_api::v1::session_call::Call;
use lowkey_token::Fence;

use crate::error::{Error, Lost};
use crate::lock::{Lock, LockGuard};
use crate::random;
use crate::session::{LossCause, Session};

/// An election to stand for. Made by [`Session::election`].
///
/// ```no_run
/// # async fn example(session: lowkey_client::Session) -> Result<(), Box<dyn std::error::Error>> {
/// let leadership = session.election("scheduler").campaign("http://10.0.0.1:4000").await?;
/// leadership.run(async { /* what only the leader may do, with leadership.token() */ }).await?;
/// leadership.resign().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Election {
    session: Session,
    name: String,
    at_most: Option<Duration>,
}

impl Election {
    pub(crate) fn new(session: Session, name: String) -> Self {
        Self { session, name, at_most: None }
    }

    /// Leads for this long at most; see [`Lock::at_most`]. Then another candidate has its turn.
    pub fn at_most(mut self, limit: Duration) -> Self {
        self.at_most = Some(limit);
        self
    }

    fn lock(&self, value: impl Into<String>) -> Lock {
        let lock = self.session.lock(self.name.clone()).value(value);
        match self.at_most {
            Some(limit) => lock.at_most(limit),
            None => lock,
        }
    }

    /// Stands for election until elected. The value tells the others about the leader.
    ///
    /// Dropping the future ends the candidacy.
    pub async fn campaign(&self, value: impl Into<String>) -> Result<Leadership, Error> {
        let guard = self.lock(value).acquire().await?;
        Ok(Leadership { session: self.session.clone(), guard })
    }

    /// The same, but not for longer than this.
    ///
    /// ```no_run
    /// # async fn example(session: lowkey_client::Session) -> Result<(), lowkey_client::Error> {
    /// use std::time::Duration;
    ///
    /// let election = session.election("scheduler");
    /// match election.campaign_for("http://10.0.0.1:4000", Duration::from_secs(5)).await {
    ///     Ok(leadership) => leadership.resign().await?,
    ///     Err(error) if error.is_busy() => println!("another leads"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn campaign_for(&self, value: impl Into<String>, time: Duration) -> Result<Leadership, Error> {
        let guard = self.lock(value).wait(time).await?;
        Ok(Leadership { session: self.session.clone(), guard })
    }
}

/// A term of office. Ends when it is resigned, dropped, or lost.
///
/// ```no_run
/// # async fn example(session: lowkey_client::Session) -> Result<(), lowkey_client::Error> {
/// let leadership = session.election("scheduler").campaign("http://10.0.0.1:4000").await?;
/// println!("elected with token {}", leadership.token());
/// leadership.proclaim("http://10.0.0.1:4001").await?;
/// println!("no longer the leader: {}", leadership.lost().await);
/// # Ok(())
/// # }
/// ```
#[must_use = "the lead is given up when this is dropped"]
pub struct Leadership {
    session: Session,
    guard: LockGuard,
}

impl Leadership {
    /// The fencing token of this term of office.
    pub fn token(&self) -> u64 {
        self.guard.token()
    }

    /// The same for a signed column of a database; see [`LockGuard::token_i64`].
    pub fn token_i64(&self) -> i64 {
        self.guard.token_i64()
    }

    /// What a resource checks before it takes this leader's writes; see [`LockGuard::fence`].
    pub fn fence(&self) -> Fence {
        self.guard.fence()
    }

    /// Whether you may act as leader now. Reads the clock.
    pub fn is_held(&self) -> bool {
        self.guard.is_held()
    }

    /// The lock behind this leadership.
    pub fn guard(&self) -> &LockGuard {
        &self.guard
    }

    /// Resolves when the lead is lost, with the cause.
    pub async fn lost(&self) -> LossCause {
        self.guard.lost().await
    }

    /// Runs the work for as long as this is the leader; see [`LockGuard::run`].
    pub async fn run<W: Future>(&self, work: W) -> Result<W::Output, Lost> {
        self.guard.run(work).await
    }

    /// Changes the value that tells the others about the leader.
    pub async fn proclaim(&self, value: impl Into<String>) -> Result<(), Error> {
        let client = &self.session.shared.client;
        let request = ProclaimRequest {
            election: self.guard.name().to_owned(),
            owner_id: client.owner.clone(),
            lease_id: self.guard.lease_id(),
            fencing_token: self.guard.token(),
            value: value.into(),
            request_id: random::request_id(),
        };
        match client.link.call(Call::Proclaim(request), client.call_timeout).await? {
            Answer::Proclaim(_) => Ok(()),
            _ => Err(Error::unavailable("an answer to another question", true)),
        }
    }

    /// Gives up the lead, and waits until that is done.
    pub async fn resign(self) -> Result<(), Error> {
        self.guard.release().await
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership").field("guard", &self.guard).finish_non_exhaustive()
    }
}
