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
//! What it does for you, and what to know of it:
//!
//! - A [`Session`] is your presence. It is renewed by itself at a third of its time to live. That it is *lost* is
//!   decided by this client's own clock, one that also runs while the machine is suspended, and before the service
//!   gives anything away: even when no node answers.
//! - A [`LockGuard`] says whether you may act *now* ([`LockGuard::is_held`]), tells when that ends
//!   ([`LockGuard::lost`]), and can do your work only as long as it is so ([`LockGuard::run`]).
//! - A process can still be paused between looking and writing. Only the token protects against that: have the
//!   protected resource refuse a token below the highest that it has seen.
//! - Calls are tried again, at other nodes too, until their deadline; each has an effect once. What is left is
//!   in the [`Error`]: whether trying again makes sense, and whether it may have happened.
//! - Two tasks of one session that want the same name wait for each other, unless both want it in shared mode: then
//!   they share one grant. Use two sessions if they are to compete with others by themselves.
//!
//! - A client has a thread of its own, which renews leases and tells of losses whatever the program's runtime does.
//!   A guard, a session or a client may be dropped anywhere; the drop of a client's last handle waits for releases
//!   that are under way, 200 ms at most. [`Client::close`] waits without blocking the thread.
//!
//! Where to look: `engine` for that thread, `link` for the one stream that everything travels on, `keeper` for
//! renewals and the rules of validity (R6, R7, R9), `door` for the order of tasks within one session.

mod beliefs;
mod client;
mod clock;
mod detached;
mod door;
mod election;
mod engine;
mod error;
mod grant;
mod keeper;
mod leases;
mod link;
mod lock;
mod members;
mod random;
mod session;
mod watch;
mod wish;

pub use client::{Client, ClientBuilder};
pub use detached::{Detached, DetachedLock};
pub use election::{Election, Leadership};
pub use error::{Error, ErrorKind, HeldBy, Lost};
pub use lock::{Lock, LockGuard};
pub use lowkey_api::{ApiError, Position, Reason};
pub use session::{LossCause, Session, SessionStatus};
pub use watch::{Observation, Observations, Watch};

/// Messages of the API that calls answer with.
pub mod api {
    pub use lowkey_api::v1::{
        CheckTokenResponse, EventType, GetLeaseResponse, GetLockResponse, GetStatusResponse, Lease,
        LeaseGrant, LeaseWait, LockHolder, LockWaiter, Member, Mode, Scope, Stats, TransferLeaderResponse,
        WatchEvent,
    };
}
