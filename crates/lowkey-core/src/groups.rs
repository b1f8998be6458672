//! Many groups, one service: which group has which names.
//!
//! One Raft group orders everything that it holds, so one group is one ceiling and one outage. A cluster may
//! have many. Each owns a range of lock names and is a state machine of its own: leases, queues and tokens of
//! two groups have nothing to do with each other.
//!
//! Invariants:
//!
//! - Names are ordered by their bytes, and every name belongs to exactly one group.
//! - All that a `SUBTREE` claim covers belongs to the group of its name. So claims that conflict meet in one group.
//! - A cluster of one group knows nothing of this: it is written, hashed and answered as it always was.
//!
//! - `range.rs`: ranges of names, and the boundaries between them
//! - `map.rs`: which group has which range, as the root group knows it
//! - `place.rs`: what a group knows of its place, lease ids that tell whose they are, and who is wrong here
//! - `change.rs`: splits: how groups change, and what is refused
//! - `birth.rs`: the first state of a group
//! - `format.rs`: bytes, in the log and in snapshots

mod birth;
mod change;
mod format;
mod map;
mod place;
mod range;

pub(crate) use self::change::GROUP_KINDS;
pub use self::change::{GROUPS_VERSION, GroupChange, SplitRefusal};
pub(crate) use self::format::{GroupKind, GroupProto, PlaceProto};
pub(crate) use self::place::Place;

pub use self::map::{ShardMap, parse_boundaries};
pub use self::range::{Boundary, NameRange};
