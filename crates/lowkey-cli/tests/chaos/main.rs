//! Chaos on real processes: clusters of the real binary, on real disks, behind proxies that break the
//! network, killed, paused and damaged by chance, while a crowd of clients records what it is told. A judge
//! holds the record against the promises.
//!
//! ```sh
//! cargo test -p lowkey-cli --test chaos -- --nocapture                                # 20 s
//! LOWKEY_CHAOS_SECONDS=1800 cargo test -p lowkey-cli --test chaos -- --nocapture      # half an hour
//! LOWKEY_CHAOS_SEED=7 cargo test -p lowkey-cli --test chaos -- --nocapture            # the faults of a seed
//! ```
//!
//! `LOWKEY_CHAOS_ONLY=run,force` leaves the other faults out: there are `nodes`, `paths`, `run` and `force`.
//!
//! `cluster` and `net` are what is broken, `faults` breaks it, with what `equipment` the machine has, and
//! `meddler` takes locks from their holders; `holders`, `sdk`, `runs`, `readers` and `probe` are the clients,
//! `stage` is what they share; `history` is what they saw, `judge` finds what is wrong with it, and `summary`
//! tells it all.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may")]

mod cluster;
mod equipment;
mod faults;
#[allow(dead_code, reason = "the tests of single processes need more of it")]
#[path = "../process/harness.rs"]
mod harness;
mod history;
mod holders;
mod judge;
#[path = "judge/self_test.rs"]
mod judge_self_test;
mod meddler;
mod net;
mod probe;
mod readers;
mod runs;
mod sdk;
mod stage;
mod summary;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lowkey_api::v1::{AcquireLockRequest, GetStatusRequest, ListLocksRequest};
use lowkey_core::{LockView, Mode, Scope};
use lowkey_sim::judge::{PlainClaim, Random, Violation};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::cluster::Cluster;
use crate::faults::{Faults, delay_paths, drizzle};
use crate::history::{Asked, Call, Final, History, SECOND, granted, lock_name, now, view};
use crate::probe::{Probes, probe};
use crate::readers::LAST;
use crate::sdk::Role;
use crate::stage::{Stage, Told, channel};
use crate::summary::Summary;

/// The longest that one cluster lives: what is recorded is kept in memory until it is judged.
const PHASE_SECONDS_MAX: u64 = 300;
const HOLDERS: usize = 14;
const LOCKERS: usize = 4;
const CANDIDATES: usize = 3;
const PATIENT: usize = 5;
const READERS: usize = 3;
/// How long each probe takes a breath. The restless ones fill the log, so that there are snapshots.
const PROBE_PAUSES_MS: &[u64] = &[40, 40, 40, 1, 1];
/// Every watcher's prefix: those without one stand for the log.
const WATCHED: &[&str] = &["", "", "", "jobs/", "tree/a"];

/// One cluster at a time, or they would make each other slow.
static TURN: Mutex<()> = Mutex::new(());

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable}={text}")))
}

/// What is broken in a run.
#[derive(Clone, Copy, Debug)]
struct Broken {
    /// The nodes, and the network between them.
    nodes: bool,
    /// Single paths between clients and nodes.
    paths: bool,
    /// `lowkey run`.
    run: bool,
    /// Locks are taken from their holders.
    force: bool,
}

impl Broken {
    const NOTHING: Self = Self { nodes: false, paths: false, run: false, force: false };

    /// All, or what `LOWKEY_CHAOS_ONLY` names.
    fn chosen() -> Self {
        let Ok(only) = std::env::var("LOWKEY_CHAOS_ONLY") else {
            return Self { nodes: true, paths: true, run: true, force: true };
        };
        let mut chosen = Self::NOTHING;
        for word in only.split(',') {
            match word {
                "nodes" => chosen.nodes = true,
                "paths" => chosen.paths = true,
                "run" => chosen.run = true,
                "force" => chosen.force = true,
                _ => panic!("LOWKEY_CHAOS_ONLY={only}: take some of nodes,paths,run,force"),
            }
        }
        chosen
    }
}

