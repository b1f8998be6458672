//! Runs the golden scripts in `testscripts`: behaviour as text, one property a file.
//!
//! A script is commands, `---`, and what came of them. The output is written by the tests themselves
//! with `UPDATE_GOLDENFILES=1 cargo test -p lowkey-replica --test golden`, and then reviewed. Every
//! script runs twice more, to show that the same inputs give the same outputs.
//!
//! Nodes:
//! - `found`: founds a cluster with n1; `start N2`: a node with an empty disk, or what a crash left;
//!   with `[step]` it takes no turn yet
//! - `cluster SIZE`: the same, until all of them vote
//! - `begin_anew N [at_once=true]`: a new cluster with what the disk of a node holds that is down; its only node has
//!   the next number
//! - `crash N…`, `restart N…`
//!
//! Requests: `N1 REQUEST`, answered when the answer comes; with `[step]` no turn is taken yet, with
//! `times=N` it is asked so many times:
//! - `create_lease OWNER ttl=SECONDS`, `revoke LEASE OWNER`, `renew LEASE`, `renew_many LEASE LEASE …`
//! - `add_member NODE [identity=0..255|none]`, `remove_member NODE`, `transfer NODE`
//! - `acquire LOCK OWNER lease=LEASE|ttl=SECONDS [wait=MS] [mode=shared] [scope=subtree] [value=TEXT]
//!   [max_hold=SECONDS]`
//! - `release LOCK [token=TOKEN]` with `lease=LEASE`, or `acquire=ID` and `lease=LEASE|owner=OWNER`
//! - `set_value LOCK OWNER lease=LEASE [token=TOKEN] value=TEXT`
//! - `renew LEASE [holds=TOKEN,TOKEN]`, `lease LEASE [after=LOCK] [max=COUNT]`, `leases [owner=OWNER] [after=LEASE] [max=COUNT]`
//! - `get LOCK`, `list [PREFIX] [after=LOCK] [max=COUNT]`, `check LOCK token=TOKEN`, `revision`; with
//!   `stale=true` from what the node itself knows
//! - `request=ID` where a request id matters; `call=NAME` for a caller that leaves with `gone NAME`
//!
//! Time and turns:
//! - `advance 50ms [N…]`: ticks, and messages arrive; `tick 50ms N…`: ticks, and none does;
//!   `[step] tick N…`: one tick, and no turn
//! - `pause 300ms N…`: time without ticks
//! - `stabilize`: turns and messages until nothing moves; `run N…`: turns only
//! - `turn N [crash=before_persist|after_snapshot|after_persist]`
//!
//! Network: `queue`, `deliver [FROM TO] [kind=KIND]` (with `[step]` no turn is taken yet), `drop FROM TO [kind=KIND]`, `cut A B`,
//! `isolate N`, `heal`, `corrupt FROM TO`: flips a bit in a snapshot under way, `misdeliver FROM TO N`,
//! `boast FROM TO`: an acknowledgement under way is for far more than it was
//!
//! Disk: `room N ample|reserve|exhausted`, `save N [fail|file_only]` with `hold_snapshots=true`, `dump N…`
//!
//! `tamper N TEXT OTHER`: changes the state in a snapshot as no checksum notices
//!
//! And `hand_over N`, `status`, `hash`, `waiting`, `set KEY=VALUE…`; `show_changes` tells what watchers are told.

mod cluster;

use std::error::Error;
use std::path::Path;

use cluster::{Cluster, Crash, Done, Words, message_words, node_info};
use goldenscript::{ArgumentConsumer, Context};
use lowkey_core::{Command, RequestId};
use lowkey_replica::{DiskRoom, Input, Request};
use test_each_file::test_each_path;

test_each_path! { in "./crates/lowkey-replica/tests/testscripts" as testscripts => run_script }

