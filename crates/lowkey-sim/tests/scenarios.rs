//! The named scenarios: each is played with all its checks, and twice to the same story.

use lowkey_sim::scenarios::{ALL, Scenario};

fn scenario(name: &str) -> &'static Scenario {
    ALL.iter().find(|scenario| scenario.name == name).unwrap_or_else(|| panic!("no scenario is named {name}"))
}

/// Plays a scenario; the end of its story is printed if it fails.
fn play(name: &str) {
    let (summary, outcome, story) = scenario(name).play(true);
    if let Err(violation) = outcome {
        let last = story.len().saturating_sub(60);
        story[last..].iter().for_each(|line| println!("{line}"));
        panic!("{name} breaks `{}`: {}", violation.invariant, violation.what);
    }
    let (again, _, same_story) = scenario(name).play(true);
    assert_eq!(summary, again);
    assert!(!story.is_empty() && story == same_story, "played twice, its stories differ");
}

macro_rules! scenarios {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            play(stringify!($name));
        })*

        #[test]
        fn every_scenario_has_a_test() {
            let tested = [$(stringify!($name)),*];
            let listed: Vec<&str> = ALL.iter().map(|scenario| scenario.name).collect();
            assert_eq!(tested, listed[..]);
        }
    };
}

scenarios! {
    leader_paused_beyond_the_ttl_with_renewals_in_its_inbox
    leader_paused_beyond_the_ttl_and_deaf_when_it_wakes
    leader_paused_and_asked_what_it_cannot_know
    leader_paused_between_confirmation_and_acknowledgement
    leader_paused_before_acknowledging_and_deaf
    a_step_that_reads_the_clock_stalls_and_drains_its_inbox
    leader_cut_from_peers_but_not_from_clients
    heartbeats_out_but_no_answers_in
    answers_in_but_no_heartbeats_out
    an_expire_entry_on_a_minority_that_then_wins
    an_expire_entry_on_a_minority_that_then_loses
    a_renewal_just_before_the_tick_of_expiry
    a_renewal_just_after_the_tick_of_expiry
    a_renewal_confirmed_just_before_expiry
    a_renewal_does_not_reuse_a_round_begun_before_it_arrived
    an_answer_to_an_old_round_does_not_confirm_a_new_one
    leader_follower_leader_again_with_stale_deadlines
    a_renewal_before_the_no_op_of_the_new_term
    a_failover_told
    failover_every_half_ttl_for_100_ttls
    leadership_transfer_with_renewals_in_flight
    a_reply_delayed_by_more_than_the_ttl
    a_one_call_acquire_whose_retry_is_answered_late
    two_heartbeats_in_flight_and_the_answer_to_the_first
    release_retried_after_the_same_client_re_acquired
    crash_between_snapshot_and_compaction
    crash_while_the_compaction_is_on_its_way_to_the_disk
    ten_thousand_leases_expire_in_one_tick
    access_is_required
    access_must_stay_so
    a_schedule_of_backups_stays
    an_invitation_is_shown_again
    an_invitation_is_shown_too_late
    machines_form_a_cluster_in_every_order
    machines_form_a_cluster_while_some_are_wiped
    machines_form_a_cluster_and_are_wiped_in_turn
    a_lock_is_freed_by_the_entry_that_ends_its_waiters_lease
    a_grant_and_the_expiry_of_its_waiter_in_one_batch
    a_cancelled_wait_after_its_grant
    a_cancelled_wait_before_its_grant
    a_cancelled_wait_racing_its_reconnect
    a_wait_that_is_given_up_as_it_is_granted
    an_acquire_that_is_given_up_before_it_came
    a_place_is_kept_for_who_comes_back
    a_place_is_kept_for_five_seconds
    a_waiter_learns_at_once_that_its_lease_is_gone
    a_wait_longer_than_its_time_to_live
    a_job_that_hangs_loses_its_lock_in_time
    a_limit_under_two_leaders
    a_limited_grant_is_given_back_before_its_end
    a_leader_that_removes_itself_and_is_cut_off
    three_become_one_each_leader_in_turn
    a_leader_elected_on_its_way_out
    a_removal_that_would_cost_the_quorum
    a_voter_asked_again_after_a_crash
    a_followers_state_drifts
    a_leaders_state_drifts
    three_states_and_no_majority
    an_elections_leader_killed_with_many_candidates
    nothing_is_granted_in_quarantine_under_two_leaders
    a_cluster_restored_twice_from_an_older_backup
    a_cluster_is_split_with_a_crash_at_every_step
    a_slow_leader_keeps_its_lead_and_gives_stalls_back
    what_made_all_patient_is_over_and_a_leader_is_missed_soon
    late_answers_make_all_patient
    a_longer_tick_bears_a_pause_and_replaces_the_dead_later
}

/// What the documentation shows is what happens, to the letter.
#[test]
fn the_failover_in_the_documentation_is_the_one_that_is_played() {
    let document = include_str!("../../../docs/internals/simulator.md");
    let (_, section) = document.split_once("## A failover, told").expect("the document has the section");
    let told = section.split("```").nth(1).and_then(|block| block.strip_prefix("text\n"));
    let (_, outcome, story) = scenario("a_failover_told").play(true);
    assert_eq!(outcome, Ok(()));
    let begins = story.iter().position(|line| line.contains("lock-0")).unwrap_or_default();
    let ends = story.iter().position(|line| line.contains("everything is mended")).unwrap_or(story.len());
    let played: String = story[begins..ends].iter().map(|line| format!("{line}\n")).collect();
    assert!(told == Some(played.as_str()), "docs/internals/simulator.md must tell this:\n{played}");
}
