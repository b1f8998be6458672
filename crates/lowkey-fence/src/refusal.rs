//! What is said to a holder that comes too late, and what else can go wrong.

use std::error::Error;
use std::fmt;

use lowkey_token::{Fence, Token};

use crate::marks::Marks;
use crate::resource::Resource;

/// A resource refused a token: another holder was there since. Nothing was written.
///
/// ```
/// use lowkey_fence::{Fence, Marks, Mode, Resource, Token};
/// let resource = Resource::parse("accounts")?;
/// let mut marks = Marks { exclusive: Token(34), shared: Token(0) };
/// let refusal = marks.present(&resource, &Fence::new("billing", Token(33), Mode::Exclusive)).unwrap_err();
/// assert_eq!(
///     refusal.to_string(),
///     "accounts refused the exclusive token 33 of lock billing, since it has accepted 34: your lock is gone: \
///      stop, do not retry"
/// );
/// # Ok::<(), lowkey_fence::InvalidResource>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    resource: Resource,
    fence: Fence,
    marks: Marks,
}

impl Refusal {
    /// What a caller must do now, in one sentence. Every refusal of every adapter says it.
    pub const ADVICE: &str = "your lock is gone: stop, do not retry";

    pub(crate) fn new(resource: &Resource, fence: &Fence, marks: Marks) -> Self {
        Self { resource: resource.clone(), fence: fence.clone(), marks }
    }

    /// What was to be written to.
    pub fn resource(&self) -> &Resource {
        &self.resource
    }

    /// What was presented.
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// What the resource has accepted before.
    pub fn marks(&self) -> Marks {
        self.marks
    }

    /// The accepted token that the presented one is below: the higher mark.
    pub fn accepted(&self) -> Token {
        self.marks.exclusive.max(self.marks.shared)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (resource, fence, accepted) = (&self.resource, &self.fence, self.accepted());
        write!(f, "{resource} refused the {fence}, since it has accepted {accepted}: {}", Self::ADVICE)
    }
}

impl Error for Refusal {}

/// A token that the service never gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidToken(pub Token);

impl fmt::Display for InvalidToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is no fencing token: they are from 1 to {}", self.0, i64::MAX)
    }
}

impl Error for InvalidToken {}

/// Why a fenced write was not done, with the error of the store that it was for.
///
/// Only [`FenceError::Refused`] is final. After an error of the store the write may or may not have been done:
/// read the resource, or present the same token again.
#[derive(Debug)]
#[non_exhaustive]
pub enum FenceError<E> {
    /// The lock is gone: stop, do not retry.
    Refused(Refusal),
    /// The token is none.
    InvalidToken(InvalidToken),
    /// The store failed.
    Store(E),
}

impl<E> FenceError<E> {
    /// The refusal, if it is one.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }
}

impl<E> From<Refusal> for FenceError<E> {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl<E> From<InvalidToken> for FenceError<E> {
    fn from(invalid: InvalidToken) -> Self {
        Self::InvalidToken(invalid)
    }
}

impl<E: fmt::Display> fmt::Display for FenceError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::InvalidToken(invalid) => invalid.fmt(f),
            Self::Store(error) => write!(f, "the store failed before the write was confirmed: {error}"),
        }
    }
}

impl<E: Error + 'static> Error for FenceError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}