fn run_script(path: &Path) {
    let script = std::fs::read_to_string(path).expect("the script is there");
    let generate =
        || goldenscript::generate(&mut Runner { cluster: Cluster::new(), last_request: 0 }, &script);
    let (first, second) = (generate().expect("the script can be run"), generate().expect("and again"));
    assert_eq!(first, second, "the same script gave another output the second time");
    let mut runner = Runner { cluster: Cluster::new(), last_request: 0 };
    goldenscript::run(&mut runner, path).expect("the script can be read");
}

struct Runner {
    cluster: Cluster,
    last_request: u64,
}

impl goldenscript::Runner for Runner {
    type Command = goldenscript::Command;

    fn run(&mut self, command: &goldenscript::Command, context: &Context) -> Result<String, Box<dyn Error>> {
        let mut args = command.consume_args();
        match node_id(&command.name) {
            Ok(node) => self.request(node, &mut args, context.tags.contains("step"))?,
            Err(_) => self.command(&command.name, &mut args, context.tags.contains("step"))?,
        }
        args.reject_next()?;
        Ok(std::mem::take(&mut self.cluster.log))
    }
}

impl Runner {
    fn command(&mut self, name: &str, args: &mut ArgumentConsumer<'_>, step_only: bool) -> Done {
        match name {
            "found" => {
                self.cluster.found()?;
                self.cluster.run(1)
            }
            "begin_anew" => {
                let node = node_id(next(args)?)?;
                let quarantine = args.take_key("at_once").is_none();
                self.cluster.begin_anew(node, quarantine)?;
                let newest = self.cluster.live();
                newest.into_iter().try_for_each(|node| self.cluster.run(node))
            }
            "start" | "restart" => {
                for node in nodes(args)? {
                    self.cluster.start(node)?;
                    if !step_only {
                        self.cluster.run(node)?;
                    }
                }
                Ok(())
            }
            "cluster" => self.make_cluster(next(args)?.parse()?),
            "crash" => nodes(args)?.into_iter().try_for_each(|node| self.cluster.crash(node)),
            "advance" => {
                let millis = millis(args)?;
                let named = nodes(args)?;
                let nodes = if named.is_empty() { self.cluster.known() } else { named };
                self.cluster.advance(&nodes, millis, true)
            }
            "tick" if step_only => nodes(args)?.into_iter().try_for_each(|node| self.cluster.tick(node)),
            "tick" => {
                let millis = millis(args)?;
                self.cluster.advance(&nodes(args)?, millis, false)
            }
            "pause" => {
                let millis = millis(args)?;
                self.cluster.pause(&nodes(args)?, millis)
            }
            "stabilize" => self.cluster.stabilize(),
            "run" => nodes(args)?.into_iter().try_for_each(|node| self.cluster.run(node)),
            "gone" => {
                let node = self.cluster.gone(next(args)?)?;
                if step_only { Ok(()) } else { self.cluster.run(node) }
            }
            "hand_over" => {
                let node = node_id(next(args)?)?;
                self.cluster.step(node, Input::HandOver)?;
                self.cluster.run(node)
            }
            "status" => {
                self.cluster.status();
                Ok(())
            }
            "hash" => {
                self.cluster.hash();
                Ok(())
            }
            "waiting" => {
                self.cluster.waiting();
                Ok(())
            }
            "set" => self.set(args),
            _ => self.disk(name, args, step_only),
        }
    }

