//! What only mutants do: see `mutants` in `lowkey-core`. Nothing here is ever reached without the
//! feature of that name.

use lowkey_core::{Command, mutants};

use crate::output::{Failure, Response};
use crate::replica::{CallId, Replica};
use crate::rounds::Wish;

/// R2: every wish needs a round.
pub(crate) fn needs_no_round(wish: &Wish) -> bool {
    mutants::is_active(match wish {
        Wish::Renew { .. } => "renewal without a quorum round",
        Wish::GetLock { .. } => "read without ReadIndex",
        Wish::Check { .. } => "refusal without ReadIndex",
    })
}

impl Replica {
    /// Answers as if the command were applied.
    pub(crate) fn answer_unapplied(&mut self, call: CallId, command: &Command) {
        let index = self.node.raft.raft_log.last_index().max(self.state.revision() + 1);
        let applied = self.state.clone().apply(index, self.node.raft.term, command);
        self.output.reply(call, applied.reply.map_err(Failure::Refused).map(Response::Applied));
    }
}
