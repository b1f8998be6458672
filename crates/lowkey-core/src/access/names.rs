//! The types of the access table. Like those of `name.rs`: parsed once, and right from then on.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use crate::limits::{CERTIFICATE_NAME_BYTES_MAX, PRINCIPAL_NAME_BYTES_MAX};
use crate::name::{Invalid, LockName, OwnerId, check_text, hex_display, text_type};

text_type! {
    /// The name of a principal: 1–128 bytes of UTF-8, no control characters, and no `/`: otherwise `a`
    /// would own what belongs to `a/b`.
    PrincipalName
}

impl PrincipalName {
    const FIELD: &str = "principal";

    /// Parses a name, or says what is allowed.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        check_text(Self::FIELD, text, PRINCIPAL_NAME_BYTES_MAX)?;
        if text.contains('/') {
            return Err(Invalid::new(
                Self::FIELD,
                "must have no '/': what is below a principal's name is its own",
            ));
        }
        Ok(Self(text.into()))
    }

    /// True for the principal's own name as an owner, and for what is below it.
    pub fn owns(&self, owner: &OwnerId) -> bool {
        is_at_or_below(owner.as_str(), &self.0)
    }
}

text_type! {
    /// A name in a client's certificate (subject alternative name): 1–256 bytes of UTF-8, no control
    /// characters.
    CertificateName
}

impl CertificateName {
    /// Parses a name, or says what is allowed.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        check_text("certificate_names", text, CERTIFICATE_NAME_BYTES_MAX)?;
        Ok(Self(text.into()))
    }
}

text_type! {
    /// What a grant covers: a name and all that is below it, or `/` for everything.
    GrantPath
}

/// The path that covers everything. No lock has this name.
const EVERYTHING: &str = "/";

impl GrantPath {
    /// Parses a path, or says what is allowed.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        const FIELD: &str = "path";
        if text == EVERYTHING {
            return Ok(Self::everything());
        }
        match LockName::parse(text) {
            Ok(_) => Ok(Self(text.into())),
            Err(invalid) => {
                let hint = match text.strip_suffix('/') {
                    Some(_) => "; a path covers what is below it, without a '/' at its end",
                    None => "; '/' alone covers everything",
                };
                Err(Invalid::new(FIELD, invalid.problem + hint))
            }
        }
    }

    /// The path that covers everything.
    pub fn everything() -> Self {
        Self(EVERYTHING.into())
    }

    /// True if it covers all there is.
    pub fn is_everything(&self) -> bool {
        &*self.0 == EVERYTHING
    }

    /// True for this name, and for those below it.
    pub fn covers_name(&self, name: &str) -> bool {
        self.is_everything() || is_at_or_below(name, &self.0)
    }

    /// True if every name that begins with this text is covered. `billing` reaches `billing2`: only what begins
    /// with `billing/` lies wholly within `billing`.
    pub fn covers_prefix(&self, prefix: &str) -> bool {
        self.is_everything() || prefix.strip_prefix(&*self.0).is_some_and(|rest| rest.starts_with('/'))
    }
}

fn is_at_or_below(name: &str, above: &str) -> bool {
    let segments = || crate::mutants::A_GRANT_COVERS_WHAT_BEGINS_LIKE_IT.is_active();
    name.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || segments())
}

/// The public part of a token.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenId(pub [u8; 8]);

impl TokenId {
    /// Reads what it is shown as: 16 hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let digits = text.as_bytes().chunks(2);
        let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
        let is_hex = text.len() == 16 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let bytes = is_hex.then(|| digits.map(byte).collect::<Option<Vec<u8>>>()).flatten();
        let bytes = bytes.and_then(|bytes| <[u8; 8]>::try_from(bytes).ok());
        let problem = "must be the 16 hexadecimal digits of a token's id, those between lk_ and the next _";
        bytes.map(Self).ok_or_else(|| Invalid::new("token_id", problem))
    }
}

/// The SHA-256 hash of a token's secret part. The secret itself is known to its holder, and to no replica.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenHash(pub [u8; 32]);

hex_display!(TokenId, TokenHash);

/// What can be allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// To make leases, take locks and stand for election.
    Acquire,
    /// To see who holds what.
    Read,
    /// To be told of changes.
    Watch,
    /// To read the audit log.
    Audit,
    /// To manage: on `/` members and access; on a path, to end what others hold there.
    Admin,
}

