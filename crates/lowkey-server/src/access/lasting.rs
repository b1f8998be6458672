//! What lasts longer than a call: it ends when its caller may not have it any more.

use std::sync::Arc;

use futures::stream::unfold;
use futures::{Stream, StreamExt as _};
use lowkey_api::ApiError;
use lowkey_core::Caller;

use super::Guard;
use super::permitted::{Rule, Ruled};
use crate::edge::EventStream;

impl Guard {
    /// Resolves when the caller may not have this any more.
    pub(crate) async fn taken_away<T: Ruled>(&self, caller: &Caller, wanted: &T) -> ApiError {
        self.ends(caller, wanted.rule()).await
    }

    /// Resolves when the caller is nobody any more.
    pub(crate) async fn expelled(self: Arc<Self>, caller: Caller) -> ApiError {
        self.ends(&caller, Rule::Somebody).await
    }

    async fn ends(&self, caller: &Caller, rule: Rule<'_>) -> ApiError {
        let mut changes = self.changes.subscribe();
        loop {
            // Before the first change, too: the table may have changed since the caller was let in.
            if let Err(error) = self.judge_again(caller, rule) {
                return error;
            }
            if changes.changed().await.is_err() {
                // The guard is gone, and with it the node.
                std::future::pending::<()>().await;
            }
        }
    }

    /// The same events, until the caller may not have them any more. Then an error is the last one.
    pub(crate) fn while_permitted<T, W>(
        self: &Arc<Self>,
        caller: Caller,
        wanted: W,
        events: EventStream<T>,
    ) -> EventStream<T>
    where
        T: Send + 'static,
        W: Ruled + Send + Sync + 'static,
    {
        let guard = Arc::clone(self);
        let ends = Box::pin(async move { guard.taken_away(&caller, &wanted).await });
        Box::pin(ending_with(events, ends))
    }
}

/// A stream, until something ends it. What that says is its last item.
pub(crate) fn ending_with<T, E>(
    items: impl Stream<Item = Result<T, E>> + Send + Unpin,
    ends: impl Future<Output = E> + Send + Unpin,
) -> impl Stream<Item = Result<T, E>> + Send {
    unfold(Some((items, ends)), |state| async move {
        let (mut items, mut ends) = state?;
        tokio::select! {
            biased;
            error = &mut ends => Some((Err(error), None)),
            next = items.next() => next.map(|item| (item, Some((items, ends)))),
        }
    })
}
