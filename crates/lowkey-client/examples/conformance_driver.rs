//! The SDK's driver for the conformance tests: it does what it is told in JSON lines.
//!
//! `conformance/DRIVER.md` at the root of the repository has the protocol. A driver decides nothing, retries
//! nothing and waits for nothing on its own.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _};
use lowkey_client::{
    Client, Error, ErrorKind, Leadership, Lock, LockGuard, LossCause, Session, SessionStatus, Tls,
};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::task::JoinHandle;

/// An answer, or what went wrong as the protocol tells it.
type Outcome = Result<Value, Value>;

/// Everything that has a handle.
#[derive(Default)]
struct Things {
    clients: Mutex<HashMap<String, Client>>,
    sessions: Mutex<HashMap<String, Session>>,
    locks: Mutex<HashMap<String, Arc<LockGuard>>>,
    /// Watches, observations, elections, and acquires under way by their id.
    tasks: Mutex<HashMap<String, JoinHandle<()>>>,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn StdError>> {
    let things = Arc::new(Things::default());
    say(&json!({"event": "ready", "sdk": "rust", "version": env!("CARGO_PKG_VERSION"), "protocol": 1}));
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let command: Value = serde_json::from_str(&line)?;
        let id = command["id"].clone();
        if command["op"] == "exit" {
            say(&json!({"id": id, "ok": {}}));
            break;
        }
        let name = format!("call {id}");
        let task = tokio::spawn(answered(Arc::clone(&things), command));
        if let Ok(mut tasks) = things.tasks.lock() {
            tasks.retain(|_, task| !task.is_finished());
            tasks.insert(name, task);
        }
    }
    // As a program that simply stops.
    std::process::exit(0)
}

async fn answered(things: Arc<Things>, command: Value) {
    let id = command["id"].clone();
    match done(&things, &command).await {
        Ok(ok) => say(&json!({"id": id, "ok": ok})),
        Err(error) => say(&json!({"id": id, "error": error})),
    }
}

fn say(line: &Value) {
    let mut out = std::io::stdout().lock();
    // If nobody listens any more, the end of the input comes next.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn boot_ns() -> String {
    let time = clock_gettime(ClockId::Boottime);
    (i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)).to_string()
}

fn wrong(message: impl Into<String>) -> Value {
    json!({"kind": "driver", "message": message.into(), "outcome_unknown": false})
}

fn text<'a>(command: &'a Value, field: &str) -> Result<&'a str, Value> {
    command[field].as_str().ok_or_else(|| wrong(format!("{field} must be a text")))
}

fn get<T: Clone>(things: &Mutex<HashMap<String, T>>, handle: &str) -> Result<T, Value> {
    let things = things.lock().unwrap_or_else(PoisonError::into_inner);
    things.get(handle).cloned().ok_or_else(|| wrong(format!("{handle} is unknown")))
}

fn put<T>(things: &Mutex<HashMap<String, T>>, handle: &str, thing: T) {
    things.lock().unwrap_or_else(PoisonError::into_inner).insert(handle.to_owned(), thing);
}

fn take<T>(things: &Mutex<HashMap<String, T>>, handle: &str) -> Result<T, Value> {
    let mut things = things.lock().unwrap_or_else(PoisonError::into_inner);
    things.remove(handle).ok_or_else(|| wrong(format!("{handle} is unknown")))
}

fn cause(cause: LossCause) -> &'static str {
    match cause {
        LossCause::Expired => "expired",
        LossCause::Gone => "gone",
        LossCause::Closed => "closed",
        LossCause::ReleasedElsewhere => "released_elsewhere",
        LossCause::HeldTooLong => "held_too_long",
        _ => "unknown",
    }
}

