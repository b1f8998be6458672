//! What happens in one world: drawn from its seed.
//!
//! Swarm testing: each run switches a random subset of the faults on, at random rates. A run with
//! every fault on at once finds less than many runs with a few each, since faults hide each other.

use lowkey_core::LockName;
use lowkey_replica::RaftTick;

use crate::random::Random;

/// One second in nanoseconds.
pub const SECOND: u64 = 1_000_000_000;
/// One millisecond in nanoseconds.
pub const MILLISECOND: u64 = 1_000_000;

/// Names of locks: some are below others, some only look like it.
const NAMES: [&str; 6] = ["a", "a/b", "ab", "a/b/c", "a/bc", "b"];
const ELECTION: &str = "election";

/// One world in so many has more than one group.
const MANY_GROUPS_ONE_IN: u64 = 6;

/// One world's make-up.
#[derive(Clone, Debug)]
pub struct WorldPlan {
    /// Replicas in the cluster.
    pub replicas: usize,
    /// Groups that the machines have replicas of. They do not interact, except by the machines that they share.
    pub groups: usize,
    /// No client uses the last group: it has next to nothing to write, and must not stand in the others' way.
    pub has_idle_group: bool,
    /// Clients; each uses the locks of one group.
    pub clients: usize,
    /// Lock names that they contend for, some below others.
    pub names: Vec<LockName>,
    /// One acquire in so many is shared; 0 means none.
    pub shared_one_in: u64,
    /// One acquire in so many is of a subtree; 0 means none.
    pub subtree_one_in: u64,
    /// One acquire in so many waits for its turn.
    pub wait_one_in: u64,
    /// Watchers.
    pub watchers: usize,
    /// Changes that a node remembers for them.
    pub history_events: usize,
    /// How long faults are made.
    pub active_nanos: u64,
    /// How long the quiet phase lasts after that.
    pub quiet_nanos: u64,
    /// Entries after which a replica takes a snapshot.
    pub snapshot_entries: u64,
    /// Entries that it keeps behind one.
    pub tail_entries: u64,
    /// Mean time between the operations of a client.
    pub think_nanos: u64,
    /// The base of Raft's timing.
    pub raft_tick: RaftTick,
    /// The cluster is one that lost its quorum and begins anew: in quarantine.
    pub recovered: bool,
    /// The faults.
    pub faults: Faults,
}

/// Mean times between faults and rates of faults; 0 means never.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// One message in so many is lost.
    pub loss_one_in: u64,
    /// One message in so many is delivered twice.
    pub duplicate_one_in: u64,
    /// The longest a message takes.
    pub delay_max_nanos: u64,
    /// One message in so many takes up to ten times that.
    pub late_one_in: u64,
    /// Time between partitions.
    pub partition_nanos: u64,
    /// Time between crashes of a replica.
    pub crash_nanos: u64,
    /// Time between crashes of all replicas.
    pub crash_all_nanos: u64,
    /// Time between pauses of a replica.
    pub pause_nanos: u64,
    /// Time between pauses of a client.
    pub client_pause_nanos: u64,
    /// Time between losses of what some clients send.
    pub client_mute_nanos: u64,
    /// Time between crashes of a client.
    pub client_crash_nanos: u64,
    /// Time between spells in which machines get too little of their processors.
    pub starve_nanos: u64,
    /// Time between stalls of a disk.
    pub stall_nanos: u64,
    /// Time between syncs of a disk that fail; each ends a process.
    pub sync_failure_nanos: u64,
    /// Time between attempts to move the lead.
    pub transfer_nanos: u64,
    /// Time between wishes of whoever runs the cluster: a machine is added, removed, or is to lead.
    pub operator_nanos: u64,
    /// Clocks run at rates that differ by up to this many thousandths.
    pub clock_skew_permille: u64,
    /// A byte of one replica's log is damaged while it is down; it must refuse to come back.
    pub damage: bool,
}

impl WorldPlan {
    /// Draws the plan of a seed.
    pub fn draw(seed: u64) -> Self {
        let random = &mut Random::new(seed ^ 0x6c6f_776b_6579);
        let replicas = *random.pick(&[1, 3, 3, 3, 5]);
        Self {
            replicas,
            groups: 1,
            has_idle_group: false,
            clients: random.between(3, 31) as usize,
            names: draw_names(random),
            shared_one_in: *random.pick(&[0, 0, 2, 3]),
            subtree_one_in: *random.pick(&[0, 0, 2, 4]),
            wait_one_in: *random.pick(&[1, 2, 4]),
            watchers: random.between(1, 4) as usize,
            history_events: *random.pick(&[3, 20, 100, 1_000]),
            active_nanos: random.between(60, 300) * SECOND,
            quiet_nanos: 12 * SECOND,
            snapshot_entries: random.between(20, 400),
            tail_entries: random.between(1, 60),
            think_nanos: random.between(100, 3_000) * MILLISECOND,
            raft_tick: RaftTick::SHORTEST,
            recovered: false,
            faults: Faults::draw(random, replicas),
        }
        .with_failing_syncs(seed)
        .with_starved_machines(seed)
        .with_some_groups(seed)
    }

