//! What an acquire and a release cost while many locks are held, and a hand-over while many wait.
//!
//! The cost is to depend on the name's depth, and not on how many locks there are. So the same work is done
//! on a small state and on large ones, in turns within one run, and what counts is the ratio of the medians.
//! Some of it is honest: larger trees are deeper, and their nodes are in no cache.
//!
//! `cargo bench -p lowkey-core --bench held_locks [-- --million]`

use std::time::Instant;

use lowkey_core::{
    AcquireWith, ClusterId, Command, GrantRef, LeaseId, LockName, Mode, OwnerId, Reply, RequestId, Scope,
    State, Ttl, Value,
};

/// Locks that one lease holds in these states.
const LOCKS_PER_LEASE: u64 = 100;

fn main() {
    // Without that word it is not a benchmark that is run, but a test of it.
    let is_measured = std::env::args().any(|argument| argument == "--bench");
    let with_million = std::env::args().any(|argument| argument == "--million");
    let (counts, effort) = match (is_measured, with_million) {
        (false, _) => (vec![10, 100], Effort { rounds: 3, pairs: 2 }),
        (true, false) => (vec![1_000, 100_000], Effort { rounds: 1_000, pairs: 50 }),
        (true, true) => (vec![1_000, 100_000, 1_000_000], Effort { rounds: 1_000, pairs: 50 }),
    };
    println!(
        "median of an acquire and a release (hand-over: a release that grants, and getting in line again)"
    );
    println!("{:<56}{:>12}{:>12}", "", "ns a pair", "ratio");
    for (what, name, scope) in [
        ("name, flat", flat as Naming, Scope::Name),
        ("name, depth 4", deep, Scope::Name),
        ("subtree, depth 4", deep, Scope::Subtree),
    ] {
        // The same names in all states, beside one another: what is left is the depth of the trees.
        let near = |count: &u64| World::with_held(*count, counts[0], name, scope);
        report(&format!("{what}, near names"), "held", counts.iter().map(near).collect(), effort);
        // Names from everywhere: what is not in a cache counts too.
        let anywhere = |count: &u64| World::with_held(*count, *count, name, scope);
        report(&format!("{what}, any names"), "held", counts.iter().map(anywhere).collect(), effort);
    }
    let (few, many) = if is_measured { (10, 10_000) } else { (2, 8) };
    let lines = vec![World::with_lines(1, few), World::with_lines(1, many)];
    report("hand-over, one line", "in line", lines, effort);
    let lines = vec![World::with_lines(many / few, few), World::with_lines(1, many)];
    report("hand-over, as many leases in all", "in line", lines, effort);
}

#[derive(Clone, Copy)]
struct Effort {
    rounds: usize,
    pairs: usize,
}

/// The name of a lock by its number: one that is held, or one beside those.
type Naming = fn(u64, &str) -> String;

fn flat(number: u64, kind: &str) -> String {
    format!("lock-{number:07}{kind}")
}

fn deep(number: u64, kind: &str) -> String {
    format!("root/{}/{}/{}{kind}", number / 10_000, number / 100 % 100, number % 100)
}

/// A state, and the work that is done on it.
struct World {
    size: u64,
    state: State,
    work: Work,
    /// Numbers for requests, and for names that are asked for here and there.
    steps: u64,
}

enum Work {
    /// A lease takes and gives back locks beside those that are held.
    Pairs { lease: LeaseId, names: u64, name: Naming, scope: Scope },
    /// Whoever holds a lock gives it back, and gets in line again. Each line begins with its holder.
    Lines(Vec<Vec<LeaseId>>),
}

impl World {
    fn new(size: u64, work: Work) -> Self {
        Self { size, state: State::new(ClusterId([7; 16])), work, steps: 0 }
    }

    /// So many locks are held, and so many names beside them are asked for.
    fn with_held(count: u64, names: u64, name: Naming, scope: Scope) -> Self {
        let lease = LeaseId(count / LOCKS_PER_LEASE + 1);
        let mut world = Self::new(count, Work::Pairs { lease, names, name, scope });
        for _ in 0..lease.0 {
            world.make_lease();
        }
        for number in 0..count {
            let holder = LeaseId(number % (count / LOCKS_PER_LEASE).max(1) + 1);
            let acquire = world.acquire(&name(number, ""), holder, Scope::Name);
            assert!(matches!(world.apply(&acquire), Reply::Granted { .. }));
        }
        world
    }

