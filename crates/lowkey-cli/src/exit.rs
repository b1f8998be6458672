//! How commands end: the exit status, the same for all of them, and the one line that says why.

use std::process::ExitCode;

use lowkey_client::{Error, ErrorKind, Reason};

use crate::output::say;

/// What was asked for is not so: a token that is not current, say.
pub(crate) const NO: u8 = 1;
/// The command line was wrong (EX_USAGE).
pub(crate) const USAGE: u8 = 64;
/// There is no service, or it cannot serve (EX_UNAVAILABLE).
pub(crate) const NO_SERVICE: u8 = 69;
/// Somebody else holds the lock (EX_TEMPFAIL).
pub(crate) const BUSY: u8 = 75;
/// The lock is lost: it is, or may soon be, somebody else's.
pub(crate) const LOST: u8 = 76;
/// The time to wait is over, as `timeout(1)` has it.
pub(crate) const TIMED_OUT: u8 = 124;

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct CommandFailure {
    pub(crate) code: u8,
    /// What happened, what it means, what to do: for a person, in one line.
    pub(crate) line: String,
    /// The service's own reason, for programs.
    pub(crate) reason: Option<Reason>,
    /// What was asked for may have been done, or may yet be.
    pub(crate) in_doubt: bool,
}

impl CommandFailure {
    pub(crate) fn new(code: u8, line: impl Into<String>) -> Self {
        Self { code, line: line.into(), reason: None, in_doubt: false }
    }

    /// Says it on standard error: in one line, or as one JSON object.
    pub(crate) fn report(&self, as_json: bool) -> ExitCode {
        let line = self.line.replace(['\n', '\r'], " ");
        if as_json {
            let mut error = serde_json::json!({
                "error": line,
                "exitStatus": self.code,
                "reason": self.reason.map(Reason::as_str),
            });
            if let Some(reason) = self.reason {
                error["see"] = reason.page().into();
            }
            say(&error.to_string());
        } else {
            say(&format!("lowkey: {line}"));
        }
        ExitCode::from(self.code)
    }

    /// What an error of the SDK means for whoever typed the command.
    pub(crate) fn of(error: &Error, endpoints: &[String], lock: &str) -> Self {
        let (code, advice) = match error.kind() {
            ErrorKind::LockHeld(_) => (BUSY, "try again later, or wait for it with --wait".to_owned()),
            ErrorKind::WaitTimeout(_) => {
                (TIMED_OUT, format!("wait for longer with --wait, or look at `lowkey get {lock}`"))
            }
            ErrorKind::SessionLost(_) => (LOST, "somebody else may hold the lock now".into()),
            ErrorKind::Unavailable { sent: true, refusal: Some(reason), .. } => of_reason(*reason, lock),
            ErrorKind::Unavailable { .. } => (
                NO_SERVICE,
                format!(
                    "asked {}: are the nodes up, and are --endpoints or LOWKEY_ENDPOINTS right?",
                    endpoints.join(",")
                ),
            ),
            ErrorKind::WrongCluster { .. } => {
                (NO_SERVICE, "name only nodes of one cluster in --endpoints".into())
            }
            ErrorKind::Invalid(_) => (USAGE, "try --help".into()),
            ErrorKind::Refused(refusal) => of_reason(refusal.reason, lock),
            _ => (NO, "`lowkey status` says how the service is doing".into()),
        };
        let see = match error.reason() {
            // What happens every day needs no explanation: cron mails every line.
            None | Some(Reason::LockHeld | Reason::WaitTimeout) => String::new(),
            // The page itself is not on every machine.
            Some(reason) => format!(" (`lowkey errors {}` says more)", reason.as_str()),
        };
        let line = format!("{error}; {advice}{see}");
        Self { code, line, reason: error.reason(), in_doubt: error.outcome_unknown() }
    }
}

fn of_reason(reason: Reason, lock: &str) -> (u8, String) {
    let (code, advice) = match reason {
        Reason::StaleToken | Reason::NotOwner => {
            return (LOST, format!("look at `lowkey get {lock}` for who holds it"));
        }
        Reason::OutcomeUnknown => {
            return (NO_SERVICE, format!("it may have happened all the same; look at `lowkey get {lock}`"));
        }
        Reason::Invalid(_) => (USAGE, "correct it, and try again"),
        Reason::LeaseNotFound | Reason::LockNotFound => (LOST, "take it anew with `lowkey acquire`"),
        Reason::NoLeader | Reason::NoQuorum => {
            (NO_SERVICE, "the service needs a majority of its nodes; look at `lowkey status`")
        }
        Reason::Recovering => (NO_SERVICE, "`lowkey status` says for how long; or wait for it"),
        Reason::NodeNotFound | Reason::QuorumAtRisk | Reason::TransferFailed => {
            (NO, "look at `lowkey member list`")
        }
        Reason::Compacted => (NO, "leave --from out, or begin with `watchFrom` of `lowkey ls --json`"),
        reason if reason.as_str().starts_with("LIMIT_") => {
            (NO_SERVICE, "the service has all that it can take; try again later")
        }
        reason if reason.is_retryable() => (NO_SERVICE, "try again"),
        Reason::Internal => (NO, "a fault of the service: please report it, with the node's log"),
        _ => (NO, "nothing was done"),
    };
    (code, advice.to_owned())
}