fn told(error: &Error) -> Value {
    let kind = match error.kind() {
        ErrorKind::LockHeld(_) => "held",
        ErrorKind::WaitTimeout(_) => "wait_timeout",
        ErrorKind::SessionLost(_) => "session_lost",
        ErrorKind::Refused(_) => "refused",
        ErrorKind::Unavailable { .. } => "unavailable",
        ErrorKind::WrongCluster { .. } => "wrong_cluster",
        ErrorKind::Invalid(_) => "invalid",
        _ => "unknown",
    };
    let loss = match error.kind() {
        ErrorKind::SessionLost(loss) => Some(cause(*loss)),
        _ => None,
    };
    let reason = match error.kind() {
        ErrorKind::LockHeld(_) => Some("LOCK_HELD"),
        ErrorKind::WaitTimeout(_) => Some("WAIT_TIMEOUT"),
        _ => error.reason().map(|reason| reason.as_str()),
    };
    json!({
        "kind": kind, "reason": reason, "message": error.to_string(), "cause": loss,
        "outcome_unknown": error.outcome_unknown()
    })
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

async fn done(things: &Arc<Things>, command: &Value) -> Outcome {
    match text(command, "op")? {
        "client.new" => new_client(things, command).await,
        "client.close" => {
            let client = take(&things.clients, text(command, "client")?)?;
            client.close().await.map_err(|error| told(&error))?;
            Ok(json!({}))
        }
        "session.new" => new_session(things, command).await,
        "session.status" => {
            let session = get(&things.sessions, text(command, "session")?)?;
            let (at_ns, status) = (boot_ns(), session.status());
            let loss = match status {
                SessionStatus::Lost(loss) => Some(cause(loss)),
                SessionStatus::Held | SessionStatus::InJeopardy => None,
            };
            let remaining_ms = milliseconds(session.remaining());
            Ok(json!({"held": loss.is_none(), "cause": loss, "remaining_ms": remaining_ms, "at_ns": at_ns}))
        }
        "session.close" => {
            let session = take(&things.sessions, text(command, "session")?)?;
            session.close().await.map_err(|error| told(&error))?;
            Ok(json!({}))
        }
        "cancel" => {
            let call = take(&things.tasks, &format!("call {}", command["target"]));
            // A call that ends at this moment has answered by itself: only its end says which it was.
            let under_way = match call {
                Ok(call) => {
                    call.abort();
                    call.await.is_err_and(|ended| ended.is_cancelled())
                }
                Err(_) => false,
            };
            if under_way {
                let error = json!({"kind": "cancelled", "message": "cancelled", "outcome_unknown": false});
                say(&json!({"id": command["target"], "error": error}));
            }
            Ok(json!({"cancelled": under_way}))
        }
        op if op.starts_with("lock.") => lock_command(things, op, command).await,
        op if op.starts_with("elect.") => elect_command(things, op, command).await,
        op => watch_command(things, op, command).await,
    }
}

async fn new_client(things: &Things, command: &Value) -> Outcome {
    let endpoints = command["endpoints"].as_array().cloned().unwrap_or_default();
    let endpoints = endpoints.iter().filter_map(Value::as_str).map(str::to_owned);
    let mut builder = Client::builder(endpoints);
    if let Some(owner) = command["owner"].as_str() {
        builder = builder.owner(owner);
    }
    if let Some(ms) = command["call_timeout_ms"].as_u64() {
        builder = builder.call_timeout(Duration::from_millis(ms));
    }
    let mut tls = Tls::new();
    if let Some(ca) = command["ca"].as_str() {
        tls = tls.ca(ca);
    }
    if let (Some(certificate), Some(key)) = (command["cert"].as_str(), command["key"].as_str()) {
        tls = tls.identity(certificate, key);
    }
    builder = builder.tls(tls);
    if let Some(file) = command["token_file"].as_str() {
        builder = builder.token_file(file);
    }
    let client = builder.connect().await.map_err(|error| told(&error))?;
    put(&things.clients, text(command, "client")?, client);
    Ok(json!({}))
}

async fn new_session(things: &Things, command: &Value) -> Outcome {
    let client = get(&things.clients, text(command, "client")?)?;
    let ttl = Duration::from_secs(command["ttl_seconds"].as_u64().unwrap_or_default());
    let session = client.session(ttl).await.map_err(|error| told(&error))?;
    let handle = text(command, "session")?.to_owned();
    put(&things.sessions, &handle, session.clone());
    let lease_id = session.lease_id().to_string();
    // The watch does not keep the session alive.
    let mut status = session.watch_status();
    drop(session);
    tokio::spawn(async move {
        while status.changed().await.is_ok() {
            if let SessionStatus::Lost(loss) = *status.borrow() {
                if loss != LossCause::Closed {
                    say(
                        &json!({"event": "lost", "session": handle, "cause": cause(loss), "at_ns": boot_ns()}),
                    );
                }
                return;
            }
        }
    });
    Ok(json!({"lease_id": lease_id}))
}

fn wished(session: &Session, command: &Value) -> Result<Lock, Value> {
    let mut lock = session.lock(text(command, "name")?);
    if command["mode"] == "shared" {
        lock = lock.shared();
    }
    if command["scope"] == "subtree" {
        lock = lock.subtree();
    }
    if let Some(seconds) = command["at_most_seconds"].as_u64() {
        lock = lock.at_most(Duration::from_secs(seconds));
    }
    Ok(match command["value"].as_str() {
        Some(value) => lock.value(value),
        None => lock,
    })
}

async fn lock_command(things: &Arc<Things>, op: &str, command: &Value) -> Outcome {
    if op == "lock.acquire" {
        let session = get(&things.sessions, text(command, "session")?)?;
        let lock = wished(&session, command)?;
        drop(session);
        let outcome = match command["wait_ms"].as_u64() {
            None => lock.acquire().await,
            Some(0) => lock.try_acquire().await,
            Some(ms) => lock.wait(Duration::from_millis(ms)).await,
        };
        let guard = Arc::new(outcome.map_err(|error| told(&error))?);
        let at_ns = boot_ns();
        let handle = text(command, "lock")?.to_owned();
        put(&things.locks, &handle, Arc::clone(&guard));
        let answer = json!({"token": guard.token().to_string(), "lease_id": guard.lease_id().to_string(), "at_ns": at_ns});
        tell_the_loss(handle, &guard);
        return Ok(answer);
    }
    if op == "lock.get" {
        let client = get(&things.clients, text(command, "client")?)?;
        let lock = client.get(text(command, "name")?).await.map_err(|error| told(&error))?;
        let holders = lock.holders.iter().map(|holder| {
            let (lease_id, token) = (holder.lease_id.to_string(), holder.fencing_token.to_string());
            json!({"owner": holder.owner_id, "lease_id": lease_id, "token": token})
        });
        return Ok(json!({"holders": holders.collect::<Vec<_>>()}));
    }
    let handle = text(command, "lock")?;
    if op == "lock.release" {
        return release(things, handle).await;
    }
    let known = get(&things.locks, handle);
    match op {
        "lock.held" => {
            let at_ns = boot_ns();
            // What was released is not held.
            let held = known.as_ref().is_ok_and(|guard| guard.is_held());
            let remaining_ms = known.map_or(0, |guard| milliseconds(guard.remaining()));
            Ok(json!({"held": held, "remaining_ms": remaining_ms, "at_ns": at_ns}))
        }
        "lock.check" => match known?.is_held() {
            true => Ok(json!({})),
            false => Err(json!({"kind": "lost", "message": "the lock is lost", "outcome_unknown": false})),
        },
        "lock.probe" => {
            tokio::spawn(probe(handle.to_owned(), Arc::downgrade(&known?)));
            Ok(json!({}))
        }
        _ => Err(wrong(format!("{op} is unknown"))),
    }
}

async fn release(things: &Things, handle: &str) -> Outcome {
    let guard = take(&things.locks, handle)?;
    let at_ns = boot_ns();
    // A probe may have it for a moment.
    let mut shared = guard;
    let guard = loop {
        match Arc::try_unwrap(shared) {
            Ok(guard) => break guard,
            Err(still_shared) => shared = still_shared,
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    guard.release().await.map_err(|error| told(&error))?;
    Ok(json!({"at_ns": at_ns}))
}

/// Says when a lock is lost, unless it was released. Does not keep the guard.
fn tell_the_loss(handle: String, guard: &Arc<LockGuard>) {
    let (token, weak) = (guard.cancellation_token(), Arc::downgrade(guard));
    tokio::spawn(async move {
        token.cancelled().await;
        let at_ns = boot_ns();
        // Gone with its guard: released.
        let Some(guard) = weak.upgrade() else { return };
        if !guard.is_held() {
            let loss = guard.lost().await;
            if loss != LossCause::Closed {
                say(&json!({"event": "lost", "lock": handle, "cause": cause(loss), "at_ns": at_ns}));
            }
        }
    });
}

/// Does not keep the guard: it is released while this asks.
async fn probe(handle: String, guard: Weak<LockGuard>) {
    let (mut last_true_ns, mut trues) = (None, 0u64);
    let first_false_ns = loop {
        let at_ns = boot_ns();
        if !guard.upgrade().is_some_and(|guard| guard.is_held()) {
            break at_ns;
        }
        (last_true_ns, trues) = (Some(at_ns), trues + 1);
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    say(&json!({
        "event": "probe", "lock": handle, "last_true_ns": last_true_ns, "first_false_ns": first_false_ns,
        "trues": trues
    }));
}

async fn elect_command(things: &Arc<Things>, op: &str, command: &Value) -> Outcome {
    let handle = text(command, "elect")?.to_owned();
    match op {
        "elect.new" => {
            let client = get(&things.clients, text(command, "client")?)?;
            let ttl = Duration::from_secs(command["ttl_seconds"].as_u64().unwrap_or(10));
            let candidate = client.elect(text(command, "name")?).value(text(command, "value")?).ttl(ttl);
            drop(client);
            let name = format!("elect {handle}");
            let task = tokio::spawn(async move {
                let ended = candidate.run(|lead| {
                    let token = lead.token().to_string();
                    say(&json!({"event": "elected", "elect": handle, "token": token, "at_ns": boot_ns()}));
                    let office = Office { elect: handle.clone(), lead };
                    async move {
                        std::future::pending::<()>().await;
                        drop(office);
                    }
                });
                if let Err(error) = ended.await {
                    eprintln!("{error}");
                }
            });
            put(&things.tasks, &name, task);
            Ok(json!({}))
        }
        "elect.stop" => {
            let task = take(&things.tasks, &format!("elect {handle}"))?;
            task.abort();
            // Dropped: the resignation is told in the background.
            let _ = task.await;
            Ok(json!({}))
        }
        _ => Err(wrong(format!("{op} is unknown"))),
    }
}

/// Dropped when the work of a leader ends: says if that is because the lead was lost.
struct Office {
    elect: String,
    lead: Arc<Leadership>,
}

impl Drop for Office {
    fn drop(&mut self) {
        let at_ns = boot_ns();
        if let Some(loss) = self.lead.lost().now_or_never() {
            let (elect, token, cause) = (&self.elect, self.lead.token().to_string(), cause(loss));
            say(&json!({"event": "deposed", "elect": elect, "token": token, "cause": cause, "at_ns": at_ns}));
        }
    }
}

async fn watch_command(things: &Arc<Things>, op: &str, command: &Value) -> Outcome {
    let handle = text(command, "watch")?.to_owned();
    let name = format!("watch {handle}");
    let client = || get(&things.clients, text(command, "client")?);
    let task = match op {
        "watch.new" => {
            let client = client()?;
            let mut watch = match (command["name"].as_str(), command["prefix"].as_str()) {
                (Some(name), _) => client.watch(name),
                (None, prefix) => client.watch_prefix(prefix.unwrap_or_default()),
            };
            if let Some(position) = command["after"].as_str() {
                watch = watch.after(position.parse().map_err(|_| wrong("after is no position"))?);
            }
            tokio::spawn(async move {
                while let Some(event) = watch.next().await {
                    match event {
                        Ok(event) => say(&json!({
                            "event": "watch", "watch": handle, "type": event.r#type().as_str_name(),
                            "name": event.name, "owner": event.owner, "token": event.fencing_token.to_string(),
                            "position": format!("{}.{}", event.revision, event.ordinal)
                        })),
                        Err(error) => return watch_failed(&handle, &error),
                    }
                }
            })
        }
        "observe.new" => {
            let mut observations = client()?.observe(text(command, "name")?);
            tokio::spawn(async move {
                while let Some(observation) = observations.next().await {
                    match observation {
                        Ok(seen) => say(&json!({
                            "event": "watch", "watch": handle, "owner": seen.leader.as_ref().map(|leader| &leader.owner_id),
                            "value": seen.leader.as_ref().map(|leader| &leader.value)
                        })),
                        Err(error) => return watch_failed(&handle, &error),
                    }
                }
            })
        }
        "watch.close" => {
            take(&things.tasks, &name)?.abort();
            return Ok(json!({}));
        }
        _ => return Err(wrong(format!("{op} is unknown"))),
    };
    put(&things.tasks, &name, task);
    Ok(json!({}))
}

fn watch_failed(handle: &str, error: &Error) {
    let told = told(error);
    say(&json!({"event": "watch.error", "watch": handle, "kind": told["kind"], "reason": told["reason"]}));
}
