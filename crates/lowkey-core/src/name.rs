//! Domain values that are right by construction: parsed once at the edge, trusted everywhere inside.
//!
//! A value of one of these types is within its limits. There is no way to make one that is not, so
//! nothing behind the edge checks again.

use std::borrow::Borrow;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

pub use lowkey_token::{Holds, Token};

use crate::limits::{
    LOCK_NAME_BYTES_MAX, LOCK_NAME_SEGMENTS_MAX, MAX_HOLD_SECONDS_MAX, MAX_HOLD_SECONDS_MIN,
    NODE_NAME_BYTES_MAX, OWNER_ID_BYTES_MAX, REQUEST_ID_BYTES_MAX, TTL_SECONDS_MAX, TTL_SECONDS_MIN,
    VALUE_BYTES_MAX, WAIT_MS_MAX,
};
use crate::mutants;

/// A request field that was refused, and what would have been allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// The field's name on the wire, in snake case: `lock_name`.
    pub field: &'static str,
    /// What is wrong and what is allowed, for a person.
    pub problem: String,
}

impl Invalid {
    /// Says that `field` is refused because of `problem`.
    pub fn new(field: &'static str, problem: impl Into<String>) -> Self {
        Self { field, problem: problem.into() }
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.problem)
    }
}

impl std::error::Error for Invalid {}

pub(crate) fn check_text(field: &'static str, text: &str, bytes_max: usize) -> Result<(), Invalid> {
    if text.is_empty() || text.len() > bytes_max {
        let problem = format!("must be 1 to {bytes_max} bytes of UTF-8, and is {} bytes", text.len());
        return Err(Invalid::new(field, problem));
    }
    if let Some(control) = text.chars().find(|c| c.is_control()) {
        let problem = format!("must have no control characters, and has U+{:04X}", u32::from(control));
        return Err(Invalid::new(field, problem));
    }
    Ok(())
}

/// Text newtypes that share their representation: cheap to clone, ordered by bytes.
macro_rules! text_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The text itself.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        // Compared as its text is: look-ups need no new name.
        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
    };
}
pub(crate) use text_type;

text_type! {
    /// The name of a lock: 1–512 bytes of UTF-8, `/` between segments, no empty, `.` or `..`
    /// segment, no control characters. One leading `/` is part of the name. Names that are newly locked
    /// have at most 32 segments.
    LockName
}

impl LockName {
    const FIELD: &str = "lock_name";

    /// Parses a name, or says what is allowed.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        check_text(Self::FIELD, text, LOCK_NAME_BYTES_MAX)?;
        segments(text).try_for_each(|segment| check_segment(Self::FIELD, segment))?;
        Ok(Self(text.into()))
    }

    /// Parses a name that somebody asks to lock. It may not be as deep as names once could be.
    pub fn parse_wanted(text: &str) -> Result<Self, Invalid> {
        let name = Self::parse(text)?;
        match segments(text).count() {
            ..=LOCK_NAME_SEGMENTS_MAX => Ok(name),
            count => {
                let problem = format!("must have at most {LOCK_NAME_SEGMENTS_MAX} segments, and has {count}");
                Err(Invalid::new(Self::FIELD, problem))
            }
        }
    }

    /// The names above this one, from the top down: `a` and `a/b` for `a/b/c`. A leading `/` is part of
    /// the first.
    pub fn ancestors(&self) -> impl Iterator<Item = &str> {
        let ends = std::iter::successors(Some(self.segment_end(0)), |end| Some(self.segment_end(*end)));
        ends.take_while(|end| *end < self.0.len()).map(|end| &self.0[..end])
    }

    /// Where the segment ends that begins here: at 0, or at the `/` behind the one before it.
    pub(crate) fn segment_end(&self, start: usize) -> usize {
        (start + 1..self.0.len()).find(|at| self.is_segment_end(*at)).unwrap_or(self.0.len())
    }

    /// Where the name right above this one ends; 0 if there is none.
    pub(crate) fn parent_end(&self) -> usize {
        (1..self.0.len()).rev().find(|at| self.is_segment_end(*at)).unwrap_or(0)
    }

    /// True for the end of each name above this one, and for its own.
    pub(crate) fn is_segment_end(&self, at: usize) -> bool {
        at == self.0.len()
            || self.0.as_bytes()[at] == b'/'
            || mutants::A_PREFIX_COUNTS_AS_A_PARENT.is_active() && self.0.is_char_boundary(at)
    }

    /// A name that [`LockName::ancestors`] gave: what is above a name is one.
    pub(crate) fn from_ancestor(ancestor: &str) -> Self {
        Self(ancestor.into())
    }

    /// The bounds of all that is below this name: from the first, and before the second.
    pub(crate) fn below(&self) -> (String, String) {
        // '0' comes right after '/'.
        (format!("{}/", self.0), format!("{}0", self.0))
    }
}

