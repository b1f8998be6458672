//! How many bytes the node keeps for its clients, and how much of that each client may have.
//!
//! A client can ask without taking the answers. So everything that is kept for a client is charged to its
//! connection, to its address and to the node: each call that is under way, and each answer until its bytes
//! have left for the client. A client that has reached a limit is refused with LIMIT_MEMORY, and is served
//! again once it takes what it asked for.
//!
//! - A level refuses when it *is* full. So it exceeds its limit by one answer at most, of any size.
//! - Renewals, and all calls that give something back, may use a reserve on top. A client that asked for
//!   too much must neither lose its leases because of that, nor be kept from giving up.
//! - The size of a large answer is known only when it exists. So only some are made at a time
//!   (`Account::read`): for one connection, for one address, and in total.
//! - Making a page of a list takes much of a processor's time. So a connection gets the next page when it has
//!   taken the one before (`Turn`): who takes nothing, or gives up and asks anew, keeps the node busy with
//!   no more than one.
//! - A `Charge` gives back what it took when it is dropped. Nothing else does.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use lowkey_api::{ApiError, Reason};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use crate::call::Cost;

/// The bytes that a call counts for while it is under way, besides its request: the future that waits, and
/// the stream that it came on.
pub(super) const CALL_BYTES: usize = 4096;

/// The reserve on top of a limit, for calls that must not be refused: one part in this many.
const RESERVE_PART: usize = 8;

/// How many large answers are made at a time: for one connection, for one address and in total.
const CONNECTION_READS: usize = 16;
const ADDRESS_READS: usize = 32;
const NODE_READS: usize = 64;
/// How many of them a page of a list counts for.
pub(super) const LIST_READS: u32 = 16;

/// When a refused client may ask again.
const RETRY_HINT_MS: u64 = 100;

/// How many bytes may be kept for clients.
#[derive(Clone, Copy, Debug)]
pub struct MemoryLimits {
    /// For one connection.
    pub connection_bytes: usize,
    /// For all connections of one address.
    pub address_bytes: usize,
    /// In all.
    pub node_bytes: usize,
}

impl Default for MemoryLimits {
    fn default() -> Self {
        const MEBIBYTE: usize = 1024 * 1024;
        Self { connection_bytes: 64 * MEBIBYTE, address_bytes: 128 * MEBIBYTE, node_bytes: 256 * MEBIBYTE }
    }
}

/// Whether a call may use the reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    Usual,
    /// It keeps or ends what its client has.
    Urgent,
}

impl Urgency {
    pub(super) fn of(cost: Cost) -> Self {
        if cost == Cost::Urgent { Self::Urgent } else { Self::Usual }
    }
}

/// Bytes that are kept, and large answers that are being made.
struct Pool {
    used: AtomicUsize,
    reads: Arc<Semaphore>,
}

impl Pool {
    fn new(reads: usize) -> Self {
        Self { used: AtomicUsize::new(0), reads: Arc::new(Semaphore::new(reads)) }
    }

    /// Takes `bytes` unless `limit` is reached.
    fn take(&self, bytes: usize, limit: usize) -> bool {
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        let has_room = before < limit;
        if !has_room {
            self.give_back(bytes);
        }
        has_room
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

/// Everything that the node keeps for clients.
pub struct Budget {
    limits: MemoryLimits,
    node: Pool,
    addresses: Mutex<HashMap<IpAddr, Weak<Pool>>>,
}

impl Budget {
    /// A budget with these limits, of which nothing is used.
    pub fn new(limits: MemoryLimits) -> Self {
        Self { limits, node: Pool::new(NODE_READS), addresses: Mutex::default() }
    }

    /// How many bytes are kept at present.
    pub fn used_bytes(&self) -> usize {
        self.node.used()
    }

    /// The account of a new connection.
    pub(super) fn open(self: &Arc<Self>, address: IpAddr) -> Arc<Account> {
        Arc::new(Account {
            budget: Arc::clone(self),
            address: self.address(one_client(address)),
            connection: Pool::new(CONNECTION_READS),
            has_asked: AtomicBool::new(false),
            untaken: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
        })
    }

    fn address(&self, address: IpAddr) -> Arc<Pool> {
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = addresses.get(&address).and_then(Weak::upgrade) {
            return pool;
        }
        // Sweep before the map grows: the cost of a sweep is shared by as many insertions.
        if addresses.len() == addresses.capacity() {
            addresses.retain(|_, pool| pool.strong_count() > 0);
        }
        let pool = Arc::new(Pool::new(ADDRESS_READS));
        addresses.insert(address, Arc::downgrade(&pool));
        pool
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget").field("limits", &self.limits).field("used", &self.used_bytes()).finish()
    }
}

/// What counts as one client. For IPv6 it is a whole network, because everyone has one to choose addresses
/// from.
pub(crate) fn one_client(address: IpAddr) -> IpAddr {
    const HOST_BITS: u32 = 64;
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> HOST_BITS << HOST_BITS)),
    }
}

