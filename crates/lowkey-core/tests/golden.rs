//! Runs the golden scripts in `testscripts`: behaviour as text, one property a file.
//!
//! A script is commands, `---`, and what came of them. The output is written by the tests themselves
//! with `UPDATE_GOLDENFILES=1 cargo test -p lowkey-core --test golden`, and then reviewed.
//! A new script is found when this file is compiled anew: `touch` it.
//!
//! Entries of the log, each applied at the next revision; a request id of their own is made up where
//! none is given:
//! - `create_lease OWNER ttl=SECONDS [request=ID]`
//! - `revoke LEASE OWNER [request=ID]`
//! - `acquire LOCK OWNER lease=LEASE|ttl=SECONDS [mode=shared] [scope=subtree] [value=TEXT] [wait=true]
//!   [max_hold=SECONDS] [keeps_asked=true] [request=ID]`
//! - `release LOCK lease=LEASE [token=TOKEN] [request=ID]`
//! - `release LOCK by_request=ID lease=LEASE|owner=OWNER [token=TOKEN] [request=ID]`; `give_up=ID` for a release that is
//!   final; `actor=OWNER` for who asks
//! - `set_value LOCK OWNER lease=LEASE value=TEXT [token=TOKEN] [request=ID]`
//! - `cancel TICKET…`
//! - `expire LEASE… decided_term=TERM [silent=MS,…]`: what the leader knew of each, as `MS`, `MS/STALLED` or
//!   `MS/STALLED/changed`
//! - `end_hold LOCK lease=LEASE token=TOKEN decided_term=TERM`
//! - `add_member NAME [identity=0..255] [host=HOST] [version=N] [key=0..255] [invitation=0..255]`; without an identity it
//!   is expected
//! - `update_member MEMBER NAME identity=0..255 [host=HOST] [version=N] [key=0..255]`, `remove_member NAME
//!   [member=MEMBER]`
//! - `invite 0..255 seconds=N [since=MS]`
//! - `end_quarantine`
//! - `add_principal NAME [CERTIFICATE_NAME…]`, `remove_principal NAME`, `remove_name NAME CERTIFICATE_NAME`
//! - `add_token NAME 0..255 [hash=0..255]`, `revoke_token 0..255`
//! - `grant NAME PATH VERB…`, `revoke_grant NAME PATH VERB…`, `require true|false`
//! - `plan GROUP`, `split AT child=GROUP`, `record GROUP AT child=GROUP`, `drain [AT]`: how groups change
//! - `set_backups on|off|flags [to=URL] [every=SECONDS] [keep=N]`: the schedule of backups
//! - `noop`: an entry without a command
//!
//! What can grant a lock takes `since=MS` too: the proposer's wall clock.
//!
//! And around them:
//! - `check ENTRY`: what an entry would be answered, changing nothing
//! - `bytes ENTRY`: what it looks like in the log
//! - `term TERM`: the term of the entries that follow
//! - `revision REVISION`: the next entry has this one
//! - `churn LOCK OWNER lease=LEASE times=N`: acquires and releases N times, each with new request ids
//! - `begin_anew NAME identity=0..255 [unix_minutes=N] [at_once=true]`: the first state of a new cluster, in place of
//!   the present one
//! - `audit`: from here on what is kept of grants that are over is told, and when locks were asked for
//! - `enter`: goes on with the group that was born last
//! - `state`, `hash`
//! - `snapshot`: encodes, decodes, compares, and goes on with the decoded one

use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use lowkey_core::{
    AccessChange, AcquireWith, Applied, BackupRule, BackupSchedule, Boundary, COMMAND_VERSION, Cause,
    CertificateName, Change, ChangeKind, ClusterId, Command, EndedGrant, Event, FirstNumbers, GrantPath,
    GrantRef, GroupChange, GroupId, HoldRef, InTheWay, Invalid, InvitationHash, KeyHash, LeaseId, LockName,
    MaxHold, MemberId, Mode, NewBeginning, NodeIdentity, NodeInfo, NodeName, OwnerId, PrincipalName, Refusal,
    Reply, RequestId, Requester, Scope, Silence, State, Ticket, Token, TokenHash, TokenId, Ttl, Value, Verb,
    Verbs, WaitEnd,
};
use prost::Message as _;
use test_each_file::test_each_path;

mod wire;

test_each_path! { in "./crates/lowkey-core/tests/testscripts" as testscripts => run_script }

fn run_script(path: &Path) {
    let mut runner = Runner {
        state: State::new(ClusterId([7; 16])),
        term: 1,
        next_revision: 1,
        audits: false,
        born: None,
    };
    goldenscript::run(&mut runner, path).expect("the script can be read");
}

