//! What goes wrong with a cluster.

use std::fmt;

/// Something that a test asked for is not so. It is told to a person.
#[derive(Clone, Debug)]
pub struct Error {
    message: String,
    is_missing: bool,
}

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_missing: false }
    }

    pub(crate) fn missing(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_missing: true }
    }

    /// True if there is no program `lowkey` on this machine. A test may be skipped then.
    pub fn is_missing(&self) -> bool {
        self.is_missing
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
