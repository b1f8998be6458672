//! Small worlds in which some machines form a cluster: the real [`Forming`], and everything that can happen to it.
//!
//! A world is a number of machines with a disk each. They ask each other in any order, and what one has heard may be old
//! when it looks at it. They crash before and after a write, lose what they are asked and what they are answered, and are
//! wiped: by then the machine has a new identity, and perhaps another name. At the end all faults stop.
//!
//! What must hold is F1 to F3 of `lowkey-replica/src/forming.rs`. Machines of which none was wiped do get a cluster. So do
//! those of which one was, but for one chance in many: a node that looks at old answers while a coordinator is wiped may
//! give up what another node has founded. Then it must say that it needs a person.

use std::collections::{BTreeMap, BTreeSet};

use lowkey_core::{ClusterId, NodeIdentity, NodeInfo, NodeName};
use lowkey_replica::RaftTick;
use lowkey_replica::forming::{Attempt, Belongs, Chance, Forming, Memory, Plan, Statement, Step};

use crate::invariants::{Check, Violation, broken};
use crate::random::Random;

const INVARIANT: &str = "forming";
/// How many things happen in a world before its faults stop.
const EVENTS: u64 = 160;
/// How often all ask all when they have. Each look brings a world further, or shows that it stays as it is.
const QUIET_ROUNDS: usize = 12;

/// What a world may do to its machines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    pub(crate) machines: usize,
    /// How many times a machine may be wiped.
    pub(crate) wipes: u64,
    /// Wiped only once there is a cluster.
    pub(crate) wipes_are_late: bool,
}

/// Plays the world of a seed. True if no machine of it waits for a person at the end.
pub(crate) fn play(seed: u64, weather: Weather) -> Result<bool, Violation> {
    let mut world = World::new(seed, weather);
    for _ in 0..EVENTS {
        world.happen()?;
    }
    world.calm_down()?;
    Ok(!world.machines.iter().any(|machine| machine.is_stuck))
}

/// A machine, and what is on its disk.
struct Machine {
    identity: NodeIdentity,
    name: NodeName,
    memory: Memory,
    /// None while it does not run.
    process: Option<Forming>,
    /// What it has heard since it last looked.
    heard: BTreeMap<usize, Statement>,
    /// It says that it needs a person.
    is_stuck: bool,
}

/// What is true, whoever knows of it.
#[derive(Default)]
struct Truth {
    /// Every promise that was ever on a disk.
    promised: BTreeSet<(NodeIdentity, Attempt)>,
    /// Every plan that was founded.
    founded: BTreeMap<ClusterId, Plan>,
    /// Clusters that were alive, and of which some disk, or some node that has heard of them, still knows.
    alive: BTreeSet<ClusterId>,
    /// Which node has heard of which cluster, and had the time to write it down.
    heard: BTreeSet<(NodeIdentity, ClusterId)>,
}

struct World {
    random: Random,
    weather: Weather,
    machines: Vec<Machine>,
    identities: u64,
    clusters: u64,
    wipes: u64,
    truth: Truth,
}

impl World {
    fn new(seed: u64, weather: Weather) -> Self {
        let mut world = Self {
            random: Random::new(seed),
            weather,
            machines: Vec::new(),
            identities: 0,
            clusters: 0,
            wipes: 0,
            truth: Truth::default(),
        };
        for place in 0..weather.machines {
            let machine = world.empty(place);
            world.machines.push(machine);
        }
        world
    }

    fn number(counter: &mut u64) -> [u8; 16] {
        *counter += 1;
        u128::from(*counter).to_be_bytes()
    }

    /// A machine with an empty disk. Its name may be another than before.
    fn empty(&mut self, place: usize) -> Machine {
        let identity = NodeIdentity(Self::number(&mut self.identities));
        let prefix = self.random.between(0, 3);
        let name = NodeName::parse(&format!("n{prefix}-{place}")).expect("a name");
        Machine {
            identity,
            name,
            memory: Memory::default(),
            process: None,
            heard: BTreeMap::new(),
            is_stuck: false,
        }
    }

