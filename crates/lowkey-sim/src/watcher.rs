//! Somebody who watches locks through one node at a time, and goes on at another with the last position
//! that it saw: after a crash, a broken stream, or for no reason.

use lowkey_core::NamePrefix;
use lowkey_replica::{Filter, Position};

use crate::invariants::Check;
use crate::plan::{MILLISECOND, WorldPlan};
use crate::random::Random;
use crate::world::{Checks, World, WorldEvent};

pub(crate) struct SimWatcher {
    group: usize,
    node: usize,
    filter: Filter,
    /// The last position that it saw.
    after: Position,
}

impl SimWatcher {
    pub(crate) fn new(number: usize, plan: &WorldPlan, random: &mut Random) -> Self {
        let filter = match random.between(0, 3) {
            0 => Filter::Name(random.pick(&plan.names).clone()),
            1 => Filter::Prefix(NamePrefix::parse("a").expect("a prefix")),
            _ => Filter::Prefix(NamePrefix::parse("").expect("a prefix")),
        };
        let group = number % plan.groups;
        Self { group, node: random.next() as usize % plan.replicas, filter, after: Position::end_of(0) }
    }
}

impl World {
    pub(crate) fn wake_watcher(&mut self, watcher: usize) {
        let at = self.now + self.random.between(20, 800) * MILLISECOND;
        self.schedule(at, WorldEvent::WatcherWakes { watcher });
    }

    /// A watcher looks at what its node remembers, or tries the next one.
    pub(crate) fn run_watcher(&mut self, watcher: usize) -> Check {
        self.wake_watcher(watcher);
        let count_max = self.random.between(1, 40) as usize;
        let scan_max = self.random.between(1, 80) as usize;
        let next = self.random.next() as usize % self.nodes.len();
        let breaks = self.random.one_in(6);
        let it = &mut self.watchers[watcher];
        let node = &self.nodes[it.node];
        let Some(lane) = node.running(it.group).filter(|_| node.paused_until <= self.now) else {
            it.node = next;
            return Ok(());
        };
        let history = &lane.history;
        let Checks { watches, ledger, .. } = &mut self.groups[it.group];
        match history.read(it.after, &it.filter, count_max, scan_max) {
            Ok(page) => {
                watches.told(it.after, &it.filter, &page, ledger.committed)?;
                it.after = page.through;
                if breaks {
                    // It saw only some of the page, and asks elsewhere.
                    let seen = self.random.next() as usize % (page.events.len() + 1);
                    it.after = page.events[..seen].last().map_or(it.after, |event| event.position);
                    it.node = next;
                }
            }
            Err(_) => {
                let max = history.events_max();
                watches.refused(it.after, lane.knows_after, history.applied(), max)?;
                // List, then watch.
                it.after = Position::end_of(history.applied());
            }
        }
        Ok(())
    }
}
