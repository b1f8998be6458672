//! The table of reasons: each with its name, gRPC code, HTTP status, and what a client may do next.

use std::fmt;

use tonic::Code;

/// What a client that meets a reason may do about it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// Nothing was done, and the same request would be refused again until something else changes.
    GiveUp,
    /// Nothing was done. The same request may succeed later or on another node.
    Retry,
    /// It may have been done. Asking again is safe with the same request id only.
    RetrySameId,
    /// It may have been done, and asking again is likely to meet the same fault.
    Unknown,
}

/// What the table knows of a reason.
struct Row {
    name: &'static str,
    code: Code,
    http_status: u16,
    next: Next,
}

/// Declares [`Reason`] and its table from one list, so that neither can lack what the other has.
macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $code:ident, $http_status:literal, $next:ident;)*) => {
        /// Why a request was refused. Programs decide by this; names never change their meaning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Reason {
            /// `INVALID_…`: the field of this name on the wire (snake case) is not as it must be.
            Invalid(&'static str),
            $($(#[$doc])* $variant,)*
        }

        impl Reason {
            /// Every reason that is not about a field.
            const PLAIN: &[Self] = &[$(Self::$variant),*];

            fn row(self) -> Row {
                match self {
                    Self::Invalid(field) => Row {
                        name: invalid_name(field),
                        code: Code::InvalidArgument,
                        http_status: 400,
                        next: Next::GiveUp,
                    },
                    $(Self::$variant => Row {
                        name: $name,
                        code: Code::$code,
                        http_status: $http_status,
                        next: Next::$next,
                    },)*
                }
            }
        }
    };
}

reasons! {
    /// There is no such lease, or no longer.
    LeaseNotFound = "LEASE_NOT_FOUND", NotFound, 404, GiveUp;
    /// Nobody holds the lock.
    LockNotFound = "LOCK_NOT_FOUND", NotFound, 404, GiveUp;
    /// Another lease holds the lock.
    LockHeld = "LOCK_HELD", FailedPrecondition, 409, GiveUp;
    /// The lock did not become free within the wait.
    WaitTimeout = "WAIT_TIMEOUT", FailedPrecondition, 409, GiveUp;
    /// The wait was ended by a release that named its request.
    WaitCancelled = "WAIT_CANCELLED", FailedPrecondition, 409, GiveUp;
    /// The token that was given is not that of the current grant.
    StaleToken = "STALE_TOKEN", FailedPrecondition, 409, GiveUp;
    /// The lease holds this name already, in another mode or scope.
    AlreadyHeld = "ALREADY_HELD", FailedPrecondition, 409, GiveUp;
    /// No such node is a member of the cluster.
    NodeNotFound = "NODE_NOT_FOUND", NotFound, 404, GiveUp;
    /// Without this node no majority would answer, or none be left.
    QuorumAtRisk = "QUORUM_AT_RISK", FailedPrecondition, 409, GiveUp;
    /// The node did not take over the lead, or cannot.
    TransferFailed = "TRANSFER_FAILED", FailedPrecondition, 409, GiveUp;
    /// A node with another identity has this name.
    NodeNameTaken = "NODE_NAME_TAKEN", FailedPrecondition, 409, GiveUp;
    /// The node's version is older than what the cluster's nodes all understand.
    NodeTooOld = "NODE_TOO_OLD", FailedPrecondition, 409, GiveUp;
    /// The node is registered with another key.
    NodeKeyDiffers = "NODE_KEY_DIFFERS", PermissionDenied, 403, GiveUp;
    /// Nodes join this cluster by invitation only.
    InvitationNeeded = "INVITATION_NEEDED", PermissionDenied, 403, GiveUp;
    /// The invitation is not known, was used, or its time is over.
    InvitationNotValid = "INVITATION_NOT_VALID", PermissionDenied, 403, GiveUp;
    /// The caller is not who it would have to be.
    NotOwner = "NOT_OWNER", PermissionDenied, 403, GiveUp;
    /// The caller has proven nothing, or its proof was taken away.
    Unauthenticated = "UNAUTHENTICATED", Unauthenticated, 401, GiveUp;
    /// The caller has no grant for this.
    PermissionDenied = "PERMISSION_DENIED", PermissionDenied, 403, GiveUp;
    /// There is no such principal.
    PrincipalNotFound = "PRINCIPAL_NOT_FOUND", NotFound, 404, GiveUp;
    /// There is no such token, or no longer.
    AccessTokenNotFound = "ACCESS_TOKEN_NOT_FOUND", NotFound, 404, GiveUp;
    /// A token, or a name of a certificate, is the proof of another principal.
    ProofTaken = "PROOF_TAKEN", FailedPrecondition, 409, GiveUp;
    /// No principal would be left that may manage access.
    AdminNeeded = "ADMIN_NEEDED", FailedPrecondition, 409, GiveUp;
    /// A backup may not be made there at a client's wish.
    BackupNotAllowed = "BACKUP_NOT_ALLOWED", PermissionDenied, 403, GiveUp;
    /// A backup could not be written, or not be read again.
    BackupFailed = "BACKUP_FAILED", FailedPrecondition, 409, GiveUp;
    /// The watch's position is no longer kept: list, then watch.
    Compacted = "COMPACTED", OutOfRange, 410, GiveUp;

    /// The asked node keeps no audit.
    AuditOff = "AUDIT_OFF", FailedPrecondition, 409, GiveUp;
    /// The asked node's audit has not come as far as the log yet.
    AuditBehind = "AUDIT_BEHIND", Unavailable, 503, Retry;

    /// The node was removed from its cluster.
    NodeRemoved = "NODE_REMOVED", Unavailable, 503, Retry;
    /// The node is about to end.
    NodeStopping = "NODE_STOPPING", Unavailable, 503, Retry;
    /// The node's state differs from that of others, and it does not serve.
    NodeDiverged = "NODE_DIVERGED", Unavailable, 503, Retry;
    /// No leader is known; nothing was proposed or forwarded.
    NoLeader = "NO_LEADER", Unavailable, 503, Retry;
    /// The leader does not hear from a majority; nothing was proposed or forwarded.
    NoQuorum = "NO_QUORUM", Unavailable, 503, Retry;
    /// Some node does not understand the request yet: the cluster is being upgraded.
    UpgradeUnderWay = "UPGRADE_UNDER_WAY", Unavailable, 503, Retry;
    /// The cluster was recovered after it lost its quorum, and grants nothing until holders of before have stopped
    /// believing that they hold something.
    Recovering = "RECOVERING", Unavailable, 503, Retry;
    /// The node has heard of no leader for long, and does not know who may do what.
    AccessUnknown = "ACCESS_UNKNOWN", Unavailable, 503, Retry;
    /// The request was proposed or forwarded, and then there was silence: it may have happened.
    OutcomeUnknown = "OUTCOME_UNKNOWN", Unavailable, 503, RetrySameId;

    /// The node has more to do than it can take in.
    LimitBusy = "LIMIT_BUSY", ResourceExhausted, 429, Retry;
    /// Too many operations of this lease are under way.
    LimitInFlight = "LIMIT_IN_FLIGHT", ResourceExhausted, 429, Retry;
    /// The cluster has as many leases as it may.
    LimitLeases = "LIMIT_LEASES", ResourceExhausted, 429, GiveUp;
    /// The cluster has as many nodes as it may.
    LimitMembers = "LIMIT_MEMBERS", ResourceExhausted, 429, GiveUp;
    /// The lease holds as many locks as a lease may.
    LimitLocksPerLease = "LIMIT_LOCKS_PER_LEASE", ResourceExhausted, 429, GiveUp;
    /// The lock has as many waiters as a lock may.
    LimitWaiters = "LIMIT_WAITERS", ResourceExhausted, 429, GiveUp;
    /// The node has as many open streams as it may.
    LimitStreams = "LIMIT_STREAMS", ResourceExhausted, 429, Retry;
    /// As much is kept for this client as may be: calls under way, and answers that it has not taken.
    LimitMemory = "LIMIT_MEMORY", ResourceExhausted, 429, Retry;
    /// The port has as many connections as it may.
    LimitConnections = "LIMIT_CONNECTIONS", ResourceExhausted, 429, Retry;
    /// There are as many principals, tokens or grants as there may be.
    LimitAccess = "LIMIT_ACCESS", ResourceExhausted, 429, GiveUp;
    /// Too many tokens that are not valid came from this address.
    LimitLogins = "LIMIT_LOGINS", ResourceExhausted, 429, Retry;
    /// The disk has no room for new grants.
    LimitDisk = "LIMIT_DISK", ResourceExhausted, 429, Retry;

    /// A JSON body or a query has a field that the call does not know.
    UnknownField = "UNKNOWN_FIELD", InvalidArgument, 400, GiveUp;
    /// A web page of another origin asked for it.
    ForeignOrigin = "FOREIGN_ORIGIN", PermissionDenied, 403, GiveUp;
    /// The request names a host that this node is not known by.
    ForeignHost = "FOREIGN_HOST", PermissionDenied, 403, GiveUp;
    /// The port takes encrypted connections only.
    TlsRequired = "TLS_REQUIRED", InvalidArgument, 400, GiveUp;
    /// The path is none of the API's, or not on this port.
    NoSuchRoute = "NO_SUCH_ROUTE", Unimplemented, 404, GiveUp;
    /// The path exists, but not with this method.
    MethodNotAllowed = "METHOD_NOT_ALLOWED", Unimplemented, 405, GiveUp;
    /// The request's body is larger than any request may be.
    BodyTooLarge = "BODY_TOO_LARGE", ResourceExhausted, 413, GiveUp;

    /// A fault of the service itself.
    Internal = "INTERNAL", Internal, 500, Unknown;
}

/// Every name of a request field, on the wire and in its reason. `body` is the whole of a request: of HTTP,
/// or of a session.
const INVALID: &[(&str, &str)] = &[
    ("acquire_request_id", "INVALID_ACQUIRE_REQUEST_ID"),
    ("actor", "INVALID_ACTOR"),
    ("after", "INVALID_AFTER"),
    ("body", "INVALID_BODY"),
    ("campaign_request_id", "INVALID_CAMPAIGN_REQUEST_ID"),
    ("cause", "INVALID_CAUSE"),
    ("certificate_name", "INVALID_CERTIFICATE_NAME"),
    ("certificate_names", "INVALID_CERTIFICATE_NAMES"),
    ("command_version", "INVALID_COMMAND_VERSION"),
    ("dry_run", "INVALID_DRY_RUN"),
    ("election", "INVALID_ELECTION"),
    ("every_seconds", "INVALID_EVERY_SECONDS"),
    ("fencing_token", "INVALID_FENCING_TOKEN"),
    ("from", "INVALID_FROM"),
    ("from_flags", "INVALID_FROM_FLAGS"),
    ("grpc_address", "INVALID_GRPC_ADDRESS"),
    ("holds", "INVALID_HOLDS"),
    ("http_address", "INVALID_HTTP_ADDRESS"),
    ("identity", "INVALID_IDENTITY"),
    ("keep", "INVALID_KEEP"),
    ("key_hash", "INVALID_KEY_HASH"),
    ("lease_id", "INVALID_LEASE_ID"),
    ("lock_name", "INVALID_LOCK_NAME"),
    ("max_hold_seconds", "INVALID_MAX_HOLD_SECONDS"),
    ("member_id", "INVALID_MEMBER_ID"),
    ("mode", "INVALID_MODE"),
    ("name", "INVALID_NAME"),
    ("newest_first", "INVALID_NEWEST_FIRST"),
    ("node_id", "INVALID_NODE_ID"),
    ("off", "INVALID_OFF"),
    ("owner_id", "INVALID_OWNER_ID"),
    ("page_size", "INVALID_PAGE_SIZE"),
    ("page_token", "INVALID_PAGE_TOKEN"),
    ("path", "INVALID_PATH"),
    ("prefix", "INVALID_PREFIX"),
    ("principal", "INVALID_PRINCIPAL"),
    ("raft_address", "INVALID_RAFT_ADDRESS"),
    ("raft_tick_ms", "INVALID_RAFT_TICK_MS"),
    ("request_id", "INVALID_REQUEST_ID"),
    ("required", "INVALID_REQUIRED"),
    ("scope", "INVALID_SCOPE"),
    ("seq", "INVALID_SEQ"),
    ("since_unix_ms", "INVALID_SINCE_UNIX_MS"),
    ("stale", "INVALID_STALE"),
    ("to", "INVALID_TO"),
    ("token_id", "INVALID_TOKEN_ID"),
    ("ttl_seconds", "INVALID_TTL_SECONDS"),
    ("value", "INVALID_VALUE"),
    ("verb", "INVALID_VERB"),
    ("verbs", "INVALID_VERBS"),
    ("wait_ms", "INVALID_WAIT_MS"),
];

fn invalid_name(field: &str) -> &'static str {
    let known = INVALID.iter().find(|(known, _)| *known == field);
    debug_assert!(known.is_some(), "{field} is missing in the table of fields");
    known.map_or("INVALID_REQUEST", |(_, name)| name)
}

