//! A node in memory, which notes what it is asked and whether its answers are still wanted.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures::StreamExt;
use futures::future::join_all;
use http::HeaderValue;
use lowkey_api::v1::{
    AcquireLockRequest, AcquireLockResponse, AddPeerRequest, AddPeerResponse, CampaignRequest,
    CampaignResponse, CheckTokenRequest, CheckTokenResponse, CreateBackupRequest, CreateBackupResponse,
    CreateLeaseRequest, CreateLeaseResponse, GetBackupScheduleRequest, GetBackupScheduleResponse,
    GetClusterStatusRequest, GetClusterStatusResponse, GetLeaseRequest, GetLeaseResponse, GetLockRequest,
    GetLockResponse, GetStatusResponse, HeartbeatResponse, InvitePeerRequest, InvitePeerResponse,
    LeaderRequest, LeaderResponse, Lease, LeasesRenewed, ListLeasesRequest, ListLeasesResponse,
    ListLocksRequest, ListLocksResponse, LockHolder, Member, NodeReport, ObserveEvent, ObserveRequest,
    ProclaimRequest, ProclaimResponse, ReleaseLockRequest, ReleaseLockResponse, RemovePeerRequest,
    RemovePeerResponse, RenewLeaseRequest, RenewLeaseResponse, RenewLeases, ResignRequest, ResignResponse,
    RevokeLeaseRequest, RevokeLeaseResponse, SetBackupScheduleRequest, SetBackupScheduleResponse,
    TransferLeaderRequest, TransferLeaderResponse, WatchEvent, WatchRequest,
};
use lowkey_api::{ApiError, Reason};
use lowkey_server::edge::{Call, Events, Guard, LeaseListener, LeaseNews, Node, Permitted};
use prost::Message;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_stream::wrappers::UnboundedReceiverStream;

pub(crate) const CLUSTER_ID: &str = "00112233445566778899aabbccddeeff";

/// The lease whose renewals wait for a permit of [`FakeNode::slow`].
pub(crate) const SLOW_LEASE: u64 = 1_000;
/// The owner whose requests panic.
pub(crate) const CLUMSY_OWNER: &str = "clumsy";
/// The owner who is told to come back later.
pub(crate) const EAGER_OWNER: &str = "eager";

/// The lock that very many hold.
pub(crate) const CROWDED_LOCK: &str = "crowded";

/// The revision that the node has reached.
pub(crate) const REVISION: u64 = 41;
/// A revision that can no longer be watched from.
pub(crate) const GONE_REVISION: u64 = 3;

/// One lease lives: number 1, with 10 seconds. Locks are held by whom they were given to.
pub(crate) struct FakeNode {
    guard: Arc<Guard>,
    pub(crate) ready: AtomicBool,
    pub(crate) stopping: watch::Sender<bool>,
    pub(crate) lease_news: LeaseNews,
    pub(crate) slow: Semaphore,
    /// Renewals of [`SLOW_LEASE`] that have begun.
    pub(crate) slow_begun: AtomicUsize,
    /// The last request of each kind that had a request id.
    pub(crate) request_ids: Mutex<Vec<String>>,
    /// Requests of the kinds that [`Asked`] has, in order.
    pub(crate) asked: Mutex<Vec<Asked>>,
    /// Waiting calls and open streams that the edge has not dropped.
    pub(crate) present: Arc<AtomicUsize>,
    /// The sending ends of all watches and observations, in order.
    pub(crate) watches: Mutex<Vec<Sender<WatchEvent>>>,
    pub(crate) observations: Mutex<Vec<Sender<ObserveEvent>>>,
    /// The leases that were revoked.
    pub(crate) revoked: Mutex<Vec<u64>>,
    /// The members that the status tells of.
    pub(crate) members: Mutex<Vec<Member>>,
    locks: Mutex<BTreeMap<String, LockHolder>>,
}

/// A request that arrived at the node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Asked {
    Acquire(AcquireLockRequest),
    Get(GetLockRequest),
    List(ListLocksRequest),
    Check(CheckTokenRequest),
    Watch(WatchRequest),
    Campaign(CampaignRequest),
    Proclaim(ProclaimRequest),
    Resign(ResignRequest),
    Leader(LeaderRequest),
    Observe(ObserveRequest),
}

pub(crate) type Sender<T> = mpsc::UnboundedSender<Result<T, ApiError>>;

/// Counts as present until it is dropped.
struct Present(Arc<AtomicUsize>);

