//! Making a backup: the files first, the manifest last.

use bytes::Bytes;
use lowkey_core::GroupId;
use lowkey_replica::SavedState;
use object_store::{ObjectStoreExt as _, PutPayload};

use crate::Progress;
use crate::catalog::BackupId;
use crate::error::BackupError;
use crate::manifest::{GroupFile, MANIFEST_FILE, Manifest, MemberAddress, sha256};
use crate::store::Store;

/// What is larger is sent in parts of so many bytes: one that is lost is sent again alone.
const PART_BYTES: usize = 8 * 1024 * 1024;

/// The snapshot of one group, as a node has it.
#[derive(Debug)]
pub struct GroupSnapshot {
    /// Which group.
    pub group: GroupId,
    /// The payload of its file.
    pub payload: Vec<u8>,
}

/// A backup that was written. Whether it can be read again, only [`Store::fetch`] says.
#[derive(Clone, Debug)]
pub struct Written {
    /// Which.
    pub id: BackupId,
    /// What it consists of.
    pub manifest: Manifest,
}

impl Store {
    /// Writes a backup from snapshots of all groups, the root first. Each is read with all checks before it is sent: what
    /// could not be restored is no backup. That takes as long as the state is large, on the caller's thread.
    pub async fn write(
        &self,
        made_unix_ms: u64,
        made_by: &str,
        groups: Vec<GroupSnapshot>,
        progress: Progress<'_>,
    ) -> Result<Written, BackupError> {
        let unreadable = |group: GroupId, problem: String| {
            BackupError::damaged(format!("the snapshot of group {} on this node", group.0), problem)
        };
        let mut files = Vec::new();
        let mut root = None;
        for GroupSnapshot { group, payload } in &groups {
            let saved = SavedState::read(payload).map_err(|error| unreadable(*group, error.to_string()))?;
            files.push(described(*group, &saved, payload));
            if *group == GroupId::ROOT {
                root = Some(saved.state);
            }
        }
        let Some(root) = root else {
            return Err(unreadable(GroupId::ROOT, "it is missing".into()));
        };
        let members = root.members().map(|(_, node)| MemberAddress {
            name: node.name.to_string(),
            grpc_address: node.grpc_address.clone(),
        });
        let id = BackupId::new(root.cluster(), made_unix_ms, root.revision());
        let made = (u64::try_from(id.made_seconds()).unwrap_or(0) * 1000, made_by);
        let manifest = Manifest::new(root.cluster(), root.epoch(), made, members.collect(), files);
        drop(root);
        let all_bytes = manifest.size_bytes();
        let mut done_bytes = 0;
        for (snapshot, file) in groups.into_iter().zip(&manifest.groups) {
            self.send(&id.file(&file.file), snapshot.payload.into(), |bytes| {
                progress(done_bytes + bytes, all_bytes)
            })
            .await?;
            done_bytes += file.size_bytes;
        }
        self.send(&id.file(MANIFEST_FILE), manifest.encode().into(), |_| {}).await?;
        Ok(Written { id, manifest })
    }

    async fn send(&self, file: &str, bytes: Bytes, told: impl Fn(u64)) -> Result<(), BackupError> {
        let (path, doing) = (self.path(file), format!("cannot write {file} to {}", self.url()));
        if bytes.len() <= PART_BYTES {
            let size_bytes = bytes.len() as u64;
            self.objects.put(&path, bytes.into()).await.map_err(BackupError::store(doing))?;
            told(size_bytes);
            return Ok(());
        }
        let mut upload =
            self.objects.put_multipart(&path).await.map_err(BackupError::store(doing.clone()))?;
        let mut sent_bytes = 0;
        let outcome = async {
            for at in (0..bytes.len()).step_by(PART_BYTES) {
                let part = bytes.slice(at..(at + PART_BYTES).min(bytes.len()));
                sent_bytes += part.len() as u64;
                upload.put_part(PutPayload::from_bytes(part)).await?;
                told(sent_bytes);
            }
            upload.complete().await.map(|_| ())
        };
        if let Err(error) = outcome.await {
            // What was sent is worth nothing; where this fails too, the store's own rules clear it away.
            let _ = upload.abort().await;
            return Err(BackupError::store(doing)(error));
        }
        Ok(())
    }
}

fn described(group: GroupId, saved: &SavedState, payload: &[u8]) -> GroupFile {
    let SavedState { state, term, hash } = saved;
    GroupFile {
        group: group.0,
        file: file_name(group.0),
        index: state.revision(),
        term: *term,
        last_token: state.last_token().0,
        highest_counter: saved.highest_counter(),
        leases: state.leases().len(),
        locks: state.lock_count(),
        state_hash: format!("{hash:016x}"),
        size_bytes: payload.len() as u64,
        sha256: sha256(payload),
    }
}

pub(crate) fn file_name(group: u32) -> String {
    format!("g{group}.snap")
}

/// What a group's file should say, by what is in it.
pub(crate) fn is_described(file: &GroupFile, saved: &SavedState, payload: &[u8]) -> bool {
    described(GroupId(file.group), saved, payload) == *file
}
