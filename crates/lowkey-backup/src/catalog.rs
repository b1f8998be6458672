//! What there is in a store: backups, remains of backups, and claims.

use std::collections::BTreeMap;
use std::fmt;

use chrono::{DateTime, NaiveDateTime, Utc};
use futures::{StreamExt as _, TryStreamExt as _};
use lowkey_core::{ClusterId, Epoch};
use object_store::{ObjectMeta, ObjectStoreExt as _};

use crate::error::BackupError;
use crate::manifest::{MANIFEST_BYTES_MAX, MANIFEST_FILE, Manifest};
use crate::store::{Store, StoreUrl};

/// The folder of claims.
pub(crate) const EPOCHS: &str = "epochs";

/// How a name tells the time.
const TIME: &str = "%Y%m%dT%H%M%SZ";

/// Manifests that are asked for at a time.
const AT_A_TIME: usize = 8;

/// Which backup: `{cluster}/{time}-{revision}`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BackupId {
    cluster: String,
    made_seconds: i64,
    revision: u64,
}

impl BackupId {
    pub(crate) fn new(cluster: ClusterId, made_unix_ms: u64, revision: u64) -> Self {
        // The last moment that has a name, for a clock that is beyond it.
        let made_seconds = i64::try_from(made_unix_ms / 1000).unwrap_or(i64::MAX).min(253_402_300_799);
        Self { cluster: cluster.to_string(), made_seconds, revision }
    }

    fn parse(cluster: &str, name: &str) -> Option<Self> {
        let is_hex = cluster.len() == 32 && cluster.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let (time, revision) = name.split_once('-')?;
        let made_seconds = NaiveDateTime::parse_from_str(time, TIME).ok()?.and_utc().timestamp();
        let id = Self { cluster: cluster.to_owned(), made_seconds, revision: revision.parse().ok()? };
        (is_hex && id.name() == name).then_some(id)
    }

    /// Its cluster's id.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Without the cluster.
    pub fn name(&self) -> String {
        let time = DateTime::<Utc>::from_timestamp(self.made_seconds, 0).unwrap_or_default();
        format!("{}-{}", time.format(TIME), self.revision)
    }

    /// When it was made, in seconds since 1970.
    pub fn made_seconds(&self) -> i64 {
        self.made_seconds
    }

    /// The revision of its root group.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// One of its files, from the store's URL on.
    pub(crate) fn file(&self, name: &str) -> String {
        format!("{self}/{name}")
    }

    fn age_order(&self) -> (i64, u64) {
        (self.made_seconds, self.revision)
    }
}

impl fmt::Display for BackupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.cluster, self.name())
    }
}

/// One backup in a store.
#[derive(Clone, Debug)]
pub struct Backup {
    /// Which.
    pub id: BackupId,
    /// What its manifest says; or what is wrong with that.
    pub manifest: Result<Manifest, String>,
}

/// What there is in a store.
#[derive(Clone, Debug)]
pub struct Catalog {
    url: StoreUrl,
    /// The backups, newest first.
    pub backups: Vec<Backup>,
    /// The highest epoch that was claimed.
    pub claimed: Option<Epoch>,
}

impl Catalog {
    /// The backup of that id, or the only one whose id ends like that; without an id, the newest.
    pub fn find(&self, wanted: Option<&str>) -> Result<&Backup, BackupError> {
        let not_found = |problem: String| BackupError::NotFound { problem };
        let Some(wanted) = wanted else {
            return self
                .backups
                .first()
                .ok_or_else(|| not_found(format!("there is no backup at {}", self.url)));
        };
        let fits = |backup: &&Backup| {
            let id = backup.id.to_string();
            id == wanted || id.strip_suffix(wanted).is_some_and(|rest| rest.ends_with('/'))
        };
        let mut found = self.backups.iter().filter(fits);
        match (found.next(), found.next()) {
            (Some(backup), None) => Ok(backup),
            (Some(_), Some(_)) => Err(not_found(format!(
                "{wanted} is the name of backups of several clusters: give CLUSTER/{wanted}"
            ))),
            (None, _) => Err(not_found(format!(
                "there is no backup {wanted} at {}; `lowkey backup list` shows which there are",
                self.url
            ))),
        }
    }

    /// The highest number of all that are never given twice, in any backup that can be read.
    pub fn highest_counter(&self) -> u64 {
        let manifests = self.backups.iter().filter_map(|backup| backup.manifest.as_ref().ok());
        manifests.map(Manifest::highest_counter).max().unwrap_or(0)
    }

    /// When the newest backup was made, by its name: that can be read also where the backup cannot.
    pub(crate) fn newest_minutes(&self) -> u64 {
        let newest = self.backups.iter().map(|backup| backup.id.made_seconds).max();
        newest.map_or(0, |seconds| u64::try_from(seconds).unwrap_or(0) / 60)
    }
}

/// What is in the folder of one backup.
pub(crate) struct Folder {
    pub(crate) id: BackupId,
    pub(crate) files: Vec<(String, ObjectMeta)>,
}

impl Folder {
    pub(crate) fn manifest(&self) -> Option<&ObjectMeta> {
        self.files.iter().find(|(name, _)| name == MANIFEST_FILE).map(|(_, meta)| meta)
    }
}

/// Everything in a store that is ours, by its names alone.
pub(crate) struct Listing {
    /// Newest first, with and without a manifest.
    pub(crate) folders: Vec<Folder>,
    pub(crate) claimed: Option<Epoch>,
}

