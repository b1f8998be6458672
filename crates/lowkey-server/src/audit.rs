//! What the node keeps of grants that are over: see crate `lowkey-audit`.
//!
//! The driver feeds it with what was applied, and the thread that makes snapshots waits for it. Nothing else does: a request
//! never does, and an audit that cannot be written stops no lock.
//!
//! `story.rs` puts what is known of a lock into sentences.

pub(crate) mod story;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lowkey_api::{ApiError, Reason};
use lowkey_audit::{AuditError, Feed, Happening, HappeningKind, Options, Reader, Recorder, Standing};
use lowkey_core::ClusterId;
use lowkey_replica::{Output, Status, may_save_snapshot};
use tokio::sync::Semaphore;

use crate::config::AuditLimits;
use crate::host::housekeeper::has_space;
use crate::node::unix_ms;

/// Where the files are, in the data directory.
pub(crate) const DIRECTORY: &str = "audit";
/// How often the thread that makes snapshots looks whether the audit is durable.
const LOOK: Duration = Duration::from_millis(10);
/// So many questions are answered at a time: each holds a thread and a cache of SQLite, and competes for the disk with the
/// log.
const QUESTIONS_MAX: usize = 4;
/// Refusals are counted together for so long.
const REFUSALS: Duration = Duration::from_secs(60);

/// The audit of a node.
pub(crate) struct Audit {
    feed: Feed,
    reader: Reader,
    /// Each question that is being answered has one of these: they read whole files.
    questions: Arc<Semaphore>,
    directory: PathBuf,
    /// Nothing once the node stops.
    recorder: Mutex<Option<Recorder>>,
    refusals: Mutex<Refusals>,
}

/// Calls that were refused because their callers may not do that, not told yet.
#[derive(Default)]
struct Refusals {
    since: Option<Instant>,
    counts: BTreeMap<(&'static str, &'static str), u64>,
}

impl Audit {
    /// Starts it for a replica that has applied everything through this revision, unless nothing is to be kept.
    pub(crate) fn start(
        limits: Option<AuditLimits>,
        data: &Path,
        cluster: ClusterId,
        applied: u64,
    ) -> std::io::Result<Option<Arc<Self>>> {
        let Some(limits) = limits else { return Ok(None) };
        let directory = data.join(DIRECTORY);
        let options = Options {
            keep: limits.keep,
            bytes_max: limits.bytes_max,
            file_bytes: (limits.bytes_max / 4).min(64 << 20),
            ..Options::new(directory.clone(), cluster.to_string())
        };
        let at = directory.clone();
        let recorder = Recorder::start(options, applied, move |outcome| match outcome {
            Err(error) => tracing::warn!(
                directory = %at.display(), %error,
                "the audit cannot be written: locks go on, and grants that end meanwhile may be missing in it, as a \
                 declared gap"
            ),
            Ok(()) => tracing::info!("the audit is written again"),
        })?;
        Ok(Some(Arc::new(Self {
            feed: recorder.feed(),
            reader: Reader::new(&directory),
            questions: Arc::new(Semaphore::new(QUESTIONS_MAX)),
            directory,
            recorder: Mutex::new(Some(recorder)),
            refusals: Mutex::default(),
        })))
    }

    /// Takes in what was applied. Never waits for the disk.
    pub(crate) fn applied(&self, output: &mut Output) {
        if let Some(index) = output.history_lost {
            self.feed.reset(index);
        }
        let ended = std::mem::take(&mut output.ended);
        if let (Some((first, _)), Some((last, _))) = (output.changes.first(), output.changes.last()) {
            self.feed.applied(first - 1, *last, ended);
        }
    }

