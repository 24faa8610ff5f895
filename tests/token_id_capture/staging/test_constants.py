"""Words that other processes know are never changed."""

from __future__ import annotations

from gym_ray.token_id_capture import records, sink
from gym_ray.token_id_capture.staging import constants


def test_versions_domains_and_fields_are_the_wire_s() -> None:
    versions = (constants.STAGING_SCHEMA_VERSION, constants.STAGING_DIGEST_VERSION, constants.EXTRAS_DIGEST_VERSION)
    assert versions == (2, 2, 1)
    domains = {
        constants.CALL_DIGEST_DOMAIN: 24,
        constants.EXTRAS_DIGEST_DOMAIN: 26,
        constants.PREFIX_HASH_DOMAIN: 26,
        constants.CHAIN_HASH_DOMAIN: 25,
    }
    assert {domain: len(domain) for domain in domains} == domains
    assert records._DIGEST_DOMAIN not in domains
    fields = (constants.NG_CAPTURE_FIELD, constants.NG_COMMIT_COORDS_FIELD, constants.REQUIRED_PREFIX_FIELD)
    assert fields == ("ng_capture", "ng_commit_coords", "required_prefix_token_ids")
    assert constants.NG_CAPTURE_FIELD is sink.NG_CAPTURE_FIELD


def test_reasons_are_the_wire_s() -> None:
    assert sorted(constants.POISON_REASONS) == [
        "invalid_worker_commit_coordinates",
        "ledger_row_missing_chain_hash",
        "ledger_row_missing_response_id",
        "request_finished_without_staged_coordinates",
        "unresolved_parent",
        "worker_capture_failed",
        "worker_response_missing_commit_coordinates",
    ]
    assert sorted(constants.TERMINAL_SELECTION_OUTCOMES) == [
        "ambiguous_terminal",
        "duplicate_call_id",
        "no_records",
        "no_root",
        "orphaned_row",
        "selected",
    ]
