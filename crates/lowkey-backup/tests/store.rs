//! Backups in a store: what was written is read back, and nothing else passes for it.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{CLUSTER, cluster, folder_of, snapshot, write};
use lowkey_backup::{BackupError, BackupId, Catalog, Store, no_progress};

/// A store with one small backup, and the folder of that.
async fn one_backup() -> (tempfile::TempDir, Store, BackupId, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let store = common::store_in(folder.path());
    let id = write(&store, CLUSTER, 3, 1_785_546_245_000).await;
    let path = folder_of(folder.path(), &id);
    (folder, store, id, path)
}

async fn only(store: &Store) -> Catalog {
    let catalog = store.catalog().await.unwrap();
    assert_eq!(catalog.backups.len(), 1);
    catalog
}

/// The file that a damaged backup is damaged in.
async fn damaged(store: &Store, id: &BackupId) -> String {
    match store.fetch(id, &no_progress).await {
        Err(BackupError::Damaged { file, .. }) => file,
        other => panic!("not found to be damaged: {other:?}"),
    }
}

#[tokio::test]
async fn what_was_written_is_read_back() {
    let (_folder, store, id, path) = one_backup().await;
    assert_eq!(id.to_string(), format!("{}/20260801T010405Z-7", "07".repeat(16)));
    let fetched = store.fetch(&id, &no_progress).await.unwrap();
    assert_eq!((fetched.root.state.last_token().0, fetched.root.state.lock_count()), (3, 3));
    assert_eq!(fetched.manifest.groups[0].size_bytes, fs::metadata(path.join("g1.snap")).unwrap().len());
    assert_eq!(fetched.manifest.members[0].grpc_address, "10.0.0.1:9000");
    let catalog = only(&store).await;
    assert_eq!(catalog.find(None).unwrap().id, id);
    for name in [id.to_string(), id.name()] {
        assert_eq!(catalog.find(Some(&name)).unwrap().id, id);
    }
    let told = catalog.find(Some("20260801T010405Z-8")).unwrap_err().to_string();
    assert!(told.contains("lowkey backup list"), "{told}");
}

#[tokio::test]
async fn a_store_without_backups_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let store = common::store_in(&folder.path().join("not-there-yet"));
    let catalog = store.catalog().await.unwrap();
    assert!(catalog.find(None).unwrap_err().to_string().contains("there is no backup at file:///"));
}

#[tokio::test]
async fn every_changed_byte_is_found_and_its_file_named() {
    let (_folder, store, id, path) = one_backup().await;
    for name in ["g1.snap", "manifest.json"] {
        let file = path.join(name);
        let good = fs::read(&file).unwrap();
        assert!(good.len() < 32 * 1024, "small enough for all of its bytes");
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            fs::write(&file, &bad).unwrap();
            assert_eq!(damaged(&store, &id).await, format!("{id}/{name}"), "byte {at}");
        }
        fs::write(&file, &good).unwrap();
    }
    assert!(store.fetch(&id, &no_progress).await.is_ok(), "it is whole again");
}

#[tokio::test]
async fn what_is_cut_longer_or_missing_is_found_and_its_file_named() {
    let (_folder, store, id, path) = one_backup().await;
    for name in ["g1.snap", "manifest.json"] {
        let (file, named) = (path.join(name), format!("{id}/{name}"));
        let good = fs::read(&file).unwrap();
        for bad in [&good[..good.len() - 1], &good[..good.len() / 2], &[], &[&good[..], b"x"].concat()] {
            fs::write(&file, bad).unwrap();
            assert_eq!(damaged(&store, &id).await, named);
        }
        fs::remove_file(&file).unwrap();
        assert_eq!(damaged(&store, &id).await, named);
        fs::write(&file, &good).unwrap();
    }
}

