//! How long questions take over a million rows, and how fast rows are written.
//!
//! `cargo bench -p lowkey-audit --bench a_million_rows`

use std::time::{Duration, Instant};

use lowkey_audit::{Options, Position, Query, Reader, Recorder};
use lowkey_core::{Cause, EndedGrant, LeaseId, LockName, Mode, OwnerId, Scope, Token, Ttl};

const ROWS: u64 = 1_000_000;
const LOCKS: u64 = 10_000;

/// One of many locks, or always the same one.
fn ended(number: u64, locks: u64) -> Box<EndedGrant> {
    Box::new(EndedGrant {
        lock: LockName::parse(&format!("jobs/team-{}/nightly", number * 7919 % locks)).expect("a name"),
        token: Token(number),
        owner: OwnerId::parse(&format!("worker-{}", number % 100)).expect("an owner"),
        lease: LeaseId(number),
        mode: Mode::Exclusive,
        scope: Scope::Name,
        ttl: Ttl::parse(30).expect("a ttl"),
        asked_unix_ms: 1_700_000_000_000 + number,
        granted_unix_ms: 1_700_000_000_010 + number,
        granted_revision: 2 * number,
        ended_unix_ms: 1_700_000_001_000 + number,
        cause: if number.is_multiple_of(10) { Cause::Expired } else { Cause::Released },
        actor: None,
        silence: None,
    })
}

fn main() {
    println!("{LOCKS} locks");
    measure(LOCKS);
    println!("one hot lock");
    measure(1);
}

fn measure(locks: u64) {
    let folder = tempfile::tempdir().expect("a folder");
    let options = Options { queue_bytes: 1 << 30, ..Options::new(folder.path().into(), "c".into()) };
    let recorder =
        Recorder::start(options, 1, |outcome| outcome.expect("it can be written")).expect("a thread");
    let feed = recorder.feed();
    let began = Instant::now();
    for number in 1..=ROWS {
        feed.applied(2 * number - 1, 2 * number + 1, vec![(2 * number + 1, 1, ended(number, locks))]);
    }
    while feed.standing().recorded < 2 * ROWS + 1 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let took = began.elapsed();
    feed.sync();
    println!("{ROWS} rows written in {took:?}: {:.0} a second", ROWS as f64 / took.as_secs_f64());
    println!("{} MiB in files", feed.standing().bytes >> 20);

    let reader = Reader::new(folder.path());
    let lock = |number: u64| Some(format!("jobs/team-{}/nightly", number % locks));
    let time = |what: &str, ask: &dyn Fn(u64) -> Query| {
        let mut times: Vec<Duration> = (0..50)
            .map(|number| {
                let query = ask(number);
                let began = Instant::now();
                let page = reader.find(&query).expect("an answer");
                assert!(!page.rows.is_empty(), "{query:?}");
                began.elapsed()
            })
            .collect();
        times.sort_unstable();
        println!("{what}: median {:?}, longest {:?}", times[25], times[49]);
    };
    let newest = Query { count_max: 20, newest_first: true, ..Query::default() };
    time("the last 20 of a lock", &|number| Query { lock: lock(number * 37), ..newest.clone() });
    let first = Query { count_max: 20, ..Query::default() };
    time("by token", &|number| Query { token: Some(1 + number * 19_997), ..first.clone() });
    // As `explain --token` asks: what ended before the token was granted is not looked through.
    time("by lock and token, and the next", &|number| Query {
        lock: lock(0),
        token_above: Some(1 + number * 19_997 / locks),
        after: Position { revision: 2 * (1 + number * 19_997 / locks), ordinal: 0 },
        count_max: 1,
        ..Query::default()
    });
    time("by owner, the last 20", &|number| Query {
        owner: Some(format!("worker-{number}")),
        ..newest.clone()
    });
    time("a page of 1000", &|_| Query { count_max: 1000, ..Query::default() });
}
