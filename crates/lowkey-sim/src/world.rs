//! One world: machines, clients, a network and a protected resource, in one thread and in virtual time.
//!
//! Everything that happens is an event at a time; the earliest is next, and of two at the same time
//! the one that was made first. All chance comes from one generator. So the same seed gives the same
//! world, to the byte.

mod checks;
mod machines;
mod operator;
mod traffic;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{self, AssertUnwindSafe};

use lowkey_core::{Command, MemberId};
use lowkey_replica::{Failure, Input, RaftTick, Request, Response, SnapshotJob};

pub(crate) use checks::Checks;

use crate::client::SimClient;
use crate::clock::SimClock;
use crate::faults::Fault;
use crate::invariants::{Check, Liveness, Violation, Write, as_registered};
use crate::node::{SimNode, node_info};
use crate::plan::{Faults, MILLISECOND, SECOND, WorldPlan};
use crate::random::Random;
use crate::scenarios::Stage;
use crate::trace::Trace;
use crate::watcher::SimWatcher;
use crate::words;

/// How long a node may take to join, with all that happens to the founder.
const JOIN_SECONDS_MAX: u64 = 20;
const TICK_NANOS: u64 = 10 * MILLISECOND;

/// What is under way.
#[derive(Debug)]
pub(crate) enum WorldEvent {
    /// A machine looks at its inbox and its clock.
    NodeWakes { node: usize, incarnation: u64 },
    /// A machine's disk is done with a write.
    DiskSynced { node: usize, incarnation: u64 },
    /// A machine's snapshot is made and on its disk, or was lost with the process.
    SnapshotWritten { node: usize, incarnation: u64, group: usize, job: SnapshotJob },
    /// A message of a replica arrives; one that names a snapshot has it with it.
    Message { from: usize, to: usize, bytes: Vec<u8>, snapshot: Option<Vec<u8>> },
    /// A replica learns what became of a snapshot that it sent.
    SnapshotSent { from: usize, incarnation: u64, group: usize, to: u64, delivered: bool },
    /// A client's request arrives.
    Request { client: usize, life: u64, operation: u64, node: usize, request: Request, is_copy: bool },
    /// A client gets an answer.
    Answer { client: usize, life: u64, operation: u64, node: usize, answer: Box<Result<Response, Failure>> },
    /// A node notices that a caller is gone.
    Leave { client: usize, life: u64, operation: u64, node: usize },
    /// A client does what is due.
    ClientWakes { client: usize, life: u64 },
    /// A write reaches what the locks of a group protect.
    Write { group: usize, write: Write },
    /// A watcher looks for news.
    WatcherWakes { watcher: usize },
    /// Something breaks, or is mended.
    Fault(Fault),
    /// A machine that is down comes back.
    Restart { node: usize },
    /// A new machine asks to be let in.
    Joins { member: u64 },
    /// Nodes look whether those who are connected are still members.
    Knock,
    /// A machine that learned of its removal ends.
    Removed { node: usize, incarnation: u64 },
    /// Faults end.
    Quiet,
}

/// What a world has to show at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorldSummary {
    /// How long it lasted, in its own time.
    pub simulated_nanos: u64,
    /// Operations that were answered.
    pub operations: u64,
    /// Terms that had a leader.
    pub elections: u64,
    /// Leases that ran out.
    pub expiries: u64,
    /// Grants that ended for their limit.
    pub holds_ended: u64,
    /// Faults that were made.
    pub faults: u64,
    /// Waits that were granted.
    pub waits_granted: u64,
    /// Waits that timed out.
    pub wait_timeouts: u64,
    /// Changes that watchers saw.
    pub watched: u64,
    /// Watches that were told that history is gone.
    pub compacted: u64,
    /// Writes that the resource refused because of their token.
    pub refused_writes: u64,
    /// A number that depends on everything that happened, in its order.
    pub fingerprint: u64,
}

pub(crate) struct World {
    pub(crate) plan: WorldPlan,
    pub(crate) faults: Faults,
    pub(crate) now: u64,
    pub(crate) random: Random,
    /// What is to come, by time and then by number.
    queue: BTreeMap<(u64, u64), WorldEvent>,
    last_event: u64,
    pub(crate) nodes: Vec<SimNode>,
    pub(crate) clients: Vec<SimClient>,
    /// Links that are cut, in one direction each.
    pub(crate) cut: BTreeSet<(usize, usize)>,
    /// Clients that do not reach a machine.
    pub(crate) client_cut: BTreeSet<(usize, usize)>,
    pub(crate) watchers: Vec<SimWatcher>,
    /// What the operator was told, and by whom.
    pub(crate) operator_heard: Vec<(usize, Result<Response, Failure>)>,
    /// Since when all faults have ended.
    pub(crate) quiet_since: Option<u64>,
    pub(crate) fault_count: u64,
    /// What is known of each group, by its number.
    pub(crate) groups: Vec<Checks>,
    pub(crate) trace: Trace,
    fingerprint: u64,
    /// Set if a script says what happens, instead of chance.
    pub(crate) stage: Option<Stage>,
}

