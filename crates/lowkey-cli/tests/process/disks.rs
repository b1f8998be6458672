//! What lies on the disks: damaged, behind, different from the other nodes', or without room. No node believes
//! what it should not, and each says what is wrong.

pub(crate) mod damage;
mod damaged_follower;
mod drift;
mod failing_disks;
mod snapshots;
