//! How long something lives if it is not renewed again, as a duration.

use std::time::Duration;

use crate::v1::{Lease, LockHolder};

impl LockHolder {
    /// How long the holder's lease lives if it is not renewed again; nothing if the node that answered does not know.
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining_ms.map(as_duration)
    }
}

impl Lease {
    /// How long it lives if it is not renewed again; nothing if the node that answered does not know, or if its time
    /// has not begun.
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining_ms.map(as_duration)
    }
}

fn as_duration(milliseconds: i64) -> Duration {
    Duration::from_millis(u64::try_from(milliseconds).unwrap_or_default())
}
