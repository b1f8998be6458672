//! What nodes that form a cluster say, as bytes, and the seal on it.
//!
//! The nodes have no keys of each other yet. They share a secret, and seal with it what they say: nobody without it is
//! heard, and nothing that they said can be changed on its way. An answer is sealed together with the number of its
//! question, so that an old answer is none. What is sealed is no secret itself: names, addresses, hashes of public keys.

use lowkey_core::{ClusterId, KeyHash, NodeIdentity, NodeInfo, NodeName};
use lowkey_replica::RaftTick;
use lowkey_replica::forming::{Attempt, Belongs, Memory, Plan, Promise, Statement};
use prost::Message as _;
use ring::hmac;

use super::proto;
use crate::operation::parse_address;

/// How many nodes a plan may have.
const NODES_MAX: usize = lowkey_core::limits::MEMBERS_MAX;

/// What somebody said is not what a node of this version says, or is not sealed with our secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub, reason = "it is part of conversions between types that are public")]
pub enum Unreadable {
    /// The seal is not ours.
    Seal,
    /// The words are not understood.
    Words,
}

/// Seals a question with this number.
pub(super) fn seal_question(key: &hmac::Key, number: [u8; 16]) -> proto::Sealed {
    let body = proto::Question { number: number.to_vec() }.encode_to_vec();
    proto::Sealed { seal: sign(key, b"question", &body), body }
}

/// The number of a question.
pub(super) fn open_question(key: &hmac::Key, sealed: &proto::Sealed) -> Result<[u8; 16], Unreadable> {
    verify(key, b"question", &sealed.body, &sealed.seal)?;
    let question = proto::Question::decode(&*sealed.body).map_err(|_| Unreadable::Words)?;
    question.number.try_into().map_err(|_| Unreadable::Words)
}

pub(super) fn seal_answer(key: &hmac::Key, number: [u8; 16], statement: &Statement) -> proto::Sealed {
    let body = proto::Statement::from(statement).encode_to_vec();
    proto::Sealed { seal: sign(key, &number, &body), body }
}

pub(super) fn open_answer(
    key: &hmac::Key,
    number: [u8; 16],
    sealed: &proto::Sealed,
) -> Result<Statement, Unreadable> {
    verify(key, &number, &sealed.body, &sealed.seal)?;
    let statement = proto::Statement::decode(&*sealed.body).map_err(|_| Unreadable::Words)?;
    statement.try_into()
}

fn sign(key: &hmac::Key, what: &[u8], body: &[u8]) -> Vec<u8> {
    hmac::sign(key, &sealed_bytes(what, body)).as_ref().to_vec()
}

fn verify(key: &hmac::Key, what: &[u8], body: &[u8], seal: &[u8]) -> Result<(), Unreadable> {
    hmac::verify(key, &sealed_bytes(what, body), seal).map_err(|_| Unreadable::Seal)
}

/// The two kinds differ in the length of what comes first, which is part of it.
fn sealed_bytes(what: &[u8], body: &[u8]) -> Vec<u8> {
    let mut bytes = b"lowkey-form-1".to_vec();
    bytes.extend((what.len() as u64).to_be_bytes());
    bytes.extend(what);
    bytes.extend(body);
    bytes
}

impl From<&Statement> for proto::Statement {
    fn from(said: &Statement) -> Self {
        Self {
            node: Some((&said.node).into()),
            size: u32::try_from(said.size).unwrap_or(u32::MAX),
            raft_tick_ms: said.raft_tick.tell(),
            unix_minutes: said.unix_minutes,
            memory: Some((&said.memory).into()),
            plan: said.plan.as_ref().map(Into::into),
        }
    }
}

impl TryFrom<proto::Statement> for Statement {
    type Error = Unreadable;

    fn try_from(said: proto::Statement) -> Result<Self, Unreadable> {
        Ok(Self {
            node: said.node.ok_or(Unreadable::Words)?.try_into()?,
            size: said.size as usize,
            raft_tick: RaftTick::told(said.raft_tick_ms).ok_or(Unreadable::Words)?,
            unix_minutes: said.unix_minutes,
            memory: said.memory.unwrap_or_default().try_into()?,
            plan: said.plan.map(TryInto::try_into).transpose()?,
        })
    }
}

