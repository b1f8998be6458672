//! What only mutants do: see `mutants` in `lowkey-core`. Nothing here is ever reached without the
//! feature of that name.

use lowkey_core::{Command, LockName, Ticket, mutants};

use crate::input::CallId;
use crate::output::{Failure, Output, Response};
use crate::replica::Replica;
use crate::rounds::Wish;
use crate::wait_table::WaitTable;

/// R2: every wish needs a round.
pub(crate) fn needs_no_round(wish: &Wish) -> bool {
    mutants::is_active(match wish {
        Wish::Renew { .. } => "renewal without a quorum round",
        Wish::Read(_) => "read without ReadIndex",
        Wish::Check { .. } => "refusal without ReadIndex",
    })
}

/// R10: a timeout is told only when its entry is applied.
pub(crate) fn answer_timeouts_early(waits: &WaitTable, tickets: &[Ticket], output: &mut Output) {
    if !mutants::is_active("a timeout is told before its entry") {
        return;
    }
    let lock = LockName::parse("unknown").expect("a plain word is a name");
    for call in tickets.iter().flat_map(|ticket| waits.callers(*ticket)) {
        output.reply(call, Err(Failure::WaitTimeout { lock: lock.clone(), in_the_way: None }));
    }
}

impl Replica {
    /// Answers as if the command were applied.
    pub(crate) fn answer_unapplied(&mut self, call: CallId, command: &Command) {
        let index = self.node.raft.raft_log.last_index().max(self.state.revision() + 1);
        let applied = self.state.clone().apply(index, self.node.raft.term, command);
        self.output.reply(call, applied.reply.map_err(Failure::Refused).map(Response::Applied));
    }
}
