"""The map of collection: which tests hold each statement (D1 to D176), each part, and each kind of bad input.

A name here that no file defines fails, and so does a statement without a test. ``DEPARTED`` says where a statement is
not followed to the letter, why, and which tests hold what is done instead; what a vector expects otherwise stands in
``tests/vectors/departures.toml`` as well.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from gym_ray.testing.defined_tests import defined_tests

TESTS = Path(__file__).parents[1]
AGENTS, CALLS, EVIDENCE, ROLLOUTS = "agents/test_runner.py::", "model_call_capture", "evidence", "rollouts"
ATTEMPTS, LEDGER = f"{ROLLOUTS}/test_collection.py::", f"{ROLLOUTS}/attempts/test_ledger.py::"
BUILD, JOIN, LINKS = f"{EVIDENCE}/test_build.py::", f"{EVIDENCE}/test_join.py::", f"{EVIDENCE}/test_links.py::"
COMPACT, EXACT = f"{EVIDENCE}/compact/test_record.py::", f"{EVIDENCE}/test_exact_join.py::"
HEALTH, REPORT = f"{EVIDENCE}/health/test_rollout.py::", f"{EVIDENCE}/health/test_report.py::"
JOINING, ROWS, EXPANDED = (
    f"{ROLLOUTS}/test_joining.py::",
    f"{ROLLOUTS}/rows/test_input_rows.py::",
    f"{ROLLOUTS}/rows/test_materialised.py::",
)
BEGUN, RESUMED, SESSION = (
    f"{ROLLOUTS}/run_files/test_run_start.py::",
    f"{ROLLOUTS}/run_files/test_run_resume.py::",
    f"{ROLLOUTS}/test_session.py::",
)
CRASHES, RECORDS = f"{ROLLOUTS}/run_files/test_run_crashes.py::", f"{ROLLOUTS}/run_files/test_record_file.py::"
PEER, REJOIN = f"{ROLLOUTS}/run_files/test_peer_files.py::", f"{ROLLOUTS}/rejoining/test_rejoin.py::"
METRICS, REPORTS = f"{ROLLOUTS}/metrics/test_aggregation.py::", f"{ROLLOUTS}/reports/test_health_files.py::"
VECTORS_RUN = "vectors/test_D_run.py::test_a_run_leaves_what_the_vector_says"
VECTORS_ROWS, PIPELINE = "vectors/test_D_preprocess.py::test_vector", "vectors/test_D_pipeline.py::test_vector"
REAL_RUN = "vectors/test_D_e2e.py::"
MODELS, OBSERVED = "vectors/test_D_models.py::test_vector", f"{EVIDENCE}/observations"
PEER_HEALTH, OUR_HEALTH = (
    "vectors/test_D_health.py::test_by_the_peers_rules",
    "vectors/test_D_health.py::test_by_our_rules",
)
EVERY_FOURTH = (
    "actors/test_every_fourth_fails.py::"
    "test_each_failure_is_named_the_rest_is_unharmed_and_a_resume_retries_what_it_may"
)
CONTROLLED, TRAINING = f"{ROLLOUTS}/test_controlled_collection.py::", f"{ROLLOUTS}/training"
DOCUMENTS, PLANS, SUBMIT = (
    "submission/test_documents.py::",
    "submission/test_planning.py::",
    "cli/jobs/test_submit.py::",
)
JOBS, LOOP, SETTINGS = "actors/test_jobs.py::", "actors/test_rollout_collector.py::", "settings"
SUBMITTED = (f"{JOBS}test_benchmarks_are_submitted_followed_and_stopped",)
SURVIVING = "actors/test_surviving_runs.py::test_runs_survive_the_death_of_any_process"

STATEMENTS: dict[str, Sequence[str]] = {
    # Shape.
    "1": (VECTORS_RUN, "actors/test_collection.py::test_every_row_becomes_a_record_with_all_its_calls"),
    "2": ("vectors/test_D_cli.py::test_paths", f"{BEGUN}test_names_follow_from_the_output"),
    "3": (
        f"{JOIN}test_a_reply_becomes_the_record_with_the_rows_identity",
        f"{JOIN}test_where_a_record_belongs",
        f"{JOIN}test_an_unmeasured_reward_is_null_and_never_zero",
        "vectors/test_D_metrics.py::test_vector",
    ),
    "4": (f"{AGENTS}test_http_agent_posts_the_row_once_with_its_id", VECTORS_RUN),
    # Input rows.
    "5": (
        VECTORS_ROWS,
        f"{ROWS}test_a_bad_line_is_named_with_file_line_and_field",
        f"{ROWS}test_missing_and_empty_inputs_are_named",
    ),
    "6": (f"{ROWS}test_a_bad_line_is_named_with_file_line_and_field", VECTORS_ROWS),
    "7": (VECTORS_ROWS, f"{ROWS}test_limit_counts_rows_and_stops_reading"),
    "8": (
        VECTORS_ROWS,
        f"{EXPANDED}test_an_index_that_a_caller_uses_is_never_handed_out",
        f"{EXPANDED}test_two_callers_forms_of_one_index_share_their_repeats",
    ),
    "9": (
        VECTORS_ROWS,
        f"{EXPANDED}test_an_entry_of_repeats_that_matches_nothing_warns",
        f"{ROLLOUTS}/rows/test_row_options.py::test_the_agent_that_runs_a_row_comes_before_the_name_that_the_row_gave",
    ),
    "10": (VECTORS_ROWS, f"{EXPANDED}test_every_expansion_has_unique_ids_and_a_stable_order"),
    "11": (VECTORS_ROWS, f"{EXPANDED}test_every_expansion_has_unique_ids_and_a_stable_order"),
    "12": (
        VECTORS_ROWS,
        f"{ROWS}test_overrides_replace_top_level_keys_of_the_body",
        f"{ROLLOUTS}/rows/test_prompts.py::test_rows_get_their_input_from_the_template",
        f"{ROLLOUTS}/rows/test_prompts.py::test_rows_that_do_not_fit_are_refused_by_line_and_field",
        f"{ROLLOUTS}/rows/test_skills.py::test_every_row_says_which_skills_there_were",
        f"{EXPANDED}test_a_seed_needs_an_object_to_be_added_to",
    ),
    "13": (VECTORS_ROWS, f"{ROWS}test_routing_precedence", f"{ROWS}test_replacing_the_agent_of_the_data_warns"),
    "14": (VECTORS_ROWS, "settings/test_row_settings.py::test_mistakes_are_named"),
    "15": (f"{ROWS}test_all_rows_without_a_route_are_listed_with_their_real_lines",),
    "16": (
        VECTORS_ROWS,
        f"{ROWS}test_a_task_source_resolves_to_its_agent_or_is_refused",
        f"{ROWS}test_a_task_source_of_several_agents_is_refused_with_their_names",
        "rollouts/test_planning.py::test_a_scorer_stands_for_its_only_agent",
        "rollouts/test_planning.py::test_a_dataset_may_name_its_agent",
    ),
    "17": (
        VECTORS_RUN,
        f"{ROWS}test_unknown_agents_are_listed_together_with_a_hint",
        f"{BEGUN}test_a_bad_row_leaves_an_earlier_run_untouched",
    ),
    "18": (
        VECTORS_RUN,
        f"{ROLLOUTS}/rows/test_materialised_rows.py::test_a_begun_run_has_its_index_and_reads_each_row",
    ),
    # Identity.
    "19-21": (
        "vectors/test_D_rollout_id.py::test_vector",
        f"{EXPANDED}test_an_id_under_another_name_is_data_of_the_task",
        f"{ROLLOUTS}/test_capture_owner.py::test_overlapping_live_runs_refuse_each_other_and_disjoint_ones_do_not",
        f"{EXPANDED}test_ids_of_two_runs_never_meet_when_they_are_to_be_unique",
    ),
    "22": (
        "vectors/test_D_rollout_id.py::test_vector",
        f"{ROWS}test_a_bad_line_is_named_with_file_line_and_field",
    ),
    "23": (VECTORS_RUN, f"{EXPANDED}test_clashing_ids_are_refused_before_anything_is_left"),
    "24": ("vectors/test_D_rollout_id.py::test_vector", "agents/test_context.py::test_urls_carry_the_rollout"),
    # Clearing.
    "25-26": (
        f"{ROLLOUTS}/test_clearing.py::test_both_captures_of_an_attempt_begin_anew_and_others_stay",
        f"{ATTEMPTS}test_an_attempt_is_durable_as_started_and_cleared_before_it_runs",
    ),
    "27": (
        VECTORS_RUN,
        f"{ATTEMPTS}test_a_capture_that_cannot_be_cleared_is_a_failure_without_a_run",
        f"{ROLLOUTS}/test_clearing.py::test_a_run_without_captures_has_nothing_to_clear",
    ),
    "28": (
        f"{CALLS}/test_store.py::test_clear_truncates_and_touches_no_other_id",
        f"{CALLS}/test_store.py::test_clear_waits_for_a_writer",
        f"{CALLS}/test_quiesce.py::test_a_call_begun_before_its_rollout_begins_anew_is_not_in_the_new_file",
        f"{CALLS}/test_quiesce.py::test_a_record_under_way_is_cleared_with_its_file",
    ),
    # Dispatch.
    "29": (
        VECTORS_RUN,
        f"{AGENTS}test_http_agent_posts_the_row_once_with_its_id",
        "agents/test_delivery.py::test_the_shared_client_keeps_no_cookie",
    ),
    "30": (
        VECTORS_RUN,
        f"{JOIN}test_a_reply_becomes_the_record_with_the_rows_identity",
        f"{JOIN}test_a_reply_cannot_name_another_rollouts_capture",
        f"{AGENTS}test_http_agent_failures",
    ),
    "31": (f"{AGENTS}test_a_clock_that_is_set_changes_no_latency", PIPELINE),
    "32": (
        f"{AGENTS}test_timeout_cancels_the_attempt",
        f"{AGENTS}test_agent_that_ignores_cancelling_does_not_hold_its_caller",
        "settings/test_loading.py::test_defaults",
        EVERY_FOURTH,
    ),
    "33": (
        f"{AGENTS}test_a_dropped_connection_is_one_post_and_a_failure",
        f"{AGENTS}test_http_agent_without_status_may_never_have_run",
        "agents/test_delivery.py::test_what_was_delivered_is_never_sent_again",
        f"{LEDGER}test_an_attempt_cannot_run_twice",
        f"{ATTEMPTS}test_a_lost_process_is_recorded_and_tried_again_as_a_new_attempt",
        "agents/test_responses_api_agent.py::test_a_run_under_way_is_not_begun_again_and_ends_with_its_client",
    ),
    "34": (
        VECTORS_RUN,
        f"{ATTEMPTS}test_a_failed_rollout_is_a_record_and_the_run_goes_on",
        f"{AGENTS}test_whatever_foreign_code_does_is_a_named_failure",
        EVERY_FOURTH,
    ),
    "35": (
        VECTORS_RUN,
        f"{AGENTS}test_http_agent_failures",
        f"{AGENTS}test_http_agent_whose_body_is_cut_short_ran",
        "agents/test_failures.py::test_the_message_is_one_line_and_the_body_is_cut",
        f"{JOIN}test_a_failure_row_has_the_keys_of_its_kind_and_its_capture",
    ),
    "36": (
        f"{REAL_RUN}test_a_failed_rollout_is_the_peers_row_and_its_capture",
        f"{JOIN}test_a_failure_row_has_the_keys_of_its_kind_and_its_capture",
        f"{JOINING}test_failures_go_to_the_sidecar_with_their_capture",
        f"{BUILD}test_an_attempt_without_a_reply_has_its_calls_and_no_trajectory",
    ),
    "37": (
        VECTORS_RUN,
        f"{JOIN}test_where_a_record_belongs",
        f"{ATTEMPTS}test_a_reply_that_asks_for_no_record_leaves_none",
    ),
    "38": (
        VECTORS_RUN,
        f"{ROLLOUTS}/test_ending.py::test_a_run_without_a_result_produced_nothing",
        f"{ROLLOUTS}/test_ending.py::test_failures_that_metrics_count_are_something",
    ),
    "39": (
        VECTORS_RUN,
        f"{ROLLOUTS}/test_ending.py::test_completeness_counts_rows_whatever_is_kept_or_aggregated",
    ),
    "40": (
        f"{ATTEMPTS}test_limits_hold_together",
        f"{ATTEMPTS}test_impossible_limits_are_refused",
        VECTORS_ROWS,
    ),
    "41": (VECTORS_RUN, f"{ATTEMPTS}test_every_row_is_run_once_and_stored_as_it_finishes"),
    "42": (VECTORS_RUN, f"{ATTEMPTS}test_memory_does_not_grow_with_finished_rollouts"),
    "43": (
        VECTORS_RUN,
        f"{ROLLOUTS}/attempts/test_dispatch_budget.py::test_when_it_is_spent",
        f"{ATTEMPTS}test_a_spent_budget_starts_nothing_more_and_leaves_the_rest_unfinished",
        f"{ATTEMPTS}test_a_budget_lets_what_runs_end",
        f"{SESSION}test_rows_that_a_spent_budget_left_run_in_the_next_run",
    ),
    "44": (
        VECTORS_RUN,
        f"{ROLLOUTS}/attempts/test_longest_first.py::test_rows_go_by_the_longest_of_their_failures_and_the_rest_keep_their_order",
        f"{ROLLOUTS}/attempts/test_longest_first.py::test_a_failure_may_say_how_long_it_took",
        f"{SESSION}test_rows_that_took_longest_start_first",
    ),
    "45": (
        f"{ATTEMPTS}test_a_stop_cancels_runs_stores_replies_and_keeps_the_rest_pending",
        f"{ATTEMPTS}test_a_cancelled_consumer_leaves_nothing_behind",
        f"{ATTEMPTS}test_leaving_the_iteration_early_stores_what_has_ended",
        "cli/test_interrupt.py::test_what_has_ended_is_stored_when_a_run_is_told_to_stop",
    ),
    # Output, crash safety, resume.
    "46": (
        f"{RECORDS}test_a_record_is_written_then_synced_then_acknowledged",
        f"{RECORDS}test_kill_9_of_one_of_two_processes_tears_nothing_and_loses_nothing_acknowledged",
        f"{CRASHES}test_a_power_cut_at_any_step_keeps_all_that_was_acknowledged",
        f"{CRASHES}test_a_start_comes_before_the_record_and_the_record_before_its_frame",
    ),
    "47": (f"{JOIN}test_what_json_cannot_hold_is_null_and_keys_keep_their_order",),
    "48": (
        VECTORS_RUN,
        f"{BEGUN}test_a_bad_row_leaves_an_earlier_run_untouched",
        f"{BEGUN}test_results_of_an_earlier_run_are_set_aside_and_never_deleted",
        f"{BEGUN}test_a_start_that_dies_at_any_step_loses_nothing_and_mixes_nothing",
        f"{RESUMED}test_rows_of_another_run_are_refused",
    ),
    "49": (
        VECTORS_RUN,
        f"{SESSION}test_a_session_without_an_earlier_run_begins_afresh",
        f"{RESUMED}test_nothing_to_resume_is_said",
        f"{RESUMED}test_a_run_without_a_directory_is_taken_up_by_reading_it",
    ),
    "50": (
        VECTORS_RUN,
        f"{RECORDS}test_a_torn_tail_is_completed_or_cut",
        f"{RESUMED}test_every_cut_of_the_main_output_keeps_exactly_the_whole_records",
        f"{RESUMED}test_every_cut_of_the_sidecar_keeps_exactly_the_whole_failures",
        f"{RESUMED}test_every_cut_of_the_sources_leaves_whole_lines",
        f"{RESUMED}test_every_cut_of_the_ledger_forgets_only_the_starts_behind_it",
    ),
    "51": (
        VECTORS_RUN,
        f"{RESUMED}test_every_cut_of_what_a_run_rests_on_is_refused_and_changes_no_record",
        f"{RESUMED}test_a_line_of_the_main_output_that_is_no_record_is_named_and_salvaged",
        f"{RESUMED}test_a_line_of_the_sidecar_that_is_no_json_is_named_and_salvaged",
        f"{RESUMED}test_a_salvage_that_dies_anywhere_has_lost_nothing",
        f"{RESUMED}test_a_damaged_row_is_named_and_the_rest_goes_on",
    ),
    "52": (
        VECTORS_RUN,
        f"{RESUMED}test_two_results_of_a_row_are_counted_once_and_said",
        f"{METRICS}test_duplicates_and_damage_are_named_and_the_rest_counts",
    ),
    "53": (
        VECTORS_RUN,
        f"{ROLLOUTS}/row_states/test_run_state.py::test_what_gates_a_row",
        f"{ROLLOUTS}/row_states/test_retry_rules.py::test_a_row_is_given_up_when_its_budget_is_spent_or_a_failure_is_final",
        f"{ROLLOUTS}/row_states/test_retry_rules.py::test_an_unusable_text_means_the_default_and_is_named",
        "cli/test_run_flags.py::test_the_environment_may_set_the_budget_unless_a_setting_does",
    ),
    "54": (
        VECTORS_RUN,
        f"{ROLLOUTS}/row_states/test_run_state.py::test_terminal_by_both_rules_of_d54",
        f"{ROLLOUTS}/row_states/test_retry_rules.py::test_the_second_rule_tries_timeouts_again_and_never_what_was_skipped",
        f"{LEDGER}test_timeouts_may_be_tried_again_though_they_are_terminal",
    ),
    "55": (
        VECTORS_RUN,
        f"{ROLLOUTS}/row_states/test_run_state.py::test_the_next_attempt_is_behind_every_start_and_every_failure",
        f"{ROLLOUTS}/test_resumed_collection.py::test_a_resumed_run_starts_what_is_left_under_new_attempts",
        f"{ROLLOUTS}/test_resumed_collection.py::test_a_try_may_be_told_to_reuse_what_an_earlier_one_delivered",
    ),
    "56": (VECTORS_RUN, f"{SESSION}test_a_resume_adds_lines_and_changes_none"),
    "57": (
        f"{ROLLOUTS}/run_files/test_judge_requeue.py::test_results_without_a_valid_verdict_become_failures_and_run_again",
        f"{ROLLOUTS}/run_files/test_judge_requeue.py::test_a_move_that_dies_anywhere_can_be_done_again_and_moves_each_once",
        f"{SESSION}test_results_with_an_invalid_verdict_run_again_where_that_is_asked_for",
    ),
    "58": (
        f"{BEGUN}test_a_second_collector_is_refused_until_the_first_is_dead",
        f"{SESSION}test_two_sessions_cannot_write_one_output",
        "actors/test_surviving_runs.py::test_a_second_collector_of_an_output_is_refused_and_changes_nothing",
    ),
    # Post-processing.
    "59": (
        PIPELINE,
        f"{REAL_RUN}test_a_finished_rollout_is_the_record_that_the_peer_stored",
        f"{JOIN}test_response_reward_and_everything_else_of_a_reply_come_back_as_they_were",
        f"{JOINING}test_an_attempt_that_never_ran_gets_no_capture",
    ),
    "60": (
        "cli/test_capture_settings.py::test_each_setting_that_servers_act_on_is_named_with_both_values",
        "cli/test_capture_settings.py::test_a_collection_says_all_that_differs_before_it_starts",
    ),
    "61": ("actors/test_collection.py::test_records_can_be_iterated_as_they_finish",),
    "62": (
        f"{CALLS}/test_middleware.py::test_json_is_sent_after_write_and_sync",
        f"{JOINING}test_a_call_that_stays_open_is_a_gap",
        f"{JOINING}test_a_live_writer_that_does_not_answer_is_a_gap",
        f"{JOIN}test_whatever_was_not_read_is_a_gap",
    ),
    # The attachment.
    "63-64": (
        "vectors/test_D_call_record.py::test_vector",
        f"{JOIN}test_calls_are_attached_without_payloads_and_summed",
        f"{CALLS}/test_attachment.py::test_worked_example",
    ),
    "65": (PIPELINE, f"{CALLS}/test_lines.py::test_index_counts_damaged_lines_and_no_blank_ones"),
    "66": ("vectors/test_D_call_record.py::test_vector", f"{CALLS}/test_records.py::test_totals"),
    "67": (
        PIPELINE,
        f"{CALLS}/test_attachment.py::test_every_loss_is_named",
        f"{JOIN}test_no_gap_means_that_every_listed_call_is_attached_once_in_any_order",
    ),
    "68": (
        PIPELINE,
        f"{BUILD}test_calls_that_make_no_trajectory_keep_their_payloads_and_a_gap_says_so",
        f"{BUILD}test_redacted_rollouts_have_no_payload_anywhere_even_when_the_projection_fails",
    ),
    "69": (PIPELINE, f"{JOIN}test_an_attachment_that_the_reply_brought_is_replaced_and_never_counted"),
    # Observation models.
    "70": (MODELS, f"{OBSERVED}/test_bundle.py::test_a_bundle_is_checked_whenever_it_is_changed"),
    "71": (
        MODELS,
        f"{OBSERVED}/test_conversation.py::test_what_cannot_be_read_is_refused_by_its_place",
        f"{OBSERVED}/test_gaps.py::test_a_gap_is_whole",
        f"{OBSERVED}/test_validation.py::test_numbers_that_json_cannot_hold_are_refused",
    ),
    "72": (
        MODELS,
        f"{OBSERVED}/test_bundle.py::test_parents_never_form_a_circle",
        f"{OBSERVED}/test_bundle.py::test_the_invocation_that_comes_twice_is_named",
    ),
    "73": (MODELS, f"{OBSERVED}/test_validation.py::test_a_turn_of_another_rollout_is_named"),
    # The exact join.
    "74-75": (
        "vectors/test_D_join.py::test_vector",
        f"{EVIDENCE}/test_matching.py::test_a_reference_names_the_calls_that_contradict_nothing_it_says",
        f"{EXACT}test_it_finds_what_comparing_everything_finds",
        f"{EXACT}test_the_order_of_captured_calls_decides_nothing",
    ),
    "76": (
        "vectors/test_D_join.py::test_vector",
        f"{EXACT}test_claims_of_a_session_do_not_hide_one_another",
        f"{EXACT}test_a_pair_with_an_empty_call_id_stands_for_a_claimed_call",
    ),
    "77": (
        "vectors/test_D_join.py::test_vector",
        f"{EXACT}test_a_call_is_owned_exactly_when_a_reference_matches_nothing_else",
        f"{EXACT}test_a_contested_call_has_one_owner_and_its_rivals_a_conflict",
        f"{EXACT}test_the_order_of_records_decides_only_contested_calls",
    ),
    "78-80": ("vectors/test_D_join.py::test_vector", f"{EXACT}test_it_finds_what_comparing_everything_finds"),
    "81": (
        f"{EXACT}test_joining_twice_is_joining_once",
        f"{EXACT}test_a_compaction_gap_of_an_earlier_join_goes_when_its_call_finds_an_owner",
    ),
    "82": ("vectors/test_D_join.py::test_vector",),
    "83": (PIPELINE, f"{BUILD}test_observations_that_are_none_stay_as_they_came"),
    # The trajectory.
    "84-86": (
        PIPELINE,
        f"{BUILD}test_a_trajectory_that_is_no_object_is_none",
        f"{BUILD}test_observations_that_are_none_stay_as_they_came",
    ),
    "87-90": (
        PIPELINE,
        f"{REAL_RUN}test_a_finished_rollout_is_the_record_that_the_peer_stored",
        f"{EVIDENCE}/trajectory/test_tool_calls.py::test_the_last_output_of_the_calls_own_invocation_counts",
        f"{EVIDENCE}/trajectory/test_tool_calls.py::test_what_was_observed_goes_over_what_was_produced_field_by_field",
    ),
    "91": (
        PIPELINE,
        f"{BUILD}test_a_producers_call_is_found_by_server_and_answer_too",
        f"{BUILD}test_a_pair_that_names_two_calls_names_none",
    ),
    "92": (PIPELINE, f"{BUILD}test_a_foreign_attachment_is_checked_and_loses_its_payloads"),
    "93": (
        PIPELINE,
        f"{BUILD}test_owned_calls_become_turns_numbered_by_invocation",
        f"{EVIDENCE}/trajectory/test_turns.py::test_a_turn_begins_when_its_call_did_else_when_it_ended",
        f"{EVIDENCE}/trajectory/test_turns.py::test_a_call_without_an_answer_is_no_turn_and_the_last_turn_is_resolved",
    ),
    "94": (
        PIPELINE,
        f"{EVIDENCE}/trajectory/test_splitting.py::test_what_was_asked",
        f"{EVIDENCE}/trajectory/test_splitting.py::test_what_was_answered_and_thought",
    ),
    "95": (
        PIPELINE,
        f"{BUILD}test_every_turn_is_of_a_call_that_its_invocation_names_and_nobody_else_owns",
        f"{LINKS}test_each_turn_is_of_a_call_that_its_invocation_alone_names",
    ),
    "96": (f"{BUILD}test_turns_are_not_derived_where_that_is_switched_off",),
    "97-98": (PIPELINE, f"{LINKS}test_every_call_is_a_turn_or_has_a_gap"),
    "99-100": (
        PIPELINE,
        f"{JOIN}test_calls_are_attached_without_payloads_and_summed",
        f"{BUILD}test_redacted_rollouts_have_no_payload_anywhere_even_when_the_projection_fails",
    ),
    "101": (PIPELINE, f"{BUILD}test_without_capture_observations_alone_make_a_trajectory_without_links"),
    "102": (
        PIPELINE,
        f"{BUILD}test_calls_that_make_no_trajectory_keep_their_payloads_and_a_gap_says_so",
        f"{BUILD}test_a_foreign_attachment_that_makes_no_trajectory_says_so_itself",
        f"{BUILD}test_nothing_in_a_reply_costs_its_record",
        f"{OBSERVED}/test_gaps.py::test_every_code_has_one_name",
        f"{EVIDENCE}/test_unforeseen.py::test_a_bare_trajectory_tells_it_where_there_is_neither",
    ),
    # Figures.
    "103-105": (
        PIPELINE,
        f"{EVIDENCE}/test_perf.py::test_an_invocation_counts_its_turns_else_its_calls_else_one",
        f"{EVIDENCE}/test_perf.py::test_only_owned_calls_count_and_each_counts_once",
        f"{EVIDENCE}/test_perf.py::test_coverage_is_never_more_than_whole",
        f"{EVIDENCE}/test_perf.py::test_it_adds_up_what_comparing_everything_finds",
        f"{LINKS}test_figures_count_the_calls_of_the_turns_once_each",
    ),
    # Health.
    "106": (PEER_HEALTH, f"{HEALTH}test_a_whole_record_is_healthy_and_named_by_its_attempt"),
    "107": (
        PEER_HEALTH,
        OUR_HEALTH,
        f"{HEALTH}test_a_capture_that_is_not_known_to_be_whole_blinds_all_checks_of_calls",
        f"{HEALTH}test_references_that_name_no_call_or_several_or_anothers_are_named_once",
        f"{HEALTH}test_a_check_that_breaks_is_a_finding_and_unobserved",
        f"{HEALTH}test_what_makes_a_call_a_failed_one",
        f"{HEALTH}test_what_ends_a_generation_at_its_limit",
        f"{REPORT}test_a_task_is_consistently_unhealthy_when_all_its_computable_repeats_are",
    ),
    "108": (
        PEER_HEALTH,
        f"{HEALTH}test_calls_that_started_together_do_not_end_a_rollout_unless_all_failed",
        f"{REPORTS}test_damaged_lines_are_rows_that_name_file_and_line",
    ),
    "109": (
        PEER_HEALTH,
        f"{REPORTS}test_both_reports_stand_in_the_run_directory_and_under_the_public_names",
        f"{REPORT}test_copies_whose_verdicts_differ_are_an_unobserved_repeat",
        f"{REPORT}test_rows_are_ordered_by_task_and_rollout_numbers_before_names",
    ),
    "110": (
        f"{HEALTH}test_ignored_checks_do_not_run_and_unknown_ones_are_named",
        f"{REPORTS}test_several_processes_say_the_same_as_one",
        f"{ROLLOUTS}/reports/test_health_reading.py::test_as_many_processes_help_as_there_are_cpus_up_to_eight",
        f"{REPORTS}test_a_process_that_cannot_work_is_stood_in_for",
        "cli/test_eval_health.py::test_ignored_checks_do_not_fail_it_and_unknown_ones_are_named",
    ),
    "111": (
        OUR_HEALTH,
        f"{HEALTH}test_token_totals_are_compared_with_every_owned_call_and_by_the_peers_rules_with_those_of_turns",
    ),
    # Aggregation.
    "112-113": (
        "vectors/test_D_metrics.py::test_agents_of_whole_runs_are_asked_with_the_peers_bodies",
        f"{REAL_RUN}test_an_agent_is_asked_for_its_metrics_with_what_the_peer_asks",
        f"{EVIDENCE}/test_facts.py::test_the_reduced_reply_has_no_evidence_and_only_usage_of_the_response",
        f"{METRICS}test_an_agent_that_aggregates_itself_is_asked_with_reduced_replies",
    ),
    "114": ("vectors/test_D_metrics.py::test_vector", f"{METRICS}test_it_agrees_with_counting_objects"),
    "115": (
        VECTORS_RUN,
        f"{METRICS}test_listed_failures_and_missing_rollouts_count_as_zero_when_asked_for",
    ),
    "116": ("vectors/test_D_metrics.py::test_vector",),
    "117": (
        f"{METRICS}test_shards_are_merged_by_task_and_scored_once",
        "cli/test_eval_aggregate.py::test_shards_are_scored_as_one_run",
        "cli/test_eval_aggregate.py::test_records_are_found_once_and_sorted_and_what_accompanies_them_is_not",
    ),
    # Of what others read, of the command line, of agents and of scores: what belongs to a run.
    "118": (
        "vectors/test_D_export.py::test_vector",
        "export/test_view.py::test_payloads_stay_behind_and_all_else_goes",
        "export/test_view.py::test_conversations_can_stay_behind_too",
    ),
    "120": (
        "vectors/test_D_export.py::test_vector",
        "export/test_names.py::test_names_are_spelled_as_the_tracker_takes_them",
    ),
    "122": ("test_readme.py::test_the_two_terminal_walk",),
    "123": (
        f"{SETTINGS}/test_loading.py::test_defaults",
        f"{SETTINGS}/test_loading.py::test_mistake",
        f"{SETTINGS}/test_capture.py::test_an_object_store_is_a_place_of_captures",
        f"{SETTINGS}/test_capture.py::test_a_place_is_not_looked_at_while_capture_is_off",
        f"{SETTINGS}/test_capture.py::test_what_cannot_work_is_refused_by_its_key",
    ),
    "124": ("vectors/test_D_cli.py::test_argv", "cli/test_run_flags.py::test_every_flag_is_a_setting"),
    "125": (
        "vectors/test_D_cli.py::test_argv",
        f"{SETTINGS}/test_assets.py::test_flavours_and_files_without_configs_directory",
        f"{SETTINGS}/test_assets.py::test_extra_roots_come_before_the_working_directory_and_that_before_the_package",
        f"{SETTINGS}/test_assets.py::test_unknown_names",
    ),
    "126": (
        "vectors/test_D_config.py::test_vector",
        f"{SETTINGS}/test_overrides.py::test_effect",
        f"{SETTINGS}/test_overrides.py::test_mistakes",
    ),
    "127": (
        "vectors/test_D_config.py::test_vector",
        f"{SETTINGS}/test_document.py::test_precedence_and_places",
        f"{SETTINGS}/test_document.py::test_maps_merge_and_lists_replace",
        f"{SETTINGS}/test_document.py::test_paths_on_the_command_line_replace_those_of_the_env_file",
        f"{SETTINGS}/test_document.py::test_every_unset_value_is_listed",
        f"{SETTINGS}/test_document.py::test_mistakes_in_the_list_of_files",
    ),
    "128": (
        "vectors/test_D_config.py::test_vector",
        f"{SETTINGS}/test_loading.py::test_a_whole_document",
        f"{SETTINGS}/test_loading.py::test_mistake",
        "actors/test_servers.py::test_ports_are_different_free_and_outside_of_what_outgoing_connections_take",
    ),
    "129": (
        "cli/test_head.py::test_a_collection_learns_settings_servers_and_captures",
        "cli/test_start.py::test_an_endpoint_that_is_down_is_named_with_the_reason",
        "cli/test_start.py::test_ctrl_c_during_the_start_is_quiet_and_ends_it",
        "actors/test_servers.py::test_a_server_that_cannot_start_says_why",
        "cli/test_bad_input.py::test_the_head_port_in_use",
    ),
    "130": (
        "test_readme.py::test_the_two_terminal_walk",
        f"{SETTINGS}/test_loading.py::test_servers_of_a_running_head_replace_ours",
        "cli/test_head.py::test_whoever_is_no_head_is_named",
        "cli/test_bad_input.py::test_no_serve_without_servers",
    ),
    # Evaluations as jobs.
    "131-132": (
        "vectors/test_D_cli.py::test_submit_run",
        "vectors/test_D_submit.py::test_submit",
        f"{PLANS}test_captures_are_on_by_default_moved_or_off",
        f"{PLANS}test_captures_cannot_be_moved_just_anywhere",
        *SUBMITTED,
        f"{JOBS}test_an_evaluation_outlives_its_cluster",
    ),
    "133": (
        "vectors/test_D_cli.py::test_submit_run",
        f"{PLANS}test_a_token_reads_back_as_what_was_written",
        f"{PLANS}test_what_the_grammar_cannot_say_is_refused",
    ),
    "134": (
        "vectors/test_D_submit.py::test_submit",
        "vectors/test_D_cli.py::test_scratch_guard",
        f"{DOCUMENTS}test_a_mistake_names_file_key_and_remedy",
        f"{DOCUMENTS}test_overrides_and_scratch_keys",
        f"{PLANS}test_the_policys_key_comes_from_where_it_says",
        f"{PLANS}test_the_environment_is_looked_up_here_or_there",
        f"{PLANS}test_a_command_gets_neither_settings_nor_captures",
    ),
    "135": (
        "submission/test_job_files.py::test_the_layout_is_whole_and_secrets_are_their_owners",
        f"{DOCUMENTS}test_a_mistake_names_file_key_and_remedy",
        f"{SUBMIT}test_a_dry_run_shows_everything_but_secrets_and_writes_nothing",
        f"{SUBMIT}test_the_record_knows_an_id_before_the_cluster_does",
        *SUBMITTED,
    ),
    "136": (
        *SUBMITTED,
        f"{SUBMIT}test_the_record_knows_an_id_before_the_cluster_does",
        f"{DOCUMENTS}test_what_ray_cannot_run_is_refused_with_reasons",
        "submission/test_driver.py::test_a_directory_that_is_not_there_or_another_is_named",
        "cli/jobs/test_standing.py::test_a_directory_that_is_not_shared_is_told_in_bounded_time",
        "actors/test_doctor.py::test_two_nodes_examine_a_directory",
    ),
    "145": (
        "agents/test_loop_log.py::test_the_trajectory_names_its_task_its_attempt_and_its_calls",
        "agents/test_loop_log.py::test_tools_end_as_their_answers_say",
        "agents/test_loop_log.py::test_only_a_verifier_resolves_a_task",
        "agents/test_agent_evidence.py::test_the_built_in_agents_trajectory_meets_its_captured_calls",
        "vectors/test_D_simple_agent.py::test_vector",
    ),
    "158": (
        "vectors/test_D_metrics.py::test_vector",
        f"{EVIDENCE}/scores/test_pass_at_k.py::test_pass_at_k_is_the_share_of_all_choices_that_solve_the_task",
        f"{EVIDENCE}/scores/test_pass_at_k.py::test_majority_shares_ties_and_skips_silence",
        f"{EVIDENCE}/scores/test_pass_at_k.py::test_a_run_is_known_by_the_highest_k_that_each_measure_has",
        "vectors/test_D_e2e.py::test_our_environment_answers_so_that_the_metrics_are_the_peers",
    ),
    # Better.
    "159": (
        f"{ROLLOUTS}/test_resumed_collection.py::test_many_rollouts_that_end_at_once_leave_the_loop_its_turns",
        "test_pace.py::test_a_burst_passes_a_few_at_a_time_in_order",
        "actors/test_ray_port.py::test_a_joiner_that_hangs_is_ended_and_its_record_is_stored_once",
    ),
    "160": (
        f"{JOINING}test_many_joins_at_once_store_whole_lines",
        f"{JOINING}test_asking_again_stores_nothing_twice",
        f"{REAL_RUN}test_joining_again_gives_the_same_bytes",
    ),
    "161": (f"{ROLLOUTS}/test_several_joiners.py::test_three_joiners_leave_the_output_of_one",),
    "162": (
        f"{ATTEMPTS}test_memory_does_not_grow_with_finished_rollouts",
        f"{ROLLOUTS}/row_states/test_run_state.py::test_a_row_costs_at_most_8_bytes",
        f"{ROLLOUTS}/rows/test_materialised_rows.py::test_many_rows_cost_neither_memory_nor_a_scan",
        f"{ROLLOUTS}/rows/test_freed_memory.py::test_an_expansion_keeps_nothing_for_its_rows",
        f"{METRICS}test_memory_holds_no_records",
    ),
    "163": (
        f"{COMPACT}test_each_distinct_item_is_stored_once",
        f"{COMPACT}test_gives_back_every_record_of_the_pipeline",
        f"{COMPACT}test_a_compact_trajectory_is_a_valid_one",
        f"{JOIN}test_a_compact_record_and_its_parts_are_the_inline_record",
        f"{ROLLOUTS}/run_files/test_parts_files.py::test_a_compact_record_is_read_from_its_place_and_from_its_line",
        f"{ROLLOUTS}/run_files/test_parts_files.py::test_whoever_reads_lines_gets_them_inline",
        f"{ROLLOUTS}/test_compact_joins.py::test_what_is_stored_is_small_and_what_is_read_is_whole",
        f"{ROLLOUTS}/test_compact_joins.py::test_the_parts_are_there_when_the_record_is_stored",
        f"{ROLLOUTS}/test_compact_joins.py::test_without_its_parts_no_record_is_stored",
    ),
    "164": (
        f"{RESUMED}test_a_resume_reads_128_bytes_a_finished_rollout",
        f"{ROLLOUTS}/reports/test_facts_files.py::test_records_that_the_index_names_and_the_cache_has_are_not_read",
        f"{REPORTS}test_a_run_is_reported_from_the_verdicts_of_its_joiners",
        "cli/test_agent_metrics.py::test_an_agent_gets_the_body_in_chunks_and_its_answer_counts",
    ),
    # Each of the rules that it lists has a test above that fails where things are done as the peer does them.
    "165": (
        f"{AGENTS}test_a_dropped_connection_is_one_post_and_a_failure",  # D33
        f"{ATTEMPTS}test_a_failed_rollout_is_a_record_and_the_run_goes_on",  # D34
        f"{JOIN}test_a_failure_row_has_the_keys_of_its_kind_and_its_capture",  # D36
        f"{AGENTS}test_timeout_cancels_the_attempt",  # D32
        f"{RECORDS}test_a_record_is_written_then_synced_then_acknowledged",  # D46
        f"{BEGUN}test_a_start_that_dies_at_any_step_loses_nothing_and_mixes_nothing",  # D48
        f"{BEGUN}test_a_second_collector_is_refused_until_the_first_is_dead",  # D58
        f"{CALLS}/test_store.py::test_clear_truncates_and_touches_no_other_id",  # D28
        f"{JOINING}test_a_call_that_stays_open_is_a_gap",  # D62
        "cli/test_capture_settings.py::test_a_collection_says_all_that_differs_before_it_starts",  # D60
    ),
    "166": (
        f"{REJOIN}test_a_late_call_gives_what_a_first_join_would_have_given",
        f"{REJOIN}test_unchanged_captures_change_not_one_byte",
        f"{ROLLOUTS}/rejoining/test_rejoin_killed.py::test_a_kill_at_any_step_leaves_old_or_new",
        "cli/test_eval_rejoin.py::test_late_calls_are_attached",
    ),
    "167": (
        f"{ROLLOUTS}/attempts/test_join_lag.py::test_a_run_tells_how_far_its_joins_are_behind",
        f"{ATTEMPTS}test_every_row_is_run_once_and_stored_as_it_finishes",
        f"{ATTEMPTS}test_a_listener_that_does_not_keep_up_slows_dispatch",
        f"{CONTROLLED}test_more_workers_run_more_at_once_and_fewer_run_fewer",
        f"{ROLLOUTS}/control/test_desk.py::test_the_status_says_what_runs_where_what_waits_and_what_failed",
        "actors/test_run_metrics.py::test_a_run_is_published_without_ids_and_each_event_once",
    ),
    "168": (
        SURVIVING,
        f"{ROLLOUTS}/test_killed_collections.py::test_whoever_dies_every_row_ends_once_and_no_attempt_runs_twice",
        f"{CRASHES}test_any_number_of_deaths_leaves_each_row_in_one_place",
        "actors/test_killed_environment.py::test_rollouts_of_a_killed_environment_fail_with_their_captures",
        "cli/test_interrupt.py::test_a_killed_driver_leaves_whole_files_and_a_free_output",
        f"{CALLS}/test_crash.py::test_many_kills",
        f"{CALLS}/segments/test_killed_writer.py::test_many_kills",
        "actors/test_capture_writer.py::"
        "test_a_killed_writer_loses_nothing_that_was_acknowledged_and_writes_nothing_twice",
        "actors/test_membership.py::test_nodes_change_under_a_run",
        "actors/test_cluster_faults.py::test_actors_and_nodes_die_in_a_run_that_loses_nothing",
        "actors/test_cluster_faults.py::test_a_run_whose_driver_and_cluster_die_is_taken_up_on_a_new_cluster",
    ),
    "169": (
        "actors/test_collection.py::test_records_can_be_iterated_as_they_finish",
        f"{ATTEMPTS}test_an_attempt_is_durable_as_started_and_cleared_before_it_runs",
        f"{EXPANDED}test_ids_of_two_runs_never_meet_when_they_are_to_be_unique",
        f"{LOOP}test_a_loop_takes_its_tokens_out_of_the_store_step_after_step",
        f"{LOOP}test_a_straggler_wedges_neither_its_group_nor_the_next_step",
        f"{TRAINING}/test_step_files.py::test_the_same_id_in_two_steps_names_two_rollouts",
        f"{TRAINING}/test_step_board.py::test_a_group_is_delivered_whole_and_in_its_order",
        f"{TRAINING}/test_results.py::test_old_rows_are_masked_and_an_empty_batch_is_an_error",
        f"{TRAINING}/test_outcomes.py::test_whatever_speaks_against_an_attempt_takes_its_reward_and_is_its_reason",
    ),
    "170": (
        f"{REPORT}test_severity_counts_findings_of_rollouts_and_tasks",
        "cli/test_eval_health.py::test_the_exit_code_follows_the_worst_finding",
        f"{EVIDENCE}/health/test_rules.py::test_what_speaks_against_the_evidence_is_an_error",
        f"{EVIDENCE}/health/test_rules.py::test_what_may_be_the_models_fault_is_a_warning",
    ),
    # What texts say against each other.
    "171-172": (PIPELINE, f"{BUILD}test_turns_are_not_derived_where_that_is_switched_off"),
    "173": (PEER_HEALTH, OUR_HEALTH),
    "174": (
        "vectors/test_D_call_record.py::test_vector",
        f"{PEER}test_captures_read_back_as_the_peer_reported_them",
        f"{BUILD}test_a_foreign_attachment_is_checked_and_loses_its_payloads",
    ),
    "175-176": (
        VECTORS_RUN,
        "settings/test_token_capture.py::test_nothing_is_captured_unless_asked_for",
        f"{TRAINING}/test_outcomes.py::test_an_attempt_that_was_scored_has_its_reward_and_no_reason",
    ),
}
NUMBERS = "1-118 120 122-136 145 158-176"
"""Of sections 15 to 17 what a run's records, commands, jobs and metrics need; the rest of them is held elsewhere."""

