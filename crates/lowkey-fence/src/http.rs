//! HTTP and gRPC services: the token comes as headers, and late requests are answered as refused.
//!
//! | header | |
//! |---|---|
//! | `Lowkey-Token` | the fencing token, in decimal |
//! | `Lowkey-Lock` | the lock's name; percent-encoded where it is not printable ASCII |
//! | `Lowkey-Mode` | `exclusive` or `shared`; exclusive if it is missing |
//!
//! A client adds them with [`write_headers`]. In the service, [`FenceLayer`] reads them into a [`Fence`] among the
//! request's extensions: with axum the extractor [`Fenced`] takes it from there, with tonic
//! `request.extensions().get::<Fence>()`.
//!
//! **The layer does not compare tokens.** A check before the handler would be a check, then an act, with room for
//! a pause between them. The handler hands the fence on to the store that it writes to, and returns that store's
//! [`Refusal`](crate::Refusal): status 409 and reason `STALE_TOKEN`, or `FAILED_PRECONDITION` in gRPC.

#[cfg(feature = "axum")]
mod axum;
mod layer;
#[cfg(feature = "tonic")]
mod tonic;

use std::error::Error;
use std::fmt;

use ::http::{HeaderMap, HeaderName, HeaderValue};
use lowkey_token::{Fence, Mode, Token};

#[cfg(feature = "axum")]
pub use self::axum::Fenced;
pub use layer::{FenceLayer, FenceService};

/// The header with the token.
pub const TOKEN: HeaderName = HeaderName::from_static("lowkey-token");
/// The header with the lock's name.
pub const LOCK: HeaderName = HeaderName::from_static("lowkey-lock");
/// The header with the mode.
pub const MODE: HeaderName = HeaderName::from_static("lowkey-mode");

/// The reason of a refusal, as the lock service has it.
pub const STALE_TOKEN: &str = "STALE_TOKEN";

/// Locks have names of up to 512 bytes, each of which may take three here.
const LOCK_HEADER_BYTES_MAX: usize = 3 * 512;

/// Adds what a holder presents to a request.
///
/// ```
/// use lowkey_fence::{Fence, Mode, Token, http};
/// let mut request = ::http::Request::new(());
/// let fence = Fence::new("billing/nightly", Token(34), Mode::Exclusive); // or guard.fence()
/// http::write_headers(&fence, request.headers_mut());
/// assert_eq!(request.headers()["lowkey-token"], "34");
/// assert_eq!(http::read_headers(request.headers()), Ok(Some(fence)));
/// ```
pub fn write_headers(fence: &Fence, headers: &mut HeaderMap) {
    headers.insert(TOKEN, HeaderValue::from(fence.token().0));
    let mode = if fence.mode() == Mode::Shared { "shared" } else { "exclusive" };
    headers.insert(MODE, HeaderValue::from_static(mode));
    if let Ok(lock) = HeaderValue::try_from(encode(fence.lock())) {
        headers.insert(LOCK, lock);
    }
}

/// What a request presents. `None` if it has no header of the kind.
pub fn read_headers(headers: &HeaderMap) -> Result<Option<Fence>, InvalidHeaders> {
    if [TOKEN, LOCK, MODE].iter().all(|name| !headers.contains_key(name)) {
        return Ok(None);
    }
    let token = text(headers, &TOKEN)?.ok_or(InvalidHeaders::Token)?;
    let is_plain = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_digit());
    let token = token.parse::<i64>().ok().filter(|token| is_plain && *token > 0);
    let token = token.ok_or(InvalidHeaders::Token)?.unsigned_abs();
    let lock = text(headers, &LOCK)?.filter(|lock| (1..=LOCK_HEADER_BYTES_MAX).contains(&lock.len()));
    let lock = lock.and_then(decode).ok_or(InvalidHeaders::Lock)?;
    let mode = text(headers, &MODE)?.map_or(Ok(Mode::default()), str::parse);
    Ok(Some(Fence::new(lock, Token(token), mode.map_err(|_| InvalidHeaders::Mode)?)))
}

/// The one value of a header. Two would leave it open which of them counts.
fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, InvalidHeaders> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    match (first.map(HeaderValue::to_str), values.next()) {
        (_, Some(_)) => Err(InvalidHeaders::Repeated),
        (Some(Ok(text)), None) => Ok(Some(text.trim())),
        (Some(Err(_)), None) => Err(InvalidHeaders::Lock),
        (None, None) => Ok(None),
    }
}

