//! A bearer token in a file, read again when the file changes.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tonic::codegen::http::HeaderValue;

use crate::error::Error;

/// What every token begins with.
const PREFIX: &str = "lk_";
/// How often the file is looked at, at most.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The file, and the token that was read last.
pub(crate) struct TokenFile {
    path: PathBuf,
    last: Mutex<(HeaderValue, Instant)>,
}

impl TokenFile {
    pub(crate) fn read(path: PathBuf) -> Result<Self, Error> {
        let header = header(&path)?;
        Ok(Self { path, last: Mutex::new((header, Instant::now())) })
    }

    /// The value of the header `authorization`.
    pub(crate) fn header(&self) -> HeaderValue {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.1.elapsed() >= LOOK_INTERVAL {
            last.1 = Instant::now();
            match header(&self.path) {
                Ok(header) => last.0 = header,
                Err(error) => tracing::warn!(%error, "the token that was read before stays in use"),
            }
        }
        last.0.clone()
    }
}

/// Never the token.
impl fmt::Debug for TokenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenFile").field("path", &self.path).finish_non_exhaustive()
    }
}

fn header(path: &Path) -> Result<HeaderValue, Error> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::invalid(format!("the token file {shown} cannot be read: {error}")))?;
    let token = text.trim();
    let is_token = token.starts_with(PREFIX) && token.chars().all(|letter| letter.is_ascii_graphic());
    let header = HeaderValue::try_from(format!("Bearer {token}")).ok().filter(|_| is_token);
    let mut header = header.ok_or_else(|| {
        Error::invalid(format!(
            "the token file {shown} has no token; one line that begins with {PREFIX} is needed"
        ))
    })?;
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_word_and_is_never_shown() {
        let path = std::env::temp_dir().join(format!("lowkey-token-{}", std::process::id()));
        for (text, is_right) in [
            ("lk_1_abc", true),
            ("  lk_1_abc\n", true),
            ("", false),
            ("abc", false),
            ("lk_1 abc", false),
            ("lk_1\nlk_2", false),
            ("lk_\u{e4}", false),
        ] {
            std::fs::write(&path, text).unwrap();
            let file = TokenFile::read(path.clone());
            assert_eq!(file.is_ok(), is_right, "{text:?}");
            match file {
                Ok(file) => {
                    assert_eq!(file.header(), "Bearer lk_1_abc");
                    assert!(!format!("{file:?} {:?}", file.header()).contains("abc"));
                }
                Err(error) => assert!(text.is_empty() || !format!("{error} {error:?}").contains(text)),
            }
        }
        std::fs::remove_file(&path).unwrap();
        assert!(TokenFile::read(path).unwrap_err().to_string().contains("cannot be read"));
    }
}
