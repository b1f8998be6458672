//! Somebody who watches locks through one node at a time, and goes on at another with the last position
//! that it saw: after a crash, a broken stream, or for no reason.

use lowkey_core::NamePrefix;
use lowkey_replica::{Filter, Position};

use crate::invariants::Check;
use crate::plan::{MILLISECOND, Plan};
use crate::random::Random;
use crate::world::{Event, World};

pub(crate) struct Watcher {
    node: usize,
    filter: Filter,
    /// The last position that it saw.
    after: Position,
}

impl Watcher {
    pub(crate) fn new(plan: &Plan, random: &mut Random) -> Self {
        let filter = match random.between(0, 3) {
            0 => Filter::Name(random.pick(&plan.names).clone()),
            1 => Filter::Prefix(NamePrefix::parse("a").expect("a prefix")),
            _ => Filter::Prefix(NamePrefix::parse("").expect("a prefix")),
        };
        Self { node: random.next() as usize % plan.replicas, filter, after: Position::end_of(0) }
    }
}

impl World {
    pub(crate) fn wake_watcher(&mut self, watcher: usize) {
        let at = self.now + self.random.between(20, 800) * MILLISECOND;
        self.schedule(at, Event::WatcherWakes { watcher });
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
        let Some(process) = node.process.as_ref().filter(|_| node.paused_until <= self.now) else {
            it.node = next;
            return Ok(());
        };
        let history = &process.history;
        match history.read(it.after, &it.filter, count_max, scan_max) {
            Ok(page) => {
                self.watches.told(it.after, &it.filter, &page, self.ledger.committed)?;
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
                self.watches.refused(it.after, process.knows_after, history.applied(), max)?;
                // List, then watch.
                it.after = Position::end_of(history.applied());
            }
        }
        Ok(())
    }
}
