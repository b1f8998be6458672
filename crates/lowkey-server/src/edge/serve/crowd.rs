//! The connections of a port, and which of them must go when there is no place left.
//!
//! An unused place may be given to another client:
//!
//! - When the port is full, a newcomer gets the place of a connection on which nothing is under way. It is
//!   taken from the address that has most connections, and there from the oldest one.
//! - If all of those are in use, an address that has more than half of all places gives one up for another
//!   address.
//! - Otherwise the newcomer is turned away.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

use crate::edge::budget::{Account, one_client};

/// How many connections are checked, for each newcomer, to find one that can go.
const LOOKED_AT_MAX: usize = 64;

/// The connections of a port.
#[derive(Clone)]
pub(super) struct Crowd {
    inside: Arc<Mutex<Inside>>,
}

struct Inside {
    max: usize,
    /// `== addresses.values().map(len).sum()`
    count: usize,
    /// The greatest number that was given to a guest.
    last: u64,
    /// By address, and there by number: none is empty.
    addresses: HashMap<IpAddr, BTreeMap<u64, Arc<Guest>>>,
}

struct Guest {
    /// Its place in line: changed only while `Inside` is locked.
    number: AtomicU64,
    account: Option<Arc<Account>>,
    has_to_go: Notify,
}

impl Guest {
    fn is_idle(&self) -> bool {
        self.account.as_ref().is_some_and(|account| account.is_idle())
    }
}

/// A place, free again when this is dropped.
pub(super) struct Seat {
    crowd: Crowd,
    address: IpAddr,
    guest: Arc<Guest>,
}

impl Crowd {
    pub(super) fn new(max: usize) -> Self {
        let inside = Inside { max, count: 0, last: 0, addresses: HashMap::new() };
        Self { inside: Arc::new(Mutex::new(inside)) }
    }

