use std::net::IpAddr;

use futures::{FutureExt as _, StreamExt as _, stream};
use http::{Extensions, HeaderMap, HeaderValue, header};
use lowkey_api::v1::{AcquireLockRequest, CreateLeaseRequest, GetStatusRequest, WatchEvent, WatchRequest};
use lowkey_core::{
    AccessChange, CertificateName, ClusterId, Command, GrantPath, PrincipalName, State, TokenHash, TokenId,
    Verb,
};

use super::*;
use crate::edge::CertificateNames;

/// A cluster's state, and the guard of a node that follows it.
struct World {
    state: State,
    guard: Arc<Guard>,
}

impl World {
    fn new() -> Self {
        Self { state: State::new(ClusterId([7; 16])), guard: Arc::new(Guard::open()) }
    }

    fn change(&mut self, change: AccessChange) {
        let revision = self.state.revision() + 1;
        let reply = self.state.apply(revision, 1, &Command::Access(Box::new(change))).reply;
        assert!(reply.is_ok(), "{reply:?}");
        self.guard.publish(self.state.access());
    }

    /// A principal with a certificate's name, and a token of its own.
    fn principal(&mut self, name: &str, path: &str, verbs: &[Verb]) -> (TokenId, String) {
        let (text, token, hash) = new_token().unwrap();
        let principal = PrincipalName::parse(name).unwrap();
        let names = vec![CertificateName::parse(&format!("{name}.example")).unwrap()];
        self.change(AccessChange::AddPrincipal { principal: principal.clone(), names });
        self.change(AccessChange::AddToken { principal: principal.clone(), token, hash });
        let (path, verbs) = (GrantPath::parse(path).unwrap(), verbs.iter().copied().collect());
        self.change(AccessChange::Grant { principal, path, verbs });
        (token, text)
    }

    fn shown(&self, token: Option<&str>, names: &[&str]) -> Shown {
        let (mut headers, mut extensions) = (HeaderMap::new(), Extensions::new());
        if let Some(token) = token {
            let value = HeaderValue::try_from(format!("Bearer {token}")).unwrap();
            headers.insert(header::AUTHORIZATION, value);
        }
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        extensions.insert(CertificateNames(names.into()));
        extensions.insert(ClientAddress(IpAddr::from([10, 0, 0, 1])));
        self.guard.look_at(&headers, &mut extensions);
        Shown::of(&extensions)
    }

    fn acquires(&self, shown: &Shown, lock: &str) -> Result<(), Reason> {
        let acquire = AcquireLockRequest { lock_name: lock.into(), ..Default::default() };
        self.guard.permit(shown, acquire).map(drop).map_err(|error| error.reason)
    }
}

fn closed() -> (World, String, TokenId, String) {
    let mut world = World::new();
    let (_, ops) = world.principal("ops", "/", &[Verb::Admin]);
    let (id, billing) = world.principal("billing", "billing", &[Verb::Acquire, Verb::Watch]);
    world.change(AccessChange::Require { required: true });
    (world, ops, id, billing)
}

#[test]
fn a_token_or_a_certificate_opens_what_was_granted_and_nothing_else() {
    let (world, ops, _, billing) = closed();
    for shown in [world.shown(Some(&billing), &[]), world.shown(None, &["x", "billing.example"])] {
        assert_eq!(world.acquires(&shown, "billing/a"), Ok(()));
        assert_eq!(world.acquires(&shown, "billing2"), Err(Reason::PermissionDenied));
        assert!(world.guard.permit(&shown, CreateLeaseRequest::default()).is_ok());
    }
    let nobody = world.shown(None, &["stranger.example"]);
    assert_eq!(world.acquires(&nobody, "billing"), Err(Reason::Unauthenticated));
    assert_eq!(world.acquires(&world.shown(Some(&ops), &[]), "billing"), Err(Reason::PermissionDenied));
    assert!(world.guard.permit(&nobody, GetStatusRequest {}).is_err());
}

#[test]
fn a_wrong_token_is_not_passed_over_for_a_good_certificate() {
    let (world, _, _, billing) = closed();
    let wrong = billing.replace('0', "1");
    let shown = world.shown(Some(&wrong), &["billing.example"]);
    assert_eq!(world.acquires(&shown, "billing"), Err(Reason::Unauthenticated));
    let reasons: Vec<_> =
        (0..30).map(|_| world.acquires(&world.shown(Some(&wrong), &[]), "billing").unwrap_err()).collect();
    assert!(reasons.contains(&Reason::LimitLogins));
    assert_eq!(world.acquires(&world.shown(Some(&billing), &[]), "billing"), Ok(()), "it is valid");
}

#[test]
fn what_is_shown_is_only_what_the_guard_has_seen() {
    let world = World::new();
    let mut extensions = Extensions::new();
    extensions.insert(Shown::claimed(Caller::LocalAdmin));
    world.guard.look_at(&HeaderMap::new(), &mut extensions);
    assert_eq!(*Shown::of(&extensions).caller(), Caller::Nobody);
    extensions.insert(LocalAdmin);
    world.guard.look_at(&HeaderMap::new(), &mut extensions);
    assert_eq!(*Shown::of(&extensions).caller(), Caller::LocalAdmin);
}

