//! How a stream is opened: to which node, and whether that node belongs to our cluster.

use std::future::Future;
use std::time::Duration;

use futures::FutureExt as _;
use futures::stream::{BoxStream, FuturesUnordered, StreamExt as _};
use lowkey_api::v1::lock_service_client::LockServiceClient;
use lowkey_api::v1::{GetStatusRequest, GetStatusResponse, SessionAnswer, SessionCall};
use lowkey_api::{ApiError, Reason};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Status};

use super::unary;
use crate::error::{Error, ErrorKind};
use crate::wire::{Dialer, UNIX, Wire};

/// How long one node may take to answer before the next is tried.
pub(crate) const CONNECT_TIME: Duration = Duration::from_millis(1000);
/// How long one node may be silent before the next is tried beside it.
const NEXT_AFTER: Duration = Duration::from_millis(200);

/// A stream to a node.
pub(super) struct Connected {
    pub(super) endpoint: String,
    pub(super) cluster_id: String,
    /// The node leads, or knows the leader.
    pub(super) has_leader: bool,
    /// Where the members of the cluster can be reached, as they say.
    pub(super) members: Vec<String>,
    pub(super) channel: Wire,
    pub(super) calls: mpsc::UnboundedSender<SessionCall>,
    pub(super) answers: BoxStream<'static, Result<SessionAnswer, Status>>,
}

/// Where nodes may be found, and the cluster that they must belong to.
pub(super) struct Directory {
    /// The given endpoints, then those that members of the cluster told.
    endpoints: Vec<String>,
    given: usize,
    /// Where to begin. It moves on when a node fails.
    next: usize,
    /// The node that failed last, until there is another connection. Other nodes may still take it for the
    /// leader.
    avoided: Option<String>,
    /// Pinned by the program, or by the first connection.
    cluster_id: Option<String>,
    /// True once there was a connection.
    has_met: bool,
    dialer: Dialer,
}

/// Why there is no connection.
pub(super) struct Failed {
    pub(super) error: Error,
    /// True if waiting will not help.
    pub(super) is_hopeless: bool,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { error, is_hopeless: false }
    }
}

impl Directory {
    pub(super) fn new(endpoints: Vec<String>, cluster_id: Option<String>, dialer: Dialer) -> Self {
        let given = endpoints.len();
        Self { given, endpoints, next: 0, avoided: None, cluster_id, has_met: false, dialer }
    }

    /// Remembers the cluster, and where its members are now. Any of them will do when this one is gone.
    pub(super) fn met(&mut self, connected: &Connected) {
        self.cluster_id.get_or_insert_with(|| connected.cluster_id.clone());
        self.has_met = true;
        self.learn(&connected.members, &connected.endpoint);
        self.avoided = None;
    }

    /// Remembers where the members are now. All of the first ones may be gone one day.
    pub(super) fn learn(&mut self, members: &[String], current: &String) {
        self.endpoints.truncate(self.given);
        for endpoint in members.iter().chain([current]) {
            if !self.endpoints.contains(endpoint) {
                self.endpoints.push(endpoint.clone());
            }
        }
        self.next = self.endpoints.iter().position(|endpoint| endpoint == current).unwrap_or_default();
    }

    /// The node that was used last failed: begin with another.
    pub(super) fn avoid_current(&mut self) {
        self.avoided = self.endpoints.get(self.next).cloned();
        self.next = (self.next + 1) % self.endpoints.len();
    }