    fn disk(&mut self, name: &str, args: &mut ArgumentConsumer<'_>, step_only: bool) -> Done {
        match name {
            "turn" => {
                let node = node_id(next(args)?)?;
                let crash = match args.take_key("crash") {
                    None => None,
                    Some("before_persist") => Some(Crash::BeforePersist),
                    Some("after_snapshot") => Some(Crash::AfterSnapshot),
                    Some("after_persist") => Some(Crash::AfterPersist),
                    Some(other) => return Err(format!("no such moment: {other}").into()),
                };
                self.cluster.turn(node, crash)
            }
            "room" => {
                let node = node_id(next(args)?)?;
                let room = match next(args)? {
                    "ample" => DiskRoom::Ample,
                    "reserve" => DiskRoom::Reserve,
                    "exhausted" => DiskRoom::Exhausted,
                    other => return Err(format!("no such room: {other}").into()),
                };
                self.cluster.step(node, Input::Disk(room))?;
                self.cluster.run(node)
            }
            "save" => {
                let node = node_id(next(args)?)?;
                match args.next_pos() {
                    None => {
                        self.cluster.save_snapshot(node)?;
                        self.cluster.snapshot_saved(node)?;
                    }
                    Some("fail") => self.cluster.snapshot_failed(node)?,
                    Some("file_only") => self.cluster.save_snapshot(node)?,
                    Some(other) => return Err(format!("no such outcome: {other}").into()),
                }
                self.cluster.run(node)
            }
            "dump" => nodes(args)?.into_iter().try_for_each(|node| self.cluster.dump(node)),
            "tamper" => {
                let (node, from, to) = (node_id(next(args)?)?, next(args)?, next(args)?);
                self.cluster.tamper(node, from, to)
            }
            _ => self.network(name, args, step_only),
        }
    }

    fn network(&mut self, name: &str, args: &mut ArgumentConsumer<'_>, step_only: bool) -> Done {
        match name {
            "queue" => {
                let queued = self.cluster.queued();
                queued.iter().for_each(|message| self.cluster.log += &(message_words(message) + "\n"));
                Ok(())
            }
            "deliver" => {
                let kind = args.take_key("kind");
                let ways = match args.next_pos() {
                    Some(from) => vec![(node_id(from)?, node_id(next(args)?)?)],
                    None => {
                        let all = self.cluster.known();
                        let pairs = all.iter().flat_map(|from| all.iter().map(|to| (*from, *to)));
                        pairs.collect()
                    }
                };
                self.deliver(&ways, kind)?;
                let turns = if step_only { Vec::new() } else { self.cluster.live() };
                turns.into_iter().try_for_each(|node| self.cluster.run(node))
            }
            "drop" => {
                let kind = args.take_key("kind");
                let (from, to) = (node_id(next(args)?)?, node_id(next(args)?)?);
                while let Some(letter) = self.cluster.take(from, to, kind) {
                    self.cluster.lose(&letter.message)?;
                }
                Ok(())
            }
            "misdeliver" => {
                let (from, to) = (node_id(next(args)?)?, node_id(next(args)?)?);
                let instead = node_id(next(args)?)?;
                let message = self.cluster.take(from, to, None).ok_or("nothing is under way")?;
                self.cluster.hand(instead, message, true)?;
                self.cluster.run(instead)
            }
            "corrupt" => {
                let (from, to) = (node_id(next(args)?)?, node_id(next(args)?)?);
                let mut letter =
                    self.cluster.take(from, to, Some("Snapshot")).ok_or("no snapshot is under way")?;
                let payload = letter.snapshot.as_mut().ok_or("it has no snapshot with it")?;
                *payload.last_mut().ok_or("an empty snapshot")? ^= 1;
                self.cluster.resend(letter);
                Ok(())
            }
            "boast" => {
                let (from, to) = (node_id(next(args)?)?, node_id(next(args)?)?);
                let mut letter = self
                    .cluster
                    .take(from, to, Some("AppendResponse"))
                    .ok_or("no acknowledgement is under way")?;
                letter.message.index += 1_000;
                self.cluster.resend(letter);
                Ok(())
            }
            _ => self.partition(name, args),
        }
    }

    fn partition(&mut self, name: &str, args: &mut ArgumentConsumer<'_>) -> Done {
        match name {
            "cut" => {
                let (one, other) = (node_id(next(args)?)?, node_id(next(args)?)?);
                self.cluster.cut(one, other);
                self.cluster.cut(other, one);
                Ok(())
            }
            "isolate" => {
                let node = node_id(next(args)?)?;
                for other in self.cluster.known().into_iter().filter(|other| *other != node) {
                    self.cluster.cut(node, other);
                    self.cluster.cut(other, node);
                }
                Ok(())
            }
            "heal" => {
                self.cluster.heal();
                Ok(())
            }
            other => Err(format!("no such command: {other}").into()),
        }
    }

