//! What a recorder keeps, and that it says so where it keeps nothing.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use lowkey_audit::{
    Cause, Feed, Gap, GapCause, Happening, HappeningKind, Options, Page, Position, Query, Reader, Recorder,
    Row, append_recovered,
};
use lowkey_core::{EndedGrant, LeaseId, LockName, Mode, OwnerId, Scope, Silence, Token, Ttl};

fn ended(lock: &str, token: u64) -> Box<EndedGrant> {
    Box::new(EndedGrant {
        lock: LockName::parse(lock).unwrap(),
        token: Token(token),
        owner: OwnerId::parse(&format!("worker-{}", token % 3)).unwrap(),
        lease: LeaseId(token),
        mode: Mode::Exclusive,
        scope: Scope::Name,
        ttl: Ttl::parse(30).unwrap(),
        asked_unix_ms: 1_000 + token,
        granted_unix_ms: 2_000 + token,
        granted_revision: token,
        ended_unix_ms: unix_ms(),
        cause: lowkey_core::Cause::Expired,
        actor: None,
        silence: Some(Silence { silent_ms: 30_020, stalled_ms: 0, leader_changed: false }),
    })
}

fn unix_ms() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64
}

fn options(path: &Path) -> Options {
    Options::new(path.to_owned(), "c1".into())
}

fn start(options: Options, applied: u64) -> Recorder {
    Recorder::start(options, applied, |_| {}).unwrap()
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn recorded(feed: &Feed, revision: u64) {
    feed.hurry();
    until("recorded", || feed.standing().recorded >= revision);
}

fn all() -> Query {
    Query { count_max: 100, ..Query::default() }
}

fn find(path: &Path, query: &Query) -> Page {
    Reader::new(path).find(query).unwrap()
}

fn tokens(page: &Page) -> Vec<u64> {
    page.rows.iter().map(|row| row.token).collect()
}

fn gap(after: u64, through: u64, cause: GapCause) -> Gap {
    Gap { after, through, cause }
}

#[test]
fn a_row_is_read_back_as_it_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let recorder = start(options(folder.path()), 1);
    let feed = recorder.feed();
    feed.applied(1, 5, vec![(4, 2, ended("a", 1)), (4, 2, ended("b", 2)), (5, 2, ended("a", 3))]);
    recorded(&feed, 5);
    let page = find(folder.path(), &all());
    let place = |revision, ordinal| Position { revision, ordinal };
    let expected = [
        Row::new("c1", *ended("a", 1), place(4, 0), 2),
        Row::new("c1", *ended("b", 2), place(4, 1), 2),
        Row::new("c1", *ended("a", 3), place(5, 0), 2),
    ];
    for (row, expected) in page.rows.iter().zip(&expected) {
        assert_eq!(
            Row { ended_unix_ms: None, ..row.clone() },
            Row { ended_unix_ms: None, ..expected.clone() }
        );
    }
    assert_eq!((page.rows.len(), page.gaps.len(), page.through), (3, 0, Position::end_of(5)));
    assert_eq!(page.rows[0].detail(), "last renewal 30.02 s before, no leader change");
    assert_eq!(page.rows[0].waited_ms(), Some(1_000));
}

