//! A node's data directory: its identity, its log and its snapshots.
//!
//! ```text
//! data/
//!   lock              held by the one process that uses the directory
//!   node              sealed: name, identity, and, once it belongs to one, cluster and number
//!   node.key          the node's private key, for its owner's eyes only: see `node_key.rs`
//!   segment-….log     the log
//!   snapshot-….snap   the newest two snapshots
//!   before-recover-…/ what `lowkey recover` found, kept for a person: see `recover.rs`
//! ```
//!
//! The `node` file is the truth about membership. It names a cluster only after the log and the first
//! snapshot are on disk.
//!
//! - A directory whose `node` file names no cluster has never served. Everything else in it is left from an
//!   attempt that did not finish, and is cleared away.
//! - A directory with a log but no `node` file has lost its identity and is refused: a node that forgot its
//!   vote must not come back under its old name.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use lowkey_core::{ClusterId, GroupId, MemberId, NodeIdentity, NodeName};
use lowkey_replica::forming::Memory;
use lowkey_replica::{Found, Founding, SnapshotFile};
use lowkey_wal::{Disk, Options, RealDisk, Record, Recovered, SealedError, Wal, sealed, snapshots};
use prost::Message as _;

use crate::error::StartError;
use crate::forming::proto as forming_proto;
use crate::join::Joined;
use crate::peers::known::KnownMember;
use crate::peers::proto::PeerMember;
use crate::recover;

pub(crate) const NODE_FILE: &str = "node";
const LOCK_FILE: &str = "lock";
const NODE_FILE_KIND: [u8; 4] = *b"NODE";

/// A node's identity, as in its `node` file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeFile {
    pub(crate) name: NodeName,
    pub(crate) identity: NodeIdentity,
    /// Set once, when the node founded or joined a cluster.
    pub(crate) membership: Option<(ClusterId, MemberId)>,
    /// The members when this node joined: whom it can believe until it has the register itself.
    pub(crate) known: Vec<KnownMember>,
    /// What it promised and founded with others, and what it heard of clusters, see [`lowkey_replica::forming`].
    pub(crate) forming: Memory,
}

#[derive(Clone, PartialEq, prost::Message)]
struct NodeFileProto {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(bytes = "vec", tag = "2")]
    identity: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    cluster: Vec<u8>,
    #[prost(uint64, tag = "4")]
    member: u64,
    #[prost(message, repeated, tag = "20")]
    known: Vec<PeerMember>,
    #[prost(message, optional, tag = "30")]
    forming: Option<forming_proto::Memory>,
}

/// A data directory that this process alone uses.
pub(crate) struct DataDirectory {
    pub(crate) path: PathBuf,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) node: NodeFile,
    /// Held while the process lives.
    _lock: File,
}

/// The snapshot files of one group, written by one thread at a time. The replica's thread installs
/// snapshots from a leader, and another thread writes the snapshots that this node made. They must not
/// overlap, because each clears away files that the other might be in the middle of.
#[derive(Clone)]
pub(crate) struct SnapshotFiles {
    group: GroupId,
    disk: Arc<dyn Disk>,
    writing: Arc<Mutex<()>>,
}

impl SnapshotFiles {
    pub(crate) fn new(group: GroupId, disk: Arc<dyn Disk>) -> Self {
        Self { group, disk, writing: Arc::default() }
    }

    pub(crate) fn save(&self, index: u64, payload: &[u8]) -> Result<(), SealedError> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        snapshots::save(&*self.disk, self.group, index, payload)
    }

    /// The index of the newest one.
    pub(crate) fn newest(&self) -> Result<Option<u64>, SealedError> {
        Ok(snapshots::list(&*self.disk, self.group)?.pop())
    }

    /// The payload of the snapshot of an index.
    pub(crate) fn load(&self, index: u64) -> Result<Vec<u8>, LoadError> {
        let loaded = snapshots::load(&*self.disk, self.group, index).map_err(LoadError::Sealed)?;
        loaded.ok_or(LoadError::Gone { index })
    }
}