fn encode(lock: &str) -> String {
    let mut encoded = String::with_capacity(lock.len());
    for byte in lock.bytes() {
        match byte {
            b'!'..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

fn decode(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let [first, tail @ ..] = rest {
        match (first, tail) {
            (b'%', [high, low, tail @ ..]) => {
                let digit =
                    |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
                bytes.push(digit(high)? * 16 + digit(low)?);
                rest = tail;
            }
            (b'%', _) => return None,
            (byte, tail) => {
                bytes.push(*byte);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).ok().filter(|lock| !lock.contains(|c: char| c.is_control()))
}

/// What is wrong with the headers of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidHeaders {
    /// There are none, where a token is required.
    Missing,
    /// The token is missing or none.
    Token,
    /// The lock's name is missing or none.
    Lock,
    /// The mode is none.
    Mode,
    /// One of them came twice.
    Repeated,
}

impl InvalidHeaders {
    /// A stable word for programs.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Missing | Self::Token | Self::Repeated => "INVALID_FENCING_TOKEN",
            Self::Lock => "INVALID_LOCK_NAME",
            Self::Mode => "INVALID_MODE",
        }
    }
}

impl fmt::Display for InvalidHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "this is written only under a lock: send its Lowkey-Token and Lowkey-Lock",
            Self::Token => {
                "Lowkey-Token must be a number from 1 to 9223372036854775807, as the lock service gave it"
            }
            Self::Lock => {
                "Lowkey-Lock must be the lock's name, percent-encoded where it is not printable ASCII"
            }
            Self::Mode => "Lowkey-Mode must be exclusive or shared",
            Self::Repeated => "Lowkey-Token, Lowkey-Lock and Lowkey-Mode may each come once only",
        })
    }
}

impl Error for InvalidHeaders {}

/// The body of an error, as the lock service writes its own.
fn error_body(code: i32, reason: &str, message: &str) -> String {
    serde_json::json!({ "code": code, "reason": reason, "message": message }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(headers: &[(&str, &str)]) -> Result<Option<Fence>, InvalidHeaders> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(
                HeaderName::try_from(*name).unwrap(),
                HeaderValue::from_bytes(value.as_bytes()).unwrap(),
            );
        }
        read_headers(&map)
    }

    #[test]
    fn names_of_every_kind_survive_the_headers() {
        for lock in ["a", "billing/nightly", "100 %", "Ärger", "a%2Fb", &"ü".repeat(256)] {
            for mode in [Mode::Exclusive, Mode::Shared] {
                let fence = Fence::new(lock, Token(9_007_199_254_740_993), mode);
                let mut headers = HeaderMap::new();
                write_headers(&fence, &mut headers);
                assert_eq!(read_headers(&headers), Ok(Some(fence)), "{lock}");
            }
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert_eq!(read(&[]), Ok(None));
        for token in ["", "0", "-1", "+7", "1.0", "0x1", "9223372036854775808", "7 8"] {
            let read = read(&[("lowkey-token", token), ("lowkey-lock", "a")]);
            assert_eq!(read, Err(InvalidHeaders::Token), "{token:?}");
        }
        for lock in ["", "%", "%4", "%zz", "%ff", "%00", "%0a", "Ä"] {
            let read = read(&[("lowkey-token", "7"), ("lowkey-lock", lock)]);
            assert_eq!(read, Err(InvalidHeaders::Lock), "{lock:?}");
        }
        assert_eq!(read(&[("lowkey-token", "7")]), Err(InvalidHeaders::Lock));
        assert_eq!(read(&[("lowkey-lock", "a")]), Err(InvalidHeaders::Token));
        let mode = |mode| read(&[("lowkey-token", "7"), ("lowkey-lock", "a"), ("lowkey-mode", mode)]);
        assert_eq!(mode("both"), Err(InvalidHeaders::Mode));
        assert_eq!(mode("SHARED").map(|fence| fence.map(|fence| fence.mode())), Ok(Some(Mode::Shared)));
        let twice = [("lowkey-token", "7"), ("lowkey-token", "8"), ("lowkey-lock", "a")];
        assert_eq!(read(&twice), Err(InvalidHeaders::Repeated));
    }
}
