//! Connections that clients share, each made when the first of them needs it.

use std::collections::HashMap;

use tokio::sync::Mutex;

use crate::system::BenchProblem;

/// So many of something, for clients that are numbered without end.
pub(crate) struct Slots<T> {
    count: usize,
    made: Mutex<HashMap<usize, T>>,
}

impl<T: Clone> Slots<T> {
    pub(crate) fn new(count: usize) -> Self {
        Self { count: count.max(1), made: Mutex::default() }
    }

    /// The one that a client of this number uses.
    pub(crate) async fn get(
        &self,
        number: usize,
        make: impl Future<Output = Result<T, BenchProblem>>,
    ) -> Result<T, BenchProblem> {
        let slot = number % self.count;
        let mut made = self.made.lock().await;
        if let Some(known) = made.get(&slot) {
            return Ok(known.clone());
        }
        let new = make.await?;
        made.insert(slot, new.clone());
        Ok(new)
    }
}
