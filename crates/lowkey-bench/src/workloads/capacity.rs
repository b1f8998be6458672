//! `capacity`: very many leases are kept alive as in `renew`, and very many streams are told of changes as in `watch`, both
//! at once and beside pairs at a fixed rate. No lease may be lost, and no change be missed.

use tokio::time::sleep;

use super::pairs::Beside;
use super::renew::{self, RENEWED_AT};
use super::{Arena, BYTES_PER_MB, leader_memory, watch};
use crate::system::BenchProblem;

pub(super) async fn perform(arena: &Arena<'_>) -> Result<(), BenchProblem> {
    let prefix = format!("{}/kept-", arena.prefix);
    let holders = renew::make(arena, &prefix).await?;
    let beside = Beside::start(arena).await?;
    // Before it is measured all are renewed once.
    sleep(arena.sizes.kept_ttl / RENEWED_AT).await;
    watch::tell(arena, arena.sizes.capacity_streams).await?;
    if let Some(bytes) = leader_memory(arena).await? {
        arena.recorder.figure("leader's memory", bytes as f64 / BYTES_PER_MB, "MB");
    }
    beside.stop().await?;
    renew::finish(arena, &prefix, holders).await
}