impl Store {
    /// What there is, with all manifests.
    pub async fn catalog(&self) -> Result<Catalog, BackupError> {
        let Listing { folders, claimed } = self.listing().await?;
        let whole = folders.into_iter().filter(|folder| folder.manifest().is_some());
        let backups = futures::stream::iter(whole)
            .map(|folder| async move {
                let manifest = match self.manifest(&folder.id).await {
                    Ok(manifest) => Ok(manifest),
                    Err(BackupError::Damaged { problem, .. }) => Err(problem),
                    Err(other) => return Err(other),
                };
                Ok(Backup { id: folder.id, manifest })
            })
            .buffered(AT_A_TIME)
            .try_collect()
            .await?;
        Ok(Catalog { url: self.url().clone(), backups, claimed })
    }

    /// When the newest backup of a cluster was made, in seconds since 1970, by its name.
    pub async fn newest_of(&self, cluster: ClusterId) -> Result<Option<i64>, BackupError> {
        let cluster = cluster.to_string();
        let listing = self.listing().await?;
        let own = listing.folders.iter().filter(|folder| folder.id.cluster == cluster);
        Ok(own.filter(|folder| folder.manifest().is_some()).map(|folder| folder.id.made_seconds).max())
    }

    pub(crate) async fn listing(&self) -> Result<Listing, BackupError> {
        let doing = || format!("cannot list what is at {}", self.url());
        let found: Vec<ObjectMeta> =
            self.objects.list(Some(self.root())).try_collect().await.map_err(BackupError::store(doing()))?;
        let mut folders: BTreeMap<BackupId, Vec<(String, ObjectMeta)>> = BTreeMap::new();
        let mut claimed = None;
        for meta in found {
            let Some(file) = self.file(&meta.location) else { continue };
            let parts: Vec<&str> = file.split('/').collect();
            match parts[..] {
                [EPOCHS, name] => claimed = claimed.max(epoch_of(name)),
                [cluster, folder, name] => {
                    if let Some(id) = BackupId::parse(cluster, folder) {
                        folders.entry(id).or_default().push((name.to_owned(), meta));
                    }
                }
                _ => {}
            }
        }
        let mut folders: Vec<Folder> = folders.into_iter().map(|(id, files)| Folder { id, files }).collect();
        folders.sort_by(|a, b| b.id.age_order().cmp(&a.id.age_order()).then_with(|| a.id.cmp(&b.id)));
        Ok(Listing { folders, claimed })
    }

    /// The manifest of a backup, checked.
    pub(crate) async fn manifest(&self, id: &BackupId) -> Result<Manifest, BackupError> {
        let file = id.file(MANIFEST_FILE);
        let found = self.objects.get(&self.path(&file)).await;
        let found = match found {
            Err(object_store::Error::NotFound { .. }) => {
                return Err(BackupError::damaged(
                    file,
                    "it is missing: the backup was never finished, or is being deleted",
                ));
            }
            other => other.map_err(BackupError::store(format!("cannot read {file}")))?,
        };
        if found.meta.size > MANIFEST_BYTES_MAX {
            return Err(BackupError::damaged(
                file,
                format!("it has {} bytes, and no manifest has", found.meta.size),
            ));
        }
        let bytes = found.bytes().await.map_err(BackupError::store(format!("cannot read {file}")))?;
        let manifest = Manifest::decode(&bytes).map_err(|problem| BackupError::damaged(&file, problem))?;
        if manifest.cluster != id.cluster {
            let problem = format!("it is of cluster {}: files were mixed up", manifest.cluster);
            return Err(BackupError::damaged(file, problem));
        }
        let revision = manifest.root().map(|root| root.index);
        let made_seconds = i64::try_from(manifest.made_unix_ms / 1000).unwrap_or(i64::MAX);
        if revision != Some(id.revision) || made_seconds != id.made_seconds {
            return Err(BackupError::damaged(
                file,
                "it is of another backup of this cluster: files were mixed up",
            ));
        }
        Ok(manifest)
    }
}

/// The epoch that a claim's name says.
fn epoch_of(name: &str) -> Option<Epoch> {
    let number = name.strip_suffix(".json")?.parse().ok()?;
    Epoch::new(number).filter(|epoch| format!("{epoch}.json") == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_back_only_as_it_is_written() {
        let id = BackupId::new(ClusterId([7; 16]), 1_785_546_245_999, 42);
        assert_eq!(id.name(), "20260801T010405Z-42");
        assert_eq!(BackupId::parse(id.cluster(), &id.name()), Some(id.clone()));
        for name in
            ["20260801T010405Z-042", "20260801T010405Z", "20260801T010405Z-x", "20261301T010405Z-1", ""]
        {
            assert_eq!(BackupId::parse(id.cluster(), name), None, "{name}");
        }
        assert_eq!(BackupId::parse("epochs", &id.name()), None);
        assert_eq!(BackupId::parse(&"0A".repeat(16), &id.name()), None);
        // Of a clock beyond the year 9999.
        let late = BackupId::new(ClusterId([7; 16]), u64::MAX, 1);
        assert_eq!(BackupId::parse(late.cluster(), &late.name()), Some(late));
    }

    #[test]
    fn a_claim_is_read_back_only_as_it_is_written() {
        assert_eq!(epoch_of("29900800.json"), Epoch::new(29_900_800));
        for name in ["029900800.json", "29900801.json", "29900800", "probe-1.json", "0.json"] {
            assert_eq!(epoch_of(name), None, "{name}");
        }
    }
}
