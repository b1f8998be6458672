//! Domain values that are right by construction: parsed once at the edge, trusted everywhere inside.
//!
//! A value of one of these types is within its limits. There is no way to make one that is not, so
//! nothing behind the edge checks again.

use std::fmt;
use std::sync::Arc;

use crate::limits::{
    LOCK_NAME_BYTES_MAX, NODE_NAME_BYTES_MAX, OWNER_ID_BYTES_MAX, REQUEST_ID_BYTES_MAX, TTL_SECONDS_MAX,
    TTL_SECONDS_MIN,
};

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

fn check_text(field: &'static str, text: &str, bytes_max: usize) -> Result<(), Invalid> {
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

text_type! {
    /// The name of a lock: 1–512 bytes of UTF-8, `/` between segments, no empty, `.` or `..`
    /// segment, no control characters. One leading `/` is part of the name.
    LockName
}

impl LockName {
    /// Parses a name, or says what is allowed.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        const FIELD: &str = "lock_name";
        check_text(FIELD, text, LOCK_NAME_BYTES_MAX)?;
        let segments = text.strip_prefix('/').unwrap_or(text);
        for segment in segments.split('/') {
            match segment {
                "" => {
                    return Err(Invalid::new(
                        FIELD,
                        "must have no empty segment between, before or after '/'",
                    ));
                }
                "." | ".." => return Err(Invalid::new(FIELD, "must have no segment that is '.' or '..'")),
                _ => {}
            }
        }
        Ok(Self(text.into()))
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
    /// A fencing token: rises with every new grant of the group and never repeats.
    Token
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

/// Both random ids are shown as 32 hexadecimal digits.
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

hex_display!(ClusterId, NodeIdentity);

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