/// One line of a script.
#[derive(goldenscript::Command)]
enum Step {
    Noop,
    Term(u64),
    Revision(u64),
    Churn {
        lock: String,
        owner: String,
        #[arg(key)]
        lease: u64,
        #[arg(key)]
        times: u64,
    },
    BeginAnew {
        name: String,
        #[arg(key)]
        identity: u8,
        #[arg(key, optional)]
        unix_minutes: u64,
        #[arg(key, optional)]
        at_once: bool,
    },
    Audit,
    Enter,
    State,
    Hash,
    Snapshot,
    /// An entry, or what is asked about one: `check` and `bytes` stand before it.
    #[command(other)]
    Entry(goldenscript::Command),
}

/// A command of the state machine, as scripts write it.
#[derive(goldenscript::Command)]
enum Entry {
    CreateLease {
        owner: String,
        #[arg(key)]
        ttl: i64,
        #[arg(key)]
        request: Option<String>,
    },
    Revoke {
        lease: u64,
        owner: String,
        #[arg(key)]
        actor: Option<String>,
        #[arg(key, optional)]
        since: u64,
        #[arg(key)]
        request: Option<String>,
    },
    Acquire {
        lock: String,
        owner: String,
        #[arg(key)]
        lease: Option<u64>,
        #[arg(key)]
        ttl: Option<i64>,
        #[arg(key)]
        mode: Option<String>,
        #[arg(key)]
        scope: Option<String>,
        #[arg(key, optional)]
        value: String,
        #[arg(key, optional)]
        wait: bool,
        #[arg(key, optional)]
        max_hold: i64,
        #[arg(key, optional)]
        since: u64,
        #[arg(key, optional)]
        keeps_asked: bool,
        #[arg(key)]
        request: Option<String>,
    },
    Release {
        lock: String,
        #[arg(key)]
        lease: Option<u64>,
        #[arg(key)]
        by_request: Option<String>,
        #[arg(key)]
        give_up: Option<String>,
        #[arg(key)]
        owner: Option<String>,
        #[arg(key)]
        token: Option<u64>,
        #[arg(key)]
        actor: Option<String>,
        #[arg(key, optional)]
        since: u64,
        #[arg(key)]
        request: Option<String>,
    },
    SetValue {
        lock: String,
        owner: String,
        #[arg(key)]
        lease: u64,
        #[arg(key)]
        token: Option<u64>,
        #[arg(key)]
        value: String,
        #[arg(key)]
        request: Option<String>,
    },
    Cancel {
        #[arg(optional)]
        tickets: Vec<u64>,
        #[arg(key, optional)]
        since: u64,
    },
    Expire {
        #[arg(optional)]
        leases: Vec<u64>,
        #[arg(key)]
        decided_term: u64,
        #[arg(key, optional)]
        since: u64,
        #[arg(key)]
        silent: Option<String>,
    },
    EndHold {
        lock: String,
        #[arg(key)]
        lease: u64,
        #[arg(key)]
        token: u64,
        #[arg(key)]
        decided_term: u64,
        #[arg(key, optional)]
        since: u64,
    },
    AddMember {
        name: String,
        #[arg(key)]
        identity: Option<u8>,
        #[arg(key)]
        host: Option<String>,
        #[arg(key)]
        version: Option<u32>,
        #[arg(key)]
        key: Option<u8>,
        #[arg(key)]
        invitation: Option<u8>,
    },
    Invite {
        invitation: u8,
        #[arg(key)]
        seconds: u64,
        #[arg(key, optional)]
        since: u64,
    },
    UpdateMember {
        member: u64,
        name: String,
        #[arg(key)]
        identity: u8,
        #[arg(key)]
        host: Option<String>,
        #[arg(key)]
        version: Option<u32>,
        #[arg(key)]
        key: Option<u8>,
    },
    RemoveMember {
        name: String,
        #[arg(key)]
        member: Option<u64>,
    },
    EndQuarantine,
    AddPrincipal {
        name: String,
        #[arg(optional)]
        names: Vec<String>,
    },
    RemovePrincipal(String),
    RemoveName {
        principal: String,
        name: String,
    },
    AddToken {
        name: String,
        token: u8,
        #[arg(key)]
        hash: Option<u8>,
    },
    RevokeToken(u8),
    Grant {
        name: String,
        path: String,
        verbs: Vec<String>,
    },
    RevokeGrant {
        name: String,
        path: String,
        verbs: Vec<String>,
    },
    Require(bool),
    Plan(u32),
    Split {
        at: String,
        #[arg(key)]
        child: u32,
    },
    Record {
        parent: u32,
        at: String,
        #[arg(key)]
        child: u32,
    },
    Drain {
        #[arg(optional)]
        from: Option<String>,
    },
    SetBackups {
        how: String,
        #[arg(key, optional)]
        to: String,
        #[arg(key, optional)]
        every: i64,
        #[arg(key, optional)]
        keep: i64,
    },
}