DEPARTED: dict[str, tuple[str, Sequence[str]]] = {
    "4": ("rows go straight to their agent, so the keys of a relay are never there", (VECTORS_RUN,)),
    "26-27": (
        "an attempt is cleared when it is admitted, not before the first dispatch, and its file is emptied and stays",
        STATEMENTS["28"],
    ),
    "34": (
        "a failed rollout is recorded whatever route_failures_to_sidecar says; the first failure never ends a run",
        (EVERY_FOURTH, "cli/test_run_flags.py::test_settings_that_change_nothing_are_named"),
    ),
    "38-39": (
        "a command ends with exit code 1 or 2 behind its whole report, and does not raise",
        (*STATEMENTS["38"], *STATEMENTS["39"]),
    ),
    "41-42": (
        "no list of records is ever returned or kept, so retain_results_in_memory changes nothing; records are read "
        "from the output",
        ("cli/test_run_flags.py::test_settings_that_change_nothing_are_named", *STATEMENTS["42"]),
    ),
    "46": (
        "durability is no setting: every record is synced before anybody is told of it, and starts share their syncs",
        (
            f"{RECORDS}test_a_record_is_written_then_synced_then_acknowledged",
            f"{ROLLOUTS}/run_files/test_ledger_log.py::test_frames_that_wait_together_share_a_sync",
        ),
    ),
    "53": (
        "a start that was killed costs its attempt number and nothing of the budget; lost processes are tried again in "
        "the same run, and a row under which two workers died alone is quarantined",
        (
            f"{LEDGER}test_a_start_that_was_killed_takes_nothing_from_the_budget",
            f"{LEDGER}test_a_row_that_kills_two_workers_is_quarantined",
        ),
    ),
    "55": (
        "the next attempt is behind every recorded failure and every durable start, so that no id ever runs twice",
        (
            f"{ROLLOUTS}/row_states/test_run_state.py::test_the_next_attempt_is_behind_every_start_and_every_failure",
            f"{CRASHES}test_kill_9_of_the_writer_of_all_files_loses_nothing_and_repeats_no_attempt",
        ),
    ),
    "61": (
        "only finished records are offered; replies without their evidence never leave the process that joins them",
        (
            "actors/test_collection.py::test_records_can_be_iterated_as_they_finish",
            f"{LOOP}test_a_loop_takes_its_tokens_out_of_the_store_step_after_step",
        ),
    ),
    "67": (
        "three gaps more: calls that stay open, writers that do not answer, calls that were listed and not read; with "
        "any of them the capture is not taken for whole",
        (
            f"{JOIN}test_whatever_was_not_read_is_a_gap",
            f"{HEALTH}test_a_capture_that_is_not_known_to_be_whole_blinds_all_checks_of_calls",
        ),
    ),
    "91": (
        "a producer's call that contradicts the captured one of its id gives way whole, and a gap names it",
        (f"{BUILD}test_a_producers_call_that_contradicts_the_capture_gives_way_and_is_named",),
    ),
    "103": (
        "figures that a reply brought itself are dropped where capture is on: nobody here computed them",
        (f"{BUILD}test_figures_that_a_reply_claims_give_way_to_those_of_the_capture",),
    ),
    "106": (
        "records are judged by the joiner while they are in memory; a whole run is read again only where that is asked",
        STATEMENTS["164"],
    ),
    "110": (
        "one process is the default where a run that just ended needs records judged anew; a check by itself takes up "
        "to eight",
        ("settings/test_result_settings.py::test_everything_is_written_and_judged_unless_told_otherwise",),
    ),
    "129": (
        "the head listens only once every server and endpoint has answered, so its /healthz is never 503: nothing "
        "listens there until then",
        STATEMENTS["129"],
    ),
    "134": (
        "a scratch key that the document has may be changed in any form; in none may one be added",
        (f"{DOCUMENTS}test_overrides_and_scratch_keys", "vectors/test_D_cli.py::test_scratch_guard"),
    ),
    "135-136": (
        "a job has job.json, arguments.json and status.json in place of a shell script, since its entrypoint is the "
        "driver; documents for Slurm are planned and shown, and not submitted",
        (
            "submission/test_job_files.py::test_the_layout_is_whole_and_secrets_are_their_owners",
            f"{SUBMIT}test_slurm_is_planned",
            f"{SUBMIT}test_what_cannot_be_submitted_is_refused_before_anything_is_written",
        ),
    ),
    "160": (
        "eight workers and their speed need more than one small machine; what is shown is that joins are independent, "
        "repeatable, and add up",
        STATEMENTS["160"],
    ),
    "161": (
        "one live main output in order of completion, which all joiners append to, instead of shards that are put "
        "together at the end",
        STATEMENTS["161"],
    ),
    "163": (
        "records hold their payloads unless --compact asks for parts",
        (f"{JOIN}test_a_compact_record_and_its_parts_are_the_inline_record",),
    ),
    "168": (
        "fewer rounds are killed in the tests that always run, and the nodes that die are raylets of one machine; what "
        "is written, read and judged is the same",
        STATEMENTS["168"],
    ),
    "169": (
        "payloads are not referred to in the capture: a record is read from storage when it is asked for, and token "
        "rows are views of the object store",
        (
            f"{LOOP}test_a_loop_takes_its_tokens_out_of_the_store_step_after_step",
            f"{TRAINING}/test_results.py::test_a_table_that_was_lost_is_made_of_the_record",
        ),
    ),
}
"""Where a statement is not followed to the letter, and why."""

