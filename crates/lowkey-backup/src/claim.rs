//! Claiming an epoch: a file with its number, created on the condition that there is none.
//!
//! What comes of each attempt is decided by [`lowkey_core::EpochClaim`], which the simulator runs too. Here is what a
//! store may do: lose an answer, so that our own file seems to be somebody else's; or take the condition and ignore it,
//! so that everybody wins. So each claim has a random mark, is read back, and is ours only with that mark in it. And a
//! store must prove first that of many who create a file one wins.

use futures::future::join_all;
use lowkey_core::{ClusterId, Epoch, EpochClaim, EpochsKnown};
use object_store::ObjectStore as _;
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt as _, PutMode};
use serde::{Deserialize, Serialize};

use crate::catalog::{Catalog, EPOCHS};
use crate::error::BackupError;
use crate::manifest::hex;
use crate::store::Store;

/// So many try to create one file at a time, when a store is tried.
const CONTENDERS: usize = 6;

/// So many epochs in a row that others have are not claimed by restores.
const ATTEMPTS_MAX: usize = 1000;

/// Who claims an epoch, and what for; for a person who looks at the store.
#[derive(Clone, Debug)]
pub struct ClaimFor {
    /// The cluster that will have it.
    pub cluster: ClusterId,
    /// The cluster whose place it takes.
    pub parent: ClusterId,
    /// `restore` or `recover`.
    pub what: &'static str,
    /// The clock here, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The highest counter that is known here.
    pub highest_counter: u64,
}

/// An epoch that is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// Which.
    pub epoch: Epoch,
    /// By how many minutes the store's clock is ahead of this one's.
    pub store_ahead_minutes: i64,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct ClaimFile {
    epoch: String,
    cluster: String,
    parent: String,
    r#for: String,
    claimed_unix_ms: String,
    /// Random: whose it is.
    mark: String,
}

enum Created {
    Ours,
    Others,
}

impl Store {
    /// Claims an epoch above all that is known here and in the store.
    pub async fn claim(&self, catalog: &Catalog, about: &ClaimFor) -> Result<Claimed, BackupError> {
        let store_minutes = self.prove_conditions().await?;
        let own_minutes = about.unix_ms / 60_000;
        let mut claim = EpochClaim::new(EpochsKnown {
            own_minutes,
            store_minutes,
            backup_minutes: catalog.newest_minutes(),
            claimed: catalog.claimed,
            highest_counter: about.highest_counter.max(catalog.highest_counter()),
        });
        for _ in 0..ATTEMPTS_MAX {
            let wanted = claim.wanted()?;
            let created = self.create(wanted, about).await?;
            if let Some(epoch) = claim.settle(wanted, matches!(created, Created::Ours)) {
                let store_ahead_minutes = store_minutes.cast_signed().wrapping_sub(own_minutes.cast_signed());
                return Ok(Claimed { epoch, store_ahead_minutes });
            }
        }
        Err(BackupError::Unfit {
            problem: format!(
                "{ATTEMPTS_MAX} epochs in a row were claimed by others at {} in this moment: look at {EPOCHS}/ there",
                self.url()
            ),
        })
    }

    async fn create(&self, epoch: Epoch, about: &ClaimFor) -> Result<Created, BackupError> {
        let name = format!("{EPOCHS}/{epoch}.json");
        let mark = random_mark()?;
        let file = ClaimFile {
            epoch: epoch.to_string(),
            cluster: about.cluster.to_string(),
            parent: about.parent.to_string(),
            r#for: about.what.to_owned(),
            claimed_unix_ms: about.unix_ms.to_string(),
            mark: mark.clone(),
        };
        let json = serde_json::to_vec_pretty(&file).expect("texts are JSON");
        let path = self.path(&name);
        let failed = || BackupError::store(format!("cannot claim {name} at {}", self.url()));
        match self.objects.put_opts(&path, json.into(), PutMode::Create.into()).await {
            // An answer may have been lost, and the request was made again: then the file that is there is ours.
            Ok(_) | Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {}
            Err(error) => return Err(failed()(error)),
        }
        let found = self.objects.get(&path).await.map_err(failed())?;
        let found = found.bytes().await.map_err(failed())?;
        // What is there and is not ours, readable or not, is somebody else's.
        let is_ours = serde_json::from_slice::<ClaimFile>(&found).is_ok_and(|found| found.mark == mark);
        Ok(if is_ours { Created::Ours } else { Created::Others })
    }

    /// Shows that of many who create a file one wins, and all others are refused. Gives the store's clock, in minutes.
    async fn prove_conditions(&self) -> Result<u64, BackupError> {
        let path = self.path(&format!("{EPOCHS}/probe-{}", random_mark()?));
        let outcome = self.contend(&path).await;
        // What is left over is in nobody's way.
        let _ = self.objects.delete(&path).await;
        outcome
    }

    async fn contend(&self, path: &Path) -> Result<u64, BackupError> {
        let unfit = |why: &str| BackupError::Unfit {
            problem: format!(
                "the store at {} {why}, so two restores could take the same epoch, and their clusters would grant the \
                 same tokens; use a store that creates a file only where there is none (S3: If-None-Match)",
                self.url()
            ),
        };
        let failed = || BackupError::store(format!("cannot write to {}", self.url()));
        let marks: Vec<String> = (0..CONTENDERS).map(|_| random_mark()).collect::<Result<_, _>>()?;
        let puts =
            marks.iter().map(|mark| self.objects.put_opts(path, mark.clone().into(), PutMode::Create.into()));
        let mut winners = Vec::new();
        for (outcome, mark) in join_all(puts).await.into_iter().zip(&marks) {
            match outcome {
                Ok(_) => winners.push(mark.as_bytes()),
                Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {}
                Err(Error::NotImplemented { .. } | Error::NotSupported { .. }) => {
                    return Err(unfit("has no conditional create"));
                }
                Err(error) => return Err(failed()(error)),
            }
        }
        let found = self.objects.get(path).await.map_err(failed())?;
        let store_seconds = found.meta.last_modified.timestamp();
        let found = found.bytes().await.map_err(failed())?;
        // None may know that it has won: its answer was lost, and what it asked again was refused.
        let is_one = match winners[..] {
            [] => marks.iter().any(|mark| *mark.as_bytes() == found[..]),
            [winner] => *winner == found[..],
            _ => false,
        };
        if !is_one {
            return Err(unfit("does not heed the condition of a conditional create"));
        }
        // One that comes later is refused, too, and changes nothing.
        match self.objects.put_opts(path, random_mark()?.into(), PutMode::Create.into()).await {
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {}
            Ok(_) => return Err(unfit("does not heed the condition of a conditional create")),
            Err(error) => return Err(failed()(error)),
        }
        Ok(u64::try_from(store_seconds).unwrap_or(0) / 60)
    }
}

fn random_mark() -> Result<String, BackupError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|_| BackupError::NoRandomness)?;
    Ok(hex(&bytes))
}