impl Entry {
    /// The real command. `fresh` is its request id if the script gives none.
    fn into_command(self, fresh: &str) -> Result<Command, Box<dyn Error>> {
        let id = |request: Option<String>| RequestId::parse(request.as_deref().unwrap_or(fresh));
        Ok(match self {
            Self::CreateLease { owner, ttl, request } => Command::CreateLease {
                owner: OwnerId::parse(&owner)?,
                ttl: Ttl::parse(ttl)?,
                request: id(request)?,
            },
            Self::Revoke { lease, owner, actor, since, request } => Command::RevokeLease {
                lease: LeaseId(lease),
                owner: OwnerId::parse(&owner)?,
                actor: actor.map(|actor| OwnerId::parse(&actor)).transpose()?,
                since_unix_ms: since,
                request: id(request)?,
            },
            Self::Acquire {
                lock,
                owner,
                lease,
                ttl,
                mode,
                scope,
                value,
                wait,
                max_hold,
                since,
                keeps_asked,
                request,
            } => Command::Acquire {
                lock: LockName::parse(&lock)?,
                owner: OwnerId::parse(&owner)?,
                with: match (lease, ttl) {
                    (Some(lease), None) => AcquireWith::Lease(LeaseId(lease)),
                    (None, Some(ttl)) => AcquireWith::NewLease(Ttl::parse(ttl)?),
                    _ => return Err("acquire takes a lease or a ttl".into()),
                },
                mode: match mode.as_deref() {
                    None | Some("exclusive") => Mode::Exclusive,
                    Some("shared") => Mode::Shared,
                    Some(other) => return Err(format!("no such mode: {other}").into()),
                },
                scope: match scope.as_deref() {
                    None | Some("name") => Scope::Name,
                    Some("subtree") => Scope::Subtree,
                    Some(other) => return Err(format!("no such scope: {other}").into()),
                },
                value: Value::parse(&value)?,
                wait,
                max_hold: MaxHold::parse(max_hold)?,
                since_unix_ms: since,
                keeps_asked,
                request: id(request)?,
            },
            Self::Release { lock, lease, by_request, give_up, owner, token, actor, since, request } => {
                Command::Release {
                    lock: LockName::parse(&lock)?,
                    grant: {
                        let lease = lease.map(LeaseId);
                        let requester = match (lease, owner) {
                            (Some(lease), None) => Requester::Lease(lease),
                            (None, Some(owner)) => Requester::Owner(OwnerId::parse(&owner)?),
                            _ => return Err("release takes a lease or an owner".into()),
                        };
                        match (by_request, give_up, lease) {
                            (None, None, Some(lease)) => GrantRef::Lease(lease),
                            (Some(acquire), None, _) => {
                                GrantRef::Request(RequestId::parse(&acquire)?, requester)
                            }
                            (None, Some(acquire), _) => {
                                GrantRef::GivenUp(RequestId::parse(&acquire)?, requester)
                            }
                            _ => return Err("release takes a lease, or by_request, or give_up".into()),
                        }
                    },
                    token: token.map(Token),
                    actor: actor.map(|actor| OwnerId::parse(&actor)).transpose()?,
                    since_unix_ms: since,
                    request: id(request)?,
                }
            }
            Self::SetValue { lock, owner, lease, token, value, request } => Command::SetValue {
                lock: LockName::parse(&lock)?,
                owner: OwnerId::parse(&owner)?,
                lease: LeaseId(lease),
                token: token.map(Token),
                value: Value::parse(&value)?,
                since_unix_ms: 0,
                request: id(request)?,
            },
            Self::Cancel { tickets, since } => Command::CancelWait {
                tickets: tickets.into_iter().map(Ticket).collect(),
                since_unix_ms: since,
            },
            Self::Expire { leases, decided_term, since, silent } => Command::Expire {
                leases: leases.into_iter().map(LeaseId).collect(),
                decided_term,
                since_unix_ms: since,
                silences: silent.map(|silent| silences(&silent)).transpose()?.unwrap_or_default(),
            },
            Self::EndHold { lock, lease, token, decided_term, since } => Command::EndHolds {
                holds: vec![HoldRef {
                    lock: LockName::parse(&lock)?,
                    lease: LeaseId(lease),
                    token: Token(token),
                }],
                decided_term,
                since_unix_ms: since,
            },
            Self::AddMember { name, identity, host, version, key, invitation } => Command::AddMember {
                node: Box::new(node(&name, identity, host, version, key)?),
                invitation: invitation.map(|byte| InvitationHash([byte; 32])),
            },
            Self::UpdateMember { member, name, identity, host, version, key } => Command::UpdateMember {
                member: MemberId(member),
                node: Box::new(node(&name, Some(identity), host, version, key)?),
            },
            Self::Invite { invitation, seconds, since } => Command::Invite {
                invitation: InvitationHash([invitation; 32]),
                lifetime_seconds: seconds,
                since_unix_ms: since,
            },
            Self::EndQuarantine => Command::EndQuarantine,
            Self::AddPrincipal { name, names } => access(AccessChange::AddPrincipal {
                principal: PrincipalName::parse(&name)?,
                names: names.iter().map(|name| CertificateName::parse(name)).collect::<Result<_, _>>()?,
            }),
            Self::RemovePrincipal(name) => {
                access(AccessChange::RemovePrincipal { principal: PrincipalName::parse(&name)? })
            }
            Self::RemoveName { principal, name } => access(AccessChange::RemoveName {
                principal: PrincipalName::parse(&principal)?,
                name: CertificateName::parse(&name)?,
            }),
            Self::AddToken { name, token, hash } => access(AccessChange::AddToken {
                principal: PrincipalName::parse(&name)?,
                token: TokenId([token; 8]),
                hash: TokenHash([hash.unwrap_or(token); 32]),
            }),
            Self::RevokeToken(token) => access(AccessChange::RevokeToken { token: TokenId([token; 8]) }),
            Self::Grant { name, path, verbs: some } => access(AccessChange::Grant {
                principal: PrincipalName::parse(&name)?,
                path: GrantPath::parse(&path)?,
                verbs: verbs(&some)?,
            }),
            Self::RevokeGrant { name, path, verbs: some } => access(AccessChange::Revoke {
                principal: PrincipalName::parse(&name)?,
                path: GrantPath::parse(&path)?,
                verbs: verbs(&some)?,
            }),
            Self::Require(required) => access(AccessChange::Require { required }),
            Self::Plan(parent) => Command::groups(GroupChange::Plan { parent: GroupId(parent) }),
            Self::Split { at, child } => {
                Command::groups(GroupChange::Split { at: Boundary::parse(&at)?, child: GroupId(child) })
            }
            Self::Record { parent, at, child } => Command::groups(GroupChange::Record {
                parent: GroupId(parent),
                at: Boundary::parse(&at)?,
                child: GroupId(child),
            }),
            Self::Drain { from } => {
                let from = from.map(|from| Boundary::parse(&from)).transpose()?;
                Command::groups(GroupChange::Drain { from })
            }
            Self::SetBackups { how, to, every, keep } => {
                let schedule = match how.as_str() {
                    "flags" => None,
                    "off" => Some(BackupSchedule::Off),
                    "on" => Some(BackupSchedule::On(BackupRule::parse(&to, every, keep)?)),
                    other => return Err(format!("no such schedule: {other}").into()),
                };
                Command::SetBackupSchedule(schedule.map(Arc::new))
            }
            Self::RemoveMember { name, member } => {
                Command::RemoveMember { name: NodeName::parse(&name)?, member: member.map(MemberId) }
            }
        })
    }
}

