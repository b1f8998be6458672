//! Commands under `lowkey run`, whose children and grandchildren add a line with their token to a file, again
//! and again. `lowkey run` itself is killed or stopped meanwhile. A line of an earlier token behind one of a
//! later token was written by somebody who should have been dead.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use lowkey_core::Token;
use lowkey_sim::judge::Random;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::sleep;

use crate::equipment::leash;
use crate::history::{Answer, Asked, Call, Line, MILLISECOND, Outcome, SECOND, Written, lock_name, now};
use crate::stage::Stage;

/// The locks that commands run under.
const LOCKS: &[&str] = &["run/1", "run/2"];
const TTL_SECONDS: u64 = 3;
/// How many contend, over all locks.
pub(crate) const COMMANDS: usize = 4;

/// What is done to a `lowkey run`.
#[derive(Clone, Copy)]
enum Harm {
    Nothing,
    Kill,
    /// Stopped for so long; then it goes on.
    Stop {
        ms: u64,
    },
    /// Stopped for so long, then killed.
    StopAndKill {
        ms: u64,
    },
}

impl Harm {
    fn draw(random: &mut Random) -> Self {
        let ms = random.between(100, 6_000);
        match random.between(0, 6) {
            0 | 1 => Self::Nothing,
            2 | 3 => Self::Kill,
            4 => Self::Stop { ms },
            _ => Self::StopAndKill { ms },
        }
    }

    fn name(self) -> Option<&'static str> {
        match self {
            Self::Nothing => None,
            Self::Kill => Some("lowkey run: kill -9"),
            Self::Stop { .. } => Some("lowkey run: stopped, and continued"),
            Self::StopAndKill { .. } => Some("lowkey run: stopped, and kill -9"),
        }
    }
}

/// One command after another until the run is over.
pub(crate) async fn run(stage: Arc<Stage>, number: usize, folder: PathBuf, seed: u64) {
    let mut random = Random::new(seed);
    let leash = leash();
    while !stage.is_over() {
        let lock = LOCKS[number % LOCKS.len()];
        let mut command = command(&stage, &leash, lock, &script(&file(&folder, lock), &mut random));
        let invoked = now();
        let mut process = command.spawn().unwrap();
        let harm = Harm::draw(&mut random);
        let at = invoked + random.between(100, 5_000) * MILLISECOND;
        let status = live(&stage, &mut process, lock, harm, at).await;
        let outcome = match status.success() {
            true => Outcome::Yes(Answer::Done),
            false => Outcome::Unknown(status.to_string()),
        };
        let asked = Asked::Run { lock: lock_name(lock) };
        stage.record(Call::ended_now(format!("run-{number}"), "", asked, invoked, outcome));
        sleep(Duration::from_millis(random.between(1, 200))).await;
    }
}

fn file(folder: &Path, lock: &str) -> PathBuf {
    folder.join(lock.replace('/', "-"))
}

/// Writers at several depths below the command, one in a session of its own. The command ends after all.
fn script(file: &Path, random: &mut Random) -> String {
    let lines = random.between(5, 60);
    let writer = format!(
        "i=0; while [ $i -lt {lines} ]; do i=$((i+1)); read -r up rest < /proc/uptime; \
         echo \"$LOWKEY_TOKEN $up\" >> {}; sleep 0.1; done",
        file.display()
    );
    let apart = if random.one_in(2) { format!("setsid -w sh -c '{writer}' &") } else { String::new() };
    format!("({writer}) & ( ({writer}) & wait ) & {apart} wait")
}

fn command(stage: &Stage, leash: &[String], lock: &str, script: &str) -> Command {
    let binary = env!("CARGO_BIN_EXE_lowkey").to_owned();
    let mut words = leash.iter().chain([&binary]);
    let mut command = Command::new(words.next().expect("there is the binary at least"));
    let endpoints: Vec<String> =
        stage.proxied.iter().map(|port| format!("http://127.0.0.1:{port}")).collect();
    command
        .args(words)
        .args(["run", lock, "--ttl", &format!("{TTL_SECONDS}s"), "--kill-grace", "200ms", "--wait", "10s"])
        .args(["--endpoints", &endpoints.join(","), "--", "sh", "-c", script])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Waits for its end, and harms it when the time has come. When the run is over it is killed.
async fn live(stage: &Stage, process: &mut Child, lock: &str, harm: Harm, at: u64) -> ExitStatus {
    let pid = Pid::from_child(process);
    let mut harm = Some(harm);
    loop {
        if let Some(status) = process.try_wait().unwrap() {
            return status;
        }
        if stage.is_over() {
            kill_process(pid, Signal::KILL).unwrap();
        } else if now() >= at
            && let Some(harm) = harm.take()
        {
            if let Some(name) = harm.name() {
                *stage.history().harmed.entry(name).or_default() += 1;
            }
            match harm {
                Harm::Nothing => {}
                Harm::Kill => kill_process(pid, Signal::KILL).unwrap(),
                Harm::Stop { ms } => stop(stage, pid, lock, ms, Signal::CONT).await,
                Harm::StopAndKill { ms } => stop(stage, pid, lock, ms, Signal::KILL).await,
            }
        }
        sleep(Duration::from_millis(10)).await;
    }
}

async fn stop(stage: &Stage, pid: Pid, lock: &str, ms: u64, then: Signal) {
    let from = now();
    kill_process(pid, Signal::STOP).unwrap();
    while now() < from + ms * MILLISECOND && !stage.is_over() {
        sleep(Duration::from_millis(10)).await;
    }
    kill_process(pid, then).unwrap();
    stage.history().stopped.push((lock_name(lock), from, now()));
}

/// All that was written.
pub(crate) fn written(folder: &Path) -> Vec<Written> {
    let of = |lock: &&str| {
        let text = fs::read_to_string(file(folder, lock)).unwrap_or_default();
        let lines = text.lines().filter_map(line).collect();
        Written { lock: lock_name(lock), ttl_nanos: TTL_SECONDS * SECOND, lines }
    };
    LOCKS.iter().map(of).collect()
}

/// `TOKEN SECONDS.HUNDREDTHS`, since the machine was started.
fn line(text: &str) -> Option<Line> {
    let (token, up) = text.split_once(' ')?;
    let (seconds, hundredths) = up.split_once('.')?;
    let at = seconds.parse::<u64>().ok()? * SECOND + hundredths.parse::<u64>().ok()? * 10 * MILLISECOND;
    Some(Line { token: Token(token.parse().ok()?), at })
}