    /// A place for a newcomer, if there is one.
    pub(super) fn admit(&self, address: IpAddr, account: Option<Arc<Account>>) -> Option<Seat> {
        let address = one_client(address);
        let guest = Arc::new(Guest { number: AtomicU64::new(0), account, has_to_go: Notify::new() });
        let mut inside = self.lock();
        if inside.count >= inside.max && !inside.make_room(address) {
            return None;
        }
        inside.count += 1;
        inside.seat(address, Arc::clone(&guest));
        drop(inside);
        Some(Seat { crowd: self.clone(), address, guest })
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inside {
    fn seat(&mut self, address: IpAddr, guest: Arc<Guest>) {
        self.last += 1;
        guest.number.store(self.last, Ordering::Relaxed);
        self.addresses.entry(address).or_default().insert(self.last, guest);
    }

    /// Makes a connection go, if one must.
    fn make_room(&mut self, newcomer: IpAddr) -> bool {
        let Some((&address, guests)) = self.addresses.iter_mut().max_by_key(|(_, guests)| guests.len())
        else {
            return false;
        };
        let has_most = guests.len() * 2 > self.max;
        for _ in 0..guests.len().min(LOOKED_AT_MAX) {
            let Some((_, guest)) = guests.pop_first() else { break };
            if guest.is_idle() {
                self.count -= 1;
                guest.has_to_go.notify_one();
                self.forget_empty(address);
                return true;
            }
            // It is checked again when its turn comes.
            self.last += 1;
            guest.number.store(self.last, Ordering::Relaxed);
            guests.insert(self.last, guest);
        }
        if address == newcomer || !has_most {
            return false;
        }
        let Some((_, guest)) = guests.pop_first() else { return false };
        self.count -= 1;
        guest.has_to_go.notify_one();
        self.forget_empty(address);
        true
    }

    /// Frees the place of a guest, unless it was given away already.
    fn remove(&mut self, address: IpAddr, guest: &Guest) {
        let Some(guests) = self.addresses.get_mut(&address) else { return };
        if guests.remove(&guest.number.load(Ordering::Relaxed)).is_some() {
            self.count -= 1;
            self.forget_empty(address);
        }
    }

    fn forget_empty(&mut self, address: IpAddr) {
        if self.addresses.get(&address).is_some_and(BTreeMap::is_empty) {
            self.addresses.remove(&address);
        }
    }
}

impl Seat {
    /// Resolves when the connection must go:
    ///
    /// - another client needs its place,
    /// - nothing was asked on it within `patience`,
    /// - or it took nothing for that long although there is something for it, and that is in the way of
    ///   others.
    pub(super) async fn has_to_go(&self, patience: Duration) {
        let Some(account) = &self.guest.account else { return self.guest.has_to_go.notified().await };
        let useless = async {
            sleep(patience).await;
            let mut taken = None;
            while account.has_asked() {
                sleep(patience).await;
                let taken_now = account.taken_under_pressure();
                if taken_now.is_some() && taken_now == taken {
                    return;
                }
                taken = taken_now;
            }
        };
        tokio::select! {
            () = self.guest.has_to_go.notified() => {}
            () = useless => {}
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.crowd.lock().remove(self.address, &self.guest);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;
    use crate::edge::budget::{Budget, Charge, MemoryLimits, Urgency};

    struct Port {
        budget: Arc<Budget>,
        crowd: Crowd,
    }

    impl Port {
        fn new(max: usize) -> Self {
            Self { budget: Arc::new(Budget::new(MemoryLimits::default())), crowd: Crowd::new(max) }
        }

        fn come(&self, address: &str) -> Option<(Seat, Arc<Account>)> {
            let address = address.parse().unwrap();
            let account = self.budget.open(address);
            Some((self.crowd.admit(address, Some(Arc::clone(&account)))?, account))
        }

        fn come_and_ask(&self, address: &str) -> (Seat, Charge) {
            let (seat, account) = self.come(address).expect("there is a place");
            (seat, account.charge(1, Urgency::Usual).ok().unwrap())
        }
    }

    fn goes(seat: &Seat) -> bool {
        seat.guest.has_to_go.notified().now_or_never().is_some()
    }

    #[test]
    fn the_first_that_does_nothing_makes_room_and_those_who_do_something_stay() {
        let port = Port::new(3);
        let busy = port.come_and_ask("10.0.0.1");
        let [first, second] = [port.come("10.0.0.1").unwrap(), port.come("10.0.0.1").unwrap()];
        let _third = port.come("10.0.0.1").expect("the first that is idle makes room");
        assert!(goes(&first.0) && !goes(&second.0) && !goes(&busy.0));
        drop(first);
        assert_eq!(port.crowd.lock().count, 3, "its place was given away already");
    }

    #[test]
    fn an_address_that_has_most_places_gives_one_to_another_and_not_to_itself() {
        let port = Port::new(3);
        let many: Vec<_> = (0..3).map(|_| port.come_and_ask("10.0.0.1")).collect();
        assert!(port.come("10.0.0.1").is_none(), "all of its places are in use");
        let other = port.come_and_ask("10.0.0.2");
        assert_eq!(many.iter().filter(|(seat, _)| goes(seat)).count(), 1);
        let another = port.come_and_ask("10.0.0.3");
        assert!(port.come("10.0.0.4").is_none(), "nobody has more than half");
        drop((other, another));
        assert!(port.come("10.0.0.4").is_some());
    }

    #[test]
    fn places_are_free_again_when_their_guests_leave() {
        let port = Port::new(2);
        for _ in 0..3 {
            let guests = [port.come_and_ask("10.0.0.1"), port.come_and_ask("10.0.0.2")];
            assert!(port.come("10.0.0.3").is_none());
            drop(guests);
            assert!(port.crowd.lock().addresses.is_empty());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_nothing_has_to_go_and_who_asks_may_stay() {
        let port = Port::new(2);
        let patience = Duration::from_secs(30);
        let (silent, _account) = port.come("10.0.0.1").unwrap();
        silent.has_to_go(patience).await;
        let (seat, account) = port.come("10.0.0.1").unwrap();
        account.note_asked();
        assert!(tokio::time::timeout(100 * patience, seat.has_to_go(patience)).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_has_to_go_when_others_need_the_room() {
        let port = Port::new(2);
        let patience = Duration::from_secs(30);
        let (seat, account) = port.come("10.0.0.1").unwrap();
        account.note_asked();
        let small = account.part(bytes::Bytes::from_static(b"abc"));
        assert!(tokio::time::timeout(100 * patience, seat.has_to_go(patience)).await.is_err());
        let _large = account.charge(MemoryLimits::default().address_bytes, Urgency::Usual).ok();
        seat.has_to_go(patience).await;
        drop(small);
        assert!(tokio::time::timeout(100 * patience, seat.has_to_go(patience)).await.is_err());
    }
}
