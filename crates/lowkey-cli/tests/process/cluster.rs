//! Nodes that come, go, die and stand still: what was acknowledged stays true, and whoever is left goes on.

pub(crate) mod encrypted;
mod failover;
mod forming;
mod kill_and_restart;
mod members;
mod pause;
mod recover;
mod stop;
mod three_nodes;
mod timing;
mod upgrade;
