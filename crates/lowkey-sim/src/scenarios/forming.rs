//! Machines that are started empty, in every order, form one cluster, and never a second one.
//!
//! Attacked: F1 to F3 of `lowkey-replica/src/forming.rs`. Questions and answers are lost, machines crash before and after
//! each write, come late, and are wiped before, while and after a cluster is founded: once, again and again, all one after
//! another.
//! Must be true: what `lowkey-sim/src/forming.rs` checks in each of many small worlds. The cluster of the scenario itself
//! only stands by.

use super::script::{ANN, N1, Script, ensure};
use crate::forming::{Weather, play};
use crate::invariants::{Check, Violation};

/// How many small worlds there are of each kind.
const WORLDS: u64 = 800;
/// With one machine wiped, in how many of them a person may be needed.
const STUCK_MAX: u64 = WORLDS / 50;

/// Nobody is wiped, or one machine is.
pub(super) fn in_every_order(script: &mut Script) -> Check {
    for wipes in [0, 1] {
        for machines in [3, 5] {
            let stuck = worlds(Weather { machines, wipes, wipes_are_late: false })?;
            ensure(stuck <= STUCK_MAX * wipes, || format!("{stuck} of {WORLDS} worlds need a person"))?;
        }
    }
    end(script)
}

/// Many are wiped, at any time.
pub(super) fn while_machines_are_wiped(script: &mut Script) -> Check {
    for machines in [2, 3, 4, 5] {
        worlds(Weather { machines, wipes: 8, wipes_are_late: false })?;
    }
    end(script)
}

/// Machines are wiped one after another once there is a cluster, until none of the first is left.
pub(super) fn and_all_are_wiped_in_turn(script: &mut Script) -> Check {
    for machines in [2, 3] {
        worlds(Weather { machines, wipes: 8, wipes_are_late: true })?;
    }
    end(script)
}

/// Plays many. How many of them end with a machine that waits for a person.
fn worlds(weather: Weather) -> Result<u64, Violation> {
    (1..=WORLDS).try_fold(0, |stuck, seed| {
        let settled = play(seed, weather).map_err(|Violation { invariant, what }| Violation {
            invariant,
            what: format!("world {seed} of {weather:?}: {what}"),
        })?;
        Ok(stuck + u64::from(!settled))
    })
}

fn end(script: &mut Script) -> Check {
    script.take_lock(ANN, N1, 2)?;
    script.end(1)
}
