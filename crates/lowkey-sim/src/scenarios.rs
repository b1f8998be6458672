//! Schedules that random search finds slowly, played on purpose.
//!
//! Each file opens with its story: what happens, which rule it attacks, what must be true. A scenario
//! is a world like any other, with every invariant checked at every step; it adds what must be true
//! in this story alone, and ends with a cluster that is whole again and serves.

mod access;
mod cancelled;
mod cut_leader;
mod drift;
mod election;
mod failovers;
mod forming;
mod invitation;
mod late_replies;
mod limited;
mod long_tick;
mod many_leases;
mod minority_expire;
mod new_leader;
mod one_batch;
mod paused_leader;
mod places;
mod quarantine;
mod release_retried;
mod removal;
mod renewal_at_expiry;
mod restore;
mod rounds;
mod schedule;
mod script;
mod slow;
mod snapshot_crash;
mod split;
mod stage;
mod votes;

use script::Script;
pub(crate) use stage::Stage;

use crate::invariants::{Check, Violation};
use crate::world::{WorldSummary, or_panic};

/// One story.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name: what happens.
    pub name: &'static str,
    replicas: usize,
    clients: usize,
    /// Snapshots are taken every so many entries.
    snapshot_entries: u64,
    /// The cluster begins anew: see [`crate::plan::Plan::recovered`].
    recovered: bool,
    /// The base of Raft's timing.
    raft_tick_ms: u64,
    play: fn(&mut Script) -> Check,
}

const fn story(name: &'static str, play: fn(&mut Script) -> Check) -> Scenario {
    Scenario {
        name,
        replicas: 3,
        clients: 2,
        snapshot_entries: 10_000,
        recovered: false,
        raft_tick_ms: 10,
        play,
    }
}

/// A story of three who want the same lock.
const fn in_line(name: &'static str, play: fn(&mut Script) -> Check) -> Scenario {
    Scenario { clients: 3, ..story(name, play) }
}

/// A story in which machines begin again from their snapshots.
const fn drifting(name: &'static str, play: fn(&mut Script) -> Check) -> Scenario {
    Scenario { snapshot_entries: 20, ..story(name, play) }
}