impl Present {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl FakeNode {
    pub(crate) fn new() -> Self {
        Self {
            guard: Arc::new(Guard::open()),
            ready: AtomicBool::new(true),
            stopping: watch::Sender::new(false),
            lease_news: LeaseNews::default(),
            slow: Semaphore::new(0),
            slow_begun: AtomicUsize::new(0),
            request_ids: Mutex::default(),
            asked: Mutex::default(),
            present: Arc::default(),
            watches: Mutex::default(),
            observations: Mutex::default(),
            revoked: Mutex::default(),
            members: Mutex::default(),
            locks: Mutex::default(),
        }
    }

    fn note(&self, asked: Asked) {
        self.asked.lock().unwrap().push(asked);
    }

    /// The last request, once there is one that was not taken yet.
    pub(crate) fn last_asked(&self) -> Asked {
        self.asked.lock().unwrap().pop().expect("nothing was asked")
    }

    pub(crate) fn present(&self) -> usize {
        self.present.load(Ordering::SeqCst)
    }

    /// The sending end of the only watch.
    pub(crate) fn watch_sender(&self) -> Sender<WatchEvent> {
        self.watches.lock().unwrap().pop().expect("nobody watches")
    }

    /// The sending end of the only observation.
    pub(crate) fn observe_sender(&self) -> Sender<ObserveEvent> {
        self.observations.lock().unwrap().pop().expect("nobody observes")
    }

    /// Waits as long as the test wants, and shows while it does.
    async fn wait(&self) {
        let _present = Present::new(&self.present);
        self.slow.acquire().await.unwrap().forget();
    }

    /// A stream that the test feeds.
    fn open<T: Send + 'static>(&self, senders: &Mutex<Vec<Sender<T>>>) -> Events<T> {
        let (sender, receiver) = mpsc::unbounded_channel();
        senders.lock().unwrap().push(sender);
        let present = Present::new(&self.present);
        let stream = UnboundedReceiverStream::new(receiver).map(move |event| {
            let _ = &present;
            event
        });
        Events::new(REVISION, stream)
    }
}

impl FakeNode {
    async fn create_lease(&self, request: CreateLeaseRequest) -> Result<CreateLeaseResponse, ApiError> {
        assert_ne!(request.owner_id, CLUMSY_OWNER, "dropped everything");
        if request.owner_id == EAGER_OWNER {
            return Err(ApiError::new(Reason::LimitBusy, "too much to do").retry_after_ms(1_200));
        }
        self.request_ids.lock().unwrap().push(request.request_id);
        Ok(CreateLeaseResponse { lease_id: 1, ttl_seconds: request.ttl_seconds })
    }

    async fn renew_lease(&self, request: RenewLeaseRequest) -> Result<RenewLeaseResponse, ApiError> {
        match request.lease_id {
            1 => Ok(RenewLeaseResponse { ttl_seconds: 10, holds_differ: request.holds.is_some() }),
            SLOW_LEASE => {
                self.slow_begun.fetch_add(1, Ordering::SeqCst);
                self.slow.acquire().await.unwrap().forget();
                Ok(RenewLeaseResponse { ttl_seconds: 20, holds_differ: false })
            }
            other => Err(ApiError::new(Reason::LeaseNotFound, format!("there is no lease {other}"))),
        }
    }

    async fn renew_leases(&self, request: RenewLeases) -> Result<LeasesRenewed, ApiError> {
        let holds = request.holds.into_iter().map(Some).chain(std::iter::repeat(None));
        let renewals = request.lease_ids.into_iter().zip(holds).map(|(lease_id, holds)| async move {
            match self.renew_lease(RenewLeaseRequest { lease_id, holds }).await {
                Ok(RenewLeaseResponse { ttl_seconds, holds_differ }) => {
                    HeartbeatResponse { lease_id, ttl_seconds, holds_differ, ..Default::default() }
                }
                Err(error) => HeartbeatResponse {
                    lease_id,
                    error_reason: error.reason.as_str().to_owned(),
                    error_message: error.message,
                    ..Default::default()
                },
            }
        });
        Ok(LeasesRenewed { renewals: join_all(renewals).await })
    }

    async fn get_lease(&self, request: GetLeaseRequest) -> Result<GetLeaseResponse, ApiError> {
        let lease = Lease { lease_id: request.lease_id, remaining_ms: Some(0), ..Lease::default() };
        Ok(GetLeaseResponse { lease: Some(lease), ..GetLeaseResponse::default() })
    }

    async fn list_leases(&self, request: ListLeasesRequest) -> Result<ListLeasesResponse, ApiError> {
        let lease = Lease { lease_id: 1, owner_id: request.owner_id, ..Lease::default() };
        Ok(ListLeasesResponse { leases: vec![lease], ..ListLeasesResponse::default() })
    }