    /// Connects to the first node that answers, or rather to the leader that it names. A silent node does
    /// not hold up the next one for long.
    pub(super) fn connect(&self) -> impl Future<Output = Result<Connected, Failed>> + use<> {
        let (before, after) = self.endpoints.split_at(self.next);
        let endpoints: Vec<String> = after.iter().chain(before).cloned().collect();
        let (cluster_id, avoided, has_met) = (self.cluster_id.clone(), self.avoided.clone(), self.has_met);
        let dialer = self.dialer.clone();
        async move {
            let mut problem = Error::unavailable("no endpoint was given", false);
            // A node that knows no leader may be cut off from the others. It is better than none.
            let mut spare = None;
            let (asked, mut wrong_ports, mut foreign) = (endpoints.len(), Vec::new(), 0);
            let mut attempts = FuturesUnordered::new();
            let mut endpoints = endpoints.iter();
            loop {
                let next = endpoints.next();
                let is_last = next.is_none();
                attempts.extend(next.map(|endpoint| {
                    let attempt = connect_to(&dialer, endpoint, cluster_id.as_deref(), avoided.as_deref());
                    attempt.map(move |outcome| (endpoint, outcome))
                }));
                let answered = tokio::select! {
                    answered = attempts.next() => answered,
                    () = sleep(NEXT_AFTER), if !is_last => continue,
                };
                match answered {
                    Some((_, Ok(connected))) if connected.has_leader => return Ok(connected),
                    Some((_, Ok(connected))) => spare = spare.or(Some(connected)),
                    Some((endpoint, Err(error))) => {
                        tracing::debug!(endpoint, %error, "no connection");
                        wrong_ports.extend(wrong_port(&error).map(str::to_owned));
                        foreign += usize::from(matches!(error.kind(), ErrorKind::WrongCluster { .. }));
                        problem = worse(problem, error);
                    }
                    // Waiting changes neither wrong ports nor a wrong cluster. The nodes of a cluster that
                    // was met before may come back.
                    None if asked > 0 && wrong_ports.len() == asked && !has_met => {
                        let error = Error::invalid(wrong_ports.join("; "));
                        return Err(Failed { error, is_hopeless: true });
                    }
                    None if asked > 0 && foreign == asked && !has_met => {
                        return Err(Failed { error: problem, is_hopeless: true });
                    }
                    None => {
                        return spare.ok_or_else(|| if has_met { passing(problem) } else { problem }.into());
                    }
                }
            }
        }
    }

    /// Looks for another node that knows a leader. Connects to that leader, or else to that node.
    pub(super) fn find_elsewhere(&self, connected: &Connected) -> impl Future<Output = Surroundings> + use<> {
        let (current, cluster_id) = (connected.endpoint.clone(), connected.cluster_id.clone());
        let others = self.endpoints.iter().filter(|endpoint| **endpoint != current);
        let others: Vec<String> = others.cloned().collect();
        let dialer = self.dialer.clone();
        async move {
            let attempts =
                others.iter().map(|other| connect_to(&dialer, other, Some(&cluster_id), Some(&current)));
            let mut attempts: FuturesUnordered<_> = attempts.collect();
            while let Some(outcome) = attempts.next().await {
                if let Ok(found) = outcome
                    && found.has_leader
                {
                    return Surroundings { leader: Some(found), ..Surroundings::default() };
                }
            }
            Surroundings::default()
        }
    }

    /// Finds out who the members are and whether another node leads, and connects to that leader.
    pub(super) fn look_around(&self, connected: &Connected) -> impl Future<Output = Surroundings> + use<> {
        let (endpoint, cluster_id) = (connected.endpoint.clone(), connected.cluster_id.clone());
        let (client, dialer) = (LockServiceClient::new(connected.channel.clone()), self.dialer.clone());
        async move {
            let Ok(status) = status_of(&dialer, &endpoint, client).await else {
                return Surroundings::default();
            };
            let members = member_endpoints(&endpoint, &status);
            let leader = async {
                let leader = leader_endpoint(&endpoint, &status)?;
                let node = Node::dial(&dialer, &leader, Some(&cluster_id)).await.ok()?;
                if node.status.is_leader { node.open().await.ok() } else { None }
            };
            Surroundings { leader: leader.await, members }
        }
    }
}

/// The result of such a search.
#[derive(Default)]
pub(super) struct Surroundings {
    /// Where the members can be reached; empty if that is not known.
    pub(super) members: Vec<String>,
    /// The leader, if that is another node; or else a node that knows it.
    pub(super) leader: Option<Connected>,
}

/// The endpoints of the members. Members that are only expected have no address yet.
fn member_endpoints(endpoint: &str, status: &GetStatusResponse) -> Vec<String> {
    // A socket is this machine's: the other nodes have theirs elsewhere.
    if endpoint.starts_with(UNIX) {
        return Vec::new();
    }
    let members = status.members.iter().filter(|member| !member.grpc_address.is_empty());
    members.map(|member| url_like(endpoint, &member.grpc_address)).collect()
}

