//! The epoch of a new cluster, claimed in a store.

use std::time::{SystemTime, UNIX_EPOCH};

use lowkey_backup::{Catalog, ClaimFor, Claimed, Store};
use lowkey_core::{ClusterId, FirstNumbers};
use lowkey_server::Anew;

use super::failed;
use crate::exit::{self, CommandFailure};

/// Who wants an epoch.
pub(crate) struct Claimant {
    /// The cluster whose place is taken.
    pub(crate) parent: ClusterId,
    /// `restore` or `recover`.
    pub(crate) what: &'static str,
    /// The highest number that is known of it.
    pub(crate) highest_counter: u64,
}

/// A new cluster that has an epoch of its own.
pub(crate) async fn claim(
    store: &Store,
    catalog: &Catalog,
    claimant: &Claimant,
    keep_tokens: bool,
    quarantine: bool,
) -> Result<(Anew, Claimed), CommandFailure> {
    let cluster = Anew::random_id().map_err(|error| CommandFailure::new(exit::NO, error.to_string()))?;
    let about = ClaimFor {
        cluster,
        parent: claimant.parent,
        what: claimant.what,
        unix_ms: unix_ms(),
        highest_counter: claimant.highest_counter,
    };
    let claimed = store.claim(catalog, &about).await.map_err(|error| failed(&error))?;
    Ok((Anew { cluster, numbers: FirstNumbers::Claimed(claimed.epoch), keep_tokens, quarantine }, claimed))
}

/// This machine's clock. A test of an unoptimised build may set it wrong.
fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    #[cfg(debug_assertions)]
    if let Some(behind) = std::env::var("LOWKEY_TEST_CLOCK_BEHIND_MS").ok().and_then(|text| text.parse().ok())
    {
        return now.saturating_sub(behind);
    }
    now
}