/// The parts of a name between its `/`; a leading one is part of the first.
fn segments(text: &str) -> impl Iterator<Item = &str> {
    text.strip_prefix('/').unwrap_or(text).split('/')
}

fn check_segment(field: &'static str, segment: &str) -> Result<(), Invalid> {
    match segment {
        "" => Err(Invalid::new(field, "must have no empty segment between, before or after '/'")),
        "." | ".." => Err(Invalid::new(field, "must have no segment that is '.' or '..'")),
        _ => Ok(()),
    }
}

text_type! {
    /// What names may begin with: a plain text, empty for all names. `a/b` is a prefix of `a/bc` too.
    NamePrefix
}

impl NamePrefix {
    /// Parses a prefix, or says what is allowed. What no name could begin with is refused.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        const FIELD: &str = "prefix";
        if !text.is_empty() {
            check_text(FIELD, text, LOCK_NAME_BYTES_MAX)?;
        }
        let mut segments: Vec<&str> = segments(text).collect();
        // The last segment may go on.
        segments.pop();
        segments.into_iter().try_for_each(|segment| check_segment(FIELD, segment))?;
        Ok(Self(text.into()))
    }

    /// True if the name begins with this.
    pub fn covers(&self, name: &LockName) -> bool {
        name.0.starts_with(&*self.0)
    }
}

/// The text that a holder shows with its grant: at most 4096 bytes of UTF-8, mostly empty.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Value(Option<Arc<str>>);

impl Value {
    /// Parses a value, or says what is allowed.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        if text.len() > VALUE_BYTES_MAX {
            let problem = format!("must be at most {VALUE_BYTES_MAX} bytes of UTF-8, and is {}", text.len());
            return Err(Invalid::new("value", problem));
        }
        Ok(Self((!text.is_empty()).then(|| text.into())))
    }

    /// The text itself.
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }

    /// True if there is nothing to show.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

/// How long a caller is ready to wait for a lock: 0 to 24 hours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct WaitTime(u32);

impl WaitTime {
    /// Not at all.
    pub const NONE: Self = Self(0);

    /// Parses a number of milliseconds, or says what is allowed.
    pub fn parse(milliseconds: i64) -> Result<Self, Invalid> {
        match u32::try_from(milliseconds) {
            Ok(wait) if milliseconds <= WAIT_MS_MAX => Ok(Self(wait)),
            _ => Err(Invalid::new(
                "wait_ms",
                format!("must be 0 to {WAIT_MS_MAX} milliseconds, and is {milliseconds}"),
            )),
        }
    }

    /// The whole milliseconds.
    pub fn milliseconds(self) -> i64 {
        i64::from(self.0)
    }

    /// The same span in nanoseconds.
    pub fn nanos(self) -> u64 {
        u64::from(self.0) * 1_000_000
    }
}

text_type! {
    /// Who a lease belongs to, as the client names itself: 1–256 bytes of UTF-8, no control characters.
    OwnerId
}

impl OwnerId {
    /// Parses an owner id, or says what is allowed.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        check_text("owner_id", text, OWNER_ID_BYTES_MAX)?;
        Ok(Self(text.into()))
    }
}

