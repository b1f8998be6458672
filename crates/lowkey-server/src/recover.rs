//! Makes a new cluster from what is left of one that lost its quorum for good.
//!
//! It works on the data directory of a stopped node, but never on the old files themselves. A new node is
//! written beside them, complete and synced, and then takes their place. The names alone show how far it
//! got:
//!
//! ```text
//! data/
//!   recover.tmp/        the new node, being written: worth nothing, the old one is untouched
//!   recover.ready/      the new node, whole. From here on there is only forward: the old files go to
//!   before-recover-…/   the old node, kept for a person, `node` first
//!   recover.moving/     the old one is out of the way: the new files come up, `node` last
//! ```
//!
//! The rename to `recover.ready` is the one step that decides. The next start or recovery that opens the
//! directory takes the steps that are left ([`finish`]). A version that does not know this finds a log
//! without a `node` file in between, and refuses it. Everything happens inside the directory, because the
//! directory may be a mount point.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lowkey_audit::{Position, Row, append_recovered};
use lowkey_core::{
    COMMAND_VERSION, Cause, ClusterId, EndedGrant, FirstNumbers, MemberId, NewBeginning, NodeIdentity,
    NodeInfo, State,
};
use lowkey_replica::Survivor;
use lowkey_replica::forming::Memory;
use lowkey_wal::{Disk, RealDisk};

use crate::audit;
use crate::error::StartError;
use crate::node::unix_ms;
use crate::random_bytes;
use crate::storage::{self, DataDirectory, NODE_FILE, NodeFile};

const BUILDING: &str = "recover.tmp";
const READY: &str = "recover.ready";
const MOVING: &str = "recover.moving";
const KEPT: &str = "before-recover-";

/// What a data directory holds, for a recovery. Its lock is held.
#[derive(Debug)]
pub enum Inspected {
    /// A cluster that may have lost its quorum.
    Lost(Box<LostCluster>),
    /// A recovery that was decided, and interrupted.
    Unfinished(Unfinished),
}

/// What is left of a cluster.
#[derive(Debug)]
pub struct LostCluster {
    path: PathBuf,
    lock: Option<File>,
    node: NodeFile,
    info: NodeInfo,
    survivor: Survivor,
    about: Lost,
}

/// What a person wants to know before the cluster is given up.
#[derive(Clone, Debug)]
pub struct Lost {
    /// The node's name.
    pub node_name: String,
    /// The cluster's id.
    pub cluster_id: String,
    /// The last term that the node knows.
    pub term: u64,
    /// The last entry in its log.
    pub last_index: u64,
    /// The last entry that it knows to be committed.
    pub committed_index: u64,
    /// The names of all nodes of the cluster, this one included.
    pub members: Vec<String>,
    /// Leases that it knows of.
    pub leases: usize,
    /// Locks that are held or waited for, as far as it knows.
    pub locks: usize,
    /// The highest token that it knows of.
    pub last_token: u64,
    /// The highest of all numbers that are never given twice, as far as it knows.
    pub highest_counter: u64,
}

/// A recovery that was decided, and interrupted.
#[derive(Debug)]
pub struct Unfinished {
    path: PathBuf,
    lock: Option<File>,
}

/// A new cluster that waits for its first start.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// The new cluster's id.
    pub cluster_id: String,
    /// Where the old files are kept.
    pub kept: PathBuf,
}

