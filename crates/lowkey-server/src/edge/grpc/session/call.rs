//! One call of a session: what it asks, and how it is answered.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures::future::{Abortable, Either};
use futures::{FutureExt, Stream, StreamExt};
use lowkey_api::v1::session_answer::Answer;
use lowkey_api::v1::session_call::Call;
use lowkey_api::v1::{EventType, RenewLeases, WatchEvent};
use lowkey_api::{ApiError, Reason, v1};
use lowkey_core::limits::REQUEST_BYTES_MAX;
use tokio::task::JoinSet;

use crate::call::{Cost, calls};
use crate::edge::budget::{Account, CALL_BYTES, Charge, Urgency};
use crate::edge::{EventStream, Node, Shown, fault};

/// How many leases one message may renew: as many as fit into a request with the longest ids.
const LEASES_PER_RENEWAL_MAX: usize = 6_000;

/// The length of the longest varint.
const LEASE_ID_BYTES_MAX: usize = 10;
const _: () = assert!(LEASES_PER_RENEWAL_MAX * LEASE_ID_BYTES_MAX + 64 <= REQUEST_BYTES_MAX);

/// The outcome of a call.
#[allow(
    clippy::large_enum_variant,
    reason = "nearly all are answers, and a box for each would cost the hot path"
)]
pub(super) enum Outcome {
    /// The answer. If it is large, the charge is held until the client takes it.
    Answered(Answer, Option<Charge>),
    /// The answers follow as a stream.
    Watching(EventStream<WatchEvent>),
}

/// The bytes that a call is charged with while it is under way. The message itself is kept. For each lease
/// of a renewal the space for its answer is added.
pub(super) fn bytes(call: &Call) -> usize {
    const RENEWAL_BYTES: usize = 64;
    let renewals = match call {
        Call::RenewLeases(request) => request.lease_ids.len() * RENEWAL_BYTES,
        _ => 0,
    };
    CALL_BYTES + call.encoded_len() + renewals
}

/// Renewals, releases and revocations are urgent. A client that has asked for too much must not lose its
/// leases because of that, and may always give something up.
pub(super) fn urgency(call: &Call) -> Urgency {
    Urgency::of(cost(call))
}

macro_rules! cost {
    ($($_service:ident { $(
        $_name:ident($Request:ty) -> $_response:ty {
            node: $_node:tt
            grpc: $_grpc:tt
            http: $_http:tt
            session: { $($Variant:ident)? }
        }
    )* })*) => {
        fn cost(call: &Call) -> Cost {
            match call {
                $($($( Call::$Variant(_) => <$Request as crate::call::Call>::COST, )?)*)*
                Call::RenewLeases(_) => <RenewLeases as crate::call::Call>::COST,
                Call::Watch(_) | Call::Cancel(_) => Cost::Usual,
            }
        }
    };
}
calls!(cost);

/// Whether only the client decides how long the call takes.
pub(super) fn waits(call: &Call) -> bool {
    match call {
        Call::AcquireLock(request) => request.wait_ms > 0,
        Call::Watch(_) => true,
        _ => false,
    }
}

macro_rules! ask {
    ($($_service:ident { $(
        $_name:ident($_request:ty) -> $_response:ty {
            node: $_node:tt
            grpc: $_grpc:tt
            http: $_http:tt
            session: { $($Variant:ident)? }
        }
    )* })*) => {
        /// Not an `async fn`, because that would store the call twice.
        fn ask<N: Node>(
            node: Arc<N>,
            shown: Shown,
            call: Call,
        ) -> impl Future<Output = Result<Outcome, ApiError>> + Send {
            async move {
                let answer = match call {
                    $($($( Call::$Variant(request) => {
                        let call = node.guard().permit(&shown, request)?;
                        Answer::$Variant(node.call_on_stream(call).await?)
                    } )?)*)*
                    Call::RenewLeases(request) => {
                        check_renewals(&request)?;
                        let call = node.guard().permit(&shown, request)?;
                        // Boxed: larger than the others, and one call stands for many renewals.
                        Answer::RenewLeases(Box::pin(node.call(call)).await?)
                    }
                    Call::Watch(request) => {
                        // Boxed: larger than the others, and rare.
                        let watch = node.guard().permit(&shown, request)?;
                        let events = Box::pin(node.watch(watch)).await?;
                        return Ok(Outcome::Watching(events.stream));
                    }
                    Call::Cancel(seq) => unreachable!("the cancellation of {seq} was made a call"),
                };
                Ok(Outcome::Answered(answer, None))
            }
        }
    };
}
calls!(ask);