fn access(change: AccessChange) -> Command {
    Command::Access(Box::new(change))
}

fn verbs(verbs: &[String]) -> Result<Verbs, Invalid> {
    verbs.iter().map(|verb| Verb::parse(verb)).collect()
}

/// The addresses say whose they are; a node that is expected has only one.
fn node(
    name: &str,
    identity: Option<u8>,
    host: Option<String>,
    version: Option<u32>,
    key: Option<u8>,
) -> Result<NodeInfo, Invalid> {
    let host = host.unwrap_or_else(|| name.to_owned());
    let known = identity.is_some();
    Ok(NodeInfo {
        name: NodeName::parse(name)?,
        identity: identity.map(|identity| NodeIdentity([identity; 16])),
        raft_address: format!("{host}:7000"),
        grpc_address: if known { format!("{host}:9000") } else { String::new() },
        http_address: if known { format!("{host}:8080") } else { String::new() },
        command_version: version.unwrap_or(if known { COMMAND_VERSION } else { 0 }),
        key_hash: key.map(|byte| KeyHash([byte; 32])),
    })
}

struct Runner {
    state: State,
    term: u64,
    next_revision: u64,
    audits: bool,
    born: Option<Box<State>>,
}

impl goldenscript::Runner for Runner {
    type Command = Step;

