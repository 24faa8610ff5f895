"""The map of collection on clusters: which tests hold each promise, each figure, and each kind of bad input.

A name here that no file defines fails, and so does a promise without a test. Figures of speed and memory are held by
``benchmarks/scale.py``, which ends with an error where one is missed; what is tested here is that it asks for them.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gym_ray.testing.defined_tests import defined_tests

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
CALLS, STORAGE, ROLLOUTS = "model_call_capture", "storage", "rollouts"
DOCUMENTS, PLANS, UPLOADS = (
    "submission/test_documents.py::",
    "submission/test_planning.py::",
    "submission/test_upload.py::",
)
DRIVER, JOB_FILES = "submission/test_driver.py::", "submission/test_job_files.py::"
SUBMIT, STANDING, CLUSTER = (
    "cli/jobs/test_submit.py::",
    "cli/jobs/test_standing.py::",
    "cli/jobs/test_cluster.py::",
)
JOBS, SERVER = "actors/test_jobs.py::", "actors/test_job_server.py::"
LOOP, FEED = "actors/test_rollout_collector.py::", "actors/test_training_feed.py::"
ROOM = "actors/test_rollout_collector_room.py::"
TRAINING, TABLES = f"{ROLLOUTS}/training", "token_id_capture/test_token_table.py::"
STEP, BOARD = f"{TRAINING}/test_step.py::", f"{TRAINING}/test_step_board.py::"
STEP_FILES, RESULTS = f"{TRAINING}/test_step_files.py::", f"{TRAINING}/test_results.py::"
OUTCOMES, VERSIONS = f"{TRAINING}/test_outcomes.py::", f"{TRAINING}/test_weight_versions.py::"
SEGMENTS, HOSTED = f"{CALLS}/segments", f"{CALLS}/hosted"
WRITING, READING = f"{SEGMENTS}/test_writing.py::", f"{SEGMENTS}/test_reading.py::"
KILLED_WRITER = f"{SEGMENTS}/test_killed_writer.py::"
PLACE = f"{STORAGE}/shared_place"
EXAMINED, STORE_EXAMINED = f"{PLACE}/test_examining.py::", f"{PLACE}/test_store_hand.py::"
CONTROLLED, DESK = f"{ROLLOUTS}/test_controlled_collection.py::", f"{ROLLOUTS}/control/test_desk.py::"
LEDGER, PORT = f"{ROLLOUTS}/attempts/test_ledger.py::", "actors/test_ray_port.py::"
COMMANDS, METRICS = "cli/test_status_and_ctl.py::", "actors/test_run_metrics.py::"
DEPLOYED, DASHBOARD = "examples/test_deployments.py::", "actors/test_dashboard.py::"
FAULTS = "actors/test_cluster_faults.py::"
CHANGING_NODES = "actors/test_membership.py::test_nodes_change_under_a_run"
ROUNDS = f"{FAULTS}test_actors_and_nodes_die_in_a_run_that_loses_nothing"
NEW_CLUSTER = f"{FAULTS}test_a_run_whose_driver_and_cluster_die_is_taken_up_on_a_new_cluster"
LETHAL = (
    "actors/test_lethal_agents.py::"
    "test_what_a_dead_agent_still_asks_is_in_no_other_attempt_and_a_leak_ends_its_own_rollout_alone"
)
BAD_STORE = f"{FAULTS}test_a_store_that_loses_answers_loses_no_call_of_a_run_on_two_nodes"
WHOLE_LOOP = f"{LOOP}test_a_loop_takes_its_tokens_out_of_the_store_step_after_step"
STRAGGLER = f"{LOOP}test_a_straggler_wedges_neither_its_group_nor_the_next_step"
DECIDED = f"{LOOP}test_cancel_pause_and_drain_decide_every_rollout_once"
LOST_PARTS = f"{LOOP}test_killed_joiners_and_hosts_lose_no_result"
SUBMITTED = f"{JOBS}test_benchmarks_are_submitted_followed_and_stopped"
TOLD_APART = f"{JOBS}test_failures_stops_and_silence_are_told_apart"
OUTLIVES = f"{JOBS}test_an_evaluation_outlives_its_cluster"
HOSTED_KILLED = (
    "actors/test_capture_writer.py::test_a_killed_writer_loses_nothing_that_was_acknowledged_and_writes_nothing_twice"
)
UNUSABLE = f"{SERVER}test_a_cluster_that_cannot_be_used_is_named_with_a_remedy"
FIGURES = "benchmarks/test_scale.py::test_every_figure_comes_from_probes_that_run"

JOBS_OF_EVALUATIONS: dict[str, Sequence[str]] = {
    "each benchmark is a job with its directory": (
        SUBMITTED,
        f"{JOB_FILES}test_the_layout_is_whole_and_secrets_are_their_owners",
        f"{JOB_FILES}test_a_job_never_takes_over_a_directory",
        f"{SUBMIT}test_the_record_knows_an_id_before_the_cluster_does",
        f"{JOBS}test_lost_replies_make_no_second_job",
    ),
    "capture is on by default, in the job's directory": (
        "vectors/test_D_cli.py::test_submit_run",
        f"{PLANS}test_captures_are_on_by_default_moved_or_off",
        SUBMITTED,
    ),
    "a setting opts out, another one moves it to an absolute path or a URL": (
        f"{PLANS}test_captures_are_on_by_default_moved_or_off",
        f"{PLANS}test_captures_cannot_be_moved_just_anywhere",
        "vectors/test_D_submit.py::test_submit",
        OUTLIVES,
    ),
    "eval status": (
        TOLD_APART,
        f"{STANDING}test_nothing_looks_better_than_it_is",
        f"{STANDING}test_a_word_that_comes_late_counts",
        f"{SUBMIT}test_without_a_cluster_files_tell_what_they_can",
    ),
    "eval logs follows files of our own": (
        SUBMITTED,
        f"{STANDING}test_a_log_is_read_as_it_grows",
        f"{STANDING}test_a_line_that_never_ends_is_given_in_pieces",
        "submission/test_driver_log.py::test_lines_are_written_when_they_end",
    ),
    "eval stop stores what has ended": (
        SUBMITTED,
        f"{DRIVER}test_a_stop_request_lets_the_program_store_what_it_has",
        f"{DRIVER}test_sigterm_is_told_at_once_and_passed_on",
        f"{DRIVER}test_a_program_that_will_not_stop_is_killed_and_stopped_is_on_disk_before",
        "submission/test_stopping.py::test_a_request_is_patient",
    ),
    "exit codes tell the truth": (
        "submission/test_job_states.py::test_the_worst_benchmark_decides",
        "submission/test_endings.py::test_no_end_looks_better_than_it_is",
        f"{DRIVER}test_every_end_of_the_program_is_told",
        f"{DRIVER}test_an_evaluation_is_judged_by_what_it_left",
        f"{DRIVER}test_a_status_that_cannot_be_written_is_no_success",
        TOLD_APART,
    ),
    "a look before the upload says what it holds and refuses surprises": (
        f"{UPLOADS}test_only_what_a_job_needs_is_uploaded",
        f"{UPLOADS}test_what_looks_like_credentials_is_refused",
        f"{UPLOADS}test_an_upload_that_is_too_large_names_the_largest_folders",
        f"{UPLOADS}test_inputs_that_would_be_missing_are_named_with_the_reason",
        f"{UPLOADS}test_exactly_what_was_shown_is_copied",
        f"{UPLOADS}test_what_changes_the_interpreter_is_told",
        f"{SUBMIT}test_an_upload_is_shown_and_surprises_are_refused",
    ),
    "the package may come from a wheel, an image or the working directory": (
        "packaging/test_imports.py::test_a_job_is_planned_and_driven_from_a_wheel",
        "packaging/test_imports.py::test_all_four_ways_to_ship_it",
        f"{JOBS}test_an_uploaded_checkout_wins_over_the_installed_package",
        "cli/jobs/test_entrypoint.py::test_the_interpreter_of_the_command_is_taken_where_it_fits",
        "cli/jobs/test_entrypoint.py::test_another_is_looked_for_where_it_is_not",
    ),
    "a plain Ray job works too": (SUBMITTED,),
    "tokens travel by file and never by log": (
        f"{JOBS}test_a_token_that_is_not_taken_is_never_shown",
        f"{CLUSTER}test_credentials_in_an_address_are_refused_and_not_repeated",
        "actors/test_cluster_yaml.py::test_every_start_keeps_token_auth_on_and_reports_off",
        f"{DEPLOYED}test_every_node_has_the_volume_at_one_path_and_the_token_by_file",
        "cli/test_head.py::test_the_token_is_its_owners_while_the_run_lives",
    ),
    "no log and no record shows a secret": (
        SUBMITTED,
        f"{SUBMIT}test_a_dry_run_shows_everything_but_secrets_and_writes_nothing",
        f"{JOB_FILES}test_the_layout_is_whole_and_secrets_are_their_owners",
        f"{DRIVER}test_output_goes_to_the_log_and_on_without_secrets",
        "submission/test_driver_log.py::test_no_cut_lets_a_secret_through",
    ),
}

TRAINING_LOOPS: dict[str, Sequence[str]] = {
    "it connects in the caller's Ray, and neither begins nor ends it": (
        WHOLE_LOOP,
        f"{ROOM}test_a_closed_collector_says_so_and_leaves_the_trainers_ray_alone",
    ),
    "collect is synchronous and asynchronous": (WHOLE_LOOP, DECIDED),
    "records and token rows arrive as they finish": (
        LOST_PARTS,
        f"{STEP}test_five_thousand_rows_are_each_delivered_once",
        f"{BOARD}test_a_group_is_delivered_whole_and_in_its_order",
    ),
    "what is in flight and what waits in bytes hold starts back": (
        f"{STEP}test_what_waits_to_be_taken_keeps_more_from_starting",
        f"{BOARD}test_bytes_hold_starts_back_only_while_somebody_can_take_some",
        f"{ROOM}test_no_more_run_at_once_than_may",
        f"{ROOM}test_a_slow_consumer_keeps_more_from_starting_and_may_leave",
    ),
    "steps that run at once mix nothing": (f"{ROOM}test_steps_run_at_once_and_mix_nothing",),
    "weight versions are told to every server": (
        f"{VERSIONS}test_every_server_hears_a_version_and_each_that_does_not_is_named",
        f"{VERSIONS}test_a_server_that_is_away_for_a_moment_hears_the_version_when_it_is_back",
        WHOLE_LOOP,
    ),
    "rows that are too old are masked": (
        f"{RESULTS}test_old_rows_are_masked_and_an_empty_batch_is_an_error",
        f"{RESULTS}test_what_began_in_an_earlier_epoch_is_masked_whatever_its_version_says",
        f"{ROOM}test_rows_of_an_earlier_epoch_are_masked",
    ),
    "pause, drain and cancel": (
        DECIDED,
        f"{CONTROLLED}test_a_pause_starts_nothing_new_and_a_resume_runs_the_rest_once",
        f"{CONTROLLED}test_a_drain_lets_what_runs_end_and_leaves_the_rest",
        f"{CONTROLLED}test_one_attempt_is_cancelled_durably_and_the_others_go_on",
    ),
    "each rollout has its deadline": (STRAGGLER,),
    "exactly one result for each requested rollout": (
        f"{BOARD}test_the_first_decision_counts_and_nothing_is_delivered_twice",
        f"{STEP}test_five_thousand_rows_are_each_delivered_once",
        f"{STEP}test_an_answer_that_was_lost_is_given_again_until_another_one_is_asked_for",
        DECIDED,
        LOST_PARTS,
    ),
    "a lost rollout is a masked row with a reason and no reward, never None": (
        f"{OUTCOMES}test_whatever_speaks_against_an_attempt_takes_its_reward_and_is_its_reason",
        f"{OUTCOMES}test_an_outcome_that_has_a_reason_gives_no_reward_whatever_it_was_scored_with",
        f"{RESULTS}test_a_lost_rollout_is_a_masked_row_and_a_reply_that_says_why",
        f"{RESULTS}test_rows_that_nobody_can_read_mask_the_result",
        f"{TABLES}test_what_gave_no_tokens_is_an_empty_masked_row",
        f"{FEED}test_a_host_that_is_gone_loses_what_is_not_stored",
        f"{FEED}test_groups_of_a_lost_host_are_whole",
        STRAGGLER,
    ),
    "token rows are read-only views of the object store": (
        WHOLE_LOOP,
        f"{TABLES}test_the_arrays_are_views_of_the_tables_own_buffers_and_read_only",
        f"{TABLES}test_masking_more_keeps_the_buffers_of_tokens_and_takes_the_reward",
        "benchmarks/test_scale.py::test_bytes_outside_the_store_are_counted_and_verdicts_of_the_loop_are_not",
    ),
    "a table that was lost is made again of the durable record": (
        f"{RESULTS}test_a_table_that_was_lost_is_made_of_the_record",
        f"{ROLLOUTS}/tokens/test_token_tables.py::test_a_build_and_its_record_give_the_same_table",
        LOST_PARTS,
    ),
}

MANY_NODES: dict[str, Sequence[str]] = {
    "servers, joiners and workers on each node": (
        CHANGING_NODES,
        "actors/test_two_nodes.py::test_two_nodes_share_one_capture_directory",
    ),
    "an agent uses the server of its node, the same one for a whole attempt": (
        "test_server_directory.py::test_a_replica_on_the_own_node_is_preferred",
        "agents/test_runner.py::test_an_attempt_keeps_to_the_servers_that_it_was_given",
        CHANGING_NODES,
    ),
    "captures on a shared mount": ("actors/test_two_nodes.py::test_two_nodes_share_one_capture_directory",),
    "captures on an object store: segments for each writer": (
        f"{WRITING}test_a_record_is_in_a_segment_when_its_answer_leaves",
        f"{WRITING}test_a_writer_is_registered_without_a_log_while_it_lives",
        f"{SEGMENTS}/test_layout.py::test_what_was_written_is_read",
        f"{SEGMENTS}/test_layout.py::test_every_flipped_bit_is_found",
        "examples/test_loops.py::test_two_nodes_capture_into_an_object_store",
    ),
    "readers merge, and nobody locks": (
        f"{READING}test_calls_of_living_writers_are_merged_in_the_order_they_began",
        f"{READING}test_a_record_that_was_published_twice_counts_once",
        f"{ROLLOUTS}/test_captures_anywhere.py::test_calls_of_two_servers_are_read_in_order",
        f"{ROLLOUTS}/test_captures_anywhere.py::test_a_run_is_collected_wherever_its_captures_are",
    ),
    "an attempt has no record of an earlier use of its id": (
        f"{READING}test_clearing_drops_what_was_there_and_nothing_after_it",
        f"{READING}test_what_a_silent_writer_writes_after_a_clear_is_left_out_and_said",
        f"{READING}test_records_older_than_the_attempt_are_not_its_own",
        f"{READING}test_what_was_withdrawn_may_still_come_and_is_dropped",
        f"{SEGMENTS}/test_reading_cleared.py::test_what_is_not_known_to_be_of_now_is_left_out",
        f"{SEGMENTS}/test_reading_cleared.py::test_a_damaged_note_is_an_error_and_never_no_note",
    ),
    "a writer for servers without the mount": (
        "actors/test_servers.py::test_servers_hand_their_records_to_one_hosted_writer",
        f"{HOSTED}/test_hosted.py::test_a_record_is_in_its_file_when_its_answer_leaves",
        f"{HOSTED}/test_hosted.py::test_a_batch_that_is_sent_again_is_written_once",
        f"{HOSTED}/test_stores.py::test_a_store_behind_a_channel_keeps_the_contract",
        HOSTED_KILLED,
    ),
    "nodes that join are used": (
        CHANGING_NODES,
        f"{CONTROLLED}test_more_workers_run_more_at_once_and_fewer_run_fewer",
        "test_server_directory.py::test_more_replicas_come_behind_those_that_are_there",
    ),
    "the doctor looks from every node and says which mode will be used": (
        "actors/test_doctor.py::test_two_nodes_examine_a_directory",
        f"{EXAMINED}test_a_good_place_is_used_by_files_and_is_left_as_it_was",
        f"{EXAMINED}test_a_hosted_writer_does_not_need_the_others_to_see_it",
        f"{STORE_EXAMINED}test_a_store_over_the_wire_is_used_by_segments",
        "cli/test_doctor.py::test_what_cannot_be_used_says_why_and_fails",
    ),
    "it finds a directory that differs": (
        f"{EXAMINED}test_another_directory_under_the_same_path_is_found_whoever_has_it",
        f"{EXAMINED}test_a_directory_that_one_node_lacks_is_found",
        f"{STORE_EXAMINED}test_another_store_is_found",
        "actors/test_doctor.py::test_two_nodes_examine_a_directory",
    ),
    "it finds locks that do not hold": (
        f"{EXAMINED}test_locks_that_reach_nobody_else_are_found",
        f"{EXAMINED}test_one_node_whose_locks_are_its_own_is_found",
    ),
    "it finds writes that are seen late": (
        f"{EXAMINED}test_what_is_seen_late_is_late_and_measured",
        f"{EXAMINED}test_what_is_never_seen_is_told_with_the_patience",
        f"{STORE_EXAMINED}test_stale_listings_are_found",
    ),
}

FAULTY: dict[str, Sequence[str]] = {
    "a node is lost": (
        CHANGING_NODES,
        ROUNDS,
        f"{LEDGER}test_a_lost_node_is_tried_again_as_new_attempts_up_to_the_budget",
    ),
    "an actor is lost": (
        ROUNDS,
        LOST_PARTS,
        HOSTED_KILLED,
        f"{PORT}test_a_worker_that_lost_its_process_is_given_nothing_until_the_next_one_answers",
        "actors/test_servers.py::test_a_killed_server_comes_back_on_its_port_and_goes_on_capturing",
    ),
    "the network stalls": (
        f"{FEED}test_a_host_that_is_cut_off_for_a_moment_is_asked_again",
        f"{PORT}test_a_joiner_that_hangs_is_ended_and_its_record_is_stored_once",
        f"{HOSTED}/test_hosted.py::test_a_file_that_hangs_is_said_in_time",
        f"{WRITING}test_a_store_that_hangs_releases_the_answer_and_marks",
        f"{EXAMINED}test_a_node_that_hangs_is_given_up",
    ),
    "storage is slow, fails, or loses its answers": (
        BAD_STORE,
        f"{WRITING}test_a_lost_reply_is_success",
        f"{WRITING}test_a_failing_store_marks_and_the_mark_is_kept_until_it_can_be_written",
        f"{KILLED_WRITER}test_kills_over_a_network_that_loses_answers",
    ),
    "storage shows names late": (
        f"{READING}test_late_listings_hide_no_acknowledged_call",
        f"{READING}test_a_registration_that_a_listing_leaves_out_later_is_still_asked",
        f"{WRITING}test_late_listings_lose_no_call_of_a_predecessor",
        "testing/test_lagging_store.py::test_the_newest_names_are_not_listed_but_are_there",
    ),
    "an engine starts again": (
        "actors/test_staging.py::test_a_killed_worker_of_the_embedded_engine_continues_its_rollouts_from_storage",
        f"{VERSIONS}test_a_server_that_hangs_up_is_asked_again",
        f"{ROOM}test_a_model_server_that_is_killed_knows_the_weights_when_it_is_back",
        "actors/test_engine_failures.py::test_every_kind_of_failing_engine_is_a_recorded_failure_with_its_call",
    ),
    "the driver dies": (
        NEW_CLUSTER,
        f"{DRIVER}test_a_killed_driver_leaves_no_program_and_no_success",
        "cli/test_interrupt.py::test_a_killed_driver_leaves_whole_files_and_a_free_output",
    ),
    "the head is lost, and a run goes on in a new cluster": (NEW_CLUSTER, OUTLIVES),
    "what was acknowledged is never lost": (
        ROUNDS,
        f"{KILLED_WRITER}test_what_was_acknowledged_survives_kill_9_and_the_rest_is_marked",
        f"{KILLED_WRITER}test_many_kills",
        f"{WRITING}test_the_next_server_marks_exactly_what_its_predecessor_lost",
        f"{HOSTED}/test_hosted.py::test_the_next_server_marks_exactly_what_its_predecessor_lost",
        f"{CALLS}/test_crash.py::test_many_kills",
    ),
    "what nobody can know is a gap": (
        f"{READING}test_a_silent_writer_is_a_gap_until_it_cannot_matter",
        f"{READING}test_a_writer_that_a_clear_did_not_see_is_doubtful_if_it_was_there_before",
        f"{CALLS}/test_captures.py::test_a_writer_that_stays_silent_is_doubted_by_the_attempts_that_may_have_used_it",
        f"{ROLLOUTS}/test_captures_anywhere.py::test_a_server_that_is_cut_off_is_a_gap_and_its_records_are_read",
    ),
    "what was running becomes a new attempt": (ROUNDS, CHANGING_NODES, NEW_CLUSTER),
    "what cannot be tried again is a recorded failure": (
        CHANGING_NODES,
        LETHAL,
        f"{LEDGER}test_a_row_that_kills_two_workers_is_quarantined",
        "actors/test_killed_environment.py::test_rollouts_of_a_killed_environment_fail_with_their_captures",
    ),
}

DEPLOYMENTS: dict[str, Sequence[str]] = {
    "cluster.yaml": (
        "actors/test_cluster_yaml.py::test_cluster_yaml_is_valid_for_ray",
        "actors/test_cluster_yaml.py::test_the_check_can_fail",
    ),
    "a RayJob with a shared volume": (
        f"{DEPLOYED}test_what_kubernetes_knows_fits_its_schema",
        f"{DEPLOYED}test_pods_fit_the_schema",
        f"{DEPLOYED}test_the_check_can_fail",
        f"{DEPLOYED}test_the_job_has_the_fields_of_kuberay",
        f"{DEPLOYED}test_the_entrypoint_is_a_command_with_settings_that_are_right",
    ),
    "two nodes over NFS": (f"{DEPLOYED}test_the_walk_names_files_and_options_that_exist",),
    "what was not run is called unverified": (f"{DEPLOYED}test_each_says_what_was_not_run",),
}

OPERATIONS: dict[str, Sequence[str]] = {
    "metrics on Ray's endpoint": (
        f"{METRICS}test_a_run_is_published_without_ids_and_each_event_once",
        "actors/test_logs_and_metrics.py::test_a_line_of_an_attempt_names_it_and_the_run_is_counted",
        "actors/test_logs_and_metrics.py::test_the_steps_of_a_loop_are_counted_together",
    ),
    "a dashboard": (
        f"{DASHBOARD}test_every_query_names_metrics_and_labels_that_are_published",
        f"{DASHBOARD}test_everything_that_is_published_is_shown_or_left_out_on_purpose",
        f"{DASHBOARD}test_the_dashboard_can_be_imported_anywhere",
    ),
    "log lines name rollout and attempt": (
        "test_log_context.py::test_lines_of_attempts_side_by_side_name_their_own",
        "actors/test_logs_and_metrics.py::test_a_line_of_an_attempt_names_it_and_the_run_is_counted",
    ),
    "gym-ray status": (
        f"{DESK}test_the_status_says_what_runs_where_what_waits_and_what_failed",
        f"{COMMANDS}test_a_run_is_watched_and_steered_from_the_command_line",
        f"{COMMANDS}test_each_benchmark_of_a_job_that_is_under_way_is_steered",
        f"{COMMANDS}test_a_run_that_never_said_where_it_stands_is_told_by_its_files",
    ),
    "gym-ray ctl pause, resume, cancel": (
        f"{DESK}test_what_is_asked_is_done_and_answered",
        f"{DESK}test_a_request_that_was_taken_before_a_crash_is_answered_and_never_done_again",
        f"{DESK}test_nobody_answers_where_the_collector_is_gone_and_the_request_is_withdrawn",
        f"{CONTROLLED}test_a_pause_starts_nothing_new_and_a_resume_runs_the_rest_once",
        f"{CONTROLLED}test_one_attempt_is_cancelled_durably_and_the_others_go_on",
    ),
    "gym-ray ctl requeue": (
        f"{CONTROLLED}test_failed_rows_are_asked_for_again_as_new_attempts_that_are_durable_first",
        f"{CONTROLLED}test_rows_are_asked_for_again_after_the_last_attempt_has_ended",
        f"{LEDGER}test_a_row_that_failed_for_good_gets_another_attempt_when_somebody_asks_for_it",
        f"{LEDGER}test_no_other_row_gets_one_and_the_reason_is_said",
        f"{DESK}test_what_is_asked_is_done_and_answered",
    ),
}

EXAMPLES: dict[str, Sequence[str]] = {
    "a training loop": (
        "examples/test_loops.py::test_the_loop_prints_a_line_for_each_step",
        "examples/test_loops.py::test_advantages_are_relative_to_the_group",
        "examples/test_loops.py::test_lost_rollouts_are_left_out_and_a_group_of_one_gives_nothing",
    ),
    "two benchmarks as jobs": (
        "examples/test_jobs.py::test_it_plans_two_runs_with_settings_that_are_right",
        "examples/test_jobs.py::test_two_benchmarks_run_as_jobs",
    ),
    "two nodes with captures on S3": ("examples/test_loops.py::test_two_nodes_capture_into_an_object_store",),
}

TRIED: dict[str, Sequence[str]] = {
    "vectors": ("vectors/test_D_submit.py::test_submit", "vectors/test_D_cli.py::test_submit_run"),
    "submit, follow, stop, fail": (SUBMITTED, TOLD_APART),
    "opt out and move": (OUTLIVES, f"{PLANS}test_captures_are_on_by_default_moved_or_off"),
    "two jobs at once whose indices overlap": (
        SUBMITTED,
        OUTLIVES,
        f"{PLANS}test_benchmarks_do_not_share_a_capture_directory",
        f"{ROLLOUTS}/test_capture_owner.py::test_overlapping_live_runs_refuse_each_other_and_disjoint_ones_do_not",
    ),
    "rounds in which an actor or a node is killed": (ROUNDS, "testing/test_run_judge.py::test_each_fault_is_found"),
    "a loop that is killed and started again between batches": (
        "actors/test_rollout_collector_killed.py::test_a_killed_trainer_goes_on_with_the_next_step",
        f"{STEP_FILES}test_numbers_go_on_from_what_is_stored_and_half_finished_steps_are_closed",
        f"{VERSIONS}test_a_version_that_goes_back_is_refused_also_after_a_restart",
    ),
    "a straggler that sleeps for ever": (STRAGGLER, f"{STEP}test_a_straggler_holds_its_place_and_nothing_else"),
    "an engine that hangs": (
        "actors/test_engine_failures.py::test_every_kind_of_failing_engine_is_a_recorded_failure_with_its_call",
    ),
    "an agent that leaks memory until it is killed": (LETHAL,),
}

SPEED: dict[str, Sequence[str]] = {
    "two_workers_over_bare": (FIGURES,),
    "driver_cpu_over_noop": (
        FIGURES,
        "benchmarks/test_scale.py::test_processor_time_is_told_apart_by_what_processes_do",
    ),
    "driver_rss_growth_mib": (
        FIGURES,
        f"{ROLLOUTS}/test_collection.py::test_memory_does_not_grow_with_finished_rollouts",
    ),
    "handoff_copied_mib": (
        FIGURES,
        "benchmarks/test_scale.py::test_bytes_outside_the_store_are_counted_and_verdicts_of_the_loop_are_not",
        WHOLE_LOOP,
    ),
    "puts_per_call": (FIGURES, f"{WRITING}test_many_calls_share_few_puts"),
}
"""Figures of ``benchmarks/scale.py``, and the tests that hold what is measured without measuring it."""

BAD_INPUT: dict[str, Sequence[str]] = {
    "no cluster": (
        "actors/test_cluster.py::test_an_address_at_which_nothing_listens_is_named_at_once",
        f"{JOBS}test_addresses_at_which_nobody_answers_as_a_job_server_should",
        f"{SUBMIT}test_an_upload_is_shown_and_surprises_are_refused",
        f"{SUBMIT}test_without_a_cluster_files_tell_what_they_can",
    ),
    "a wrong address": (
        "actors/test_cluster.py::test_what_is_no_address_is_named",
        f"{CLUSTER}test_a_wrong_address_is_refused_before_anybody_is_asked",
        f"{JOBS}test_addresses_at_which_nobody_answers_as_a_job_server_should",
        UNUSABLE,
    ),
    "a missing token": (
        "actors/test_cluster.py::test_a_missing_token_is_named_and_what_to_do",
        UNUSABLE,
        f"{CLUSTER}test_a_token_file_that_cannot_be_read_is_named",
        f"{JOBS}test_a_token_that_is_not_taken_is_never_shown",
    ),
    "other versions of Ray or Python": (
        UNUSABLE,
        f"{SERVER}test_an_older_cluster_that_tells_nothing_about_itself_is_used",
    ),
    "a name that cannot be a folder": (
        f"{DOCUMENTS}test_a_mistake_names_file_key_and_remedy",
        f"{SUBMIT}test_what_cannot_be_submitted_is_refused_before_anything_is_written",
    ),
    "a capture directory that nodes see differently": (
        "actors/test_doctor.py::test_two_nodes_examine_a_directory",
        f"{EXAMINED}test_another_directory_under_the_same_path_is_found_whoever_has_it",
    ),
    "a job directory that the cluster does not see": (
        f"{DRIVER}test_a_directory_that_is_not_there_or_another_is_named",
        "submission/test_landing.py::test_the_directory_of_another_job_or_benchmark_is_refused",
        "submission/test_landing.py::test_storage_that_shows_other_bytes_than_were_written_is_refused",
        f"{STANDING}test_a_directory_that_is_not_shared_is_told_in_bounded_time",
    ),
    "a weight version that goes back": (
        f"{VERSIONS}test_a_version_that_goes_back_is_refused_also_after_a_restart",
        f"{VERSIONS}test_a_version_is_a_whole_number",
        WHOLE_LOOP,
    ),
    "rows that are none": (
        f"{STEP_FILES}test_what_is_no_row_is_named",
        f"{STEP}test_a_row_that_cannot_run_is_named_before_any_runs",
        f"{ROOM}test_what_cannot_run_is_named_before_anything_runs",
    ),
    "two collectors of one directory": (f"{STEP_FILES}test_one_collector_at_a_time",),
}

MAP = {
    f"{part}: {promise}": tests
    for part, promises in {
        "jobs": JOBS_OF_EVALUATIONS,
        "loops": TRAINING_LOOPS,
        "nodes": MANY_NODES,
        "faults": FAULTY,
        "deployments": DEPLOYMENTS,
        "operations": OPERATIONS,
        "examples": EXAMPLES,
        "tried": TRIED,
        "speed": SPEED,
        "bad input": BAD_INPUT,
    }.items()
    for promise, tests in promises.items()
}


@pytest.mark.parametrize("held", MAP)
def test_what_the_map_names_is_there(held: str) -> None:
    assert MAP[held]
    for test in MAP[held]:
        file, _, name = test.partition("::")
        assert name in defined_tests(TESTS / file), test


@pytest.fixture
def scale(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark, which imports what stands beside it as a script does."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("scale")


def test_the_benchmark_asks_for_every_figure(scale: Any) -> None:
    least, most = scale.AT_LEAST, scale.AT_MOST
    wanted = {
        "two_workers_over_bare": (least, 0.85),
        "driver_cpu_over_noop": (most, 4.0),
        "driver_rss_growth_mib": (most, 8.0),
        "handoff_copied_mib": (most, 0.0),
        "puts_per_call": (most, 1 / 8),
    }
    assert wanted == scale.WANTED
    assert scale.WANTED.keys() == SPEED.keys()
    plan = scale.Plan()
    assert (plan.rollouts, plan.at_once) == (10_000, 1_024)
    assert (plan.batch, plan.tokens, plan.s3_at_once) == (64, 8_192, 64)


def test_what_limits_a_collection_is_named_and_a_projection_is_called_one() -> None:
    text = (ROOT / "benchmarks" / "SCALE.md").read_text("utf-8")
    for part in ("## Measured", "## The first bottleneck", "## Projection", "A projection, not a measurement"):
        assert part in text


def test_the_readme_says_how_to_submit_with_ray_alone() -> None:
    (line,) = [line for line in (ROOT / "README.md").read_text("utf-8").splitlines() if "ray job submit" in line]
    assert "-- gym-ray eval run" in line
