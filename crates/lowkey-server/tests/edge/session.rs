//! Sessions: many calls of one client over one stream.

use std::sync::atomic::Ordering;

use lowkey_api::v1::session_answer::Answer;
use lowkey_api::v1::session_call::Call;
use lowkey_api::v1::{
    AcquireLockRequest, AcquireLockResponse, CreateLeaseRequest, CreateLeaseResponse, EventType,
    GetLockRequest, HeartbeatResponse, LeaseChanged, ProclaimRequest, ProclaimResponse, ReleaseLockRequest,
    ReleaseLockResponse, RenewLeases, RevokeLeaseRequest, RevokeLeaseResponse, SessionAnswer, SessionCall,
    WatchEvent, WatchRequest,
};
use lowkey_api::{ApiError, Reason};
use lowkey_server::edge::budget::MemoryLimits;
use lowkey_server::edge::serve::ServeLimits;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming};

use crate::fake::{Asked, CLUMSY_OWNER, CROWDED_LOCK, EAGER_OWNER, GONE_REVISION, REVISION, SLOW_LEASE};
use crate::support::{Edge, soon, until};

/// A session's two sides.
struct Session {
    sender: mpsc::Sender<SessionCall>,
    answers: Streaming<SessionAnswer>,
}

impl Session {
    async fn open(edge: &Edge) -> Self {
        let (sender, receiver) = mpsc::channel(1024);
        let answers = edge.client().await.session(ReceiverStream::new(receiver)).await.unwrap();
        Self { sender, answers: answers.into_inner() }
    }

    async fn send(&self, seq: u64, call: Call) {
        self.sender.send(SessionCall { seq, call: Some(call) }).await.unwrap();
    }

    /// The next message; nothing at the end.
    async fn message(&mut self) -> Option<SessionAnswer> {
        soon(self.answers.message()).await.unwrap()
    }

    async fn next(&mut self) -> (u64, Answer) {
        let SessionAnswer { seq, answer } = self.message().await.expect("the session ended");
        (seq, answer.expect("an empty answer"))
    }

    async fn next_error(&mut self) -> (u64, ApiError) {
        match self.next().await {
            (seq, Answer::Error(error)) => (seq, error.into()),
            other => panic!("no error: {other:?}"),
        }
    }

    async fn next_reason(&mut self) -> (u64, Reason) {
        let (seq, error) = self.next_error().await;
        (seq, error.reason)
    }

    /// Answered when everything that was sent before has been taken in.
    async fn round_trip(&mut self, seq: u64) {
        self.send(seq, get("round-trip")).await;
        let (answered, answer) = self.next().await;
        assert!(answered == seq && matches!(answer, Answer::GetLock(_)), "{answered} {answer:?}");
    }

    /// The farewell of a node that stops, and then the end.
    async fn farewell(&mut self) {
        assert_eq!(self.next_reason().await, (0, Reason::NodeStopping));
        assert_eq!(self.message().await, None);
    }
}

fn create(owner_id: &str) -> Call {
    let owner_id = owner_id.into();
    Call::CreateLease(CreateLeaseRequest { owner_id, ttl_seconds: 10, ..CreateLeaseRequest::default() })
}

fn renew(lease_ids: impl Into<Vec<u64>>) -> Call {
    Call::RenewLeases(RenewLeases { lease_ids: lease_ids.into(), holds: Vec::new() })
}

fn acquire(lock_name: &str, owner_id: &str, wait_ms: i64) -> Call {
    Call::AcquireLock(AcquireLockRequest {
        lock_name: lock_name.into(),
        owner_id: owner_id.into(),
        lease_id: 1,
        wait_ms,
        ..AcquireLockRequest::default()
    })
}

fn release(lock_name: &str) -> Call {
    Call::ReleaseLock(ReleaseLockRequest { lock_name: lock_name.into(), ..ReleaseLockRequest::default() })
}

fn get(lock_name: &str) -> Call {
    Call::GetLock(GetLockRequest { lock_name: lock_name.into(), ..GetLockRequest::default() })
}

fn watch(name: &str) -> Call {
    Call::Watch(WatchRequest { name: name.into(), ..WatchRequest::default() })
}

