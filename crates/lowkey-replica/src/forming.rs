//! How several empty nodes found one cluster together, and never a second one.
//!
//! Each node is told how many there are to be, and where to ask. It asks all of them, again and again, and tells each
//! that asks what it knows: its [`Statement`]. When a node sees all of them at once, the first by name becomes the
//! coordinator and says what is to be founded: its [`Plan`], which names every node by its identity. All others promise
//! to found nothing but what this coordinator decides. When it has seen *every* promise, it decides, by writing the plan
//! to its own disk. The others hear of it, and found the same. All of them are voters from the beginning.
//!
//! Nothing here depends on time, and nobody decides because somebody else is silent.
//!
//! **What can never happen.** Call a cluster alive if a majority of the nodes of its plan have founded it.
//!
//! - F1. A plan is decided only when every node of it has promised, on disk, to follow this very attempt.
//! - F2. One identity founds one cluster, once. What was founded is never forgotten by the disk that it is on.
//! - F3. While some disk still knows of a cluster that was alive, no other one is founded.
//!
//! **Why F3 holds.** Two plans that were both decided share a node, or every node of the first was wiped. A node that they
//! share promised both attempts, one after the other. It gives up a promise only if the first attempt cannot become a
//! cluster any more (`Memory::is_free`):
//!
//! - its coordinator, the only one that can decide it, has given it up itself, or began another attempt;
//! - or so many nodes of the plan have *renounced* it, on disk, that the rest is no majority. They will never found it. One
//!   renounces only what has lost its coordinator: another identity is in its place.
//!
//! A node that was wiped comes back with another identity and is in no plan. What it hears of a cluster it writes down
//! before anything else ([`Belongs::Cluster`]), and from then on it founds nothing. So nodes that are wiped one after another
//! cannot forget together what each of them has told the next. Only if all are wiped before any of them has spoken is
//! nothing left to know, and a new cluster is right; its tokens begin at the clock's floor, above those of before.
//!
//! A node may be left in doubt for ever: it promised, and too many of the others were wiped before they could tell what
//! came of it. It then founds nothing, and says so ([`Waiting::InDoubt`]). Or it renounced an attempt that another node had
//! founded meanwhile ([`Waiting::LeftBehind`]). A person must decide.
//!
//! Deliberately absent: disks, connections, clocks, chance. The caller asks the others, writes what it is told to
//! ([`Step::Keep`]), and only then says that it is written ([`Forming::kept`]).

mod waiting;

use lowkey_core::{ClusterId, FirstMembers, MemberId, NodeIdentity, NodeInfo, mutants};

pub use self::waiting::Waiting;
use crate::raft_tick::RaftTick;

/// How many attempts a node remembers that it renounced. Each costs the loss of a coordinator's disk.
const RENOUNCED_MAX: usize = 256;

/// One try of one coordinator. Later ones have higher numbers, and end the ones before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attempt {
    /// Whose it is. Nobody else can decide it.
    pub coordinator: NodeIdentity,
    /// Counted by the coordinator, on its disk.
    pub number: u64,
}

/// What is to be founded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Whose try this is.
    pub attempt: Attempt,
    /// The new cluster's id.
    pub cluster: ClusterId,
    /// The clock from which its tokens begin, in minutes since 1970: the latest of all nodes.
    pub unix_minutes: u64,
    /// Random: keeps two beginnings within one minute apart.
    pub spread: u32,
    /// The nodes, by name. Each has an identity.
    pub nodes: Vec<NodeInfo>,
}

impl Plan {
    /// The number that a node is to have.
    pub fn member(&self, identity: NodeIdentity) -> Option<MemberId> {
        let place = self.nodes.iter().position(|node| node.identity == Some(identity))?;
        Some(MemberId(place as u64 + 1))
    }

    /// The cluster's first members.
    pub fn first_members(&self) -> FirstMembers {
        let Self { cluster, unix_minutes, spread, nodes, .. } = self;
        FirstMembers { cluster: *cluster, nodes: nodes.clone(), unix_minutes: *unix_minutes, spread: *spread }
    }
}

/// A promise to found nothing but what this attempt decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    /// The attempt.
    pub attempt: Attempt,
    /// Who is in its plan.
    pub nodes: Vec<NodeIdentity>,
}

/// The cluster that a node knows of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Belongs {
    /// None.
    #[default]
    Nowhere,
    /// It founded this one, with others.
    Founded(Box<Plan>),
    /// It is a member of this one, or has heard of it, and founds nothing any more.
    Cluster(ClusterId),
}

