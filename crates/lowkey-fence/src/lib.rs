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
//! | MySQL, MariaDB | `mysql` | `MysqlFence` |
//! | SQLite | `sqlite` | `SqliteFence` |
//! | these databases, from any language or library | – | [`sql`] |
//! | Redis | `redis` | `RedisFence` |
//! | S3 and other object stores | `object-store` | `ObjectFence` |
//! | HTTP and gRPC services | `http`, `axum`, `tonic` | module `http` |
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

#[cfg(feature = "http")]
pub mod http;
mod marks;
mod memory;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "object-store")]
mod object;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
mod refusal;
mod resource;
pub mod sql;
#[cfg(feature = "sqlite")]
mod sqlite;

#[cfg(feature = "mysql")]
pub use self::mysql::MysqlFence;
#[cfg(feature = "object-store")]
pub use self::object::{ObjectFence, StoreUnfit};
#[cfg(feature = "postgres")]
pub use self::postgres::PostgresFence;
#[cfg(feature = "redis")]
pub use self::redis::{RedisFence, RedisWrite};
#[cfg(feature = "sqlite")]
pub use self::sqlite::SqliteFence;
pub use lowkey_token::{Fence, Mode, ModeError, Token};
pub use marks::Marks;
pub use memory::MemoryFence;
pub use refusal::{FenceError, InvalidToken, Refusal};
pub use resource::{InvalidResource, RESOURCE_BYTES_MAX, Resource};
