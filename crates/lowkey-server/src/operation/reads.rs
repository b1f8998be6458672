//! Reading locks.
//!
//! A read is linearizable unless the client asks for a stale one. The leader answers it after a ReadIndex
//! round, which proves that no other leader had been elected when the read arrived. A stale read is
//! answered by the node that was asked, from what it has applied.

use lowkey_api::ApiError;
use lowkey_api::v1::{
    self, CheckTokenRequest, CheckTokenResponse, GetLockRequest, GetLockResponse, ListLocksRequest,
    ListLocksResponse, LockHolder, LockWaiter,
};
use lowkey_core::{Holder, Invalid, LeaseId, LockName, LockView, Mode, NamePrefix, Scope, Token, Waiter};
use lowkey_replica::{Query, Remaining, Request, Response};

use super::{Operation, unexpected};
use crate::peers::proto::{ReadRevisionRequest, ReadRevisionResponse};

/// The number of locks in a list, if the request names none.
const PAGE_SIZE: u32 = 100;
/// The most locks in a list.
const PAGE_SIZE_MAX: u32 = 1_000;

impl Operation for GetLockRequest {
    fn parse(&self) -> Result<Request, Invalid> {
        Ok(read(Query::Lock { lock: LockName::parse(&self.lock_name)? }, self.stale))
    }

    fn respond(&self, response: Response) -> Result<GetLockResponse, ApiError> {
        match response {
            Response::Lock { lock, remaining, revision } => Ok(told(lock, &remaining, revision)),
            other => Err(unexpected(&other)),
        }
    }
}

impl Operation for ListLocksRequest {
    fn parse(&self) -> Result<Request, Invalid> {
        let count_max = page_size(self.page_size)?;
        let after = page_token(&self.page_token, |token| LockName::parse(token).ok())?;
        let prefix = NamePrefix::parse(&self.prefix)?;
        Ok(read(Query::Locks { prefix, after, count_max }, self.stale))
    }

    fn respond(&self, response: Response) -> Result<ListLocksResponse, ApiError> {
        match response {
            Response::Locks { locks, more, remaining, revision } => {
                let last = locks.last().filter(|_| more);
                Ok(ListLocksResponse {
                    next_page_token: last.map(|last| last.lock.to_string()).unwrap_or_default(),
                    locks: locks.into_iter().map(|lock| told(lock, &remaining, revision)).collect(),
                    revision,
                    watch_from: revision + 1,
                })
            }
            other => Err(unexpected(&other)),
        }
    }
}

impl Operation for CheckTokenRequest {
    fn parse(&self) -> Result<Request, Invalid> {
        let lock = LockName::parse(&self.lock_name)?;
        match self.fencing_token {
            0 => Err(Invalid::new("fencing_token", "must be the token to check; tokens start at 1")),
            token => Ok(read(Query::Token { lock, token: Token(token) }, false)),
        }
    }

    fn respond(&self, response: Response) -> Result<CheckTokenResponse, ApiError> {
        match response {
            Response::Token { current, other, remaining, revision } => Ok(CheckTokenResponse {
                current: current.is_some(),
                holder: current.or(other).map(|it| holder(it, &remaining)),
                revision,
            }),
            other => Err(unexpected(&other)),
        }
    }
}

/// Only between nodes: how far the log is committed. It is asked for a watch that must begin beyond what
/// the asked node knows.
impl Operation for ReadRevisionRequest {
    fn parse(&self) -> Result<Request, Invalid> {
        Ok(Request::Read(Query::Revision))
    }

    fn respond(&self, response: Response) -> Result<ReadRevisionResponse, ApiError> {
        match response {
            Response::Revision(revision) => Ok(ReadRevisionResponse { revision }),
            other => Err(unexpected(&other)),
        }
    }
}

pub(super) fn read(query: Query, stale: bool) -> Request {
    if stale { Request::ReadStale(query) } else { Request::Read(query) }
}

/// How many items of a list are wanted.
pub(super) fn page_size(page_size: u32) -> Result<usize, Invalid> {
    match page_size {
        0 => Ok(PAGE_SIZE as usize),
        size @ 1..=PAGE_SIZE_MAX => Ok(size as usize),
        size => {
            let problem = format!("must be 1 to {PAGE_SIZE_MAX}, or 0 for {PAGE_SIZE}, and is {size}");
            Err(Invalid::new("page_size", problem))
        }
    }
}

/// Where a list goes on, if it does.
pub(super) fn page_token<T>(
    page_token: &str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, Invalid> {
    match page_token {
        "" => Ok(None),
        token => match parse(token) {
            Some(after) => Ok(Some(after)),
            None => Err(Invalid::new("page_token", "must be the next_page_token of an earlier answer")),
        },
    }
}

pub(super) fn count(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

pub(super) fn unix_ms(unix_ms: u64) -> i64 {
    i64::try_from(unix_ms).unwrap_or(i64::MAX)
}

pub(super) fn remaining_ms(remaining: &Remaining, lease: LeaseId) -> Option<i64> {
    remaining.ms(lease).map(|ms| i64::try_from(ms).unwrap_or(i64::MAX))
}

fn told(lock: LockView, remaining: &Remaining, revision: u64) -> GetLockResponse {
    GetLockResponse {
        lock_name: lock.lock.to_string(),
        holder_count: count(lock.holder_count),
        holders: lock.holders.into_iter().map(|it| holder(it, remaining)).collect(),
        waiter_count: count(lock.waiter_count),
        covered_by: lock.covered_by.map(|name| name.to_string()).unwrap_or_default(),
        waiters: (1..).zip(lock.waiters).map(|(position, it)| waiter(position, &it)).collect(),
        revision,
    }
}

/// A holder, as clients are told of it.
pub(crate) fn holder(holder: Holder, remaining: &Remaining) -> LockHolder {
    LockHolder {
        owner_id: holder.owner.to_string(),
        lease_id: holder.lease.0,
        fencing_token: holder.token.0,
        mode: mode(holder.mode).into(),
        scope: scope(holder.scope).into(),
        value: holder.value.as_str().to_owned(),
        since_unix_ms: unix_ms(holder.since_unix_ms),
        remaining_ms: remaining_ms(remaining, holder.lease),
        max_hold_seconds: holder.max_hold.map(|limit| limit.seconds().into()),
    }
}

fn waiter(position: u32, waiter: &Waiter) -> LockWaiter {
    LockWaiter {
        owner_id: waiter.owner.to_string(),
        lease_id: waiter.lease.0,
        mode: mode(waiter.mode).into(),
        scope: scope(waiter.scope).into(),
        position,
    }
}

pub(crate) fn mode(mode: Mode) -> v1::Mode {
    match mode {
        Mode::Exclusive => v1::Mode::Exclusive,
        Mode::Shared => v1::Mode::Shared,
    }
}

pub(crate) fn scope(scope: Scope) -> v1::Scope {
    match scope {
        Scope::Name => v1::Scope::Name,
        Scope::Subtree => v1::Scope::Subtree,
    }
}
