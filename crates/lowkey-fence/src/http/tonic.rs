//! tonic: refusals as a status with its reason.

use std::collections::HashMap;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::STALE_TOKEN;
use crate::refusal::{FenceError, InvalidToken, Refusal};

/// The domain of reasons, as the lock service has it.
const DOMAIN: &str = "lowkey";

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let particulars = HashMap::from([
            ("resource".to_owned(), refusal.resource().to_string()),
            ("lock".to_owned(), refusal.fence().lock().to_owned()),
            ("token".to_owned(), refusal.fence().token().to_string()),
            ("accepted".to_owned(), refusal.accepted().to_string()),
        ]);
        let details = ErrorDetails::with_error_info(STALE_TOKEN, DOMAIN, particulars);
        Self::with_error_details(Code::FailedPrecondition, refusal.to_string(), details)
    }
}

impl From<InvalidToken> for Status {
    fn from(invalid: InvalidToken) -> Self {
        let details = ErrorDetails::with_error_info("INVALID_FENCING_TOKEN", DOMAIN, HashMap::new());
        Self::with_error_details(Code::InvalidArgument, invalid.to_string(), details)
    }
}

/// An error of the store is told without its particulars: they are for the service's log.
impl<E> From<FenceError<E>> for Status {
    fn from(error: FenceError<E>) -> Self {
        match error {
            FenceError::Refused(refusal) => refusal.into(),
            FenceError::InvalidToken(invalid) => invalid.into(),
            FenceError::Store(_) => {
                Self::internal("the store failed: the write may or may not have been done")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lowkey_token::{Fence, Mode, Token};

    use super::*;
    use crate::{Marks, Resource};

    #[test]
    fn a_refusal_is_a_failed_precondition_with_both_tokens() {
        let mut marks = Marks { exclusive: Token(34), shared: Token(0) };
        let resource = Resource::parse("accounts").unwrap();
        let refusal =
            marks.present(&resource, &Fence::new("billing", Token(33), Mode::Exclusive)).unwrap_err();
        let status = Status::from(refusal);
        assert_eq!(status.code(), Code::FailedPrecondition);
        let details = status.get_error_details();
        let info = details.error_info().unwrap();
        assert_eq!((info.reason.as_str(), info.domain.as_str()), ("STALE_TOKEN", "lowkey"));
        assert_eq!((info.metadata["token"].as_str(), info.metadata["accepted"].as_str()), ("33", "34"));
    }
}
