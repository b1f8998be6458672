//! What can go wrong, and what that means for the caller.

use std::fmt;

use lowkey_api::{ApiError, Reason};

use crate::session::LossCause;

/// Why there is no good answer.
///
/// Decide by [`Error::kind`], [`Error::is_retryable`] and [`Error::outcome_unknown`], never by the text.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use lowkey_client::{Client, ErrorKind};
///
/// let error = Client::connect(["nowhere"]).await.expect_err("that is no URL");
/// assert!(matches!(error.kind(), ErrorKind::Invalid(_)));
/// assert!(!error.is_retryable() && !error.outcome_unknown());
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    /// The last answer was a refusal, but an earlier copy of the same call may yet be carried out.
    in_doubt: bool,
}

/// What went wrong.
///
/// ```
/// use lowkey_client::{Error, ErrorKind};
///
/// fn advice(error: &Error) -> &str {
///     match error.kind() {
///         ErrorKind::LockHeld(_) | ErrorKind::WaitTimeout(_) => "somebody else has it",
///         ErrorKind::SessionLost(_) => "stop, and begin with a new session",
///         _ if error.outcome_unknown() => "look whether it happened",
///         _ => "see what it says",
///     }
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another client holds the lock, and you did not want to wait.
    LockHeld(HeldBy),
    /// Another client held the lock for as long as you wanted to wait.
    WaitTimeout(Option<HeldBy>),
    /// The session is lost, and with it everything that it held.
    SessionLost(LossCause),
    /// The service refused; the reason says why.
    Refused(ApiError),
    /// No node answered in time. [`Error::outcome_unknown`] tells whether the call may have happened.
    Unavailable {
        /// The last problem that was seen.
        problem: String,
        /// The request was sent at least once, and may have been carried out.
        sent: bool,
        /// Why a node refused, if a refusal was the last answer. The fate of another copy of the request is
        /// unknown: otherwise this would be [`ErrorKind::Refused`].
        refusal: Option<Reason>,
    },
    /// An endpoint belongs to another cluster than the one that this client began with.
    WrongCluster {
        /// The endpoint.
        endpoint: String,
        /// The cluster that this client began with.
        expected: String,
        /// The cluster that the endpoint belongs to.
        found: String,
    },
    /// An argument is not valid.
    Invalid(String),
}

/// The holder of a lock that you do not get.
///
/// ```
/// use lowkey_client::{Error, HeldBy};
///
/// fn holder(error: &Error) -> Option<(&str, u64)> {
///     error.held_by().map(|held_by: &HeldBy| (held_by.owner.as_str(), held_by.fencing_token))
/// }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldBy {
    /// What is held: the lock itself, a subtree above it, or something below it.
    pub name: String,
    /// The holder's name, as it names itself.
    pub owner: String,
    /// The lease that holds it.
    pub lease_id: u64,
    /// The fencing token of its grant.
    pub fencing_token: u64,
    /// Since when, in milliseconds since 1970 by the clock of the node that granted it. For display only:
    /// there may be clock skew.
    pub since_unix_ms: u64,
    /// How many wait for it.
    pub waiters: u64,
}

impl HeldBy {
    fn from_metadata(error: &ApiError) -> Option<Self> {
        let text = |key: &str| error.metadata.get(key).cloned();
        let number = |key: &str| text(key).and_then(|text| text.parse().ok()).unwrap_or_default();
        Some(Self {
            name: text("held_name").or_else(|| text("lock_name"))?,
            owner: text("owner_id")?,
            lease_id: number("lease_id"),
            fencing_token: number("fencing_token"),
            since_unix_ms: number("since_unix_ms"),
            waiters: number("waiters"),
        })
    }
}

impl fmt::Display for HeldBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, owner, lease_id, fencing_token, waiters, .. } = self;
        write!(
            f,
            "{name} is held by {owner} with lease {lease_id} and token {fencing_token}, {waiters} waiting"
        )
    }
}

impl Error {
    pub(crate) fn new(kind: ErrorKind) -> Self {
        Self { kind, in_doubt: false }
    }