/// Why a snapshot that was on disk cannot be read.
#[derive(Debug)]
pub(crate) enum LoadError {
    Sealed(SealedError),
    /// Newer snapshots have replaced it.
    Gone {
        index: u64,
    },
}

impl std::fmt::Display for LoadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Sealed(error) => error.fmt(f),
            Self::Gone { index } => write!(f, "the snapshot of index {index} is not there any more"),
        }
    }
}

/// What was found in a directory that belongs to a cluster.
pub(crate) struct Opened {
    pub(crate) wal: Wal,
    pub(crate) found: Found,
}

impl DataDirectory {
    /// Opens a directory, which is created if need be, and finds or creates the node's identity.
    pub(crate) fn open(path: &Path, wished_name: Option<&NodeName>) -> Result<Self, StartError> {
        let failed = |doing: &str| {
            let doing = format!("{doing} the data directory {}", path.display());
            move |source| StartError::Io { doing, source }
        };
        let disk = RealDisk::open(path).map_err(failed("cannot create or open"))?;
        let lock = lock(path, true)?.expect("it is made where it is missing");
        if let Some(kept) = recover::finish(path)? {
            tracing::warn!(
                kept = %kept.display(),
                "a recovery of this node had been interrupted, and is finished now: it begins a new cluster"
            );
        }
        let disk: Arc<dyn Disk> = Arc::new(disk);
        let node = match NodeFile::read(&*disk).map_err(|error| error.in_directory(path, None))? {
            Some(node) => node,
            None => Self::new_node(path, &*disk, wished_name)?,
        };
        let node = match wished_name {
            // The name cannot change once others know it.
            Some(wished) if node.membership.is_none() => NodeFile { name: wished.clone(), ..node },
            _ => node,
        };
        if let Some(wished) = wished_name.filter(|wished| **wished != node.name) {
            tracing::warn!(
                node = %node.name, %wished,
                "the data directory belongs to another node name than --node-id says; the directory wins"
            );
        }
        Ok(Self { path: path.to_owned(), disk, node, _lock: lock })
    }

    /// An empty directory for a node that founds a cluster. The holder of the lock uses it alone.
    pub(crate) fn fresh(path: &Path, node: NodeFile, lock: File) -> Result<Self, StartError> {
        let doing = || format!("cannot create {}", path.display());
        let disk = RealDisk::open(path).map_err(|source| StartError::Io { doing: doing(), source })?;
        Ok(Self { path: path.to_owned(), disk: Arc::new(disk), node, _lock: lock })
    }

    /// A node that no other node knows yet, in memory only.
    fn new_node(
        path: &Path,
        disk: &dyn Disk,
        wished_name: Option<&NodeName>,
    ) -> Result<NodeFile, StartError> {
        let failed = |source| StartError::Io { doing: format!("cannot list {}", path.display()), source };
        if Wal::exists(disk).map_err(failed)? || snapshots::exist(disk)? {
            return Err(StartError::IdentityLost { path: path.to_owned() });
        }
        let identity = NodeIdentity(crate::random_bytes()?);
        let name = match wished_name {
            Some(name) => name.clone(),
            None => {
                let short: String = identity.to_string().chars().take(8).collect();
                NodeName::parse(&format!("node-{short}"))
                    .expect("a short name of hexadecimal digits is a name")
            }
        };
        Ok(NodeFile { name, identity, membership: None, known: Vec::new(), forming: Memory::default() })
    }

    /// Puts the node's identity on disk. It must be there before any other node hears of it.
    pub(crate) fn keep_identity(&self) -> Result<(), StartError> {
        Ok(sealed::write(&*self.disk, NODE_FILE, NODE_FILE_KIND, &self.node.encode())?)
    }