/// Inspects the data directory of a stopped node, with all the checks of a start. Changes nothing.
pub fn inspect(path: &Path) -> Result<Inspected, StartError> {
    let refused = |problem: String| StartError::NotRecovered { problem };
    if !path.is_dir() {
        return Err(refused(format!("there is no data directory at {}", path.display())));
    }
    let lock = storage::lock(path, false)?;
    if path.join(READY).is_dir() || path.join(MOVING).is_dir() {
        return Ok(Inspected::Unfinished(Unfinished { path: path.to_owned(), lock }));
    }
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(path).map_err(io_error("cannot open", path))?);
    let Some(node) = NodeFile::read(&*disk).map_err(|error| error.in_directory(path, None))? else {
        return Err(match lowkey_wal::Wal::exists(&*disk).map_err(io_error("cannot list", path))? {
            true => StartError::IdentityLost { path: path.to_owned() },
            false => refused(format!(
                "{} is not the data directory of a node: there is no file `node`",
                path.display()
            )),
        });
    };
    let Some((cluster, member)) = node.membership else {
        return Err(refused(format!(
            "node {} belongs to no cluster yet: there is nothing to recover",
            node.name
        )));
    };
    let survivor = storage::read(&disk, node.identity)
        .and_then(|found| Ok(Survivor::read(cluster, member, &found)?))
        .map_err(|error| error.in_directory(path, Some(&node.name)))?;
    let state = survivor.state();
    let Some(info) = state.member(member).cloned() else {
        return Err(refused(format!(
            "node {} is not a member of its cluster any more, by what it knows itself: recover one that is",
            node.name
        )));
    };
    if survivor.is_alone() {
        let recovered = if state.is_in_quarantine() { " It was recovered already." } else { "" };
        return Err(refused(format!(
            "node {} is the only one of cluster {cluster}, and needs no other: it has lost no quorum.{recovered} Start it",
            node.name
        )));
    }
    let about = Lost {
        node_name: node.name.to_string(),
        cluster_id: cluster.to_string(),
        term: survivor.term(),
        last_index: state.revision(),
        committed_index: survivor.committed(),
        members: state.members().map(|(_, member)| member.name.to_string()).collect(),
        leases: state.leases().len(),
        locks: state.lock_count(),
        last_token: state.last_token().0,
        highest_counter: state.last_token().0.max(state.last_lease().0).max(state.revision()),
    };
    Ok(Inspected::Lost(Box::new(LostCluster { path: path.to_owned(), lock, node, info, survivor, about })))
}

/// How a new cluster begins that takes the place of another one.
#[derive(Clone, Debug)]
pub struct Anew {
    /// Its id: one that no cluster ever had.
    pub cluster: ClusterId,
    /// Where its counters begin.
    pub numbers: FirstNumbers,
    /// Bearer tokens stay good. What takes a cluster's place out of a backup may not know that one was revoked.
    pub keep_tokens: bool,
    /// Without it locks are granted at once, while earlier holders may still believe that they hold.
    pub quarantine: bool,
}

impl Anew {
    /// A new cluster whose counters begin at random within the present minute's numbers: nothing was claimed for it.
    pub fn unclaimed(quarantine: bool) -> Result<Self, StartError> {
        let (unix_minutes, spread) = (unix_ms() / 60_000, u32::from_le_bytes(random_bytes()?));
        let numbers = FirstNumbers::Unclaimed { unix_minutes, spread };
        Ok(Self { cluster: Self::random_id()?, numbers, keep_tokens: true, quarantine })
    }

    /// An id that no cluster ever had.
    pub fn random_id() -> Result<ClusterId, StartError> {
        Ok(ClusterId(random_bytes()?))
    }
}

impl LostCluster {
    /// The cluster's id.
    pub fn cluster(&self) -> ClusterId {
        self.survivor.state().cluster()
    }

    /// What it was.
    pub fn about(&self) -> &Lost {
        &self.about
    }

    /// Makes a new cluster of it.
    pub fn begin_anew(self, anew: Anew) -> Result<Recovered, StartError> {
        let Self { path, lock, node, info, survivor, .. } = self;
        let lock = match lock {
            Some(lock) => lock,
            None => storage::lock(&path, true)?.expect("it is made where it is missing"),
        };
        let (cluster, identity) = (anew.cluster, NodeIdentity(random_bytes()?));
        let beginning = NewBeginning {
            cluster,
            node: NodeInfo { identity: Some(identity), command_version: COMMAND_VERSION, ..info },
            numbers: anew.numbers,
            keep_tokens: anew.keep_tokens,
            quarantine: anew.quarantine,
        };
        let (old, old_state) = (survivor.state().cluster(), survivor.state().clone());
        let term = survivor.term();
        let founding = survivor.begin_anew(beginning).map_err(|_| StartError::NotRecovered {
            problem: "fencing tokens cannot be raised as far as the clock of this machine asks for: set the clock right, \
                      and try again"
                .into(),
        })?;
        let building = path.join(BUILDING);
        match fs::remove_dir_all(&building) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(io_error("cannot clear", &building)(error));
            }
            _ => {}
        }
        let also_locked = lock.try_clone().map_err(io_error("cannot lock", &path))?;
        let fresh = NodeFile {
            name: node.name,
            identity,
            membership: None,
            known: Vec::new(),
            forming: Memory::default(),
        };
        DataDirectory::fresh(&building, fresh, also_locked)?.found(cluster, &founding)?;
        rename(&building, &path.join(READY))?;
        sync(&path)?;
        keep_what_was_held(&path, (old, &old_state, term), (cluster, founding.snapshot.index));
        Unfinished { path, lock: Some(lock) }.finish()
    }
}

