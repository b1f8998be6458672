//! What stands behind the edge.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use futures::Stream;
use http::HeaderValue;
use lowkey_api::ApiError;
use lowkey_api::v1::{
    AcquireLockRequest, AcquireLockResponse, AddPeerRequest, AddPeerResponse, CampaignRequest,
    CampaignResponse, CheckTokenRequest, CheckTokenResponse, CreateLeaseRequest, CreateLeaseResponse,
    GetLeaseRequest, GetLeaseResponse, GetLockRequest, GetLockResponse, GetStatusResponse, LeaderRequest,
    LeaderResponse, ListLeasesRequest, ListLeasesResponse, ListLocksRequest, ListLocksResponse, ObserveEvent,
    ObserveRequest, ProclaimRequest, ProclaimResponse, ReleaseLockRequest, ReleaseLockResponse,
    RemovePeerRequest, RemovePeerResponse, RenewLeaseRequest, RenewLeaseResponse, ResignRequest,
    ResignResponse, RevokeLeaseRequest, RevokeLeaseResponse, TransferLeaderRequest, TransferLeaderResponse,
    WatchEvent, WatchRequest,
};
use tokio::sync::watch;

/// Events as they happen. An error is the last item, and ends the stream.
pub type EventStream<T> = Pin<Box<dyn Stream<Item = Result<T, ApiError>> + Send>>;

/// The answer to a watch: where it begins, and what follows.
///
/// Signs of life and the farewell of a stopping node are events like any other: the node makes them.
/// A stream whose client goes away is dropped.
pub struct Events<T> {
    /// What follows.
    pub stream: EventStream<T>,
    /// Nothing up to this revision is missing: a client that gets nothing has seen this much.
    pub revision: u64,
}

impl<T> Events<T> {
    /// The events of `stream`, which continues behind `revision`.
    pub fn new(revision: u64, stream: impl Stream<Item = Result<T, ApiError>> + Send + 'static) -> Self {
        Self { stream: Box::pin(stream), revision }
    }
}

impl<T> fmt::Debug for Events<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("revision", &self.revision).finish_non_exhaustive()
    }
}

/// What the edge asks of the node behind it.
///
/// A call whose client goes away is dropped where it waits, and so is a stream: what must happen
/// nevertheless must not depend on being polled. Acquiring and campaigning may wait for a day; the
/// edge ends neither.
pub trait Node: Send + Sync + 'static {
    /// Makes a lease.
    fn create_lease(
        &self,
        request: CreateLeaseRequest,
    ) -> impl Future<Output = Result<CreateLeaseResponse, ApiError>> + Send;

    /// Starts a lease's time to live anew.
    fn renew_lease(
        &self,
        request: RenewLeaseRequest,
    ) -> impl Future<Output = Result<RenewLeaseResponse, ApiError>> + Send;

    /// Tells what a lease holds and waits for.
    fn get_lease(
        &self,
        request: GetLeaseRequest,
    ) -> impl Future<Output = Result<GetLeaseResponse, ApiError>> + Send;

    /// Lists the leases that exist.
    fn list_leases(
        &self,
        request: ListLeasesRequest,
    ) -> impl Future<Output = Result<ListLeasesResponse, ApiError>> + Send;

    /// Ends a lease and all that hangs on it.
    fn revoke_lease(
        &self,
        request: RevokeLeaseRequest,
    ) -> impl Future<Output = Result<RevokeLeaseResponse, ApiError>> + Send;

    /// Takes a lock, if need be after a wait.
    fn acquire_lock(
        &self,
        request: AcquireLockRequest,
    ) -> impl Future<Output = Result<AcquireLockResponse, ApiError>> + Send;

    /// Gives a lock back.
    fn release_lock(
        &self,
        request: ReleaseLockRequest,
    ) -> impl Future<Output = Result<ReleaseLockResponse, ApiError>> + Send;

    /// Tells who holds a lock and who waits for it.
    fn get_lock(
        &self,
        request: GetLockRequest,
    ) -> impl Future<Output = Result<GetLockResponse, ApiError>> + Send;

    /// Lists the locks that are held or waited for.
    fn list_locks(
        &self,
        request: ListLocksRequest,
    ) -> impl Future<Output = Result<ListLocksResponse, ApiError>> + Send;

    /// Tells whether a fencing token is a current one.
    fn check_token(
        &self,
        request: CheckTokenRequest,
    ) -> impl Future<Output = Result<CheckTokenResponse, ApiError>> + Send;

    /// Tells of every change of one lock or many.
    fn watch(
        &self,
        request: WatchRequest,
    ) -> impl Future<Output = Result<Events<WatchEvent>, ApiError>> + Send;

    /// Stands for election, if need be waiting.
    fn campaign(
        &self,
        request: CampaignRequest,
    ) -> impl Future<Output = Result<CampaignResponse, ApiError>> + Send;

    /// Changes the leader's value.
    fn proclaim(
        &self,
        request: ProclaimRequest,
    ) -> impl Future<Output = Result<ProclaimResponse, ApiError>> + Send;

    /// Gives the lead or the candidacy up.
    fn resign(&self, request: ResignRequest)
    -> impl Future<Output = Result<ResignResponse, ApiError>> + Send;

    /// Tells who leads.
    fn leader(&self, request: LeaderRequest)
    -> impl Future<Output = Result<LeaderResponse, ApiError>> + Send;

    /// Tells who leads, now and at every change.
    fn observe(
        &self,
        request: ObserveRequest,
    ) -> impl Future<Output = Result<Events<ObserveEvent>, ApiError>> + Send;

    /// Registers a node.
    fn add_peer(
        &self,
        request: AddPeerRequest,
    ) -> impl Future<Output = Result<AddPeerResponse, ApiError>> + Send;

    /// Removes a node.
    fn remove_peer(
        &self,
        request: RemovePeerRequest,
    ) -> impl Future<Output = Result<RemovePeerResponse, ApiError>> + Send;

    /// Gives the lead to a node.
    fn transfer_leader(
        &self,
        request: TransferLeaderRequest,
    ) -> impl Future<Output = Result<TransferLeaderResponse, ApiError>> + Send;

    /// How this node sees the cluster. Never blocks.
    fn get_status(&self) -> GetStatusResponse;

    /// Whether the node can serve requests, or why not. Never blocks.
    fn ready(&self) -> Result<(), String>;

    /// What the node counts about itself: [`crate::METRICS_CONTENT_TYPE`] says in which form. Never blocks.
    fn metrics(&self) -> String;

    /// The cluster's id as a header's value, once the node is in one.
    fn cluster_header(&self) -> Option<HeaderValue>;

    /// Becomes true when the node has been told to stop.
    fn stopping(&self) -> watch::Receiver<bool>;
}