    fn happen(&mut self) -> Check {
        let place = self.random.between(0, self.weather.machines as u64) as usize;
        match self.random.between(0, 100) {
            0..12 => self.start(place),
            12..16 => self.stop(place),
            16..20 => self.wipe(place),
            20..60 => {
                let other = self.random.between(0, self.weather.machines as u64) as usize;
                self.ask(place, other);
            }
            // One round of questions, as the real shell does it.
            60..80 => {
                for other in 0..self.weather.machines {
                    self.ask(place, other);
                }
                return self.look(place, true);
            }
            _ => return self.look(place, true),
        }
        Ok(())
    }

    fn start(&mut self, place: usize) {
        let machine = &mut self.machines[place];
        if machine.process.is_none() {
            let own = info(&machine.name);
            let (identity, memory) = (machine.identity, machine.memory.clone());
            let told = (self.weather.machines, RaftTick::SHORTEST);
            machine.process = Some(Forming::new(identity, own, told, memory));
        }
    }

    fn stop(&mut self, place: usize) {
        self.machines[place].process = None;
        self.machines[place].heard.clear();
    }

    fn wipe(&mut self, place: usize) {
        let too_early = self.weather.wipes_are_late && self.truth.alive.is_empty();
        if self.wipes == self.weather.wipes || too_early {
            return;
        }
        self.wipes += 1;
        self.machines[place] = self.empty(place);
        self.forget();
    }

    /// Clusters of which nobody knows any more are gone for good.
    fn forget(&mut self) {
        let Truth { founded, alive, heard, .. } = &mut self.truth;
        alive.retain(|cluster| {
            self.machines.iter().any(|machine| {
                founded[cluster].member(machine.identity).is_some()
                    || heard.contains(&(machine.identity, *cluster))
            })
        });
    }

    /// One question and its answer; either may be lost.
    fn ask(&mut self, place: usize, other: usize) {
        let is_lost = self.random.one_in(8);
        let Some(answer) = self.machines[other].process.as_ref().map(|process| process.statement(7)) else {
            return;
        };
        if place != other && !is_lost && self.machines[place].process.is_some() {
            self.machines[place].heard.insert(other, answer);
        }
    }

    /// A machine looks at what it has heard, and does what is to be done. It may crash on either side of each write.
    fn look(&mut self, place: usize, may_crash: bool) -> Check {
        let heard: Vec<Statement> = std::mem::take(&mut self.machines[place].heard).into_values().collect();
        loop {
            let chance =
                Chance { cluster: ClusterId(Self::number(&mut self.clusters)), spread: 0, unix_minutes: 7 };
            let machine = &mut self.machines[place];
            let Some(process) = &mut machine.process else { return Ok(()) };
            let step = process.look(&heard, chance);
            // A machine whose process is busy with its disk still answers others.
            if may_crash && self.random.one_in(4) {
                self.overheard(place);
            }
            self.machines[place].is_stuck = matches!(&step, Step::Wait(waiting) if waiting.needs_a_person());
            let Step::Keep(memory) = step else { break };
            if may_crash && self.random.one_in(12) {
                self.stop(place);
                return Ok(());
            }
            self.write(place, &memory)?;
            if may_crash && self.random.one_in(12) {
                self.stop(place);
                return Ok(());
            }
            if let Some(process) = &mut self.machines[place].process {
                process.kept(memory);
            }
        }
        self.note_heard(place, &heard);
        Ok(())
    }

    fn overheard(&mut self, place: usize) {
        for other in 0..self.weather.machines {
            self.ask(other, place);
        }
    }

