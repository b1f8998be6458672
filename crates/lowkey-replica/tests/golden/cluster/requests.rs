//! How a script's words become requests.

use std::error::Error;
use std::sync::Arc;

use lowkey_core::{
    AcquireWith, BackupSchedule, Command, GrantRef, Holds, InvitationHash, KeyHash, LeaseId, LockName,
    MaxHold, Mode, NamePrefix, NodeIdentity, OwnerId, RequestId, Requester, Scope, Token, Ttl, Value,
    WaitTime,
};
use lowkey_replica::{Query, Request};

use super::node_info;

type Parsed<T> = Result<T, Box<dyn Error>>;

/// The words of one request.
pub(crate) struct Words<'a> {
    pub(crate) kind: &'a str,
    pub(crate) pos: Vec<&'a str>,
    pub(crate) keys: Vec<(&'a str, &'a str)>,
}

impl<'a> Words<'a> {
    fn at(&self, index: usize) -> Parsed<&'a str> {
        Ok(self.pos.get(index).copied().ok_or(format!("{} takes more arguments", self.kind))?)
    }

    fn key(&self, name: &str) -> Option<&'a str> {
        self.keys.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
    }

    fn lock(&self) -> Parsed<LockName> {
        Ok(LockName::parse(self.at(0)?)?)
    }

    fn owner(&self, index: usize) -> Parsed<OwnerId> {
        Ok(OwnerId::parse(self.at(index)?)?)
    }

    fn lease(&self) -> Parsed<Option<LeaseId>> {
        Ok(self.key("lease").map(str::parse).transpose()?.map(LeaseId))
    }

    fn node(&self) -> Parsed<u64> {
        Ok(self.at(0)?.strip_prefix('n').ok_or("a node is needed")?.parse()?)
    }

    fn token(&self) -> Parsed<Option<Token>> {
        Ok(self.key("token").map(str::parse).transpose()?.map(Token))
    }

    fn value(&self) -> Parsed<Value> {
        Ok(Value::parse(self.key("value").unwrap_or_default())?)
    }

    fn ttl(&self) -> Parsed<Option<Ttl>> {
        let seconds = self.key("ttl").map(str::parse).transpose()?;
        Ok(seconds.map(Ttl::parse).transpose()?)
    }

    /// As they are told with the answer.
    pub(crate) fn told(&self) -> String {
        let keys = self.keys.iter().map(|(key, value)| format!("{key}={value}"));
        let words = std::iter::once(&self.kind).chain(&self.pos).map(|word| (*word).to_owned());
        words.chain(keys).collect::<Vec<String>>().join(" ")
    }

    pub(crate) fn request(&self, request: RequestId) -> Parsed<Request> {
        let since_unix_ms = 0;
        let command = match self.kind {
            "renew" => {
                let tokens = self.key("holds").map(|tokens| {
                    tokens
                        .split(',')
                        .filter(|token| !token.is_empty())
                        .map(str::parse)
                        .collect::<Result<Vec<u64>, _>>()
                });
                let holds = tokens.transpose()?.map(|tokens| Holds::of(tokens.into_iter().map(Token)));
                return Ok(Request::Renew { lease: LeaseId(self.at(0)?.parse()?), holds });
            }
            "renew_many" => {
                let leases = self.pos.iter().map(|lease| Ok((LeaseId(lease.parse()?), None)));
                return Ok(Request::RenewMany(leases.collect::<Parsed<_>>()?));
            }
            "get" | "list" | "lease" | "leases" | "check" | "revision" => return self.read(),
            "acquire" => return self.acquire(request),
            "create_lease" => Command::CreateLease {
                owner: self.owner(0)?,
                ttl: self.ttl()?.ok_or("a ttl is needed")?,
                request,
            },
            "revoke" => {
                let lease = LeaseId(self.at(0)?.parse()?);
                Command::RevokeLease { lease, owner: self.owner(1)?, actor: None, since_unix_ms, request }
            }
            "release" => {
                let (lock, grant, token) = (self.lock()?, self.grant()?, self.token()?);
                Command::Release { lock, grant, token, actor: None, since_unix_ms, request }
            }
            "set_value" => Command::SetValue {
                lock: self.lock()?,
                owner: self.owner(1)?,
                lease: self.lease()?.ok_or("a lease is needed")?,
                token: self.token()?,
                value: self.value()?,
                since_unix_ms: 0,
                request,
            },
            "add_member" => {
                let mut node = node_info(self.node()?);
                if let Some(identity) = self.key("identity") {
                    node.identity = match identity {
                        "none" => None,
                        number => Some(NodeIdentity([number.parse()?; 16])),
                    };
                }
                if let Some(version) = self.key("version") {
                    node.command_version = version.parse()?;
                }
                if let Some(key) = self.key("key") {
                    node.key_hash = Some(KeyHash([key.parse()?; 32]));
                }
                let invitation = self.key("invitation").map(str::parse).transpose()?;
                Command::AddMember {
                    node: Box::new(node),
                    invitation: invitation.map(|byte| InvitationHash([byte; 32])),
                }
            }
            "invite" => Command::Invite {
                invitation: InvitationHash([self.at(0)?.parse()?; 32]),
                lifetime_seconds: self.key("seconds").ok_or("seconds are needed")?.parse()?,
                since_unix_ms,
            },
            "stop_backups" => Command::SetBackupSchedule(Some(Arc::new(BackupSchedule::Off))),
            "remove_member" => Command::RemoveMember { name: node_info(self.node()?).name, member: None },
            "transfer" => return Ok(Request::Transfer { to: node_info(self.node()?).name }),
            other => return Err(format!("no such request: {other}").into()),
        };
        Ok(Request::Command(command))
    }

    fn acquire(&self, request: RequestId) -> Parsed<Request> {
        let wait = self.key("wait").map(str::parse).transpose()?.map(WaitTime::parse).transpose()?;
        let command = Command::Acquire {
            lock: self.lock()?,
            owner: self.owner(1)?,
            with: match (self.lease()?, self.ttl()?) {
                (Some(lease), None) => AcquireWith::Lease(lease),
                (None, Some(ttl)) => AcquireWith::NewLease(ttl),
                _ => return Err("acquire takes a lease or a ttl".into()),
            },
            mode: match self.key("mode") {
                None => Mode::Exclusive,
                Some("shared") => Mode::Shared,
                Some(other) => return Err(format!("no such mode: {other}").into()),
            },
            scope: match self.key("scope") {
                None => Scope::Name,
                Some("subtree") => Scope::Subtree,
                Some(other) => return Err(format!("no such scope: {other}").into()),
            },
            value: self.value()?,
            wait: wait.is_some(),
            max_hold: MaxHold::parse(self.key("max_hold").map_or(Ok(0), str::parse)?)?,
            since_unix_ms: 0,
            keeps_asked: false,
            request,
        };
        Ok(match wait {
            Some(wait) => Request::Wait { command, wait },
            None => Request::Command(command),
        })
    }

    fn grant(&self) -> Parsed<GrantRef> {
        let (lease, owner) = (self.lease()?, self.key("owner").map(OwnerId::parse).transpose()?);
        Ok(match (self.key("acquire").map(RequestId::parse).transpose()?, lease, owner) {
            (None, Some(lease), None) => GrantRef::Lease(lease),
            (Some(acquire), Some(lease), None) => GrantRef::Request(acquire, Requester::Lease(lease)),
            (Some(acquire), None, Some(owner)) => GrantRef::Request(acquire, Requester::Owner(owner)),
            _ => return Err("release takes a lease, or an acquire and its lease or owner".into()),
        })
    }

    fn read(&self) -> Parsed<Request> {
        let query = match self.kind {
            "get" => Query::Lock { lock: self.lock()? },
            "list" => Query::Locks {
                prefix: NamePrefix::parse(self.pos.first().copied().unwrap_or_default())?,
                after: self.key("after").map(LockName::parse).transpose()?,
                count_max: self.key("max").map(str::parse).transpose()?.unwrap_or(100),
            },
            "lease" => Query::Lease {
                lease: LeaseId(self.at(0)?.parse()?),
                after: self.key("after").map(LockName::parse).transpose()?,
                count_max: self.key("max").map(str::parse).transpose()?.unwrap_or(100),
            },
            "leases" => Query::Leases {
                owner: self.key("owner").map(OwnerId::parse).transpose()?,
                after: self.key("after").map(str::parse).transpose()?.map(LeaseId),
                count_max: self.key("max").map(str::parse).transpose()?.unwrap_or(100),
            },
            "check" => Query::Token { lock: self.lock()?, token: self.token()?.ok_or("a token is needed")? },
            _ => Query::Revision,
        };
        Ok(match self.key("stale") {
            None => Request::Read(query),
            Some("true") => Request::ReadStale(query),
            Some(other) => return Err(format!("stale is true, or not said: {other}").into()),
        })
    }
}
