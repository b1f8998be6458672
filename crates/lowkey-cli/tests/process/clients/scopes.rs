//! What a hold covers and whom it keeps out: names and subtrees, exclusive and shared; and the values
//! that are shown with it.

use lowkey_api::ApiError;
use lowkey_api::v1::lock_service_client::LockServiceClient;
use lowkey_api::v1::{AcquireLockRequest, EventType, Mode, ReleaseLockRequest, Scope};
use serde_json::{Value, json};
use tonic::transport::Channel;

use crate::clients::{Links, in_time, long_wait};
use crate::harness::{Cluster, Node, lease};

/// Something that one can ask for.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Wish {
    name: &'static str,
    mode: Mode,
    scope: Scope,
}

impl Wish {
    fn all() -> Vec<Self> {
        let mut wishes = Vec::new();
        for name in ["a", "a/b", "a/b/c", "a/c", "ab", "a/bc", "/a", "b"] {
            for mode in [Mode::Exclusive, Mode::Shared] {
                for scope in [Scope::Name, Scope::Subtree] {
                    wishes.push(Self { name, mode, scope });
                }
            }
        }
        wishes
    }

    /// True if this covers that name.
    fn covers(self, name: &str) -> bool {
        let below = name.strip_prefix(self.name).is_some_and(|rest| rest.starts_with('/'));
        self.name == name || (self.scope == Scope::Subtree && below)
    }

    fn conflicts_with(self, other: Self) -> bool {
        let both_shared = self.mode == Mode::Shared && other.mode == Mode::Shared;
        !both_shared && (self.covers(other.name) || other.covers(self.name))
    }

    fn request(self, owner: &str, lease_id: u64) -> AcquireLockRequest {
        AcquireLockRequest {
            lock_name: self.name.to_owned(),
            owner_id: owner.to_owned(),
            lease_id,
            mode: self.mode.into(),
            scope: self.scope.into(),
            ..AcquireLockRequest::default()
        }
    }