    fn run(&mut self, step: &Step, _: &goldenscript::Context) -> Result<String, Box<dyn Error>> {
        let mut output = String::new();
        match step {
            Step::Noop => {
                let revision = self.take_revision();
                self.state.advance(revision);
                writeln!(output, "{revision} → nothing")?;
            }
            Step::Term(term) => self.term = *term,
            Step::Revision(revision) => self.next_revision = *revision,
            Step::Churn { lock, owner, lease, times } => {
                output = self.churn(lock, owner, LeaseId(*lease), *times)?;
            }
            Step::BeginAnew { name, identity, unix_minutes, at_once } => {
                let beginning = NewBeginning {
                    cluster: ClusterId([8; 16]),
                    node: node(name, Some(*identity), None, None, None)?,
                    numbers: FirstNumbers::Unclaimed { unix_minutes: *unix_minutes, spread: 0 },
                    keep_tokens: true,
                    quarantine: !at_once,
                };
                let (state, member) =
                    self.state.begin_anew(beginning).map_err(|spent| format!("{spent:?}"))?;
                self.next_revision = state.revision() + 1;
                self.state = state;
                writeln!(output, "member {member} of a new cluster")?;
            }
            Step::Enter => {
                self.state = *self.born.take().ok_or("no group was born")?;
                writeln!(output, "group {}", self.state.group())?;
            }
            Step::Audit => self.audits = true,
            Step::State => output = dump(&self.state, self.audits)?,
            Step::Hash => writeln!(output, "{:016x}", self.state.hash())?,
            Step::Snapshot => {
                let bytes = self.state.encode_snapshot();
                let decoded = State::decode_snapshot(&bytes)?;
                if decoded != self.state || decoded.hash() != self.state.hash() {
                    return Err(format!("read back as {decoded:?}, was {:?}", self.state).into());
                }
                writeln!(output, "read back the same, {} bytes", bytes.len())?;
                self.state = decoded;
            }
            Step::Entry(raw) => match raw.name.as_str() {
                "check" => {
                    let command = self.parse(&inner(raw)?)?;
                    let would = match self.state.check(&command) {
                        Err(refusal) => format!("refused: {}", refusal_words(&refusal)),
                        Ok(Some(reply)) => format!("answered as known: {}", reply_words(&reply)),
                        Ok(None) => "carried out".to_owned(),
                    };
                    writeln!(output, "would be {would}")?;
                }
                "bytes" => {
                    let bytes = self.parse(&inner(raw)?)?.encode();
                    let hex: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                    writeln!(output, "{}", hex.join(" "))?;
                }
                _ => {
                    let command = self.parse(raw)?;
                    let revision = self.take_revision();
                    let mut applied = self.state.apply(revision, self.term, &command);
                    let audits = self.audits;
                    applied.events.retain(|event| audits || !matches!(event, Event::GrantEnded(_)));
                    write!(output, "{revision} → {}", applied_words(&applied)?)?;
                    if let Some(born) = applied.born {
                        writeln!(output, "    born: group {}, {}", born.group(), born.range())?;
                        self.born = Some(born);
                    }
                }
            },
        }
        Ok(output)
    }
}

impl Runner {
    fn take_revision(&mut self) -> u64 {
        self.next_revision += 1;
        self.next_revision - 1
    }

    fn parse(&self, raw: &goldenscript::Command) -> Result<Command, Box<dyn Error>> {
        Entry::try_from(raw)?.into_command(&format!("auto-{}", self.next_revision))
    }

    fn churn(
        &mut self,
        lock: &str,
        owner: &str,
        lease: LeaseId,
        times: u64,
    ) -> Result<String, Box<dyn Error>> {
        let (lock, owner) = (LockName::parse(lock)?, OwnerId::parse(owner)?);
        let first = self.next_revision;
        for _ in 0..times {
            let request = |kind: &str, revision: u64| -> Result<RequestId, Invalid> {
                RequestId::parse(&format!("churn-{kind}-{revision}"))
            };
            let acquire = Command::Acquire {
                lock: lock.clone(),
                owner: owner.clone(),
                with: AcquireWith::Lease(lease),
                mode: Mode::default(),
                scope: Scope::default(),
                value: Value::default(),
                wait: false,
                max_hold: None,
                since_unix_ms: 0,
                keeps_asked: false,
                request: request("acquire", self.next_revision)?,
            };
            let release = Command::Release {
                lock: lock.clone(),
                grant: GrantRef::Lease(lease),
                token: None,
                actor: None,
                since_unix_ms: 0,
                request: request("release", self.next_revision)?,
            };
            for command in [acquire, release] {
                let revision = self.take_revision();
                if let Err(refusal) = self.state.apply(revision, self.term, &command).reply {
                    return Err(format!("{command:?}: {}", refusal_words(&refusal)).into());
                }
            }
        }
        let last = self.next_revision - 1;
        Ok(format!("{first}..{last} → {lock} was acquired and released {times} times\n"))
    }
}

/// `check acquire a alice …` is about `acquire a alice …`.
fn inner(raw: &goldenscript::Command) -> Result<goldenscript::Command, Box<dyn Error>> {
    let mut entry = raw.clone();
    entry.name = raw.consume_args().next_pos().ok_or("an entry must follow")?.to_owned();
    entry.args.remove(0);
    Ok(entry)
}

fn applied_words(applied: &Applied) -> Result<String, std::fmt::Error> {
    let mut words = String::new();
    match &applied.reply {
        Ok(reply) => writeln!(words, "{}", reply_words(reply))?,
        Err(refusal) => writeln!(words, "refused: {}", refusal_words(refusal))?,
    }
    for event in &applied.events {
        writeln!(words, "    {}", event_words(event))?;
    }
    Ok(words)
}

