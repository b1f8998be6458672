//! Which nodes are listened to: one connection for messages from each node, and only a few from nodes that
//! are not registered.
//!
//! The port no longer counts a connection that was upgraded, so the port's limits do not cover it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lowkey_core::{MemberId, NodeIdentity};
use tokio::sync::oneshot;

use super::STRANGERS_MAX;
use super::hello::Caller;

#[derive(Clone, Default)]
pub(super) struct Seats(Arc<Mutex<Taken>>);

#[derive(Default)]
struct Taken {
    last_number: u64,
    /// The last one is the one that was taken last.
    places: VecDeque<Place>,
}

struct Place {
    number: u64,
    member: MemberId,
    identity: NodeIdentity,
    is_registered: bool,
    /// Dropped with the place.
    _lost: oneshot::Sender<()>,
}

/// A seat. It is given back on drop.
pub(super) struct Seat {
    number: u64,
    seats: Seats,
    lost: oneshot::Receiver<()>,
}

impl Seats {
    /// A seat for a caller. The caller loses the seat that it had: it would not call again if that were
    /// still of use.
    pub(super) fn take(&self, caller: &Caller, is_registered: bool) -> Seat {
        let Caller { member, identity, .. } = *caller;
        let mut taken = self.taken();
        taken.places.retain(|place| (place.member, place.identity) != (member, identity));
        let is_strange = |place: &Place| !place.is_registered;
        if !is_registered
            && taken.places.iter().filter(|place| is_strange(place)).count() >= STRANGERS_MAX
            && let Some(oldest) = taken.places.iter().position(is_strange)
        {
            taken.places.remove(oldest);
        }
        taken.last_number += 1;
        let number = taken.last_number;
        let (_lost, lost) = oneshot::channel();
        taken.places.push_back(Place { number, member, identity, is_registered, _lost });
        Seat { number, seats: self.clone(), lost }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Resolves when another connection has taken the seat.
    pub(super) async fn lost(&mut self) {
        // Nothing is ever sent.
        let _ = (&mut self.lost).await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.taken().places.retain(|place| place.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn caller(member: u64, identity: u8) -> Caller {
        let raft_address = "127.0.0.1:1".to_owned();
        let proof = super::super::tls::Proof(None);
        Caller { member: MemberId(member), identity: NodeIdentity([identity; 16]), raft_address, proof }
    }

    fn has_lost(seat: &mut Seat) -> bool {
        seat.lost().now_or_never().is_some()
    }

    #[test]
    fn who_comes_again_loses_the_seat_that_it_had_and_nobody_else_does() {
        let seats = Seats::default();
        let mut other = seats.take(&caller(3, 3), true);
        let mut impostor = seats.take(&caller(2, 9), false);
        let mut first = seats.take(&caller(2, 2), true);
        let mut second = seats.take(&caller(2, 2), true);
        assert!(has_lost(&mut first));
        drop(first);
        assert!(!has_lost(&mut second) && !has_lost(&mut other) && !has_lost(&mut impostor));
        drop((second, other, impostor));
        assert!(seats.taken().places.is_empty());
    }

    #[test]
    fn a_crowd_of_strangers_takes_few_seats_and_none_of_a_members() {
        let seats = Seats::default();
        let mut member = seats.take(&caller(2, 2), true);
        let mut crowd: Vec<Seat> =
            (0..100).map(|number| seats.take(&caller(10 + number, 7), false)).collect();
        let staying = crowd.iter_mut().filter_map(|seat| (!has_lost(seat)).then_some(())).count();
        assert_eq!(staying, STRANGERS_MAX);
        assert!(!has_lost(&mut member) && !has_lost(&mut crowd[99]));
    }
}