PARTS: dict[str, Sequence[str]] = {
    "attempts": (*STATEMENTS["33"], *STATEMENTS["53"], *STATEMENTS["55"], *STATEMENTS["25-26"]),
    "run log": (
        *STATEMENTS["48"],
        *STATEMENTS["50"],
        *STATEMENTS["58"],
        f"{ROLLOUTS}/run_files/test_run_index.py::test_frames_say_where_records_lie",
        f"{RESUMED}test_every_cut_of_the_index_changes_nothing",
        f"{RESUMED}test_a_damaged_frame_of_the_index_costs_a_scan_and_no_more",
        f"{RESUMED}test_a_resume_finds_what_is_done_failed_and_pending",
    ),
    "observations and the exact join": (
        *STATEMENTS["74-75"],
        *STATEMENTS["96"],
        f"{OBSERVED}/test_gaps.py::test_every_code_has_one_name",
        "agents/test_agent_evidence.py::test_observations_of_a_sub_agent_become_turns_of_their_own",
    ),
    "trajectory, figures, health": (*STATEMENTS["102"], *STATEMENTS["103-105"], *STATEMENTS["170"]),
    "rejoin and verify": (
        *STATEMENTS["166"],
        f"{REJOIN}test_joining_again_twice_is_joining_again_once",
        f"{REJOIN}test_facts_and_index_follow_the_new_records",
        f"{ROLLOUTS}/rejoining/test_rejoin_killed.py::test_a_power_cut_at_any_step_leaves_old_or_new",
        f"{CALLS}/verification/test_directory.py::test_each_damage_is_named_by_its_line",
        f"{CALLS}/verification/test_directory.py::test_a_cut_at_every_byte_is_found_or_harmless",
        f"{CALLS}/verification/test_directory.py::test_markers_are_named_with_and_without_their_file",
        f"{CALLS}/verification/test_directory.py::test_ids_that_repeat_are_found_among_many",
        "cli/test_captures_verify.py::test_errors_end_with_3_and_are_shown_with_their_remedy",
    ),
    "metrics": (
        f"{METRICS}test_every_end_of_a_rollout_is_counted_and_only_measured_rewards_are_averaged",
        f"{METRICS}test_agents_and_groups_of_tasks_have_figures_of_their_own",
        f"{ROLLOUTS}/metrics/test_intervals.py::test_it_agrees_with_all_pairs",
        f"{ROLLOUTS}/metrics/test_intervals.py::test_the_interval_covers_the_truth_as_often_as_it_says",
        "cli/test_report.py::test_an_aggregation_takes_the_place_of_what_one_collector_counted",
        *STATEMENTS["112-113"],
    ),
    "compact evidence": (*STATEMENTS["163"], f"{COMPACT}test_gives_back_histories_that_grow_shrink_and_branch"),
    "killed and taken up again": (
        *STATEMENTS["168"],
        "testing/test_run_judge.py::test_each_fault_is_found",
    ),
    "every fourth fails": (EVERY_FOURTH,),
    "speed": (
        "benchmarks/test_join.py::test_every_figure_comes_from_probes_that_run",
        "benchmarks/test_run_log.py::test_every_figure_comes_from_a_probe_and_what_a_resume_reads_is_counted",
    ),
    "files of the peer": (
        f"{PEER}test_outputs_read_back_record_by_record",
        f"{PEER}test_captures_read_back_as_the_peer_reported_them",
        f"{PEER}test_a_run_of_the_peer_is_taken_up_where_the_peer_takes_it_up",
        f"{PEER}test_what_the_peer_finished_stays_finished",
        f"{PEER}test_joining_a_run_of_the_peer_again_changes_nothing",
    ),
}