/// What is kept for one connection.
pub(super) struct Account {
    budget: Arc<Budget>,
    address: Arc<Pool>,
    connection: Pool,
    has_asked: AtomicBool,
    /// Parts of answers that have not left for the client, and how many have.
    untaken: AtomicUsize,
    taken: AtomicUsize,
}

impl Account {
    /// An account without limits.
    pub(super) fn without_limits() -> Arc<Self> {
        let limits =
            MemoryLimits { connection_bytes: usize::MAX, address_bytes: usize::MAX, node_bytes: usize::MAX };
        Arc::new(Budget::new(limits)).open(Ipv6Addr::UNSPECIFIED.into())
    }

    /// Charges something that is kept from now on, or says which limit is in the way.
    pub(super) fn charge(self: &Arc<Self>, bytes: usize, urgency: Urgency) -> Result<Charge, ApiError> {
        self.take(bytes, urgency)?;
        Ok(Charge { account: Arc::clone(self), bytes, turn: None })
    }

    fn take(&self, bytes: usize, urgency: Urgency) -> Result<(), ApiError> {
        let MemoryLimits { connection_bytes, address_bytes, node_bytes } = self.budget.limits;
        let raised = |limit: usize| match urgency {
            Urgency::Usual => limit,
            Urgency::Urgent => limit.saturating_add(limit / RESERVE_PART),
        };
        if !self.connection.take(bytes, raised(connection_bytes)) {
            return Err(full("this connection", connection_bytes, "--max-memory-per-connection-mib"));
        }
        if !self.address.take(bytes, raised(address_bytes)) {
            self.connection.give_back(bytes);
            return Err(full(
                "the connections of this address",
                address_bytes,
                "--max-memory-per-address-mib",
            ));
        }
        if !self.budget.node.take(bytes, raised(node_bytes)) {
            self.address.give_back(bytes);
            self.connection.give_back(bytes);
            return Err(full("all clients of this node", node_bytes, "--max-memory-mib"));
        }
        Ok(())
    }

    fn give_back(&self, bytes: usize) {
        self.connection.give_back(bytes);
        self.address.give_back(bytes);
        self.budget.node.give_back(bytes);
    }

    /// The right to make a large answer, which counts for this many, in turn. Hold it until the answer
    /// exists and is charged.
    pub(super) async fn read(&self, reads: u32) -> Turn<'_> {
        // An error would mean that a semaphore was closed, and none ever is.
        let connection = Arc::clone(&self.connection.reads).acquire_many_owned(reads).await.ok();
        let address = self.address.reads.acquire_many(reads).await.ok();
        let node = self.budget.node.reads.acquire_many(reads).await.ok();
        Turn { connection, _others: [address, node] }
    }

    /// A part of an answer, charged until it has left for the client. It exists already, so it is not
    /// refused.
    pub(super) fn part(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        let length = bytes.len();
        self.connection.used.fetch_add(length, Ordering::Relaxed);
        self.address.used.fetch_add(length, Ordering::Relaxed);
        self.budget.node.used.fetch_add(length, Ordering::Relaxed);
        Charge { account: Arc::clone(self), bytes: length, turn: None }.carried_by(bytes)
    }

    /// True if nothing is under way, and nothing is left to be taken.
    pub(super) fn is_idle(&self) -> bool {
        self.connection.used() == 0
    }

    /// Whether anything was asked on this connection so far.
    pub(super) fn has_asked(&self) -> bool {
        self.has_asked.load(Ordering::Relaxed)
    }

    pub(super) fn note_asked(&self) {
        if !self.has_asked() {
            self.has_asked.store(true, Ordering::Relaxed);
        }
    }

    /// How much the client has taken so far. `None` if nothing is left for it to take, or if what is left
    /// is not in the way of others.
    pub(super) fn taken_under_pressure(&self) -> Option<usize> {
        let MemoryLimits { address_bytes, node_bytes, .. } = self.budget.limits;
        let is_pressed =
            self.address.used() >= address_bytes / 2 || self.budget.node.used() >= node_bytes / 2;
        let has_untaken = self.untaken.load(Ordering::Relaxed) > 0;
        (is_pressed && has_untaken).then(|| self.taken.load(Ordering::Relaxed))
    }
}

