//! No grant that has a limit ends for it before its client's belief does, and none outlives its limit for ever
//! (`docs/internals/invariants.md`, point 6; R1, R3, R4, R6, R8).

use std::collections::BTreeMap;

use lowkey_core::{Cause, Change, ChangeKind, Event, MaxHold, Token};

use super::{Check, Committed, broken};
use crate::client::SimClient;
use crate::plan::{MILLISECOND, SECOND};

const NAME: &str = "limited holds";

#[derive(Default)]
pub(crate) struct LimitedHolds {
    /// Grants that were ended for their limit.
    pub(crate) ended: u64,
    /// When the time of each began, in true time, and how long it may be.
    begun: BTreeMap<Token, (u64, MaxHold)>,
}

impl LimitedHolds {
    /// An entry was committed that may end grants for their limit: their clients must have stopped believing.
    pub(crate) fn committed<'a>(
        &mut self,
        committed: &Committed,
        clients: impl Iterator<Item = &'a SimClient> + Clone,
        now: u64,
    ) -> Check {
        for event in &committed.applied.events {
            match event {
                Event::HoldStarted { hold, max_hold } => {
                    self.begun.insert(hold.token, (now, *max_hold));
                }
                Event::HoldEnded { token } => {
                    self.begun.remove(token);
                }
                Event::Changed(Change {
                    kind: ChangeKind::Freed(Cause::HeldTooLong),
                    lock,
                    token: Some(token),
                    ..
                }) => {
                    self.ended += 1;
                    let believes =
                        |client: &&SimClient| client.beliefs_at(now).any(|(hold, _)| hold.token == *token);
                    if let Some(client) = clients.clone().find(believes) {
                        let owner = &client.owner;
                        return broken(NAME, format!("{lock} was taken from {owner}, which still believes"));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// When all has been quiet since then, what had a limit has ended by it. R3: the leader may be one of after that.
    pub(crate) fn at_end(&self, quiet_since: u64, now: u64) -> Check {
        for (token, (begun, max_hold)) in &self.begun {
            let held = now.saturating_sub((*begun).max(quiet_since));
            if held > max_hold.nanos() / 10 * 22 + SECOND {
                let (held, limit) = (held / MILLISECOND, max_hold.seconds());
                return broken(
                    NAME,
                    format!("token {token} is held for {held} ms, and has a limit of {limit} s"),
                );
            }
        }
        Ok(())
    }
}