impl Reason {
    /// The reason's stable name.
    pub fn as_str(self) -> &'static str {
        self.row().name
    }

    /// Where the documents say what it means and what to do about it.
    pub fn page(self) -> String {
        format!("docs/reference/errors.md#{}", self.as_str().to_ascii_lowercase())
    }

    /// Every reason that this version knows.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::PLAIN.iter().copied().chain(INVALID.iter().map(|(field, _)| Self::Invalid(field)))
    }

    /// The reason of that name, if this version knows it.
    pub fn parse(name: &str) -> Option<Self> {
        if let Some((field, _)) = INVALID.iter().find(|(_, known)| *known == name) {
            return Some(Self::Invalid(field));
        }
        Self::PLAIN.iter().copied().find(|reason| reason.as_str() == name)
    }

    /// The gRPC status code that goes with the reason.
    pub fn grpc_code(self) -> Code {
        self.row().code
    }

    /// The HTTP status that goes with the reason.
    pub fn http_status(self) -> u16 {
        self.row().http_status
    }

    /// Whether the same request, with the same request id, may succeed if it is sent again.
    pub fn is_retryable(self) -> bool {
        matches!(self.row().next, Next::Retry | Next::RetrySameId)
    }

    /// Whether the request may have taken effect although it was refused.
    pub fn outcome_unknown(self) -> bool {
        matches!(self.row().next, Next::RetrySameId | Next::Unknown)
    }

    /// The reason for a refused field, by the field's name on the wire in either casing: what is
    /// known only at run time, such as a key of a JSON object. `None` if no request has such a field.
    pub fn invalid_field(name: &str) -> Option<Self> {
        let mut snake_case = String::with_capacity(name.len() + 4);
        for c in name.chars() {
            if c.is_ascii_uppercase() {
                snake_case.push('_');
            }
            snake_case.push(c.to_ascii_lowercase());
        }
        INVALID.iter().find(|(known, _)| *known == snake_case).map(|(field, _)| Self::Invalid(field))
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn every_reason_is_found_by_its_name() {
        for reason in Reason::all() {
            assert_eq!(Reason::parse(reason.as_str()), Some(reason));
        }
        assert_eq!(Reason::parse("NEVER_HEARD_OF"), None);
    }

    #[test]
    fn the_reason_for_a_field_is_the_fields_name_in_upper_case() {
        for (field, name) in INVALID {
            assert_eq!(*name, format!("INVALID_{}", field.to_ascii_uppercase()));
        }
    }

    #[test]
    fn every_field_of_every_request_has_a_reason() {
        let descriptors = prost_types::FileDescriptorSet::decode(crate::FILE_DESCRIPTOR_SET).unwrap();
        let messages = descriptors.file.iter().flat_map(|file| &file.message_type);
        let mut fields = 0;
        for message in messages.filter(|message| message.name().ends_with("Request")) {
            for field in &message.field {
                let name = field.name();
                assert!(INVALID.iter().any(|(known, _)| *known == name), "{}.{name}", message.name());
                assert_eq!(Reason::invalid_field(field.json_name()), Reason::invalid_field(name));
                fields += 1;
            }
        }
        assert!(fields > 20);
    }

    #[test]
    fn http_statuses_go_with_grpc_codes() {
        for reason in Reason::PLAIN {
            let codes: &[Code] = match reason.http_status() {
                400 => &[Code::InvalidArgument],
                401 => &[Code::Unauthenticated],
                403 => &[Code::PermissionDenied],
                404 => &[Code::NotFound, Code::Unimplemented],
                405 => &[Code::Unimplemented],
                409 => &[Code::FailedPrecondition],
                410 => &[Code::OutOfRange],
                413 | 429 => &[Code::ResourceExhausted],
                500 => &[Code::Internal],
                503 => &[Code::Unavailable],
                other => panic!("{reason} has the unexpected status {other}"),
            };
            assert!(codes.contains(&reason.grpc_code()), "{reason}");
        }
    }

    #[test]
    fn only_silence_and_faults_leave_the_outcome_open() {
        assert!(Reason::OutcomeUnknown.outcome_unknown() && Reason::OutcomeUnknown.is_retryable());
        assert!(Reason::Internal.outcome_unknown() && !Reason::Internal.is_retryable());
        assert!(Reason::NoLeader.is_retryable() && !Reason::NoLeader.outcome_unknown());
        assert!(!Reason::LockHeld.is_retryable() && !Reason::Invalid("body").is_retryable());
    }
}