#[tokio::test]
async fn what_lasts_ends_when_it_is_taken_away() {
    let (mut world, _, id, billing) = closed();
    let shown = world.shown(Some(&billing), &[]);
    let watch = WatchRequest { name: "billing/a".into(), ..Default::default() };
    let permitted = world.guard.permit(&shown, watch).unwrap();
    let (watch, caller) = permitted.into_parts();
    let endless = Box::pin(stream::pending::<Result<WatchEvent, ApiError>>());
    let mut events = world.guard.while_permitted(caller.clone(), watch, endless);
    let mut expelled = Box::pin(Arc::clone(&world.guard).expelled(caller));
    assert!(events.next().now_or_never().is_none() && (&mut expelled).now_or_never().is_none());
    // Something else changes.
    world.principal("other", "other", &[Verb::Read]);
    assert!(events.next().now_or_never().is_none());
    world.change(AccessChange::RevokeToken { token: id });
    let last = events.next().now_or_never().unwrap().unwrap();
    assert_eq!(last.unwrap_err().reason, Reason::Unauthenticated);
    assert!(events.next().await.is_none());
    assert_eq!(expelled.await.reason, Reason::Unauthenticated);
}

#[tokio::test]
async fn who_came_while_it_was_open_has_to_go_when_access_is_required() {
    let mut world = World::new();
    let watch = WatchRequest { name: "a".into(), ..Default::default() };
    let (watch, caller) = world.guard.permit(&Shown::NOTHING, watch).unwrap().into_parts();
    let endless = Box::pin(stream::pending::<Result<WatchEvent, ApiError>>());
    let mut events = world.guard.while_permitted(caller, watch, endless);
    world.principal("ops", "/", &[Verb::Admin]);
    assert!(events.next().now_or_never().is_none());
    world.change(AccessChange::Require { required: true });
    assert!(events.next().now_or_never().unwrap().unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_hears_of_no_leader_believes_its_table_for_a_while_only() {
    let (world, _, _, billing) = closed();
    let shown = world.shown(Some(&billing), &[]);
    world.guard.in_touch(false);
    tokio::time::advance(BELIEF_TIME).await;
    assert_eq!(world.acquires(&shown, "billing"), Ok(()));
    tokio::time::advance(Duration::from_millis(2)).await;
    world.guard.in_touch(false);
    assert_eq!(world.acquires(&shown, "billing"), Err(Reason::AccessUnknown));
    world.guard.in_touch(true);
    assert_eq!(world.acquires(&shown, "billing"), Ok(()));
}

#[test]
fn before_it_is_required_what_would_be_refused_is_noted() {
    let mut world = World::new();
    assert_eq!(world.acquires(&world.shown(None, &[]), "a"), Ok(()));
    assert!(world.guard.would_be_refused().is_empty(), "there are no principals");
    let (_, token) = world.principal("billing", "billing", &[Verb::Acquire]);
    for _ in 0..2 {
        assert_eq!(world.acquires(&world.shown(None, &[]), "a"), Ok(()));
    }
    assert_eq!(world.acquires(&world.shown(Some(&token), &[]), "a"), Ok(()));
    assert_eq!(world.acquires(&world.shown(Some(&token), &[]), "billing"), Ok(()));
    let told = world.guard.would_be_refused();
    let told: Vec<_> = told.iter().map(|one| (one.client.as_str(), one.why.as_str(), one.count)).collect();
    assert_eq!(
        told,
        [
            ("10.0.0.1", "it shows neither a token nor a known certificate", 2),
            ("billing", "it has no acquire on a", 1)
        ]
    );
}

#[test]
fn owners_that_the_leader_would_refuse_are_noted_too() {
    let mut world = World::new();
    let (_, token) = world.principal("billing", "billing", &[Verb::Acquire]);
    let shown = world.shown(Some(&token), &[]);
    for owner in ["billing", "billing/host", "worker-1", "worker-2", "billing2", ""] {
        let lease = CreateLeaseRequest { owner_id: owner.into(), ttl_seconds: 5, ..Default::default() };
        world.guard.permit(&shown, lease).unwrap();
    }
    let told = world.guard.would_be_refused();
    let told: Vec<_> = told.iter().map(|one| (one.client.as_str(), one.why.as_str(), one.count)).collect();
    assert_eq!(told, [("billing", "it names owners that are not billing, and not below billing/", 3)]);
}

#[test]
fn a_hash_is_no_secret() {
    let (mut world, ..) = closed();
    let principal = PrincipalName::parse("billing").unwrap();
    let (token, hash) = (TokenId([1; 8]), TokenHash([2; 32]));
    world.change(AccessChange::AddToken { principal, token, hash });
    let shown = world.shown(Some(&format!("lk_{token}_{hash}")), &[]);
    assert_eq!(world.acquires(&shown, "billing"), Err(Reason::Unauthenticated));
}

#[test]
fn a_stranger_cannot_be_the_first_admin() {
    let world = World::new();
    let add = || lowkey_api::v1::AddPrincipalRequest { principal: "me".into(), ..Default::default() };
    let refused = world.guard.permit(&world.shown(None, &[]), add()).map(drop);
    assert_eq!(refused.unwrap_err().reason, Reason::Unauthenticated);
    let mut extensions = Extensions::new();
    extensions.insert(LocalAdmin);
    world.guard.look_at(&HeaderMap::new(), &mut extensions);
    assert!(world.guard.permit(&Shown::of(&extensions), add()).is_ok());
}