/// Writes into the audit what was held, which is carried over to nobody. The recovery does not depend on it.
fn keep_what_was_held(path: &Path, old: (ClusterId, &State, u64), new: (ClusterId, u64)) {
    let (cluster, state, term) = old;
    let cluster = cluster.to_string();
    // Behind everything that the log has: no entry is ever there.
    let revision = state.revision() + 1;
    let held = state.grants().filter_map(|(lock, grant)| {
        let lease = state.lease(grant.lease)?;
        Some(EndedGrant {
            lock: lock.clone(),
            token: grant.token,
            owner: lease.owner.clone(),
            lease: grant.lease,
            mode: grant.mode,
            scope: grant.scope,
            ttl: lease.ttl,
            asked_unix_ms: grant.asked_unix_ms,
            granted_unix_ms: grant.since_unix_ms,
            granted_revision: grant.revision,
            ended_unix_ms: unix_ms(),
            cause: Cause::Revoked,
            actor: None,
            silence: None,
        })
    });
    let row = |(ordinal, ended)| Row {
        cause: lowkey_audit::Cause::ClusterRecovered,
        is_perhaps_uncommitted: true,
        ..Row::new(&cluster, ended, Position { revision, ordinal }, term)
    };
    let rows: Vec<Row> = (0..).zip(held).map(row).collect();
    let directory = path.join(audit::DIRECTORY);
    let old = (cluster.as_str(), state.revision(), rows.as_slice());
    if let Err(error) = append_recovered(&directory, old, (&new.0.to_string(), new.1), unix_ms()) {
        tracing::warn!(%error, "what was held could not be written into the audit; the recovery goes on without it");
    }
}

impl Unfinished {
    /// Takes the steps that are left.
    pub fn finish(self) -> Result<Recovered, StartError> {
        let Self { path, lock } = self;
        let _lock = match lock {
            Some(lock) => lock,
            None => storage::lock(&path, true)?.expect("it is made where it is missing"),
        };
        let kept = finish(&path)?;
        let (cluster, _) = membership(&path)?;
        let kept = kept.unwrap_or_else(|| kept_for(&path, cluster));
        Ok(Recovered { cluster_id: cluster.to_string(), kept })
    }
}

/// Takes the steps that are left of a recovery that was decided. Each step is idempotent. Returns where the
/// old files are. The caller holds the directory's lock.
pub(crate) fn finish(path: &Path) -> Result<Option<PathBuf>, StartError> {
    let (ready, moving) = (path.join(READY), path.join(MOVING));
    let mut kept = None;
    if ready.is_dir() {
        let kept = kept.insert(kept_for(path, membership(&ready)?.0));
        match fs::create_dir(&*kept) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(io_error("cannot create", kept)(error));
            }
            _ => sync(path)?,
        }
        // Without its `node` file the rest cannot be mistaken for a complete directory.
        move_files(path, kept, |name| name == NODE_FILE)?;
        move_files(path, kept, is_ours)?;
        rename(&ready, &moving)?;
        sync(path)?;
    }
    if moving.is_dir() {
        if kept.is_none() {
            let from = if moving.join(NODE_FILE).exists() { &moving } else { path };
            kept = Some(kept_for(path, membership(from)?.0));
        }
        move_files(&moving, path, |name| name != NODE_FILE)?;
        move_files(&moving, path, |_| true)?;
        fs::remove_dir(&moving).map_err(io_error("cannot remove", &moving))?;
        sync(path)?;
    }
    Ok(kept)
}

fn membership(path: &Path) -> Result<(ClusterId, MemberId), StartError> {
    let disk = RealDisk::open(path).map_err(io_error("cannot open", path))?;
    let node = NodeFile::read(&disk)?;
    node.and_then(|node| node.membership).ok_or_else(|| StartError::NotRecovered {
        problem: format!(
            "{} should say which cluster it belongs to, and does not",
            path.join(NODE_FILE).display()
        ),
    })
}

/// Named after the cluster that replaces the old one: no two have the same name.
fn kept_for(path: &Path, cluster: ClusterId) -> PathBuf {
    let short: String = cluster.to_string().chars().take(8).collect();
    path.join(format!("{KEPT}{short}"))
}

fn is_ours(name: &str) -> bool {
    name.strip_suffix(".tmp").unwrap_or(name) == NODE_FILE || lowkey_wal::owns(name)
}