impl From<&Memory> for proto::Memory {
    fn from(memory: &Memory) -> Self {
        let (founded, cluster) = match &memory.belongs {
            Belongs::Nowhere => (None, Vec::new()),
            Belongs::Founded(plan) => (Some((&**plan).into()), Vec::new()),
            Belongs::Cluster(cluster) => (None, cluster.0.to_vec()),
        };
        let promise = memory.promise.as_ref().map(|promise| proto::Promise {
            attempt: Some(promise.attempt.into()),
            nodes: promise.nodes.iter().map(|node| node.0.to_vec()).collect(),
        });
        let renounced = memory.renounced.iter().copied().map(Into::into).collect();
        Self { promise, renounced, founded, cluster }
    }
}

impl TryFrom<proto::Memory> for Memory {
    type Error = Unreadable;

    fn try_from(memory: proto::Memory) -> Result<Self, Unreadable> {
        let belongs = match (memory.founded, memory.cluster) {
            (Some(plan), _) => Belongs::Founded(Box::new(plan.try_into()?)),
            (None, cluster) if cluster.is_empty() => Belongs::Nowhere,
            (None, cluster) => Belongs::Cluster(ClusterId(bytes(&cluster)?)),
        };
        let promise = |promise: proto::Promise| {
            let nodes = promise.nodes.iter().map(|node| Ok(NodeIdentity(bytes(node)?)));
            Ok(Promise { attempt: attempt(promise.attempt)?, nodes: nodes.collect::<Result<_, _>>()? })
        };
        let renounced = memory.renounced.into_iter().map(|renounced| attempt(Some(renounced)));
        Ok(Self {
            promise: memory.promise.map(promise).transpose()?,
            renounced: renounced.collect::<Result<_, _>>()?,
            belongs,
        })
    }
}