#[test]
fn rows_are_found_by_what_is_asked_for_and_page_by_page() {
    let folder = tempfile::tempdir().unwrap();
    let recorder = start(options(folder.path()), 1);
    let feed = recorder.feed();
    for token in 1..=50 {
        let lock = if token % 2 == 0 { "even" } else { "odd" };
        feed.applied(token, token + 1, vec![(token + 1, 1, ended(lock, token))]);
    }
    for (token, lock) in
        [(51, "billing"), (52, "billing/a"), (53, "billing/b/c"), (54, "billing2"), (55, "billing0")]
    {
        feed.applied(token, token + 1, vec![(token + 1, 1, ended(lock, token))]);
    }
    recorded(&feed, 56);
    let ask = |query: Query| tokens(&find(folder.path(), &query));
    assert_eq!(ask(Query { lock: Some("billing/".into()), ..all() }), [52, 53], "what is below it");
    assert_eq!(ask(Query { lock: Some("billing".into()), ..all() }), [51], "itself");
    assert_eq!(ask(Query { token: Some(7), ..all() }), [7]);
    assert_eq!(ask(Query { lock: Some("even".into()), ..all() }).len(), 25);
    assert_eq!(ask(Query { owner: Some("worker-1".into()), ..all() }).len(), 19);
    assert_eq!(ask(Query { cause: Some(Cause::Released), ..all() }), []);
    assert_eq!(ask(Query { since_unix_ms: Some(unix_ms() + 60_000), ..all() }), []);
    let newest = Query { lock: Some("odd".into()), newest_first: true, count_max: 2, ..all() };
    assert_eq!(ask(newest), [49, 47]);
    let (mut after, mut seen) = (Position::default(), Vec::new());
    loop {
        let page = find(folder.path(), &Query { after, count_max: 7, ..Query::default() });
        seen.extend(tokens(&page));
        after = page.through;
        if page.rows.len() < 7 {
            break;
        }
    }
    assert_eq!(seen, (1..=55).collect::<Vec<_>>());
    assert_eq!(after, Position::end_of(56));
}

#[test]
fn what_is_applied_again_after_a_start_is_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let feed_all = |feed: &Feed, through: u64| {
        for token in 1..through {
            feed.applied(token, token + 1, vec![(token + 1, 1, ended("a", token))]);
        }
        recorded(feed, through);
    };
    let first = start(options(folder.path()), 1);
    feed_all(&first.feed(), 10);
    drop(first);
    let second = start(options(folder.path()), 1);
    feed_all(&second.feed(), 20);
    let page = find(folder.path(), &all());
    assert_eq!(tokens(&page), (1..20).collect::<Vec<_>>());
    assert_eq!(page.gaps, []);
    assert_eq!(second.feed().standing().rows, 10);
}

#[test]
fn a_snapshot_and_a_run_without_recording_leave_declared_gaps() {
    let folder = tempfile::tempdir().unwrap();
    let first = start(options(folder.path()), 1);
    let feed = first.feed();
    feed.applied(1, 2, vec![(2, 1, ended("a", 1))]);
    feed.reset(100);
    feed.applied(100, 101, vec![(101, 1, ended("a", 9))]);
    recorded(&feed, 101);
    drop(first);
    let second = start(options(folder.path()), 150);
    second.feed().applied(150, 151, vec![(151, 1, ended("a", 12))]);
    recorded(&second.feed(), 151);
    let page = find(folder.path(), &all());
    assert_eq!(tokens(&page), [1, 9, 12]);
    assert_eq!(page.gaps, [gap(2, 100, GapCause::Snapshot), gap(101, 150, GapCause::Unrecorded)]);
    // Who has seen what comes after a gap is not told of it again.
    let later = find(folder.path(), &Query { after: Position::end_of(101), ..all() });
    assert_eq!((tokens(&later), later.gaps), (vec![12], vec![gap(101, 150, GapCause::Unrecorded)]));
}

#[test]
fn a_node_that_joined_does_not_know_what_was_before() {
    let folder = tempfile::tempdir().unwrap();
    let recorder = start(options(folder.path()), 70);
    recorder.feed().applied(70, 71, vec![(71, 1, ended("a", 5))]);
    recorded(&recorder.feed(), 71);
    assert_eq!(find(folder.path(), &all()).gaps, [gap(0, 70, GapCause::Retention)]);
}

#[test]
fn what_does_not_fit_into_the_queue_is_a_declared_gap() {
    let folder = tempfile::tempdir().unwrap();
    // A directory that cannot be made: nothing can be written, and the queue fills.
    let blocked = folder.path().join("audit");
    fs::write(&blocked, "in the way").unwrap();
    let recorder = start(Options { queue_bytes: 2_000, ..options(&blocked) }, 1);
    let feed = recorder.feed();
    until("it says that it fails", || feed.standing().failure.is_some());
    for token in 1..=50 {
        feed.applied(token, token + 1, vec![(token + 1, 1, ended("a", token))]);
    }
    let dropped = feed.standing().dropped_rows;
    assert!((30..50).contains(&dropped), "{dropped}");
    fs::remove_file(&blocked).unwrap();
    until("it works again", || feed.standing().failure.is_none());
    // Also if nothing comes behind what was dropped.
    recorded(&feed, 51);
    feed.applied(51, 60, vec![(60, 1, ended("a", 60))]);
    recorded(&feed, 60);
    let page = find(&blocked, &all());
    let kept = 50 - dropped;
    assert_eq!(page.gaps, [gap(kept + 1, 51, GapCause::Lost)]);
    assert_eq!(page.rows.len() as u64, kept + 1);
    assert_eq!(feed.standing().failures, 1);
}