BAD_INPUT: dict[str, Sequence[str]] = {
    "damaged lines": (
        *STATEMENTS["51"],
        f"{PEER}test_damage_in_a_run_of_the_peer_is_named_and_nothing_changes",
        f"{REPORTS}test_a_damaged_line_has_every_record_of_the_run_checked_anew",
        f"{REJOIN}test_a_damaged_line_is_named_and_nothing_changes",
    ),
    "duplicated lines": (
        *STATEMENTS["52"],
        f"{REPORT}test_every_copy_of_an_identity_has_the_finding_and_a_task_counts_it_once",
    ),
    "a truncated file of rows": (
        f"{EXPANDED}test_a_cut_off_file_is_refused_at_every_byte_of_its_last_row",
        f"{ROLLOUTS}/rows/test_materialised_rows.py::test_a_file_of_another_size_is_refused_at_once",
    ),
    "a damaged row": (
        f"{ROLLOUTS}/test_resumed_collection.py::test_a_damaged_row_is_a_recorded_failure_and_the_run_goes_on",
        f"{SESSION}test_a_row_that_is_damaged_on_disk_costs_itself_alone",
    ),
    "two writers on one run": (*STATEMENTS["58"], f"{RESUMED}test_a_run_that_somebody_writes_is_not_resumed"),
    "rows with clashing ids": (
        *STATEMENTS["23"],
        f"{ROLLOUTS}/rows/test_row_keys.py::test_two_rows_with_one_key_and_damaged_rows_are_named",
        f"{RESUMED}test_two_rows_with_one_key_are_refused_when_a_record_needs_one",
    ),
    "replies that are no object": (
        f"{AGENTS}test_http_agent_failures",
        f"{JOIN}test_where_a_record_belongs",
        f"{JOIN}test_a_reply_that_nests_too_deeply_is_a_failure_that_keeps_its_calls",
    ),
    "invalid observations": (
        f"{BUILD}test_observations_that_are_none_stay_as_they_came",
        f"{BUILD}test_nothing_in_a_reply_costs_its_record",
    ),
    "a producer that contradicts the capture": (
        f"{BUILD}test_a_producers_call_that_contradicts_the_capture_gives_way_and_is_named",
    ),
    "negative latencies": (
        f"{BUILD}test_calls_that_make_no_trajectory_keep_their_payloads_and_a_gap_says_so",
        f"{CALLS}/verification/test_directory.py::test_each_damage_is_named_by_its_line",
    ),
    "duplicate call ids": (
        PIPELINE,
        f"{BUILD}test_calls_that_make_no_trajectory_keep_their_payloads_and_a_gap_says_so",
        f"{CALLS}/verification/test_directory.py::test_ids_that_repeat_are_found_among_many",
    ),
    "collectors and servers that disagree": STATEMENTS["60"],
}
MAP = {
    **{f"D{numbers}": tests for numbers, tests in STATEMENTS.items()},
    **{f"departed D{numbers}": tests for numbers, (_, tests) in DEPARTED.items()},
    **PARTS,
    **BAD_INPUT,
}