/// Starts the call.
pub(super) fn answer<N: Node>(
    node: &Arc<N>,
    account: &Arc<Account>,
    shown: &Shown,
    seq: u64,
    call: Call,
) -> impl Future<Output = (u64, Outcome)> + Send + use<N> {
    let is_large = cost(&call) == Cost::Large;
    let asked = outcome(Arc::clone(node), shown.clone(), call);
    let asked = match is_large {
        true => Either::Left(charged(asked, Arc::clone(account)).boxed()),
        false => Either::Right(asked),
    };
    asked.map(move |outcome| (seq, outcome))
}

fn outcome<N: Node>(node: Arc<N>, shown: Shown, call: Call) -> impl Future<Output = Outcome> + Send {
    // What a panic left half done belongs to this call alone. It is dropped unseen.
    let asked = AssertUnwindSafe(ask(node, shown, call)).catch_unwind();
    asked.map(|outcome| {
        let outcome = outcome.unwrap_or_else(|panic| Err(fault("a call of a session", &*panic)));
        outcome.unwrap_or_else(refused)
    })
}

fn refused(error: ApiError) -> Outcome {
    Outcome::Answered(Answer::Error(error.into()), None)
}

/// A large answer, charged as soon as it exists. It runs in a task: a session whose client takes nothing is
/// not polled, and its answers would pile up without being counted.
async fn charged(asked: impl Future<Output = Outcome> + Send + 'static, account: Arc<Account>) -> Outcome {
    // The size of an answer in memory, as a multiple of its size on the wire.
    const IN_MEMORY: usize = 2;
    let task = async move {
        let _turn = account.read(1).await;
        match asked.await {
            Outcome::Answered(answer, _) => {
                let bytes = answer.encoded_len() * IN_MEMORY;
                match account.charge(bytes, Urgency::Usual) {
                    Ok(charge) => Outcome::Answered(answer, Some(charge)),
                    Err(error) => refused(error),
                }
            }
            watching => watching,
        }
    };
    // Dropping the set ends its task.
    let mut tasks = JoinSet::new();
    tasks.spawn(task);
    match tasks.join_next().await {
        Some(Ok(outcome)) => outcome,
        // Only a runtime that ends drops the task unfinished.
        _ => refused(ApiError::new(Reason::NodeStopping, "the node stopped before it could answer")),
    }
}

fn check_renewals(request: &RenewLeases) -> Result<(), ApiError> {
    let (leases, holds) = (request.lease_ids.len(), request.holds.len());
    if leases > LEASES_PER_RENEWAL_MAX {
        let problem = format!("at most {LEASES_PER_RENEWAL_MAX} may be renewed at once, not {leases}");
        return Err(ApiError::invalid("lease_id", problem));
    }
    if holds != 0 && holds != leases {
        let problem = format!("must be none, or one for each lease: {holds} of {leases}");
        return Err(ApiError::invalid("holds", problem));
    }
    Ok(())
}

/// The events of a watch, each with the watch's `seq`. Unless the watch is aborted, its last event says
/// that it is the last: see [`is_last`].
pub(super) struct Watch {
    seq: u64,
    events: Abortable<EventStream<WatchEvent>>,
    is_over: bool,
}

/// An event of a watch, or its failure.
type Told = Result<WatchEvent, ApiError>;

/// Whether nothing follows this event.
pub(super) fn is_last(told: &Told) -> bool {
    told.as_ref().map_or(true, |event| event.r#type() == EventType::End)
}

impl Watch {
    pub(super) fn new(seq: u64, events: Abortable<EventStream<WatchEvent>>) -> Self {
        Self { seq, events, is_over: false }
    }
}

impl Stream for Watch {
    type Item = (u64, Told);

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        // A stream that has panicked is not polled again.
        let polled = catch_unwind(AssertUnwindSafe(|| self.events.poll_next_unpin(cx)));
        let told = match polled {
            Ok(event) => match ready!(event) {
                Some(told) => told,
                None if self.events.is_aborted() => return Poll::Ready(None),
                None => Err(ApiError::new(Reason::Internal, "the watch ended without saying why")),
            },
            Err(panic) => Err(fault("a watch of a session", &*panic)),
        };
        self.is_over = is_last(&told);
        Poll::Ready(Some((self.seq, told)))
    }
}
