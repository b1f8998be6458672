//! The calls of the API, each declared once: see [`calls!`].
//!
//! The table says what a call is: its messages, its names for clients and between nodes, whether it changes
//! anything, and what it is about. The code in `operation/` says how a call is understood and answered.
//! Everything else follows from these two. Code that needs something from every call passes a macro to the
//! table, and the macro gets all its rows:
//!
//! - here: [`Call`], and [`Numbered`] for calls that are forwarded
//! - `access.rs`: what a caller needs
//! - `service.rs`: what is done with a number that another node forwards
//! - `edge/grpc`: the methods of both services, and the short path of the most frequent ones
//! - `edge/grpc/session`: the calls that a session stream takes
//! - `edge/http`: routes, and the form of a body or a URL
//!
//! Calls that are answered with a stream are not in the table: `Watch`, `Observe`, `Heartbeat` and
//! `Session`.

use std::future::Future;

use lowkey_api::{ApiError, v1};
use lowkey_core::{LeaseId, Verb};
use prost::Message;

use crate::access::{Permitted, Rule, Ruled, granted};
use crate::operation::Answer;
use crate::peers::proto;
use crate::service::Service;

/// A call, as the table declares it.
pub trait Call: Message + Default + Clone + Ruled {
    /// What its caller gets.
    type Response: Message + Default;
    /// Its name in the metrics.
    const NAME: &'static str;
    /// Its name in the metrics if it may wait for its turn. Such a call may take any time.
    const NAME_WAITING: &'static str;
    /// True if it changes the state. If its outcome is unknown, doing it again is not harmless.
    const CHANGES: bool;

    /// What it may cost the node.
    const COST: Cost;

    /// What it is about.
    fn place(&self) -> Place<'_>;

    /// The id with which its caller can ask again (idempotent retry); empty if it has none.
    fn request_id(&self) -> &str;

    /// Where its id goes, if it may have one.
    fn request_id_mut(&mut self) -> Option<&mut String>;

    /// The lease whose grants it ends, all or a part of them; 0 if it ends nothing, or names the lease in
    /// another way.
    fn ended_lease(&self) -> u64;

    /// Has the node behind the edge answer it.
    fn answered_by(
        call: Permitted<Self>,
        service: &Service,
    ) -> impl Future<Output = Result<Self::Response, ApiError>> + Send;
}

/// A call that nodes forward to the leader.
pub(crate) trait Numbered {
    /// Its number between nodes; never reused.
    const NUMBER: u32;
}

/// What a call is about, as the caller wrote it: not yet checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'a> {
    /// The lock, or the election, of this name.
    Name(&'a str),
    /// This lease.
    Lease(LeaseId),
    /// All locks whose names begin like this.
    Prefix(&'a str),
    /// Everything that exists once per cluster: the members, the log, all leases.
    Root,
}

/// What a call may cost, which decides how it is charged to its client: see `edge/budget.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// Little: its answer is short.
    Usual,
    /// Little; and it keeps or ends what its client has, so it may use the reserve of a full budget.
    Urgent,
    /// Its answer may be large.
    Large,
    /// Its answer is a page of a list, which takes as much as many large ones.
    List,
}

