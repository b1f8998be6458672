//! The rule. Every adapter keeps it in its own language; this is the one to compare them with.

use lowkey_token::{Fence, Mode, Token};

use crate::refusal::Refusal;
use crate::resource::Resource;

/// What a resource remembers: the highest token that it accepted in each mode.
///
/// - An exclusive token is accepted if it is at least *both* marks.
/// - A shared token is accepted if it is at least the *exclusive* mark: readers may overtake each other.
/// - What is accepted raises the mark of its mode, in the same atomic step as the write.
/// - Equal is accepted: a holder may write more than once.
///
/// One mark would be wrong. With a shared 10 accepted, an exclusive 9 is stale; but a shared 9 beside it is not.
///
/// ```
/// use lowkey_fence::{Marks, Mode, Token};
/// let mut marks = Marks::default();
/// assert!(marks.accept(Token(34), Mode::Exclusive));
/// assert!(!marks.accept(Token(33), Mode::Exclusive));
/// assert!(marks.accept(Token(36), Mode::Shared) && marks.accept(Token(35), Mode::Shared));
/// assert!(!marks.accept(Token(35), Mode::Exclusive), "a shared token 36 was here");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// The highest exclusive token that was accepted; 0 for none.
    pub exclusive: Token,
    /// The highest shared token that was accepted; 0 for none.
    pub shared: Token,
}

impl Default for Marks {
    /// Nothing was accepted yet.
    fn default() -> Self {
        Self { exclusive: Token(0), shared: Token(0) }
    }
}

impl Marks {
    /// Whether this token would be accepted now.
    pub fn allow(&self, token: Token, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => token >= self.exclusive && token >= self.shared,
            Mode::Shared => token >= self.exclusive,
        }
    }

    /// Accepts the token and raises its mark, or changes nothing and returns `false`.
    pub fn accept(&mut self, token: Token, mode: Mode) -> bool {
        let is_allowed = self.allow(token, mode);
        if is_allowed {
            let mark = match mode {
                Mode::Exclusive => &mut self.exclusive,
                Mode::Shared => &mut self.shared,
            };
            *mark = token.max(*mark);
        }
        is_allowed
    }

    /// The same for what a holder presents, with a refusal that says why.
    pub fn present(&mut self, resource: &Resource, fence: &Fence) -> Result<(), Refusal> {
        if self.accept(fence.token(), fence.mode()) {
            Ok(())
        } else {
            Err(Refusal::new(resource, fence, *self))
        }
    }
}

/// The token as a signed 64-bit integer, as databases keep it. The service never gives 0, nor one above this.
#[cfg(any(
    feature = "mysql",
    feature = "object-store",
    feature = "postgres",
    feature = "redis",
    feature = "sqlite",
    test
))]
pub(crate) fn signed(fence: &Fence) -> Result<i64, crate::InvalidToken> {
    i64::try_from(fence.token().0).ok().filter(|token| *token > 0).ok_or(crate::InvalidToken(fence.token()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::InvalidToken;

    /// The rule over the whole history: nobody is accepted below a token that excludes it.
    fn model(accepted: &[(u64, Mode)], token: u64, mode: Mode) -> bool {
        accepted.iter().all(|(before, how)| match (how, mode) {
            (Mode::Shared, Mode::Shared) => true,
            _ => *before <= token,
        })
    }

    proptest! {
        #[test]
        fn two_marks_decide_as_the_whole_history_does(
            presented in prop::collection::vec((1_u64..20, any::<bool>()), 0..200)
        ) {
            let (mut marks, mut accepted) = (Marks::default(), Vec::new());
            for (token, is_shared) in presented {
                let mode = if is_shared { Mode::Shared } else { Mode::Exclusive };
                let before = marks;
                let is_accepted = marks.accept(Token(token), mode);
                prop_assert_eq!(is_accepted, model(&accepted, token, mode), "{:?} and {} {}", before, mode, token);
                if is_accepted {
                    accepted.push((token, mode));
                } else {
                    prop_assert_eq!(marks, before, "a refusal changes nothing");
                }
            }
        }
    }

    #[test]
    fn a_stale_exclusive_token_is_refused_after_a_shared_one() {
        let mut marks = Marks::default();
        assert!(marks.accept(Token(10), Mode::Shared));
        assert!(!marks.accept(Token(9), Mode::Exclusive));
        assert!(marks.accept(Token(9), Mode::Shared), "readers may overtake each other");
        assert_eq!(marks.shared, Token(10), "a mark never goes back");
        assert!(marks.accept(Token(11), Mode::Exclusive));
        assert!(!marks.accept(Token(10), Mode::Shared), "a reader of before the writer is late");
    }

    #[test]
    fn tokens_that_the_service_never_gives_are_invalid() {
        let fence = |token| Fence::new("a", Token(token), Mode::Exclusive);
        assert_eq!(signed(&fence(1)), Ok(1));
        assert_eq!(signed(&fence(i64::MAX as u64)), Ok(i64::MAX));
        for token in [0, i64::MAX as u64 + 1, u64::MAX] {
            assert_eq!(signed(&fence(token)), Err(InvalidToken(Token(token))));
        }
    }
}