/// Moves files from one directory to another, durably.
fn move_files(from: &Path, to: &Path, which: impl Fn(&str) -> bool) -> Result<(), StartError> {
    let disk = RealDisk::open(from).map_err(io_error("cannot open", from))?;
    for name in disk.list().map_err(io_error("cannot list", from))?.iter().filter(|name| which(name)) {
        rename(&from.join(name), &to.join(name))?;
    }
    // Sync the new name first: a crash in between leaves both, or the old one.
    sync(to)?;
    sync(from)
}

fn rename(from: &Path, to: &Path) -> Result<(), StartError> {
    fs::rename(from, to).map_err(io_error("cannot move", from))
}

fn sync(directory: &Path) -> Result<(), StartError> {
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(io_error("cannot sync", directory))
}

fn io_error(doing: &str, path: &Path) -> impl FnOnce(io::Error) -> StartError {
    let doing = format!("{doing} {}", path.display());
    move |source| StartError::Io { doing, source }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use lowkey_core::NodeName;

    use super::*;

    const SEGMENT: &str = "segment-0000000000000001.log";
    const OLD: [&str; 3] = [SEGMENT, "snapshot-00000000000000000005.snap", "clean-stop"];
    const NEW: [&str; 3] = [SEGMENT, "snapshot-00000000000000000009.snap", "clean-stop"];

    fn write_node(path: &Path, cluster: u8) {
        let node = NodeFile {
            name: NodeName::parse("n1").unwrap(),
            identity: NodeIdentity([cluster; 16]),
            membership: Some((ClusterId([cluster; 16]), MemberId(1))),
            known: Vec::new(),
            forming: Memory::default(),
        };
        let lock = File::create(path.join("lock")).unwrap();
        DataDirectory::fresh(path, node, lock).unwrap().keep_identity().unwrap();
        fs::remove_file(path.join("lock")).unwrap();
    }

    /// A directory in which a recovery has just been decided.
    fn decided(path: &Path) {
        let ready = path.join(READY);
        fs::create_dir(&ready).unwrap();
        write_node(path, 1);
        write_node(&ready, 2);
        for (directory, names, text) in [(path, OLD, "old"), (&ready, NEW, "new")] {
            for name in names {
                fs::write(directory.join(name), text).unwrap();
            }
        }
        fs::write(path.join("thesis.txt"), "mine").unwrap();
    }

    fn content(path: &Path) -> BTreeMap<String, Vec<u8>> {
        let disk = RealDisk::open(path).unwrap();
        disk.list().unwrap().into_iter().map(|name| (name.clone(), disk.read(&name).unwrap())).collect()
    }

    #[test]
    fn a_recovery_that_was_decided_is_finished_from_wherever_it_was_interrupted() {
        let kept = format!("{KEPT}02020202");
        // What `finish` does, move by move.
        let out = |name: &str| (name.to_owned(), format!("{kept}/{name}"));
        let up = |name: &str| (format!("{MOVING}/{name}"), name.to_owned());
        let mut moves = vec![out(NODE_FILE)];
        moves.extend(OLD.map(out));
        moves.push((READY.to_owned(), MOVING.to_owned()));
        moves.extend(NEW.map(up));
        moves.push(up(NODE_FILE));
        for done in 0..=moves.len() {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path();
            decided(path);
            let (old, new) = (content(path), content(&path.join(READY)));
            if done > 0 {
                fs::create_dir(path.join(&kept)).unwrap();
            }
            for (from, to) in &moves[..done] {
                // Until the last move there is no `node` file that could be taken for that of a complete
                // directory.
                fs::rename(path.join(from), path.join(to)).unwrap();
                assert_eq!(path.join(NODE_FILE).exists(), to == NODE_FILE);
            }
            assert_eq!(finish(path).unwrap(), Some(path.join(&kept)), "after {done} moves");
            let mine: BTreeMap<_, _> = [("thesis.txt".to_owned(), b"mine".to_vec())].into();
            let whole: BTreeMap<_, _> = new.into_iter().chain(mine).collect();
            assert_eq!(content(path), whole, "after {done} moves");
            let mut before = old;
            before.remove("thesis.txt");
            assert_eq!(content(&path.join(&kept)), before, "after {done} moves");
            assert!(!path.join(READY).exists() && !path.join(MOVING).exists());
            assert_eq!(finish(path).unwrap(), None, "there is nothing left to do");
        }
    }
}
