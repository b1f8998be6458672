//! What a node waits for that is to found a cluster with others, in words for the person who started it.

use std::fmt;

use lowkey_core::{ClusterId, NodeName};

use crate::raft_tick::RaftTick;

/// Why nothing is founded yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Not all nodes have answered.
    Others {
        /// Those that are there, this one among them.
        seen: Vec<NodeName>,
    },
    /// More nodes have answered than there are to be.
    TooMany {
        /// All of them.
        seen: Vec<NodeName>,
    },
    /// A node was told another number of nodes.
    OtherSize {
        /// Which.
        node: NodeName,
        /// What it was told.
        theirs: usize,
        /// What this node was told.
        own: usize,
    },
    /// A node has another tick.
    OtherTick {
        /// Which.
        node: NodeName,
        /// Its tick.
        theirs: RaftTick,
        /// This node's.
        own: RaftTick,
    },
    /// Two nodes have the same name.
    SameName {
        /// It.
        node: NodeName,
    },
    /// The coordinator has not said yet what is to be founded.
    Plan {
        /// Who it is.
        of: NodeName,
    },
    /// This node coordinates, and not all have promised yet to follow.
    Promises {
        /// Those that are missing.
        of: Vec<NodeName>,
    },
    /// All is said, and the coordinator has yet to decide.
    Decision {
        /// Who it is.
        of: NodeName,
    },
    /// This node had promised to found a cluster with others. Too many of them have lost their disks since to say what
    /// came of it.
    InDoubt {
        /// This node.
        node: NodeName,
        /// How many there were.
        nodes: usize,
    },
    /// A cluster was founded that counts on this node, after this node had given it up for lost.
    LeftBehind {
        /// It.
        cluster: ClusterId,
    },
}

impl Waiting {
    /// True if this does not end by itself.
    pub fn needs_a_person(&self) -> bool {
        match self {
            Self::TooMany { .. }
            | Self::OtherSize { .. }
            | Self::OtherTick { .. }
            | Self::SameName { .. }
            | Self::InDoubt { .. }
            | Self::LeftBehind { .. } => true,
            Self::Others { .. } | Self::Plan { .. } | Self::Promises { .. } | Self::Decision { .. } => false,
        }
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Others { seen } => {
                write!(f, "waiting for the other nodes: so far there are {}", list(seen))
            }
            Self::TooMany { seen } => write!(
                f,
                "more nodes answer than --cluster-of says: {}; name exactly those in --join that are to found the cluster, \
                 and let the others join later",
                list(seen)
            ),
            Self::OtherSize { node, theirs, own } => {
                write!(f, "--cluster-of is {own} here and {theirs} at {node}: give all nodes the same number")
            }
            Self::OtherTick { node, theirs, own } => {
                write!(f, "--raft-tick is {own} here and {theirs} at {node}: give all nodes the same value")
            }
            Self::SameName { node } => write!(
                f,
                "two nodes are called {node}: give each another --node-id, and an empty --data-dir if it was copied"
            ),
            Self::Plan { of } => write!(f, "all nodes are here; waiting for {of} to propose the cluster"),
            Self::Promises { of } => {
                write!(f, "all nodes are here; waiting for the agreement of {}", list(of))
            }
            Self::Decision { of } => write!(f, "all nodes are here; waiting for {of} to decide"),
            Self::InDoubt { node, nodes } => write!(
                f,
                "node {node} had agreed to found a cluster with {} others, and has not heard what came of it; too many of \
                 them were wiped since, or are still to answer. If that cluster was never used, or is given up, empty the \
                 data directory of {node} and start it again",
                nodes.saturating_sub(1)
            ),
            Self::LeftBehind { cluster } => write!(
                f,
                "cluster {cluster} was founded and counts on this node, which had given it up: remove the node there \
                 (`lowkey member remove`), empty its data directory and start it again"
            ),
        }
    }
}

fn list(names: &[NodeName]) -> String {
    let names: Vec<&str> = names.iter().map(NodeName::as_str).collect();
    names.join(", ")
}