#[test]
fn whatever_breaks_the_promises_do_not() {
    let seconds = number_from("LOWKEY_CHAOS_SECONDS").unwrap_or(20);
    let seed = number_from("LOWKEY_CHAOS_SEED").unwrap_or_else(|| now() % 1_000_000);
    // As many clusters of three as of five.
    let phases = seconds.div_ceil(PHASE_SECONDS_MAX).max(2).next_multiple_of(2);
    let _turn = TURN.lock();
    let broken = Broken::chosen();
    println!("chaos: {seconds} s in {phases} clusters, LOWKEY_CHAOS_SEED={seed}; {broken:?}");
    let mut summary = Summary::new(seed, seconds);
    for phase in 0..phases {
        let nodes = if phase % 2 == 0 { 3 } else { 5 };
        let seed = seed.wrapping_mul(1_000_003).wrapping_add(phase);
        play(nodes, seconds / phases, seed, broken, &mut summary);
    }
    println!("{summary}");
    assert_eq!(summary.violations(), 0, "promises were broken; LOWKEY_CHAOS_SEED={seed}");
}

/// A promise that is broken for certain: nodes whose clocks run twice as fast as their clients' let leases
/// end early. If nobody noticed that, finding nothing else would mean nothing.
#[test]
fn nodes_whose_clocks_run_too_fast_are_found_out() {
    let _turn = TURN.lock();
    // On a busy machine it may be that hardly anything runs out within one.
    let mut found = BTreeSet::new();
    for seed in 1..=6 {
        let (history, was_played) = live(3, 8, seed, Broken::NOTHING, |cluster, _, until| {
            for control in &cluster.controls {
                control.falsify_clock(2_000);
            }
            std::thread::sleep(Duration::from_nanos(until.saturating_sub(now())));
            !cluster.controls.is_empty()
        });
        if !was_played {
            return harness::say("skipped: clocks cannot be falsified here");
        }
        found.extend(judge::judge(&history).into_iter().map(|finding| finding.violation.invariant));
        if found.contains("expiry") {
            break;
        }
    }
    println!("found: {found:?}");
    assert!(found.contains("expiry"), "leases that ended early were not found: {found:?}");
}

/// One cluster: chaos, quiet, judgement.
fn play(nodes: usize, seconds: u64, seed: u64, broken: Broken, summary: &mut Summary) {
    println!("-- {nodes} nodes for {seconds} s; the time from a fault's end until a probe is through:");
    let (mut history, found) = live(nodes, seconds, seed, broken, |cluster, probes, until| {
        let mut lanes = JoinSet::new();
        if broken.nodes {
            let net = Arc::clone(&cluster.net);
            lanes.spawn(async move { drizzle(&net, nodes, seed ^ 0x5eed, until).await });
        }
        if broken.paths {
            let net = Arc::clone(&cluster.net);
            lanes.spawn(async move { delay_paths(&net, seed ^ 0x9a7, until).await });
        }
        let mut faults = Faults::new(cluster, probes, seed);
        match broken.nodes {
            true => faults.run(until),
            false => std::thread::sleep(Duration::from_nanos(until.saturating_sub(now()))),
        }
        let (counts, measured, found) = (faults.counts, faults.measured, faults.found);
        summary.add_faults(counts, measured);
        for counts in Handle::current().block_on(lanes.join_all()) {
            summary.add_faults(counts, Vec::new());
        }
        summary.missing.extend(cluster.missing.iter().cloned());
        found
    });
    history.found.extend(found);
    summary.add_history(&history, &judge::judge(&history));
}

