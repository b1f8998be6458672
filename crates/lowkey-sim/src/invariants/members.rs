//! Who belongs to the cluster: no leader proposes a change that drops it, and what is registered is what votes
//! when all is quiet (`docs/internals/raft.md`, `docs/internals/members.md`).

use lowkey_core::{MemberId, State};
use lowkey_replica::{EntryType, Message, MessageType, Replica, wire};

use super::{Check, broken};
use crate::node::SimNode;

const NAME: &str = "members";

/// What a leader sends: none of its own proposals may drop it. It would lead on without a vote, and answer
/// rounds alone.
pub(crate) fn no_leader_drops_itself(replica: &Replica, message: &Message) -> Check {
    if message.get_msg_type() != MessageType::MsgAppend {
        return Ok(());
    }
    let own = message.from;
    let proposed = message
        .get_entries()
        .iter()
        .filter(|entry| entry.get_entry_type() == EntryType::EntryConfChangeV2 && entry.term == message.term);
    for entry in proposed {
        let Ok(change) = wire::decode_conf_change(&entry.data) else {
            return broken(NAME, format!("entry {} is no change of members", entry.index));
        };
        let changes = change.get_changes();
        let drops = match changes.is_empty() {
            // Out of a joint configuration, into the later of the two.
            true => !replica.voters().contains(&own),
            // Whatever a leader is made, it is less than it was.
            false => changes.iter().any(|single| single.node_id == own),
        };
        if drops {
            return broken(
                NAME,
                format!("n{own} leads, and proposes by entry {} to drop itself", entry.index),
            );
        }
    }
    Ok(())
}

/// When all is quiet: whoever is registered votes, and whoever is not has been told and is gone.
pub(crate) fn as_registered(nodes: &[SimNode], group: usize, state: &State) -> Check {
    let registered: Vec<u64> = state.members().map(|(member, _)| member.0).collect();
    let lanes = nodes.iter().filter_map(|node| Some((node.member, node.running(group)?)));
    for (member, lane) in lanes {
        let is_registered = state.member(MemberId(member)).is_some();
        if !is_registered && member <= state.last_member().0 {
            return broken(NAME, format!("n{member} was removed and does not know it"));
        }
        let mut voters = lane.replica.voters().to_vec();
        voters.sort_unstable();
        if is_registered && voters != registered {
            return broken(
                NAME,
                format!(
                    "{registered:?} are registered when all is quiet, and n{member} says that {voters:?} vote"
                ),
            );
        }
    }
    Ok(())
}
