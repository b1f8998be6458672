//! Several locks at once, without deadlocks.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::lock::LockGuard;
use crate::session::Session;

/// Several locks to acquire, all or none. Made by [`Session::lock_all`].
///
/// They are acquired one after the other in the order of their names, whatever order was given. So two
/// clients that want some of the same locks in this way never wait for each other in a circle (deadlock).
/// That holds among callers of this method. A program that acquires further locks while it holds some must
/// keep to the order of names itself.
///
/// ```no_run
/// # async fn example(session: lowkey_client::Session) -> Result<(), lowkey_client::Error> {
/// let accounts = session.lock_all(["accounts/7", "accounts/3"]).acquire().await?;
/// assert!(accounts.is_held());
/// accounts.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is acquired before acquire(), try_acquire() or wait() is awaited"]
pub struct LockAll {
    session: Session,
    names: BTreeSet<String>,
}

impl LockAll {
    pub(crate) fn new(session: Session, names: BTreeSet<String>) -> Self {
        Self { session, names }
    }

    /// Acquires all of them, and waits as long as needed while the session lives. Dropping the future gives
    /// back what was acquired so far.
    pub async fn acquire(&self) -> Result<LockGuards, Error> {
        let mut guards = Vec::with_capacity(self.names.len());
        for name in &self.names {
            guards.push(self.session.lock(name).acquire().await?);
        }
        Ok(LockGuards { guards })
    }

    /// Acquires all of them if all are free now. Otherwise holds none, and the error names a holder.
    pub async fn try_acquire(&self) -> Result<LockGuards, Error> {
        let mut guards = Vec::with_capacity(self.names.len());
        for name in &self.names {
            match self.session.lock(name).try_acquire().await {
                Ok(guard) => guards.push(guard),
                Err(error) => return given_back(guards, error).await,
            }
        }
        Ok(LockGuards { guards })
    }

    /// Acquires all of them within this time. Otherwise holds none.
    pub async fn wait(&self, time: Duration) -> Result<LockGuards, Error> {
        let started = Instant::now();
        let mut guards = Vec::with_capacity(self.names.len());
        for name in &self.names {
            match self.session.lock(name).wait(time.saturating_sub(started.elapsed())).await {
                Ok(guard) => guards.push(guard),
                Err(error) => return given_back(guards, error).await,
            }
        }
        Ok(LockGuards { guards })
    }
}

/// Releases what was acquired before the error. If that cannot be told now, it is told in the background.
async fn given_back(guards: Vec<LockGuard>, error: Error) -> Result<LockGuards, Error> {
    let _ = LockGuards { guards }.release().await;
    Err(error)
}

/// Several locks that are held together. All of them are released when this is dropped.
#[derive(Debug)]
#[must_use = "the locks are released when this is dropped"]
pub struct LockGuards {
    guards: Vec<LockGuard>,
}

impl LockGuards {
    /// True if all of them are held now. Reads the clock.
    pub fn is_held(&self) -> bool {
        self.guards.iter().all(LockGuard::is_held)
    }

    /// The guards, in the order of their names.
    pub fn iter(&self) -> std::slice::Iter<'_, LockGuard> {
        self.guards.iter()
    }

    /// The guard of this name.
    pub fn get(&self, name: &str) -> Option<&LockGuard> {
        self.guards.iter().find(|guard| guard.name() == name)
    }

    /// Releases all of them, the last one first, and waits until that is done. An error is the first one that
    /// was met; the others are released nevertheless.
    pub async fn release(self) -> Result<(), Error> {
        let mut outcome = Ok(());
        for guard in self.guards.into_iter().rev() {
            outcome = outcome.and(guard.release().await);
        }
        outcome
    }
}

impl<'a> IntoIterator for &'a LockGuards {
    type Item = &'a LockGuard;
    type IntoIter = std::slice::Iter<'a, LockGuard>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