fn reply_words(reply: &Reply) -> String {
    match reply {
        Reply::LeaseCreated { lease, ttl } => format!("lease {lease} created, ttl {} s", ttl.seconds()),
        Reply::LeaseRevoked { released } => format!("lease revoked, {released} locks released"),
        Reply::Granted { token, lease, ttl, revision } => {
            format!(
                "granted: token {token}, lease {lease}, ttl {} s, since revision {revision}",
                ttl.seconds()
            )
        }
        Reply::Waiting { ticket } => format!("waiting, ticket {ticket}"),
        Reply::Released => "released".to_owned(),
        Reply::GivenUp => "given up".to_owned(),
        Reply::ValueSet { revision } => format!("value set at revision {revision}"),
        Reply::WaitsCancelled { count } => format!("{count} waits cancelled"),
        Reply::Expired { count } => format!("{count} leases expired"),
        Reply::HoldsEnded { count } => format!("{count} grants ended"),
        Reply::MemberAdded { member } => format!("member {member}"),
        Reply::MemberRemoved { member } => format!("member {member} removed"),
        Reply::QuarantineEnded => "no quarantine any more".into(),
        Reply::Invited { expires_unix_ms } => format!("invited until {expires_unix_ms} ms"),
        Reply::GroupPlanned { group } => format!("group {group} may be made"),
        Reply::GroupSplit { child } => format!("split, the rest is group {child}"),
        Reply::GroupsChanged => "groups are so now".into(),
        Reply::AccessChanged => "access is so now".into(),
        Reply::BackupScheduleSet => "backups are so now".into(),
    }
}

fn refusal_words(refusal: &Refusal) -> String {
    match refusal {
        Refusal::LeaseNotFound { lease } => format!("LEASE_NOT_FOUND lease {lease}"),
        Refusal::LockNotFound { lock } => format!("LOCK_NOT_FOUND {lock}"),
        Refusal::LockHeld { lock, in_the_way } => {
            format!("LOCK_HELD {lock}, {}", way_words(lock, in_the_way))
        }
        Refusal::AlreadyHeld { lock, lease, mode, scope, max_hold } => {
            let limit = limit_words(*max_hold);
            format!("ALREADY_HELD {lock}, by lease {lease}, as {mode:?} {scope:?}{limit}")
        }
        Refusal::TooManyWaiters { lock } => format!("TOO_MANY_WAITERS {lock}"),
        Refusal::NotOwner { what } => format!("NOT_OWNER {what}"),
        Refusal::StaleToken { lock, given, current } => {
            format!("STALE_TOKEN {lock}, given {given}, current {current}")
        }
        Refusal::TooManyLocks { lease } => format!("TOO_MANY_LOCKS lease {lease}"),
        Refusal::RequestReused { request } => format!("REQUEST_REUSED {request}"),
        Refusal::GivenUp { request } => format!("GIVEN_UP {request}"),
        Refusal::NodeKeyDiffers { name } => format!("NODE_KEY_DIFFERS {name}"),
        Refusal::InvitationNotFound => "INVITATION_NOT_FOUND".into(),
        Refusal::InvitationUsed => "INVITATION_USED".into(),
        Refusal::NodeNameTaken { name, by: Some(by) } => format!("NODE_NAME_TAKEN {name}, by identity {by}"),
        Refusal::NodeNameTaken { name, by: None } => {
            format!("NODE_NAME_TAKEN {name}, by one that is expected")
        }
        Refusal::NodeNotFound { name } => format!("NODE_NOT_FOUND {name}"),
        Refusal::LastNode { name } => format!("LAST_NODE {name}"),
        Refusal::PrincipalNotFound { principal } => format!("PRINCIPAL_NOT_FOUND {principal}"),
        Refusal::TokenNotFound { token } => format!("TOKEN_NOT_FOUND {token}"),
        Refusal::ProofTaken { what } => format!("PROOF_TAKEN {what}"),
        Refusal::AccessLimit { what, max } => format!("ACCESS_LIMIT {max} {what}"),
        Refusal::AdminNeeded => "ADMIN_NEEDED".into(),
        Refusal::Draining { lock, from } => format!("DRAINING {lock}, from {from} on"),
        Refusal::Split(refusal) => format!("SPLIT {refusal:?}"),
        Refusal::NotHere { group } => format!("NOT_HERE group {group}"),
        Refusal::LeaseElsewhere { lease, group } => format!("LEASE_ELSEWHERE lease {lease}, group {group}"),
        Refusal::SubtreeSplit { lock, boundary } => format!("SUBTREE_SPLIT {lock}, at {boundary}"),
        Refusal::Quarantine => "QUARANTINE".into(),
    }
}