    /// Puts on disk what the node promises, founds or has heard, before any other node hears of it.
    pub(crate) fn keep_forming(&mut self, memory: &Memory) -> Result<(), StartError> {
        self.node.forming = memory.clone();
        self.keep_identity()
    }

    /// Puts a new cluster's first log and snapshot on disk, then records that in the `node` file.
    pub(crate) fn found(&mut self, cluster: ClusterId, founding: &Founding) -> Result<(), StartError> {
        self.clear()?;
        let SnapshotFile { index, payload } = &founding.snapshot;
        snapshots::save(&*self.disk, GroupId::ROOT, *index, payload)?;
        self.begin_log(&founding.records)?;
        self.belong(cluster, founding.member)
    }

    /// Puts an empty log on disk for a node that joined a cluster, then records that in the `node` file.
    pub(crate) fn join(&mut self, joined: Joined) -> Result<(), StartError> {
        let Joined { cluster, member, members } = joined;
        self.node.known = members;
        self.clear()?;
        self.begin_log(&[])?;
        self.belong(cluster, member)
    }

    /// Removes the files of an attempt that did not finish.
    fn clear(&self) -> Result<(), StartError> {
        assert!(self.node.membership.is_none(), "only a node without a cluster may begin anew");
        let failed =
            |source| StartError::Io { doing: format!("cannot clear {}", self.path.display()), source };
        for name in self.disk.list().map_err(failed)? {
            if lowkey_wal::owns(&name) {
                self.disk.remove(&name).map_err(failed)?;
            }
        }
        self.disk.sync_dir().map_err(failed)
    }

    fn begin_log(&self, records: &[Record]) -> Result<(), StartError> {
        // Closed at once: every start opens the log, the first one too.
        Wal::create(Arc::clone(&self.disk), self.node.identity.0, Options::default(), records)?.close()?;
        Ok(())
    }

    fn belong(&mut self, cluster: ClusterId, member: MemberId) -> Result<(), StartError> {
        self.node.membership = Some((cluster, member));
        self.keep_identity()
    }

    /// Finds the newest snapshot, then opens the log. The order matters: opening the log repairs it, and a
    /// directory that is refused must stay as it was found.
    pub(crate) fn open_log(&self) -> Result<Opened, StartError> {
        self.read_log().map_err(|error| self.unusable(error))
    }

    /// The error for a directory whose contents cannot be used.
    pub(crate) fn unusable(&self, problem: impl Into<StartError>) -> StartError {
        problem.into().in_directory(&self.path, Some(&self.node.name))
    }

    fn read_log(&self) -> Result<Opened, StartError> {
        let snapshot = snapshots::load_newest(&*self.disk, GroupId::ROOT)?.map(|(_, payload)| payload);
        let (wal, recovered) = Wal::open(Arc::clone(&self.disk), self.node.identity.0, Options::default())?;
        if let Some(cut) = &recovered.cut {
            tracing::warn!(
                file = cut.file,
                offset = cut.offset,
                "the log ended in a write that a crash cut short; nothing that was acknowledged is in it"
            );
        }
        Ok(Opened { wal, found: found(snapshot, recovered)? })
    }
}

/// True if a directory holds a node that founded or joined a cluster. What cannot be read is none, and is complained of
/// when it is opened.
pub fn belongs_to_cluster(path: &Path) -> bool {
    path.join(NODE_FILE).exists()
        && RealDisk::open(path).is_ok_and(|disk| {
            NodeFile::read(&disk).is_ok_and(|node| node.is_some_and(|node| node.membership.is_some()))
        })
}

/// True if a node may begin anew in a directory: none that founded or joined a cluster was ever there. What an attempt
/// left that did not finish is in nobody's way: see the top of this file.
pub(crate) fn is_free(path: &Path) -> Result<bool, StartError> {
    let failed = |source| StartError::Io { doing: format!("cannot read {}", path.display()), source };
    let disk = RealDisk::open(path).map_err(failed)?;
    match NodeFile::read(&disk).map_err(|error| error.in_directory(path, None))? {
        Some(node) => Ok(node.membership.is_none()),
        None => Ok(!Wal::exists(&disk).map_err(failed)? && !snapshots::exist(&disk)?),
    }
}