/// A cluster's whole life with a crowd of clients, while somebody breaks things until a time: what was seen.
fn live<T>(
    nodes: usize,
    seconds: u64,
    seed: u64,
    broken: Broken,
    break_things: impl FnOnce(&mut Cluster, &Probes, u64) -> T,
) -> (History, T) {
    let runtime = Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    // Connections are made where a runtime is at hand.
    let _within = runtime.enter();
    let mut cluster = Cluster::start(nodes, runtime.handle());
    let stage = Stage::new(&cluster);
    let probes = Arc::new(Probes::default());
    let watchers = watch(&runtime, &stage, seed);
    let mut crowd = gather(&runtime, &stage, &probes, seed);
    let folder = cluster.folder.path().to_owned();
    if broken.run {
        for number in 0..runs::COMMANDS {
            let seed = seed.wrapping_add(number as u64) ^ 0x2c4;
            crowd.spawn_on(runs::run(Arc::clone(&stage), number, folder.clone(), seed), runtime.handle());
        }
    }
    if broken.force {
        crowd.spawn_on(meddler::meddle(Arc::clone(&stage), seed ^ 0xf0c), runtime.handle());
    }
    let (spectators, felt) = (Arc::clone(&stage), Arc::clone(&probes));
    let scratch = cluster.folder.path().join("scratch");
    let feeler = std::thread::spawn(move || felt.feel_the_load(&spectators, &scratch));

    let outcome = break_things(&mut cluster, &probes, now() + seconds * SECOND);

    cluster.wait_whole();
    stage.end();
    feeler.join().unwrap();
    runtime.block_on(disperse(crowd, &stage));
    runtime.block_on(come_to_rest(&stage, &cluster));
    runtime.block_on(collect(watchers, &stage));
    let finals = runtime.block_on(final_states(&cluster));
    let written = runs::written(&folder);
    drop(cluster);

    let (accepted, refused) = stage.writes();
    let mut history: History = std::mem::take(&mut *stage.history());
    history.finals = finals;
    history.writes = [("accepted", accepted), ("refused", refused)].into();
    history.written = written;
    history.is_calm = !broken.nodes && !broken.paths;
    (history, outcome)
}

/// The clients, at work.
fn gather(runtime: &Runtime, stage: &Arc<Stage>, probes: &Arc<Probes>, seed: u64) -> JoinSet<()> {
    let mut crowd = JoinSet::new();
    let runtime = runtime.handle();
    let mut seeds = Random::new(seed);
    let mut next_seed = || seeds.between(0, u64::MAX);
    for number in 0..HOLDERS {
        crowd.spawn_on(holders::hold_and_release(Arc::clone(stage), number, next_seed()), runtime);
    }
    let roles = [(Role::Locker, LOCKERS), (Role::Candidate, CANDIDATES), (Role::Patient, PATIENT)];
    let roles = roles.into_iter().flat_map(|(role, count)| std::iter::repeat_n(role, count));
    for (number, role) in roles.enumerate() {
        crowd.spawn_on(sdk::run(Arc::clone(stage), number, role, next_seed()), runtime);
    }
    for number in 0..READERS {
        crowd.spawn_on(readers::read(Arc::clone(stage), number, next_seed()), runtime);
    }
    for number in 0..2 {
        let stage = Arc::clone(stage);
        let observing = async move {
            let owner = format!("observer-{number}");
            let client = sdk::connect(&stage, &owner, Duration::from_secs(4)).await;
            readers::observe(stage, client, number).await;
        };
        crowd.spawn_on(observing, runtime);
    }
    for (number, pause_ms) in PROBE_PAUSES_MS.iter().enumerate() {
        let pause = Duration::from_millis(*pause_ms);
        crowd.spawn_on(probe(Arc::clone(stage), Arc::clone(probes), number, pause), runtime);
    }
    crowd.spawn_on(holders::keep(Arc::clone(stage)), runtime);
    crowd
}

/// The watchers, from the present on: nobody has asked for anything yet.
fn watch(runtime: &Runtime, stage: &Arc<Stage>, seed: u64) -> JoinSet<history::Watched> {
    let mut watchers = JoinSet::new();
    let mut links = stage.links(0);
    let list = links.insist(Duration::from_secs(10), Duration::from_secs(2), |mut client| async move {
        client.list_locks(ListLocksRequest::default()).await
    });
    let Told::Yes(list) = runtime.block_on(list) else { panic!("a sound cluster answers") };
    for (number, prefix) in WATCHED.iter().enumerate() {
        let seed = seed.wrapping_add(number as u64) ^ 0xea7;
        watchers.spawn_on(
            readers::watch(Arc::clone(stage), number, prefix, list.watch_from, seed),
            runtime.handle(),
        );
    }
    watchers
}