/// Runs the world of a seed to its end.
pub fn run(seed: u64, trace: bool) -> (WorldSummary, Result<(), Violation>, Vec<String>) {
    run_planned(WorldPlan::draw(seed), seed, trace)
}

/// Runs the world of a seed with so many groups, however many it would have by itself.
pub fn run_with_groups(
    seed: u64,
    groups: usize,
    trace: bool,
) -> (WorldSummary, Result<(), Violation>, Vec<String>) {
    run_planned(WorldPlan::draw(seed).with_groups(groups), seed, trace)
}

/// Runs the world of a seed with nodes that are so patient with their leader.
pub fn run_with_raft_tick(
    seed: u64,
    raft_tick: RaftTick,
    trace: bool,
) -> (WorldSummary, Result<(), Violation>, Vec<String>) {
    run_planned(WorldPlan::draw(seed).with_raft_tick(raft_tick), seed, trace)
}

fn run_planned(
    plan: WorldPlan,
    seed: u64,
    trace: bool,
) -> (WorldSummary, Result<(), Violation>, Vec<String>) {
    let mut world = World::planned(plan, seed, trace);
    let outcome = or_panic(|| world.run());
    (world.summary(), outcome, world.trace.take())
}

/// A process that stops itself has broken a promise too.
pub(crate) fn or_panic(run: impl FnOnce() -> Check) -> Check {
    panic::catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().cloned();
        let words = words.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        let what = words.unwrap_or_else(|| "a panic without a message".to_owned());
        Err(Violation { invariant: "assertion", what })
    })
}

impl World {
    /// A world without faults, whose clients and troubles come from a script.
    pub(crate) fn staged(plan: WorldPlan, trace: bool) -> Self {
        let mut world = Self::planned(plan, 1, trace);
        world.clients.iter_mut().for_each(SimClient::follow_script);
        world.stage = Some(Stage::default());
        world
    }

    fn planned(plan: WorldPlan, seed: u64, trace: bool) -> Self {
        let mut random = Random::new(seed);
        let skew = plan.faults.clock_skew_permille;
        let mut clock = || {
            let drift =
                if skew == 0 { 0 } else { random.between(0, 2 * skew * 1000) as i64 - skew as i64 * 1000 };
            SimClock::new(random.between(0, 1000 * SECOND), drift)
        };
        let clocks: Vec<SimClock> = (0..plan.replicas + plan.clients).map(|_| clock()).collect();
        let nodes: Vec<SimNode> = (0..plan.replicas)
            .map(|node| SimNode::new(&plan, node as u64 + 1, clocks[node], random.next()))
            .collect();
        let clients = (0..plan.clients)
            .map(|client| {
                SimClient::new(
                    client,
                    plan.group_of(client),
                    0,
                    clocks[plan.replicas + client],
                    0,
                    &mut random,
                )
            })
            .collect();
        let watchers =
            (0..plan.watchers).map(|watcher| SimWatcher::new(watcher, &plan, &mut random)).collect();
        let mut founder = SimNode::new(&plan, 1, SimClock::new(0, 0), 0);
        founder.start(&plan, 0, 0).unwrap_or_else(|problem| panic!("a new cluster starts: {problem:?}"));
        let founded = founder.process.as_ref().expect("it has just started").lanes.iter();
        let groups = founded.map(|lane| Checks::new(lane.replica.state().clone())).collect();
        Self {
            faults: Faults::none(),
            plan,
            now: 0,
            random,
            queue: BTreeMap::new(),
            last_event: 0,
            nodes,
            clients,
            cut: BTreeSet::new(),
            client_cut: BTreeSet::new(),
            watchers,
            operator_heard: Vec::new(),
            quiet_since: None,
            fault_count: 0,
            groups,
            trace: Trace::new(trace),
            fingerprint: seed,
            stage: None,
        }
    }

    pub(crate) fn summary(&self) -> WorldSummary {
        let mut summary = WorldSummary {
            simulated_nanos: self.now,
            faults: self.fault_count,
            fingerprint: self.fingerprint,
            ..WorldSummary::default()
        };
        self.groups.iter().for_each(|group| group.count(&mut summary));
        summary
    }

    pub(crate) fn schedule(&mut self, at: u64, event: WorldEvent) {
        self.last_event += 1;
        self.queue.insert((at.max(self.now), self.last_event), event);
    }

