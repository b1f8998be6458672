//! Small backups, made of real snapshots.
#![allow(dead_code, reason = "each test file uses its part")]

use std::path::{Path, PathBuf};

use lowkey_backup::{BackupId, GroupSnapshot, Store, no_progress};
use lowkey_core::{
    AcquireWith, COMMAND_VERSION, ClusterId, Command, GroupId, LockName, Mode, NodeIdentity, NodeInfo,
    NodeName, OwnerId, RequestId, Scope, State, Ttl, Value,
};

pub(crate) const CLUSTER: ClusterId = cluster(7);

pub(crate) const fn cluster(number: u8) -> ClusterId {
    ClusterId([number; 16])
}

fn node() -> NodeInfo {
    NodeInfo {
        name: NodeName::parse("n1").unwrap(),
        identity: Some(NodeIdentity([1; 16])),
        raft_address: "10.0.0.1:7000".into(),
        grpc_address: "10.0.0.1:9000".into(),
        http_address: "10.0.0.1:8080".into(),
        command_version: COMMAND_VERSION,
        key_hash: None,
    }
}

/// The state of a cluster in which so many locks are held.
fn state(cluster: ClusterId, locks: u64) -> State {
    let mut state = State::new(cluster);
    state.apply(1, 1, &Command::AddMember { node: Box::new(node()), invitation: None });
    for number in 1..=locks {
        let acquire = Command::Acquire {
            lock: LockName::parse(&format!("lock-{number}")).unwrap(),
            owner: OwnerId::parse("alice").unwrap(),
            with: AcquireWith::NewLease(Ttl::parse(60).unwrap()),
            mode: Mode::Exclusive,
            scope: Scope::Name,
            value: Value::default(),
            wait: false,
            max_hold: None,
            keeps_asked: false,
            since_unix_ms: 0,
            request: RequestId::parse(&format!("r{number}")).unwrap(),
        };
        assert!(state.apply(number + 1, 1, &acquire).reply.is_ok());
    }
    state.advance(locks + 4);
    state
}

/// A snapshot as a node has it on disk: that of a cluster that begins with this state would be.
pub(crate) fn snapshot(cluster: ClusterId, locks: u64) -> Vec<u8> {
    lowkey_replica::SavedState::payload_of(&state(cluster, locks), 1)
}

/// A store in a folder of this machine.
pub(crate) fn store_in(folder: &Path) -> Store {
    Store::open(&format!("file://{}", folder.display()).parse().unwrap()).unwrap()
}

/// Writes a backup of a cluster with so many locks.
pub(crate) async fn write(store: &Store, cluster: ClusterId, locks: u64, made_unix_ms: u64) -> BackupId {
    let groups = vec![GroupSnapshot { group: GroupId::ROOT, payload: snapshot(cluster, locks) }];
    store.write(made_unix_ms, "n1", groups, &no_progress).await.unwrap().id
}

/// Where the files of a backup are.
pub(crate) fn folder_of(store: &Path, id: &BackupId) -> PathBuf {
    store.join(id.to_string())
}
