//! Elections: one leader, the next in line after it, and nobody else woken.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lowkey_api::v1::election_service_client::ElectionServiceClient;
use lowkey_api::v1::lock_service_client::LockServiceClient;
use lowkey_api::v1::{
    CampaignRequest, CampaignResponse, EventType, HeartbeatRequest, LeaderRequest, ObserveEvent,
    ObserveRequest, ProclaimRequest, ResignRequest,
};
use lowkey_api::{ApiError, Reason};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use crate::clients::{Crowd, Links, in_time};
use crate::harness::{Cluster, Node, lease, rounds};

const TTL: Duration = Duration::from_secs(5);
/// How much later than it should a loaded machine may do something.
const SLACK: Duration = Duration::from_secs(3);

/// The leases to renew, and when the last renewal of each was sent.
type Renewals = Arc<Mutex<BTreeMap<u64, Instant>>>;

/// Renews the leases that are in `renewals`, every second, on one stream, for as long as they are in there.
async fn renew(channel: Channel, renewals: Renewals) {
    let (sender, receiver) = mpsc::channel(256);
    let stream = LockServiceClient::new(channel).heartbeat(ReceiverStream::new(receiver)).await;
    let mut answers = stream.unwrap().into_inner();
    loop {
        let leases: Vec<u64> = renewals.lock().unwrap().keys().copied().collect();
        let mut sent = 0;
        for lease_id in leases {
            // From now on it counts as sent; whoever was removed before sends nothing more.
            if let Some(last) = renewals.lock().unwrap().get_mut(&lease_id) {
                *last = Instant::now();
            } else {
                continue;
            }
            sender.send(HeartbeatRequest { lease_id, seq: 0, holds: None }).await.unwrap();
            sent += 1;
        }
        for _ in 0..sent {
            let answer = answers.next().await.unwrap().unwrap();
            assert_eq!(answer.error_reason, "", "a lease that was renewed was lost");
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

fn candidate(number: usize) -> String {
    format!("candidate-{number}")
}

/// Stands for election for as long as it takes, with the own name as the value.
fn campaign(election: &str, owner: &str, lease_id: u64) -> CampaignRequest {
    CampaignRequest {
        election: election.to_owned(),
        owner_id: owner.to_owned(),
        lease_id,
        value: format!("{owner} at work"),
        request_id: format!("{owner} stands for {election}"),
        ..CampaignRequest::default()
    }
}

/// An election, seen from outside.
struct Observing(Streaming<ObserveEvent>);

impl Observing {
    async fn start(node: &Node, election: &str) -> Self {
        let request = ObserveRequest { election: election.to_owned() };
        Self(ElectionServiceClient::new(node.channel()).observe(request).await.unwrap().into_inner())
    }

    /// The next event that is not a sign of life: its kind, who leads from then on, and with which value.
    async fn next(&mut self) -> (EventType, Option<(String, String)>) {
        let (event, leader) = self.event().await;
        (event.r#type(), leader)
    }

    async fn event(&mut self) -> (ObserveEvent, Option<(String, String)>) {
        loop {
            let event = in_time("an event", self.0.next()).await.unwrap().unwrap();
            if event.r#type() != EventType::Heartbeat {
                let leader = event.leader.clone().map(|leader| (leader.owner_id, leader.value));
                return (event, leader);
            }
        }
    }
}

fn leads(owner: &str, value: &str) -> Option<(String, String)> {
    Some((owner.to_owned(), value.to_owned()))
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_leader_dies_the_next_in_line_is_elected_in_time_and_nobody_else_is_woken() {
    let candidates = rounds("LOWKEY_CANDIDATES", 50);
    let cluster = Cluster::start(3);
    let raft_leader = cluster.wait_whole();
    let links = Links::to(&cluster.nodes);
    let mut watching = links.watch("chief").await;
    let mut observing = Observing::start(&cluster.nodes[(raft_leader + 1) % 3], "chief").await;
    assert_eq!(observing.next().await, (EventType::Vacant, None), "nobody leads at first");

    let renewals = Renewals::default();
    let renewing = tokio::spawn(renew(cluster.nodes[raft_leader].channel(), Arc::clone(&renewals)));
    let crowd = Crowd::new(&cluster, candidates);
    let mut calls: JoinSet<(String, Instant, Result<CampaignResponse, Status>)> = JoinSet::new();
    let mut leases = BTreeMap::new();
    let mut making = JoinSet::new();
    for number in 0..candidates {
        let mut client = LockServiceClient::new(crowd.links(number).first());
        let owner = candidate(number);
        let (renewals, ttl) = (Arc::clone(&renewals), TTL.as_secs() as i64);
        making.spawn(async move {
            let sent = Instant::now();
            let lease_id = lease(std::slice::from_mut(&mut client), &owner, ttl).await;
            renewals.lock().unwrap().insert(lease_id, sent);
            (number, owner, lease_id)
        });
    }
    while let Some(made) = making.join_next().await {
        let (number, owner, lease_id) = made.unwrap();
        let request = campaign("chief", &owner, lease_id);
        let mut client = ElectionServiceClient::new(crowd.links(number).first());
        leases.insert(owner.clone(), lease_id);
        calls.spawn(async move {
            let answer = client.campaign(request).await;
            (owner, Instant::now(), answer.map(tonic::Response::into_inner))
        });
    }
    let mut line = watching.owners(EventType::Acquired, 1).await;
    line.extend(watching.owners(EventType::Waiting, candidates - 1).await);
    let (mut leader, _, elected) = in_time("the first leader", calls.join_next()).await.unwrap().unwrap();
    let mut token = elected.unwrap().fencing_token;
    assert_eq!(leader, line[0]);
    assert_eq!(observing.next().await, (EventType::Acquired, leads(&leader, &format!("{leader} at work"))));

    for next in line.iter().skip(1).take(rounds("LOWKEY_DEAD_LEADERS", 2)) {
        let (term, before) = cluster.nodes[raft_leader].log_position();
        let last_renewal = renewals.lock().unwrap().remove(&leases[&leader]).unwrap();
        let (owner, at, elected) = in_time("the next leader", calls.join_next()).await.unwrap().unwrap();
        let elected = elected.unwrap();
        assert_eq!(&owner, next, "the first in line");
        assert!(elected.fencing_token > token, "with a higher token");
        let took = at - last_renewal;
        assert!(took >= TTL, "{leader} could have believed in its lead {took:?} after its last renewal");
        assert!(took < TTL + Duration::from_secs(1) + SLACK, "it took {took:?}");
        assert!(calls.try_join_next().is_none(), "somebody else was woken");
        if cluster.nodes[raft_leader].log_position().0 == term {
            cluster.nodes[raft_leader]
                .assert_applied(before + 1, "one entry ended the old lead and began the new");
        }

        let (freed, taken) = (watching.change().await, watching.change().await);
        assert_eq!((freed.r#type(), freed.owner.as_str()), (EventType::Expired, leader.as_str()));
        assert_eq!((taken.r#type(), &taken.owner), (EventType::Acquired, next));
        assert_eq!((freed.revision, taken.revision), (elected.revision, elected.revision));
        let (gone, nobody) = observing.event().await;
        assert_eq!((gone.r#type(), nobody), (EventType::Expired, None));
        let (come, somebody) = observing.event().await;
        assert_eq!((come.r#type(), somebody), (EventType::Acquired, leads(next, &format!("{next} at work"))));
        assert!((gone.revision, gone.ordinal) < (come.revision, come.ordinal));
        println!(
            "{candidates} candidates: the next one led {} ms after the old one's last renewal, with a time to live of {} ms",
            took.as_millis(),
            TTL.as_millis()
        );
        (leader, token) = (next.clone(), elected.fencing_token);
    }

    // All the others still wait, in line, and none of their calls was answered.
    assert!(calls.try_join_next().is_none());
    let shown = links.get("chief").await;
    assert_eq!(shown.waiter_count as usize, calls.len());
    assert_eq!(shown.holders[0].owner_id, leader);
    assert!(!renewing.is_finished(), "all leases were renewed");
    renewing.abort();
    calls.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_election_is_told_as_it_goes() {
    let cluster = Cluster::start(3);
    let mut client = ElectionServiceClient::new(cluster.nodes[0].channel());
    let mut locks = [cluster.nodes[1].client()];
    let (one, two) = (lease(&mut locks, "one", 600).await, lease(&mut locks, "two", 600).await);
    let asked = LeaderRequest { election: "chief".into(), stale: false };
    let none = client.leader(asked.clone()).await.unwrap().into_inner();
    assert_eq!((none.leader, none.candidates), (None, 0), "that nobody leads is no error");
    let mut observing = [
        Observing::start(&cluster.nodes[0], "chief").await,
        Observing::start(&cluster.nodes[1], "chief").await,
        Observing::start(&cluster.nodes[2], "chief").await,
    ];
    for stream in &mut observing {
        assert_eq!(stream.next().await, (EventType::Vacant, None), "the present comes first");
    }

    let first = client.campaign(campaign("chief", "one", one)).await.unwrap().into_inner();
    let mut waiting = client.clone();
    let second = tokio::spawn(async move { waiting.campaign(campaign("chief", "two", two)).await });
    let line = async {
        while client.leader(asked.clone()).await.unwrap().into_inner().candidates == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    in_time("the second candidate", line).await;
    let mut proclaim = ProclaimRequest {
        election: "chief".into(),
        owner_id: "one".into(),
        lease_id: one,
        fencing_token: first.fencing_token,
        value: "one has moved".into(),
        ..ProclaimRequest::default()
    };
    client.proclaim(proclaim.clone()).await.unwrap();
    let mut newcomer = Observing::start(&cluster.nodes[1], "chief").await;
    assert_eq!(newcomer.next().await, (EventType::Acquired, leads("one", "one has moved")));

    let resign = |owner: &str, lease_id, fencing_token| ResignRequest {
        election: "chief".into(),
        owner_id: owner.to_owned(),
        lease_id,
        fencing_token,
        ..ResignRequest::default()
    };
    assert!(client.resign(resign("one", one, first.fencing_token)).await.unwrap().into_inner().resigned);
    let second = in_time("the second leader", second).await.unwrap().unwrap().into_inner();
    assert!(second.fencing_token > first.fencing_token && second.lease_id == two);
    let reason = |status: Status| ApiError::from_status(&status).unwrap().reason;
    assert_eq!(reason(client.proclaim(proclaim.clone()).await.unwrap_err()), Reason::NotOwner);
    let seen = client.leader(asked.clone()).await.unwrap().into_inner();
    let leader = seen.leader.unwrap();
    assert_eq!((leader.owner_id.as_str(), leader.value.as_str()), ("two", "two at work"));
    assert_eq!((leader.fencing_token, seen.candidates), (second.fencing_token, 0));

    proclaim = ProclaimRequest { owner_id: "two".into(), lease_id: two, ..proclaim };
    assert_eq!(reason(client.proclaim(proclaim.clone()).await.unwrap_err()), Reason::StaleToken);
    client.resign(resign("two", two, second.fencing_token)).await.unwrap();
    assert_eq!(reason(client.proclaim(proclaim).await.unwrap_err()), Reason::LockNotFound);
    assert_eq!(client.leader(asked).await.unwrap().into_inner().leader, None);

    for stream in &mut observing {
        assert_eq!(stream.next().await, (EventType::Acquired, leads("one", "one at work")));
        assert_eq!(stream.next().await, (EventType::Value, leads("one", "one has moved")));
        assert_eq!(stream.next().await, (EventType::Released, None));
        assert_eq!(stream.next().await, (EventType::Acquired, leads("two", "two at work")));
        assert_eq!(stream.next().await, (EventType::Released, None));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_candidate_that_gives_up_leaves_the_line_and_one_that_does_not_wait_is_told_who_leads() {
    let cluster = Cluster::start(3);
    let mut client = ElectionServiceClient::new(cluster.nodes[0].channel());
    let mut locks = [cluster.nodes[1].client()];
    let (one, two) = (lease(&mut locks, "one", 600).await, lease(&mut locks, "two", 600).await);
    let mut watching = Links::to(&cluster.nodes).watch("chief").await;
    let first = client.campaign(campaign("chief", "one", one)).await.unwrap().into_inner();
    assert_eq!(watching.owners(EventType::Acquired, 1).await, ["one"]);

    let hasty =
        CampaignRequest { wait_ms: Some(0), request_id: "hasty".into(), ..campaign("chief", "two", two) };
    let error = ApiError::from_status(&client.campaign(hasty).await.unwrap_err()).unwrap();
    assert_eq!((error.reason, error.metadata["owner_id"].as_str()), (Reason::LockHeld, "one"));
    assert_eq!(error.metadata["fencing_token"], first.fencing_token.to_string());

    let mut waiting = client.clone();
    let candidacy = tokio::spawn(async move { waiting.campaign(campaign("chief", "two", two)).await });
    assert_eq!(watching.owners(EventType::Waiting, 1).await, ["two"]);
    let give_up = ResignRequest {
        election: "chief".into(),
        owner_id: "two".into(),
        lease_id: two,
        campaign_request_id: campaign("chief", "two", two).request_id,
        ..ResignRequest::default()
    };
    client.resign(give_up).await.unwrap();
    let status = in_time("the end of a candidacy", candidacy).await.unwrap().unwrap_err();
    assert_eq!(ApiError::from_status(&status).unwrap().reason, Reason::WaitCancelled);
    assert_eq!(watching.owners(EventType::Cancelled, 1).await, ["two"]);
    let leader = client.leader(LeaderRequest { election: "chief".into(), stale: false }).await.unwrap();
    assert_eq!(leader.into_inner().leader.unwrap().owner_id, "one");
}