#[tokio::test]
async fn files_of_another_backup_or_cluster_are_found() {
    let (folder, store, id, path) = one_backup().await;
    let later = write(&store, CLUSTER, 5, 1_785_546_305_000).await;
    let foreign = write(&store, cluster(8), 3, 1_785_546_245_000).await;
    for other in [&later, &foreign] {
        let other = folder_of(folder.path(), other);
        for name in ["g1.snap", "manifest.json"] {
            let good = fs::read(path.join(name)).unwrap();
            fs::copy(other.join(name), path.join(name)).unwrap();
            assert_eq!(damaged(&store, &id).await, format!("{id}/{name}"));
            fs::write(path.join(name), good).unwrap();
        }
        // Both files, in the wrong folder.
        let kept = copy_away(&path);
        for name in ["g1.snap", "manifest.json"] {
            fs::copy(other.join(name), path.join(name)).unwrap();
        }
        assert_eq!(damaged(&store, &id).await, format!("{id}/manifest.json"));
        kept.into_iter().for_each(|(file, bytes)| fs::write(file, bytes).unwrap());
    }
    assert!(store.fetch(&id, &no_progress).await.is_ok());
}

fn copy_away(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.map(|file| (file.clone(), fs::read(file).unwrap())).collect()
}

#[tokio::test]
async fn a_damaged_manifest_is_listed_as_such_and_never_passed_over() {
    let (_folder, store, id, path) = one_backup().await;
    let older = write(&store, CLUSTER, 2, 1_785_546_185_000).await;
    fs::write(path.join("manifest.json"), "{}").unwrap();
    let catalog = store.catalog().await.unwrap();
    assert_eq!(catalog.find(None).unwrap().id, id, "the newest, though it is damaged");
    assert!(catalog.backups[0].manifest.is_err() && catalog.backups[1].manifest.is_ok());
    assert_eq!(catalog.backups[1].id, older);
}

#[tokio::test]
async fn a_snapshot_that_cannot_be_read_is_no_backup() {
    let folder = tempfile::tempdir().unwrap();
    let store = common::store_in(folder.path());
    let mut payload = snapshot(CLUSTER, 3);
    let last = payload.len() - 1;
    payload[last] ^= 1;
    let groups = vec![lowkey_backup::GroupSnapshot { group: lowkey_core::GroupId::ROOT, payload }];
    assert!(store.write(1_785_546_245_000, "n1", groups, &no_progress).await.unwrap_err().is_damage());
    assert!(store.catalog().await.unwrap().backups.is_empty());
}

#[tokio::test]
async fn the_newest_are_kept_and_the_verified_one_however_old_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let store = common::store_in(folder.path());
    let mut ids = Vec::new();
    for minute in 0..6 {
        ids.push(write(&store, CLUSTER, 1 + minute, 1_785_546_245_000 + minute * 60_000).await);
    }
    let foreign = write(&store, cluster(8), 1, 1_785_546_000_000).await;
    // A clock went back: what was just verified is the oldest by its name.
    let verified = store.fetch(&ids[0], &no_progress).await.unwrap().verified();
    let retained = store.retain(2, &verified).await.unwrap();
    assert_eq!((retained.kept, retained.deleted.len()), (3, 3));
    let left = |catalog: Catalog| catalog.backups.into_iter().map(|backup| backup.id).collect::<Vec<_>>();
    let expected = [ids[5].clone(), ids[4].clone(), ids[0].clone(), foreign.clone()];
    assert_eq!(left(store.catalog().await.unwrap()), expected);
    // Once more, with room for one: the verified one stays, and so does the newest.
    store.retain(1, &verified).await.unwrap();
    assert_eq!(left(store.catalog().await.unwrap()), [ids[5].clone(), ids[0].clone(), foreign]);
    assert!(store.fetch(&ids[0], &no_progress).await.is_ok());
}

#[tokio::test]
async fn files_without_a_manifest_are_no_backup_and_go_only_when_they_are_old() {
    let (folder, store, id, _) = one_backup().await;
    let remains = folder.path().join("07".repeat(16)).join("20260731T010405Z-1");
    fs::create_dir(&remains).unwrap();
    let file = remains.join("g1.snap");
    fs::write(&file, "half of it").unwrap();
    assert_eq!(only(&store).await.backups[0].id, id);
    let verified = store.fetch(&id, &no_progress).await.unwrap().verified();
    store.retain(1, &verified).await.unwrap();
    assert!(file.exists(), "it may be a backup that is being made");
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(2 * 24 * 60 * 60);
    fs::File::options().write(true).open(&file).unwrap().set_modified(old).unwrap();
    store.retain(1, &verified).await.unwrap();
    assert!(!file.exists());
}