#[test]
fn what_waits_is_bounded_also_where_no_grant_ends() {
    let folder = tempfile::tempdir().unwrap();
    let blocked = folder.path().join("audit");
    fs::write(&blocked, "in the way").unwrap();
    let recorder = start(Options { queue_bytes: 2_000, ..options(&blocked) }, 1);
    let feed = recorder.feed();
    until("it says that it fails", || feed.standing().failure.is_some());
    for token in 1..=2_000 {
        feed.applied(2 * token - 1, 2 * token, vec![(2 * token, 1, ended("a", token))]);
        feed.applied(2 * token, 2 * token + 1, Vec::new());
        feed.reset(2 * token + 1);
    }
    fs::remove_file(&blocked).unwrap();
    until("it works again", || feed.standing().failure.is_none());
    recorded(&feed, 4_001);
    let page = find(&blocked, &all());
    // Each batch that had waited would have a gap before it.
    assert!(page.gaps.len() < 50, "{}", page.gaps.len());
    let last = page.gaps.last().unwrap();
    assert_eq!(last.through, 4_001);
}

#[test]
fn files_that_somebody_deletes_are_noticed_and_declared() {
    let folder = tempfile::tempdir().unwrap();
    let recorder = start(options(folder.path()), 1);
    let feed = recorder.feed();
    feed.applied(1, 5, vec![(5, 1, ended("a", 1))]);
    recorded(&feed, 5);
    for entry in fs::read_dir(folder.path()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    feed.applied(5, 6, vec![(6, 1, ended("a", 2))]);
    recorded(&feed, 6);
    let page = find(folder.path(), &all());
    assert_eq!(tokens(&page), [2]);
    assert!(page.gaps.iter().any(|gap| gap.after <= 1 && gap.through == 5), "{:?}", page.gaps);
}

#[test]
fn a_damaged_file_is_left_alone_and_another_is_begun() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("grants-000001.sqlite"), vec![7; 8192]).unwrap();
    let recorder = start(options(folder.path()), 1);
    recorder.feed().applied(1, 2, vec![(2, 1, ended("a", 1))]);
    recorded(&recorder.feed(), 2);
    assert_eq!(tokens(&find(folder.path(), &all())), [1]);
    assert_eq!(fs::read(folder.path().join("grants-000001.sqlite")).unwrap(), vec![7; 8192]);
}

#[test]
fn a_damaged_page_costs_its_file_and_is_declared() {
    let folder = tempfile::tempdir().unwrap();
    let small = Options { file_bytes: 200_000, ..options(folder.path()) };
    let recorder = start(small, 1);
    let feed = recorder.feed();
    for token in 1..=5_000 {
        feed.applied(token, token + 1, vec![(token + 1, 1, ended(&format!("lock-{token}"), token))]);
        if token % 500 == 0 {
            recorded(&feed, token + 1);
        }
    }
    recorded(&feed, 5_001);
    drop(recorder);
    let everything = Query { count_max: 100_000, ..all() };
    let whole = find(folder.path(), &everything);
    assert_eq!((whole.rows.len(), &whole.gaps), (5_000, &vec![]));
    // All pages but the first, which says what the file is.
    let second = folder.path().join("grants-000002.sqlite");
    let mut bytes = fs::read(&second).unwrap();
    bytes[4_096 * 8..].fill(7);
    fs::write(&second, bytes).unwrap();
    let page = find(folder.path(), &everything);
    let [lost] = page.gaps[..] else { panic!("one gap is declared: {:?}", page.gaps) };
    assert_eq!(lost.cause, GapCause::Deleted);
    // What lies outside is there, as far as the newest.
    let outside = |row: &&Row| row.ended.revision <= lost.after || row.ended.revision > lost.through;
    let expected: Vec<&Row> = whole.rows.iter().filter(outside).collect();
    assert!(expected.len() > 2_000, "{}", expected.len());
    assert_eq!(page.rows.iter().filter(outside).collect::<Vec<_>>(), expected);
    assert_eq!(page.through, whole.through);
    // By token, by lock and from the end, too; and what happened beside the rows.
    for query in [
        Query { token: Some(lost.after + 100), ..everything.clone() },
        Query { lock: Some("lock-1".into()), ..everything.clone() },
        Query { newest_first: true, ..everything.clone() },
    ] {
        assert!(find(folder.path(), &query).gaps.contains(&lost), "{query:?}");
    }
    Reader::new(folder.path()).happenings(0, 10).unwrap();
    // A file that is damaged from its beginning is a gap between the others.
    fs::write(&second, vec![7; 8_192]).unwrap();
    assert_eq!(find(folder.path(), &everything).gaps, [lost]);
}

