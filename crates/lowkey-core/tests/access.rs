//! Random histories of the access table against a model: a list of facts, searched from end to end.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::collections::BTreeSet;

use lowkey_core::{
    AccessChange, Caller, CertificateName, ClusterId, Command, FirstNumbers, GrantPath, NewBeginning,
    NodeIdentity, NodeInfo, NodeName, On, PrincipalName, Refusal, Reply, State, TokenHash, TokenId, Verb,
    Verbs,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;

/// One thing that is so.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fact {
    Exists(String),
    Name(String, String),
    Token(String, u8, u8),
    May(String, String, &'static str),
}

impl Fact {
    fn principal(&self) -> &str {
        match self {
            Self::Exists(principal)
            | Self::Name(principal, _)
            | Self::Token(principal, ..)
            | Self::May(principal, ..) => principal,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    facts: BTreeSet<Fact>,
    required: bool,
}

impl Model {
    fn knows(&self, principal: &PrincipalName) -> bool {
        self.facts.contains(&Fact::Exists(principal.to_string()))
    }

    fn has_admin(&self) -> bool {
        let proves = |principal: &str| {
            let is_proof = |fact: &Fact| matches!(fact, Fact::Name(..) | Fact::Token(..));
            self.facts.iter().any(|fact| is_proof(fact) && fact.principal() == principal)
        };
        let is_admin = |fact: &Fact| match fact {
            Fact::May(principal, path, verb) => path == "/" && *verb == "admin" && proves(principal),
            _ => false,
        };
        self.facts.iter().any(is_admin)
    }

    /// What the facts are after a change; nothing if it is refused.
    fn after(&self, change: &AccessChange) -> Option<Self> {
        let mut next = self.clone();
        let facts = &mut next.facts;
        match change {
            AccessChange::AddPrincipal { principal, names } => {
                facts.insert(Fact::Exists(principal.to_string()));
                for name in names {
                    let is_anothers = |fact: &Fact| match fact {
                        Fact::Name(whose, known) => known == name.as_str() && whose != principal.as_str(),
                        _ => false,
                    };
                    if self.facts.iter().any(is_anothers) {
                        return None;
                    }
                    facts.insert(Fact::Name(principal.to_string(), name.to_string()));
                }
            }
            AccessChange::RemovePrincipal { principal } => {
                self.knows(principal).then_some(())?;
                facts.retain(|fact| fact.principal() != principal.as_str());
            }
            AccessChange::RemoveName { principal, name } => {
                self.knows(principal).then_some(())?;
                facts.remove(&Fact::Name(principal.to_string(), name.to_string()));
            }
            AccessChange::AddToken { principal, token, hash } => {
                self.knows(principal).then_some(())?;
                let new = Fact::Token(principal.to_string(), token.0[0], hash.0[0]);
                let clashes = |fact: &Fact| {
                    matches!(fact, Fact::Token(_, known, _) if *known == token.0[0]) && *fact != new
                };
                if self.facts.iter().any(clashes) {
                    return None;
                }
                facts.insert(new);
            }
            AccessChange::RevokeToken { token } => {
                facts.retain(|fact| !matches!(fact, Fact::Token(_, known, _) if *known == token.0[0]));
                (facts.len() < self.facts.len()).then_some(())?;
            }
            AccessChange::Grant { principal, path, verbs } => {
                self.knows(principal).then_some(())?;
                let may = |verb: Verb| Fact::May(principal.to_string(), path.to_string(), verb.as_str());
                facts.extend(verbs.iter().map(may));
            }
            AccessChange::Revoke { principal, path, verbs } => {
                self.knows(principal).then_some(())?;
                for verb in verbs.iter() {
                    facts.remove(&Fact::May(principal.to_string(), path.to_string(), verb.as_str()));
                }
            }
            AccessChange::Require { required } => next.required = *required,
        }
        // While access is required, the last who can manage it cannot go; and it is not required without one.
        let requires = matches!(change, AccessChange::Require { .. });
        let must_have = next.required && (requires || self.has_admin());
        (!must_have || next.has_admin()).then_some(next)
    }

    fn of(state: &State) -> Self {
        let mut facts = BTreeSet::new();
        for (name, principal) in state.access().principals() {
            facts.insert(Fact::Exists(name.to_string()));
            facts.extend(principal.names.iter().map(|one| Fact::Name(name.to_string(), one.to_string())));
            let token =
                |(id, hash): (&TokenId, &TokenHash)| Fact::Token(name.to_string(), id.0[0], hash.0[0]);
            facts.extend(principal.tokens.iter().map(token));
            for (path, verbs) in &principal.grants {
                assert!(!verbs.is_empty(), "a grant of nothing is none");
                let may = |verb: Verb| Fact::May(name.to_string(), path.to_string(), verb.as_str());
                facts.extend(verbs.iter().map(may));
            }
        }
        Self { facts, required: state.access().is_required() }
    }
}

fn principal() -> impl Strategy<Value = PrincipalName> {
    (0..3u8).prop_map(|number| PrincipalName::parse(&format!("p{number}")).unwrap())
}

fn certificate_name() -> impl Strategy<Value = CertificateName> {
    (0..3u8).prop_map(|number| CertificateName::parse(&format!("{number}.example")).unwrap())
}

fn verbs() -> impl Strategy<Value = Verbs> {
    vec(prop::sample::select(Verb::ALL.to_vec()), 1..4).prop_map(|verbs| verbs.into_iter().collect())
}

fn path() -> impl Strategy<Value = GrantPath> {
    prop::sample::select(vec!["/", "a", "a/b"]).prop_map(|path| GrantPath::parse(path).unwrap())
}

fn token() -> impl Strategy<Value = TokenId> {
    (0..4u8).prop_map(|number| TokenId([number; 8]))
}

fn change() -> impl Strategy<Value = AccessChange> {
    prop_oneof![
        3 => (principal(), vec(certificate_name(), 0..2))
            .prop_map(|(principal, names)| AccessChange::AddPrincipal { principal, names }),
        1 => principal().prop_map(|principal| AccessChange::RemovePrincipal { principal }),
        1 => (principal(), certificate_name())
            .prop_map(|(principal, name)| AccessChange::RemoveName { principal, name }),
        2 => (principal(), token(), 0..2u8).prop_map(|(principal, token, hash)| AccessChange::AddToken {
            principal,
            token,
            hash: TokenHash([hash; 32])
        }),
        1 => token().prop_map(|token| AccessChange::RevokeToken { token }),
        4 => (principal(), path(), verbs())
            .prop_map(|(principal, path, verbs)| AccessChange::Grant { principal, path, verbs }),
        2 => (principal(), path(), verbs())
            .prop_map(|(principal, path, verbs)| AccessChange::Revoke { principal, path, verbs }),
        2 => any::<bool>().prop_map(|required| AccessChange::Require { required }),
    ]
}

fn command(change: &AccessChange) -> Command {
    Command::Access(Box::new(change.clone()))
}

proptest! {
    #[test]
    fn the_table_is_what_the_model_says(changes in vec(change(), 1..40)) {
        let (mut state, mut model) = (State::new(ClusterId([7; 16])), Model::default());
        for (revision, change) in (1..).zip(&changes) {
            let command = command(change);
            prop_assert_eq!(Command::decode(&command.encode()), Ok(command.clone()));
            let checked = state.check(&command);
            let applied = state.apply(revision, 1, &command);
            prop_assert_eq!(applied.reply.is_ok(), checked.is_ok());
            prop_assert_eq!(&applied.events, &[]);
            match model.after(change) {
                Some(next) => {
                    prop_assert_eq!(applied.reply, Ok(Reply::AccessChanged));
                    model = next;
                }
                None => prop_assert!(applied.reply.is_err(), "{change:?} was not refused"),
            }
            prop_assert_eq!(&Model::of(&state), &model);
            let read = State::decode_snapshot(&state.encode_snapshot()).unwrap();
            prop_assert_eq!(read.digest(), state.digest());
            prop_assert_eq!(&read, &state);
        }
    }

    #[test]
    fn a_change_that_is_repeated_changes_nothing(changes in vec(change(), 1..30)) {
        let mut state = State::new(ClusterId([7; 16]));
        for (revision, change) in (1..).zip(&changes) {
            let is_done = state.apply(2 * revision, 1, &command(change)).reply.is_ok();
            let (access, digest) = (state.access().clone(), state.encode_snapshot());
            let again = state.apply(2 * revision + 1, 1, &command(change)).reply;
            // What was taken away is not there a second time.
            let takes_away =
                matches!(change, AccessChange::RemovePrincipal { .. } | AccessChange::RevokeToken { .. });
            prop_assert!(again.is_ok() == is_done || takes_away);
            prop_assert_eq!(state.access(), &access);
            prop_assert_eq!(digest.len(), state.encode_snapshot().len());
        }
    }

    #[test]
    fn nobody_may_more_than_was_granted(changes in vec(change(), 1..40)) {
        let mut state = State::new(ClusterId([7; 16]));
        for (revision, change) in (1..).zip(&changes) {
            state.apply(revision, 1, &command(change));
        }
        let (access, model) = (state.access(), Model::of(&state));
        let callers = (0..4u8).flat_map(|id| [0, 1].map(|hash| (id, hash)));
        for (id, hash) in callers {
            let caller = access.by_token(TokenId([id; 8]), &TokenHash([hash; 32]));
            let whose = model.facts.iter().find_map(|fact| match fact {
                Fact::Token(whose, known, known_hash) if (*known, *known_hash) == (id, hash) => Some(whose),
                _ => None,
            });
            prop_assert_eq!(caller.as_ref().and_then(Caller::principal).map(|name| name.as_str()), whose.map(String::as_str));
            let caller = caller.unwrap_or(Caller::Nobody);
            for (name, paths) in [("a", &["/", "a"][..]), ("a/b", &["/", "a", "a/b"]), ("ab", &["/"])] {
                for verb in Verb::ALL {
                    let granted = |path: &&str| {
                        whose.is_some_and(|whose| {
                            model.facts.contains(&Fact::May(whose.clone(), (*path).into(), verb.as_str()))
                        })
                    };
                    let may = access.judge(&caller, verb, On::Name(name)).is_ok();
                    prop_assert_eq!(may, paths.iter().any(granted), "{:?} {} {}", caller, verb, name);
                }
            }
        }
    }
}

/// Random histories prove nothing about what they never meet.
#[test]
fn the_random_histories_meet_every_refusal() {
    let mut runner = TestRunner::deterministic();
    let mut met = [0; 5];
    for _ in 0..300 {
        let mut state = State::new(ClusterId([7; 16]));
        for (revision, change) in (1..).zip(vec(change(), 1..40).new_tree(&mut runner).unwrap().current()) {
            match state.apply(revision, 1, &command(&change)).reply {
                Ok(_) if state.access().is_required() => met[0] += 1,
                Ok(_) => {}
                Err(Refusal::PrincipalNotFound { .. }) => met[1] += 1,
                Err(Refusal::TokenNotFound { .. }) => met[2] += 1,
                Err(Refusal::ProofTaken { .. }) => met[3] += 1,
                Err(Refusal::AdminNeeded) => met[4] += 1,
                Err(other) => panic!("{other:?}"),
            }
        }
    }
    assert!(met.iter().all(|count| *count >= 20), "{met:?}");
}

fn name(text: &str) -> PrincipalName {
    PrincipalName::parse(text).unwrap()
}

#[test]
fn there_may_be_only_so_much_of_everything() {
    let mut state = State::new(ClusterId([7; 16]));
    let mut revision = 0;
    let mut apply = |change: AccessChange| {
        revision += 1;
        state.apply(revision, 1, &command(&change)).reply
    };
    let add = |n: usize| AccessChange::AddPrincipal { principal: name(&format!("p{n}")), names: vec![] };
    assert!((0..1000).all(|n| apply(add(n)).is_ok()));
    assert_eq!(apply(add(1000)), Err(Refusal::AccessLimit { what: "principals", max: 1000 }));
    assert!(apply(add(7)).is_ok(), "it is one of them");
    let token = |n: u8| AccessChange::AddToken {
        principal: name("p0"),
        token: TokenId([n; 8]),
        hash: TokenHash([n; 32]),
    };
    assert!((0..32).all(|n| apply(token(n)).is_ok()));
    assert_eq!(apply(token(32)), Err(Refusal::AccessLimit { what: "tokens", max: 32 }));
    let grant = |n: usize| AccessChange::Grant {
        principal: name("p0"),
        path: GrantPath::parse(&format!("a/{n}")).unwrap(),
        verbs: [Verb::Read].into_iter().collect(),
    };
    assert!((0..256).all(|n| apply(grant(n)).is_ok()));
    assert_eq!(apply(grant(256)), Err(Refusal::AccessLimit { what: "grants", max: 256 }));
    let names = |count: usize| AccessChange::AddPrincipal {
        principal: name("p1"),
        names: (0..count).map(|n| CertificateName::parse(&format!("{n}.example")).unwrap()).collect(),
    };
    assert!(apply(names(32)).is_ok());
    assert_eq!(apply(names(33)), Err(Refusal::AccessLimit { what: "certificate names", max: 32 }));
}

fn beginning(keep_tokens: bool) -> NewBeginning {
    let node = NodeInfo {
        name: NodeName::parse("n1").unwrap(),
        identity: Some(NodeIdentity([4; 16])),
        raft_address: "a:1".into(),
        grpc_address: "a:2".into(),
        http_address: "a:3".into(),
        command_version: lowkey_core::COMMAND_VERSION,
        key_hash: None,
    };
    NewBeginning {
        cluster: ClusterId([9; 16]),
        node,
        numbers: FirstNumbers::Unclaimed { unix_minutes: 5, spread: 0 },
        keep_tokens,
        quarantine: false,
    }
}

#[test]
fn a_cluster_that_begins_anew_does_not_come_back_open() {
    let mut state = State::new(ClusterId([7; 16]));
    let changes = [
        AccessChange::AddPrincipal { principal: name("ops"), names: vec![] },
        AccessChange::AddToken { principal: name("ops"), token: TokenId([1; 8]), hash: TokenHash([1; 32]) },
        AccessChange::Grant {
            principal: name("ops"),
            path: GrantPath::everything(),
            verbs: [Verb::Admin].into_iter().collect(),
        },
        AccessChange::Require { required: true },
    ];
    for (revision, change) in (1..).zip(&changes) {
        assert!(state.apply(revision, 1, &command(change)).reply.is_ok(), "{change:?}");
    }
    let (anew, _) = state.begin_anew(beginning(true)).unwrap();
    assert_eq!(anew.access(), state.access());
    assert!(anew.access().is_required());
    assert_eq!(State::decode_snapshot(&anew.encode_snapshot()), Ok(anew));
}

/// No token is in a backup: a closed cluster comes back with principals that can prove nothing, and is put in order by those
/// who may read a node's directory, in any order of steps.
#[test]
fn a_cluster_that_comes_back_without_tokens_is_put_in_order_step_by_step() {
    let mut state = State::new(ClusterId([7; 16]));
    let add = |principal: &str| AccessChange::AddPrincipal { principal: name(principal), names: vec![] };
    let token = |principal: &str, byte: u8| AccessChange::AddToken {
        principal: name(principal),
        token: TokenId([byte; 8]),
        hash: TokenHash([byte; 32]),
    };
    let grant = |principal: &str, path: &str, verb: Verb| AccessChange::Grant {
        principal: name(principal),
        path: GrantPath::parse(path).unwrap(),
        verbs: [verb].into_iter().collect(),
    };
    let before = [
        add("ops"),
        token("ops", 1),
        grant("ops", "/", Verb::Admin),
        add("billing"),
        token("billing", 2),
        AccessChange::Require { required: true },
    ];
    for (revision, change) in (1..).zip(&before) {
        assert!(state.apply(revision, 1, &command(change)).reply.is_ok(), "{change:?}");
    }
    let (mut state, _) = state.begin_anew(beginning(false)).unwrap();
    assert!(state.access().is_required());
    let first = state.revision();
    let after = [
        add("web"),
        token("billing", 3),
        grant("web", "web", Verb::Read),
        AccessChange::RemovePrincipal { principal: name("web") },
        token("ops", 4),
    ];
    for (revision, change) in (first + 1..).zip(&after) {
        assert_eq!(state.apply(revision, 1, &command(change)).reply.err(), None, "{change:?}");
    }
    // From here on there is an admin again, and the last one stays.
    let last = AccessChange::RevokeToken { token: TokenId([4; 8]) };
    let refused = state.apply(first + 10, 1, &command(&last)).reply;
    assert_eq!(refused, Err(Refusal::AdminNeeded));
}