text_type! {
    /// A client's name for one operation: asking again with the same id has no second effect.
    RequestId
}

impl RequestId {
    /// Parses a request id, or says what is allowed.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        check_text("request_id", text, REQUEST_ID_BYTES_MAX)?;
        Ok(Self(text.into()))
    }
}

text_type! {
    /// The name of a node: 1–128 bytes of UTF-8, no control characters.
    NodeName
}

impl NodeName {
    /// Parses a node name, or says what is allowed.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        check_text("node_id", text, NODE_NAME_BYTES_MAX)?;
        Ok(Self(text.into()))
    }
}

/// A lease's time to live: 1 to 600 whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ttl(u16);

impl Ttl {
    /// Parses a number of seconds, or says what is allowed.
    pub fn parse(seconds: i64) -> Result<Self, Invalid> {
        match u16::try_from(seconds) {
            Ok(ttl) if (TTL_SECONDS_MIN..=TTL_SECONDS_MAX).contains(&seconds) => Ok(Self(ttl)),
            _ => Err(Invalid::new(
                "ttl_seconds",
                format!("must be {TTL_SECONDS_MIN} to {TTL_SECONDS_MAX} seconds, and is {seconds}"),
            )),
        }
    }

    /// The whole seconds.
    pub fn seconds(self) -> i64 {
        i64::from(self.0)
    }

    /// The same span in nanoseconds.
    pub fn nanos(self) -> u64 {
        u64::from(self.0) * 1_000_000_000
    }
}

/// For how long a grant lasts at most, however well its lease is renewed: 1 second to a week. Most grants have no such
/// limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MaxHold(NonZeroU32);

impl MaxHold {
    /// Parses a number of seconds, where 0 means no limit, or says what is allowed.
    pub fn parse(seconds: i64) -> Result<Option<Self>, Invalid> {
        let allowed = MAX_HOLD_SECONDS_MIN..=MAX_HOLD_SECONDS_MAX;
        match u32::try_from(seconds) {
            Ok(0) => Ok(None),
            Ok(limit) if allowed.contains(&seconds) => Ok(NonZeroU32::new(limit).map(Self)),
            _ => Err(Invalid::new(
                "max_hold_seconds",
                format!(
                    "must be {MAX_HOLD_SECONDS_MIN} to {MAX_HOLD_SECONDS_MAX} seconds, or 0 for no limit, and is {seconds}"
                ),
            )),
        }
    }

    /// The whole seconds.
    pub fn seconds(self) -> u32 {
        self.0.get()
    }

    /// The same span in nanoseconds.
    pub fn nanos(self) -> u64 {
        u64::from(self.seconds()) * 1_000_000_000
    }
}

/// As formats and messages write a limit: 0 where there is none.
pub fn max_hold_seconds(max_hold: Option<MaxHold>) -> u32 {
    max_hold.map_or(0, MaxHold::seconds)
}

/// Number newtypes that share their shape: an id is never mistaken for a token.
macro_rules! number_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number_type! {
    /// A lease, counted from 1 and never reused.
    LeaseId
}

number_type! {
    /// A place in the order of waiting: the revision of the entry that made it.
    Ticket
}

number_type! {
    /// A node's id within the Raft group, from a replicated counter and never reused.
    MemberId
}

/// The random id that a cluster got when it was founded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClusterId(pub [u8; 16]);

/// The random id that a node's data directory got when it was made. It ends with the directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeIdentity(pub [u8; 16]);

/// The SHA-256 hash of a node's public key (of its SubjectPublicKeyInfo, DER). The node proves with the key that
/// it is who it says.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyHash(pub [u8; 32]);

/// The SHA-256 hash of an invitation's secret. The secret itself is known to whom it was given, and to no replica.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct InvitationHash(pub [u8; 32]);

/// Ids and hashes are shown as hexadecimal digits.
macro_rules! hex_display {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*};
}

pub(crate) use hex_display;

