//! What deep names cost: memory of a lock, and the time of the entries that end many of them at once.
//!
//! A name of many segments is below many others, and all of them must know of it. Neither its memory nor the
//! time to end it may grow with the number of its segments as if each were a lock of its own. One entry may
//! end ten thousand locks, or serve all who waited for a subtree, and no replica does anything else meanwhile.
//!
//! `cargo bench -p lowkey-core --bench deep_names`

use lowkey_core::{
    AcquireWith, ClusterId, Command, GrantRef, LeaseId, LockName, Mode, OwnerId, Reply, RequestId, Scope,
    State, Ttl, Value,
};

/// All names are about as long as a name may be, so that only their segments differ.
const NAME_BYTES: usize = 508;

fn main() {
    // Without that word it is not a benchmark that is run, but a test of it.
    let is_measured = std::env::args().any(|argument| argument == "--bench");
    let (locks, revoked, waiters, rounds) =
        if is_measured { (1_000, 10_000, 78_000, 5) } else { (10, 10, 10, 1) };
    let shapes = [
        Shape { segments: 1, is_crowded: false },
        Shape { segments: 32, is_crowded: false },
        Shape { segments: 32, is_crowded: true },
        Shape { segments: 254, is_crowded: false },
        Shape { segments: 254, is_crowded: true },
    ];

    println!("{:<64}{:>12}", "memory, and nothing else waits or holds", "bytes a lock");
    // Kept to the end: memory that one gives back would hide what the next takes.
    let mut kept = Vec::new();
    for waiters_of_each in [0, 1, 3, 10] {
        for shape in shapes.iter().filter(|shape| waiters_of_each == 0 || shape.segments <= 32) {
            let before = resident_bytes();
            let world = World::with_locks(*shape, locks, waiters_of_each);
            let bytes = (resident_bytes() - before) / locks as f64;
            println!("{:<64}{bytes:>12.0}", format!("{shape}, {waiters_of_each} waiting for each"));
            kept.push(world);
        }
    }
    drop(kept);

    println!("{:<64}{:>12}", "one entry", "ms");
    for shape in &shapes {
        let revoke = || World::with_locks(*shape, revoked, 0).revoke();
        report(&format!("a lease with {revoked} locks ends, {shape}"), rounds, revoke);
    }
    for (depth, count) in [(1, waiters), (31, waiters)] {
        let release = || World::with_waiters_below(depth, count).release_root();
        report(&format!("a subtree ends, {count} wait {depth} below it"), rounds, release);
    }
}

/// Names that are alike: how many segments they have, and where they differ.
#[derive(Clone, Copy)]
struct Shape {
    segments: usize,
    /// They differ in their last segment only. Otherwise they differ from the first one on.
    is_crowded: bool,
}

impl Shape {
    fn name(self, number: usize) -> String {
        let number = format!("{number:06}");
        let digits = number.len();
        // One digit a segment if there is no room for more: then the first six differ.
        let own = (NAME_BYTES + 1) / self.segments - 1;
        let mut segments = vec!["x".repeat(own); self.segments];
        match (self.is_crowded, own < digits) {
            (true, _) => segments[self.segments - 1] = number,
            (false, true) => {
                segments.iter_mut().zip(number.chars()).for_each(|(segment, digit)| *segment = digit.into());
            }
            (false, false) => segments[0].replace_range(..digits, &number),
        }
        segments.join("/")
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { segments, is_crowded } = self;
        write!(f, "{segments} segments{}", if *is_crowded { ", all but the last alike" } else { "" })
    }
}

struct World {
    state: State,
    requests: u64,
}

impl World {
    fn new() -> Self {
        Self { state: State::new(ClusterId([7; 16])), requests: 0 }
    }

    /// One lease holds them all; each waiter has a lease of its own.
    fn with_locks(shape: Shape, locks: usize, waiters_of_each: usize) -> Self {
        let mut world = Self::new();
        let (owner, request) = (owner(), world.request());
        world.apply(&Command::CreateLease { owner, ttl: ttl(), request });
        for number in 0..locks {
            let name = shape.name(number);
            world.acquire(&name, AcquireWith::Lease(LeaseId(1)), Scope::Name);
            for _ in 0..waiters_of_each {
                world.acquire(&name, AcquireWith::NewLease(ttl()), Scope::Name);
            }
        }
        world
    }

    /// The lease with number 1 holds a subtree, and each waiter waits for a lock of its own so deep below it.
    fn with_waiters_below(depth: usize, waiters: usize) -> Self {
        let mut world = Self::new();
        world.acquire("root", AcquireWith::NewLease(ttl()), Scope::Subtree);
        let parent = format!("root{}", "/between".repeat(depth - 1));
        for number in 0..waiters {
            world.acquire(&format!("{parent}/{number}"), AcquireWith::NewLease(ttl()), Scope::Name);
        }
        world
    }

    fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId::parse(&format!("request-{}", self.requests)).expect("a request id")
    }

    fn acquire(&mut self, lock: &str, with: AcquireWith, scope: Scope) {
        let command = Command::Acquire {
            lock: LockName::parse(lock).expect("a lock name"),
            owner: owner(),
            with,
            mode: Mode::Exclusive,
            scope,
            value: Value::default(),
            wait: true,
            max_hold: None,
            since_unix_ms: 1,
            request: self.request(),
        };
        self.apply(&command);
    }

    fn apply(&mut self, command: &Command) -> Reply {
        self.state.apply(self.state.revision() + 1, 1, command).reply.expect("nothing is refused here")
    }

    fn revoke(mut self) -> f64 {
        let revoke = Command::RevokeLease {
            lease: LeaseId(1),
            owner: owner(),
            actor: None,
            since_unix_ms: 1,
            request: self.request(),
        };
        self.time(&revoke)
    }

    fn release_root(mut self) -> f64 {
        let release = Command::Release {
            lock: LockName::parse("root").expect("a lock name"),
            grant: GrantRef::Lease(LeaseId(1)),
            token: None,
            actor: None,
            since_unix_ms: 1,
            request: self.request(),
        };
        self.time(&release)
    }

    /// Milliseconds that one entry takes.
    fn time(mut self, command: &Command) -> f64 {
        let start = time_on_processor();
        let applied = self.state.apply(self.state.revision() + 1, 1, command);
        let time = (time_on_processor() - start) / 1_000_000.0;
        assert!(applied.reply.is_ok() && self.state.waits().next().is_none());
        time
    }
}

fn owner() -> OwnerId {
    OwnerId::parse("owner").expect("an owner id")
}

fn ttl() -> Ttl {
    Ttl::parse(60).expect("a ttl")
}

/// The shortest of a few: what disturbs the machine only adds.
fn report(what: &str, rounds: usize, measure: impl Fn() -> f64) {
    let best = (0..rounds).map(|_| measure()).fold(f64::INFINITY, f64::min);
    println!("{what:<64}{best:>12.1}");
}

/// Nanoseconds that this thread has had of a processor, 0 where that cannot be read: a busy machine would stretch
/// any other clock.
fn time_on_processor() -> f64 {
    // The count is brought up to date where threads change.
    std::thread::yield_now();
    number_in("/proc/thread-self/schedstat", 0)
}

/// What this process takes of the machine's memory; nothing where that cannot be read.
fn resident_bytes() -> f64 {
    const PAGE_BYTES: f64 = 4096.0;
    number_in("/proc/self/statm", 1) * PAGE_BYTES
}

fn number_in(file: &str, place: usize) -> f64 {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.split_ascii_whitespace().nth(place).and_then(|number| number.parse().ok()).unwrap_or_default()
}