    fn release(self, lease_id: u64) -> ReleaseLockRequest {
        ReleaseLockRequest { lock_name: self.name.to_owned(), lease_id, ..ReleaseLockRequest::default() }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_held_keeps_out_exactly_what_it_conflicts_with() {
    let cluster = Cluster::start(1);
    let mut client = LockServiceClient::new(cluster.nodes[0].channel());
    let mine = lease(std::slice::from_mut(&mut client), "me", 600).await;
    let other = lease(std::slice::from_mut(&mut client), "other", 600).await;
    let (mut kept_out, mut let_in) = (0, 0);
    for held in Wish::all() {
        let grant = client.acquire_lock(held.request("me", mine)).await.unwrap().into_inner();
        // One asks after the other, but all at once: none of them waits for the one before.
        for asked in Wish::all() {
            match client.acquire_lock(asked.request("other", other)).await {
                Ok(_) => {
                    assert!(!held.conflicts_with(asked), "{held:?} let {asked:?} in");
                    client.release_lock(asked.release(other)).await.unwrap();
                    let_in += 1;
                }
                Err(status) => {
                    assert!(held.conflicts_with(asked), "{held:?} kept {asked:?} out");
                    let error = ApiError::from_status(&status).unwrap();
                    assert_eq!(error.reason.as_str(), "LOCK_HELD");
                    assert_eq!(error.metadata["held_name"], held.name);
                    assert_eq!(error.metadata["owner_id"], "me");
                    assert_eq!(error.metadata["fencing_token"], grant.fencing_token.to_string());
                    assert_eq!(error.metadata["mode"], held.mode.as_str_name());
                    assert_eq!(error.metadata["scope"], held.scope.as_str_name());
                    kept_out += 1;
                }
            }
        }
        client.release_lock(held.release(mine)).await.unwrap();
    }
    println!("{kept_out} pairs keep each other out, {let_in} do not");
    assert!(kept_out > 0 && let_in > 0);
}

/// Asks in JSON, at any node; the reason if it is refused.
fn ask(node: &Node, body: &Value) -> Result<Value, String> {
    let (status, text) = node.http("POST", "/v1/lock/acquire", &body.to_string()).unwrap();
    let answer: Value = serde_json::from_str(&text).unwrap();
    if status == 200 { Ok(answer) } else { Err(answer["reason"].as_str().unwrap().to_owned()) }
}

#[test]
fn json_says_it_in_words_at_every_node() {
    let cluster = Cluster::start(3);
    let wish = |name: &str, owner: &str, mode: &str, scope: &str| json!({"lockName": name, "ownerId": owner, "ttlSeconds": 60, "mode": mode, "scope": scope});
    let refused = Err("LOCK_HELD".to_owned());
    ask(&cluster.nodes[0], &wish("a", "root", "EXCLUSIVE", "SUBTREE")).unwrap();
    for node in &cluster.nodes {
        for below in ["a", "a/b", "a/b/c"] {
            assert_eq!(ask(node, &wish(below, "other", "SHARED", "NAME")), refused, "{below}");
        }
        ask(node, &wish("ab", &node.name, "SHARED", "NAME")).unwrap();
        assert_eq!(ask(node, &wish("ab", "other", "EXCLUSIVE", "NAME")), refused);
    }
    let shown = cluster.nodes[1].ok("GET", "/v1/lock?name=a", "");
    assert_eq!(
        (&shown["holders"][0]["mode"], &shown["holders"][0]["scope"]),
        (&json!("EXCLUSIVE"), &json!("SUBTREE"))
    );
    assert_eq!(cluster.nodes[2].ok("GET", "/v1/lock?name=ab", "")["holderCount"], 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_overtakes_neither_a_subtree_nor_an_exclusive_wish() {
    let cluster = Cluster::start(3);
    let links = Links::to(&cluster.nodes);
    let mut watching = Links::to([&cluster.nodes[1]]).watch_below("tree").await;
    let wish = |name: &str, owner: &str, mode: Mode, scope: Scope| AcquireLockRequest {
        mode: mode.into(),
        scope: scope.into(),
        ..long_wait(name, owner)
    };
    let (shared, exclusive, name, subtree) = (Mode::Shared, Mode::Exclusive, Scope::Name, Scope::Subtree);
    let leaf = links.acquire(&wish("tree/leaf", "leaf", shared, name)).await.answer();
    assert_eq!(watching.owners(EventType::Acquired, 1).await, ["leaf"]);
    let mut waiting = Vec::new();
    for (number, request) in [
        wish("tree", "gardener", exclusive, subtree),
        // These two could share with the leaf, or are elsewhere in the tree; but the gardener was first.
        wish("tree/leaf", "second leaf", shared, name),
        wish("tree/root", "root", exclusive, name),
        wish("tree", "visitor", shared, subtree),
    ]
    .into_iter()
    .enumerate()
    {
        let (links, owner) = (Links::to([&cluster.nodes[number % 3]]), request.owner_id.clone());
        waiting.push(tokio::spawn(async move { links.acquire(&request).await.answer() }));
        assert_eq!(watching.owners(EventType::Waiting, 1).await, [owner]);
    }

    links.release("tree/leaf", &leaf).await;
    assert_eq!(watching.owners(EventType::Released, 1).await, ["leaf"]);
    assert_eq!(watching.owners(EventType::Acquired, 1).await, ["gardener"]);
    let gardener = in_time("the tree", waiting.remove(0)).await.unwrap();
    links.release("tree", &gardener).await;
    // Of those behind, all that can be there together come in at once, in order.
    let freed = watching.change().await;
    assert_eq!((freed.r#type(), freed.owner.as_str()), (EventType::Released, "gardener"));
    for owner in ["second leaf", "root"] {
        let taken = watching.change().await;
        assert_eq!((taken.r#type(), taken.owner.as_str()), (EventType::Acquired, owner));
        assert_eq!(taken.revision, freed.revision, "by the same entry");
    }
    let second_leaf = in_time("the leaf", waiting.remove(0)).await.unwrap();
    let root = in_time("the root", waiting.remove(0)).await.unwrap();
    links.release("tree/root", &root).await;
    assert_eq!(watching.owners(EventType::Released, 1).await, ["root"]);
    assert_eq!(watching.owners(EventType::Acquired, 1).await, ["visitor"], "shared beside the second leaf");
    in_time("the visit", waiting.remove(0)).await.unwrap();
    links.release("tree/leaf", &second_leaf).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_not_in_its_own_way_but_holds_a_name_in_one_way_only() {
    let cluster = Cluster::start(3);
    let mut client: LockServiceClient<Channel> = cluster.nodes[1].client();
    let mine = lease(std::slice::from_mut(&mut client), "me", 600).await;
    let wish = |name, mode, scope| Wish { name, mode, scope }.request("me", mine);
    let root = client.acquire_lock(wish("a", Mode::Exclusive, Scope::Subtree)).await.unwrap().into_inner();
    let leaf = client.acquire_lock(wish("a/b", Mode::Exclusive, Scope::Name)).await.unwrap().into_inner();
    assert!(leaf.fencing_token > root.fencing_token);
    let again = client.acquire_lock(wish("a", Mode::Exclusive, Scope::Subtree)).await.unwrap().into_inner();
    assert_eq!(again, root, "the same grant");
    for (mode, scope) in [(Mode::Shared, Scope::Subtree), (Mode::Exclusive, Scope::Name)] {
        let status = client.acquire_lock(wish("a", mode, scope)).await.unwrap_err();
        assert_eq!(ApiError::from_status(&status).unwrap().reason.as_str(), "ALREADY_HELD");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn values_are_shown_listed_watched_and_changed_by_their_holder() {
    let cluster = Cluster::start(3);
    let links = Links::to(&cluster.nodes);
    let mut watching = links.watch("valued").await;
    let longest = "ü".repeat(2048);
    let mut first = AcquireLockRequest { value: longest.clone(), ..long_wait("valued", "me") };
    let grant = links.acquire(&first).await.answer();
    let change = watching.change().await;
    assert_eq!((change.r#type(), &change.value), (EventType::Acquired, &longest));
    for node in &cluster.nodes {
        assert_eq!(node.ok("GET", "/v1/lock?name=valued", "")["holders"][0]["value"], longest);
        let list = node.ok("GET", "/v1/locks?prefix=val", "");
        assert_eq!(list["locks"][0]["holders"][0]["value"], longest);
        let check =
            json!({"lockName": "valued", "fencingToken": grant.fencing_token.to_string()}).to_string();
        let check = node.ok("POST", "/v1/lock/check", &check);
        assert_eq!((&check["current"], &check["holder"]["value"]), (&json!(true), &json!(longest)));
        let stale = json!({"lockName": "valued", "fencingToken": (grant.fencing_token + 1).to_string()});
        let check = node.ok("POST", "/v1/lock/check", &stale.to_string());
        assert_eq!((&check["current"], &check["holder"]["ownerId"]), (&json!(false), &json!("me")));
    }

    first = AcquireLockRequest {
        lease_id: grant.lease_id,
        ttl_seconds: 0,
        value: "another".into(),
        request_id: "change".into(),
        ..first
    };
    let same = links.acquire(&first).await.answer();
    assert_eq!((same.fencing_token, same.lease_id), (grant.fencing_token, grant.lease_id));
    let change = watching.change().await;
    assert_eq!((change.r#type(), change.value.as_str()), (EventType::Value, "another"));
    assert_eq!(change.fencing_token, grant.fencing_token);
    first = AcquireLockRequest { value: String::new(), request_id: "no change".into(), ..first };
    links.acquire(&first).await.answer();
    assert_eq!(links.get("valued").await.holders[0].value, "another", "an empty one changes nothing");
    links.release("valued", &grant).await;
    assert_eq!(watching.change().await.r#type(), EventType::Released);
}
