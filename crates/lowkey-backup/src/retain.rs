//! Letting old backups go.
//!
//! - Nothing goes without a [`Verified`]: a backup that was read back whole. It stays, however old its name makes it.
//! - Other clusters' backups are never touched, the parent's of a restored cluster least of all.
//! - The manifest goes first: what is interrupted leaves files without a manifest, which are no backup. Such remains go
//!   when they are a day older than the verified backup, by the store's own clock.

use object_store::ObjectStoreExt as _;

use crate::catalog::{BackupId, Folder};
use crate::error::BackupError;
use crate::fetch::Verified;
use crate::manifest::MANIFEST_FILE;
use crate::store::Store;

/// For how long files without a manifest may be a backup that is being made.
const REMAINS_SECONDS: i64 = 24 * 60 * 60;

/// What was kept and what was not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retained {
    /// Backups of this cluster that are there.
    pub kept: usize,
    /// Backups that are there no more.
    pub deleted: Vec<BackupId>,
}

impl Store {
    /// Deletes what is older than the newest so many backups of a cluster, one of which was verified.
    pub async fn retain(&self, keep: usize, verified: &Verified) -> Result<Retained, BackupError> {
        let listing = self.listing().await?;
        let own = listing.folders.iter().filter(|folder| folder.id.cluster() == verified.id().cluster());
        let (whole, remains): (Vec<&Folder>, Vec<&Folder>) =
            own.partition(|folder| folder.manifest().is_some());
        let newest = whole.iter().find(|folder| folder.id == *verified.id());
        let Some(written) = newest.and_then(|folder| folder.manifest()).map(|meta| meta.last_modified) else {
            // Somebody else deletes here, too.
            return Ok(Retained { kept: whole.len(), deleted: Vec::new() });
        };
        let mut retained = Retained::default();
        for (number, folder) in whole.iter().enumerate() {
            if number < keep || folder.id == *verified.id() {
                retained.kept += 1;
            } else {
                self.delete(folder).await?;
                retained.deleted.push(folder.id.clone());
            }
        }
        let is_left = |folder: &&&Folder| {
            folder
                .files
                .iter()
                .all(|(_, meta)| (written - meta.last_modified).num_seconds() > REMAINS_SECONDS)
        };
        for folder in remains.iter().filter(is_left) {
            self.delete(folder).await?;
        }
        Ok(retained)
    }

    async fn delete(&self, folder: &Folder) -> Result<(), BackupError> {
        let mut files: Vec<_> = folder.files.iter().collect();
        files.sort_by_key(|(name, _)| name != MANIFEST_FILE);
        for (name, meta) in files {
            match self.objects.delete(&meta.location).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => {
                    return Err(BackupError::store(format!("cannot delete {}", folder.id.file(name)))(error));
                }
            }
        }
        Ok(())
    }
}
