//! What a holder of a lock presents to the resource that the lock protects.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

use crate::Token;

/// How a lock is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// By one lease alone.
    #[default]
    Exclusive,
    /// Together with others that hold it as shared.
    Shared,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
        })
    }
}

/// A text that names no [`Mode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeError;

impl fmt::Display for ModeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mode is `exclusive` or `shared`")
    }
}

impl Error for ModeError {}

impl FromStr for Mode {
    type Err = ModeError;

    /// In any case: the API writes `EXCLUSIVE`, headers and messages `exclusive`.
    fn from_str(text: &str) -> Result<Self, ModeError> {
        [Self::Exclusive, Self::Shared]
            .into_iter()
            .find(|mode| mode.to_string().eq_ignore_ascii_case(text))
            .ok_or(ModeError)
    }
}

/// Lock, token and mode of one grant: what a guard gives, and what every resource checks.
///
/// The three travel together so that no token is presented in the wrong mode, and every refusal can name the
/// lock. A guard of `lowkey-client` makes it with `guard.fence()`.
///
/// ```
/// use lowkey_token::{Fence, Mode, Token};
/// let fence = Fence::new("billing/nightly", Token(34), Mode::Exclusive);
/// assert_eq!(fence.to_string(), "exclusive token 34 of lock billing/nightly");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fence {
    lock: String,
    token: Token,
    mode: Mode,
}

impl Fence {
    /// For a token that came by another way than a guard: an environment, a header, a queue.
    pub fn new(lock: impl Into<String>, token: Token, mode: Mode) -> Self {
        Self { lock: lock.into(), token, mode }
    }

    /// The lock's name.
    pub fn lock(&self) -> &str {
        &self.lock
    }

    /// The fencing token.
    pub fn token(&self) -> Token {
        self.token
    }

    /// How the lock is held.
    pub fn mode(&self) -> Mode {
        self.mode
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} token {} of lock {}", self.mode, self.token, self.lock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_read_as_it_is_written_and_as_the_api_writes_it() {
        for mode in [Mode::Exclusive, Mode::Shared] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
            assert_eq!(mode.to_string().to_uppercase().parse(), Ok(mode));
        }
        for text in ["", "exclusiv", "EXCLUSIVE ", "0"] {
            assert_eq!(text.parse::<Mode>(), Err(ModeError), "{text:?}");
        }
    }
}