/// Who holds what, where it is not the very lock that was asked for, and who waits with whoever asked.
fn way_words(asked: &LockName, way: &InTheWay) -> String {
    let InTheWay { held, holder, waiters } = way;
    let mut words = format!(
        "by {} with lease {}, token {}{}, since {} ms",
        holder.owner,
        holder.lease,
        holder.token,
        claim_words(holder.mode, holder.scope, &holder.value),
        holder.since_unix_ms
    );
    if held != asked {
        words += &format!(", on {held}");
    }
    if *waiters > 0 {
        words += &format!(", {waiters} waiting");
    }
    words
}

fn limit_words(max_hold: Option<MaxHold>) -> String {
    max_hold.map(|max_hold| format!(", for {} s at most", max_hold.seconds())).unwrap_or_default()
}

/// What is not as it mostly is: exclusive, on the name alone, and with no value.
fn claim_words(mode: Mode, scope: Scope, value: &Value) -> String {
    let mut words = String::new();
    if mode == Mode::Shared {
        words += ", shared";
    }
    if scope == Scope::Subtree {
        words += ", subtree";
    }
    if !value.is_empty() {
        words += &format!(", value {value:?}");
    }
    words
}

fn event_words(event: &Event) -> String {
    match event {
        Event::LeaseStarted { lease, ttl } => {
            format!("event: lease {lease} started, ttl {} s", ttl.seconds())
        }
        Event::LeaseEnded { lease } => format!("event: lease {lease} ended"),
        Event::HoldStarted { hold, max_hold } => {
            format!("event: the time of token {} started{}", hold.token, limit_words(Some(*max_hold)))
        }
        Event::HoldEnded { token } => format!("event: the time of token {token} ended"),
        Event::Changed(change) => format!("event: {}", change_words(change)),
        Event::GrantEnded(ended) => ended_words(ended),
        Event::WaitEnded { ticket, end } => {
            let end = match end {
                WaitEnd::Granted(reply) => reply_words(reply),
                WaitEnd::Cancelled { lock, in_the_way: Some(way) } => {
                    format!("cancelled, {lock} is held {}", way_words(lock, way))
                }
                WaitEnd::Cancelled { lock, in_the_way: None } => {
                    format!("cancelled, nobody is in the way of {lock}")
                }
                WaitEnd::GivenUp { lock } => format!("given up, for {lock}"),
                WaitEnd::LeaseGone { lease } => format!("lease {lease} is gone"),
            };
            format!("event: wait {ticket} ended: {end}")
        }
    }
}

fn ended_words(ended: &EndedGrant) -> String {
    let EndedGrant {
        lock,
        token,
        owner,
        lease,
        mode,
        scope,
        ttl,
        asked_unix_ms,
        granted_unix_ms,
        granted_revision,
        ended_unix_ms,
        cause,
        actor,
        silence,
    } = ended;
    let silence = silence.map(|silence| format!(", {silence:?}")).unwrap_or_default();
    let actor = actor.as_ref().map(|actor| format!(" by {actor}")).unwrap_or_default();
    format!(
        "kept: {lock}, token {token}, {owner}, lease {lease}, ttl {} s{}, asked at {asked_unix_ms} ms, granted at \
         {granted_unix_ms} ms (revision {granted_revision}), ended at {ended_unix_ms} ms: {cause:?}{actor}{silence}",
        ttl.seconds(),
        claim_words(*mode, *scope, &Value::default()),
    )
}

/// What a leader knew of each lease, as a script says it.
fn silences(text: &str) -> Result<Vec<Silence>, Box<dyn Error>> {
    text.split(',')
        .map(|one| {
            let mut parts = one.split('/');
            let mut number = || parts.next().map_or(Ok(0), str::parse);
            let (silent_ms, stalled_ms) = (number()?, number()?);
            Ok(Silence { silent_ms, stalled_ms, leader_changed: parts.next() == Some("changed") })
        })
        .collect()
}

fn change_words(change: &Change) -> String {
    let Change {
        kind,
        lock,
        owner,
        lease,
        token,
        mode,
        scope,
        value,
        since_unix_ms: _,
        at_unix_ms: _,
        actor,
    } = change;
    let token = token.map_or(0, |token| token.0);
    let claim = claim_words(*mode, *scope, value);
    match kind {
        ChangeKind::Acquired => format!("{lock} acquired, lease {lease}, token {token}{claim}"),
        ChangeKind::Freed(cause) => {
            let cause = match cause {
                Cause::Released => "released",
                Cause::Revoked => "lease revoked",
                Cause::Expired => "lease expired",
                Cause::HeldTooLong => "held too long",
            };
            let actor = actor.as_ref().map(|actor| format!(" by {actor}")).unwrap_or_default();
            format!("{lock} freed, token {token}, {cause}{actor}")
        }
        ChangeKind::Waiting => format!("{lock} awaited by {owner}, lease {lease}{claim}"),
        ChangeKind::Cancelled => format!("{lock} no longer awaited by {owner}, lease {lease}{claim}"),
        ChangeKind::ValueSet => format!("{lock} has value {value:?}, lease {lease}, token {token}"),
    }
}

