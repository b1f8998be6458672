//! What only mutants do: see `lowkey-mutants`. Nothing here is reached in what is built for use.

use lowkey_core::{Command, LockName, State, Ticket, mutants};
use raft::RawNode;

use crate::input::CallId;
use crate::lead::{Arrivals, Lead, Leadership, Participant, Wish};
use crate::log::LogStore;
use crate::output::{Failure, Output, Response};
use crate::time::Nanos;

/// R2: every wish needs a round, one that begins after it came.
pub(crate) fn hastens(wish: &Wish) -> bool {
    needs_no_round(wish) || mutants::A_ROUND_IS_JOINED_LATE.is_active()
}

/// Takes part in no round, or in one that began before, where there is a lead.
pub(crate) fn hasten(lead: &mut Leadership, arrivals: &mut Arrivals, call: CallId, wish: Wish) -> bool {
    match lead.get_mut().map(Lead::rounds_mut) {
        Some(rounds) if needs_no_round(&wish) => rounds.take_for_confirmed(Participant { call, wish }),
        Some(rounds) if rounds.is_running() => rounds.join_late(Participant { call, wish }),
        _ => return arrivals.join(call, wish),
    }
    true
}

fn needs_no_round(wish: &Wish) -> bool {
    let mutant = match wish {
        Wish::Renew { .. } | Wish::RenewMany { .. } => mutants::RENEWAL_WITHOUT_A_QUORUM_ROUND,
        Wish::Read(_) => mutants::READ_WITHOUT_READINDEX,
        Wish::Check { .. } => mutants::REFUSAL_WITHOUT_READINDEX,
    };
    mutant.is_active()
}

/// R10: how long the place of a gone caller is kept.
pub(crate) fn or_another_time(usual_nanos: u64) -> u64 {
    match usual_nanos {
        _ if mutants::THE_PLACE_OF_A_GONE_CALLER_IS_KEPT.is_active() => u64::MAX / 2,
        _ if mutants::THE_PLACE_OF_A_GONE_CALLER_IS_CANCELLED_AT_ONCE.is_active() => 0,
        usual => usual,
    }
}

/// R10: a timeout is told only when its entry is applied.
pub(crate) fn tell_of_timeouts(lead: &Lead, tickets: &[Ticket], output: &mut Output) {
    let lock = LockName::parse("unknown").expect("a plain word is a name");
    for call in tickets.iter().flat_map(|ticket| lead.waiting_for(*ticket)) {
        output.reply(call, Err(Failure::WaitTimeout { lock: lock.clone(), in_the_way: None }));
    }
}

/// R5: nobody's clock is read when an entry is applied.
pub(crate) fn stamp(command: &mut Command, now: Nanos) {
    if let Command::Acquire { since_unix_ms, .. } = command {
        *since_unix_ms = now.0;
    }
}

/// Answers as if the command were applied.
pub(crate) fn answer_unapplied(
    node: &RawNode<LogStore>,
    state: &State,
    call: CallId,
    command: &Command,
    output: &mut Output,
) {
    let index = node.raft.raft_log.last_index().max(state.revision() + 1);
    let applied = state.clone().apply(index, node.raft.term, command);
    output.reply(call, applied.reply.map_err(Failure::Refused).map(Response::Applied));
}