/// Takes the lock of a directory. It stays held until it is dropped. `None` if the file is missing and must
/// not be created: then no process uses the directory.
pub(crate) fn lock(path: &Path, make: bool) -> Result<Option<File>, StartError> {
    let failed = |doing: &str, source| StartError::Io {
        doing: format!("{doing} the data directory {}", path.display()),
        source,
    };
    let file = File::options().create(make).truncate(false).write(true).open(path.join(LOCK_FILE));
    let file = match file {
        Ok(file) => file,
        Err(error) if !make && error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(failed("cannot write to", source)),
    };
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Err(StartError::InUse { path: path.to_owned() }),
        Err(TryLockError::Error(source)) => Err(failed("cannot lock", source)),
    }
}

/// The contents of a node's log and snapshots, read with all the checks of a start. Changes nothing.
pub(crate) fn read(disk: &Arc<dyn Disk>, identity: NodeIdentity) -> Result<Found, StartError> {
    let snapshot = snapshots::load_newest(&**disk, GroupId::ROOT)?.map(|(_, payload)| payload);
    let recovered = Wal::read(disk, identity.0, Options::default())?;
    found(snapshot, recovered)
}

/// What is there of the root group. A log with other groups was written by a version that knows how to
/// serve them.
fn found(snapshot: Option<Vec<u8>>, mut recovered: Recovered) -> Result<Found, StartError> {
    let group = recovered.groups.remove(&GroupId::ROOT).unwrap_or_default();
    if let Some(other) = recovered.groups.keys().next() {
        return Err(StartError::Replica(format!(
            "the log holds group {other}, and this version serves one group only: start a newer version"
        )));
    }
    let lowkey_wal::GroupLog { hard_state, compaction, entries, .. } = group;
    Ok(Found { snapshot, hard_state, compaction, entries })
}

impl NodeFile {
    /// The `node` file of a directory, if it has one.
    pub(crate) fn read(disk: &dyn Disk) -> Result<Option<Self>, StartError> {
        match sealed::read(disk, NODE_FILE, NODE_FILE_KIND)? {
            Some(payload) => Self::decode(&payload).map(Some),
            None => Ok(None),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let (cluster, member) = self.membership.unzip();
        NodeFileProto {
            name: self.name.to_string(),
            identity: self.identity.0.to_vec(),
            cluster: cluster.map(|cluster| cluster.0.to_vec()).unwrap_or_default(),
            member: member.map_or(0, |member| member.0),
            known: self.known.iter().cloned().map(Into::into).collect(),
            forming: (self.forming != Memory::default()).then(|| (&self.forming).into()),
        }
        .encode_to_vec()
    }

    fn decode(payload: &[u8]) -> Result<Self, StartError> {
        let malformed = || StartError::NodeFile { file: NODE_FILE };
        let proto = NodeFileProto::decode(payload).map_err(|_| malformed())?;
        let id = |bytes: &[u8]| <[u8; 16]>::try_from(bytes).map_err(|_| malformed());
        let membership = match proto.member {
            0 => None,
            member => Some((ClusterId(id(&proto.cluster)?), MemberId(member))),
        };
        Ok(Self {
            name: NodeName::parse(&proto.name).map_err(|_| malformed())?,
            identity: NodeIdentity(id(&proto.identity)?),
            membership,
            known: proto
                .known
                .into_iter()
                .map(|known| known.try_into().map_err(|_| malformed()))
                .collect::<Result<_, _>>()?,
            forming: proto.forming.unwrap_or_default().try_into().map_err(|_| malformed())?,
        })
    }
}