/// What a node keeps on its disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The last promise that it gave.
    pub promise: Option<Promise>,
    /// Attempts of which it will never found anything, and that it will never promise.
    pub renounced: Vec<Attempt>,
    /// The cluster that it knows of. Once it is somewhere, this never changes.
    pub belongs: Belongs,
}

/// What a node tells those that ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The node itself, with its identity.
    pub node: NodeInfo,
    /// How many nodes it was told that there are to be.
    pub size: usize,
    /// The base of its timing, which all nodes of a cluster share.
    pub raft_tick: RaftTick,
    /// Its clock, in minutes since 1970.
    pub unix_minutes: u64,
    /// What is on its disk.
    pub memory: Memory,
    /// What it is to be, if it coordinates. It has promised that itself.
    pub plan: Option<Plan>,
}

impl Statement {
    fn identity(&self) -> Option<NodeIdentity> {
        self.node.identity
    }

    fn has_promised(&self, attempt: Attempt) -> bool {
        self.memory.promise.as_ref().is_some_and(|promise| promise.attempt == attempt)
    }

    fn has_renounced(&self, attempt: Attempt) -> bool {
        self.memory.renounced.contains(&attempt)
    }

    /// True if it is about to decide.
    fn coordinates(&self) -> bool {
        self.memory.promise.as_ref().is_some_and(|promise| {
            Some(promise.attempt.coordinator) == self.identity() && !self.has_renounced(promise.attempt)
        })
    }
}

/// What a new plan needs and only the world around can give.
#[derive(Clone, Copy, Debug)]
pub struct Chance {
    /// An id that no cluster ever had.
    pub cluster: ClusterId,
    /// Any number.
    pub spread: u32,
    /// The wall clock, in minutes since 1970.
    pub unix_minutes: u64,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask all others again, a little later.
    Wait(Waiting),
    /// Put this on disk, then call [`Forming::kept`] and look again.
    Keep(Memory),
    /// Found this cluster, as the member that the plan says.
    Found(Box<Plan>),
    /// There is this cluster already: join it, or give up.
    Join(ClusterId),
}

/// A node that is to found a cluster with others.
#[derive(Clone, Debug)]
pub struct Forming {
    own: NodeInfo,
    identity: NodeIdentity,
    size: usize,
    raft_tick: RaftTick,
    /// As it is on disk.
    memory: Memory,
    /// What this node means to decide, if it coordinates.
    plan: Option<Plan>,
}

impl Forming {
    /// A node with this identity that is to found a cluster of so many with this tick. `memory` is what its disk holds.
    pub fn new(
        identity: NodeIdentity,
        own: NodeInfo,
        (size, raft_tick): (usize, RaftTick),
        memory: Memory,
    ) -> Self {
        let own = NodeInfo { identity: Some(identity), ..own };
        Self { own, identity, size, raft_tick, memory, plan: None }
    }

    /// What is to be told to others.
    pub fn statement(&self, unix_minutes: u64) -> Statement {
        // A plan is told only when the promise of its own coordinator is on disk.
        let promised = self.memory.promise.as_ref().map(|promise| promise.attempt);
        let plan = self.plan.clone().filter(|plan| promised == Some(plan.attempt));
        let (node, memory) = (self.own.clone(), self.memory.clone());
        Statement { node, size: self.size, raft_tick: self.raft_tick, unix_minutes, memory, plan }
    }

    /// This is on disk now.
    pub fn kept(&mut self, memory: Memory) {
        self.memory = memory;
    }

    /// What is on disk.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Looks at what the others said when they were asked just now, and decides what to do next.
    pub fn look(&mut self, heard: &[Statement], chance: Chance) -> Step {
        match &self.memory.belongs {
            Belongs::Founded(plan) => return Step::Found(plan.clone()),
            Belongs::Cluster(cluster) => return Step::Join(*cluster),
            Belongs::Nowhere => {}
        }
        if let Some(step) = self.hear_of_clusters(heard) {
            return step;
        }
        let view = match self.view(heard, chance.unix_minutes) {
            Ok(view) => view,
            Err(waiting) => return Step::Wait(waiting),
        };
        if let Some(step) = self.renounce(&view) {
            return step;
        }
        let Some(coordinator) = coordinator(&view) else {
            return Step::Wait(Waiting::Others { seen: vec![] });
        };
        if coordinator.identity() == Some(self.identity) {
            self.coordinate(&view, chance)
        } else {
            self.follow(&view, coordinator)
        }
    }