/// A cluster that was met before was right, so what is wrong with it now may pass: a certificate is
/// replaced, say. Calls go on trying.
fn passing(problem: Error) -> Error {
    match problem.kind() {
        ErrorKind::Invalid(words) => Error::unavailable(words.clone(), false),
        _ => problem,
    }
}

/// Of two problems, the one that a person should hear of: one that will not go away by itself.
fn worse(one: Error, other: Error) -> Error {
    if matches!(one.kind(), ErrorKind::WrongCluster { .. } | ErrorKind::Invalid(_)) { one } else { other }
}

/// What waiting does not change: a server that answers but does not offer the service, or one with which
/// there is no TLS.
pub(crate) fn wrong_port(error: &Error) -> Option<&str> {
    match error.kind() {
        ErrorKind::Invalid(problem) => Some(problem),
        ErrorKind::Unavailable { problem, refusal: Some(Reason::NoSuchRoute), .. } => Some(problem),
        _ => None,
    }
}

async fn connect_to(
    dialer: &Dialer,
    endpoint: &str,
    cluster_id: Option<&str>,
    avoided: Option<&str>,
) -> Result<Connected, Error> {
    let node = Node::dial(dialer, endpoint, cluster_id).await?;
    let leader = leader_endpoint(endpoint, &node.status);
    if let Some(leader) = leader.as_ref().filter(|leader| Some(leader.as_str()) != avoided) {
        // The leader may be unreachable from here, or gone by now. Then this node forwards requests.
        if let Ok(leader) = Node::dial(dialer, leader, Some(&node.status.cluster_id)).await
            && leader.status.is_leader
            && let Ok(connected) = leader.open().await
        {
            return Ok(connected);
        }
    }
    node.open().await
}

/// Where the leader is, if that is another node.
fn leader_endpoint(endpoint: &str, status: &GetStatusResponse) -> Option<String> {
    if status.is_leader || status.leader_address.is_empty() || endpoint.starts_with(UNIX) {
        return None;
    }
    Some(url_like(endpoint, &status.leader_address))
}

/// The URL of another node of the same cluster, with the same scheme.
fn url_like(endpoint: &str, address: &str) -> String {
    let scheme = endpoint.split_once("://").map_or("http", |(scheme, _)| scheme);
    format!("{scheme}://{address}")
}

/// A node that answers.
struct Node {
    endpoint: String,
    channel: Wire,
    status: GetStatusResponse,
}

impl Node {
    async fn dial(dialer: &Dialer, endpoint: &str, cluster_id: Option<&str>) -> Result<Self, Error> {
        let channel = dialer.connect(endpoint).await?;
        let status = status_of(dialer, endpoint, LockServiceClient::new(channel.clone())).await?;
        match cluster_id {
            Some(expected) if expected != status.cluster_id => Err(Error::new(ErrorKind::WrongCluster {
                endpoint: endpoint.to_owned(),
                expected: expected.to_owned(),
                found: status.cluster_id,
            })),
            _ => Ok(Self { endpoint: endpoint.to_owned(), channel, status }),
        }
    }

    async fn open(self) -> Result<Connected, Error> {
        let Self { endpoint, channel, status } = self;
        let (calls, receiver) = mpsc::unbounded_channel();
        let mut client = LockServiceClient::new(channel.clone());
        let opened = timeout(CONNECT_TIME, client.session(UnboundedReceiverStream::new(receiver))).await;
        let (calls, answers) = match opened {
            Ok(Ok(response)) => (calls, response.into_inner().boxed()),
            Ok(Err(refused)) if refused.code() == Code::Unimplemented => unary::open(channel.clone()),
            Ok(Err(refused)) => {
                return Err(Error::unavailable(format!("{endpoint}: {}", words_of(&refused)), false));
            }
            Err(_) => return Err(Error::unavailable(format!("{endpoint} does not answer"), false)),
        };
        let has_leader = status.is_leader || !status.leader_address.is_empty();
        let members = member_endpoints(&endpoint, &status);
        let cluster_id = status.cluster_id;
        Ok(Connected { endpoint, cluster_id, has_leader, members, channel, calls, answers })
    }
}