    /// Delivers what is under way now; no turn is taken yet.
    fn deliver(&mut self, ways: &[(u64, u64)], kind: Option<&str>) -> Done {
        let mut messages = Vec::new();
        for (from, to) in ways {
            while let Some(message) = self.cluster.take(*from, *to, kind) {
                messages.push((*to, message));
            }
        }
        messages.into_iter().try_for_each(|(to, message)| self.cluster.hand(to, message, true))
    }

    fn make_cluster(&mut self, size: u64) -> Done {
        self.cluster.found()?;
        self.cluster.stabilize()?;
        for id in 2..=size {
            let words = format!("add_member n{id}");
            let request =
                Request::Command(Command::AddMember { node: Box::new(node_info(id)), invitation: None });
            self.cluster.call(1, words, None, request)?;
            self.cluster.stabilize()?;
            self.cluster.start(id)?;
            let all = self.cluster.known();
            self.cluster.advance(&all, 200, true)?;
        }
        Ok(())
    }

    fn set(&mut self, args: &mut ArgumentConsumer<'_>) -> Done {
        let settings = &mut self.cluster.settings;
        while let Some((key, value)) = args.next_key() {
            match key {
                "snapshot_entries" => settings.snapshot_entries = value.parse()?,
                "snapshot_bytes" => settings.snapshot_bytes = value.parse()?,
                "snapshot_bytes_per_entry" => settings.snapshot_bytes_per_entry = value.parse()?,
                "tail_entries" => settings.tail_entries = value.parse()?,
                "slow_entries_max" => settings.slow_entries_max = value.parse()?,
                "slow_bytes_max" => settings.slow_bytes_max = value.parse()?,
                "leases_max" => settings.leases_max = value.parse()?,
                "command_version" => settings.command_version = value.parse()?,
                "seed" => settings.seed = value.parse()?,
                "hold_snapshots" => settings.hold_snapshots = value.parse()?,
                "show_messages" => settings.show_messages = value.parse()?,
                "checkpoints" => settings.checkpoints = value.parse()?,
                "show_changes" => settings.show_changes = value.parse()?,
                "show_disk" => settings.show_disk = value.parse()?,
                other => return Err(format!("no such setting: {other}").into()),
            }
        }
        Ok(())
    }

    fn request(&mut self, node: u64, args: &mut ArgumentConsumer<'_>, step_only: bool) -> Done {
        let times: u64 = args.take_key("times").map(str::parse).transpose()?.unwrap_or(1);
        let given = args.take_key("request").map(str::to_owned);
        let name = args.take_key("call").map(str::to_owned);
        let words = Words {
            kind: next(args)?,
            pos: std::iter::from_fn(|| args.next_pos()).collect(),
            keys: std::iter::from_fn(|| args.next_key()).collect(),
        };
        for _ in 0..times {
            self.last_request += 1;
            let id = given.clone().unwrap_or_else(|| format!("request-{}", self.last_request));
            let request = words.request(RequestId::parse(&id)?)?;
            self.cluster.call(node, words.told(), name.clone(), request)?;
        }
        if step_only { Ok(()) } else { self.cluster.run(node) }
    }
}

fn node_id(name: &str) -> Result<u64, Box<dyn Error>> {
    let id = name.strip_prefix('n').and_then(|digits| digits.parse().ok());
    id.ok_or_else(|| format!("{name} is no node").into())
}

fn nodes(args: &mut ArgumentConsumer<'_>) -> Result<Vec<u64>, Box<dyn Error>> {
    std::iter::from_fn(|| args.next_pos()).map(node_id).collect()
}

fn next<'a>(args: &mut ArgumentConsumer<'a>) -> Result<&'a str, Box<dyn Error>> {
    args.next_pos().ok_or_else(|| "an argument is missing".into())
}

fn millis(args: &mut ArgumentConsumer<'_>) -> Result<u64, Box<dyn Error>> {
    let text = next(args)?;
    let digits = text.strip_suffix("ms").ok_or_else(|| format!("{text} is no time in ms"))?;
    Ok(digits.parse()?)
}