    fn run(&mut self) -> Check {
        self.trace.tell(self.now, || words::plan_words(&self.plan));
        self.open()?;
        self.faults = self.plan.faults.clone();
        self.begin_faults();
        for client in 0..self.clients.len() {
            self.wake_client(client);
        }
        for watcher in 0..self.watchers.len() {
            self.wake_watcher(watcher);
        }
        let quiet_at = self.now + self.plan.active_nanos;
        self.schedule(quiet_at, WorldEvent::Quiet);
        let end = quiet_at + self.plan.quiet_nanos;
        self.run_until(end)?;
        self.check_end()
    }

    /// All machines start and make one cluster, before anything breaks.
    pub(crate) fn open(&mut self) -> Check {
        for node in 0..self.nodes.len() {
            self.start_node(node)?;
        }
        self.schedule(self.now, WorldEvent::Knock);
        self.gather()
    }

    /// Without faults: the other nodes join, until all vote.
    fn gather(&mut self) -> Check {
        for member in 1..=self.nodes.len() as u64 {
            // While the cluster grows the founder may crash: it must not lead one term twice, nor
            // come back with fewer members than were committed.
            if (2..4).contains(&member) && self.plan.faults.crash_nanos > 0 {
                self.disturb_founder(member)?;
            }
            let voters = member as usize;
            for _ in 0..JOIN_SECONDS_MAX * self.plan.patience() {
                if self.voters() == voters {
                    break;
                }
                self.ask_to_join(member);
                self.run_until(self.now + SECOND)?;
            }
        }
        let voters = self.voters();
        if voters == self.nodes.len() {
            return Ok(());
        }
        crate::invariants::Check::Err(Violation {
            invariant: "liveness",
            what: format!("only {voters} nodes vote after all have joined"),
        })
    }

    /// Whoever leads takes the node in. Nobody waits for the answer: that all vote in the end counts.
    pub(crate) fn ask_to_join(&mut self, member: u64) {
        self.ask_all(&Request::Command(Command::AddMember {
            node: Box::new(node_info(member)),
            invitation: None,
        }));
    }

    /// How many vote in every group, say the leaders.
    fn voters(&self) -> usize {
        let voters = self.plan.groups().map(|group| {
            let lanes = self.nodes.iter().filter_map(|node| node.running(group));
            let leader = lanes.map(|lane| lane.replica.status()).find(|status| status.serving);
            leader.map_or(0, |status| status.members.iter().filter(|member| member.voter).count())
        });
        voters.min().unwrap_or(0)
    }

    pub(crate) fn run_until(&mut self, end: u64) -> Check {
        while let Some(next) = self.queue.first_entry()
            && next.key().0 <= end
        {
            let ((at, _), event) = next.remove_entry();
            self.now = at;
            self.handle(event)?;
        }
        self.now = end;
        Ok(())
    }

