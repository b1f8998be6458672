//! Whoever has the state of the log never stops for want of it (`docs/internals/invariants.md`, point 10). That whoever has
//! another one does stop, scenarios show: in a random world nobody has.

use super::{Agreement, Check, broken};
use crate::node::SimNode;

const NAME: &str = "guard";

/// Nobody stops serving but a machine whose state was tampered with, and those that nobody can tell it from.
pub(crate) fn only_the_drifted_stop(nodes: &[SimNode], node: usize, group: usize) -> Check {
    let replica = nodes[node].running(group).map(|lane| &lane.replica);
    let Some(divergence) = replica.and_then(|replica| replica.divergence()) else { return Ok(()) };
    let drifted = nodes.iter().filter(|node| node.drifted).count();
    let (is_drifted, majority) = (nodes[node].drifted, nodes.len() / 2 + 1);
    // Of those that are up and as they should be, are there enough to know?
    let right = nodes.iter().filter(|node| !node.drifted && node.process.is_some()).count();
    if is_drifted || (drifted > 0 && right < majority) {
        return Ok(());
    }
    broken(NAME, format!("n{} does not serve, and nothing is wrong with it: {divergence:?}", node + 1))
}

/// A machine that was tampered with has what the log says again.
pub(crate) fn is_right(node: &SimNode, group: usize, agreement: &Agreement) -> bool {
    node.running(group).is_some_and(|lane| lane.replica.state() == agreement.state())
}
