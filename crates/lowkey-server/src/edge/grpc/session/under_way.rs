//! The calls that a session has under way, by `seq`, and how they are dropped.
//!
//! Dropping a call tells the node that its caller no longer waits. A client that goes away may have many
//! thousands of calls, so they are dropped in portions, and others get their turn in between.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::task::{Context, Poll};

use futures::StreamExt as _;
use futures::future::{AbortHandle, Abortable};
use futures::stream::FuturesUnordered;

/// How many calls are dropped before others have their turn.
const PORTION: usize = 256;

/// A call or watch that was not answered to its end yet.
pub(super) struct Open {
    pub(super) abort: AbortHandle,
    /// The bytes that it is charged with.
    pub(super) bytes: usize,
    /// True if it may wait without a limit.
    pub(super) waits: bool,
}

pub(super) struct UnderWay<F: Future + Send + 'static> {
    /// Aborted calls stay here until they are polled.
    calls: FuturesUnordered<Abortable<F>>,
    /// Everything that is in `calls`, or goes on as a watch, and was not aborted.
    open: HashMap<u64, Open>,
}

impl<F: Future + Send + 'static> UnderWay<F> {
    pub(super) fn new() -> Self {
        Self { calls: FuturesUnordered::new(), open: HashMap::new() }
    }

    /// True if no call is left to be answered. There may still be watches.
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    pub(super) fn has(&self, seq: u64) -> bool {
        self.open.contains_key(&seq)
    }

    pub(super) fn push(&mut self, seq: u64, call: Abortable<F>, open: Open) {
        self.calls.push(call);
        self.open.insert(seq, open);
    }

    /// The outcome of the next call that was not aborted.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<F::Output>> {
        loop {
            match self.calls.poll_next_unpin(cx) {
                Poll::Ready(Some(Ok(outcome))) => return Poll::Ready(Some(outcome)),
                Poll::Ready(Some(Err(_aborted))) => {}
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// The call of this `seq` goes on as something else, which `abort` ends. Returns false if the call was
    /// cancelled.
    pub(super) fn goes_on(&mut self, seq: u64, abort: AbortHandle) -> bool {
        let open = self.open.get_mut(&seq);
        open.map(|open| open.abort = abort).is_some()
    }

    /// Forgets a call that was answered to its end, or that the caller of this method is about to abort.
    pub(super) fn close(&mut self, seq: u64) -> Option<Open> {
        self.open.remove(&seq)
    }

    /// Ends those that may wait without a limit, and returns the bytes that they were charged with.
    pub(super) fn give_up_waits(&mut self) -> usize {
        let given_up = self.open.extract_if(|_, open| open.waits);
        given_up.map(|(_, open)| end(open)).sum()
    }

    /// Ends all, and returns the bytes that they were charged with.
    pub(super) fn give_up(&mut self) -> usize {
        let bytes = self.open.values().map(|open| open.bytes).sum();
        drop(std::mem::replace(self, Self::new()));
        bytes
    }
}

fn end(open: Open) -> usize {
    open.abort.abort();
    open.bytes
}

impl<F: Future + Send + 'static> Drop for UnderWay<F> {
    fn drop(&mut self) {
        // Without a runtime there is no other task that could be held up.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.calls.len() > PORTION {
            let (calls, open) = (std::mem::take(&mut self.calls), std::mem::take(&mut self.open));
            runtime.spawn(let_go(calls, open));
        }
    }
}

/// Drops calls in portions. An aborted call is dropped when it is polled, and has no other effect.
async fn let_go<F: Future + Send + 'static>(
    mut calls: FuturesUnordered<Abortable<F>>,
    open: HashMap<u64, Open>,
) {
    let mut open = open.into_values();
    loop {
        let portion: usize = open
            .by_ref()
            .take(PORTION)
            .map(|open| {
                end(open);
                1
            })
            .sum();
        if portion == 0 {
            return;
        }
        poll_fn(|cx| {
            for _ in 0..2 * PORTION {
                if !matches!(calls.poll_next_unpin(cx), Poll::Ready(Some(_))) {
                    break;
                }
            }
            Poll::Ready(())
        })
        .await;
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const CALLS: usize = 16 * PORTION;

    struct Counted(Arc<AtomicUsize>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn many_calls_are_dropped_some_at_a_time() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let mut under_way = UnderWay::new();
        for seq in 0..CALLS as u64 {
            let counted = Counted(Arc::clone(&dropped));
            let (abort, registration) = AbortHandle::new_pair();
            let call = async move {
                let _counted = counted;
                std::future::pending::<()>().await;
            };
            under_way.push(seq, Abortable::new(call, registration), Open { abort, bytes: 2, waits: true });
        }
        assert_eq!(under_way.give_up(), 2 * CALLS);
        let mut before = 0;
        // Another task that always has something to do.
        let neighbour = poll_fn(move |cx| {
            let now = dropped.load(Ordering::Relaxed);
            assert!(now - before <= 2 * PORTION, "{} at once", now - before);
            before = now;
            cx.waker().wake_by_ref();
            if now == CALLS { Poll::Ready(()) } else { Poll::Pending }
        });
        tokio::spawn(neighbour).await.unwrap();
    }
}