#[test]
fn full_files_are_followed_by_others_and_the_oldest_are_deleted_whole() {
    let folder = tempfile::tempdir().unwrap();
    let small = Options { file_bytes: 200_000, bytes_max: 900_000, ..options(folder.path()) };
    let recorder = start(small, 1);
    let feed = recorder.feed();
    for token in 1..=20_000 {
        feed.applied(token, token + 1, vec![(token + 1, 1, ended(&format!("lock-{token}"), token))]);
        if token % 500 == 0 {
            recorded(&feed, token + 1);
        }
    }
    recorded(&feed, 20_001);
    drop(recorder);
    let sizes = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
    let bytes: u64 = sizes.sum();
    assert!(bytes <= 1_500_000, "{bytes}");
    let page = find(folder.path(), &Query { count_max: 100_000, ..all() });
    let first = page.rows[0].token;
    assert!(first > 1, "the oldest are gone");
    assert_eq!(tokens(&page), (first..=20_000).collect::<Vec<_>>());
    assert!(page.gaps.iter().any(|gap| gap.after == 0 && gap.through == first), "{:?} {first}", page.gaps);
    assert_eq!(tokens(&find(folder.path(), &Query { token: Some(first + 5), ..all() })), [first + 5]);
}

#[test]
fn what_happens_to_the_cluster_is_kept_beside_the_rows() {
    let folder = tempfile::tempdir().unwrap();
    let recorder = start(options(folder.path()), 1);
    let happening = |unix_ms, what: &str| Happening {
        unix_ms,
        kind: HappeningKind::Leader,
        term: 3,
        what: what.into(),
        count: 1,
    };
    recorder.feed().happened(happening(10, "n1"));
    recorder.feed().happened(happening(20, "n2"));
    recorder.feed().applied(1, 2, vec![(2, 1, ended("a", 1))]);
    recorded(&recorder.feed(), 2);
    let reader = Reader::new(folder.path());
    assert_eq!(reader.happenings(15, 10).unwrap(), [happening(20, "n2")]);
    assert_eq!(reader.happenings(0, 10).unwrap().len(), 2);
}

#[test]
fn what_was_held_when_a_cluster_was_recovered_is_marked() {
    let folder = tempfile::tempdir().unwrap();
    let first = start(options(folder.path()), 1);
    first.feed().applied(1, 5, vec![(5, 1, ended("a", 1))]);
    recorded(&first.feed(), 5);
    drop(first);
    let row = Row {
        cause: Cause::ClusterRecovered,
        is_perhaps_uncommitted: true,
        ..Row::new("c1", *ended("a", 2), Position { revision: 9, ordinal: 0 }, 1)
    };
    append_recovered(folder.path(), ("c1", 8, std::slice::from_ref(&row)), ("c2", 1 << 40), unix_ms())
        .unwrap();
    let second = start(Options { cluster: "c2".into(), ..options(folder.path()) }, 1 << 40);
    second.feed().applied(1 << 40, (1 << 40) + 1, vec![((1 << 40) + 1, 1, ended("a", 1 << 33))]);
    recorded(&second.feed(), (1 << 40) + 1);
    let page = find(folder.path(), &all());
    assert_eq!(tokens(&page), [1, 2, 1 << 33]);
    assert_eq!((&page.rows[1].cluster, &page.rows[2].cluster), (&"c1".to_owned(), &"c2".to_owned()));
    assert!(
        page.rows[1].detail().ends_with("perhaps uncommitted: from the log of the one node that was left")
    );
    assert_eq!(page.gaps, [gap(5, 8, GapCause::Unrecorded)]);
}

