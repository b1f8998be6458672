//! What commands under `lowkey run` wrote: nothing behind a line of a later token, and nothing after the lock
//! was free, whatever happened to `lowkey run`.

use std::collections::BTreeSet;

use lowkey_core::Token;

use super::Judge;
use crate::history::{Line, MILLISECOND, Written};

impl Judge<'_> {
    pub(super) fn commands_end_in_time(&mut self) {
        let history = self.history;
        for written in &history.written {
            let mut newest = Token(0);
            let mut told = BTreeSet::new();
            for line in &written.lines {
                let problem = self.line_problem(written, line, newest);
                newest = newest.max(line.token);
                // Once for each command is enough.
                if let Some(what) = problem
                    && told.insert(line.token)
                {
                    self.broken("lowkey run", Some(line.at), Some(&written.lock), what);
                }
            }
        }
    }

    fn line_problem(&self, written: &Written, line: &Line, newest: Token) -> Option<String> {
        let Line { token, at } = line;
        let Some(grant) = self.grants.get(token).filter(|grant| grant.lock == written.lock) else {
            return Some(format!("a command wrote with token {token}, which was never granted"));
        };
        if let Some((_, done)) = self.forced(*token) {
            // It may go on until the next renewal; and until its count runs out if it was stopped.
            let is_stopped = self
                .history
                .stopped
                .iter()
                .any(|(lock, from, until)| *lock == written.lock && *from < *at && *until > done);
            let knows = !is_stopped && self.history.is_calm;
            let interval = if knows { written.ttl_nanos / 3 } else { written.ttl_nanos };
            let late = at.saturating_sub(done + interval + self.slack_nanos());
            return (late > 0).then(|| {
                let after = (at - done) / MILLISECOND;
                format!("a command wrote {after} ms after token {token} was taken by force")
            });
        }
        if *token < newest {
            return Some(format!("a command with token {token} wrote behind one with token {newest}"));
        }
        let freed = grant.freed.as_ref().filter(|freed| freed.seen < *at)?;
        let after = (at - freed.seen) / MILLISECOND;
        Some(format!("a command wrote {after} ms after token {token} had ended ({:?})", freed.how))
    }
}
