//! What marks are kept for.

use std::error::Error;
use std::fmt;

/// How long the name of a resource may be.
pub const RESOURCE_BYTES_MAX: usize = 512;

/// The name of a protected resource: all that is written under the same lock, or under locks of one path.
///
/// 1 to 512 bytes of UTF-8 without control characters. Upper and lower case differ, in every store.
///
/// ```
/// use lowkey_fence::Resource;
/// assert_eq!(Resource::parse("billing/accounts")?.as_str(), "billing/accounts");
/// assert!(Resource::parse("").is_err());
/// # Ok::<(), lowkey_fence::InvalidResource>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resource(String);

impl Resource {
    /// Checks the name, once and for all.
    pub fn parse(name: impl Into<String>) -> Result<Self, InvalidResource> {
        let name = name.into();
        let is_right =
            (1..=RESOURCE_BYTES_MAX).contains(&name.len()) && !name.contains(|c: char| c.is_control());
        if is_right { Ok(Self(name)) } else { Err(InvalidResource) }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A text that cannot name a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidResource;

impl fmt::Display for InvalidResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the name of a resource must have 1 to {RESOURCE_BYTES_MAX} bytes and no control characters"
        )
    }
}

impl Error for InvalidResource {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_and_printable() {
        for name in ["a", "Ärger/über alles", &"x".repeat(512)] {
            assert!(Resource::parse(name).is_ok(), "{name}");
        }
        for name in ["", "a\0b", "a\nb", "\u{85}", &"x".repeat(513)] {
            assert_eq!(Resource::parse(name), Err(InvalidResource), "{name:?}");
        }
    }
}