fn full(whose: &str, limit: usize, flag: &str) -> ApiError {
    let message = format!(
        "{whose}: calls under way and answers that were not taken need the {limit} bytes that are allowed ({flag}); \
         take the answers, or ask for less at a time; nothing was done"
    );
    ApiError::new(Reason::LimitMemory, message)
        .with("limit_bytes", limit)
        .with("flag", flag)
        .retry_after_ms(RETRY_HINT_MS)
}

/// The right to make a large answer.
pub(super) struct Turn<'a> {
    connection: Option<OwnedSemaphorePermit>,
    _others: [Option<SemaphorePermit<'a>>; 2],
}

/// Bytes that are kept for a client until this is dropped.
pub(super) struct Charge {
    account: Arc<Account>,
    bytes: usize,
    /// The connection's turn, until the client has taken what it was for.
    turn: Option<OwnedSemaphorePermit>,
}

impl Charge {
    /// The connection has its next turn when this is dropped: when the client has taken the answer. Others have theirs
    /// at once.
    pub(super) fn keep(&mut self, turn: Turn<'_>) {
        self.turn = turn.connection;
    }

    /// Charges more, or says which limit is in the way.
    pub(super) fn grow(&mut self, bytes: usize, urgency: Urgency) -> Result<(), ApiError> {
        self.account.take(bytes, urgency)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Gives back a part of it.
    pub(super) fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.account.give_back(bytes);
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// These bytes, which keep the charge until they have left for the client.
    pub(super) fn carried_by(self, bytes: Bytes) -> Bytes {
        self.account.untaken.fetch_add(1, Ordering::Relaxed);
        Bytes::from_owner(Part { bytes, charge: self })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.give_back(self.bytes);
    }
}

/// A part of an answer on its way.
struct Part {
    bytes: Bytes,
    charge: Charge,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let account = &self.charge.account;
        account.untaken.fetch_sub(1, Ordering::Relaxed);
        account.taken.fetch_add(1, Ordering::Relaxed);
    }
}

/// An allowance for many small charges of one stream, taken from the account in portions. So most of them
/// touch nothing that is shared.
pub(super) struct Allowance {
    charge: Charge,
    /// `<= charge.bytes()`.
    spent: usize,
}

/// How many bytes an allowance takes and keeps ahead of need.
const PORTION_BYTES: usize = 64 * 1024;

impl Allowance {
    pub(super) fn new(account: Arc<Account>) -> Self {
        Self { charge: Charge { account, bytes: 0, turn: None }, spent: 0 }
    }

    pub(super) fn spend(&mut self, bytes: usize, urgency: Urgency) -> Result<(), ApiError> {
        let missing = (self.spent + bytes).saturating_sub(self.charge.bytes());
        if missing > 0 {
            self.charge.grow(missing.next_multiple_of(PORTION_BYTES), urgency)?;
        }
        self.spent += bytes;
        Ok(())
    }