/// Lets all clients come to an end; who does not is stuck, which is a fault of its own.
async fn disperse(mut crowd: JoinSet<()>, stage: &Stage) {
    let ended = timeout(Duration::from_secs(40), async {
        while let Some(ended) = crowd.join_next().await {
            ended.unwrap();
        }
    });
    if ended.await.is_err() {
        let what = format!("{} clients are still waiting for an answer when all is quiet", crowd.len());
        stage.history().found.push((now(), Violation { invariant: "liveness", what }));
        crowd.abort_all();
    }
}

/// Waits until nothing is left of those who are gone, then makes the last event.
async fn come_to_rest(stage: &Stage, cluster: &Cluster) {
    let mut links = stage.links(0);
    let deadline = now() + 25 * SECOND;
    loop {
        let request = ListLocksRequest { page_size: 1_000, ..ListLocksRequest::default() };
        let told = links
            .insist(Duration::from_secs(20), Duration::from_secs(2), |mut client| {
                let request = request.clone();
                async move { client.list_locks(request).await }
            })
            .await;
        let left = match &told {
            Told::Yes(list) => list.locks.iter().filter(|lock| !lock.lock_name.starts_with("kept/")).count(),
            _ => usize::MAX,
        };
        if left == 0 {
            break;
        }
        if now() > deadline {
            let what = format!("{left} locks of clients that are long gone are held or waited for");
            stage.history().found.push((now(), Violation { invariant: "liveness", what }));
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let request = AcquireLockRequest {
        lock_name: LAST.to_owned(),
        owner_id: LAST.to_owned(),
        ttl_seconds: 600,
        value: LAST.to_owned(),
        request_id: LAST.to_owned(),
        ..AcquireLockRequest::default()
    };
    let invoked = now();
    let told = links
        .insist(Duration::from_secs(20), Duration::from_secs(2), |mut client| {
            let request = request.clone();
            async move { client.acquire_lock(request).await }
        })
        .await;
    if let Told::Nothing(why) = &told {
        panic!("{} nodes, all sound, and no answer: {why}", cluster.size());
    }
    let outcome = told.outcome(|grant| granted(&grant));
    let claim = PlainClaim { lock: lock_name(LAST), lease: None, mode: Mode::Exclusive, scope: Scope::Name };
    stage.record(Call::ended_now(LAST, LAST, Asked::Acquire { claim }, invoked, outcome));
}

async fn collect(mut watchers: JoinSet<history::Watched>, stage: &Stage) {
    let all = timeout(Duration::from_secs(30), async {
        while let Some(watched) = watchers.join_next().await {
            stage.history().watched.push(watched.unwrap());
        }
    });
    if all.await.is_err() {
        let what = format!("{} watchers never saw the last event", watchers.len());
        stage.history().found.push((now(), Violation { invariant: "watches", what }));
    }
}

/// What every node has when all have applied the same.
async fn final_states(cluster: &Cluster) -> Vec<Final> {
    let deadline = now() + 20 * SECOND;
    loop {
        let mut finals = Vec::new();
        for node in &cluster.nodes {
            finals.push(final_state(node).await);
        }
        let is_same = finals.windows(2).all(|pair| pair[0].revision == pair[1].revision);
        if is_same || now() > deadline {
            return finals;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn final_state(node: &harness::Node) -> Final {
    let mut client = lowkey_api::v1::lock_service_client::LockServiceClient::new(channel(node.ports.grpc));
    let mut locks: Vec<LockView> = Vec::new();
    let mut page_token = String::new();
    let revision = loop {
        let request =
            ListLocksRequest { page_size: 1_000, stale: true, page_token, ..ListLocksRequest::default() };
        let page = client.list_locks(request).await.unwrap().into_inner();
        locks.extend(page.locks.iter().map(view));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break page.revision;
        }
    };
    let status = client.get_status(GetStatusRequest {}).await.unwrap().into_inner();
    let stats = status.stats.unwrap_or_default();
    let counts = (stats.leases, stats.locks, stats.waiters, stats.fencing_counter);
    Final { node: node.name.clone(), revision, locks, counts }
}