    fn mark(&mut self, what: u64) {
        let mixed = (self.fingerprint ^ what ^ self.now.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.fingerprint = mixed ^ (mixed >> 29);
    }

    fn handle(&mut self, event: WorldEvent) -> Check {
        match event {
            WorldEvent::NodeWakes { node, incarnation } => {
                self.mark(1 << 32 | node as u64);
                // An earlier wake-up may have taken this one's place.
                if self.nodes[node].incarnation == incarnation && self.nodes[node].wakes_at == Some(self.now)
                {
                    self.nodes[node].wakes_at = None;
                    self.run_node(node)?;
                }
            }
            WorldEvent::DiskSynced { node, incarnation } => {
                self.mark(2 << 32 | node as u64);
                if self.nodes[node].incarnation == incarnation && self.nodes[node].process.is_some() {
                    self.disk_synced(node)?;
                }
            }
            WorldEvent::SnapshotWritten { node, incarnation, group, job } => {
                if self.nodes[node].incarnation == incarnation && self.nodes[node].process.is_some() {
                    self.snapshot_written(node, group, job)?;
                }
            }
            WorldEvent::Message { from, to, bytes, snapshot } => {
                self.message_arrives(from, to, &bytes, snapshot)
            }
            WorldEvent::SnapshotSent { from, incarnation, group, to, delivered } => {
                if self.nodes[from].incarnation == incarnation {
                    self.input(from, group, Input::SnapshotSent { to: MemberId(to), delivered });
                }
            }
            // Copies of what was sent in worse days have died out.
            WorldEvent::Request { is_copy: true, .. } if self.quiet_since.is_some() => {}
            WorldEvent::Request { client, life, operation, node, request, .. } => {
                self.request_arrives(client, life, operation, node, request);
            }
            WorldEvent::Answer { client, life, operation, node, answer } => {
                self.mark(3 << 32 | client as u64);
                self.answer_arrives(client, life, operation, node, *answer)?;
            }
            WorldEvent::ClientWakes { client, life } => {
                if self.clients[client].life == life && self.clients[client].wakes_at == Some(self.now) {
                    self.clients[client].wakes_at = None;
                    self.run_client(client)?;
                }
            }
            WorldEvent::Leave { client, life, operation, node } => {
                self.caller_leaves(client, life, operation, node)
            }
            WorldEvent::WatcherWakes { watcher } => self.run_watcher(watcher)?,
            WorldEvent::Write { group, write } => {
                if !self.write(group, &write)? {
                    let Write { to, token, .. } = &write;
                    self.trace.tell(self.now, || {
                        format!("a late write to {to} with token {token} is refused: a higher one was there")
                    });
                }
            }
            WorldEvent::Fault(fault) => self.make_fault(fault)?,
            WorldEvent::Restart { node } => {
                if self.nodes[node].process.is_none() && !self.nodes[node].refused {
                    self.start_node(node)?;
                }
            }
            WorldEvent::Joins { member } => self.joins(member),
            WorldEvent::Knock => self.knock(),
            WorldEvent::Removed { node, incarnation } => self.removed(node, incarnation),
            WorldEvent::Quiet => self.become_quiet()?,
        }
        Ok(())
    }

    // The end.

    fn become_quiet(&mut self) -> Check {
        self.trace.tell(self.now, || "faults end".to_owned());
        self.quiet_since = Some(self.now);
        self.plan.think_nanos = self.plan.think_nanos.min(SECOND / 2);
        self.faults = Faults::none();
        self.nodes.iter().for_each(|node| node.disk.stop_failing());
        self.cut.clear();
        self.client_cut.clear();
        for node in 0..self.nodes.len() {
            self.nodes[node].paused_until = self.now;
            self.nodes[node].stalled_until = self.now;
            self.nodes[node].starved_until = self.now;
            let is_gone = self.nodes[node].refused || self.nodes[node].removed;
            if self.nodes[node].process.is_none() && !is_gone {
                self.start_node(node)?;
            }
            self.nodes[node].wakes_at = None;
            self.wake_node(node, self.now);
        }
        for client in 0..self.clients.len() {
            self.clients[client].become_quiet(self.now);
            self.wake_client(client);
        }
        Ok(())
    }

    /// A write reaches what the locks of a group protect; true if it is accepted.
    pub(crate) fn write(&mut self, group: usize, write: &Write) -> Result<bool, Violation> {
        let checks = &mut self.groups[group];
        checks.tokens.told(&write.lock, write.token)?;
        Ok(checks.fencing.write(write))
    }

    /// True if a machine's snapshot is on its way to the disk.
    pub(crate) fn is_writing_snapshot(&self, of: usize) -> bool {
        let incarnation = self.nodes[of].incarnation;
        self.queue.values().any(|event| {
            matches!(event, WorldEvent::SnapshotWritten { node, incarnation: by, .. } if *node == of && *by == incarnation)
        })
    }

    pub(crate) fn check_end(&mut self) -> Check {
        // The last entries travel while nobody asks for anything new.
        self.clients.iter_mut().for_each(|client| client.paused_until = u64::MAX);
        self.run_until(self.now + 500 * MILLISECOND)?;
        // Ends of leases and waits may still come: some moment must be without one on its way.
        for _ in 0..20 {
            if self.plan.groups().all(|group| self.is_settled(group)) {
                break;
            }
            self.run_until(self.now + 25 * MILLISECOND)?;
        }
        (0..self.nodes.len()).for_each(|node| self.write_audits(node));
        self.plan.groups().try_for_each(|group| self.check_group_at_end(group))
    }

    /// True if all who are up have applied all that was committed.
    fn is_settled(&self, group: usize) -> bool {
        let end = self.groups[group].agreement.state().revision();
        let mut lanes = self.nodes.iter().filter_map(|node| node.running(group));
        lanes.all(|lane| lane.replica.state().revision() == end)
    }

    fn check_group_at_end(&self, group: usize) -> Check {
        let Checks { agreement, ledger, expiry, holds, audit, tokens, .. } = &self.groups[group];
        audit.is_whole(agreement.state(), &tokens.all())?;
        as_registered(&self.nodes, group, agreement.state())?;
        let mut leaders = 0;
        for node in &self.nodes {
            if let Some(lane) = node.running(group) {
                leaders += usize::from(lane.replica.standing().2);
                agreement.compare_at_end(node.member, lane.replica.state())?;
                audit.compare(node.member, &node.audits[group], lane.replica.state().revision())?;
            }
        }
        // Scripted clients do nothing by themselves; that they are served is the script's to show.
        let clients = if self.stage.is_some() { &[][..] } else { &self.clients[..] };
        Liveness::at_end(leaders, clients.iter().filter(|client| client.group == group))?;
        Liveness::nobody_is_forgotten(&self.nodes, group, ledger, self.now)?;
        holds.at_end(self.quiet_since.unwrap_or(0), self.now)?;
        expiry.at_end(agreement.state(), self.now)
    }
}
