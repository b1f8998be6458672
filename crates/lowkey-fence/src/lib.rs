//! The resource's half of a lock: it refuses writes whose fencing token comes too late.
//!
//! A holder of a lock can be paused between its last look at the clock and its write. When it goes on, somebody
//! else may hold the lock. No lock service can prevent that; only the resource that is written to can. It keeps
//! two [`Marks`], and checks the token of every write against them in the same atomic step as the write.
//!
//! | resource | feature | type |
//! |---|---|---|
//! | a value in this process | – | [`MemoryFence`] |
//! | PostgreSQL | `postgres` | `PostgresFence` |
//! | any of these databases, from any language | – | [`sql`] |
//!
//! What a holder presents is a [`Fence`]: lock, token and mode. A guard of `lowkey-client` gives it with
//! `guard.fence()`. What is refused is told by a [`Refusal`]: the lock is gone, stop, do not retry.
//!
//! # Claim before you read
//!
//! A check at the write alone leaves a hole: the late write of a former holder passes as long as its successor
//! has not written yet, though the successor may have read already. So a new holder's first act is to *claim*
//! the resource: it presents its token, which raises the mark, before it reads anything that its writes depend
//! on. Every type here has `claim`. A transaction that checks, reads and writes needs none.
//!
//! # Names of resources
//!
//! Marks are kept per [`Resource`], and the caller names it. Tokens may meet on one resource only if they come
//! from one lock, or from locks along one path: a subtree lock on `a` and a lock on `a/b` protect the same rows,
//! and then both present the resource that they share. Tokens of unrelated locks must never meet.
//!
//! Deliberately absent: the lock service. Nothing here talks to it.

mod marks;
mod memory;
#[cfg(feature = "postgres")]
mod postgres;
mod refusal;
mod resource;
pub mod sql;

pub use lowkey_token::{Fence, Mode, Token};
pub use marks::Marks;
pub use memory::MemoryFence;
#[cfg(feature = "postgres")]
pub use postgres::PostgresFence;
pub use refusal::{FenceError, InvalidToken, Refusal};
pub use resource::{InvalidResource, RESOURCE_BYTES_MAX, Resource};
