//! The promises of the hub, each on a hub of its own.

use std::pin::pin;
use std::time::Instant as WallInstant;

use futures::FutureExt as _;
use futures::stream::FuturesUnordered;
use lowkey_api::v1::{EventType, Mode as ApiMode};
use lowkey_core::{Cause, ChangeKind, LeaseId, MemberId, Mode, NamePrefix, OwnerId, Scope, Token, Value};
use tokio::time::{advance, sleep, timeout};

use super::live::QUEUE_EVENTS_MAX;
use super::*;

struct World {
    hub: Hub,
    feed: HubFeed,
    leadership: watch::Sender<Leadership>,
    stopping: watch::Sender<bool>,
}

const LED: Leadership = Leadership { term: 1, leader: Some(MemberId(1)) };
const UNLED: Leadership = Leadership { term: 1, leader: None };

fn world_with(floor: u64, events_max: usize, streams_max: usize) -> World {
    let leadership = watch::Sender::new(LED);
    let stopping = watch::Sender::new(false);
    let (hub, feed) =
        Hub::with_events_max(floor, events_max, streams_max, leadership.subscribe(), stopping.subscribe());
    World { hub, feed, leadership, stopping }
}

fn world() -> World {
    world_with(0, HISTORY_EVENTS_MAX, 10_000)
}

fn change(kind: ChangeKind, lock: &str, token: u64) -> Change {
    Change {
        kind,
        lock: LockName::parse(lock).unwrap(),
        owner: OwnerId::parse(&format!("owner-{token}")).unwrap(),
        lease: LeaseId(token + 100),
        token: Some(Token(token)),
        mode: Mode::Exclusive,
        scope: Scope::Name,
        value: Value::default(),
        since_unix_ms: 0,
        at_unix_ms: 0,
        actor: None,
    }
}

fn acquired(lock: &str) -> Change {
    change(ChangeKind::Acquired, lock, 1)
}

fn name(text: &str) -> Filter {
    Filter::Name(LockName::parse(text).unwrap())
}

fn prefix(text: &str) -> Filter {
    Filter::Prefix(NamePrefix::parse(text).unwrap())
}

impl World {
    /// Feeds one revision, and waits until the hub knows of it.
    async fn apply(&mut self, changes: Vec<Change>) {
        let revision = self.feed.applied + 1;
        self.feed.applied(revision, changes);
        self.hub.wait_applied(revision).await.unwrap();
    }

    fn watch(&self, filter: Filter, start: Start) -> Events<WatchEvent> {
        self.hub.watch(filter, start).unwrap()
    }

    fn refusal(&self, filter: Filter, start: Start) -> ApiError {
        self.hub.watch(filter, start).err().unwrap()
    }

    fn live_count(&self) -> (usize, usize, usize) {
        self.hub.shared.book().live.counts()
    }
}

/// The next event, which must come without any time passing.
async fn next<E>(stream: &mut Events<E>) -> E {
    timeout(Duration::from_millis(1), stream.next()).await.unwrap().unwrap().unwrap()
}

async fn next_change(stream: &mut Events<WatchEvent>) -> (u64, u32) {
    loop {
        let event = next(stream).await;
        match event.r#type() {
            EventType::Heartbeat => {}
            EventType::End => panic!("{event:?}"),
            _ => return (event.revision, event.ordinal),
        }
    }
}