fn event(kind: EventType, revision: u64) -> WatchEvent {
    WatchEvent { r#type: kind.into(), name: "a".into(), revision, ..WatchEvent::default() }
}

fn granted(answer: &Answer) -> u64 {
    match answer {
        Answer::AcquireLock(AcquireLockResponse { fencing_token, .. }) => *fencing_token,
        other => panic!("no grant: {other:?}"),
    }
}

#[tokio::test]
async fn every_kind_of_call_is_answered_with_its_seq() {
    let edge = Edge::start().await;
    let mut session = Session::open(&edge).await;
    let proclaim = ProclaimRequest { election: "e".into(), value: "v".into(), ..ProclaimRequest::default() };
    let lease = CreateLeaseResponse { lease_id: 1, ttl_seconds: 10 };
    for (seq, call, expected) in [
        (9, create("a"), Answer::CreateLease(lease)),
        (8, Call::Proclaim(proclaim.clone()), Answer::Proclaim(ProclaimResponse { revision: REVISION })),
        (
            u64::MAX,
            Call::RevokeLease(RevokeLeaseRequest::default()),
            Answer::RevokeLease(RevokeLeaseResponse { released: 2 }),
        ),
    ] {
        session.send(seq, call).await;
        assert_eq!(session.next().await, (seq, expected));
    }
    assert_eq!(edge.node.last_asked(), Asked::Proclaim(proclaim));

    session.send(1, acquire("jobs", "a", 0)).await;
    let (seq, answer) = session.next().await;
    assert_eq!((seq, granted(&answer)), (1, 1));
    session.send(2, get("jobs")).await;
    let (seq, Answer::GetLock(lock)) = session.next().await else { panic!("no lock") };
    assert_eq!((seq, lock.holders[0].owner_id.as_str()), (2, "a"));
    // A seq is free again once it was answered.
    session.send(1, release("jobs")).await;
    assert_eq!(session.next().await, (1, Answer::ReleaseLock(ReleaseLockResponse { released: true })));
}

#[tokio::test]
async fn a_refusal_is_an_answer_with_all_its_particulars_and_ends_nothing() {
    let edge = Edge::start().await;
    let mut session = Session::open(&edge).await;
    session.send(1, acquire("jobs", "a", 0)).await;
    assert_eq!(session.next().await.0, 1);
    session.send(2, acquire("jobs", "b", 0)).await;
    let (seq, error) = session.next_error().await;
    assert_eq!((seq, error.reason, error.metadata["owner_id"].as_str()), (2, Reason::LockHeld, "a"));
    session.send(3, create(EAGER_OWNER)).await;
    let (seq, error) = session.next_error().await;
    assert_eq!((seq, error.reason, error.retry_after_ms), (3, Reason::LimitBusy, Some(1_200)));
    session.round_trip(4).await;
}

#[tokio::test]
async fn a_panic_is_answered_and_harms_no_other_call_of_the_session() {
    let edge = Edge::start().await;
    let mut session = Session::open(&edge).await;
    session.send(1, acquire("jobs", "a", 60_000)).await;
    session.send(2, create(CLUMSY_OWNER)).await;
    assert_eq!(session.next_reason().await, (2, Reason::Internal));
    edge.node.slow.add_permits(1);
    let (seq, answer) = session.next().await;
    assert_eq!((seq, granted(&answer)), (1, 1));
}

#[tokio::test]
async fn thousands_of_waits_hold_up_no_other_call_and_are_answered_in_any_order() {
    const WAITS: u64 = 3_000;
    let edge = Edge::start().await;
    let mut session = Session::open(&edge).await;
    for seq in 1..=WAITS {
        session.send(seq, acquire(&format!("lock-{seq}"), "a", 60_000)).await;
    }
    until(|| edge.node.present() == WAITS as usize).await;
    session.round_trip(WAITS + 1).await;

    edge.node.slow.add_permits(WAITS as usize);
    let mut seqs = Vec::new();
    for _ in 0..WAITS {
        let (seq, answer) = session.next().await;
        assert_ne!(granted(&answer), 0);
        seqs.push(seq);
    }
    seqs.sort_unstable();
    assert_eq!(seqs, (1..=WAITS).collect::<Vec<_>>());
}

/// Limits that one connection reaches soon.
fn small() -> ServeLimits {
    let memory = MemoryLimits { connection_bytes: MEBIBYTE, ..MemoryLimits::default() };
    ServeLimits { memory, ..ServeLimits::default() }
}

const MEBIBYTE: usize = 1024 * 1024;

#[tokio::test]
async fn calls_beyond_the_budget_are_refused_and_renewals_are_not() {
    let edge = Edge::with_limits(small()).await;
    let mut session = Session::open(&edge).await;
    const WAITS: u64 = 300;
    for seq in 1..=WAITS {
        session.send(seq, acquire(&format!("lock-{seq}"), "a", 60_000)).await;
    }
    let (seq, error) = session.next_error().await;
    assert_eq!(error.reason, Reason::LimitMemory);
    assert_eq!(error.metadata["flag"], "--max-memory-per-connection-mib");
    let accepted = seq - 1;
    assert!((200..256).contains(&accepted), "{accepted} waits of 4 KiB and more fit into 1 MiB");
    for expected in seq + 1..=WAITS {
        assert_eq!(session.next_reason().await, (expected, Reason::LimitMemory));
    }
    // Its leases must not suffer from that; and when there is room, it is used.
    session.send(1_000, renew(vec![1; 500])).await;
    assert!(matches!(session.next().await, (1_000, Answer::RenewLeases(_))));
    edge.node.slow.add_permits(accepted as usize);
    for _ in 0..accepted {
        session.next().await;
    }
    session.round_trip(2_000).await;
}

#[tokio::test]
async fn a_session_that_takes_nothing_keeps_no_more_than_its_budget() {
    const CALLS: u64 = 4_000;
    let edge = Edge::with_limits(small()).await;
    let mut session = Session::open(&edge).await;
    for seq in 1..=CALLS {
        session.send(seq, get(CROWDED_LOCK)).await;
    }
    // The first of them fill what the client takes in by itself, the others are kept or refused.
    until(|| edge.budget.used_bytes() >= MEBIBYTE).await;
    let mut kept_max = 0;
    for _ in 0..500 {
        tokio::task::yield_now().await;
        kept_max = kept_max.max(edge.budget.used_bytes());
    }
    assert!(kept_max < 3 * MEBIBYTE, "{kept_max} bytes are kept");

    // Each is answered all the same, once, and nothing stays.
    let (mut seqs, mut refused) = (Vec::new(), 0);
    while seqs.len() < CALLS as usize {
        let (seq, answer) = session.next().await;
        match answer {
            Answer::GetLock(lock) => assert_eq!(lock.holders.len(), 1_000),
            Answer::Error(error) => {
                assert_eq!(ApiError::from(error).reason, Reason::LimitMemory);
                refused += 1;
            }
            other => panic!("{other:?}"),
        }
        seqs.push(seq);
    }
    seqs.sort_unstable();
    assert_eq!(seqs, (1..=CALLS).collect::<Vec<_>>());
    assert!((1..CALLS).contains(&refused), "{refused} were refused");
    session.send(CALLS + 1, get(CROWDED_LOCK)).await;
    assert!(matches!(session.next().await.1, Answer::GetLock(_)));
    drop(session);
    until(|| edge.budget.used_bytes() == 0).await;
}

#[tokio::test]
async fn what_cannot_be_a_call_is_refused_and_not_made() {
    let edge = Edge::start().await;
    let mut session = Session::open(&edge).await;
    session.send(0, acquire("a", "a", 0)).await;
    let (seq, error) = session.next_error().await;
    assert_eq!((seq, error.reason, error.metadata["field"].as_str()), (0, Reason::Invalid("seq"), "seq"));
    session.sender.send(SessionCall { seq: 7, call: None }).await.unwrap();
    let (seq, error) = session.next_error().await;
    assert_eq!((seq, error.reason), (7, Reason::Invalid("body")));
    assert!(error.message.contains("has no call"), "{error}");
    assert!(edge.node.asked.lock().unwrap().is_empty());

    // Of two with the same seq the first goes on.
    session.send(7, acquire("a", "first", 60_000)).await;
    session.send(8, watch("a")).await;
    until(|| edge.node.present() == 2).await;
    for seq in [7, 8] {
        session.send(seq, acquire("a", "second", 0)).await;
        assert_eq!(session.next_reason().await, (seq, Reason::Invalid("seq")));
    }
    edge.node.slow.add_permits(1);
    let (seq, answer) = session.next().await;
    assert_eq!((seq, granted(&answer)), (7, 1));
    session.send(7, get("a")).await;
    let (seq, Answer::GetLock(lock)) = session.next().await else { panic!("no lock") };
    assert_eq!((seq, lock.holders[0].owner_id.as_str()), (7, "first"));
}

#[tokio::test]
async fn a_message_beyond_the_limit_ends_the_session_and_all_that_hangs_on_it() {
    let edge = Edge::start().await;
    let mut session = Session::open(&edge).await;
    session.send(1, acquire("a", "a", 60_000)).await;
    until(|| edge.node.present() == 1).await;
    session.send(2, create(&"a".repeat(65 * 1024))).await;
    assert_eq!(soon(session.answers.message()).await.unwrap_err().code(), Code::OutOfRange);
    until(|| edge.node.present() == 0).await;
}

#[tokio::test]
async fn many_leases_are_renewed_by_one_message_and_told_in_order() {
    let edge = Edge::start().await;
    let mut session = Session::open(&edge).await;
    session.send(1, renew([SLOW_LEASE, 99, 1, SLOW_LEASE])).await;
    until(|| edge.node.slow_begun.load(Ordering::SeqCst) == 2).await;
    session.round_trip(2).await;
    edge.node.slow.add_permits(2);
    let (1, Answer::RenewLeases(renewed)) = session.next().await else { panic!("not renewed") };
    let renewal =
        |lease_id, ttl_seconds| HeartbeatResponse { lease_id, ttl_seconds, ..HeartbeatResponse::default() };
    let refused = HeartbeatResponse {
        error_reason: "LEASE_NOT_FOUND".into(),
        error_message: "there is no lease 99".into(),
        ..renewal(99, 0)
    };
    let expected = [renewal(SLOW_LEASE, 20), refused, renewal(1, 10), renewal(SLOW_LEASE, 20)];
    assert_eq!(renewed.renewals, expected);

    // As many as there may be, with the longest ids that there are.
    session.send(3, renew(vec![u64::MAX; 6_000])).await;
    let (3, Answer::RenewLeases(renewed)) = session.next().await else { panic!("not answered") };
    assert_eq!(renewed.renewals.len(), 6_000);
    session.send(4, renew(vec![1; 6_001])).await;
    assert_eq!(session.next_reason().await, (4, Reason::Invalid("lease_id")));
    session.send(5, renew([])).await;
    let (5, Answer::RenewLeases(renewed)) = session.next().await else { panic!("not answered") };
    assert!(renewed.renewals.is_empty());
}

#[tokio::test]
async fn what_is_cancelled_is_dropped_and_not_answered_any_more() {
    let edge = Edge::start().await;
    let mut session = Session::open(&edge).await;
    session.send(1, acquire("a", "a", 60_000)).await;
    session.send(2, watch("a")).await;
    session.send(3, acquire("b", "a", 60_000)).await;
    until(|| edge.node.present() == 3).await;
    let sender = edge.node.watch_sender();

    session.send(0, Call::Cancel(1)).await;
    until(|| edge.node.present() == 2).await;
    sender.send(Ok(event(EventType::Acquired, 42))).unwrap();
    assert_eq!(session.next().await.0, 2);
    session.send(0, Call::Cancel(2)).await;
    until(|| edge.node.present() == 1).await;
    assert!(sender.is_closed());

    // Nobody minds what was never there, or no longer.
    for seq in [0, 1, 2, 99] {
        session.send(5, Call::Cancel(seq)).await;
    }
    // The seqs are free again, and only the one wait is left.
    session.round_trip(1).await;
    session.round_trip(2).await;
    edge.node.slow.add_permits(2);
    assert_eq!(session.next().await.0, 3);
    session.round_trip(4).await;
    assert_eq!(edge.node.slow.available_permits(), 1);
}

#[tokio::test]
async fn a_call_that_is_cancelled_in_one_breath_with_its_making_leaves_nothing_behind() {
    let edge = Edge::start().await;
    let mut session = Session::open(&edge).await;
    for _ in 0..100 {
        session.send(1, acquire("a", "a", 60_000)).await;
        session.send(0, Call::Cancel(1)).await;
        session.send(2, watch("a")).await;
        session.send(0, Call::Cancel(2)).await;
    }
    session.round_trip(1).await;
    assert_eq!(edge.node.present(), 0);
}

#[tokio::test]
async fn a_watch_has_answers_until_its_end() {
    let edge = Edge::start().await;
    let mut session = Session::open(&edge).await;
    session.send(7, watch("a")).await;
    until(|| edge.node.present() == 1).await;
    let sender = edge.node.watch_sender();
    for revision in 42..50 {
        sender.send(Ok(event(EventType::Acquired, revision))).unwrap();
    }
    for revision in 42..50 {
        assert_eq!(session.next().await, (7, Answer::Watch(event(EventType::Acquired, revision))));
    }
    session.round_trip(1).await;

    let end = WatchEvent { end_reason: "SLOW_READER".into(), ..event(EventType::End, 50) };
    sender.send(Ok(end.clone())).unwrap();
    sender.send(Ok(event(EventType::Acquired, 51))).unwrap();
    assert_eq!(session.next().await, (7, Answer::Watch(end)));
    // Nothing more, and the seq is free.
    until(|| edge.node.present() == 0).await;
    session.round_trip(7).await;
}

#[tokio::test]
async fn a_watch_that_is_refused_or_breaks_says_why() {
    let edge = Edge::start().await;
    let mut session = Session::open(&edge).await;
    let request = WatchRequest { from: GONE_REVISION, ..WatchRequest::default() };
    session.send(1, Call::Watch(request)).await;
    assert_eq!(session.next_reason().await, (1, Reason::Compacted));

    session.send(1, watch("a")).await;
    until(|| edge.node.present() == 1).await;
    edge.node.watch_sender().send(Err(ApiError::new(Reason::Compacted, "that is gone"))).unwrap();
    assert_eq!(session.next_reason().await, (1, Reason::Compacted));
    until(|| edge.node.present() == 0).await;

    // Not even one that ends without a word leaves the client waiting.
    session.send(1, watch("a")).await;
    until(|| edge.node.present() == 1).await;
    drop(edge.node.watch_sender());
    assert_eq!(session.next_reason().await, (1, Reason::Internal));
    session.round_trip(1).await;
}

#[tokio::test]
async fn a_watch_that_has_much_to_tell_holds_up_no_call() {
    const EVENTS: usize = 20_000;
    let edge = Edge::start().await;
    let mut session = Session::open(&edge).await;
    session.send(1, watch("a")).await;
    until(|| edge.node.present() == 1).await;
    let sender = edge.node.watch_sender();
    for revision in 0..EVENTS {
        sender.send(Ok(event(EventType::Acquired, revision as u64))).unwrap();
    }
    session.send(2, get("a")).await;
    let mut before = 0;
    while session.next().await.0 != 2 {
        before += 1;
    }
    assert!(before < EVENTS, "the call was answered last");
}

#[tokio::test]
async fn a_client_that_goes_away_leaves_nothing_behind() {
    let edge = Edge::start().await;
    let begin = async || {
        let session = Session::open(&edge).await;
        for seq in 1..=10 {
            session.send(seq, acquire("a", "a", 60_000)).await;
        }
        session.send(11, watch("a")).await;
        session.send(12, renew([SLOW_LEASE])).await;
        until(|| edge.node.present() == 11).await;
        session
    };
    drop(begin().await);
    until(|| edge.node.present() == 0).await;

    // The same on a connection that lives on.
    let mut client = edge.client().await;
    let (sender, receiver) = mpsc::channel(16);
    let answers = client.session(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    let mut session = Session { sender, answers };
    session.send(1, acquire("a", "a", 60_000)).await;
    session.send(2, renew([SLOW_LEASE])).await;
    session.round_trip(3).await;
    drop(session);
    until(|| edge.node.present() == 0).await;
    assert!(client.get_lock(GetLockRequest::default()).await.is_ok());
    // Nobody takes what they waited for.
    edge.node.slow.add_permits(1);
    assert!(client.get_lock(GetLockRequest::default()).await.is_ok());
    assert_eq!(edge.node.slow.available_permits(), 1);
}

#[tokio::test]
async fn whoever_has_no_more_to_say_gets_its_answers_but_waits_no_longer() {
    let edge = Edge::start().await;
    let mut session = Session::open(&edge).await;
    session.send(1, acquire("a", "a", 60_000)).await;
    session.send(2, watch("a")).await;
    session.send(3, renew([SLOW_LEASE])).await;
    until(|| edge.node.present() == 2 && edge.node.slow_begun.load(Ordering::SeqCst) == 1).await;
    session.send(4, get("a")).await;
    (session.sender, _) = mpsc::channel(1);
    assert_eq!(session.next().await.0, 4);
    until(|| edge.node.present() == 0).await;
    edge.node.slow.add_permits(1);
    assert_eq!(session.next().await.0, 3);
    assert_eq!(session.message().await, None);
}

#[tokio::test]
async fn a_node_that_stops_answers_what_is_under_way_then_says_so_and_ends_the_session() {
    let edge = Edge::start().await;
    let mut session = Session::open(&edge).await;
    session.send(1, acquire("a", "a", 60_000)).await;
    session.send(2, watch("a")).await;
    until(|| edge.node.present() == 2).await;

    edge.node.stopping.send_replace(true);
    let end = event(EventType::End, 42);
    edge.node.watch_sender().send(Ok(end.clone())).unwrap();
    assert_eq!(session.next().await, (2, Answer::Watch(end)));
    session.send(3, get("a")).await;
    edge.node.slow.add_permits(1);
    assert_eq!(session.next().await.0, 1);
    session.farewell().await;
    soon(edge.served).await.unwrap();
    assert!(!edge.node.asked.lock().unwrap().iter().any(|asked| matches!(asked, Asked::Get(_))));
}

#[tokio::test]
async fn what_never_ends_does_not_hold_up_the_stop_and_is_not_said_to_be_undone() {
    let edge = Edge::start().await;
    let mut session = Session::open(&edge).await;
    session.send(1, acquire("a", "a", 60_000)).await;
    session.send(2, watch("a")).await;
    session.send(3, renew([SLOW_LEASE])).await;
    until(|| edge.node.present() == 2).await;
    edge.node.stopping.send_replace(true);
    session.farewell().await;
    soon(edge.served).await.unwrap();
    until(|| edge.node.present() == 0).await;
}

#[tokio::test]
async fn a_session_in_which_nothing_happens_ends_at_once_with_the_node() {
    let edge = Edge::start().await;
    let mut session = Session::open(&edge).await;
    edge.node.stopping.send_replace(true);
    session.farewell().await;
    soon(edge.served).await.unwrap();
}

#[tokio::test]
async fn a_stream_is_told_what_others_do_to_the_leases_that_it_uses() {
    let edge = Edge::start().await;
    let mut session = Session::open(&edge).await;
    let mut other = Session::open(&edge).await;
    let changed = (0, Answer::LeaseChanged(LeaseChanged { lease_id: 1 }));
    // Of a lease that it has not used it hears nothing.
    edge.node.lease_news.tell(1);
    session.send(1, acquire("jobs", "a", 0)).await;
    session.next().await;
    edge.node.lease_news.tell(1);
    assert_eq!(session.next().await, changed);
    // A renewal that fails ends it, one that succeeds begins it.
    other.send(1, renew([1, 7])).await;
    other.next().await;
    edge.node.lease_news.tell(7);
    edge.node.lease_news.tell(1);
    assert_eq!((session.next().await, other.next().await), (changed.clone(), changed.clone()));
    // Its own revocation is no news.
    session.send(2, Call::RevokeLease(RevokeLeaseRequest { lease_id: 1, ..Default::default() })).await;
    session.next().await;
    edge.node.lease_news.tell(1);
    session.round_trip(3).await;
    assert_eq!(other.next().await, changed);
}
