//! Every grant ends once, and is answerable afterwards: each machine has a row of it, the same as all others, or says
//! itself that it has a gap there (`docs/internals/audit.md`). No crash alone makes a gap.

use std::collections::{BTreeMap, BTreeSet};

use lowkey_core::{Command, Event, State};

use super::{Check, Committed, broken};
use crate::audit::{AuditRow, EndedAt, SimAudit};

pub(crate) const NAME: &str = "audit";

/// What every machine should have recorded.
#[derive(Default)]
pub(crate) struct AuditBook {
    rows: BTreeMap<EndedAt, AuditRow>,
    tokens: BTreeSet<u64>,
}

impl AuditBook {
    /// An entry was committed: what ended by it.
    pub(crate) fn committed(&mut self, committed: &Committed) -> Check {
        let mut ordinal = 0;
        for event in &committed.applied.events {
            let Event::GrantEnded(ended) = event else { continue };
            if !self.tokens.insert(ended.token.0) {
                return broken(NAME, format!("token {} ended twice", ended.token));
            }
            // The entry's own clock, whatever the state machine makes of it.
            let at = match &committed.command {
                Command::Release { since_unix_ms, .. }
                | Command::RevokeLease { since_unix_ms, .. }
                | Command::EndHolds { since_unix_ms, .. }
                | Command::Expire { since_unix_ms, .. } => Some(*since_unix_ms),
                _ => None,
            };
            if at.is_some_and(|at| at != ended.ended_unix_ms) {
                return broken(
                    NAME,
                    format!(
                        "token {} ended at {at:?}, and is told to have ended at {}",
                        ended.token, ended.ended_unix_ms
                    ),
                );
            }
            if let (Command::Expire { leases, silences, .. }, Some(silence)) =
                (&committed.command, ended.silence)
            {
                let told = leases.iter().position(|lease| *lease == ended.lease);
                if told.and_then(|place| silences.get(place)) != Some(&silence) {
                    return broken(NAME, format!("token {} has the silence of another lease", ended.token));
                }
            }
            let row = AuditRow { term: committed.term, ended: (**ended).clone() };
            self.rows.insert((committed.index, ordinal), row);
            ordinal += 1;
        }
        Ok(())
    }

    /// Everything is recorded: what a machine has that has applied everything through a revision.
    pub(crate) fn compare(&self, member: u64, audit: &SimAudit, applied: u64) -> Check {
        if audit.is_tainted {
            return Ok(());
        }
        if audit.through() < applied {
            return broken(
                NAME,
                format!("n{member} recorded through {}, and applied {applied}", audit.through()),
            );
        }
        for (at, row) in self.rows.range(..=(applied, u32::MAX)) {
            match audit.rows().get(at) {
                Some(own) if own == row => {}
                Some(own) => {
                    return broken(NAME, format!("n{member} has {own:?} at {at:?}, and not {row:?}"));
                }
                None if audit.is_in_gap(at.0) => {}
                None => {
                    let token = row.ended.token;
                    return broken(
                        NAME,
                        format!("n{member} has no row of token {token}, and declares no gap"),
                    );
                }
            }
        }
        match audit.rows().keys().find(|at| !self.rows.contains_key(at)) {
            Some(at) => broken(NAME, format!("n{member} has a row at {at:?}, where nothing ended")),
            None => Ok(()),
        }
    }

    /// Every token that was ever granted is held, or has ended.
    pub(crate) fn is_whole(&self, state: &State, granted: &BTreeSet<u64>) -> Check {
        let held: BTreeSet<u64> = state.grants().map(|(_, grant)| grant.token.0).collect();
        match granted.iter().find(|token| !held.contains(token) && !self.tokens.contains(token)) {
            Some(token) => broken(NAME, format!("nothing is known of token {token}")),
            None => Ok(()),
        }
    }
}
