//! Makes a new cluster of a backup, in an empty data directory.
//!
//! It is written as a founder's directory is, and in the same order: log and snapshot first, and the `node` file, which
//! says that they are worth something, last. So a restore that is interrupted leaves a directory of no cluster, and can
//! be begun again.

use std::path::Path;

use lowkey_core::{COMMAND_VERSION, NewBeginning, NodeInfo, NodeName};
use lowkey_replica::{SavedState, begin_anew};

use crate::error::StartError;
use crate::recover::Anew;
use crate::storage::{self, DataDirectory};

/// A new cluster that waits for its first start.
#[derive(Clone, Debug)]
pub struct Restored {
    /// The new cluster's id.
    pub cluster_id: String,
    /// The name of its first node.
    pub node_name: String,
}

/// Refuses a data directory that belongs to a cluster, or once did. Changes nothing.
pub fn check_empty(path: &Path) -> Result<(), StartError> {
    match std::fs::read_dir(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(StartError::Io { doing: format!("cannot read {}", path.display()), source }),
        Ok(_) if storage::is_free(path)? => Ok(()),
        Ok(_) => Err(StartError::NotRestored {
            problem: format!(
                "the data directory {} belongs to a cluster already; restore into an empty one, and keep this one until \
                 all is well",
                path.display()
            ),
        }),
    }
}

/// Writes the first node of a new cluster that takes the place of the saved one.
pub fn restore(
    path: &Path,
    wished_name: Option<&NodeName>,
    saved: &SavedState,
    anew: Anew,
) -> Result<Restored, StartError> {
    check_empty(path)?;
    let mut directory = DataDirectory::open(path, wished_name)?;
    if directory.node.membership.is_some() {
        // Somebody was faster.
        return check_empty(path).and(Err(StartError::NotRestored {
            problem: format!("another node began in {} at this moment", path.display()),
        }));
    }
    let Anew { cluster, numbers, keep_tokens, quarantine } = anew;
    // Where it is reached it says itself when it starts, and then which key it has.
    let node = NodeInfo {
        name: directory.node.name.clone(),
        identity: Some(directory.node.identity),
        raft_address: String::new(),
        grpc_address: String::new(),
        http_address: String::new(),
        command_version: COMMAND_VERSION,
        key_hash: None,
    };
    let beginning = NewBeginning { cluster, node, numbers, keep_tokens, quarantine };
    let founding = begin_anew(&saved.state, saved.term, beginning).map_err(|_| StartError::NotRestored {
        problem: "the backup's counters stand above the claimed epoch: claim another one".into(),
    })?;
    directory.keep_identity()?;
    directory.found(cluster, &founding)?;
    Ok(Restored { cluster_id: cluster.to_string(), node_name: directory.node.name.to_string() })
}
