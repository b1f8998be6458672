//! Log messages of a driver about changes of its replica.

use lowkey_core::limits::TTL_SECONDS_MAX;
use lowkey_replica::{Divergence, Role, Status};
use lowkey_wal::{SealedError, WalError};

use crate::error::StartError;

/// Logs how long nodes wait for a sign of life.
pub(super) fn tell_of_timing(status: &Status) {
    tracing::info!(factor = status.timing_factor, "nodes wait so many times longer for a sign of life");
}

/// Logs which node leads now.
pub(super) fn tell_of_standing(status: &Status) {
    match status.role {
        Role::Leader => tracing::info!(term = status.term, "this node leads"),
        Role::Follower => {
            let leader = status.leader.map(|leader| leader.0);
            tracing::info!(term = status.term, leader, "this node follows");
        }
        Role::Candidate => tracing::info!(term = status.term, "this node looks for a leader"),
    }
}

/// Logs which members joined, became voters, or left.
pub(super) fn tell_of_members(before: &Status, status: &Status) {
    for member in &status.members {
        let (number, name) = (member.member.0, &member.node.name);
        match before.members.iter().find(|known| known.member == member.member) {
            None => tracing::info!(member = number, node = %name, "a node joined"),
            Some(known) if member.voter && !known.voter => {
                tracing::info!(member = number, node = %name, "a node has caught up, and votes from now on");
            }
            Some(_) => {}
        }
    }
    for gone in before.members.iter().filter(|known| !status.members.iter().any(|m| m.member == known.member))
    {
        tracing::info!(member = gone.member.0, node = %gone.node.name, "a node was removed");
    }
}

/// Logs that this node's state is in doubt, what that means, and when it is over.
pub(super) fn tell_of_divergence(before: Option<Divergence>, divergence: Option<Divergence>) {
    match divergence {
        _ if before == divergence => {}
        Some(Divergence::Minority { index }) => tracing::error!(
            index,
            "this node's state differs from that of the majority: it stops serving, and takes a snapshot from the leader"
        ),
        Some(Divergence::NoMajority { index }) => tracing::error!(
            index,
            "the nodes' states differ, and no majority has the same: this node stops serving until one has"
        ),
        None => tracing::warn!("this node's state is that of the majority again: it serves"),
    }
}

/// Logs why the node ends by itself.
pub(crate) fn tell_the_end(error: &StartError) {
    match error {
        // Only the mark of an orderly stop did not fit.
        StartError::Log(WalError::Full) => {}
        StartError::Log(WalError::Io { .. }) | StartError::Sealed(SealedError::Io { .. }) => tracing::error!(
            %error,
            "this node ends at once: after a write or sync that failed nobody knows what is on its disk; what was \
             acknowledged is on the disks of a majority; check this disk, then start the node again"
        ),
        _ => tracing::error!(%error, "this node ends by itself: it cannot go on"),
    }
}

/// Logs from when on nothing is granted, and from when on it is again.
pub(super) fn tell_of_quarantine(before: &Status, status: &Status) {
    match status.quarantine_ends {
        Some(ends) if before.quarantine_ends != Some(ends) => tracing::warn!(
            seconds = TTL_SECONDS_MAX,
            "this cluster was recovered after it lost its quorum: no lock is granted (RECOVERING) until all clients of before have stopped believing that they hold one"
        ),
        _ if before.quarantine && !status.quarantine => {
            tracing::info!("the time after the recovery is over: locks are granted");
        }
        _ => {}
    }
}