    /// Waits until everything through a snapshot's index is on disk, or until it must not wait any longer.
    pub(crate) fn wait_for(&self, index: u64) {
        let began = Instant::now();
        loop {
            let audited = Some(self.standing().durable);
            let waited_nanos = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            let data = self.directory.parent().unwrap_or(&self.directory);
            if may_save_snapshot(index, audited, waited_nanos, !has_space(data)) {
                if audited < Some(index) {
                    tracing::warn!(
                        index,
                        "a snapshot is saved before the audit is: after a crash grants may be missing in it, as a \
                         declared gap"
                    );
                }
                return;
            }
            self.feed.sync();
            thread::sleep(LOOK);
        }
    }

    /// How it is doing.
    pub(crate) fn standing(&self) -> Standing {
        self.feed.standing()
    }

    /// Asks for what was fed to be written now.
    pub(crate) fn hurry(&self) {
        self.feed.hurry();
    }

    /// Reads files, which may take long, beside the runtime's threads. So many at a time, and the others wait.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Reader) -> Result<T, AuditError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let failed =
            |what: String| ApiError::new(Reason::Internal, format!("the audit cannot be read: {what}"));
        let turn = Arc::clone(&self.questions).acquire_owned().await;
        let turn = turn.map_err(|closed| failed(closed.to_string()))?;
        let reader = self.reader.clone();
        let asked = tokio::task::spawn_blocking(move || {
            // Until the files are read, also if nobody waits for the answer any more.
            let _turn = turn;
            ask(&reader)
        });
        match asked.await {
            Ok(found) => found.map_err(|error| failed(error.to_string())),
            Err(error) => Err(failed(error.to_string())),
        }
    }

    /// Tells who leads now, if that is another.
    pub(crate) fn standing_changed(&self, before: &Status, status: &Status) {
        let Some(leader) = status.leader else { return };
        if (before.leader, before.term) == (status.leader, status.term) {
            return;
        }
        let known = status.members.iter().find(|member| member.member == leader);
        let name = known.map_or_else(|| leader.to_string(), |known| known.node.name.to_string());
        self.happened(HappeningKind::Leader, status.term, name, 1);
    }

    /// Tells who joined and who left.
    pub(crate) fn members_changed(&self, before: &Status, status: &Status) {
        let is_of = |status: &Status, member| status.members.iter().any(|known| known.member == member);
        for joined in status.members.iter().filter(|known| !is_of(before, known.member)) {
            self.happened(HappeningKind::Joined, status.term, joined.node.name.to_string(), 1);
        }
        for gone in before.members.iter().filter(|known| !is_of(status, known.member)) {
            self.happened(HappeningKind::Removed, status.term, gone.node.name.to_string(), 1);
        }
    }

    /// Counts a call that was refused because its caller may not do that, or is too late.
    pub(crate) fn refused(&self, rpc: &'static str, error: &ApiError) {
        let reason = error.reason;
        if reason.http_status() != 403 && reason.http_status() != 401 && reason != Reason::StaleToken {
            return;
        }
        let mut refusals = self.refusals();
        *refusals.counts.entry((rpc, reason.as_str())).or_default() += 1;
        let since = *refusals.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= REFUSALS {
            self.tell_refusals(refusals);
        }
    }

    /// Tells what was counted so far, one line for each kind.
    pub(crate) fn flush_refusals(&self) {
        self.tell_refusals(self.refusals());
    }

    fn refusals(&self) -> MutexGuard<'_, Refusals> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell_refusals(&self, mut refusals: MutexGuard<'_, Refusals>) {
        refusals.since = None;
        for ((rpc, reason), count) in std::mem::take(&mut refusals.counts) {
            self.happened(HappeningKind::Refused, 0, format!("{rpc}: {reason}"), count);
        }
    }

    fn happened(&self, kind: HappeningKind, term: u64, what: String, count: u64) {
        self.feed.happened(Happening { unix_ms: unix_ms(), kind, term, what, count });
    }

    /// Writes what was fed, and ends.
    pub(crate) fn end(&self) {
        self.flush_refusals();
        drop(self.recorder.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}