fn dump(state: &State, audits: bool) -> Result<String, Box<dyn Error>> {
    let wire = wire::StateWire::decode(state.encode_snapshot().as_slice())?;
    let mut output = String::new();
    writeln!(
        output,
        "revision {}, last token {}, last lease {}, last member {}",
        state.revision(),
        state.last_token(),
        wire.last_lease,
        wire.last_member
    )?;
    if wire.version >= 7 {
        writeln!(output, "group {}, range {}", state.group(), state.range())?;
        if let Some(from) = state.drained_from() {
            writeln!(output, "drained from {from} on")?;
        }
        if let Some(map) = state.shard_map() {
            writeln!(output, "map {map:?}")?;
        }
    }
    if state.is_in_quarantine() {
        writeln!(output, "in quarantine")?;
    }
    for (id, lease) in state.leases() {
        let held: Vec<_> =
            state.grants().filter(|(_, g)| g.lease == id).map(|(name, _)| name.as_str()).collect();
        let held = if held.is_empty() { "nothing".to_owned() } else { held.join(" ") };
        if lease.is_waiting {
            writeln!(output, "lease {id}: {}, ttl {} s, not begun", lease.owner, lease.ttl.seconds())?;
            continue;
        }
        writeln!(output, "lease {id}: {}, ttl {} s, holds {held}", lease.owner, lease.ttl.seconds())?;
    }
    for (name, grant) in state.grants() {
        writeln!(
            output,
            "lock {name}: lease {}, token {}, revision {}, since {} ms, request {}{}{}",
            grant.lease,
            grant.token,
            grant.revision,
            grant.since_unix_ms,
            grant.request,
            claim_words(grant.mode, grant.scope, &grant.value),
            limit_words(grant.max_hold)
        )?;
        if audits {
            writeln!(output, "    asked for at {} ms", grant.asked_unix_ms)?;
        }
    }
    for wait in &wire.waits {
        let mode = if wait.mode == 1 { Mode::Shared } else { Mode::Exclusive };
        let scope = if wait.scope == 1 { Scope::Subtree } else { Scope::Name };
        let limit = limit_words(MaxHold::parse(wait.max_hold_seconds.into())?);
        let claim = claim_words(mode, scope, &Value::parse(&wait.value)?) + &limit;
        writeln!(
            output,
            "wait {}: lock {}, lease {}, request {}{claim}",
            wait.ticket, wait.lock, wait.lease, wait.request
        )?;
        if audits {
            writeln!(output, "    asked for at {} ms", wait.asked_unix_ms)?;
        }
    }
    for (id, node) in state.members() {
        let Some(identity) = node.identity else {
            writeln!(output, "member {id}: {}, expected, raft {}", node.name, node.raft_address)?;
            continue;
        };
        writeln!(
            output,
            "member {id}: {}, identity {}, raft {}, grpc {}, http {}, commands {}{}",
            node.name,
            identity,
            node.raft_address,
            node.grpc_address,
            node.http_address,
            node.command_version,
            node.key_hash.map(|hash| format!(", key {}…", hash.0[0])).unwrap_or_default()
        )?;
    }
    for invitation in &wire.invitations {
        let used = match invitation.used_by.first() {
            Some(byte) => format!("used by identity {byte}…"),
            None => "not used".to_owned(),
        };
        writeln!(
            output,
            "invitation {}…: until {} ms, {used}",
            invitation.hash[0], invitation.expires_unix_ms
        )?;
    }
    for (name, principal) in state.access().principals() {
        let list = |items: Vec<String>| if items.is_empty() { "none".to_owned() } else { items.join(" ") };
        let names = list(principal.names.iter().map(ToString::to_string).collect());
        let tokens = list(principal.tokens.keys().map(ToString::to_string).collect());
        let grants = principal.grants.iter().map(|(path, verbs)| format!("{path}:{verbs}"));
        let grants = list(grants.collect());
        writeln!(output, "principal {name}: certificates {names}; tokens {tokens}; grants {grants}")?;
    }
    if state.access().is_required() {
        writeln!(output, "access is required")?;
    }
    match state.backup_schedule().map(|schedule| &**schedule) {
        None => {}
        Some(BackupSchedule::Off) => writeln!(output, "backups: none")?,
        Some(BackupSchedule::On(rule)) => {
            let (to, every, keep) = (rule.to(), rule.every_seconds(), rule.keep());
            writeln!(output, "backups: to {to}, every {every} s, {keep} are kept")?;
        }
    }
    Ok(output)
}
