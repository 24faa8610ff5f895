"""The map of worker-owned staging: which tests hold each statement (C1 to C353), each part, and each kind of bad input.

A name here that no file defines fails, and so does a statement without a test.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

import gym_ray.token_id_capture.adapters as adapters
import gym_ray.token_id_capture.staging as staging
from gym_ray.testing.defined_tests import defined_tests

TESTS = Path(__file__).parents[1]
STAGING = "token_id_capture/staging"
PARQUET, LEDGER = f"{STAGING}/parquet", f"{STAGING}/ledger/test_ledgers.py::"
FILES, ADAPTERS = f"{STAGING}/ledger/test_file_ledger.py::", "token_id_capture/adapters"
SERVED, FAILED = "model_server/external/test_staged_calls.py::", "model_server/external/test_staging_failures.py::"
CORE, SINK, SOURCE = (
    f"{STAGING}/test_capture.py::",
    f"{PARQUET}/calls/test_staging_sink.py::",
    f"{PARQUET}/calls/test_staging_source.py::",
)
CONTROL, ROUTES = "model_server/test_control_client.py::", "model_server/test_control_routes.py::"
WORKER, RECEIPTS = "inference_worker/test_staging_engine.py::", f"{STAGING}/test_receipts.py::"
HERE, BENCHMARK = "acceptance/test_staged_tokens.py::", "benchmarks/test_staging.py::"
WHOLE = f"{HERE}test_a_rollout_with_pictures_is_safe_before_it_is_answered_and_proved_before_it_is_used"

STATEMENTS: dict[str, Sequence[str]] = {
    "1-4": (
        WHOLE,
        f"{FAILED}test_nothing_is_served_before_its_row_is_durable",
        f"{FAILED}test_an_answer_that_cannot_be_converted_has_no_row",
        f"{SERVED}test_evaluation_records_share_the_id_and_hold_nothing_internal",
        f"{FILES}test_lines_have_no_tokens_and_sorted_keys",
    ),
    "10-18": (
        f"{STAGING}/test_constants.py::test_versions_domains_and_fields_are_the_wire_s",
        f"{STAGING}/test_constants.py::test_reasons_are_the_wire_s",
        f"{STAGING}/test_imports.py::test_the_package_loads_nothing_heavy",
        "vectors/test_C_records.py::test_staging_key",
        "vectors/test_C_ledger.py::test_reasons",
    ),
    "20-24 30-33 40-46 50-52 55 60-63 66-68 70-72 75-77 79": (
        "vectors/test_C_records.py::test_record",
        "vectors/test_C_records.py::test_a_snapshot_knows_its_key",
        f"{STAGING}/test_records.py::test_columns_are_lists_in_json_and_in_a_dump",
        f"{STAGING}/test_records.py::test_a_contradiction_is_named",
        f"{STAGING}/test_records.py::test_an_admission_that_grants_nothing_is_named",
        f"{STAGING}/test_ledger_records.py::test_a_receipt_is_in_one_of_four_states",
        f"{STAGING}/test_ledger_records.py::test_a_root_row_says_that_it_is_one",
    ),
    "80-89": (
        "vectors/test_C_digests.py::test_prefix",
        "vectors/test_C_digests.py::test_chain",
        "vectors/test_C_digests.py::test_staging",
        f"{STAGING}/test_digests.py::test_a_digest_has_the_bytes_of_the_wire",
        f"{STAGING}/test_digests.py::test_floats_are_rounded_half_to_even",
        f"{CORE}test_log_probs_of_a_list_stay_as_they_came_and_those_of_an_array_become_float32",
        f"{SINK}test_a_mask_with_a_signed_zero_is_refused",
    ),
    "90-93": (
        "vectors/test_C_extras.py::test_extras",
        f"{STAGING}/test_extras_digest.py::test_what_is_refused_is_named",
    ),
    "94": ("vectors/test_C_lifecycle.py::test_complete", f"{HERE}test_media_change_no_digest"),
    "95-96": ("vectors/test_C_delta.py::test_lists", "vectors/test_C_delta.py::test_arrays"),
    "97-100": (
        "vectors/test_C_lifecycle.py::test_complete",
        f"{CORE}test_a_text_only_sink_stages_text_and_fails_media_once",
        f"{CORE}test_the_sink_gets_the_very_mapping_that_was_given",
        f"{CORE}test_the_older_extension_for_media_is_refused_by_name",
        f"{SINK}test_a_record_and_all_its_media_are_one_file",
        f"{SINK}test_attachments_that_cannot_be_kept_are_refused_and_nothing_is_written",
    ),
    "101-105": (
        "vectors/test_C_lifecycle.py::test_begin",
        f"{STAGING}/test_active_call.py::test_a_prefix_that_cannot_be_is_the_callers_mistake",
        f"{CORE}test_the_weight_version_is_asked_for_once_at_admission",
    ),
    "106-117": (
        "vectors/test_C_lifecycle.py::test_complete",
        "vectors/test_C_lifecycle.py::test_scenario",
        f"{STAGING}/test_async_capture.py::test_sixteen_tasks_that_race_have_one_winner",
        f"{CORE}test_a_prompt_that_departs_from_its_prefix_is_not_staged",
        f"{CORE}test_a_sink_that_does_not_say_yes_makes_a_failed_capture",
        f"{CORE}test_an_adapter_that_raises_uses_the_call_up",
        f"{CORE}test_what_ends_a_process_is_not_held_up",
    ),
    "118": ("vectors/test_C_lifecycle.py::test_install",),
    "120-124": (
        "testing/test_staging_conformance.py::test_a_sink_that_breaks_a_promise_is_found",
        f"{PARQUET}/calls/test_staging_crash.py::test_a_power_cut_at_any_step_loses_nothing_that_was_acknowledged",
        f"{SINK}test_sixty_four_threads_share_segments",
        f"{SINK}test_other_content_under_the_same_ids_is_refused",
        f"{SINK}test_a_full_disk_fails_its_callers_and_leaves_no_file",
    ),
    "125-128": (
        "testing/test_staging_conformance.py::test_a_source_that_breaks_a_promise_is_found",
        f"{SOURCE}test_calls_come_back_in_the_order_asked",
        f"{SOURCE}test_keys_that_lead_nowhere",
        f"{SOURCE}test_neither_extras_nor_media_move_when_tokens_are_fetched",
        f"{SOURCE}test_a_prefix_must_be_a_chain_from_its_root_on",
        f"{CORE}test_an_adapter_of_a_framework_needs_the_protocol_alone",
    ),
    "130-139": (
        "vectors/test_C_adapters.py::test_extraction",
        "vectors/test_C_adapters.py::test_prefix",
        f"{ADAPTERS}/test_vllm_capture.py::test_a_stock_answer_is_read_as_the_engine_counts_it",
        f"{ADAPTERS}/test_media_spans.py::test_old_media_lie_where_they_were_captured_and_new_ones_move_with_their_tokens",
    ),
    "140-143": (
        "vectors/test_C_routes.py::test_vector",
        f"{ADAPTERS}/test_route_alignment.py::test_stock_routes_of_a_whole_call_become_those_of_its_delta",
    ),
    "150-156 160-169": (
        "vectors/test_C_verify.py::test_verify",
        "vectors/test_C_verify.py::test_linearize",
        f"{STAGING}/test_verify.py::test_whatever_is_wrong_has_a_code",
        f"{STAGING}/test_verify.py::test_what_is_wrong_with_a_call_off_the_chain_fails_the_rollout",
    ),
    "180-189": (
        "vectors/test_C_terminal.py::test_attribution",
        "vectors/test_C_terminal.py::test_fingerprint",
        f"{SERVED}test_namespaced_tools_keep_their_identity",
    ),
    "190-194": (
        "vectors/test_C_terminal.py::test_selection",
        f"{RECEIPTS}TestPrecedence::test_the_shape_is_asked_when_no_witness_names_a_call",
        f"{RECEIPTS}TestPrecedence::test_a_declared_response_that_is_not_there_masks",
    ),
    "200-203": (
        f"{LEDGER}test_ledgers_are_what_the_protocol_says",
        f"{LEDGER}test_a_replay_is_kept_once_and_a_change_is_refused",
        f"{LEDGER}test_a_failed_call_gets_no_row_and_every_reason_is_kept_once_in_order",
        "token_id_capture/test_external_staging_config.py::test_a_ledger_that_forgets_is_refused",
    ),
    "204-208": (
        "vectors/test_C_ledger.py::test_vector_in_files",
        "vectors/test_C_ledger.py::test_rollout_ids",
        f"{FILES}TestDurability::test_a_row_is_written_then_synced_then_told",
        f"{FILES}TestDurability::test_what_was_told_survives_a_power_cut",
        f"{FILES}test_a_look_up_reads_only_what_is_new",
    ),
    "210-213": (
        f"{LEDGER}TestAdmission::test_an_unknown_continuation_is_never_a_root",
        f"{LEDGER}TestAdmission::test_a_parent_without_a_chain_is_none",
        f"{FAILED}test_a_ledger_that_cannot_be_asked_fails_the_call_before_the_worker_hears_of_it",
        f"{SERVED}test_history_of_nobody_is_a_root_while_the_rollout_is_empty",
        f"{HERE}test_media_that_cannot_be_kept_cost_the_capture_and_not_the_answer",
    ),
    "220-227": (
        "vectors/test_C_control.py::test_vector",
        "token_id_capture/test_external_staging_config.py::test_no_server_starts_without_its_control_token",
        f"{SERVED}test_a_server_without_external_staging_has_no_control_routes",
        f"{ROUTES}test_nothing_is_looked_at_before_the_secret",
        f"{ROUTES}test_one_bad_id_changes_nothing",
        f"{CONTROL}test_a_whole_list_is_checked_before_the_first_request",
        f"{CONTROL}test_long_lists_go_in_batches_and_repeated_ids_count_once",
        f"{CONTROL}test_an_answer_of_something_else_is_refused",
        f"{CONTROL}test_a_retired_rollout_has_an_error_of_its_own",
    ),
    "230-236": (
        f"{HERE}test_a_fence_is_durable_before_rows_go_and_a_repetition_only_syncs",
        f"{LEDGER}test_what_is_retired_is_gone_for_good_and_says_so",
        f"{LEDGER}test_what_is_deleted_can_begin_anew",
        f"{LEDGER}test_bad_ids_are_refused_everywhere",
        f"{FILES}TestOtherProcesses::test_a_ledger_that_began_anew_meanwhile_survives_the_end_of_a_retirement",
        f"{FILES}TestOtherProcesses::test_a_fence_beside_rows_closes_nothing",
    ),
    "240-242": (
        "vectors/test_C_config.py::test_vector",
        "settings/test_staging_servers.py::test_what_cannot_stage_is_named_with_its_place",
        f"{HERE}test_servers_that_share_a_model_share_their_ledger",
        f"{SERVED}test_without_the_prefix_nothing_is_captured_and_nothing_withheld",
    ),
    "243-249": (
        "vectors/test_C_external.py::test_prepare_request",
        "vectors/test_C_external.py::test_prepare_response",
        f"{SERVED}test_a_worker_of_another_kind_finds_its_admission_elsewhere",
        f"{SERVED}test_several_answers_are_refused_before_the_worker_is_asked",
        f"{SERVED}test_no_client_forges_what_only_the_server_may_say",
        f"{SERVED}test_a_conversation_is_one_chain_of_staged_tokens",
    ),
    "250-255": (
        "vectors/test_C_e2e.py::test_vector",
        "vectors/test_C_external.py::test_finalize",
        f"{FAILED}test_nothing_is_served_before_its_row_is_durable",
        f"{FAILED}test_coordinates_of_any_kind_harm_nothing",
        f"{FAILED}test_an_answer_without_an_id_is_served_and_not_committed",
    ),
    "256-265": (
        "vectors/test_C_e2e.py::test_vector",
        f"{FAILED}test_a_client_that_hangs_up_ends_the_workers_call_and_leaves_a_failure",
        f"{FAILED}test_on_a_full_disk_the_answer_is_served_and_the_rollout_is_no_success",
        f"{FAILED}test_a_worker_that_dies_in_its_answer",
    ),
    "266-267 270-272": (
        WHOLE,
        "vectors/test_C_e2e.py::test_sse",
        "model_server/external/test_staging_sdks.py::test_responses_stream",
        f"{SERVED}test_evaluation_records_share_the_id_and_hold_nothing_internal",
    ),
    "300-306": (
        f"{BENCHMARK}test_every_figure_comes_from_probes_that_run",
        f"{STAGING}/test_records.py::test_a_trusted_record_shares_its_arrays_and_hashes_nothing",
        f"{STAGING}/test_verify.py::test_each_hash_is_computed_once",
        f"{STAGING}/test_digests.py::test_a_digest_does_not_depend_on_how_the_columns_are_held",
        f"{STAGING}/test_record_of_call.py::test_an_array_makes_the_record_that_a_list_makes",
    ),
    "307-309": (
        f"{STAGING}/test_manifest_graph.py::test_every_call_is_looked_at_once",
        f"{STAGING}/ledger/test_rollout_rows.py::test_a_long_rollout_weighs_as_much_as_its_rows",
        f"{LEDGER}test_what_is_retired_is_gone_for_good_and_says_so",
    ),
    "320-324": (
        f"{LEDGER}test_content_that_cannot_be_hashed_is_kept_and_nothing_continues_it",
        f"{LEDGER}test_siblings_of_the_same_words_are_a_parent_only_if_they_are_the_same_tokens",
        f"{RECEIPTS}TestPoison::test_the_primary_reason_is_none_without_one",
        "vectors/test_C_e2e.py::test_vector",
        "vectors/test_C_records.py::test_record",
    ),
    "325-329": (
        f"{STAGING}/test_extras_digest.py::test_nesting_beyond_the_limit_is_refused",
        f"{CORE}test_an_error_that_nobody_foresaw_costs_the_capture_alone",
        f"{ADAPTERS}/test_vllm_capture.py::test_what_is_not_exact_is_refused_with_its_place",
        f"{ROUTES}test_nothing_is_looked_at_before_the_secret",
        f"{SERVED}test_no_client_forges_what_only_the_server_may_say",
        "model_server/external/test_reserved.py::test_no_reserved_member_is_left_at_any_depth",
    ),
    "330-334": (
        f"{STAGING}/test_failures.py::test_every_kind_is_there_from_the_start_and_counts_by_itself",
        f"{STAGING}/test_async_capture.py::test_a_sink_that_hangs_is_a_failed_capture_and_its_late_success_an_orphan",
        "testing/test_staging_conformance.py::test_what_was_made_is_closed_behind_each_test",
        "vectors/test_C_e2e.py::test_vector",
        f"{PARQUET}/calls/test_call_rows.py::test_attachments_stand_in_the_row_with_their_hashes",
        f"{SOURCE}test_a_damaged_attachment_is_named",
    ),
    "340-343": (
        f"{RECEIPTS}TestPoison::test_the_first_failure_that_poisons_is_the_reason",
        f"{RECEIPTS}TestPoison::test_an_answer_that_never_committed_does_not_poison",
        f"{STAGING}/test_verify.py::test_the_codes_are_those_that_trainers_count",
        f"{SOURCE}test_neither_extras_nor_media_move_when_tokens_are_fetched",
        f"{PARQUET}/calls/test_call_rows.py::test_log_probs_are_kept_as_they_were_hashed",
    ),
    "344-347": (
        f"{WORKER}test_routes_of_experts_are_those_of_the_staged_tokens",
        f"{CORE}test_routes_are_cut_to_the_tokens_that_a_call_stages",
        f"{SINK}test_extras_of_every_kind_come_back",
        WHOLE,
        f"{WORKER}test_calls_are_stamped_with_the_weights_that_served_when_they_were_admitted",
        f"{HERE}test_cleaning_up_is_listed_by_the_manifest_and_can_be_repeated",
    ),
    "348-350": (
        "model_server/external/test_staged_call.py::test_each_call_is_counted_once_by_how_it_ended",
        f"{HERE}test_media_that_cannot_be_kept_cost_the_capture_and_not_the_answer",
        f"{RECEIPTS}TestPrecedence::test_witnesses_that_disagree_mask",
        f"{RECEIPTS}TestPrecedence::test_a_named_call_that_is_not_there_is_never_guessed",
    ),
    "351": (
        f"{STAGING}/test_verify.py::test_secondary_chains_are_rows_of_their_own_in_the_order_of_admission",
        f"{STAGING}/test_verify.py::test_a_secondary_chain_fails_alone",
    ),
    "352-353": (
        f"{CONTROL}test_a_server_that_drips_cannot_draw_an_answer_out",
        f"{CONTROL}test_it_needs_a_server_a_secret_and_a_deadline",
        "vectors/test_C_lifecycle.py::test_install",
        f"{WORKER}test_a_client_that_leaves_stages_nothing",
    ),
}
NUMBERS = (
    "1-4 10-18 20-24 30-33 40-46 50-52 55 60-63 66-68 70-72 75-77 79 80-96 97-100 101-118 120-128 130-139 140-143 "
    "150-156 160-169 180-194 200-208 210-213 220-227 230-236 240-267 270-272 300-309 320-334 340-353"
)

PARTS: dict[str, Sequence[str]] = {
    "records and digests": (
        *STATEMENTS["80-89"],
        f"{STAGING}/test_records.py::test_a_trusted_record_is_the_validated_one",
    ),
    "capture core": (
        *STATEMENTS["97-100"],
        f"{STAGING}/test_async_capture.py::test_no_more_than_so_many_are_in_the_sink_at_once",
        f"{STAGING}/test_async_capture.py::test_calls_that_wait_for_a_hanging_sink_end_in_time_as_well",
    ),
    "adapters": (
        *STATEMENTS["130-139"],
        f"{ADAPTERS}/test_vllm_capture.py::test_media_of_the_older_format_are_refused_by_name",
        f"{ADAPTERS}/test_route_alignment.py::test_routes_of_patched_workers_keep_their_form",
        f"{ADAPTERS}/test_llama_cpp.py::test_an_answer_is_read_as_the_engine_counts_it",
        f"{CORE}test_what_cannot_be_staged_never_reaches_the_sink",
    ),
    "sinks and sources": (
        f"{SINK}test_a_key_says_where_the_call_is",
        f"{SINK}test_the_same_call_again_has_the_same_key_and_is_written_once",
        f"{PARQUET}/tokens/test_token_source.py::"
        "test_freezing_one_of_ten_thousand_rollouts_reads_little_and_only_its_row_groups",
        f"{PARQUET}/tokens/test_token_sink.py::test_a_put_beside_a_freeze_is_in_the_snapshot_or_raises",
        f"{PARQUET}/upkeep/test_compaction.py::test_many_segments_become_one_and_every_key_stays_valid",
        f"{PARQUET}/upkeep/test_compaction.py::test_a_crash_at_any_step_loses_nothing_and_the_next_run_completes",
        f"{ADAPTERS}/test_route_alignment.py::test_pickled_routes_are_never_loaded",
        "cli/test_staging.py::test_compaction_says_what_it_did",
    ),
    "ledger, routes, rows": (
        *STATEMENTS["220-227"],
        *STATEMENTS["351"],
        f"{STAGING}/test_ledger_to_row.py::test_a_rollout_becomes_the_row_of_its_chain",
    ),
    "external staging": (*STATEMENTS["250-255"], *STATEMENTS["256-265"], WHOLE),
    "a worker": (
        "inference_worker/test_worker_rollouts.py::test_a_rollout_becomes_the_row_that_the_engine_said",
        "inference_worker/test_worker_rollouts.py::test_a_restarted_worker_continues_a_chain_from_storage_alone",
        "inference_worker/test_prefixes.py::test_what_is_known_is_not_read_again_and_only_the_rest_of_a_longer_chain_is",
        "actors/test_staging.py::test_a_killed_worker_of_the_embedded_engine_continues_its_rollouts_from_storage",
        "actors/test_staging.py::test_workers_without_a_mount_stage_through_a_writer_which_may_be_killed",
    ),
    "example": ("examples/test_staging.py::test_a_workers_calls_become_rows_with_their_pixels",),
    "conformance": (
        *STATEMENTS["120-124"],
        f"{PARQUET}/tokens/test_token_conformance.py::test_a_directory",
        f"{PARQUET}/tokens/test_token_conformance.py::test_s3",
    ),
    "killed and without power": (
        f"{PARQUET}/calls/test_staging_crash.py::test_two_hundred_killed_writers_lose_nothing_they_acknowledged",
        f"{PARQUET}/calls/test_staging_crash.py::test_a_power_cut_at_any_step_loses_nothing_that_was_acknowledged",
        f"{PARQUET}/tokens/test_token_kill.py::test_kills",
        f"{PARQUET}/tokens/test_token_power_cut.py::test_every_acknowledged_step_is_there",
        f"{FILES}test_a_killed_process_loses_nothing_that_it_told",
    ),
    "object stores on bad ways": (
        "storage/test_s3_faults.py::test_a_killed_writer_leaves_what_it_acknowledged_and_nothing_half",
        "storage/test_s3_faults.py::test_an_own_object_behind_a_lost_answer_is_a_success_and_a_foreign_one_is_not",
        "storage/test_s3_faults.py::test_answers_that_never_come_are_asked_for_again",
        f"{PARQUET}/calls/test_staging_s3.py::test_a_call_is_staged_although_a_request_goes_wrong",
        f"{PARQUET}/calls/test_staging_s3.py::test_a_call_that_could_not_be_sent_is_not_there",
    ),
    "full disks, threads, large media": (
        f"{SINK}test_a_full_disk_fails_its_callers_and_leaves_no_file",
        f"{SINK}test_sixty_four_threads_share_segments",
        f"{PARQUET}/calls/test_staging_memory.py::test_an_attachment_of_a_gibibyte",
        f"{PARQUET}/calls/test_staging_memory.py::test_a_batch_takes_at_most_32_bytes_a_token",
    ),
    "speed": (BENCHMARK + "test_every_figure_comes_from_probes_that_run",),
}

SPOILT = f"{HERE}test_spoilt_files_give_one_clear_error_and_no_call"
NO_MEDIA = f"{HERE}test_media_that_cannot_be_kept_cost_the_capture_and_not_the_answer"
BAD_INPUT: dict[str, Sequence[str]] = {
    "rejections of the wire": ("vectors/test_C_records.py::test_record", "vectors/test_C_verify.py::test_verify"),
    "objects": (NO_MEDIA, f"{PARQUET}/attachments/test_preparing.py::test_what_cannot_be_kept_is_refused_by_name"),
    "unknown types": (
        NO_MEDIA,
        f"{PARQUET}/attachments/test_preparing.py::test_what_cannot_be_kept_is_refused_by_name",
    ),
    "names that are no text": (
        NO_MEDIA,
        f"{PARQUET}/attachments/test_preparing.py::test_a_name_that_is_not_text_is_refused",
    ),
    "keys of another store": (
        f"{HERE}test_keys_of_another_store_name_both",
        f"{SOURCE}test_a_key_of_another_store_is_refused_by_both_names",
    ),
    "truncated files": (SPOILT, f"{SOURCE}test_a_truncated_segment_is_an_error_at_every_length"),
    "foreign files": (SPOILT, f"{SOURCE}test_a_file_that_is_no_segment_of_calls"),
    "missing rows": (SPOILT, f"{SOURCE}test_keys_that_lead_nowhere"),
}
MAP = {**{f"C{numbers}": tests for numbers, tests in STATEMENTS.items()}, **PARTS, **BAD_INPUT}


def numbered(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split():
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def test_every_statement_has_its_test() -> None:
    held = [number for numbers in STATEMENTS for number in numbered(numbers)]
    assert sorted(held) == numbered(NUMBERS)


@pytest.mark.parametrize("held", MAP)
def test_what_the_map_names_is_there(held: str) -> None:
    assert MAP[held]
    for test in MAP[held]:
        file, _, name = test.partition("::")
        assert name in defined_tests(TESTS / file), test


VECTORS = sorted(path.stem for path in (TESTS / "vectors").glob("C_*.json"))


def test_every_vector_file_has_its_adapter(pytestconfig: pytest.Config) -> None:
    directory = pytestconfig.getoption("--vectors")
    assert sorted(path.stem for path in directory.glob("C_*.json")) == VECTORS
    assert len(VECTORS) == 14


@pytest.mark.parametrize("name", VECTORS)
def test_every_section_of_a_vector_file_is_read_and_no_case_left_out(name: str, pytestconfig: pytest.Config) -> None:
    adapter = (TESTS / "vectors" / f"test_{name}.py").read_text("utf-8")
    document = json.loads((pytestconfig.getoption("--vectors") / f"{name}.json").read_text("utf-8"))
    for section in document:
        is_all_there_is = section == "cases" and "case: dict" in adapter
        is_a_note = section in ("codes_covered", "codes_unreachable")
        assert is_all_there_is or is_a_note or f'"{section}"' in adapter, f"nobody reads {section}"
    assert not re.search(r"pytest\.(skip|xfail)|mark\.(skip|xfail)", adapter)
    for rule, departure in tomllib.loads((TESTS / "vectors/departures.toml").read_text("utf-8")).items():
        if departure["file"] == f"{name}.json":
            assert re.match(r"[ABCDW][0-9]+[a-z]?: ", departure["why"]), f"{rule} does not say what justifies it"
            assert rule in adapter, f"nobody reads {rule}"


# What a framework imports; it changes one import and nothing else.
FOR_FRAMEWORKS = """
ActiveCall CallRecord CaptureAdapter CaptureAdmission CaptureError CaptureHost CaptureLedger CaptureLedgerCommit
CommitCoords EXTRAS_DIGEST_VERSION LinearizedRow ManifestFailure NG_CAPTURE_FIELD NG_COMMIT_COORDS_FIELD RebuildError
ReceiptVerificationError RolloutManifest RolloutReceipt RolloutRemoval RolloutTokenCapture STAGING_DIGEST_VERSION
STAGING_SCHEMA_VERSION StageResult StagedCallBaseSnapshot StagedCallRecord StagedCallSnapshot StagingSink StagingSource
StreamingUnsupportedError WeightVersionProvider build_staging_delta compute_chain_hash compute_extras_digest
compute_prefix_hash compute_staging_digest default_staging_key install_capture linearize resolve_terminal
select_terminal_call verify_and_linearize
"""
OF_ENGINES = """
MegatronCaptureAdapter VLLMCaptureAdapter classify_route_span decode_routed_experts encode_routed_experts
routed_experts_token_count
"""


def test_a_framework_changes_one_import() -> None:
    assert set(FOR_FRAMEWORKS.split()) <= set(staging.__all__)
    assert set(OF_ENGINES.split()) <= set(adapters.__all__)
    for package, names in ((staging, FOR_FRAMEWORKS), (adapters, OF_ENGINES)):
        assert all(hasattr(package, name) for name in names.split())


HEAVY = """
import sys
import gym_ray.token_id_capture.adapters.vllm
import gym_ray.token_id_capture.staging
heavy = {"pyarrow", "fsspec", "httpx", "starlette", "uvicorn", "torch", "ray", "aiohttp", "requests", "s3fs", "adlfs"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""


def test_a_worker_loads_staging_and_adapters_without_anything_heavy() -> None:
    """C18: neither a server, nor a network, nor tensors, nor a file format."""
    run = subprocess.run([sys.executable, "-c", HEAVY], timeout=60, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