    /// So many locks, each with so many in line.
    fn with_lines(locks: u64, waiters: u64) -> Self {
        let mut world = Self::new(waiters, Work::Lines(Vec::new()));
        let mut lines = Vec::new();
        for lock in 0..locks {
            let line: Vec<_> = (0..=waiters).map(|_| world.make_lease()).collect();
            for lease in &line {
                let acquire = world.acquire(&flat(lock, ""), *lease, Scope::Name);
                world.apply(&acquire);
            }
            lines.push(line);
        }
        world.work = Work::Lines(lines);
        world
    }

    fn make_lease(&mut self) -> LeaseId {
        let (owner, request) = (owner(), self.request());
        let ttl = Ttl::parse(60).expect("a ttl");
        match self.apply(&Command::CreateLease { owner, ttl, request }) {
            Reply::LeaseCreated { lease, .. } => lease,
            other => panic!("not a lease: {other:?}"),
        }
    }

    fn apply(&mut self, command: &Command) -> Reply {
        self.state.apply(self.state.revision() + 1, 1, command).reply.expect("nothing is refused here")
    }

    fn request(&mut self) -> RequestId {
        self.steps += 1;
        RequestId::parse(&format!("request-{}", self.steps)).expect("a request id")
    }

    fn acquire(&mut self, lock: &str, lease: LeaseId, scope: Scope) -> Command {
        Command::Acquire {
            lock: LockName::parse(lock).expect("a lock name"),
            owner: owner(),
            with: AcquireWith::Lease(lease),
            mode: Mode::Exclusive,
            scope,
            value: Value::default(),
            wait: true,
            max_hold: None,
            since_unix_ms: 1,
            request: self.request(),
        }
    }

    fn release(&mut self, lock: &str, lease: LeaseId) -> Command {
        Command::Release {
            lock: LockName::parse(lock).expect("a lock name"),
            grant: GrantRef::Lease(lease),
            token: None,
            actor: None,
            since_unix_ms: 1,
            request: self.request(),
        }
    }

    /// Two commands: what is measured. They are made before the clock runs.
    fn pair(&mut self) -> [Command; 2] {
        let somewhere = self.steps.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        match &mut self.work {
            Work::Pairs { lease, names, name, scope } => {
                let (lock, lease, scope) = (name(somewhere % *names, "-free"), *lease, *scope);
                [self.acquire(&lock, lease, scope), self.release(&lock, lease)]
            }
            Work::Lines(lines) => {
                let number = somewhere % lines.len() as u64;
                let line = &mut lines[number as usize];
                line.rotate_left(1);
                let holder = *line.last().expect("a line has a holder");
                let lock = flat(number, "");
                [self.release(&lock, holder), self.acquire(&lock, holder, Scope::Name)]
            }
        }
    }

    /// The time of a pair, as the mean of a few.
    fn measure(&mut self, pairs: usize) -> f64 {
        let commands: Vec<_> = (0..pairs).flat_map(|_| self.pair()).collect();
        #[expect(clippy::disallowed_methods, reason = "a benchmark has a clock; the state machine has none")]
        let start = Instant::now();
        for command in &commands {
            let applied = self.state.apply(self.state.revision() + 1, 1, command);
            assert!(std::hint::black_box(applied).reply.is_ok());
        }
        start.elapsed().as_nanos() as f64 / pairs as f64
    }
}

fn owner() -> OwnerId {
    OwnerId::parse("owner").expect("an owner id")
}

/// Measures the worlds in turns, so that what disturbs the machine disturbs all of them.
fn report(what: &str, of: &str, mut worlds: Vec<World>, effort: Effort) {
    let mut samples = vec![Vec::with_capacity(effort.rounds); worlds.len()];
    for round in 0..effort.rounds + effort.rounds / 10 {
        for (world, samples) in worlds.iter_mut().zip(&mut samples) {
            let sample = world.measure(effort.pairs);
            if round >= effort.rounds / 10 {
                samples.push(sample);
            }
        }
    }
    let medians: Vec<f64> = samples.iter_mut().map(|samples| median(samples)).collect();
    for (world, time) in worlds.iter().zip(&medians) {
        let what = format!("{what}, {} {of}", world.size);
        println!("{what:<56}{time:>12.0}{:>12.2}", time / medians[0]);
    }
}

fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}
