//! The same many times over: losses after a stop, acquires that are cancelled while leaders die, and many sessions in
//! one process. What must never be is asserted. How long something took is printed, and asserted only where the
//! environment names a limit: the machine may be busy with other things.
//!
//! | variable | what it raises | in the gate |
//! |---|---|---:|
//! | `LOWKEY_CONFORMANCE_STOPS` | processes stopped past their TTL, a language, 20 at a time | 4 |
//! | `LOWKEY_CONFORMANCE_LOSS_MS` | the limit for 99 % of losses, from waking to the signal | none |
//! | `LOWKEY_CONFORMANCE_CANCELS` | acquires cancelled half-way, a language | 300 |
//! | `LOWKEY_CONFORMANCE_SESSIONS` | sessions in one process | 50 |
//! | `LOWKEY_CONFORMANCE_SECONDS` | for how long they are kept | 5 |

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::driver::{Driver, number};
use crate::harness::{eventually, rounds};
use crate::stories::{Stage, boot_ns};

/// So many processes stand still at once.
const STOPPED_AT_ONCE: usize = 20;
const STOP_TTL_SECONDS: u64 = 4;
/// Longer than a lease lives from its last renewal on.
const STOP: Duration = Duration::from_millis(4_500);
/// Fewer than one lease may have under way.
const CANCELS_AT_ONCE: usize = 60;
/// A leader is killed after so many.
const CANCELS_A_KILL: usize = 1_000;
const SESSION_TTL_SECONDS: u64 = 15;

/// R6: whoever was stopped for longer than its lease lives believes nothing when it wakes, and is soon told so.
#[test]
fn a_process_that_was_stopped_believes_nothing_when_it_wakes() {
    let count = rounds("LOWKEY_CONFORMANCE_STOPS", 4);
    let limit_ms = rounds("LOWKEY_CONFORMANCE_LOSS_MS", usize::MAX);
    for (language, start) in crate::languages().iter() {
        let stage = Stage { language, start, papers: None, pass: None };
        let cluster = stage.cluster(1);
        let endpoints = stage.endpoints(&cluster);
        let mut drivers: Vec<Driver> = (0..count.min(STOPPED_AT_ONCE)).map(|_| stage.driver()).collect();
        for (place, driver) in drivers.iter_mut().enumerate() {
            driver.client(&endpoints, &format!("stopped-{place}"));
        }
        let mut delays_ms = Vec::new();
        let mut batch = 0;
        while delays_ms.len() < count {
            batch += 1;
            let size = drivers.len().min(count - delays_ms.len());
            delays_ms.extend(stop_and_wake(&mut drivers[..size], batch));
        }
        delays_ms.sort_unstable();
        let (median, last) = (delays_ms[count / 2], delays_ms[count - 1]);
        let p99 = delays_ms[(count * 99).div_ceil(100) - 1];
        println!(
            "{}: {count} stops, no belief after waking; told {median} ms after it (p50), {p99} ms (p99), {last} ms (max)",
            language.name
        );
        assert!(p99 <= limit_ms as u64, "{}: {p99} ms", language.name);
    }
}

/// Gives the milliseconds from waking to the signal, of each.
fn stop_and_wake(drivers: &mut [Driver], batch: usize) -> Vec<u64> {
    let (session, lock) = (format!("s{batch}"), format!("l{batch}"));
    for (place, driver) in drivers.iter_mut().enumerate() {
        driver.does(json!({
            "op": "session.new", "client": "c", "session": session, "ttl_seconds": STOP_TTL_SECONDS
        }));
        driver.does(json!({
            "op": "lock.acquire", "session": session, "lock": lock, "name": format!("stopped/{batch}/{place}"),
            "wait_ms": 0
        }));
        driver.does(json!({"op": "lock.probe", "lock": lock}));
    }
    drivers.iter().for_each(|driver| driver.signal(Signal::STOP));
    std::thread::sleep(STOP);
    // One after the other: each is measured from its own waking.
    let mut delays_ms = Vec::new();
    for driver in drivers.iter_mut() {
        let woken_ns = boot_ns();
        driver.signal(Signal::CONT);
        let probe = driver.event("the probe has ended", |event| event["event"] == "probe");
        let lost =
            driver.event("the loss is told", |event| event["event"] == "lost" && event["lock"] == lock);
        let last_true_ns = probe["last_true_ns"].as_str().map_or(0, |text| text.parse().unwrap());
        assert!(last_true_ns < woken_ns, "it believed after it woke: {probe}, woken at {woken_ns}");
        delays_ms.push(number(&lost["at_ns"]).saturating_sub(woken_ns) / 1_000_000);
    }
    delays_ms
}

