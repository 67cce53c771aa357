//! What the store promises its callers, case by case; after each, every invariant must hold.
//!
//! | module | what its cases are about |
//! |---|---|
//! | `publish` | revisions and decisions about them |
//! | `once` | decisions by name, and requests that are done once |
//! | `reviews` | decisions by review id |
//! | `quotas` | how much one identity may have waiting |
//! | `revisions` | public texts, and rows of revisions that were turned down |
//! | `runs` | creating runs |
//! | `claims` | order, filters, windows, fences |
//! | `leases` | tasks that somebody outside holds |
//! | `outcomes` | how an end spreads: `run_if`, `when`, policies |
//! | `retries` | the decision after an attempt, and backoff |
//! | `deadlines` | what becomes due |
//! | `approvals` | tasks that wait for a person |
//! | `stopping` | cancel, and its races |
//! | `pausing` | pausing a run or a scope |
//! | `resume` | runs that carry tasks over, or leave them out |
//! | `large` | steps too large for one transaction, also across a restart |
//! | `pruning` | making room |
//! | `epochs` | one coordinator after another |
//! | `events` | what followers are told, and by whom it was caused |

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod approvals;
mod claims;
mod deadlines;
mod epochs;
mod events;
mod fixture;
mod home;
mod large;
mod leases;
mod once;
mod outcomes;
mod pausing;
mod pruning;
mod publish;
mod quotas;
mod resume;
mod retries;
mod reviews;
mod revisions;
mod runs;
mod stopping;
#[path = "../support/mod.rs"]
mod support;

/// Runs each case as a test of its own, on a new store.
macro_rules! suite {
    ($($module:ident { $($case:ident,)* })*) => {
        mod suite {
            $(mod $module {
                $(#[test]
                fn $case() {
                    crate::fixture::check(crate::$module::$case);
                })*
            })*
        }
    };
}