/// The table. For each call:
///
/// - its name, its request and its response
/// - `node`: its `number` between nodes, which is never reused. It is absent if the leader is asked with
///   another call or not at all. Then: whether it `changes` the state; its [`Place`], and the field that
///   has it; what its caller `needs`, once access is required: a verb at that place, or to be `somebody`
///   (the leader compares whose lease it is), or `anybody`, or a `node`; the field with its request `id`; the field with the lease whose grants it `ends`;
///   its [`Cost`], if that is not the usual one: `urgent`, `large`, or a `list`
/// - `grpc`: its method; `short` if it is called often enough to bypass tonic
/// - `http`: its route, and an example. For POST that is a body, for GET the required parameters. For
///   DELETE the path says it all
/// - `session`: its name in `SessionCall` and `SessionAnswer`, if a session stream takes it
macro_rules! calls {
    ($then:ident) => {
        $then! {
            LockService {
                // Makes a lease.
                CreateLease(v1::CreateLeaseRequest) -> v1::CreateLeaseResponse {
                    node: { number: 1, changes: true, place: Root, needs: acquire, id: request_id, owner: owner_id }
                    grpc: { create_lease short }
                    http: { POST "/v1/lease" r#"{"ownerId":"worker-1","ttlSeconds":10}"# }
                    session: { CreateLease }
                }
                // Starts a lease's time to live anew. On a session stream many renewals come at a time:
                // RenewLeases.
                RenewLease(v1::RenewLeaseRequest) -> v1::RenewLeaseResponse {
                    node: { number: 2, changes: false, place: Lease(lease_id), needs: acquire, cost: urgent }
                    grpc: { renew_lease short }
                    http: { POST "/v1/lease/renew" r#"{"leaseId":1}"# }
                    session: {}
                }
                // Ends a lease and everything that hangs on it.
                RevokeLease(v1::RevokeLeaseRequest) -> v1::RevokeLeaseResponse {
                    node: { number: 3, changes: true, place: Lease(lease_id), needs: somebody, id: request_id, ends: lease_id, cost: urgent }
                    grpc: { revoke_lease }
                    http: { POST "/v1/lease/revoke" r#"{"leaseId":1,"ownerId":"worker-1"}"# }
                    session: { RevokeLease }
                }
                // Tells what a lease holds and waits for.
                GetLease(v1::GetLeaseRequest) -> v1::GetLeaseResponse {
                    node: { number: 14, changes: false, place: Lease(lease_id), needs: somebody, cost: large }
                    grpc: { get_lease }
                    http: { GET "/v1/lease" "lease_id=LEASE" }
                    session: { GetLease }
                }
                // Lists the leases that exist.
                ListLeases(v1::ListLeasesRequest) -> v1::ListLeasesResponse {
                    node: { number: 15, changes: false, place: Root, needs: somebody, cost: list }
                    grpc: { list_leases }
                    http: { GET "/v1/leases" "" }
                    session: {}
                }
                // Acquires a lock, if need be after a wait.
                AcquireLock(v1::AcquireLockRequest) -> v1::AcquireLockResponse {
                    node: { number: 4, changes: true, place: Name(lock_name), needs: acquire, id: request_id, owner: owner_id }
                    grpc: { acquire_lock short }
                    http: {
                        POST "/v1/lock/acquire"
                        r#"{"lockName":"jobs/nightly","ownerId":"worker-1","leaseId":1}"#
                    }
                    session: { AcquireLock }
                }
                // Releases a lock.
                ReleaseLock(v1::ReleaseLockRequest) -> v1::ReleaseLockResponse {
                    node: { number: 5, changes: true, place: Name(lock_name), needs: somebody, id: request_id, ends: lease_id, cost: urgent }
                    grpc: { release_lock short }
                    http: {
                        POST "/v1/lock/release"
                        r#"{"lockName":"jobs/nightly","leaseId":1,"fencingToken":1}"#
                    }
                    session: { ReleaseLock }
                }
                // Tells who holds a lock and who waits for it.
                GetLock(v1::GetLockRequest) -> v1::GetLockResponse {
                    node: { number: 6, changes: false, place: Name(lock_name), needs: read, cost: large }
                    grpc: { get_lock }
                    http: { GET "/v1/lock" "name=LOCK_NAME" }
                    session: { GetLock }
                }
                // Lists the locks that are held or waited for.
                ListLocks(v1::ListLocksRequest) -> v1::ListLocksResponse {
                    node: { number: 8, changes: false, place: Prefix(prefix), needs: read, cost: list }
                    grpc: { list_locks }
                    http: { GET "/v1/locks" "" }
                    session: {}
                }
                // Tells whether a fencing token is a current one.
                CheckToken(v1::CheckTokenRequest) -> v1::CheckTokenResponse {
                    node: { number: 9, changes: false, place: Name(lock_name), needs: read }
                    grpc: { check_token }
                    http: { POST "/v1/lock/check" r#"{"lockName":"jobs/nightly","fencingToken":1}"# }
                    session: {}
                }
                // Tells what happened to a lock.
                Explain(v1::ExplainRequest) -> v1::ExplainResponse {
                    node: { changes: false, place: Name(lock_name), needs: audit, cost: large }
                    grpc: { explain }
                    http: { GET "/v1/explain" "name=LOCK_NAME" }
                    session: {}
                }
                // Lists grants that are over: those of one lock, or all. Other nodes are asked with number 40, for what this one has not.
                QueryAudit(v1::QueryAuditRequest) -> v1::QueryAuditResponse {
                    node: { changes: false, place: NameOrBelow(lock_name), needs: audit, cost: list }
                    grpc: { query_audit }
                    http: { GET "/v1/audit" "" }
                    session: {}
                }
                // Tells how this node sees the cluster.
                GetStatus(v1::GetStatusRequest) -> v1::GetStatusResponse {
                    node: { changes: false, place: Root, needs: somebody, cost: urgent }
                    grpc: { get_status }
                    http: { GET "/v1/status" "" }
                    session: {}
                }
                // Tells how every node is. The others are asked with REPORT.
                GetClusterStatus(v1::GetClusterStatusRequest) -> v1::GetClusterStatusResponse {
                    node: { changes: false, place: Root, needs: somebody }
                    grpc: { get_cluster_status }
                    http: { GET "/v1/cluster/status" "" }
                    session: {}
                }
                // Registers a node.
                AddPeer(v1::AddPeerRequest) -> v1::AddPeerResponse {
                    node: { number: 7, changes: true, place: Root, needs: admin, id: request_id }
                    grpc: { add_peer }
                    http: { POST "/v1/cluster/peers" r#"{"nodeId":"node-2","raftAddress":"127.0.0.1:7001"}"# }
                    session: {}
                }
                // Removes a node.
                RemovePeer(v1::RemovePeerRequest) -> v1::RemovePeerResponse {
                    node: { number: 12, changes: true, place: Root, needs: admin, id: request_id }
                    grpc: { remove_peer }
                    http: { DELETE "/v1/cluster/peers/{node_id}" "" }
                    session: {}
                }
                // Invites a node. The leader is asked with Invite.
                InvitePeer(v1::InvitePeerRequest) -> v1::InvitePeerResponse {
                    node: { changes: true, place: Root, needs: admin, id: request_id }
                    grpc: { invite_peer }
                    http: { POST "/v1/cluster/invitations" r#"{"ttlSeconds":3600}"# }
                    session: {}
                }
                // Makes a backup. The node that is asked makes it, from what the leader has committed.
                CreateBackup(v1::CreateBackupRequest) -> v1::CreateBackupResponse {
                    node: { changes: true, place: Root, needs: admin, id: request_id }
                    grpc: { create_backup }
                    http: { POST "/v1/cluster/backups" r#"{"to":"file:///var/backups/lowkey"}"# }
                    session: {}
                }
                // Tells by which schedule backups are made. The leader is asked with ReadBackupSchedule, and how it does.
                GetBackupSchedule(v1::GetBackupScheduleRequest) -> v1::GetBackupScheduleResponse {
                    node: { changes: false, place: Root, needs: admin }
                    grpc: { get_backup_schedule }
                    http: { GET "/v1/cluster/backups/schedule" "" }
                    session: {}
                }
                // Sets the schedule of backups. Idempotent: it is replaced as a whole.
                SetBackupSchedule(v1::SetBackupScheduleRequest) -> v1::SetBackupScheduleResponse {
                    node: { number: 55, changes: true, place: Root, needs: admin, id: request_id }
                    grpc: { set_backup_schedule }
                    http: {
                        POST "/v1/cluster/backups/schedule"
                        r#"{"to":"file:///var/backups/lowkey","everySeconds":600,"keep":48}"#
                    }
                    session: {}
                }
                // Transfers the lead to a node. Idempotent: asking again for what has happened is harmless.
                TransferLeader(v1::TransferLeaderRequest) -> v1::TransferLeaderResponse {
                    node: { number: 13, changes: false, place: Root, needs: admin, id: request_id }
                    grpc: { transfer_leader }
                    http: { POST "/v1/cluster/transfer" r#"{"nodeId":"node-2"}"# }
                    session: {}
                }
            }
            ElectionService {
                // Stands for election, if need be waiting. The leader is asked with AcquireLock.
                Campaign(v1::CampaignRequest) -> v1::CampaignResponse {
                    node: { changes: true, place: Name(election), needs: acquire, id: request_id, owner: owner_id }
                    grpc: { campaign }
                    http: {
                        POST "/v1/election/campaign"
                        r#"{"election":"scheduler","ownerId":"node-1","leaseId":1,"value":"10.0.0.1:80"}"#
                    }
                    session: {}
                }
                // Changes the leader's value.
                Proclaim(v1::ProclaimRequest) -> v1::ProclaimResponse {
                    node: { number: 10, changes: true, place: Name(election), needs: acquire, id: request_id }
                    grpc: { proclaim }
                    http: {
                        POST "/v1/election/proclaim"
                        r#"{"election":"scheduler","ownerId":"node-1","leaseId":1,"value":"10.0.0.1:81"}"#
                    }
                    session: { Proclaim }
                }
                // Gives up the lead or the candidacy. The leader is asked with ReleaseLock.
                Resign(v1::ResignRequest) -> v1::ResignResponse {
                    node: { changes: true, place: Name(election), needs: somebody, id: request_id, ends: lease_id, cost: urgent }
                    grpc: { resign }
                    http: {
                        POST "/v1/election/resign"
                        r#"{"election":"scheduler","leaseId":1,"fencingToken":1}"#
                    }
                    session: {}
                }
                // Tells who leads the election. The leader of the cluster is asked with GetLock.
                Leader(v1::LeaderRequest) -> v1::LeaderResponse {
                    node: { changes: false, place: Name(election), needs: read }
                    grpc: { leader }
                    http: { GET "/v1/election/leader" "election=NAME" }
                    session: {}
                }
            }
            AccessService {
                // Makes a principal, or gives it more names of certificates.
                AddPrincipal(v1::AddPrincipalRequest) -> v1::AddPrincipalResponse {
                    node: { number: 30, changes: true, place: Root, needs: access_admin, id: request_id }
                    grpc: { add_principal }
                    http: {
                        POST "/v1/access/principals"
                        r#"{"principal":"billing","certificateNames":["billing.example.com"]}"#
                    }
                    session: {}
                }
                // Takes a principal away, or one name of its certificates.
                RemovePrincipal(v1::RemovePrincipalRequest) -> v1::RemovePrincipalResponse {
                    node: { number: 31, changes: true, place: Root, needs: access_admin, id: request_id }
                    grpc: { remove_principal }
                    http: { POST "/v1/access/principals/remove" r#"{"principal":"billing"}"# }
                    session: {}
                }
                // Tells who may do what.
                ListPrincipals(v1::ListPrincipalsRequest) -> v1::ListPrincipalsResponse {
                    node: { number: 37, changes: false, place: Root, needs: access_admin, cost: list }
                    grpc: { list_principals }
                    http: { GET "/v1/access/principals" "" }
                    session: {}
                }
                // Makes a token. The leader is asked with AddToken.
                NewToken(v1::NewTokenRequest) -> v1::NewTokenResponse {
                    node: { changes: true, place: Root, needs: access_admin, id: request_id }
                    grpc: { new_token }
                    http: { POST "/v1/access/tokens" r#"{"principal":"billing"}"# }
                    session: {}
                }
                // Makes a token worthless.
                RevokeToken(v1::RevokeTokenRequest) -> v1::RevokeTokenResponse {
                    node: { number: 33, changes: true, place: Root, needs: access_admin, id: request_id }
                    grpc: { revoke_token }
                    http: { DELETE "/v1/access/tokens/{token_id}" "" }
                    session: {}
                }
                // Allows a principal more.
                GrantAccess(v1::GrantAccessRequest) -> v1::GrantAccessResponse {
                    node: { number: 34, changes: true, place: Root, needs: access_admin, id: request_id }
                    grpc: { grant_access }
                    http: {
                        POST "/v1/access/grant"
                        r#"{"principal":"billing","path":"billing","verbs":["acquire","read"]}"#
                    }
                    session: {}
                }
                // Allows a principal less.
                RevokeAccess(v1::RevokeAccessRequest) -> v1::RevokeAccessResponse {
                    node: { number: 35, changes: true, place: Root, needs: access_admin, id: request_id }
                    grpc: { revoke_access }
                    http: {
                        POST "/v1/access/revoke"
                        r#"{"principal":"billing","path":"billing","verbs":["read"]}"#
                    }
                    session: {}
                }
                // Requires access, or tells what would be refused then. The leader is asked with SetRequired.
                RequireAccess(v1::RequireAccessRequest) -> v1::RequireAccessResponse {
                    node: { changes: true, place: Root, needs: access_admin, id: request_id }
                    grpc: { require_access }
                    http: { POST "/v1/access/require" r#"{"required":true,"dryRun":true}"# }
                    session: {}
                }
                // Tells whether a principal may do something, and why.
                CheckAccess(v1::CheckAccessRequest) -> v1::CheckAccessResponse {
                    node: { changes: false, place: Root, needs: access_admin }
                    grpc: { check_access }
                    http: { GET "/v1/access/check" "principal=PRINCIPAL&verb=VERB&name=NAME" }
                    session: {}
                }
                // Tells a caller who it is.
                WhoAmI(v1::WhoAmIRequest) -> v1::WhoAmIResponse {
                    node: { changes: false, place: Root, needs: anybody }
                    grpc: { who_am_i }
                    http: { GET "/v1/access/whoami" "" }
                    session: {}
                }
            }
            // Calls that no service has a method for.
            Others {
                // Renewals that came together on a session stream. For those that this node cannot settle
                // alone, the leader is asked with RenewLease, one by one.
                RenewLeases(v1::RenewLeases) -> v1::LeasesRenewed {
                    node: { changes: false, place: Root, needs: acquire, cost: urgent }
                    grpc: {}
                    http: {}
                    session: {}
                }
                // Between nodes: a node that was invited asks to be a member.
                Join(proto::JoinRequest) -> proto::JoinResponse {
                    node: { number: 20, changes: true, place: Root, needs: node }
                    grpc: {}
                    http: {}
                    session: {}
                }
                // Between nodes: an invitation is to be made. The leader learns the hash of its secret only.
                Invite(proto::InviteRequest) -> proto::InviteResponse {
                    node: { number: 21, changes: true, place: Root, needs: admin }
                    grpc: {}
                    http: {}
                    session: {}
                }
                // Between nodes: a token is to be kept. The leader learns the hash of its secret only.
                AddToken(proto::AddTokenRequest) -> proto::AccessChanged {
                    node: { number: 32, changes: true, place: Root, needs: access_admin }
                    grpc: {}
                    http: {}
                    session: {}
                }
                // Between nodes: access is to be required, or not any more.
                SetRequired(proto::SetRequiredRequest) -> proto::AccessChanged {
                    node: { number: 36, changes: true, place: Root, needs: access_admin }
                    grpc: {}
                    http: {}
                    session: {}
                }
                // Between nodes: what the cluster says of its backups.
                ReadBackupSchedule(proto::ReadBackupScheduleRequest) -> v1::GetBackupScheduleResponse {
                    node: { number: 56, changes: false, place: Root, needs: admin }
                    grpc: {}
                    http: {}
                    session: {}
                }
                // Between nodes: how far the log is committed. It is asked for a watch that must begin
                // beyond what the asked node knows.
                ReadRevision(proto::ReadRevisionRequest) -> proto::ReadRevisionResponse {
                    node: { number: 11, changes: false, place: Root, needs: somebody }
                    grpc: {}
                    http: {}
                    session: {}
                }
            }
        }
    };
}
pub(crate) use calls;

macro_rules! declare {
    ($($_service:ident { $(
        $Name:ident($Request:ty) -> $Response:ty {
            node: {
                $(number: $number:literal,)?
                changes: $changes:literal,
                place: $place:ident$(($field:ident))?,
                needs: $needs:ident
                $(, id: $id:ident)?
                $(, ends: $ended:ident)?
                $(, cost: $cost:ident)?
                $(, owner: $owner:ident)?
            }
            $($_dialects:tt)*
        }
    )* })*) => {
        $($(
            impl Call for $Request {
                type Response = $Response;
                const NAME: &'static str = stringify!($Name);
                const NAME_WAITING: &'static str = concat!(stringify!($Name), "Waiting");
                const CHANGES: bool = $changes;
                const COST: Cost = cost!($($cost)?);

                fn place(&self) -> Place<'_> {
                    place!($place $((self.$field))?)
                }

                fn request_id(&self) -> &str {
                    request_id!(&self $($id)?).map_or("", String::as_str)
                }

                fn request_id_mut(&mut self) -> Option<&mut String> {
                    request_id!(&mut self $($id)?)
                }

                fn ended_lease(&self) -> u64 {
                    0 $(+ self.$ended)?
                }

                fn answered_by(
                    call: Permitted<Self>,
                    service: &Service,
                ) -> impl Future<Output = Result<$Response, ApiError>> + Send {
                    answered_by!(call, service $(, $number)?)
                }
            }

            impl Ruled for $Request {
                const ALSO_WHILE_OPEN: bool = also_while_open!($needs);

                fn rule(&self) -> Rule<'_> {
                    needs!($needs, self)
                }

                $(
                    fn owner(&self) -> Option<&str> {
                        Some(&self.$owner)
                    }
                )?
            }

            $(
                impl Numbered for $Request {
                    const NUMBER: u32 = $number;
                }
            )?
        )*)*
    };
}

/// What a call's caller needs. A row must say it: a call without it does not compile.
macro_rules! needs {
    (anybody, $call:expr) => {
        Rule::Anybody
    };
    (somebody, $call:expr) => {
        Rule::Somebody
    };
    (node, $call:expr) => {
        Rule::Node
    };
    (acquire, $call:expr) => {
        granted(Verb::Acquire, $call.place())
    };
    (read, $call:expr) => {
        granted(Verb::Read, $call.place())
    };
    (audit, $call:expr) => {
        granted(Verb::Audit, $call.place())
    };
    (admin, $call:expr) => {
        granted(Verb::Admin, $call.place())
    };
    // To change who may do what, also while access is not required.
    (access_admin, $call:expr) => {
        granted(Verb::Admin, $call.place())
    };
}

macro_rules! also_while_open {
    (access_admin) => {
        true
    };
    ($_needs:ident) => {
        false
    };
}

macro_rules! place {
    (Root) => {
        Place::Root
    };
    (Name($name:expr)) => {
        Place::Name(&$name)
    };
    (Prefix($prefix:expr)) => {
        Place::Prefix(&$prefix)
    };
    (NameOrBelow($name:expr)) => {
        match $name.is_empty() || $name.ends_with('/') {
            true => Place::Prefix(&$name),
            false => Place::Name(&$name),
        }
    };
    (Lease($lease:expr)) => {
        Place::Lease(LeaseId($lease))
    };
}

macro_rules! cost {
    () => {
        Cost::Usual
    };
    (urgent) => {
        Cost::Urgent
    };
    (large) => {
        Cost::Large
    };
    (list) => {
        Cost::List
    };
}

macro_rules! request_id {
    (&mut $call:ident) => {
        None
    };
    (&mut $call:ident $field:ident) => {
        Some(&mut $call.$field)
    };
    (&$call:ident) => {
        None
    };
    (&$call:ident $field:ident) => {
        Some(&$call.$field)
    };
}

macro_rules! answered_by {
    ($call:ident, $service:ident, $number:literal) => {
        $service.operate($call)
    };
    ($call:ident, $service:ident) => {
        Answer::answer($call, $service)
    };
}

calls!(declare);

/// The number of what a node asks every other one, the leader or not, in order to answer `GetClusterStatus`: how
/// it is. It is in no row: its request is empty, and no replica is asked.
pub(crate) const REPORT: u32 = 50;
/// The number of what a node asks every other one in order to answer `RequireAccess` with `dry_run`: what it would have
/// refused.
pub(crate) const REHEARSED: u32 = 51;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_what_a_call_is_about() {
        let acquire = v1::AcquireLockRequest { lock_name: "jobs".into(), lease_id: 7, ..Default::default() };
        assert_eq!(acquire.place(), Place::Name("jobs"));
        let campaign = v1::CampaignRequest { election: "jobs".into(), ..Default::default() };
        assert_eq!(campaign.place(), Place::Name("jobs"));
        assert_eq!(v1::RenewLeaseRequest { lease_id: 7, holds: None }.place(), Place::Lease(LeaseId(7)));
        let list = v1::ListLocksRequest { prefix: "jobs/".into(), ..Default::default() };
        assert_eq!(list.place(), Place::Prefix("jobs/"));
        let audit =
            |lock_name: &str| v1::QueryAuditRequest { lock_name: lock_name.into(), ..Default::default() };
        assert_eq!(audit("").place(), Place::Prefix(""));
        assert_eq!(audit("jobs/").place(), Place::Prefix("jobs/"));
        assert_eq!(audit("jobs").place(), Place::Name("jobs"), "a grant on jobs is enough for it");
        assert_eq!(proto::ReadRevisionRequest {}.place(), Place::Root);
    }
}