#[test]
fn anybody_can_read_the_log_of_fencing_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let recorder = start(options(folder.path()), 1);
    recorder.feed().applied(1, 5, vec![(5, 1, ended("a", 42))]);
    recorded(&recorder.feed(), 5);
    recorder.feed().sync();
    until("it is durable", || recorder.feed().standing().durable >= 5);
    drop(recorder);
    let path = folder.path().join("grants-000001.sqlite");
    assert!(!folder.path().join("grants-000001.sqlite-wal").exists(), "it is one file");
    let connection = rusqlite::Connection::open(path).unwrap();
    let sql = "SELECT key, token, holder_id, granted_at, release_cause, silent_ms FROM fencing_token_log";
    let row = connection.query_row(sql, [], |row| {
        Ok((
            row.get::<_, String>(0)?,
            row.get::<_, i64>(1)?,
            row.get::<_, String>(2)?,
            row.get::<_, String>(3)?,
            row.get::<_, String>(4)?,
            row.get::<_, i64>(5)?,
        ))
    });
    let expected =
        ("a".into(), 42, "worker-0".into(), "1970-01-01T00:00:02.042Z".into(), "expired".into(), 30_020);
    assert_eq!(row.unwrap(), expected);
}

#[test]
fn the_log_of_fencing_tokens_has_each_column_under_the_name_of_the_api_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("grants-000001.sqlite");
    // A file of before, whose view has fewer columns.
    drop(start(options(folder.path()), 1));
    let old = "DROP VIEW fencing_token_log; CREATE VIEW fencing_token_log AS SELECT token FROM grants;";
    rusqlite::Connection::open(&path).unwrap().execute_batch(old).unwrap();
    let recorder = start(options(folder.path()), 1);
    let silence = |stalled_ms, leader_changed| Some(Silence { silent_ms: 9_050, stalled_ms, leader_changed });
    let grants = [
        *ended("a", 1),
        EndedGrant { silence: silence(0, false), ..*ended("a", 2) },
        EndedGrant { silence: silence(1_204, true), ..*ended("a", 3) },
        EndedGrant {
            silence: None,
            actor: Some(OwnerId::parse("ops").unwrap()),
            cause: lowkey_core::Cause::Revoked,
            ..*ended("a", 4)
        },
        EndedGrant { silence: None, ..*ended("a", 5) },
    ];
    let rows = grants.map(|grant| (5, 1, Box::new(grant)));
    recorder.feed().applied(1, 5, rows.into());
    recorded(&recorder.feed(), 5);
    drop(recorder);
    let lost = Row {
        is_perhaps_uncommitted: true,
        ..Row::new("c1", *ended("a", 6), Position { revision: 9, ordinal: 0 }, 1)
    };
    append_recovered(folder.path(), ("c1", 8, &[lost]), ("c2", 1 << 40), unix_ms()).unwrap();
    let connection = rusqlite::Connection::open(path).unwrap();
    let sql = "SELECT lock, owner, lease, mode, scope, ttl, asked_at, waited_ms, granted_at, granted_revision, ended_at, \
               ended_revision, cause, term, cluster, token, detail FROM fencing_token_log ORDER BY token";
    let mut statement = connection.prepare(sql).unwrap();
    let told: Vec<(String, i64, String, String)> = statement
        .query_map([], |row| Ok((row.get("lock")?, row.get("token")?, row.get("cause")?, row.get("detail")?)))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    let expected: Vec<_> = find(folder.path(), &all())
        .rows
        .iter()
        .map(|row| (row.lock.clone(), row.token as i64, row.cause.name().to_owned(), row.detail()))
        .collect();
    assert_eq!(told.len(), 6);
    assert_eq!(told, expected);
}