    /// There is a cluster: this node founds it too if it promised that, and founds none otherwise. For this nobody else
    /// need be there.
    fn hear_of_clusters(&self, heard: &[Statement]) -> Option<Step> {
        let plans = heard.iter().filter_map(|said| match &said.memory.belongs {
            Belongs::Founded(plan) => Some(plan),
            _ => None,
        });
        for plan in plans {
            if plan.member(self.identity).is_some() {
                let promised = self.memory.promise.as_ref().map(|promise| promise.attempt);
                if promised == Some(plan.attempt) && !self.memory.renounced.contains(&plan.attempt) {
                    return Some(self.belong(Belongs::Founded(plan.clone())));
                }
                return Some(Step::Wait(Waiting::LeftBehind { cluster: plan.cluster }));
            }
        }
        if mutants::A_WIPED_NODE_FOUNDS_AGAIN.is_active() {
            return None;
        }
        let cluster = heard.iter().find_map(|said| match &said.memory.belongs {
            Belongs::Founded(plan) => Some(plan.cluster),
            Belongs::Cluster(cluster) => Some(*cluster),
            Belongs::Nowhere => None,
        })?;
        Some(self.belong(Belongs::Cluster(cluster)))
    }

    /// All nodes, this one among them; nothing while some are missing, or are not as they should be.
    fn view(&self, heard: &[Statement], unix_minutes: u64) -> Result<Vec<Statement>, Waiting> {
        let mut view = vec![self.statement(unix_minutes)];
        for said in heard {
            let is_known = view.iter().any(|known| known.identity() == said.identity());
            if said.identity().is_some() && !is_known {
                view.push(said.clone());
            }
        }
        view.sort_by(|one, other| {
            (&one.node.name, one.identity()).cmp(&(&other.node.name, other.identity()))
        });
        if let Some(other) = view.iter().find(|said| said.size != self.size) {
            let node = other.node.name.clone();
            return Err(Waiting::OtherSize { node, theirs: other.size, own: self.size });
        }
        if let Some(other) = view.iter().find(|said| said.raft_tick != self.raft_tick) {
            let node = other.node.name.clone();
            return Err(Waiting::OtherTick { node, theirs: other.raft_tick, own: self.raft_tick });
        }
        if let Some(twins) = view.windows(2).find(|pair| pair[0].node.name == pair[1].node.name) {
            return Err(Waiting::SameName { node: twins[0].node.name.clone() });
        }
        let seen: Vec<_> = view.iter().map(|said| said.node.name.clone()).collect();
        match view.len() {
            len if len < self.size => Err(Waiting::Others { seen }),
            len if len > self.size => Err(Waiting::TooMany { seen }),
            _ => Ok(view),
        }
    }

    /// Renounces attempts that this node is part of and that have lost their coordinator.
    fn renounce(&self, view: &[Statement]) -> Option<Step> {
        let is_here = |node: NodeIdentity| view.iter().any(|said| said.identity() == Some(node));
        let promises = view.iter().filter_map(|said| said.memory.promise.as_ref());
        let lost = promises
            .filter(|promise| promise.nodes.contains(&self.identity) && !is_here(promise.attempt.coordinator))
            .map(|promise| promise.attempt)
            .find(|attempt| !self.memory.renounced.contains(attempt))?;
        self.renounce_one(lost)
    }

    fn renounce_one(&self, attempt: Attempt) -> Option<Step> {
        let mut memory = self.memory.clone();
        memory.renounced.push(attempt);
        (memory.renounced.len() <= RENOUNCED_MAX).then_some(Step::Keep(memory))
    }

    fn coordinate(&mut self, view: &[Statement], chance: Chance) -> Step {
        if !self.memory.is_free(self.identity, u64::MAX, self.size, view) {
            return Step::Wait(self.in_doubt());
        }
        let is_current = |plan: &Plan| {
            plan.nodes.iter().eq(view.iter().map(|said| &said.node))
                && !view.iter().any(|said| said.has_renounced(plan.attempt))
        };
        let plan = match self.plan.take().filter(is_current) {
            Some(plan) => plan,
            None => self.new_plan(view, chance),
        };
        let attempt = plan.attempt;
        self.plan = Some(plan.clone());
        if self.memory.promise.as_ref().is_none_or(|promise| promise.attempt != attempt) {
            return self.promise(&plan);
        }
        let missing = view.iter().filter(|said| !said.has_promised(attempt));
        let missing: Vec<_> = missing.map(|said| said.node.name.clone()).collect();
        let may_lack = match mutants::A_MAJORITY_FOUNDS.is_active() {
            false => 0,
            true => (self.size - 1) / 2,
        };
        if missing.len() > may_lack {
            return Step::Wait(Waiting::Promises { of: missing });
        }
        self.belong(Belongs::Founded(Box::new(plan)))
    }

