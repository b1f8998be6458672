//! axum: an extractor, and errors that answer by themselves.

use std::fmt;

use axum_core::extract::FromRequestParts;
use axum_core::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderValue, StatusCode, header};
use lowkey_token::Fence;

use super::{InvalidHeaders, STALE_TOKEN, error_body, read_headers};
use crate::refusal::{FenceError, InvalidToken, Refusal};

/// What the request presents; status 400 if it presents nothing. Needs no layer.
///
/// ```
/// use lowkey_fence::http::Fenced;
/// use lowkey_fence::{MemoryFence, Refusal};
///
/// async fn charge(Fenced(fence): Fenced, balance: &MemoryFence<i64>) -> Result<(), Refusal> {
///     balance.write(&fence, |balance| *balance -= 10) // 409 STALE_TOKEN if the lock is gone
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Fenced(pub Fence);

impl<S: Send + Sync> FromRequestParts<S> for Fenced {
    type Rejection = InvalidHeaders;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, InvalidHeaders> {
        match parts.extensions.get::<Fence>() {
            Some(fence) => Ok(Self(fence.clone())),
            None => read_headers(&parts.headers)?.map(Self).ok_or(InvalidHeaders::Missing),
        }
    }
}

fn answer(status: StatusCode, code: i32, reason: &str, message: &str) -> Response {
    let json = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    (status, [json], error_body(code, reason, message)).into_response()
}

impl IntoResponse for InvalidHeaders {
    fn into_response(self) -> Response {
        answer(StatusCode::BAD_REQUEST, 3, self.reason(), &self.to_string())
    }
}

impl IntoResponse for InvalidToken {
    fn into_response(self) -> Response {
        answer(StatusCode::BAD_REQUEST, 3, "INVALID_FENCING_TOKEN", &self.to_string())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        answer(StatusCode::CONFLICT, 9, STALE_TOKEN, &self.to_string())
    }
}

/// An error of the store is told as status 500, without its particulars: they are for the service's log.
impl<E: fmt::Display> IntoResponse for FenceError<E> {
    fn into_response(self) -> Response {
        match self {
            Self::Refused(refusal) => refusal.into_response(),
            Self::InvalidToken(invalid) => invalid.into_response(),
            Self::Store(_) => {
                let message = "the store failed: the write may or may not have been done";
                answer(StatusCode::INTERNAL_SERVER_ERROR, 13, "INTERNAL", message)
            }
        }
    }
}