suite! {
    publish {
        the_same_content_is_one_revision,
        other_content_is_a_conflict,
        a_new_revision_needs_its_own_confirmation,
        rejected_content_may_be_asked_for_again,
        expired_content_may_be_asked_for_again,
        what_is_overdue_is_over,
        scopes_do_not_meet,
        settling_again_changes_nothing,
        a_confirmation_is_bound_to_the_content,
        a_decision_is_final,
    }
    once {
        a_confirmation_starts_one_run,
        publishers_do_not_confirm_their_own,
        owners_alone_confirm_what_was_published_without_proof,
        publishing_again_neither_proves_nor_disproves_the_first_publisher,
        a_second_revision_is_decided_by_its_content,
        a_key_is_answered_the_same,
        a_refusal_is_kept_and_what_it_did_is_not,
        refusals_of_what_may_become_right_are_not_kept,
        one_caller_has_so_many_keys_and_no_more,
        results_are_recorded_whatever_keys_their_worker_has,
        keys_are_forgotten_one_sweep_after_another,
        a_run_is_started_and_stopped_once,
        an_answer_is_kept_for_a_day,
    }
    quotas {
        publishing_is_refused_at_the_limit_of_pending_revisions,
        an_expired_revision_frees_its_place,
        publishing_is_refused_at_the_limit_of_pending_bytes,
        starting_is_refused_at_the_limit_of_unfinished_runs,
        a_confirmed_run_counts_for_its_publisher,
        a_refusal_for_a_quota_is_not_kept_under_a_key,
    }
    revisions {
        definitions_of_rejected_and_expired_revisions_are_removed,
        many_definitions_are_removed_in_chunks,
        a_kept_public_text_is_what_would_be_made,
    }
    reviews {
        every_opening_has_a_review_id_of_its_own,
        a_decision_by_review_id_is_about_that_revision_alone,
        the_same_decision_by_review_id_again_answers_the_same,
        a_part_of_a_hash_decides_nothing,
        a_note_has_bounds,
        every_waiting_task_has_a_review_id_until_it_is_pruned,
    }
    runs {
        asked_again_it_is_the_same_run,
        a_confirmation_makes_one_run,
        nothing_runs_unconfirmed,
        requests_that_do_not_fit_are_refused,
        runs_are_numbered_within_their_dag,
        parameters_have_a_bound,
    }
    claims {
        priority_first_then_ready_order,
        the_lowest_priority_is_last,
        what_is_ready_later_comes_later,
        kinds_and_scopes_are_filters,
        what_has_just_become_ready_is_filtered_too,
        a_window_never_holds_more_than_it_may,
        a_window_lets_in_the_most_urgent,
        a_window_lets_in_the_most_urgent_of_those_that_come_at_once,
        a_place_given_up_in_a_sweep_is_free_again,
        stopping_runs_keep_nobody_from_work,
        a_stale_fence_changes_nothing,
        a_refused_claim_is_told_whatever_is_ready,
        outputs_reach_those_who_ask,
        the_environment_of_a_dag_may_ask_too,
    }
    leases {
        a_task_goes_to_one_who_can,
        a_claim_asked_again_is_the_same_claim,
        a_claim_asked_again_is_only_what_is_still_held,
        a_heartbeat_keeps_the_lease_and_never_revives_it,
        a_heartbeat_keeps_nobody_elses_lease,
        what_a_stale_holder_says_changes_nothing,
        whoever_takes_over_is_told_how_far_it_was,
        takeovers_come_to_an_end,
        a_result_told_again_is_the_same_answer,
        first_releases_of_a_task_cost_no_try,
        releases_beyond_the_free_ones_end_the_task,
        a_holder_is_told_to_stop,
        a_holder_has_the_tasks_own_time,
        leases_outlive_a_restart_and_begin_anew_after_a_boot,
        another_scope_is_not_there,
        a_claim_asked_again_from_other_scopes_is_empty,
        a_result_told_again_by_another_identity_is_refused,
        outputs_of_outside_work_are_handed_on,
        lease_is_of_the_task_for_as_long_as_it_is_held,
        holders_are_answered_without_reading_the_definition,
        a_late_word_about_a_pruned_task_tells_other_scopes_nothing,
        long_cause_is_whole_with_its_task_and_cut_among_others,
        long_cause_of_a_try_is_cut_where_the_wait_is_explained,
    }
    outcomes {
        dependents_are_claimed_in_the_same_transaction,
        rules_over_every_outcome,
        skips_cascade,
        when_decides,
        when_sees_outputs,
        all_success_counts_every_failure,
        first_success_stops_the_rest,
        first_success_needs_one,
        debts_are_not_failures,
    }
    retries {
        a_backoff_is_over_when_it_is_swept,
        only_some_exit_codes_are_worth_it,
        a_timeout_is_a_decision_too,
        idempotent_interruptions_are_free,
        other_interruptions_use_up_tries,
        a_backoff_frees_its_place,
        waiting_for_a_claim_begins_after_the_backoff,
    }
    deadlines {
        a_task_nobody_claims_times_out,
        a_run_nobody_begins_times_out,
        a_run_over_its_time_is_stopped,
        a_claim_in_time_ends_the_wait,
    }
    approvals {
        a_confirmed_task_waits_and_then_runs,
        an_approval_completes_with_what_was_given,
        a_rejection_fails_and_spreads,
        the_same_decision_is_the_same_answer,
        another_decision_comes_too_late,
        only_what_waits_is_decided_about,
        what_does_not_fit_changes_nothing,
        publishers_do_not_approve_their_own,
        owners_alone_approve_what_was_published_without_proof,
        starter_of_a_run_does_not_approve_its_tasks,
        waiting_takes_no_place,
        an_approved_task_waits_for_its_place,
        nobody_answers,
        an_answer_in_time_ends_the_wait,
        a_stop_cancels_what_waits,
        the_run_has_begun_when_a_person_is_asked,
        a_run_that_begins_in_a_sweep_is_not_late_in_it,
        a_decision_with_a_key_is_done_once,
        a_new_life_finds_what_waits,
        a_resumed_run_carries_the_answer,
        many_tasks_wait_behind_one_answer,
        pages_of_waiting_tasks_are_in_order_whatever_their_definitions,
    }
    stopping {
        a_queued_run_is_cancelled_at_once,
        a_running_run_waits_for_its_attempts,
        a_cancel_that_stops_nothing_is_a_completion,
        a_failure_during_a_cancel_is_a_failure,
        reports_may_overtake_the_stop,
        nothing_is_retried_while_stopping,
        stopping_again_changes_nothing,
        a_run_that_is_not_there,
    }
    pausing {
        nothing_more_of_a_paused_run_is_claimed,
        pausing_again_changes_nothing,
        a_paused_run_can_be_stopped,
        a_pause_and_a_window,
        a_pause_and_a_backoff,
        a_large_pause_across_restarts,
        a_run_paused_before_it_is_all_there,
        nothing_of_a_paused_scope_is_claimed,
    }
    resume {
        completed_tasks_are_carried_with_their_outputs,
        tasks_left_out_let_their_dependents_go,
        a_rule_that_asks_for_a_failure_finds_none,
        when_sees_carried_outputs_wherever_they_stand,
        nothing_left_to_run_is_a_completion,
    }
    large {
        a_fan_out_and_back,
        a_fan_out_across_restarts,
        a_cancel_across_restarts,
        a_cancel_before_it_is_all_there,
        a_timeout_before_it_is_all_there,
        a_chain_of_skips,
        wide_layers_of_skips,
        a_first_success_while_others_are_told,
        a_window_over_a_fan_out,
        a_large_run_carried_over,
        a_large_run_of_nothing_to_do,
    }
    events {
        decisions_name_who_decided,
        starts_pauses_and_stops_name_who_asked,
        changes_of_the_node_itself_name_nobody,
        approvals_name_who_approved_and_what_follows_names_nobody,
        claims_from_outside_name_identity_holder_and_fence,
        results_name_the_identity_that_told_them,
        refused_words_are_told_to_no_follower,
    }
    pruning {
        what_is_over_goes_and_is_still_known,
        a_late_word_about_what_is_gone_changes_nothing,
        what_is_needed_stays_until_it_is_not,
        what_is_still_to_be_done_keeps_a_run,
        the_latest_of_each_dag_can_be_kept,
        a_large_run_goes_in_chunks,
    }
    epochs {
        a_new_life_finds_what_is_live,
        an_old_life_may_claim_no_more,
        an_old_life_calls_nothing_overdue,
        nobody_claims_before_a_life_begins,
        fences_grow_across_lives,
        fences_grow_over_epochs_that_are_used_up,
    }
}