    pub(crate) fn invalid(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid(what.into()))
    }

    /// What went wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// The service's own reason, if the service refused.
    pub fn reason(&self) -> Option<Reason> {
        match &self.kind {
            ErrorKind::Refused(error) => Some(error.reason),
            ErrorKind::LockHeld(_) => Some(Reason::LockHeld),
            ErrorKind::WaitTimeout(_) => Some(Reason::WaitTimeout),
            ErrorKind::SessionLost(LossCause::Gone) => Some(Reason::LeaseNotFound),
            _ => None,
        }
    }

    /// Whether the same call may succeed if it is made again. The client has already tried for as long as
    /// its deadline allowed.
    pub fn is_retryable(&self) -> bool {
        match &self.kind {
            ErrorKind::Refused(error) => error.is_retryable(),
            ErrorKind::Unavailable { .. } | ErrorKind::LockHeld(_) | ErrorKind::WaitTimeout(_) => true,
            ErrorKind::SessionLost(_) | ErrorKind::WrongCluster { .. } | ErrorKind::Invalid(_) => false,
        }
    }

    /// Whether the call may have been carried out although it failed.
    pub fn outcome_unknown(&self) -> bool {
        match &self.kind {
            ErrorKind::Refused(error) => error.outcome_unknown(),
            ErrorKind::Unavailable { sent, .. } => *sent,
            _ => false,
        }
    }

    /// Whether the call, or a copy of it, may have been carried out or may yet be. A caller that does not
    /// want the effect must undo it.
    pub(crate) fn may_have_been_done(&self) -> bool {
        self.in_doubt || self.outcome_unknown()
    }

    pub(crate) fn with_doubt(mut self, in_doubt: bool) -> Self {
        self.in_doubt |= in_doubt;
        self
    }

    /// Whether another client holds the lock: now, or for as long as you waited.
    pub fn is_busy(&self) -> bool {
        matches!(self.kind, ErrorKind::LockHeld(_) | ErrorKind::WaitTimeout(_))
    }

    /// The holder, as far as is known.
    pub fn held_by(&self) -> Option<&HeldBy> {
        match &self.kind {
            ErrorKind::LockHeld(held_by) | ErrorKind::WaitTimeout(Some(held_by)) => Some(held_by),
            _ => None,
        }
    }

    pub(crate) fn unavailable(problem: impl Into<String>, sent: bool) -> Self {
        Self::new(ErrorKind::Unavailable { problem: problem.into(), sent, refusal: None })
    }

    /// The same error for a call of which another copy may have been carried out, no matter what became of
    /// this one.
    pub(crate) fn of_one_copy(self) -> Self {
        if self.outcome_unknown() {
            return self;
        }
        let (problem, refusal) = match self.kind {
            ErrorKind::Unavailable { problem, refusal, .. } => (problem, refusal),
            // What the error says of this copy does not hold for the other.
            ErrorKind::Refused(error) => {
                (error.message.replace("; nothing was done", ""), Some(error.reason))
            }
            _ => (self.to_string(), self.reason()),
        };
        let kind = ErrorKind::Unavailable { problem, sent: true, refusal };
        Self { kind, in_doubt: self.in_doubt }
    }
}

impl From<ApiError> for Error {
    fn from(error: ApiError) -> Self {
        let kind = match (error.reason, HeldBy::from_metadata(&error)) {
            (Reason::LockHeld, Some(held_by)) => ErrorKind::LockHeld(held_by),
            (Reason::WaitTimeout, held_by) => ErrorKind::WaitTimeout(held_by),
            _ => ErrorKind::Refused(error),
        };
        Self::new(kind)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            ErrorKind::LockHeld(held_by) => write!(f, "{held_by}"),
            ErrorKind::WaitTimeout(Some(held_by)) => write!(f, "the time to wait is over: {held_by}"),
            ErrorKind::WaitTimeout(None) => f.write_str("the time to wait is over"),
            ErrorKind::SessionLost(cause) => write!(f, "the session is lost: {cause}"),
            ErrorKind::Refused(error) => f.write_str(&error.message),
            ErrorKind::Unavailable { problem, sent: false, .. } => {
                write!(f, "the service does not answer, nothing was done: {problem}")
            }
            ErrorKind::Unavailable { problem, sent: true, refusal: Some(_) } => {
                write!(f, "{problem}; the request may have been carried out all the same")
            }
            ErrorKind::Unavailable { problem, sent: true, refusal: None } => {
                write!(f, "the service does not answer, and it may have been done: {problem}")
            }
            ErrorKind::WrongCluster { endpoint, expected, found } => write!(
                f,
                "{endpoint} belongs to cluster {found}, and this client began with {expected}: locks of one mean \
                 nothing in the other"
            ),
            ErrorKind::Invalid(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Error {}

/// The lock was lost while work went on under it.
///
/// ```no_run
/// # async fn example(guard: lowkey_client::LockGuard) {
/// if let Err(lost) = guard.run(async { /* the work */ }).await {
///     println!("{}: writes with token {} may be refused from now on", lost.name, lost.fencing_token);
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The lock.
    pub name: String,
    /// Its fencing token. What was written with it stands until a higher one is seen.
    pub fencing_token: u64,
    /// Why.
    pub cause: LossCause,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lock {} (token {}) is lost: {}", self.name, self.fencing_token, self.cause)
    }
}

impl std::error::Error for Lost {}
