//! Wraps every request of a client's port. It charges the request to its connection while the request is
//! under way, and the answer until the answer has left for the client ([`Budget`](super::budget::Budget)).
//!
//! An answer that comes complete is encoded at once, even if the client has no room for it yet. So the
//! charge equals what is kept.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};

use ::http::{Method, Request, Response};
use axum::body::Body;
use bytes::Bytes;
use futures::FutureExt as _;
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use lowkey_api::v1;

use super::budget::{Account, CALL_BYTES, Charge, LIST_READS, Urgency};
use super::serve::Answering;
use super::{Dialect, http};
use crate::call::{Call, Cost, calls};
use crate::peers::proto;

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
    const USUAL: Self = Self { urgency: Urgency::Usual, reads: 0, has_calls: false, is_whole: true };

    /// By the table of calls; what is not in it is told here: streams, and what probes ask for.
    fn of(method: &Method, path: &str) -> Self {
        let stream = Self { is_whole: false, ..Self::USUAL };
        if let Some(cost) = KNOWN.cost(method, path) {
            return Self::with(cost);
        }
        match path.rsplit('/').next().unwrap_or_default() {
            "Session" | "Heartbeat" => Self { has_calls: true, urgency: Urgency::Urgent, ..stream },
            "Watch" | "Observe" | "ServerReflectionInfo" => stream,
            _ => match path {
                "/v1/watch" | "/v1/election/observe" => stream,
                "/healthz" | "/readyz" | "/metrics" => Self::with(Cost::Urgent),
                _ => Self::USUAL,
            },
        }
    }

    fn with(cost: Cost) -> Self {
        let reads = match cost {
            Cost::Usual | Cost::Urgent => 0,
            Cost::Large => 1,
            Cost::List => LIST_READS,
        };
        Self { urgency: Urgency::of(cost), reads, ..Self::USUAL }
    }
}

/// The calls of the table, by how they are asked for.
struct Known {
    /// By the whole path.
    grpc: HashMap<String, Cost>,
    /// By the path, and the method: some paths have several.
    http: HashMap<&'static str, Vec<(Method, Cost)>>,
}

impl Known {
    fn cost(&self, method: &Method, path: &str) -> Option<Cost> {
        if let Some(cost) = self.grpc.get(path) {
            return Some(*cost);
        }
        // What HEAD asks for is made as for GET.
        let method = if method == Method::HEAD { &Method::GET } else { method };
        let methods = self.http.get(path)?;
        methods.iter().find(|(taken, _)| taken == method).map(|(_, cost)| *cost)
    }
}

macro_rules! known {
    ($($service:ident { $(
        $Name:ident($Request:ty) -> $_response:ty {
            node: $_node:tt
            grpc: $_grpc:tt
            http: { $($METHOD:ident $path:literal $_example:literal)? }
            session: $_session:tt
        }
    )* })*) => {
        static KNOWN: LazyLock<Known> = LazyLock::new(|| {
            let mut known = Known { grpc: HashMap::new(), http: HashMap::new() };
            $($(
                let cost = <$Request as Call>::COST;
                known.grpc.insert(format!("/lowkey.v1.{}/{}", stringify!($service), stringify!($Name)), cost);
                $( known.http.entry($path).or_default().push((Method::$METHOD, cost)); )?
            )*)*
            known
        });
    };
}
calls!(known);

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
    let mut charge = match account.charge(CALL_BYTES, kind.urgency) {
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
    let turn = if kind.reads > 0 { Some(account.read(kind.reads).await) } else { None };
    let response = service.call(request).await?;
    if let Some(turn) = turn
        && kind.reads == LIST_READS
    {
        charge.keep(turn);
    }
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
        assert_eq!(Kind::of(&Method::HEAD, "/v1/locks").reads, LIST_READS);
        assert_eq!(kind("/lowkey.v1.LockService/QueryAudit").reads, LIST_READS);
        assert_eq!(kind("/grpc.health.v1.Health/Check"), Kind::USUAL);
    }
}
