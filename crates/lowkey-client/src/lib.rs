//! The Rust SDK of lowkey, a distributed lock service: sessions that renew themselves, lock guards with
//! fencing tokens, elections and watches.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! use lowkey_client::Client;
//!
//! let client = Client::connect(["http://127.0.0.1:9000"]).await?;
//! let session = client.session(Duration::from_secs(10)).await?;
//!
//! let guard = session.lock("billing/nightly").acquire().await?;
//! let done = guard.run(async { /* the work; send guard.token() along with every write */ }).await;
//! guard.release().await?;
//! # done?; Ok(()) }
//! ```
//!
//! What the SDK does for you, and what you must know about it:
//!
//! - A [`Session`] is your presence. It is renewed automatically when a third of its time to live has
//!   passed. This client's own clock decides when a session is *lost*. That clock also runs while the
//!   machine is suspended. The loss comes before the service gives anything away, even when no node
//!   answers.
//! - A [`LockGuard`] says whether you may act *now* ([`LockGuard::is_held`]) and tells when that ends
//!   ([`LockGuard::lost`]). It can also run your work only as long as the lock is held
//!   ([`LockGuard::run`]).
//! - A process can still be paused between a check and a write. Only the token protects against that: the
//!   protected resource must refuse a token below the highest that it has seen.
//! - Calls are retried, on other nodes too, until their deadline. They are idempotent: each has an effect
//!   once. The [`Error`] says the rest: whether trying again makes sense, and whether the call may have
//!   happened.
//! - Two tasks of one session that want the same name wait for each other, unless both want it in shared
//!   mode: then they share one grant. Use two sessions if the tasks must compete with others independently.
//!
//! - A client has a thread of its own, which renews leases and tells of losses no matter what the program's
//!   runtime does. A guard, a session or a client may be dropped anywhere. The drop of a client's last
//!   handle waits for releases that are under way, 200 ms at most. [`Client::close`] waits without blocking
//!   the thread.
//!
//! Where to look: `engine` for that thread, `link` for the one stream that carries everything, `keeper` for
//! renewals and the rules of validity (R6, R7, R9), `door` for the order of tasks within one session.

mod access;
mod audit;
mod backups;
mod beliefs;
pub mod blocking;
mod client;
mod clock;
mod detached;
mod door;
mod elect;
mod election;
mod engine;
mod error;
mod event;
mod grant;
mod health;
mod keeper;
mod leases;
mod link;
mod lock;
mod lock_all;
mod members;
mod random;
#[cfg(feature = "serde")]
mod serialized;
mod session;
mod tls;
mod token_file;
mod watch;
mod watch_connections;
mod wire;
mod wish;

pub use client::{Client, ClientBuilder};
pub use detached::{Detached, DetachedLock};
pub use elect::Elect;
pub use election::{Election, Leadership};
pub use error::{Error, ErrorKind, HeldBy, Lost};
pub use event::ClientEvent;
pub use health::NodeHealth;
pub use lock::{Lock, LockGuard};
pub use lock_all::{LockAll, LockGuards};
pub use lowkey_api::{ApiError, Position, Reason};
pub use lowkey_token::Fence;
pub use session::{LossCause, Session, SessionStatus};
pub use tls::Tls;
pub use watch::{Observation, Observations, Watch};

/// Messages of the API that calls answer with.
pub mod api {
    pub use lowkey_api::v1::{
        AccessGrant, AuditGap, AuditedGrant, CheckTokenResponse, CreateBackupResponse, EventType,
        ExplainResponse, GetBackupScheduleResponse, GetLeaseResponse, GetLockResponse, GetStatusResponse,
        Lease, LeaseGrant, LeaseWait, LockHolder, LockWaiter, Member, Mode, Principal, QueryAuditRequest,
        QueryAuditResponse, Scope, SetBackupScheduleRequest, Stats, TransferLeaderResponse, WatchEvent,
    };
}