/// No lock is left on a session that lives on, whatever becomes of the leader meanwhile.
#[test]
fn cancelled_acquires_leave_nothing_behind() {
    let count = rounds("LOWKEY_CONFORMANCE_CANCELS", 300);
    for (language, start) in crate::languages().iter() {
        let stage = Stage { language, start, papers: None, pass: None };
        let mut cluster = stage.cluster(3);
        let endpoints = stage.endpoints(&cluster);
        let mut driver = stage.at_work(&endpoints, "canceller", 30);
        // Every other name is taken, so that some wait.
        let mut other = stage.at_work(&endpoints, "other", 30);
        for taken in 0..CANCELS_AT_ONCE / 2 {
            other.does(Driver::acquire(&format!("cancel/{}", 2 * taken), Some(0)));
        }
        let (mut cancelled, mut granted, mut kills) = (0, 0, 0);
        let mut killed = None;
        let mut first = 0;
        while first < count {
            let size = CANCELS_AT_ONCE.min(count - first);
            if first / CANCELS_A_KILL >= kills && killed.is_none() {
                let leader = cluster.wait_whole();
                cluster.nodes[leader].kill();
                (killed, kills) = (Some(leader), kills + 1);
            }
            let (given_up, held) = cancel(&mut driver, first, size);
            (cancelled, granted, first) = (cancelled + given_up, granted + held, first + size);
            if let Some(dead) = killed.take() {
                cluster.nodes[dead].start();
            }
        }
        cluster.wait_whole();
        let (node, prefix) = (&cluster.nodes[0], "/v1/locks?prefix=cancel/&page_size=1000");
        eventually("only what the other has is held", || {
            let (status, text) = node.http("GET", prefix, "")?;
            let listed: Value = serde_json::from_str(&text).ok().filter(|_| status == 200)?;
            let owners = listed["locks"].as_array()?.iter().flat_map(|lock| lock["holders"].as_array());
            owners.flatten().all(|holder| holder["ownerId"] == "other").then_some(())
        });
        let status = driver.does(json!({"op": "session.status", "session": "s"}));
        assert_eq!(status["held"], true, "the session lives on: {status}");
        assert!(!driver.has_event(|event| event["event"] == "lost"), "and so does all that it had");
        println!(
            "{}: {count} acquires, {cancelled} cancelled half-way, {granted} granted before; {kills} leaders killed; \
             nothing is left",
            language.name
        );
        assert!(cancelled > 0, "some were under way");
    }
}

/// Asks for so many locks and cancels them a moment later. Gives how many were cancelled, and how many granted.
fn cancel(driver: &mut Driver, first: usize, size: usize) -> (usize, usize) {
    let mut asked = Vec::new();
    for place in 0..size {
        // A handle is used once, a name again and again.
        let handle = format!("h{}", first + place);
        let id = driver.send(json!({
            "op": "lock.acquire", "session": "s", "lock": handle, "name": format!("cancel/{place}"), "wait_ms": 20_000
        }));
        asked.push((id, handle));
    }
    // From none at all to more than the time that an acquire takes.
    let batch = (first / CANCELS_AT_ONCE) as u64;
    std::thread::sleep(Duration::from_millis(batch * 7 % 24));
    for (id, _) in &asked {
        driver.send(json!({"op": "cancel", "target": id}));
    }
    let (mut cancelled, mut granted) = (0, 0);
    for (id, handle) in asked {
        match driver.answer(id) {
            Ok(_) => {
                granted += 1;
                driver.does(json!({"op": "lock.release", "lock": handle}));
            }
            Err(error) => {
                assert_eq!(error["kind"], "cancelled", "{error}");
                cancelled += 1;
            }
        }
    }
    (cancelled, granted)
}

/// Sessions of one process are all kept in time.
#[test]
fn many_sessions_of_one_process_are_kept() {
    let count = rounds("LOWKEY_CONFORMANCE_SESSIONS", 50);
    let time = Duration::from_secs(rounds("LOWKEY_CONFORMANCE_SECONDS", 5) as u64);
    for (language, start) in crate::languages().iter() {
        let stage = Stage { language, start, papers: None, pass: None };
        let cluster = stage.cluster(1);
        let mut driver = stage.driver();
        driver.client(&stage.endpoints(&cluster), "crowd");
        let empty_kb = resident_kb(driver.pid());
        for number in 0..count {
            let session = format!("s{number}");
            driver.does(json!({
                "op": "session.new", "client": "c", "session": session, "ttl_seconds": SESSION_TTL_SECONDS
            }));
            driver.does(json!({
                "op": "lock.acquire", "session": session, "lock": format!("l{number}"),
                "name": format!("crowd/{number}"), "wait_ms": 0
            }));
        }
        let (used_ms, began) = (processor_ms(driver.pid()), Instant::now());
        std::thread::sleep(time);
        let (used_ms, took) = (processor_ms(driver.pid()) - used_ms, began.elapsed());
        let kb = resident_kb(driver.pid());
        let mut least_ms = f64::MAX;
        for number in 0..count {
            let status = driver.does(json!({"op": "session.status", "session": format!("s{number}")}));
            assert_eq!(status["held"], true, "{status}");
            least_ms = least_ms.min(status["remaining_ms"].as_f64().unwrap());
            assert!(driver.is_held(&format!("l{number}")));
        }
        assert!(!driver.has_event(|event| event["event"] == "lost"), "none was lost in between");
        println!(
            "{}: {count} sessions with a lock each, renewed every {:.1} s: {:.2} % of a processor, {} MB more than \
             without ({} MB in all); none had less than {least_ms:.0} ms left",
            language.name,
            SESSION_TTL_SECONDS as f64 / 3.0,
            100.0 * used_ms as f64 / took.as_millis() as f64,
            kb.saturating_sub(empty_kb) / 1024,
            kb / 1024,
        );
    }
}

/// The memory of a process that is there, in KiB.
fn resident_kb(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The processor time of a process, in milliseconds. The system counts it in hundredths of a second.
fn processor_ms(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    let ticks = |field: &str| field.parse::<u64>().unwrap();
    (ticks(fields[11]) + ticks(fields[12])) * 10
}
