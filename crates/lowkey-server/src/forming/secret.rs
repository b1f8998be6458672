//! The secret by which nodes know each other before they have keys of each other.

use std::fmt;
use std::path::Path;

use ring::hmac;

use crate::error::StartError;
use crate::node_key::sha256;

const FLAG: &str = "--form-secret-file";
/// The shortest secret: as much as 16 random bytes in hexadecimal digits.
const BYTES_MIN: usize = 32;

/// What all nodes of `--cluster-of` share. Whoever knows it can be one of them.
#[derive(Clone, PartialEq, Eq)]
pub struct FormSecret([u8; 32]);

impl FormSecret {
    /// Reads it from a file. White space around it does not count.
    pub fn read(path: &Path) -> Result<Self, StartError> {
        let refused = |problem: String| StartError::Flag { flag: FLAG, problem };
        let text = std::fs::read_to_string(path)
            .map_err(|error| refused(format!("cannot read {}: {error}", path.display())))?;
        let secret = text.trim();
        if secret.len() < BYTES_MIN {
            return Err(refused(format!(
                "the secret in {} is too short: it needs {BYTES_MIN} characters; `openssl rand -hex 32` makes one",
                path.display()
            )));
        }
        Ok(Self(sha256(secret.as_bytes())))
    }

    /// No secret, for a network in which everybody is trusted.
    pub fn none() -> Self {
        Self(sha256(b""))
    }

    pub(super) fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.0)
    }
}

impl fmt::Debug for FormSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FormSecret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_without_its_newline_and_must_be_long_enough() {
        let folder = tempfile::tempdir().unwrap();
        let read = |text: &str| {
            let path = folder.path().join("secret");
            std::fs::write(&path, text).unwrap();
            FormSecret::read(&path)
        };
        let secret = "0123456789abcdef0123456789abcdef";
        assert!(read(secret).unwrap() == read(&format!(" {secret}\n")).unwrap());
        assert!(read(secret).unwrap() != FormSecret::none());
        let refused = read("too short\n").unwrap_err().to_string();
        assert!(refused.contains("32 characters") && !refused.contains("too short\n"), "{refused}");
        assert!(FormSecret::read(&folder.path().join("missing")).is_err());
        assert!(!format!("{:?}", read(secret).unwrap()).contains("01"));
    }
}