impl From<&Plan> for proto::Plan {
    fn from(plan: &Plan) -> Self {
        Self {
            attempt: Some(plan.attempt.into()),
            cluster: plan.cluster.0.to_vec(),
            unix_minutes: plan.unix_minutes,
            spread: plan.spread,
            nodes: plan.nodes.iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<proto::Plan> for Plan {
    type Error = Unreadable;

    fn try_from(plan: proto::Plan) -> Result<Self, Unreadable> {
        if plan.nodes.is_empty() || plan.nodes.len() > NODES_MAX {
            return Err(Unreadable::Words);
        }
        Ok(Self {
            attempt: attempt(plan.attempt)?,
            cluster: ClusterId(bytes(&plan.cluster)?),
            unix_minutes: plan.unix_minutes,
            spread: plan.spread,
            nodes: plan.nodes.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?,
        })
    }
}

impl From<Attempt> for proto::Attempt {
    fn from(attempt: Attempt) -> Self {
        Self { coordinator: attempt.coordinator.0.to_vec(), number: attempt.number }
    }
}

fn attempt(attempt: Option<proto::Attempt>) -> Result<Attempt, Unreadable> {
    let attempt = attempt.ok_or(Unreadable::Words)?;
    Ok(Attempt { coordinator: NodeIdentity(bytes(&attempt.coordinator)?), number: attempt.number })
}

impl From<&NodeInfo> for proto::Node {
    fn from(node: &NodeInfo) -> Self {
        Self {
            name: node.name.to_string(),
            identity: node.identity.map(|identity| identity.0.to_vec()).unwrap_or_default(),
            raft_address: node.raft_address.clone(),
            grpc_address: node.grpc_address.clone(),
            http_address: node.http_address.clone(),
            command_version: node.command_version,
            key_hash: node.key_hash.map(|hash| hash.0.to_vec()).unwrap_or_default(),
        }
    }
}

impl TryFrom<proto::Node> for NodeInfo {
    type Error = Unreadable;

    /// Identity and key are never missing.
    fn try_from(node: proto::Node) -> Result<Self, Unreadable> {
        let address = |field, address: &str| parse_address(field, address).map_err(|_| Unreadable::Words);
        Ok(Self {
            name: NodeName::parse(&node.name).map_err(|_| Unreadable::Words)?,
            identity: Some(NodeIdentity(bytes(&node.identity)?)),
            raft_address: address("raft_address", &node.raft_address)?,
            grpc_address: address("grpc_address", &node.grpc_address)?,
            http_address: address("http_address", &node.http_address)?,
            command_version: node.command_version,
            key_hash: Some(KeyHash(bytes(&node.key_hash)?)),
        })
    }
}

fn bytes<const N: usize>(bytes: &[u8]) -> Result<[u8; N], Unreadable> {
    bytes.try_into().map_err(|_| Unreadable::Words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statement() -> Statement {
        let node = |byte: u8| NodeInfo {
            name: NodeName::parse(&format!("n{byte}")).unwrap(),
            identity: Some(NodeIdentity([byte; 16])),
            raft_address: "a:1".into(),
            grpc_address: "a:2".into(),
            http_address: "a:3".into(),
            command_version: 7,
            key_hash: Some(KeyHash([byte; 32])),
        };
        let attempt = Attempt { coordinator: NodeIdentity([1; 16]), number: 4 };
        let plan = Plan {
            attempt,
            cluster: ClusterId([5; 16]),
            unix_minutes: 30_000_000,
            spread: 77,
            nodes: vec![node(1), node(2)],
        };
        let promise = Promise { attempt, nodes: vec![NodeIdentity([1; 16]), NodeIdentity([2; 16])] };
        let memory = Memory {
            promise: Some(promise),
            renounced: vec![Attempt { number: 3, ..attempt }],
            belongs: Belongs::Founded(Box::new(plan.clone())),
        };
        let raft_tick = RaftTick::from_millis(30).unwrap();
        Statement { node: node(1), size: 2, raft_tick, unix_minutes: 8, memory, plan: Some(plan) }
    }

    fn key(byte: u8) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &[byte; 32])
    }

    #[test]
    fn what_is_said_is_read_as_it_was_said() {
        let heard = Memory { belongs: Belongs::Cluster(ClusterId([9; 16])), ..Memory::default() };
        for memory in [Memory::default(), heard, statement().memory] {
            let said = Statement { memory, ..statement() };
            let sealed = seal_answer(&key(1), [3; 16], &said);
            assert_eq!(open_answer(&key(1), [3; 16], &sealed), Ok(said));
        }
        assert_eq!(open_question(&key(1), &seal_question(&key(1), [3; 16])), Ok([3; 16]));
    }

    #[test]
    fn what_is_sealed_otherwise_or_answers_another_question_is_not_heard() {
        let sealed = seal_answer(&key(1), [3; 16], &statement());
        assert_eq!(open_answer(&key(2), [3; 16], &sealed), Err(Unreadable::Seal));
        assert_eq!(open_answer(&key(1), [4; 16], &sealed), Err(Unreadable::Seal));
        assert_eq!(open_question(&key(1), &sealed), Err(Unreadable::Seal));
        let mut changed = sealed;
        changed.body[7] ^= 1;
        assert_eq!(open_answer(&key(1), [3; 16], &changed), Err(Unreadable::Seal));
    }

    #[test]
    fn words_that_are_none_are_refused() {
        let good = proto::Statement::from(&statement());
        let nobody = proto::Statement { node: None, ..good.clone() };
        let mut crowd = good.clone();
        crowd.plan.as_mut().unwrap().nodes = vec![good.node.clone().unwrap(); NODES_MAX + 1];
        let mut unsteady = good.clone();
        unsteady.raft_tick_ms = 15;
        let mut nowhere = good;
        nowhere.node.as_mut().unwrap().raft_address = "nowhere".into();
        for bad in [nobody, crowd, unsteady, nowhere] {
            assert_eq!(Statement::try_from(bad), Err(Unreadable::Words));
        }
    }
}