/// A node's message. Other servers say nothing that helps, or nothing in gRPC.
fn words_of(status: &Status) -> String {
    // A status with a source was made here, because something other than an answer came.
    let is_answer = std::error::Error::source(status).is_none();
    match (status.code(), status.message()) {
        (Code::Unimplemented, "") => format!("a gRPC server, but none of lowkey; {WHERE}"),
        (_, message) if is_answer && !message.is_empty() => message.to_owned(),
        _ => no_grpc(),
    }
}

fn no_grpc() -> String {
    format!("takes connections, but does not answer in gRPC; {WHERE}")
}

const WHERE: &str = "is it the gRPC port of a node? that is 9000 by default";

/// The innermost cause, such as `Connection refused`: the layers above say only that they failed. If there
/// was a connection, the innermost cause says only that it ended.
pub(crate) fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    match cause.is::<std::io::Error>() {
        true => cause.to_string(),
        false => no_grpc(),
    }
}

async fn status_of(
    dialer: &Dialer,
    endpoint: &str,
    mut client: LockServiceClient<Wire>,
) -> Result<GetStatusResponse, Error> {
    match timeout(CONNECT_TIME, client.get_status(GetStatusRequest {})).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(no_status(dialer, endpoint, &status)),
        Err(_) => Err(Error::unavailable(format!("{endpoint} does not answer"), false)),
    }
}

/// What it means that a server refuses to tell how it is.
pub(crate) fn no_status(dialer: &Dialer, endpoint: &str, status: &Status) -> Error {
    if status.code() == Code::Unimplemented {
        return Error::new(ErrorKind::Unavailable {
            problem: format!("{endpoint}: {}", words_of(status)),
            sent: false,
            refusal: Some(Reason::NoSuchRoute),
        });
    }
    match dialer.words_of(status) {
        // With TLS 1.3 a node that refuses a client says so only behind the handshake.
        Some(words) => Error::invalid(format!("{endpoint}: {words}")),
        None if reason_of(status) == Some(Reason::TlsRequired) => {
            Error::invalid(format!("{endpoint}: {}", words_of(status)))
        }
        None => Error::unavailable(format!("{endpoint}: {}", words_of(status)), false),
    }
}

fn reason_of(status: &Status) -> Option<Reason> {
    ApiError::from_status(status).map(|error| error.reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leader_is_looked_for_only_elsewhere() {
        let mut status = GetStatusResponse { leader_address: "10.0.0.1:9000".into(), ..Default::default() };
        assert_eq!(leader_endpoint("http://a:1", &status).as_deref(), Some("http://10.0.0.1:9000"));
        status.is_leader = true;
        assert_eq!(leader_endpoint("http://a:1", &status), None);
    }

    #[test]
    fn whoever_knows_one_node_gets_to_know_the_others_and_forgets_those_that_left() {
        let mut directory = Directory::new(vec!["http://a:1".into()], None, Dialer::default());
        let mut met = |members: &[&str]| {
            let (calls, _) = mpsc::unbounded_channel();
            directory.met(&Connected {
                endpoint: "http://b:1".into(),
                cluster_id: "c".into(),
                has_leader: true,
                members: members.iter().map(|member| (*member).to_owned()).collect(),
                channel: Dialer::default().connect_lazy("http://b:1").unwrap(),
                calls,
                answers: futures::stream::empty().boxed(),
            });
            (directory.endpoints.clone(), directory.next)
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let _context = runtime.enter();
        let (endpoints, next) = met(&["http://a:1", "http://b:1", "http://c:1"]);
        assert_eq!((endpoints.join(" "), next), ("http://a:1 http://b:1 http://c:1".into(), 1));
        let (endpoints, next) = met(&["http://d:1"]);
        assert_eq!((endpoints.join(" "), next), ("http://a:1 http://d:1 http://b:1".into(), 2));
    }

    #[test]
    fn a_node_that_failed_is_tried_last() {
        let mut directory = Directory::new(vec!["a".into(), "b".into(), "c".into()], None, Dialer::default());
        directory.avoid_current();
        assert_eq!(directory.next, 1);
        directory.avoid_current();
        directory.avoid_current();
        assert_eq!(directory.next, 0);
    }
}