    /// Most worlds have one group, which is what a cluster has today; drawn apart, so that those are what they were.
    fn with_some_groups(self, seed: u64) -> Self {
        let random = &mut Random::new(seed ^ 0x6772_6f75_7073);
        if !random.one_in(MANY_GROUPS_ONE_IN) {
            return self;
        }
        self.with_groups(random.between(2, 4) as usize)
    }

    /// The same world with so many groups. In a third of those with several, one is idle.
    pub fn with_groups(mut self, groups: usize) -> Self {
        assert!(groups > 0, "a world has a group");
        self.groups = groups;
        self.has_idle_group = groups > 1 && self.clients.is_multiple_of(3);
        self
    }

    /// The same world with nodes that are so patient. When faults end, all takes so many times longer.
    pub fn with_raft_tick(mut self, raft_tick: RaftTick) -> Self {
        self.raft_tick = raft_tick;
        self.quiet_nanos *= self.patience();
        self
    }

    /// How many times longer than usual all takes that waits for a leader.
    pub fn patience(&self) -> u64 {
        self.raft_tick.millis() / RaftTick::SHORTEST.millis()
    }

    /// The groups by their numbers.
    pub fn groups(&self) -> std::ops::Range<usize> {
        0..self.groups
    }

    /// The group whose locks a client uses.
    pub fn group_of(&self, client: usize) -> usize {
        client % (self.groups - usize::from(self.has_idle_group))
    }

    /// Drawn apart, so that worlds without failing syncs are what they were before there were any.
    fn with_failing_syncs(mut self, seed: u64) -> Self {
        let random = &mut Random::new(seed ^ 0x0066_7379_6e63);
        if random.one_in(3) {
            self.faults.sync_failure_nanos = random.between(5, 40) * SECOND;
        }
        self
    }

    /// Drawn apart, likewise.
    fn with_starved_machines(mut self, seed: u64) -> Self {
        let random = &mut Random::new(seed ^ 0x7374_6172_7665);
        if random.one_in(3) {
            self.faults.starve_nanos = random.between(5, 40) * SECOND;
        }
        self
    }

    /// True if those who want this lock want to lead: one at a time, with something to say.
    pub fn is_election(&self, lock: &LockName) -> bool {
        lock.as_str() == ELECTION
    }
}

fn draw_names(random: &mut Random) -> Vec<LockName> {
    let count = random.between(1, NAMES.len() as u64 + 1) as usize;
    let election = random.one_in(2).then_some(ELECTION);
    let names = NAMES[..count].iter().copied().chain(election);
    names.map(|name| LockName::parse(name).expect("a short name is a name")).collect()
}

impl Faults {
    fn draw(random: &mut Random, replicas: usize) -> Self {
        // Each fault is on in half of the worlds.
        let mut sometimes = |from: u64, to: u64| {
            let value = random.between(from, to);
            if random.one_in(2) { value } else { 0 }
        };
        let mut faults = Self {
            loss_one_in: sometimes(5, 200),
            duplicate_one_in: sometimes(5, 200),
            late_one_in: sometimes(5, 300),
            partition_nanos: sometimes(5, 40) * SECOND,
            crash_nanos: sometimes(5, 40) * SECOND,
            crash_all_nanos: sometimes(30, 120) * SECOND,
            pause_nanos: sometimes(3, 40) * SECOND,
            client_pause_nanos: sometimes(3, 40) * SECOND,
            client_mute_nanos: sometimes(5, 40) * SECOND,
            client_crash_nanos: sometimes(5, 60) * SECOND,
            starve_nanos: 0,
            stall_nanos: sometimes(3, 40) * SECOND,
            transfer_nanos: sometimes(5, 40) * SECOND,
            clock_skew_permille: sometimes(5, 41),
            damage: false,
            operator_nanos: 0,
            sync_failure_nanos: 0,
            delay_max_nanos: 0,
        };
        faults.damage = replicas > 2 && random.one_in(4);
        faults.delay_max_nanos = random.between(1, 40) * MILLISECOND;
        if random.one_in(2) {
            faults.operator_nanos = random.between(2, 30) * SECOND;
            // A machine that never comes back may be the one that is needed once another was removed.
            faults.damage = false;
        }
        faults
    }

    /// No faults at all: the quiet phase.
    pub fn none() -> Self {
        Self { delay_max_nanos: 2 * MILLISECOND, ..Self::default() }
    }
}
