//! A node that is behind asks those that it knows about one that it does not: see `known.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lowkey_api::ApiError;
use lowkey_core::{KeyHash, MemberId};
use tokio::time::{sleep, timeout};

use super::dial::Dial;
use super::hello::Hello;
use super::known::KnownMember;
use super::link::client;
use super::proto::{JoinRequest, JoinResponse, MembersRequest, PeerMember};
use super::tls::PeerTls;
use crate::join::Problem;
use crate::service::Service;

/// How long a member may take to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(1);
/// The pause before all are asked again.
const PAUSE: Duration = Duration::from_millis(200);

/// Asks, one round at a time.
#[derive(Default)]
pub(super) struct Vouching {
    is_asking: Arc<AtomicBool>,
}

impl Vouching {
    /// Asks every member whose key is known who the members are. What they say is learned; the caller that was refused
    /// calls again.
    pub(super) fn ask(&self, service: &Arc<Service>) {
        if self.is_asking.swap(true, Ordering::Relaxed) {
            return;
        }
        let (service, is_asking) = (Arc::clone(service), Arc::clone(&self.is_asking));
        tokio::spawn(async move {
            let status = service.lanes.root().view.status();
            for witness in service.hello.known.witnesses(&status, service.hello.own) {
                if let Some(members) = ask(&service.hello, witness).await {
                    service.hello.known.learn(members);
                }
            }
            sleep(PAUSE).await;
            is_asking.store(false, Ordering::Relaxed);
        });
    }
}

/// Who the members are, says one that is known by its key.
async fn ask(hello: &Hello, witness: KnownMember) -> Option<Vec<KnownMember>> {
    let dial = Dial::new(Arc::clone(&hello.tls), witness.raft_address, witness.key).ok()?;
    let mut client = client(&dial);
    let call = client.members(hello.sign(witness.member, MembersRequest {}));
    let answer = timeout(ANSWER_WAIT, call).await.ok()?.ok()?;
    Some(answer.into_inner().members.into_iter().filter_map(|member| member.try_into().ok()).collect())
}

/// Asks a member to take in this node, which is none yet.
pub(crate) async fn ask_to_join(
    tls: &Arc<PeerTls>,
    member: &KnownMember,
    request: JoinRequest,
    answer_wait: Duration,
) -> Result<JoinResponse, Problem> {
    let address = member.raft_address.as_str();
    let passing = |problem: String| Problem::Passing(format!("{address}: {problem}"));
    let dial = Dial::new(Arc::clone(tls), address.to_owned(), member.key)
        .map_err(|error| Problem::Final(format!("{address:?} is not HOST:PORT: {error}")))?;
    // Once by itself, since a channel says less about why there is no connection.
    dial.connect().await.map_err(|error| passing(error.to_string()))?;
    let mut client = client(&dial);
    match timeout(answer_wait, client.join(request)).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(match ApiError::from_status(&status) {
            Some(error) => Problem::of(&error, &format!("{address}: ")),
            None => passing(status.message().to_owned()),
        }),
        Err(_) => Err(passing(format!("no answer within {} s", answer_wait.as_secs()))),
    }
}

impl From<KnownMember> for PeerMember {
    fn from(known: KnownMember) -> Self {
        Self {
            member_id: known.member.0,
            raft_address: known.raft_address,
            key_hash: known.key.map(|key| key.0.to_vec()).unwrap_or_default(),
        }
    }
}

/// What is said of a member cannot be used.
pub(crate) struct Unusable;

impl TryFrom<PeerMember> for KnownMember {
    type Error = Unusable;

    fn try_from(told: PeerMember) -> Result<Self, Unusable> {
        let key = match told.key_hash.as_slice() {
            [] => None,
            bytes => Some(KeyHash(bytes.try_into().map_err(|_| Unusable)?)),
        };
        Ok(Self { member: MemberId(told.member_id), key, raft_address: told.raft_address })
    }
}
