//! Why a node could not start, in one line for the person who started it.

use std::io;
use std::path::{Path, PathBuf};

use lowkey_core::{Invalid, NodeName};
use lowkey_replica::RecoverError;
use lowkey_wal::{SealedError, WalError};

/// Why a node could not start, or had to end.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The operating system refused something.
    Io {
        /// What was tried, as the beginning of a sentence.
        doing: String,
        /// What the system said.
        source: io::Error,
    },
    /// Another process uses the data directory.
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// The data directory has a log, but no longer says whose.
    IdentityLost {
        /// The directory.
        path: PathBuf,
    },
    /// The `node` file is whole, but not understood.
    NodeFile {
        /// Its name.
        file: &'static str,
    },
    /// The node's key cannot be used.
    NodeKey {
        /// Its file.
        path: PathBuf,
    },
    /// The node's key is not the one that the node is registered with.
    OtherKey {
        /// The directory.
        path: PathBuf,
        /// The node's name.
        node_name: String,
    },
    /// What is in the data directory could not be used.
    Directory {
        /// The directory.
        path: PathBuf,
        /// The node's name, if that can still be read.
        node_name: Option<String>,
        /// Why not.
        problem: Box<StartError>,
    },
    /// The log could not be used.
    Log(WalError),
    /// A sealed file could not be used.
    Sealed(SealedError),
    /// Log and snapshot are whole, but do not belong together.
    Recover(RecoverError),
    /// A flag has a value that cannot be used.
    Flag {
        /// The flag.
        flag: &'static str,
        /// What is wrong and what is allowed.
        problem: String,
    },
    /// The directory is empty, and nothing says what to do with it.
    NothingToDo {
        /// The directory.
        path: PathBuf,
    },
    /// The directory is of a node that may be part of a cluster that others have founded.
    MayHaveCluster {
        /// The directory.
        path: PathBuf,
    },
    /// No member of a cluster could be joined.
    Join {
        /// What the last attempt said.
        problem: String,
    },
    /// A directory cannot be recovered, or need not be.
    NotRecovered {
        /// Why, and what to do.
        problem: String,
    },
    /// A directory cannot be restored into.
    NotRestored {
        /// Why, and what to do.
        problem: String,
    },
    /// The replica ended by itself.
    Replica(String),
}

impl StartError {
    /// The same, of what is in a directory.
    pub(crate) fn in_directory(self, path: &Path, node_name: Option<&NodeName>) -> Self {
        let node_name = node_name.map(ToString::to_string);
        Self::Directory { path: path.to_owned(), node_name, problem: Box::new(self) }
    }

    /// Whether something is gone from a node's disk, so that it can never come back as who it was.
    pub fn is_loss(&self) -> bool {
        match self {
            Self::Directory { problem, .. } => problem.is_loss(),
            Self::Log(error) => error.is_loss(),
            Self::Sealed(error) => error.is_loss(),
            Self::IdentityLost { .. } | Self::OtherKey { .. } => true,
            _ => false,
        }
    }
}

/// What to do about a node that has lost something. It counts in the majority until it is removed.
fn replace(node_name: Option<&str>) -> String {
    format!(
        "replace this node: `lowkey member remove {}` at the others, then start it with an empty data directory and \
         --join, so that it comes back as a new one",
        node_name.unwrap_or("NAME")
    )
}

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io { doing, source } if source.kind() == io::ErrorKind::AddrInUse => {
                write!(
                    f,
                    "{doing}: {source}; does a node run there already? Stop it, or choose another address"
                )
            }
            Self::Io { doing, source } => write!(f, "{doing}: {source}"),
            Self::InUse { path } => write!(
                f,
                "the data directory {} is in use by another lowkey process; stop that one, or give this one \
                 another --data-dir",
                path.display()
            ),
            Self::IdentityLost { path } => write!(
                f,
                "the data directory {} holds a log but no longer its `node` file, so this node cannot prove who \
                 it is; {}",
                path.display(),
                replace(None)
            ),
            Self::NodeFile { file } => {
                write!(f, "the file `{file}` is not understood; it may be from a newer version")
            }
            Self::NodeKey { path } => write!(
                f,
                "{} is not a key that this version can use; put the file back as the node made it",
                path.display()
            ),
            Self::OtherKey { path, node_name } => write!(
                f,
                "the data directory {}: its `node.key` is not the key that this node is registered with, so no other node \
                 would believe it; put that file back, or {}",
                path.display(),
                replace(Some(node_name))
            ),
            Self::Directory { path, node_name, problem } => {
                write!(f, "the data directory {}: {problem}", path.display())?;
                if problem.is_loss() { write!(f, "; {}", replace(node_name.as_deref())) } else { Ok(()) }
            }
            Self::Log(error) => error.fmt(f),
            Self::Sealed(error) => error.fmt(f),
            Self::Recover(error) => write!(f, "log and snapshot cannot be used: {error}"),
            Self::Flag { flag, problem } => write!(f, "{flag}: {problem}"),
            Self::NothingToDo { path } => write!(
                f,
                "the data directory {} is empty: use --bootstrap to found a cluster, --cluster-of N --join … to found one \
                 with others, or --join HOST:PORT to join one",
                path.display()
            ),
            Self::MayHaveCluster { path } => write!(
                f,
                "the node in {} has agreed to found a cluster with others, or knows of one: start it with --cluster-of as \
                 before; to found another cluster, empty that directory first",
                path.display()
            ),
            Self::Join { problem } | Self::NotRecovered { problem } | Self::NotRestored { problem } => {
                f.write_str(problem)
            }
            Self::Replica(problem) => f.write_str(problem),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Directory { problem, .. } => Some(problem),
            Self::Log(error) => Some(error),
            Self::Sealed(error) => Some(error),
            Self::Recover(error) => Some(error),
            _ => None,
        }
    }
}

impl From<WalError> for StartError {
    fn from(error: WalError) -> Self {
        Self::Log(error)
    }
}

impl From<SealedError> for StartError {
    fn from(error: SealedError) -> Self {
        Self::Sealed(error)
    }
}

impl From<RecoverError> for StartError {
    fn from(error: RecoverError) -> Self {
        Self::Recover(error)
    }
}

impl From<Invalid> for StartError {
    fn from(invalid: Invalid) -> Self {
        Self::Flag { flag: "--node-id", problem: invalid.problem }
    }
}
