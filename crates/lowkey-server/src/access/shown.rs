//! What a client shows of itself: a token with each request, or a certificate with its connection.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{Extensions, HeaderMap, HeaderValue, header};
use lowkey_api::{ApiError, Reason};
use lowkey_core::{Caller, Denied, TokenHash, TokenId};

use super::{Cause, Guard, told};
use crate::edge::CertificateNames;
use crate::error::StartError;
use crate::node_key::sha256;
use crate::operation::parse_hex;

const TOKEN_PREFIX: &str = "lk_";

/// Some node of this process wants to know the addresses of its clients.
static WANTS_ADDRESSES: AtomicBool = AtomicBool::new(false);

pub(super) fn want_addresses() {
    WANTS_ADDRESSES.store(true, Ordering::Relaxed);
}

/// Whether requests are to carry the addresses that they came from. It costs them a little.
pub(crate) fn wants_addresses() -> bool {
    WANTS_ADDRESSES.load(Ordering::Relaxed)
}

/// Where a request came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientAddress(pub(crate) IpAddr);

/// On requests that came by the socket in the node's data directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalAdmin;

/// Who sent a request, as far as that is proven.
#[derive(Clone, Debug)]
pub struct Shown {
    caller: Caller,
    /// What was shown proves nothing.
    failure: Option<ApiError>,
    address: Option<IpAddr>,
}

impl Shown {
    /// Nothing was shown.
    pub const NOTHING: Self = Self { caller: Caller::Nobody, failure: None, address: None };

    /// Who sent a request, as [`Guard::look_at`] found it.
    pub fn of(extensions: &Extensions) -> Self {
        extensions.get::<Self>().cloned().unwrap_or(Self::NOTHING)
    }

    /// What nobody but the guard may note.
    #[cfg(test)]
    pub(super) fn claimed(caller: Caller) -> Self {
        Self { caller, failure: None, address: None }
    }

    pub(crate) fn caller(&self) -> &Caller {
        &self.caller
    }

    pub(super) fn failure(&self) -> Option<&ApiError> {
        self.failure.as_ref()
    }

    pub(super) fn address(&self) -> Option<IpAddr> {
        self.address
    }
}

impl Guard {
    /// Finds out who sent a request, and notes it there. Costs next to nothing while there are no principals.
    pub fn look_at(&self, headers: &HeaderMap, extensions: &mut Extensions) {
        let is_admin = extensions.get::<LocalAdmin>().is_some();
        if self.is_open() && !is_admin {
            // Nobody else puts it there; and what is not there cannot be believed.
            extensions.remove::<Shown>();
            return;
        }
        let address = extensions.get::<ClientAddress>().map(|address| address.0);
        let (caller, failure) = match is_admin {
            true => (Caller::LocalAdmin, None),
            false => match self.caller(headers, extensions, address) {
                Ok(caller) => (caller, None),
                Err(failure) => (Caller::Nobody, Some(failure)),
            },
        };
        extensions.insert(Shown { caller, failure, address });
    }

    fn caller(
        &self,
        headers: &HeaderMap,
        extensions: &Extensions,
        address: Option<IpAddr>,
    ) -> Result<Caller, ApiError> {
        let table = self.table();
        // A token says more than the connection that it comes on. One that is wrong is not passed over.
        if let Some(bearer) = headers.get(header::AUTHORIZATION).and_then(bearer) {
            let known = token(bearer).and_then(|(id, hash)| table.by_token(id, &hash));
            return known.ok_or_else(|| self.failed(address));
        }
        let names = extensions.get::<CertificateNames>();
        Ok(names.and_then(|names| table.by_names(&names.0)).unwrap_or(Caller::Nobody))
    }

    /// A token that proves nothing was shown.
    fn failed(&self, address: Option<IpAddr>) -> ApiError {
        if let Err(wait_ms) = self.logins.failed(address) {
            self.complaints.count(Cause::TooManyLogins);
            return ApiError::new(
                Reason::LimitLogins,
                "too many tokens that are not valid came from this address; valid ones are served all the same",
            )
            .retry_after_ms(wait_ms);
        }
        let mut error = told(&Denied::Unproven);
        error.message =
            "this token is not valid: it was revoked, or is of another cluster, or is not complete; an admin can \
                         make one: lowkey access token new PRINCIPAL"
                .into();
        error
    }
}

/// The token in a header `Authorization: Bearer …`.
fn bearer(value: &HeaderValue) -> Option<&str> {
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

/// `lk_ID_SECRET`: the id, and the hash of the secret.
fn token(text: &str) -> Option<(TokenId, TokenHash)> {
    let (id, secret) = text.strip_prefix(TOKEN_PREFIX)?.split_once('_')?;
    let secret: [u8; 32] = parse_hex(secret)?;
    Some((TokenId::parse(id).ok()?, TokenHash(sha256(&secret))))
}

/// A new token: its text, which is told once, and what the cluster keeps of it.
pub(crate) fn new_token() -> Result<(String, TokenId, TokenHash), StartError> {
    let (id, secret) = (TokenId(crate::random_bytes()?), TokenHash(crate::random_bytes()?));
    // The secret is shown in the same digits as a hash.
    Ok((format!("{TOKEN_PREFIX}{id}_{secret}"), id, TokenHash(sha256(&secret.0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_was_made() {
        let (text, id, hash) = new_token().unwrap();
        assert_eq!(text.len(), 3 + 16 + 1 + 64);
        assert_eq!(token(&text), Some((id, hash)));
        for at in 0..text.len() {
            assert_eq!(token(&text[..at]), None, "cut at {at}");
        }
        assert_ne!(token(&text.replace("lk_", "lk-")), Some((id, hash)));
        assert!(!text.contains(&hash.to_string()), "the hash is not the secret");
    }

    #[test]
    fn only_a_bearers_token_is_looked_at() {
        let value = |text: &'static str| HeaderValue::from_static(text);
        assert_eq!(bearer(&value("Bearer lk_1")), Some("lk_1"));
        assert_eq!(bearer(&value("bearer  lk_1 ")), Some("lk_1"));
        assert_eq!(bearer(&value("Basic abc")), None);
        assert_eq!(bearer(&value("Bearer")), None);
    }
}
