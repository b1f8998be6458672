//! Watches are ordered, without gaps or repeats, resumable on any node, and say so when history is gone
//! (`docs/internals/invariants.md`, point 7).
//!
//! A simulated watcher reads the very memory that the server's watches read; what it saw is compared with
//! what the committed log says.

use lowkey_core::{Change, Event};
use lowkey_replica::{Filter, Page, Position};

use super::{Check, Committed, broken};

const NAME: &str = "watches";

#[derive(Default)]
pub(crate) struct Watches {
    /// Every change that ever was, in order.
    all: Vec<(Position, Change)>,
    pub(crate) seen: u64,
    pub(crate) compacted: u64,
}

impl Watches {
    pub(crate) fn committed(&mut self, committed: &Committed) {
        let changes = committed.applied.events.iter().filter_map(|event| match event {
            Event::Changed(change) => Some(change.clone()),
            _ => None,
        });
        let revision = committed.index;
        self.all.extend((0..).zip(changes).map(|(ordinal, change)| (Position { revision, ordinal }, change)));
    }

    fn between(&self, after: Position, through: Position) -> &[(Position, Change)] {
        let from = self.all.partition_point(|(position, _)| *position <= after);
        let to = self.all.partition_point(|(position, _)| *position <= through);
        self.all.get(from..to).unwrap_or_default()
    }

    /// A watcher at a position was told this: all that happened from there on, and nothing else.
    pub(crate) fn told(&mut self, after: Position, filter: &Filter, page: &Page, committed: u64) -> Check {
        let true_events = self.between(after, page.through);
        let mut wanted = true_events.iter().filter(|(_, change)| filter.matches(&change.lock));
        for event in &page.events {
            match wanted.next() {
                Some((position, change)) if (*position, change) == (event.position, &event.change) => {}
                Some((position, _)) => {
                    return broken(NAME, format!("after {after} came {}, not {position}", event.position));
                }
                None => return broken(NAME, format!("after {after} came {}: too much", event.position)),
            }
        }
        if let Some((position, _)) = wanted.next() {
            return broken(NAME, format!("after {after} and through {} came no {position}", page.through));
        }
        if page.through < after || page.through > after.max(Position::end_of(committed)) {
            return broken(NAME, format!("after {after} the watch goes on at {}", page.through));
        }
        self.seen += page.events.len() as u64;
        Ok(())
    }

    /// A watcher at a position was told that history is gone, by a node that knows all from a revision on
    /// and keeps so many changes: some must be gone.
    pub(crate) fn refused(
        &mut self,
        after: Position,
        knows_after: u64,
        applied: u64,
        events_max: usize,
    ) -> Check {
        self.compacted += 1;
        let kept = self.between(Position::end_of(knows_after), Position::end_of(applied));
        // A revision is forgotten in whole, once those behind it need its room.
        let first_kept = kept.len().saturating_sub(events_max);
        let gone = match first_kept {
            0 => None,
            _ => Some(kept[first_kept - 1].0.revision),
        };
        let lost = match gone {
            Some(revision) => !self.between(after, Position::end_of(revision)).is_empty(),
            // What happened before it began to listen, a node cannot know.
            None => false,
        };
        if lost || after < Position::end_of(knows_after) {
            return Ok(());
        }
        broken(NAME, format!("a watch is refused at {after}, and nothing after that is gone"))
    }
}