    fn note_heard(&mut self, place: usize, heard: &[Statement]) {
        let identity = self.machines[place].identity;
        for said in heard {
            let cluster = match &said.memory.belongs {
                Belongs::Founded(plan) => plan.cluster,
                Belongs::Cluster(cluster) => *cluster,
                Belongs::Nowhere => continue,
            };
            self.truth.heard.insert((identity, cluster));
        }
    }

    /// Puts something on a machine's disk, and checks what must be true from then on.
    fn write(&mut self, place: usize, memory: &Memory) -> Check {
        let identity = self.machines[place].identity;
        let before = std::mem::replace(&mut self.machines[place].memory, memory.clone());
        if before.belongs != Belongs::Nowhere && before.belongs != memory.belongs {
            return broken(INVARIANT, "F2: a node changed the cluster that it belongs to");
        }
        if let Some(promise) = &memory.promise {
            self.truth.promised.insert((identity, promise.attempt));
        }
        let Belongs::Founded(plan) = &memory.belongs else { return Ok(()) };
        if before.belongs == memory.belongs {
            return Ok(());
        }
        self.founded(plan)
    }

    fn founded(&mut self, plan: &Plan) -> Check {
        let truth = &mut self.truth;
        let identities = || plan.nodes.iter().filter_map(|node| node.identity);
        let without = identities().find(|node| !truth.promised.contains(&(*node, plan.attempt)));
        if plan.nodes.len() != self.weather.machines || without.is_some() {
            return broken(INVARIANT, format!("F1: founded without the promise of {without:?}"));
        }
        if truth.alive.iter().any(|alive| *alive != plan.cluster) {
            return broken(INVARIANT, "F3: a second cluster was founded");
        }
        if truth.founded.entry(plan.cluster).or_insert_with(|| plan.clone()) != plan {
            return broken(INVARIANT, "F2: two plans for one cluster");
        }
        let count = self.machines.iter().filter(|machine| machine.founded() == Some(plan.cluster)).count();
        if count > self.weather.machines / 2 {
            truth.alive.insert(plan.cluster);
        }
        Ok(())
    }

    /// No faults any more: all run, and all ask all, again and again.
    fn calm_down(&mut self) -> Check {
        for _ in 0..QUIET_ROUNDS {
            for place in 0..self.weather.machines {
                self.start(place);
                self.machines[place].heard.clear();
                for other in 0..self.weather.machines {
                    // Nothing is lost from now on.
                    let answer = self.machines[other].process.as_ref().map(|process| process.statement(7));
                    if let Some(answer) = answer.filter(|_| other != place) {
                        self.machines[place].heard.insert(other, answer);
                    }
                }
                self.look(place, false)?;
            }
        }
        // What a lost disk must not cost: one is fewer than a majority needs.
        if self.wipes <= 1 && self.weather.machines > 2 {
            let mut members: BTreeMap<ClusterId, usize> = BTreeMap::new();
            for cluster in self.machines.iter().filter_map(Machine::founded) {
                *members.entry(cluster).or_default() += 1;
            }
            let wanted = self.weather.machines - self.wipes as usize;
            let is_stuck = self.wipes > 0 && self.machines.iter().any(|machine| machine.is_stuck);
            let is_whole = members.len() == 1 && members.values().all(|count| *count >= wanted);
            if members.len() > 1 || !(is_whole || is_stuck) {
                return broken(INVARIANT, format!("{members:?} have founded, not {wanted}"));
            }
        }
        Ok(())
    }
}

impl Machine {
    fn founded(&self) -> Option<ClusterId> {
        match &self.memory.belongs {
            Belongs::Founded(plan) => Some(plan.cluster),
            _ => None,
        }
    }
}

fn info(name: &NodeName) -> NodeInfo {
    NodeInfo {
        name: name.clone(),
        identity: None,
        raft_address: "a:1".into(),
        grpc_address: "a:2".into(),
        http_address: "a:3".into(),
        command_version: 1,
        key_hash: None,
    }
}
