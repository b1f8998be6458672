//! Clients that look: readers, watchers that go on at other nodes, and observers of the election.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use lowkey_api::v1::{
    EventType, GetLockRequest, GetLockResponse, ListLocksRequest, ListLocksResponse, WatchEvent, WatchRequest,
};
use lowkey_api::{ApiError, Position, Reason};
use lowkey_client::Client;
use lowkey_core::Token;
use lowkey_sim::judge::{Random, Violation};
use tokio::time::{Instant, sleep, timeout_at};
use tonic::Streaming;

use crate::history::{Answer, Asked, Call, Observed, Watched, lock_name, now, owner, position, value, view};
use crate::stage::{ATTEMPT, ELECTION, Links, NAMES, Stage};

/// The lock whose grant is the last event that watchers wait for.
pub(crate) const LAST: &str = "last";

/// Reads a lock or lists some, at any node, fresh or stale.
pub(crate) async fn read(stage: Arc<Stage>, number: usize, seed: u64) {
    let mut random = Random::new(seed);
    let mut links = stage.links(number);
    while !stage.is_over() {
        links.move_anywhere(&mut random);
        let stale = random.one_in(3);
        let invoked = now();
        let mut client = links.client();
        let (asked, outcome) = if random.one_in(2) {
            let name = *random.pick(NAMES);
            let request = GetLockRequest { lock_name: name.to_owned(), stale };
            let told = links.once(ATTEMPT, client.get_lock(request)).await;
            let answer = |told: GetLockResponse| Answer::Lock { view: view(&told), revision: told.revision };
            (Asked::Get { lock: lock_name(name), stale }, told.outcome(answer))
        } else {
            let prefix = *random.pick(&["", "jobs/", "tree", "tree/a"]);
            let request =
                ListLocksRequest { prefix: prefix.to_owned(), page_size: 1_000, stale, ..Default::default() };
            let told = links.once(ATTEMPT, client.list_locks(request)).await;
            let answer = |told: ListLocksResponse| Answer::Locks {
                views: told.locks.iter().map(view).collect(),
                revision: told.revision,
            };
            (Asked::List { prefix: prefix.to_owned(), stale }, told.outcome(answer))
        };
        stage.record(Call::ended_now(format!("reader-{number}"), "", asked, invoked, outcome));
        sleep(Duration::from_millis(random.between(20, 120))).await;
    }
}

/// Watches from a revision on, now at this node and now at that one, always from where it
/// stopped, until it has seen the last event or is told to stop.
pub(crate) async fn watch(stage: Arc<Stage>, number: usize, prefix: &str, from: u64, seed: u64) -> Watched {
    let mut random = Random::new(seed);
    let mut links = stage.links(number);
    let mut watched = Watched { prefix: prefix.to_owned(), ..Watched::default() };
    // All of the revision before has been seen, since nothing was there to be seen.
    let mut after = Position::whole(from - 1);
    let mut compacted_in_a_row = 0;
    while watched.events.last().is_none_or(|(_, event)| event.name != LAST) {
        links.move_anywhere(&mut random);
        let moves_at = Instant::now() + Duration::from_millis(random.between(500, 6_000));
        match follow(&links, &mut watched, &mut after, moves_at).await {
            Err(Some(error)) if error.reason == Reason::Compacted => {
                watched.compacted += 1;
                compacted_in_a_row += 1;
            }
            Err(Some(error)) if !error.is_retryable() => {
                let what = format!("a watch after {after} was refused: {error}");
                stage.history().found.push((now(), Violation { invariant: "watches", what }));
                compacted_in_a_row += 1;
            }
            _ => compacted_in_a_row = 0,
        }
        if compacted_in_a_row > 50 {
            let what = format!("watcher {number} cannot go on after {after} anywhere");
            stage.history().found.push((now(), Violation { invariant: "watches", what }));
            return watched;
        }
        // Those that see only some names never see the last.
        if stage.is_over() && !prefix.is_empty() {
            return watched;
        }
        sleep(Duration::from_millis(random.between(1, 50))).await;
    }
    watched
}

/// One stream, until it is time to move or the stream ends.
async fn follow(
    links: &Links,
    watched: &mut Watched,
    after: &mut Position,
    moves_at: Instant,
) -> Result<(), Option<ApiError>> {
    let request =
        WatchRequest { prefix: watched.prefix.clone(), after: after.to_string(), ..WatchRequest::default() };
    let read = |status: tonic::Status| ApiError::from_status(&status);
    let opened = timeout_at(moves_at, links.client().watch(request)).await.map_err(|_| None)?;
    let mut stream: Streaming<WatchEvent> = opened.map_err(read)?.into_inner();
    watched.streams += 1;
    loop {
        let event = timeout_at(moves_at, stream.message()).await.map_err(|_| None)?.map_err(read)?;
        let event = event.ok_or(None)?;
        match event.r#type() {
            EventType::Heartbeat => *after = Position::whole(event.revision),
            EventType::End => return Ok(()),
            _ => {
                *after = position(&event);
                let is_last = event.name == LAST;
                watched.events.push((now(), event));
                if is_last {
                    return Ok(());
                }
            }
        }
    }
}

/// Watches who leads, by the SDK.
pub(crate) async fn observe(stage: Arc<Stage>, client: Client, number: usize) {
    let mut observations = Box::pin(client.observe(ELECTION));
    while !stage.is_over() {
        let deadline = Instant::now() + Duration::from_secs(1);
        let Ok(observation) = timeout_at(deadline, observations.next()).await else { continue };
        let Some(observation) = observation else { return };
        match observation {
            Ok(observation) => {
                let leader = observation.leader.map(|leader| {
                    (owner(&leader.owner_id), Token(leader.fencing_token), value(&leader.value))
                });
                let revision = observation.revision;
                stage.history().observed.push(Observed { observer: number, leader, revision });
            }
            Err(error) => {
                let what = format!("observer {number} was refused: {error}");
                stage.history().found.push((now(), Violation { invariant: "elections", what }));
                return;
            }
        }
    }
}
