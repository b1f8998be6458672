//! Converts changes to wire messages. This is the only place where the two meet.

use lowkey_api::v1::{EventType, LockHolder, WatchEvent};
use lowkey_core::{Cause, Change, ChangeKind};
use lowkey_replica::Position;

use crate::operation::{mode, scope};

use super::watcher::{EndReason, Told, What};

/// A stream's next item.
pub(super) fn watch_event(told: &Told) -> WatchEvent {
    let event = match &told.what {
        What::Change(recorded) => change_event(&recorded.change, recorded.position),
        What::Heartbeat(position) => bare_event(EventType::Heartbeat, *position),
        What::End(reason, position) => {
            WatchEvent { end_reason: end_reason(*reason).to_owned(), ..bare_event(EventType::End, *position) }
        }
    };
    WatchEvent { in_touch: told.in_touch, ..event }
}

fn bare_event(kind: EventType, Position { revision, ordinal }: Position) -> WatchEvent {
    WatchEvent { r#type: kind.into(), revision, ordinal, ..WatchEvent::default() }
}

fn change_event(change: &Change, position: Position) -> WatchEvent {
    WatchEvent {
        name: change.lock.to_string(),
        owner: change.owner.to_string(),
        fencing_token: token(change),
        lease_id: change.lease.0,
        mode: mode(change.mode).into(),
        scope: scope(change.scope).into(),
        value: change.value.as_str().to_owned(),
        at_unix_ms: at_unix_ms(change),
        actor: actor(change),
        cause: cause(change),
        ..bare_event(event_type(change.kind), position)
    }
}

/// When the change was proposed.
pub(super) fn at_unix_ms(change: &Change) -> i64 {
    i64::try_from(change.at_unix_ms).unwrap_or(i64::MAX)
}

/// The actor that ended a grant: its owner, unless another actor is named. An expiry has none.
pub(super) fn actor(change: &Change) -> String {
    match change.kind {
        ChangeKind::Freed(Cause::Released | Cause::Revoked) => {
            change.actor.as_ref().unwrap_or(&change.owner).to_string()
        }
        _ => String::new(),
    }
}

/// Why a grant ended, where the event's type does not say it.
pub(super) fn cause(change: &Change) -> Option<String> {
    match change.kind {
        ChangeKind::Freed(Cause::HeldTooLong) => Some("HELD_TOO_LONG".to_owned()),
        _ => None,
    }
}

/// The grant that a change has made, or is about.
pub(super) fn lock_holder(change: &Change) -> LockHolder {
    LockHolder {
        owner_id: change.owner.to_string(),
        lease_id: change.lease.0,
        fencing_token: token(change),
        mode: mode(change.mode).into(),
        scope: scope(change.scope).into(),
        value: change.value.as_str().to_owned(),
        since_unix_ms: i64::try_from(change.since_unix_ms).unwrap_or(i64::MAX),
        remaining_ms: None,
        max_hold_seconds: None,
    }
}

/// 0 for a waiter.
pub(super) fn token(change: &Change) -> u64 {
    change.token.map_or(0, |token| token.0)
}

pub(super) fn event_type(kind: ChangeKind) -> EventType {
    match kind {
        ChangeKind::Acquired => EventType::Acquired,
        ChangeKind::Freed(Cause::Released) => EventType::Released,
        // Who knows of no limits learns that the holder is gone all the same; `cause` says the rest.
        ChangeKind::Freed(Cause::Expired | Cause::HeldTooLong) => EventType::Expired,
        ChangeKind::Freed(Cause::Revoked) => EventType::Revoked,
        ChangeKind::Waiting => EventType::Waiting,
        ChangeKind::Cancelled => EventType::Cancelled,
        ChangeKind::ValueSet => EventType::Value,
    }
}

pub(super) fn end_reason(reason: EndReason) -> &'static str {
    match reason {
        EndReason::SlowReader => "SLOW_READER",
        EndReason::NodeStopping => "NODE_STOPPING",
    }
}