    async fn revoke_lease(&self, request: RevokeLeaseRequest) -> Result<RevokeLeaseResponse, ApiError> {
        self.revoked.lock().unwrap().push(request.lease_id);
        Ok(RevokeLeaseResponse { released: 2 })
    }

    async fn acquire_lock(&self, request: AcquireLockRequest) -> Result<AcquireLockResponse, ApiError> {
        self.note(Asked::Acquire(request.clone()));
        if request.wait_ms > 0 {
            self.wait().await;
        }
        let mut locks = self.locks.lock().unwrap();
        let fencing_token = locks.len() as u64 + 1;
        let holder = locks.entry(request.lock_name).or_insert_with(|| LockHolder {
            owner_id: request.owner_id.clone(),
            lease_id: request.lease_id,
            fencing_token,
            ..LockHolder::default()
        });
        if holder.owner_id != request.owner_id {
            let message = format!("held by {}", holder.owner_id);
            return Err(ApiError::new(Reason::LockHeld, message).with("owner_id", &holder.owner_id));
        }
        let fencing_token = holder.fencing_token;
        Ok(AcquireLockResponse { fencing_token, lease_ttl_seconds: 10, lease_id: 1, ..Default::default() })
    }

    async fn release_lock(&self, request: ReleaseLockRequest) -> Result<ReleaseLockResponse, ApiError> {
        match self.locks.lock().unwrap().remove(&request.lock_name) {
            Some(_) => Ok(ReleaseLockResponse { released: true }),
            None => Err(ApiError::new(Reason::LockNotFound, "nobody holds it")),
        }
    }

    async fn get_lock(&self, request: GetLockRequest) -> Result<GetLockResponse, ApiError> {
        if request.lock_name == CROWDED_LOCK {
            let holder = LockHolder { owner_id: "one of very many".into(), ..LockHolder::default() };
            return Ok(GetLockResponse { holders: vec![holder; 1_000], ..GetLockResponse::default() });
        }
        self.note(Asked::Get(request.clone()));
        let holders = self.locks.lock().unwrap().get(&request.lock_name).cloned().into_iter().collect();
        Ok(GetLockResponse { lock_name: request.lock_name, holders, ..GetLockResponse::default() })
    }

    async fn list_locks(&self, request: ListLocksRequest) -> Result<ListLocksResponse, ApiError> {
        self.note(Asked::List(request));
        let lock = GetLockResponse { lock_name: "jobs".into(), waiter_count: 1, ..Default::default() };
        Ok(ListLocksResponse {
            locks: vec![lock],
            next_page_token: "more".into(),
            revision: REVISION,
            watch_from: REVISION + 1,
        })
    }

    async fn check_token(&self, request: CheckTokenRequest) -> Result<CheckTokenResponse, ApiError> {
        let current = request.fencing_token == 7;
        self.note(Asked::Check(request));
        Ok(CheckTokenResponse { current, holder: None, revision: REVISION })
    }

    async fn campaign(&self, request: CampaignRequest) -> Result<CampaignResponse, ApiError> {
        let waits = request.wait_ms != Some(0);
        self.note(Asked::Campaign(request));
        if waits {
            self.wait().await;
        }
        Ok(CampaignResponse { fencing_token: 7, lease_ttl_seconds: 10, lease_id: 1, ..Default::default() })
    }

    async fn proclaim(&self, request: ProclaimRequest) -> Result<ProclaimResponse, ApiError> {
        self.note(Asked::Proclaim(request));
        Ok(ProclaimResponse { revision: REVISION })
    }

    async fn resign(&self, request: ResignRequest) -> Result<ResignResponse, ApiError> {
        self.note(Asked::Resign(request));
        Ok(ResignResponse { resigned: true })
    }

    async fn leader(&self, request: LeaderRequest) -> Result<LeaderResponse, ApiError> {
        self.note(Asked::Leader(request));
        Ok(LeaderResponse { leader: None, candidates: 2, revision: REVISION })
    }

    async fn add_peer(&self, _request: AddPeerRequest) -> Result<AddPeerResponse, ApiError> {
        Ok(AddPeerResponse { member_id: 2, cluster_id: CLUSTER_ID.into(), members: vec![] })
    }

    async fn remove_peer(&self, request: RemovePeerRequest) -> Result<RemovePeerResponse, ApiError> {
        match request.node_id.as_str() {
            "node-2" => Ok(RemovePeerResponse { member_id: 2 }),
            other => Err(ApiError::new(Reason::NodeNotFound, format!("there is no {other}"))),
        }
    }

    async fn invite_peer(&self, _request: InvitePeerRequest) -> Result<InvitePeerResponse, ApiError> {
        Ok(InvitePeerResponse { token: "lowkey-join-1-00".into(), expires_unix_ms: 3_600_000 })
    }

