//! The pure state machine of lowkey: leases, locks, queues and fencing tokens.
//!
//! [`State::apply`] takes one committed [`Command`] and returns the answer and what changed. It is the
//! same function on every replica and on every replay (deterministic), so everything in this crate is a
//! value and a function of values.
//!
//! Deliberately absent: clocks (R5), randomness, I/O, async, threads, and any collection whose order
//! of iteration is not defined. `clippy.toml` beside the manifest keeps it so.
//!
//! Where to look: `state.rs` for what commands do, `command.rs` for which there are, `name.rs` for domain
//! types, `limits.rs` for every limit, `recent.rs` for idempotency. `docs/internals/time.md` has rules R1 to
//! R10, `docs/internals/waiting.md` how queues work.

mod access;
mod claim;
mod command;
mod digest;
mod encoding;
mod epoch;
mod fields;
mod groups;
mod held;
mod holders;
mod invitation;
pub mod limits;
mod name;
mod paths;
mod recent;
mod schedule;
mod snapshot;
mod state;

pub use access::{
    Access, AccessChange, Caller, CertificateName, Denied, GrantPath, Identity, On, Principal, PrincipalName,
    Proof, TokenHash, TokenId, Verb, Verbs,
};
pub use claim::{Mode, Scope};
pub use command::{
    AcquireWith, Applied, Cause, Change, ChangeKind, Command, EndedGrant, Event, GrantRef, HoldRef, Holder,
    InTheWay, NodeInfo, Refusal, Reply, Requester, Silence, WaitEnd, Waiter,
};
pub use digest::DIGEST_VERSION;
pub use encoding::{COMMAND_VERSION, DecodeError};
pub use epoch::{Claim as EpochClaim, Epoch, EpochsKnown, EpochsSpent};
pub use groups::{
    Boundary, GROUPS_VERSION, GroupChange, NameRange, ShardMap, SplitRefusal, parse_boundaries,
};
pub use holders::Grant;
pub use invitation::Invitation;
pub use lowkey_mutants as mutants;
pub use lowkey_record::GroupId;
pub use name::{
    ClusterId, Holds, Invalid, InvitationHash, KeyHash, LeaseId, LockName, MaxHold, MemberId, NamePrefix,
    NodeIdentity, NodeName, OwnerId, RequestId, Ticket, Token, Ttl, Value, WaitTime, max_hold_seconds,
};
pub use schedule::{BackupRule, BackupSchedule};
pub use snapshot::{SNAPSHOT_VERSION, SnapshotError};
pub use state::{
    CountersSpent, FirstMembers, FirstNumbers, GrantView, Lease, LeaseView, LockView, NewBeginning, State,
    WaitView,
};