/// All of them.
pub const ALL: &[Scenario] = &[
    story("leader_paused_beyond_the_ttl_with_renewals_in_its_inbox", paused_leader::beyond_the_ttl),
    story("leader_paused_beyond_the_ttl_and_deaf_when_it_wakes", paused_leader::beyond_the_ttl_and_deaf),
    story("leader_paused_and_asked_what_it_cannot_know", paused_leader::asked_what_it_cannot_know),
    story("leader_paused_between_confirmation_and_acknowledgement", paused_leader::before_acknowledging),
    story("leader_paused_before_acknowledging_and_deaf", paused_leader::before_acknowledging_and_deaf),
    story("a_step_that_reads_the_clock_stalls_and_drains_its_inbox", paused_leader::between_clock_and_inbox),
    story("leader_cut_from_peers_but_not_from_clients", cut_leader::from_peers),
    story("heartbeats_out_but_no_answers_in", cut_leader::no_answers_in),
    story("answers_in_but_no_heartbeats_out", cut_leader::no_heartbeats_out),
    Scenario {
        replicas: 5,
        ..story("an_expire_entry_on_a_minority_that_then_wins", minority_expire::that_wins)
    },
    Scenario {
        replicas: 5,
        ..story("an_expire_entry_on_a_minority_that_then_loses", minority_expire::that_loses)
    },
    story("a_renewal_just_before_the_tick_of_expiry", renewal_at_expiry::before_the_tick),
    story("a_renewal_just_after_the_tick_of_expiry", renewal_at_expiry::after_the_tick),
    story("a_renewal_confirmed_just_before_expiry", renewal_at_expiry::confirmed_in_time),
    story("a_renewal_does_not_reuse_a_round_begun_before_it_arrived", rounds::begun_before),
    story("an_answer_to_an_old_round_does_not_confirm_a_new_one", rounds::answered_late),
    story("leader_follower_leader_again_with_stale_deadlines", new_leader::stale_deadlines),
    story("a_renewal_before_the_no_op_of_the_new_term", new_leader::before_the_no_op),
    story("a_failover_told", failovers::told),
    Scenario { clients: 3, ..story("failover_every_half_ttl_for_100_ttls", failovers::every_half_ttl) },
    Scenario {
        clients: 6,
        ..story("leadership_transfer_with_renewals_in_flight", failovers::renewals_in_flight)
    },
    story("a_reply_delayed_by_more_than_the_ttl", late_replies::beyond_the_ttl),
    story("a_one_call_acquire_whose_retry_is_answered_late", late_replies::retry_answered_late),
    story("two_heartbeats_in_flight_and_the_answer_to_the_first", late_replies::answer_to_the_first),
    story("release_retried_after_the_same_client_re_acquired", release_retried::after_reacquiring),
    Scenario {
        snapshot_entries: 20,
        ..story("crash_between_snapshot_and_compaction", snapshot_crash::before_compaction)
    },
    Scenario {
        snapshot_entries: 20,
        ..story("crash_while_the_compaction_is_on_its_way_to_the_disk", snapshot_crash::during_compaction)
    },
    Scenario {
        snapshot_entries: 100_000,
        ..story("ten_thousand_leases_expire_in_one_tick", many_leases::expire_in_one_tick)
    },
    story("access_is_required", access::is_required),
    story("access_must_stay_so", access::must_stay_so),
    story("a_schedule_of_backups_stays", schedule::stays),
    story("an_invitation_is_shown_again", invitation::shown_again),
    story("an_invitation_is_shown_too_late", invitation::too_late),
    story("machines_form_a_cluster_in_every_order", forming::in_every_order),
    story("machines_form_a_cluster_while_some_are_wiped", forming::while_machines_are_wiped),
    story("machines_form_a_cluster_and_are_wiped_in_turn", forming::and_all_are_wiped_in_turn),
    in_line("a_lock_is_freed_by_the_entry_that_ends_its_waiters_lease", one_batch::both_expire),
    in_line("a_grant_and_the_expiry_of_its_waiter_in_one_batch", one_batch::granted_and_expired),
    in_line("a_cancelled_wait_after_its_grant", cancelled::after_the_grant),
    in_line("a_cancelled_wait_before_its_grant", cancelled::before_the_grant),
    in_line("a_cancelled_wait_racing_its_reconnect", cancelled::and_its_reconnect),
    in_line("a_wait_that_is_given_up_as_it_is_granted", cancelled::and_given_up),
    in_line("an_acquire_that_is_given_up_before_it_came", cancelled::before_it_came),
    in_line("a_place_is_kept_for_who_comes_back", places::kept_for_who_comes_back),
    in_line("a_place_is_kept_for_five_seconds", places::kept_for_five_seconds),
    in_line("a_waiter_learns_at_once_that_its_lease_is_gone", places::lost_with_its_lease),
    in_line("a_wait_longer_than_its_time_to_live", places::longer_than_its_ttl),
    story("a_job_that_hangs_loses_its_lock_in_time", limited::ends_in_time),
    story("a_limit_under_two_leaders", limited::under_two_leaders),
    story("a_limited_grant_is_given_back_before_its_end", limited::given_back_before_its_end),
    story("a_leader_that_removes_itself_and_is_cut_off", removal::of_a_leader_that_is_cut_off),
    story("three_become_one_each_leader_in_turn", removal::of_all_but_one),
    Scenario {
        replicas: 5,
        ..story("a_leader_elected_on_its_way_out", removal::of_a_leader_elected_on_its_way_out)
    },
    story("a_removal_that_would_cost_the_quorum", removal::that_would_cost_the_quorum),
    Scenario { replicas: 5, ..story("a_voter_asked_again_after_a_crash", votes::asked_again_after_a_crash) },
    drifting("a_followers_state_drifts", drift::of_a_follower),
    drifting("a_leaders_state_drifts", drift::of_a_leader),
    drifting("three_states_and_no_majority", drift::of_two),
    Scenario {
        clients: 6,
        ..story("an_elections_leader_killed_with_many_candidates", election::leader_killed)
    },
    Scenario {
        recovered: true,
        ..story("nothing_is_granted_in_quarantine_under_two_leaders", quarantine::under_two_leaders)
    },
    story("a_cluster_restored_twice_from_an_older_backup", restore::from_an_older_backup),
    story("a_cluster_is_split_with_a_crash_at_every_step", split::with_a_crash_at_every_step),
    story("a_slow_leader_keeps_its_lead_and_gives_stalls_back", slow::keeps_its_lead),
    story("what_made_all_patient_is_over_and_a_leader_is_missed_soon", slow::over),
    story("late_answers_make_all_patient", slow::late_answers),
    Scenario {
        raft_tick_ms: long_tick::RAFT_TICK_MS,
        ..story(
            "a_longer_tick_bears_a_pause_and_replaces_the_dead_later",
            long_tick::bears_a_pause_and_replaces_the_dead_later,
        )
    },
];

impl Scenario {
    /// Plays it to its end.
    pub fn play(&self, trace: bool) -> (WorldSummary, Result<(), Violation>, Vec<String>) {
        let mut script = Script::new(self, trace);
        let outcome = or_panic(|| script.world.open().and_then(|()| (self.play)(&mut script)));
        (script.world.summary(), outcome, script.world.trace.take())
    }
}