    pub(super) fn give_back(&mut self, bytes: usize) {
        self.spent -= bytes;
        let ahead = self.charge.bytes() - self.spent;
        if ahead >= 2 * PORTION_BYTES {
            self.charge.shrink(ahead - PORTION_BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures::FutureExt as _;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

    fn budget(connection_bytes: usize, address_bytes: usize, node_bytes: usize) -> Arc<Budget> {
        Arc::new(Budget::new(MemoryLimits { connection_bytes, address_bytes, node_bytes }))
    }

    fn flag_in_the_way(charged: Result<Charge, ApiError>) -> String {
        let error = charged.err().expect("it is refused");
        assert_eq!(error.reason, Reason::LimitMemory);
        assert!(error.message.contains(&error.metadata["flag"]), "{error}");
        error.metadata["flag"].clone()
    }

    #[test]
    fn each_level_refuses_when_it_is_full_and_nothing_is_lost_or_left() {
        let budget = budget(100, 150, 220);
        let accounts = [HERE, HERE, THERE, THERE].map(|address| budget.open(address));
        let usual = |account: usize, bytes| accounts[account].charge(bytes, Urgency::Usual);
        let kept = [usual(0, 60).ok(), usual(0, 60).ok()];
        assert_eq!(flag_in_the_way(usual(0, 1)), "--max-memory-per-connection-mib");
        let more = usual(1, 30).ok();
        assert_eq!(flag_in_the_way(usual(1, 1)), "--max-memory-per-address-mib");
        let there = usual(2, 90).ok();
        assert_eq!(flag_in_the_way(usual(3, 1)), "--max-memory-mib");
        assert_eq!(budget.used_bytes(), 240);
        drop((kept, more, there));
        assert_eq!(budget.used_bytes(), 0);
        assert!(accounts.iter().all(|account| account.is_idle()));
    }

    #[test]
    fn who_is_full_may_still_renew_and_give_back() {
        let account = budget(80, 80, 80).open(HERE);
        let _full = account.charge(80, Urgency::Usual).ok();
        assert!(account.charge(1, Urgency::Usual).is_err());
        let urgent: Vec<_> = (0..100).map_while(|_| account.charge(1, Urgency::Urgent).ok()).collect();
        assert_eq!(urgent.len(), 10, "the reserve has an end, too");
    }

    #[test]
    fn bytes_are_charged_until_the_last_of_them_is_gone() {
        let budget = budget(1000, 1000, 1000);
        let account = budget.open(HERE);
        let mut part = account.part(Bytes::from(vec![7; 600]));
        let rest = part.split_off(100);
        drop(part);
        assert_eq!((budget.used_bytes(), account.taken_under_pressure()), (600, Some(0)));
        drop(rest);
        assert_eq!((budget.used_bytes(), account.taken_under_pressure()), (0, None));
    }

    #[test]
    fn an_allowance_takes_and_gives_back_in_portions() {
        let budget = budget(1 << 20, 1 << 20, 1 << 20);
        let mut allowance = Allowance::new(budget.open(HERE));
        for _ in 0..48 {
            allowance.spend(4096, Urgency::Usual).unwrap();
        }
        assert_eq!(budget.used_bytes(), 3 * PORTION_BYTES);
        for _ in 0..48 {
            allowance.give_back(4096);
        }
        assert_eq!(budget.used_bytes(), PORTION_BYTES);
        drop(allowance);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn one_address_does_not_take_all_turns_of_reading() {
        let budget = budget(1, 1, 1);
        let connections: Vec<_> = (0..3).map(|_| budget.open(HERE)).collect();
        let mut reading = Vec::new();
        for connection in &connections {
            reading.extend(std::iter::from_fn(|| connection.read(1).now_or_never()));
        }
        assert_eq!(reading.len(), ADDRESS_READS);
        let other = budget.open(THERE);
        let others: Vec<_> = std::iter::from_fn(|| other.read(LIST_READS).now_or_never()).collect();
        assert_eq!(others.len(), CONNECTION_READS / LIST_READS as usize);
        drop(reading);
        assert!(connections[2].read(1).now_or_never().is_some());
    }

    #[test]
    fn a_connection_gets_its_next_page_when_it_has_taken_the_one_before_and_others_do_not_wait() {
        let budget = budget(1 << 20, 1 << 20, 1 << 20);
        let (deaf, good) = (budget.open(HERE), budget.open(HERE));
        let mut charge = deaf.charge(10, Urgency::Usual).unwrap();
        charge.keep(deaf.read(LIST_READS).now_or_never().expect("it is the first"));
        let untaken = charge.carried_by(Bytes::from_static(b"a page"));
        assert!(deaf.read(LIST_READS).now_or_never().is_none(), "it has not taken the first");
        for _ in 0..10 {
            assert!(good.read(LIST_READS).now_or_never().is_some(), "another connection has its turn");
        }
        drop(untaken);
        assert!(deaf.read(LIST_READS).now_or_never().is_some(), "it is taken, or given up");
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one_client() {
        let client = |address: &str| one_client(address.parse().unwrap()).to_string();
        assert_eq!(client("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(client("::ffff:10.0.0.1"), "10.0.0.1");
    }
}