    /// A plan for all that are here. The coordinator's attempts before end with it.
    fn new_plan(&self, view: &[Statement], chance: Chance) -> Plan {
        let own = self.memory.promise.as_ref().map(|promise| promise.attempt);
        let last = own.filter(|attempt| attempt.coordinator == self.identity);
        let renounced = self.memory.renounced.iter().filter(|attempt| attempt.coordinator == self.identity);
        let last = renounced.copied().chain(last).map(|attempt| attempt.number).max();
        Plan {
            attempt: Attempt { coordinator: self.identity, number: last.map_or(1, |last| last + 1) },
            cluster: chance.cluster,
            unix_minutes: view.iter().map(|said| said.unix_minutes).max().unwrap_or_default(),
            spread: chance.spread,
            nodes: view.iter().map(|said| said.node.clone()).collect(),
        }
    }

    fn follow(&mut self, view: &[Statement], coordinator: &Statement) -> Step {
        // Only a coordinator has a plan; and one that is not it any more gives up what it was about to decide.
        self.plan = None;
        let own = self.memory.promise.as_ref().map(|promise| promise.attempt);
        if let Some(attempt) = own.filter(|attempt| {
            attempt.coordinator == self.identity && !self.memory.renounced.contains(attempt)
        }) && let Some(step) = self.renounce_one(attempt)
        {
            return step;
        }
        let name = coordinator.node.name.clone();
        let Some(plan) = &coordinator.plan else { return Step::Wait(Waiting::Plan { of: name }) };
        let is_meant = Some(plan.attempt.coordinator) == coordinator.identity()
            && plan.nodes.iter().eq(view.iter().map(|said| &said.node));
        if !is_meant || self.memory.renounced.contains(&plan.attempt) {
            return Step::Wait(Waiting::Plan { of: name });
        }
        if own == Some(plan.attempt) {
            return Step::Wait(Waiting::Decision { of: name });
        }
        let Attempt { coordinator, number } = plan.attempt;
        if !self.memory.is_free(coordinator, number, self.size, view) {
            return Step::Wait(self.in_doubt());
        }
        let plan = plan.clone();
        self.promise(&plan)
    }

    fn promise(&mut self, plan: &Plan) -> Step {
        let nodes = plan.nodes.iter().filter_map(|node| node.identity).collect();
        let memory =
            Memory { promise: Some(Promise { attempt: plan.attempt, nodes }), ..self.memory.clone() };
        if mutants::A_PROMISE_IS_TOLD_BEFORE_IT_IS_ON_DISK.is_active() {
            self.memory = memory.clone();
        }
        Step::Keep(memory)
    }

    fn belong(&self, belongs: Belongs) -> Step {
        Step::Keep(Memory { belongs, ..self.memory.clone() })
    }

    fn in_doubt(&self) -> Waiting {
        let nodes = self.memory.promise.as_ref().map_or(0, |promise| promise.nodes.len());
        Waiting::InDoubt { node: self.own.name.clone(), nodes }
    }
}

impl Memory {
    /// True if this node may promise an attempt of this coordinator: what it promised before cannot become a cluster
    /// any more.
    fn is_free(&self, coordinator: NodeIdentity, number: u64, size: usize, view: &[Statement]) -> bool {
        let Some(Promise { attempt, nodes }) = &self.promise else { return true };
        // A coordinator that begins anew has given up the attempts before, and decides no more than one.
        if attempt.coordinator == coordinator {
            return number > attempt.number;
        }
        let has_renounced = |node: &NodeIdentity| {
            view.iter().any(|said| said.identity() == Some(*node) && said.has_renounced(*attempt))
        };
        if has_renounced(&attempt.coordinator) {
            return true;
        }
        // As many as a majority cannot do without.
        let blocking = size - size / 2;
        let renounced = nodes.iter().filter(|node| has_renounced(node)).count();
        renounced >= blocking || (mutants::A_PROMISE_IS_GIVEN_UP_ALONE.is_active() && renounced > 0)
    }
}

/// Who decides: one that is about to already, or the first by name.
fn coordinator(view: &[Statement]) -> Option<&Statement> {
    view.iter().find(|said| said.coordinates()).or_else(|| view.first())
}

#[cfg(test)]
mod tests;