impl Verb {
    /// Every verb.
    pub const ALL: [Self; 5] = [Self::Acquire, Self::Read, Self::Watch, Self::Audit, Self::Admin];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Read => "read",
            Self::Watch => "watch",
            Self::Audit => "audit",
            Self::Admin => "admin",
        }
    }

    /// Parses a name, or says what is allowed.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let known = Self::ALL.into_iter().find(|verb| verb.as_str() == text);
        known.ok_or_else(|| Invalid::new("verbs", "must be of acquire, read, watch, audit, admin"))
    }

    fn bit(self) -> u8 {
        match self {
            Self::Acquire => 1,
            Self::Read => 2,
            Self::Watch => 4,
            Self::Audit => 8,
            Self::Admin => 16,
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Some verbs.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Verbs(u8);

impl Verbs {
    /// True if it is one of them.
    pub fn has(self, verb: Verb) -> bool {
        self.0 & verb.bit() != 0
    }

    /// True if it is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// These and those.
    #[must_use]
    pub fn with(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// These but not those.
    #[must_use]
    pub fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// Each of them.
    pub fn iter(self) -> impl Iterator<Item = Verb> {
        Verb::ALL.into_iter().filter(move |verb| self.has(*verb))
    }

    pub(crate) fn bits(self) -> u8 {
        self.0
    }

    /// `None` for a verb that only a later version knows.
    pub(crate) fn from_bits(bits: u32) -> Option<Self> {
        let all: Self = Verb::ALL.into_iter().collect();
        u8::try_from(bits).ok().map(Self).filter(|verbs| verbs.without(all).is_empty())
    }
}

impl FromIterator<Verb> for Verbs {
    fn from_iter<I: IntoIterator<Item = Verb>>(verbs: I) -> Self {
        Self(verbs.into_iter().fold(0, |bits, verb| bits | verb.bit()))
    }
}

/// `read,watch`.
impl fmt::Display for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, verb) in self.iter().enumerate() {
            write!(f, "{}{verb}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> GrantPath {
        GrantPath::parse(text).unwrap()
    }

    #[test]
    fn a_path_covers_itself_and_what_is_below_by_segment() {
        let billing = path("billing");
        for inside in ["billing", "billing/a", "billing/a/b"] {
            assert!(billing.covers_name(inside), "{inside}");
        }
        for outside in ["billing2", "bill", "billing.a", "/billing", "a/billing", ""] {
            assert!(!billing.covers_name(outside), "{outside}");
        }
        assert!(path("/").covers_name("billing") && path("/").covers_name("/a"));
        assert!(path("/a").covers_name("/a/b") && !path("/a").covers_name("a/b"));
    }

    #[test]
    fn a_prefix_lies_within_a_path_if_it_goes_on_below_it() {
        let billing = path("billing");
        assert!(billing.covers_prefix("billing/") && billing.covers_prefix("billing/a"));
        for wider in ["", "b", "billing", "billing2/", "/billing/"] {
            assert!(!billing.covers_prefix(wider), "{wider:?}");
        }
        assert!(path("/").covers_prefix("") && path("/").covers_prefix("billing"));
    }

    #[test]
    fn what_is_no_path_is_refused_with_a_hint() {
        let problem = |text: &str| GrantPath::parse(text).unwrap_err().problem;
        assert!(problem("billing/").contains("without a '/' at its end"));
        assert!(problem("").contains("'/' alone covers everything"));
        assert!(GrantPath::parse("a//b").is_err() && GrantPath::parse("a/../b").is_err());
    }

    #[test]
    fn a_principal_owns_its_name_and_what_is_below_it() {
        let billing = PrincipalName::parse("billing").unwrap();
        let owns = |owner: &str| billing.owns(&OwnerId::parse(owner).unwrap());
        assert!(owns("billing") && owns("billing/host-7") && owns("billing/a/b"));
        assert!(!owns("billing2") && !owns("billin") && !owns("other/billing") && !owns("Billing"));
        assert!(PrincipalName::parse("a/b").is_err() && PrincipalName::parse("").is_err());
        assert!(PrincipalName::parse(&"p".repeat(129)).is_err());
    }

    #[test]
    fn verbs_are_read_as_they_are_shown_and_unknown_ones_are_noticed() {
        for verb in Verb::ALL {
            assert_eq!(Verb::parse(verb.as_str()), Ok(verb));
        }
        assert!(Verb::parse("write").is_err());
        let some: Verbs = [Verb::Watch, Verb::Read].into_iter().collect();
        assert_eq!(some.to_string(), "read,watch");
        assert_eq!(Verbs::from_bits(some.bits().into()), Some(some));
        assert_eq!([Verbs::from_bits(32), Verbs::from_bits(256)], [None, None]);
    }

    #[test]
    fn a_tokens_id_is_read_as_it_is_shown() {
        let id = TokenId([0, 1, 2, 3, 4, 5, 6, 0xab]);
        assert_eq!(TokenId::parse(&id.to_string()), Ok(id));
        for bad in ["", "00", "000102030405060g", "000102030405060é", "00010203040506abcd"] {
            assert!(TokenId::parse(bad).is_err(), "{bad}");
        }
    }
}
