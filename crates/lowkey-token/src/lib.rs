//! The fencing token, as the service, its clients and protected resources all understand it, and the
//! [`Fence`] that a holder presents to a resource.
//!
//! This crate has no dependencies, so that a resource can check tokens without knowing the service, and
//! the state machine can count them without knowing the wire.

mod fence;

use std::fmt;

pub use fence::{Fence, Mode, ModeError};

/// A fencing token: rises with every new grant of a lock and never repeats.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How many locks a lease holds, and a digest of their tokens.
///
/// A renewal carries what the client believes to hold. Where it differs from what the leader has, one of
/// them is wrong, and the client reads its lease. The digest is the exclusive or of [`mix`] over all
/// tokens: no order matters, and a grant is added and taken out by the same step.
///
/// ```
/// use lowkey_token::{Holds, Token};
/// let mut holds = Holds::default();
/// holds.add(Token(7));
/// holds.add(Token(9));
/// holds.remove(Token(7));
/// assert_eq!(holds, Holds::of([Token(9)]));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    /// How many grants.
    pub count: u32,
    /// The exclusive or of [`mix`] over their tokens; 0 for none.
    pub digest: u64,
}

impl Holds {
    /// What somebody holds who holds these.
    pub fn of(tokens: impl IntoIterator<Item = Token>) -> Self {
        let mut holds = Self::default();
        tokens.into_iter().for_each(|token| holds.add(token));
        holds
    }

    /// One grant more.
    pub fn add(&mut self, token: Token) {
        self.count += 1;
        self.digest ^= mix(token);
    }

    /// One grant less: one that was added before.
    pub fn remove(&mut self, token: Token) {
        self.count -= 1;
        self.digest ^= mix(token);
    }
}

/// Spreads a token over 64 bits, so that the digests of different sets of tokens differ.
///
/// The finishing steps of SplitMix64, in arithmetic modulo 2^64; every client does the same.
///
/// ```
/// use lowkey_token::{Token, mix};
/// assert_eq!(mix(Token(0)), 0xe220_a839_7b1d_cdaf);
/// assert_eq!(mix(Token(1)), 0x910a_2dec_8902_5cc1);
/// ```
pub fn mix(token: Token) -> u64 {
    let mixed = token.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
