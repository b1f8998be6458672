//! Where in the history of changes something stands, as events tell it and watches resume by it.
//!
//! A position is the revision of a change, and which change of that revision it was. On the wire it is
//! `REVISION.ORDINAL`; `REVISION` alone stands for the whole of it, so that watching after `12` begins
//! with what comes after everything that happened at revision 12.
//!
//! ```
//! use lowkey_api::Position;
//!
//! let position: Position = "12.3".parse()?;
//! assert_eq!(position, Position { revision: 12, ordinal: 3 });
//! assert!(position < "12".parse()?);
//! # Ok::<(), lowkey_api::position::InvalidPosition>(())
//! ```

use std::fmt;
use std::str::FromStr;

/// The place of one change. Positions are ordered as the changes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The revision at which the change took effect.
    pub revision: u64,
    /// Which change of that revision, from 0; `u32::MAX` is behind all of them.
    pub ordinal: u32,
}

impl Position {
    /// The position behind every change of `revision`.
    pub const fn whole(revision: u64) -> Self {
        Self { revision, ordinal: u32::MAX }
    }

    /// Whether this stands for all changes of its revision.
    pub const fn is_whole(self) -> bool {
        self.ordinal == u32::MAX
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { revision, ordinal } = self;
        if self.is_whole() { write!(f, "{revision}") } else { write!(f, "{revision}.{ordinal}") }
    }
}

/// A text that is no position; says what is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidPosition;

impl fmt::Display for InvalidPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("must be REVISION.ORDINAL, such as 12.3, or REVISION, such as 12")
    }
}

impl std::error::Error for InvalidPosition {}

impl FromStr for Position {
    type Err = InvalidPosition;

    fn from_str(text: &str) -> Result<Self, InvalidPosition> {
        let position = match text.split_once('.') {
            Some((revision, ordinal)) => {
                digits(revision).zip(digits(ordinal)).map(|(revision, ordinal)| Self { revision, ordinal })
            }
            None => digits(text).map(Self::whole),
        };
        position.ok_or(InvalidPosition)
    }
}

/// A number in digits alone: what `parse` takes besides, such as `+1`, is no part of a position.
fn digits<T: FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_read_as_it_is_written() {
        for (text, revision, ordinal) in [
            ("12.3", 12, 3),
            ("0.0", 0, 0),
            ("12", 12, u32::MAX),
            ("18446744073709551615", u64::MAX, u32::MAX),
            ("18446744073709551615.4294967294", u64::MAX, u32::MAX - 1),
        ] {
            let position = Position { revision, ordinal };
            assert_eq!(text.parse(), Ok(position), "{text}");
            assert_eq!(position.to_string(), text);
        }
    }

    #[test]
    fn whatever_else_is_refused() {
        for text in [
            "",
            ".",
            "1.",
            ".1",
            "1.2.3",
            "+1",
            "1.+2",
            "-1",
            "1.-2",
            " 1",
            "1 ",
            "1. 2",
            "0x1",
            "1e3",
            "one",
            "١",
            "18446744073709551616",
            "1.4294967296",
        ] {
            assert_eq!(text.parse::<Position>(), Err(InvalidPosition), "{text:?}");
        }
    }

    #[test]
    fn positions_are_ordered_as_the_changes_are() {
        let [first, last, whole, next] =
            ["12.0", "12.7", "12", "13.0"].map(|text| text.parse::<Position>().unwrap());
        assert!(first < last && last < whole && whole < next);
        assert!(whole.is_whole() && !last.is_whole());
    }
}
