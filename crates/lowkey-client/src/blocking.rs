//! The same for programs without an async runtime.
//!
//! Each call blocks its thread until it is done. Renewals and losses do not depend on that: they are the
//! business of the client's own thread. Do not use this inside async code: blocking there panics, as it
//! does for any blocking call into a runtime.
//!
//! ```no_run
//! # fn example() -> Result<(), lowkey_client::Error> {
//! use std::time::Duration;
//!
//! use lowkey_client::blocking::Client;
//!
//! let client = Client::connect(["http://127.0.0.1:9000"])?;
//! let session = client.session(Duration::from_secs(10))?;
//! let guard = session.lock("billing/nightly").wait(Duration::from_secs(60))?;
//! while guard.is_held() {
//!     // a piece of the work, with guard.token() beside every write
//! #   break;
//! }
//! guard.release()?;
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lowkey_api::v1::GetLockResponse;
use tokio::runtime::{Builder, Runtime};

use crate::{ClientBuilder, Error, LossCause, SessionStatus};

/// Where the calls of a client wait.
#[derive(Clone)]
struct Waiting(Arc<Runtime>);

impl Waiting {
    fn new() -> Result<Self, Error> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| {
            Error::unavailable(format!("a runtime for blocking calls cannot be made: {error}"), false)
        })?;
        Ok(Self(Arc::new(runtime)))
    }

    fn on<T>(&self, call: impl Future<Output = T>) -> T {
        self.0.block_on(call)
    }
}

/// A client whose calls block; see [`crate::Client`].
#[derive(Clone)]
pub struct Client {
    client: crate::Client,
    waiting: Waiting,
}

impl Client {
    /// Connects to the cluster that these endpoints belong to: gRPC URLs of some of its nodes.
    pub fn connect<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> Result<Self, Error> {
        Self::connect_with(crate::Client::builder(endpoints))
    }

    /// The same, with more options: see [`crate::Client::builder`].
    pub fn connect_with(builder: ClientBuilder) -> Result<Self, Error> {
        let waiting = Waiting::new()?;
        let client = waiting.on(builder.connect())?;
        Ok(Self { client, waiting })
    }

    /// The client behind this one, for everything that is not here.
    pub fn inner(&self) -> &crate::Client {
        &self.client
    }

    /// Waits for any call of [`Client::inner`].
    pub fn wait_for<T>(&self, call: impl Future<Output = T>) -> T {
        self.waiting.on(call)
    }

    /// Creates a session, which is renewed automatically.
    pub fn session(&self, ttl: Duration) -> Result<Session, Error> {
        let session = self.waiting.on(self.client.session(ttl))?;
        Ok(Session { session, waiting: self.waiting.clone() })
    }

    /// Who holds a lock, and who waits for it.
    pub fn get(&self, name: impl Into<String>) -> Result<GetLockResponse, Error> {
        self.waiting.on(self.client.get(name))
    }

    /// Ends all sessions, and waits until the service knows.
    pub fn close(self) -> Result<(), Error> {
        let Self { client, waiting } = self;
        waiting.on(client.close())
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("blocking::Client").field(&self.client).finish()
    }
}

/// A session whose calls block; see [`crate::Session`].
#[derive(Clone)]
pub struct Session {
    session: crate::Session,
    waiting: Waiting,
}

impl Session {
    /// A lock of this session, not yet acquired.
    pub fn lock(&self, name: impl Into<String>) -> Lock {
        Lock { lock: self.session.lock(name), waiting: self.waiting.clone() }
    }

    /// The lease's number.
    pub fn lease_id(&self) -> u64 {
        self.session.lease_id()
    }

    /// The status now. Reads the clock.
    pub fn status(&self) -> SessionStatus {
        self.session.status()
    }

    /// How long the session is valid if no further renewal is acknowledged.
    pub fn remaining(&self) -> Duration {
        self.session.remaining()
    }

    /// Ends the session: everything that it holds is released.
    pub fn close(self) -> Result<(), Error> {
        let Self { session, waiting } = self;
        waiting.on(session.close())
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("blocking::Session").field(&self.session).finish()
    }
}

/// A lock to acquire; see [`crate::Lock`].
#[derive(Clone)]
#[must_use = "nothing is acquired before acquire(), try_acquire() or wait() is called"]
pub struct Lock {
    lock: crate::Lock,
    waiting: Waiting,
}

impl Lock {
    /// Holds it together with others that do the same.
    pub fn shared(self) -> Self {
        Self { lock: self.lock.shared(), ..self }
    }

    /// Holds the name and everything below it.
    pub fn subtree(self) -> Self {
        Self { lock: self.lock.subtree(), ..self }
    }

    /// Holds it for this long at most; see [`crate::Lock::at_most`].
    pub fn at_most(self, limit: Duration) -> Self {
        Self { lock: self.lock.at_most(limit), ..self }
    }

    /// Shows a text with the grant: at most 4096 bytes.
    pub fn value(self, value: impl Into<String>) -> Self {
        Self { lock: self.lock.value(value), ..self }
    }

    /// Acquires the lock, and waits as long as needed while the session lives.
    pub fn acquire(&self) -> Result<LockGuard, Error> {
        self.guarded(self.waiting.on(self.lock.acquire()))
    }

    /// Acquires the lock if it is free now.
    pub fn try_acquire(&self) -> Result<LockGuard, Error> {
        self.guarded(self.waiting.on(self.lock.try_acquire()))
    }

    /// Acquires the lock within this time.
    pub fn wait(&self, time: Duration) -> Result<LockGuard, Error> {
        self.guarded(self.waiting.on(self.lock.wait(time)))
    }

    fn guarded(&self, outcome: Result<crate::LockGuard, Error>) -> Result<LockGuard, Error> {
        outcome.map(|guard| LockGuard { guard, waiting: self.waiting.clone() })
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("blocking::Lock").field(&self.lock).finish()
    }
}

/// A lock that is held; see [`crate::LockGuard`]. Released when it is dropped.
#[must_use = "the lock is released when this is dropped"]
pub struct LockGuard {
    guard: crate::LockGuard,
    waiting: Waiting,
}

impl LockGuard {
    /// The fencing token.
    pub fn token(&self) -> u64 {
        self.guard.token()
    }

    /// Whether you may act as holder now. Reads the clock.
    pub fn is_held(&self) -> bool {
        self.guard.is_held()
    }

    /// How long you may act if no further renewal is acknowledged.
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// Blocks until the lock is lost, and says why. Call it on a thread of its own.
    pub fn lost(&self) -> LossCause {
        self.waiting.on(self.guard.lost())
    }

    /// The guard behind this one, for everything that is not here.
    pub fn inner(&self) -> &crate::LockGuard {
        &self.guard
    }

    /// Releases the lock, and waits until that is done.
    pub fn release(self) -> Result<(), Error> {
        let Self { guard, waiting } = self;
        waiting.on(guard.release())
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("blocking::LockGuard").field(&self.guard).finish()
    }
}
