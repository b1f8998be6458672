//! The only way to what a backup holds: every byte of it read and checked, as a node does when it starts.

use std::collections::BTreeSet;

use bytes::BytesMut;
use futures::TryStreamExt as _;
use lowkey_core::GroupId;
use lowkey_replica::SavedState;
use object_store::ObjectStoreExt as _;

use crate::Progress;
use crate::catalog::BackupId;
use crate::error::BackupError;
use crate::manifest::{GroupFile, MANIFEST_FILE, Manifest, sha256};
use crate::store::Store;
use crate::write::{file_name, is_described};

/// What a backup holds. All of it was checked.
#[derive(Debug)]
pub struct Fetched {
    /// Which.
    pub id: BackupId,
    /// What it consists of.
    pub manifest: Manifest,
    /// The state of the root group.
    pub root: SavedState,
    /// The states of all other groups.
    pub others: Vec<(GroupId, SavedState)>,
}

/// The proof that a backup can be restored.
#[derive(Clone, Debug)]
pub struct Verified {
    id: BackupId,
}

impl Verified {
    /// Which.
    pub fn id(&self) -> &BackupId {
        &self.id
    }
}

impl Fetched {
    /// The proof that it can be restored.
    pub fn verified(&self) -> Verified {
        Verified { id: self.id.clone() }
    }
}

impl Store {
    /// Reads and checks all of a backup.
    pub async fn fetch(&self, id: &BackupId, progress: Progress<'_>) -> Result<Fetched, BackupError> {
        let manifest = self.manifest(id).await?;
        let manifest_file = || id.file(MANIFEST_FILE);
        let numbers: BTreeSet<u32> = manifest.groups.iter().map(|group| group.group).collect();
        if numbers.len() != manifest.groups.len() {
            return Err(BackupError::damaged(manifest_file(), "it names a group twice"));
        }
        let (all_bytes, mut done_bytes) = (manifest.size_bytes(), 0);
        let (mut root, mut others) = (None, Vec::new());
        for file in &manifest.groups {
            let saved = self
                .fetch_group(id, &manifest, file, &|bytes| progress(done_bytes + bytes, all_bytes))
                .await?;
            done_bytes += file.size_bytes;
            match GroupId(file.group) {
                GroupId::ROOT => root = Some(saved),
                group => others.push((group, saved)),
            }
        }
        let root =
            root.ok_or_else(|| BackupError::damaged(manifest_file(), "it does not name the root group"))?;
        let epoch = root.state.epoch().map_or(0, lowkey_core::Epoch::number);
        if epoch != manifest.epoch {
            return Err(BackupError::damaged(
                manifest_file(),
                format!("it says epoch {}, and the state {epoch}", manifest.epoch),
            ));
        }
        Ok(Fetched { id: id.clone(), manifest, root, others })
    }

    async fn fetch_group(
        &self,
        id: &BackupId,
        manifest: &Manifest,
        file: &GroupFile,
        told: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<SavedState, BackupError> {
        if file.file != file_name(file.group) {
            let problem = format!("it calls the file of group {} {:?}", file.group, file.file);
            return Err(BackupError::damaged(id.file(MANIFEST_FILE), problem));
        }
        let name = id.file(&file.file);
        let damaged = |problem: String| BackupError::damaged(&name, problem);
        let failed = || BackupError::store(format!("cannot read {name} from {}", self.url()));
        let found = match self.objects.get(&self.path(&name)).await {
            Err(object_store::Error::NotFound { .. }) => return Err(damaged("it is missing".into())),
            other => other.map_err(failed())?,
        };
        if found.meta.size != file.size_bytes {
            return Err(damaged(format!("it has {} bytes, not {}", found.meta.size, file.size_bytes)));
        }
        let mut payload = BytesMut::new();
        let mut parts = found.into_stream();
        while let Some(part) = parts.try_next().await.map_err(failed())? {
            payload.extend_from_slice(&part);
            told(payload.len() as u64);
        }
        let found = sha256(&payload);
        if found != file.sha256 {
            return Err(damaged("its content is not what was written: its SHA-256 does not fit".into()));
        }
        let saved = SavedState::read(&payload).map_err(|error| damaged(error.to_string()))?;
        if saved.state.cluster().to_string() != manifest.cluster {
            return Err(damaged(format!("it is of cluster {}", saved.state.cluster())));
        }
        if !is_described(file, &saved, &payload) {
            return Err(damaged("it is not what the manifest says of it".into()));
        }
        Ok(saved)
    }
}
