//! Who leads an election, derived from the changes of its lock.
//!
//! An election is held by one client, but nothing prevents clients from holding the same name in shared mode.
//! The leader is the one that has held it longest, which is the lowest token. With one holder, it is that
//! holder.

use std::collections::BTreeMap;

use lowkey_api::ApiError;
use lowkey_api::v1::{EventType, LockHolder, ObserveEvent};
use lowkey_core::{Change, ChangeKind};
use lowkey_replica::Position;

use super::watcher::{Told, Watcher, What};
use super::words;

/// The holders of a lock, as of the last change that was told.
pub(super) struct Observer {
    /// By token.
    holders: BTreeMap<u64, LockHolder>,
    /// The position at which the present was read, until it is told.
    present: Option<Position>,
}

impl Observer {
    /// Begins with the holders of the lock at a revision.
    pub(super) fn new(holders: impl IntoIterator<Item = LockHolder>, revision: u64) -> Self {
        let holders = holders.into_iter().map(|holder| (holder.fencing_token, holder)).collect();
        Self { holders, present: Some(Position::end_of(revision)) }
    }

    /// What to tell next: first the present, then what changes it.
    pub(super) async fn next(&mut self, watcher: &mut Watcher) -> Option<Result<ObserveEvent, ApiError>> {
        if let Some(position) = self.present.take() {
            let kind = if self.holders.is_empty() { EventType::Vacant } else { EventType::Acquired };
            return Some(Ok(self.event(kind, position, watcher.in_touch())));
        }
        loop {
            match watcher.next().await? {
                Ok(told) => {
                    if let Some(event) = self.take_in(&told) {
                        return Some(Ok(event));
                    }
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// Follows a change. `None` if it is only about the queue.
    fn take_in(&mut self, told: &Told) -> Option<ObserveEvent> {
        match &told.what {
            What::Change(recorded) if self.follow(&recorded.change) => {
                let change = &recorded.change;
                let event = self.event(words::event_type(change.kind), recorded.position, told.in_touch);
                let (at_unix_ms, actor) = (words::at_unix_ms(change), words::actor(change));
                Some(ObserveEvent { at_unix_ms, actor, cause: words::cause(change), ..event })
            }
            What::Change(_) => None,
            What::Heartbeat(position) => Some(self.event(EventType::Heartbeat, *position, told.in_touch)),
            What::End(reason, position) => Some(ObserveEvent {
                end_reason: words::end_reason(*reason).to_owned(),
                ..self.event(EventType::End, *position, told.in_touch)
            }),
        }
    }

    /// True if the change is about holders.
    fn follow(&mut self, change: &Change) -> bool {
        match change.kind {
            ChangeKind::Acquired | ChangeKind::ValueSet => {
                let holder = words::lock_holder(change);
                self.holders.insert(holder.fencing_token, holder);
                true
            }
            ChangeKind::Freed(_) => {
                self.holders.remove(&words::token(change));
                true
            }
            ChangeKind::Waiting | ChangeKind::Cancelled => false,
        }
    }

    fn event(&self, kind: EventType, position: Position, in_touch: bool) -> ObserveEvent {
        let leader = self.holders.first_key_value().map(|(_, holder)| holder.clone());
        let Position { revision, ordinal } = position;
        let event = ObserveEvent { r#type: kind.into(), leader, ..ObserveEvent::default() };
        ObserveEvent { revision, ordinal, in_touch, ..event }
    }
}