hex_display!(ClusterId, NodeIdentity, KeyHash, InvitationHash);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_names_at_the_limit_are_taken_and_beyond_it_refused() {
        assert!(LockName::parse(&"x".repeat(512)).is_ok());
        assert!(LockName::parse(&"x".repeat(513)).is_err());
        assert!(LockName::parse("").is_err());
        // The limit counts bytes, not characters: é takes two.
        assert!(LockName::parse(&"é".repeat(256)).is_ok());
        assert!(LockName::parse(&"é".repeat(257)).is_err());
    }

    #[test]
    fn lock_name_segments_are_checked() {
        for good in ["a", "/a", "a/b", "/locks/billing/batch-job", "…/ü", "a.b", "..a"] {
            assert!(LockName::parse(good).is_ok(), "{good}");
        }
        for bad in ["/", "//a", "a/", "a//b", ".", "a/./b", "..", "a/..", "a\nb", "a\u{7f}b"] {
            assert!(LockName::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_name_that_is_asked_for_may_have_32_segments_and_any_other_more() {
        let deep = |segments: usize| vec!["a"; segments].join("/");
        assert!(LockName::parse_wanted(&deep(32)).is_ok());
        assert!(LockName::parse_wanted(&format!("/{}", deep(32))).is_ok());
        let refused = LockName::parse_wanted(&deep(33)).unwrap_err();
        assert_eq!(refused.to_string(), "lock_name: must have at most 32 segments, and has 33");
        assert!(LockName::parse(&deep(256)).is_ok());
        assert!(LockName::parse_wanted("a//b").is_err());
    }

    #[test]
    fn what_is_above_a_name_ends_at_its_slashes() {
        let above = |text: &str| -> Vec<String> {
            LockName::parse(text).unwrap().ancestors().map(str::to_owned).collect()
        };
        assert_eq!(above("a"), [""; 0]);
        assert_eq!(above("/a"), [""; 0]);
        assert_eq!(above("a/b/c"), ["a", "a/b"]);
        assert_eq!(above("/a/b/c"), ["/a", "/a/b"]);
    }

    #[test]
    fn what_is_below_a_name_lies_between_its_bounds() {
        let (from, before) = LockName::parse("a").unwrap().below();
        for inside in ["a/b", "a/b/c", "a/\u{10ffff}"] {
            assert!(*inside >= *from && *inside < *before, "{inside}");
        }
        for outside in ["a", "ab", "a.b", "a0", "a-b", "b"] {
            assert!(*outside < *from || *outside >= *before, "{outside}");
        }
    }

    #[test]
    fn a_prefix_is_what_a_name_could_begin_with() {
        for good in ["", "/", "a", "a/", "a/b", ".", "..", "a/.", "/a/"] {
            assert!(NamePrefix::parse(good).is_ok(), "{good:?}");
        }
        for bad in ["//", "a//", "./a", "a/../b", "a\nb", &"x".repeat(513)] {
            assert!(NamePrefix::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn values_and_waits_at_the_limit_are_taken_and_beyond_it_refused() {
        assert!(Value::parse(&"v".repeat(4096)).is_ok());
        assert!(Value::parse(&"v".repeat(4097)).is_err());
        for good in [0, 1, 86_400_000] {
            assert_eq!(WaitTime::parse(good).unwrap().milliseconds(), good);
        }
        for bad in [-1, 86_400_001, i64::MIN, i64::MAX] {
            assert!(WaitTime::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ttl_takes_one_to_six_hundred_seconds() {
        for good in [1, 2, 599, 600] {
            assert_eq!(Ttl::parse(good).unwrap().seconds(), good);
        }
        for bad in [i64::MIN, -1, 0, 601, 65_537, i64::MAX] {
            assert!(Ttl::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn owners_and_request_ids_have_their_own_limits() {
        assert!(OwnerId::parse(&"o".repeat(256)).is_ok());
        assert!(OwnerId::parse(&"o".repeat(257)).is_err());
        assert!(OwnerId::parse("a\tb").is_err());
        assert!(RequestId::parse(&"r".repeat(64)).is_ok());
        assert!(RequestId::parse(&"r".repeat(65)).is_err());
    }
}