def numbered(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split():
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def test_every_statement_has_its_test() -> None:
    held = [number for numbers in STATEMENTS for number in numbered(numbers)]
    assert sorted(held) == numbered(NUMBERS)


def test_every_departure_is_of_a_statement_and_says_why() -> None:
    for numbers, (why, _) in DEPARTED.items():
        assert set(numbered(numbers)) <= set(numbered(NUMBERS))
        assert len(why.split()) > 5, f"D{numbers}"


@pytest.mark.parametrize("held", MAP)
def test_what_the_map_names_is_there(held: str) -> None:
    assert MAP[held]
    for test in MAP[held]:
        file, _, name = test.partition("::")
        assert name in defined_tests(TESTS / file), test


VECTORS = sorted(path.stem for path in (TESTS / "vectors").glob("D_*.json"))


def test_every_vector_file_has_its_adapter(pytestconfig: pytest.Config) -> None:
    directory = pytestconfig.getoption("--vectors")
    assert sorted(path.stem for path in directory.glob("D_*.json")) == VECTORS
    assert len(VECTORS) == 16
    assert not {name for name in VECTORS if not (TESTS / "vectors" / f"test_{name}.py").is_file()}


@pytest.mark.parametrize("name", VECTORS)
def test_no_case_is_left_out_and_every_departure_is_justified(name: str, pytestconfig: pytest.Config) -> None:
    adapter = (TESTS / "vectors" / f"test_{name}.py").read_text("utf-8")
    document = json.loads((pytestconfig.getoption("--vectors") / f"{name}.json").read_text("utf-8"))
    kinds = {case["kind"] for case in document["cases"] if "kind" in case}
    if ".kinds = " in adapter:
        assert {kind for kind in kinds if f'"{kind}"' not in adapter} == set(), "nobody reads these"
    assert not re.search(r"pytest\.(skip|xfail)|mark\.(skip|xfail)", adapter)
    for rule, departure in tomllib.loads((TESTS / "vectors/departures.toml").read_text("utf-8")).items():
        if departure["file"] == f"{name}.json":
            assert re.match(r"D[0-9]+(, D[0-9]+)*: ", departure["why"]), f"{rule} does not say what justifies it"
            assert "departures" in adapter, f"nobody reads {rule}"
