//! An epoch belongs to one cluster, whatever clocks and stores do.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod common;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use common::{CLUSTER, cluster, write};
use futures::future::join_all;
use futures::stream::BoxStream;
use lowkey_backup::{BackupError, ClaimFor, Claimed, Store};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as StoreResult,
};

const MINUTE_MS: u64 = 60_000;
const YEAR_MINUTES: u64 = 365 * 24 * 60;

fn about(number: u8, unix_ms: u64) -> ClaimFor {
    ClaimFor { cluster: cluster(number), parent: CLUSTER, what: "restore", unix_ms, highest_counter: 0 }
}

fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    since.as_millis() as u64
}

/// Looks, and claims.
async fn claim(store: &Store, about: &ClaimFor) -> Result<Claimed, BackupError> {
    let catalog = store.catalog().await?;
    store.claim(&catalog, about).await
}

#[tokio::test]
async fn claims_rise_and_the_store_keeps_who_made_them() {
    let folder = tempfile::tempdir().unwrap();
    let store = common::store_in(folder.path());
    let first = claim(&store, &about(1, now_ms())).await.unwrap().epoch;
    let second = claim(&store, &about(2, now_ms())).await.unwrap().epoch;
    assert!(first.number() >= now_ms() / MINUTE_MS);
    assert_eq!(second.number(), first.number() + 1024);
    let kept = std::fs::read_to_string(folder.path().join(format!("epochs/{first}.json"))).unwrap();
    assert!(kept.contains(&cluster(1).to_string()) && kept.contains("restore"), "{kept}");
    let left: Vec<_> = std::fs::read_dir(folder.path().join("epochs")).unwrap().collect();
    assert_eq!(left.len(), 2, "nothing is left of how the store was tried: {left:?}");
}

#[tokio::test]
async fn many_who_claim_at_once_get_epochs_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let store = common::store_in(folder.path());
    // All have looked before any of them claims.
    let catalog = store.catalog().await.unwrap();
    let now = now_ms();
    let wanted: Vec<ClaimFor> = (1..=12).map(|number| about(number, now)).collect();
    let claims = join_all(wanted.iter().map(|about| store.claim(&catalog, about))).await;
    let epochs: BTreeSet<u64> = claims.into_iter().map(|claim| claim.unwrap().epoch.number()).collect();
    assert_eq!(epochs.len(), 12);
}

#[tokio::test]
async fn a_clock_that_is_a_year_behind_claims_above_what_the_store_knows() {
    let folder = tempfile::tempdir().unwrap();
    let store = common::store_in(folder.path());
    let behind = now_ms() - YEAR_MINUTES * MINUTE_MS;
    let claimed = claim(&store, &about(1, behind)).await.unwrap();
    assert!(claimed.epoch.number() >= now_ms() / MINUTE_MS, "the store's clock counts");
    assert!((claimed.store_ahead_minutes - YEAR_MINUTES as i64).abs() < 5, "{claimed:?}");
    // A backup from the future, by a clock that was ahead: tokens may be there already.
    let ahead = now_ms() + YEAR_MINUTES * MINUTE_MS;
    write(&store, CLUSTER, 3, ahead).await;
    let claimed = claim(&store, &about(2, now_ms())).await.unwrap();
    assert!(claimed.epoch.number() >= ahead / MINUTE_MS);
    // And what is recovered may stand higher than all of it.
    let high = ClaimFor { highest_counter: 1 << 60, ..about(3, now_ms()) };
    assert!(claim(&store, &high).await.unwrap().epoch.first_counter() >= (1 << 60) + (1 << 42));
}

/// What is wrong with a store.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// It takes the condition, and overwrites all the same.
    IgnoresConditions,
    /// It says that it has created the file, and has not: somebody else's is there.
    LiesAboutConditions,
    /// It has no such thing.
    HasNone,
    /// Each create is carried out, its answer is lost, and the client asks again.
    LosesAnswers,
    /// One request in three fails.
    Fails,
}

/// A store in memory, as `object_store` has it, with a fault in front.
#[derive(Debug)]
struct Faulty {
    fault: Fault,
    inner: InMemory,
    requests: AtomicUsize,
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.fault)
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(&self, path: &Path, payload: PutPayload, opts: PutOptions) -> StoreResult<PutResult> {
        let number = self.requests.fetch_add(1, Ordering::SeqCst);
        if opts.mode != PutMode::Create {
            return self.inner.put_opts(path, payload, opts).await;
        }
        let overwrite = PutOptions { mode: PutMode::Overwrite, ..opts.clone() };
        match self.fault {
            Fault::IgnoresConditions => self.inner.put_opts(path, payload, overwrite).await,
            Fault::LiesAboutConditions => match self.inner.put_opts(path, payload, opts).await {
                Err(Error::AlreadyExists { .. }) => {
                    Ok(PutResult { e_tag: None, version: None, extensions: Default::default() })
                }
                other => other,
            },
            Fault::HasNone => Err(Error::NotImplemented {
                operation: "conditional create".into(),
                implementer: "this one".into(),
            }),
            Fault::LosesAnswers => {
                let _ = self.inner.put_opts(path, payload.clone(), opts.clone()).await;
                self.inner.put_opts(path, payload, opts).await
            }
            Fault::Fails if number % 3 == 2 => {
                Err(Error::Generic { store: "faulty", source: "the connection was reset".into() })
            }
            Fault::Fails => self.inner.put_opts(path, payload, opts).await,
        }
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        opts: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, opts).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> StoreResult<GetResult> {
        self.inner.get_opts(path, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, StoreResult<Path>>,
    ) -> BoxStream<'static, StoreResult<Path>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> StoreResult<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> StoreResult<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

fn faulty(fault: Fault) -> Store {
    let objects = Faulty { fault, inner: InMemory::new(), requests: AtomicUsize::new(0) };
    Store::over(&"s3://faulty/backups".parse().unwrap(), Arc::new(objects), "backups".into())
}

#[tokio::test]
async fn a_store_that_does_not_keep_claims_apart_is_refused() {
    for fault in [Fault::IgnoresConditions, Fault::LiesAboutConditions, Fault::HasNone] {
        let refused = claim(&faulty(fault), &about(1, now_ms())).await.unwrap_err();
        assert!(matches!(refused, BackupError::Unfit { .. }), "{fault:?}: {refused}");
        assert!(refused.to_string().contains("same epoch"), "{refused}");
    }
}

#[tokio::test]
async fn a_claim_whose_answer_was_lost_is_ours_all_the_same() {
    let store = faulty(Fault::LosesAnswers);
    let first = claim(&store, &about(1, now_ms())).await.unwrap().epoch;
    let second = claim(&store, &about(2, now_ms())).await.unwrap().epoch;
    assert_eq!(
        second.number(),
        first.number() + 1024,
        "none was taken for somebody else's, and none is shared"
    );
}

#[tokio::test]
async fn a_store_that_fails_gives_no_epoch_and_says_why() {
    let store = faulty(Fault::Fails);
    let refused = claim(&store, &about(1, now_ms())).await.unwrap_err();
    assert!(
        matches!(refused, BackupError::Store { .. }) && refused.to_string().contains("reset"),
        "{refused}"
    );
}