/// How far the stream says to be complete.
async fn heartbeat(stream: &mut Events<WatchEvent>) -> (u64, u32, bool) {
    let event = next(stream).await;
    assert_eq!(event.r#type(), EventType::Heartbeat, "{event:?}");
    (event.revision, event.ordinal, event.in_touch)
}

async fn assert_silent<E: std::fmt::Debug>(stream: &mut Events<E>) {
    tokio::task::yield_now().await;
    assert!(stream.next().now_or_never().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_stream_tells_what_matches_in_order_from_history_and_live() {
    let mut world = world();
    world.apply(vec![acquired("a"), acquired("b"), acquired("a")]).await;
    let mut by_name = world.watch(name("a"), Start::From(1));
    let mut by_prefix = world.watch(prefix(""), Start::After(Position { revision: 1, ordinal: 0 }));
    world.apply(vec![]).await;
    world.apply(vec![acquired("b"), acquired("a")]).await;

    for expected in [(1, 0), (1, 2), (3, 1)] {
        assert_eq!(next_change(&mut by_name).await, expected);
    }
    for expected in [(1, 1), (1, 2), (3, 0), (3, 1)] {
        assert_eq!(next_change(&mut by_prefix).await, expected);
    }
    // The first heartbeat says that this was all.
    assert_eq!(heartbeat(&mut by_name).await, (3, u32::MAX, true));
    assert_silent(&mut by_name).await;
}

#[tokio::test(start_paused = true)]
async fn an_event_has_all_that_is_known_of_a_change() {
    let mut world = world();
    let mut stream = world.watch(name("a"), Start::Now);
    let full = Change {
        mode: Mode::Shared,
        scope: Scope::Subtree,
        value: Value::parse("v").unwrap(),
        ..change(ChangeKind::Acquired, "a", 7)
    };
    let waiter = Change { token: None, ..change(ChangeKind::Waiting, "a", 8) };
    assert_eq!(heartbeat(&mut stream).await, (0, u32::MAX, true));
    world.apply(vec![full, waiter]).await;
    let expected = WatchEvent {
        r#type: EventType::Acquired.into(),
        name: "a".into(),
        owner: "owner-7".into(),
        fencing_token: 7,
        revision: 1,
        ordinal: 0,
        lease_id: 107,
        mode: ApiMode::Shared.into(),
        scope: lowkey_api::v1::Scope::Subtree.into(),
        value: "v".into(),
        in_touch: true,
        end_reason: String::new(),
        at_unix_ms: 0,
        actor: String::new(),
        cause: None,
    };
    assert_eq!(next(&mut stream).await, expected);
    let event = next(&mut stream).await;
    assert_eq!((event.r#type(), event.ordinal, event.fencing_token), (EventType::Waiting, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_change_reaches_only_those_who_want_it() {
    let mut world = world();
    let mut streams: Vec<_> = [name("é/b"), name("é"), prefix("é/"), prefix("é/bc"), prefix(""), prefix("x")]
        .into_iter()
        .map(|filter| world.watch(filter, Start::Now))
        .collect();
    for stream in &mut streams {
        heartbeat(stream).await;
    }
    world.apply(vec![acquired("é/b")]).await;
    let told: Vec<_> = streams.iter_mut().map(|stream| stream.next().now_or_never().is_some()).collect();
    assert_eq!(told, [true, false, true, false, true, false]);
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_comes_every_five_seconds_and_says_how_far_all_was_told() {
    let mut world = world();
    let mut stream = world.watch(name("a"), Start::Now);
    assert_eq!(heartbeat(&mut stream).await, (0, u32::MAX, true));
    world.apply(vec![acquired("b")]).await;
    advance(Duration::from_millis(4_990)).await;
    assert_silent(&mut stream).await;
    advance(Duration::from_millis(10)).await;
    assert_eq!(heartbeat(&mut stream).await, (1, u32::MAX, true));
    // Not before what has happened by then was told.
    world.apply(vec![acquired("a")]).await;
    advance(HEARTBEAT_INTERVAL).await;
    assert_eq!(next_change(&mut stream).await, (2, 0));
    assert_eq!(heartbeat(&mut stream).await, (2, u32::MAX, true));
}

#[tokio::test(start_paused = true)]
async fn losing_touch_with_the_leader_is_told_at_once_and_so_is_its_return() {
    let mut world = world();
    let mut stream = world.watch(name("a"), Start::Now);
    heartbeat(&mut stream).await;
    world.leadership.send_replace(Leadership { term: 2, ..LED });
    assert_silent(&mut stream).await;
    world.apply(vec![acquired("b")]).await;
    world.leadership.send_replace(UNLED);
    assert_eq!(heartbeat(&mut stream).await, (1, u32::MAX, false));
    world.apply(vec![acquired("a")]).await;
    assert!(!next(&mut stream).await.in_touch);
    world.apply(vec![acquired("a")]).await;
    world.leadership.send_replace(LED);
    // What is not told yet is not claimed to be.
    assert_eq!(heartbeat(&mut stream).await, (2, 0, true));
    assert_eq!(next_change(&mut stream).await, (3, 0));
    assert_silent(&mut stream).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_stops_ends_its_streams_with_a_position() {
    let mut world = world();
    let mut stream = world.watch(name("a"), Start::Now);
    heartbeat(&mut stream).await;
    world.apply(vec![acquired("a")]).await;
    next_change(&mut stream).await;
    world.stopping.send_replace(true);
    let end = next(&mut stream).await;
    assert_eq!((end.r#type(), end.end_reason.as_str()), (EventType::End, "NODE_STOPPING"));
    assert_eq!((end.revision, end.ordinal), (1, 0));
    assert_eq!(stream.next().await, None);
    assert_eq!(stream.next().await, None);
    assert_eq!(world.live_count(), (0, 0, 0));
    assert_eq!(world.hub.wait_applied(99).await.unwrap_err().reason, Reason::NodeStopping);
}

#[tokio::test(start_paused = true)]
async fn an_installed_snapshot_ends_all_streams_as_compacted() {
    let mut world = world();
    let mut live = world.watch(prefix(""), Start::Now);
    heartbeat(&mut live).await;
    world.apply(vec![acquired("a")]).await;
    let mut catching_up = world.watch(name("a"), Start::From(1));
    world.feed.reset(10);
    world.hub.wait_applied(10).await.unwrap();
    let mut fresh = world.watch(prefix(""), Start::From(11));
    for stream in [&mut live, &mut catching_up] {
        // What was known before it is still told.
        assert_eq!(next_change(stream).await, (1, 0));
        let error = stream.next().await.unwrap().unwrap_err();
        assert_eq!((error.reason, error.metadata["floor"].as_str()), (Reason::Compacted, "10"));
        assert_eq!(stream.next().await, None);
    }
    // Who comes afterwards is not affected by those who leave.
    drop((live, catching_up));
    assert_eq!(world.live_count(), (0, 1, 1));
    world.apply(vec![acquired("a")]).await;
    assert_eq!(next_change(&mut fresh).await, (11, 0));
}

#[tokio::test(start_paused = true)]
async fn positions_that_are_gone_or_not_there_yet_are_refused_at_once() {
    let mut world = world_with(5, 2, 10);
    for _ in 0..3 {
        world.apply(vec![acquired("a")]).await;
    }
    assert_eq!((world.hub.applied(), Start::From(9).needs()), (8, 8));
    let reason = |start| world.refusal(name("a"), start).reason;
    assert_eq!(reason(Start::From(10)), Reason::Invalid("from"));
    assert_eq!(reason(Start::After(Position { revision: 9, ordinal: 0 })), Reason::Invalid("after"));
    let error = world.refusal(name("a"), Start::From(6));
    assert_eq!((error.reason, error.metadata["floor"].as_str()), (Reason::Compacted, "6"));
    assert!(error.message.contains("watch_from"), "{error}");
    for (start, first) in [
        (Start::From(7), Some((7, 0))),
        (Start::After(Position { revision: 7, ordinal: 0 }), Some((8, 0))),
        (Start::From(9), None),
        (Start::Now, None),
    ] {
        let mut stream = world.watch(name("a"), start);
        match first {
            Some(first) => assert_eq!(next_change(&mut stream).await, first),
            None => assert_eq!(heartbeat(&mut stream).await, (8, u32::MAX, true)),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_runs_over_loses_nothing() {
    let mut world = world();
    let mut stream = world.watch(prefix(""), Start::Now);
    heartbeat(&mut stream).await;
    let count = QUEUE_EVENTS_MAX as u64 + 500;
    for _ in 0..count {
        world.apply(vec![acquired("a")]).await;
    }
    assert_eq!(world.live_count(), (0, 1, 0), "it is no longer live");
    for revision in 1..=QUEUE_EVENTS_MAX as u64 {
        assert_eq!(next_change(&mut stream).await, (revision, 0));
    }
    // The queue is empty, but not because nothing has happened.
    world.leadership.send_replace(UNLED);
    assert_eq!(heartbeat(&mut stream).await, (QUEUE_EVENTS_MAX as u64, 0, false));
    for revision in QUEUE_EVENTS_MAX as u64 + 1..=count {
        assert_eq!(next_change(&mut stream).await, (revision, 0));
    }
    assert_eq!(world.live_count(), (0, 1, 1));
    world.apply(vec![acquired("a")]).await;
    assert_eq!(next_change(&mut stream).await, (count + 1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_is_half_of_the_history_behind_is_ended_with_a_position() {
    let mut world = world_with(0, 2_000, 10);
    let mut stream = world.watch(name("a"), Start::Now);
    heartbeat(&mut stream).await;
    let queued = QUEUE_EVENTS_MAX as u64;
    for _ in 0..queued + 1_001 {
        world.apply(vec![acquired("a")]).await;
    }
    for revision in 1..=queued {
        assert_eq!(next_change(&mut stream).await, (revision, 0));
    }
    let end = next(&mut stream).await;
    assert_eq!((end.r#type(), end.end_reason.as_str()), (EventType::End, "SLOW_READER"));
    assert_eq!((end.revision, end.ordinal), (queued, 0));
    assert_eq!(stream.next().await, None);
    // The position is good: a new stream may be as far behind as it likes.
    let after = Position { revision: end.revision, ordinal: end.ordinal };
    let mut stream = world.watch(name("a"), Start::After(after));
    for revision in queued + 1..=queued + 1_001 {
        assert_eq!(next_change(&mut stream).await, (revision, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_revision_too_large_to_remember_is_not_passed_over() {
    let mut world = world_with(0, 2 * QUEUE_EVENTS_MAX, 10);
    let mut stream = world.watch(name("a"), Start::Now);
    heartbeat(&mut stream).await;
    world.apply(vec![acquired("a"); 2 * QUEUE_EVENTS_MAX + 1]).await;
    for ordinal in 0..QUEUE_EVENTS_MAX as u32 {
        assert_eq!(next_change(&mut stream).await, (1, ordinal));
    }
    assert_eq!(stream.next().await.unwrap().unwrap_err().reason, Reason::Compacted);
    assert_eq!(stream.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn streams_are_counted_and_a_dropped_one_leaves_nothing_behind() {
    let mut world = world_with(0, 100, 3);
    let mut streams = vec![
        world.watch(name("a"), Start::Now),
        world.watch(prefix("ab"), Start::Now),
        world
            .hub
            .observe(LockName::parse("a").unwrap(), None, 0)
            .await
            .unwrap()
            .map(|_| unreachable!())
            .boxed(),
    ];
    assert_eq!(world.live_count(), (1, 1, 3));
    let error = world.refusal(name("a"), Start::Now);
    assert_eq!(error.reason, Reason::LimitStreams);
    streams.clear();
    assert_eq!(world.live_count(), (0, 0, 0));
    assert!(world.hub.shared.book().live.has_no_lengths());
    let mut stream = world.watch(name("a"), Start::Now);
    // Dropped in the middle of waiting, it is all there.
    heartbeat(&mut stream).await;
    assert_silent(&mut stream).await;
    world.apply(vec![acquired("a")]).await;
    assert_eq!(next_change(&mut stream).await, (1, 0));
    // A position that is refused takes no place.
    assert_eq!(world.refusal(name("a"), Start::From(99)).reason, Reason::Invalid("from"));
    assert_eq!(world.hub.shared.streams.available_permits(), 2);
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_revision_ends_when_it_is_there() {
    let mut world = world();
    let hub = world.hub.clone();
    let mut waiting = pin!(hub.wait_applied(2));
    world.apply(vec![]).await;
    assert!(waiting.as_mut().now_or_never().is_none());
    world.apply(vec![]).await;
    assert_eq!(waiting.await, Ok(()));
}

fn told(event: &ObserveEvent) -> (EventType, u64, u32, Option<u64>) {
    let leader = event.leader.as_ref().map(|leader| leader.fencing_token);
    (event.r#type(), event.revision, event.ordinal, leader)
}

#[tokio::test(start_paused = true)]
async fn observing_begins_with_the_present_and_follows_the_lead() {
    let mut world = world();
    let election = LockName::parse("e").unwrap();
    world.apply(vec![acquired("e")]).await;
    let mut vacant = world.hub.observe(election.clone(), None, 0).await.unwrap();
    assert_eq!(told(&next(&mut vacant).await), (EventType::Vacant, 0, u32::MAX, None));
    assert_eq!(told(&next(&mut vacant).await), (EventType::Acquired, 1, 0, Some(1)));

    let leader = words::lock_holder(&acquired("e"));
    let mut stream = world.hub.observe(election, Some(leader), 1).await.unwrap();
    assert_eq!(told(&next(&mut stream).await), (EventType::Acquired, 1, u32::MAX, Some(1)));
    let with_value = Change { value: Value::parse("here").unwrap(), ..change(ChangeKind::ValueSet, "e", 1) };
    world.apply(vec![with_value, change(ChangeKind::Waiting, "e", 2), acquired("other")]).await;
    let event = next(&mut stream).await;
    assert_eq!(told(&event), (EventType::Value, 2, 0, Some(1)));
    assert_eq!(event.leader.unwrap().value, "here");
    // The lead passes on in one entry: both are told.
    let freed = |cause, token| change(ChangeKind::Freed(cause), "e", token);
    world.apply(vec![freed(Cause::Released, 1), change(ChangeKind::Acquired, "e", 2)]).await;
    assert_eq!(told(&next(&mut stream).await), (EventType::Released, 3, 0, None));
    assert_eq!(told(&next(&mut stream).await), (EventType::Acquired, 3, 1, Some(2)));
    world.apply(vec![change(ChangeKind::Cancelled, "e", 3), freed(Cause::Expired, 2)]).await;
    assert_eq!(told(&next(&mut stream).await), (EventType::Expired, 4, 1, None));
    advance(HEARTBEAT_INTERVAL).await;
    assert_eq!(told(&next(&mut stream).await), (EventType::Heartbeat, 4, u32::MAX, None));
    world.stopping.send_replace(true);
    let end = next(&mut stream).await;
    assert_eq!((end.r#type(), end.end_reason.as_str()), (EventType::End, "NODE_STOPPING"));
    assert_eq!(stream.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn of_several_holders_the_one_who_came_first_leads() {
    let mut world = world();
    let holder = |token| words::lock_holder(&change(ChangeKind::Acquired, "e", token));
    world.apply(vec![]).await;
    let present = vec![holder(5), holder(3)];
    let mut stream = world.hub.observe(LockName::parse("e").unwrap(), present, 1).await.unwrap();
    assert_eq!(told(&next(&mut stream).await), (EventType::Acquired, 1, u32::MAX, Some(3)));
    let freed = |token| change(ChangeKind::Freed(Cause::Revoked), "e", token);
    world.apply(vec![change(ChangeKind::Acquired, "e", 8), freed(3), freed(8), freed(5)]).await;
    assert_eq!(told(&next(&mut stream).await), (EventType::Acquired, 2, 0, Some(3)));
    assert_eq!(told(&next(&mut stream).await), (EventType::Revoked, 2, 1, Some(5)));
    assert_eq!(told(&next(&mut stream).await), (EventType::Revoked, 2, 2, Some(5)));
    assert_eq!(told(&next(&mut stream).await), (EventType::Revoked, 2, 3, None));
}

#[tokio::test(start_paused = true)]
async fn observing_waits_for_the_revision_of_what_it_was_given() {
    let mut world = world();
    let hub = world.hub.clone();
    let mut observing = pin!(hub.observe(LockName::parse("e").unwrap(), None, 2));
    world.apply(vec![acquired("e")]).await;
    assert!(observing.as_mut().now_or_never().is_none());
    world.apply(vec![change(ChangeKind::Freed(Cause::Released), "e", 1)]).await;
    let mut stream = observing.await.unwrap();
    assert_eq!(told(&next(&mut stream).await), (EventType::Vacant, 2, u32::MAX, None));
    assert_silent(&mut stream).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "watches would miss something")]
async fn the_feed_refuses_a_revision_that_is_not_the_next() {
    world().feed.applied(2, vec![]);
}

/// A small generator: the tests need variety, not surprise.
fn scramble(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 31
}

const LOCKS: [&str; 4] = ["a", "a/b", "ab", "b"];
const REVISIONS: u64 = 20_000;

fn locks_of(revision: u64) -> impl Iterator<Item = &'static str> {
    (0..scramble(revision) % 4).map(move |at| LOCKS[scramble(revision * 4 + at) as usize % LOCKS.len()])
}

/// Reads all there is, at its own pace, going on elsewhere whenever the stream ends.
async fn read_to_the_end(hub: Hub, filter: Filter, reader: u64) -> (Vec<(u64, u32)>, usize) {
    let (mut seen, mut streams) = (Vec::new(), 0);
    let mut position = Position::end_of(0);
    loop {
        let mut stream = hub.watch(filter.clone(), Start::After(position)).unwrap();
        streams += 1;
        // Now and then a reader walks off by itself.
        let patience = scramble(reader + streams as u64) % 5_000;
        for step in 0..patience {
            let Some(event) = stream.next().await else { break };
            let event = event.unwrap();
            assert!(event.revision <= REVISIONS);
            position = Position { revision: event.revision, ordinal: event.ordinal };
            if !matches!(event.r#type(), EventType::Heartbeat | EventType::End) {
                seen.push((event.revision, event.ordinal));
            }
            if scramble(step + reader).is_multiple_of(997) {
                sleep(Duration::from_millis(scramble(step) % 20)).await;
            }
            if event.r#type() == EventType::Heartbeat && position == Position::end_of(REVISIONS) {
                return (seen, streams);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_repeated_while_streams_come_go_fall_behind_and_catch_up() {
    let World { hub, mut feed, leadership, stopping: _stopping } = world_with(0, 60_000, 100);
    let filters = [name("a"), name("a/b"), prefix("a"), prefix("a/"), prefix(""), prefix("none")];
    let mut readers = Vec::new();
    for reader in 0..24 {
        let filter = filters[reader % filters.len()].clone();
        readers.push((filter.clone(), tokio::spawn(read_to_the_end(hub.clone(), filter, reader as u64))));
    }
    let feeder = std::thread::spawn(move || {
        for revision in 1..=REVISIONS {
            feed.applied(revision, locks_of(revision).map(acquired).collect());
            if scramble(revision).is_multiple_of(500) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        feed
    });
    // Each change of touch is a heartbeat, and each heartbeat claims that all was told.
    let touch = tokio::spawn(async move {
        loop {
            sleep(Duration::from_millis(10)).await;
            let is_led = leadership.borrow().leader.is_some();
            leadership.send_replace(if is_led { UNLED } else { LED });
        }
    });
    for (filter, reader) in readers {
        let (seen, streams) = timeout(Duration::from_secs(60), reader).await.unwrap().unwrap();
        let all = (1..=REVISIONS).flat_map(|revision| {
            (0..).zip(locks_of(revision)).map(move |(ordinal, lock)| ((revision, ordinal), lock))
        });
        let matching = all.filter(|(_, lock)| filter.matches(&LockName::parse(lock).unwrap()));
        assert!(seen.iter().copied().eq(matching.map(|(position, _)| position)), "{filter:?}");
        assert!(streams > 1 || filter == prefix("none"), "nobody walked off");
    }
    touch.abort();
    drop(feeder.join());
}

#[tokio::test]
async fn five_thousand_streams_of_one_lock_are_woken_by_one_change() {
    let mut world = world();
    let mut streams: Vec<_> = (0..5_000).map(|_| world.watch(name("a"), Start::Now)).collect();
    let others: Vec<_> = (0..4_000).map(|at| world.watch(name(&format!("b/{at}")), Start::Now)).collect();
    for stream in &mut streams {
        next(stream).await;
    }
    let waiting: FuturesUnordered<_> = streams.iter_mut().map(|stream| stream.next()).collect();
    let mut waiting = pin!(waiting);
    assert!(waiting.next().now_or_never().is_none());
    let begun = WallInstant::now();
    world.apply(vec![acquired("a")]).await;
    for _ in 0..5_000 {
        let event = waiting.next().await.unwrap().unwrap().unwrap();
        assert_eq!((event.r#type(), event.revision), (EventType::Acquired, 1));
    }
    let took = begun.elapsed();
    eprintln!("5,000 streams were told within {took:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    drop(others);
}