    async fn get_cluster_status(
        &self,
        _request: GetClusterStatusRequest,
    ) -> Result<GetClusterStatusResponse, ApiError> {
        let silent = NodeReport { problem: "it cannot be reached from here".into(), ..NodeReport::default() };
        let nodes = vec![NodeReport { term: 7, ..NodeReport::default() }, silent];
        Ok(GetClusterStatusResponse { node_id: "node-1".into(), nodes, ..Default::default() })
    }

    async fn create_backup(&self, request: CreateBackupRequest) -> Result<CreateBackupResponse, ApiError> {
        Ok(CreateBackupResponse { url: request.to, size_bytes: 100, ..Default::default() })
    }

    async fn get_backup_schedule(
        &self,
        _request: GetBackupScheduleRequest,
    ) -> Result<GetBackupScheduleResponse, ApiError> {
        let to = "s3://backups/lowkey".to_owned();
        Ok(GetBackupScheduleResponse { to, every_seconds: 600, keep: 48, ..Default::default() })
    }

    async fn set_backup_schedule(
        &self,
        _request: SetBackupScheduleRequest,
    ) -> Result<SetBackupScheduleResponse, ApiError> {
        Ok(SetBackupScheduleResponse {})
    }

    async fn transfer_leader(
        &self,
        request: TransferLeaderRequest,
    ) -> Result<TransferLeaderResponse, ApiError> {
        let leader_address = "127.0.0.1:9000".to_owned();
        Ok(TransferLeaderResponse { leader_id: request.node_id, leader_address })
    }
}

impl Node for FakeNode {
    async fn call<C: Call>(&self, call: Permitted<C>) -> Result<C::Response, ApiError> {
        let call = call.into_wanted();
        /// Which of the node's methods answers the call of which name.
        macro_rules! answer {
            ($($name:literal => $method:ident),* $(,)?) => {
                match C::NAME {
                    $($name => the_same(self.$method(the_same(call)).await?),)*
                    "GetStatus" => the_same(self.get_status()),
                    other => panic!("nobody answers {other}"),
                }
            };
        }
        Ok(answer! {
            "CreateLease" => create_lease,
            "RenewLease" => renew_lease,
            "RenewLeases" => renew_leases,
            "RevokeLease" => revoke_lease,
            "GetLease" => get_lease,
            "ListLeases" => list_leases,
            "AcquireLock" => acquire_lock,
            "ReleaseLock" => release_lock,
            "GetLock" => get_lock,
            "ListLocks" => list_locks,
            "CheckToken" => check_token,
            "AddPeer" => add_peer,
            "RemovePeer" => remove_peer,
            "InvitePeer" => invite_peer,
            "CreateBackup" => create_backup,
            "GetBackupSchedule" => get_backup_schedule,
            "SetBackupSchedule" => set_backup_schedule,
            "TransferLeader" => transfer_leader,
            "GetClusterStatus" => get_cluster_status,
            "Campaign" => campaign,
            "Proclaim" => proclaim,
            "Resign" => resign,
            "Leader" => leader,
        })
    }

    async fn watch(&self, request: Permitted<WatchRequest>) -> Result<Events<WatchEvent>, ApiError> {
        let request = request.into_wanted();
        let is_gone = request.from == GONE_REVISION;
        self.note(Asked::Watch(request));
        if is_gone {
            return Err(ApiError::new(Reason::Compacted, "that is gone; list, then watch"));
        }
        Ok(self.open(&self.watches))
    }

    async fn observe(&self, request: Permitted<ObserveRequest>) -> Result<Events<ObserveEvent>, ApiError> {
        self.note(Asked::Observe(request.into_wanted()));
        Ok(self.open(&self.observations))
    }

    fn get_status(&self) -> GetStatusResponse {
        let members = self.members.lock().unwrap().clone();
        GetStatusResponse { node_id: "node-1".into(), is_leader: true, members, ..Default::default() }
    }

    fn ready(&self) -> Result<(), String> {
        if self.ready.load(Ordering::SeqCst) { Ok(()) } else { Err("there is no leader".into()) }
    }

    fn metrics(&self) -> String {
        "# EOF\n".into()
    }

    fn cluster_header(&self) -> Option<HeaderValue> {
        Some(HeaderValue::from_static(CLUSTER_ID))
    }

    fn guard(&self) -> &Arc<Guard> {
        &self.guard
    }

    fn lease_listener(&self) -> LeaseListener {
        self.lease_news.listen()
    }

    fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }
}

/// The same message, of a type that only its name in the table tells.
fn the_same<Given: Message, Wanted: Message + Default>(message: Given) -> Wanted {
    Wanted::decode(message.encode_to_vec().as_slice()).expect("the same message")
}
