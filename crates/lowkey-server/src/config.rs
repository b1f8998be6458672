//! The configuration of a node at its start.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use lowkey_core::NodeName;
use lowkey_replica::RaftTick;

use crate::backups::BackupPlan;
use crate::edge::http::{HttpHost, HttpOrigin};
use crate::edge::serve::ServeLimits;
use crate::edge::tls::TlsFiles;
use crate::forming::ClusterOf;
use crate::invitation::JoinToken;

/// How a node runs; see the command line for the defaults.
#[derive(Clone, Debug)]
pub struct Config {
    /// The node's name. If none is given, one is made once and kept.
    pub node_name: Option<NodeName>,
    /// Where its data is.
    pub data_dir: PathBuf,
    /// Found a cluster if the directory is empty.
    pub bootstrap: bool,
    /// Found it above all tokens of one that was lost with everything, and wait until nobody of before believes any more.
    pub after_total_loss: bool,
    /// Where backups go, if this node is to make any by itself.
    pub backup: Option<BackupPlan>,
    /// How long a cluster that began anew grants nothing, if not for the longest time to live. For tests: the release build
    /// of the binary never sets it.
    pub quarantine: Option<Duration>,
    /// gRPC addresses of members of the cluster to join if the directory is empty.
    pub join: Vec<String>,
    /// Found a cluster together with others if the directory is empty and there is none yet. `join` names all of them.
    pub cluster_of: Option<ClusterOf>,
    /// The invitation to join with if the directory is empty.
    pub join_token: Option<JoinToken>,
    /// The network is trusted: client ports need no TLS, and nodes may join without an invitation.
    pub insecure: bool,
    /// The base of Raft's timing; the same on all nodes.
    pub raft_tick: RaftTick,
    /// Where to listen for peers.
    pub raft_listen: SocketAddr,
    /// Where to listen for gRPC.
    pub grpc_listen: SocketAddr,
    /// Where to listen for HTTP.
    pub http_listen: SocketAddr,
    /// Where peers reach this node, if that is not where it listens.
    pub raft_advertise: Option<String>,
    /// Where gRPC clients reach this node, if that is not where it listens.
    pub grpc_advertise: Option<String>,
    /// Where HTTP clients reach this node, if that is not where it listens.
    pub http_advertise: Option<String>,
    /// Names by which the HTTP port is asked, besides those that the node knows by itself.
    pub http_hosts: Vec<HttpHost>,
    /// Origins whose web pages may use the HTTP port, besides its own.
    pub http_origins: Vec<HttpOrigin>,
    /// Anybody may read the metrics, also when access is required.
    pub metrics_open: bool,
    /// Certificate and key of the gRPC and HTTP ports; without them nothing is encrypted there.
    pub tls: Option<TlsFiles>,
    /// How many leases may exist at a time.
    pub leases_max: usize,
    /// How many watches and observed elections this node may have at a time.
    pub watch_streams_max: usize,
    /// Limits of the two public ports.
    pub limits: ServeLimits,
    /// How much is kept of grants that are over; nothing is if this is absent.
    pub audit: Option<AuditLimits>,
}

/// How much a node keeps of grants that are over.
#[derive(Clone, Copy, Debug)]
pub struct AuditLimits {
    /// For how long.
    pub keep: Duration,
    /// How much its files may take.
    pub bytes_max: u64,
}

impl Default for AuditLimits {
    fn default() -> Self {
        Self { keep: Duration::from_secs(30 * 24 * 3600), bytes_max: 1 << 30 }
    }
}
