//! Wraps every request of a client's port. It charges the request to its connection while the request is
//! under way, and the answer until the answer has left for the client ([`Budget`](super::budget::Budget)).
//!
//! An answer that comes complete is encoded at once, even if the client has no room for it yet. So the
//! charge equals what is kept.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::http::{Method, Request, Response};
use axum::body::Body;
use bytes::Bytes;
use futures::FutureExt as _;
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};

use super::budget::{Account, CALL_BYTES, Charge, LIST_READS, Urgency};
use super::serve::Answering;
use super::{Dialect, http};

/// What must be known of a request before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    urgency: Urgency,
    /// How many large answers it counts for; 0 if its answer is none.
    reads: u32,
    /// Its messages are charged one by one.
    has_calls: bool,
    /// Its answer comes complete.
    is_whole: bool,
}

impl Kind {
    fn of(method: &Method, path: &str) -> Self {
        let usual = Self { urgency: Urgency::Usual, reads: 0, has_calls: false, is_whole: true };
        let urgent = Self { urgency: Urgency::Urgent, ..usual };
        let large = Self { reads: 1, ..usual };
        let list = Self { reads: LIST_READS, ..usual };
        let stream = Self { is_whole: false, ..usual };
        let name = path.rsplit('/').next().unwrap_or_default();
        match name {
            "RenewLease" | "ReleaseLock" | "RevokeLease" | "Resign" | "GetStatus" => urgent,
            "GetLock" | "GetLease" => large,
            "ListLocks" | "ListLeases" | "ListPrincipals" => list,
            "Session" | "Heartbeat" => Self { has_calls: true, urgency: Urgency::Urgent, ..stream },
            "Watch" | "Observe" | "ServerReflectionInfo" => stream,
            _ => match path {
                "/v1/watch" | "/v1/election/observe" => stream,
                "/v1/lock" | "/v1/lease" if method == Method::GET => large,
                "/v1/locks" | "/v1/leases" => list,
                "/v1/access/principals" if method == Method::GET => list,
                "/v1/lease/renew"
                | "/v1/lock/release"
                | "/v1/lease/revoke"
                | "/v1/election/resign"
                | "/v1/status"
                | "/healthz"
                | "/readyz"
                | "/metrics" => urgent,
                _ => usual,
            },
        }
    }
}

/// Answers a request, charged to its account, if it has one.
pub(super) async fn answer(
    mut service: impl Answering,
    account: Option<Arc<Account>>,
    mut request: Request<Incoming>,
) -> Result<Response<Charged>, Infallible> {
    let Some(account) = account else {
        return Ok(service.call(request).await?.map(Charged::plain));
    };
    account.note_asked();
    let (kind, dialect) = (Kind::of(request.method(), request.uri().path()), Dialect::of(request.headers()));
    let charge = match account.charge(CALL_BYTES, kind.urgency) {
        Ok(charge) => charge,
        Err(error) => {
            if dialect == Dialect::Json {
                http::body::drain(Body::new(request.into_body())).await;
            }
            return Ok(dialect.error(error).map(Charged::plain));
        }
    };
    if kind.has_calls {
        request.extensions_mut().insert(Arc::clone(&account));
    }
    let _turn = if kind.reads > 0 { Some(account.read(kind.reads).await) } else { None };
    let response = service.call(request).await?;
    match kind.is_whole {
        true => Ok(charged(response, charge, kind.urgency, dialect)),
        false => Ok(response.map(|body| Charged { first: None, rest: body, charge: Some(charge) })),
    }
}

/// Makes the body keep the charge, and adds what its beginning costs.
fn charged(
    response: Response<Body>,
    mut charge: Charge,
    urgency: Urgency,
    dialect: Dialect,
) -> Response<Charged> {
    let (head, mut body) = response.into_parts();
    let first = match body.frame().now_or_never().flatten() {
        Some(Ok(frame)) => match frame.into_data() {
            Ok(data) => {
                if let Err(error) = charge.grow(data.len(), urgency) {
                    return dialect.error(error).map(Charged::plain);
                }
                let data = charge.carried_by(data);
                let body = Charged { first: Some(Ok(Frame::data(data))), rest: body, charge: None };
                return Response::from_parts(head, body);
            }
            Err(frame) => Some(Ok(frame)),
        },
        Some(Err(error)) => Some(Err(error)),
        None => None,
    };
    Response::from_parts(head, Charged { first, rest: body, charge: Some(charge) })
}

/// The body of an answer.
pub(super) struct Charged {
    /// A part that was already taken out of `rest`.
    first: Option<Result<Frame<Bytes>, axum::Error>>,
    rest: Body,
    /// `None` if the first part has it, or if nothing is counted.
    charge: Option<Charge>,
}

impl Charged {
    fn plain(rest: Body) -> Self {
        Self { first: None, rest, charge: None }
    }
}

impl HttpBody for Charged {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(first));
        }
        let this = &mut *self;
        Pin::new(&mut this.rest).poll_frame(cx).map_ok(|frame| match &this.charge {
            Some(charge) => frame.map_data(|data| charge.account().part(data)),
            None => frame,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let first = match &self.first {
            Some(Ok(frame)) => frame.data_ref().map_or(0, |data| data.len() as u64),
            _ => 0,
        };
        let rest = self.rest.size_hint();
        let mut whole = SizeHint::new();
        whole.set_lower(rest.lower() + first);
        if let Some(upper) = rest.upper() {
            whole.set_upper(upper + first);
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_known_by_its_path() {
        let kind = |path| Kind::of(&Method::GET, path);
        for path in ["/lowkey.v1.LockService/ListLocks", "/lowkey.v1.LockService/GetLease", "/v1/lock"] {
            assert!(kind(path).reads > 0 && kind(path).is_whole, "{path}");
        }
        for path in ["/lowkey.v1.LockService/RenewLease", "/lowkey.v1.ElectionService/Resign", "/healthz"] {
            assert_eq!(kind(path).urgency, Urgency::Urgent, "{path}");
        }
        for path in ["/lowkey.v1.LockService/Session", "/lowkey.v1.ElectionService/Observe", "/v1/watch"] {
            assert!(!kind(path).is_whole, "{path}");
        }
        assert_eq!(kind("/lowkey.v1.LockService/AcquireLock").urgency, Urgency::Usual);
        assert_eq!(Kind::of(&Method::POST, "/v1/lease").reads, 0);
    }
}
