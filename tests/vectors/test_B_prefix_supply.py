"""Tokens of a parent put into a request, and proved (B94, B95): a missing proof fails the call, or marks it (W35)."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import pytest

from gym_ray.errors import RequiredPrefixError
from gym_ray.testing.token_sinks import PlainTokenSink
from gym_ray.token_id_capture import sink as capture
from gym_ray.token_id_capture.capturing.prefix_supply import REQUIRED_PREFIX_FIELD
from gym_ray.token_id_capture.lineage import LineageMatch, LineageResolution
from gym_ray.token_id_capture.records import ParentResolutionStatus
from gym_ray.token_id_capture.token_arrays import digest_packed, pack_token_ids

PARENT = pack_token_ids([1, 2, 3])


def decision(name: str | None) -> LineageResolution | None:
    if name is None:
        return None
    status = ParentResolutionStatus(name)
    resolved = status is ParentResolutionStatus.RESOLVED
    return LineageResolution(status, LineageMatch("c0", PARENT, digest_packed(PARENT)) if resolved else None)


def context_of(case: dict[str, Any], *, fail: bool) -> capture.CaptureContext:
    context = capture.CaptureContext("r0", "c1", PlainTokenSink(), fail_unproven_prefix=fail)
    context.parent_resolution = decision(case["resolution"])
    context.external_staging = case["external_staging"]
    return context


def outcome_of(body: dict[str, Any], response: dict[str, Any]) -> str:
    try:
        return "accepted" if capture.prove_required_prefix(body, response) else "served"
    except RuntimeError as error:
        return error.reason if isinstance(error, RequiredPrefixError) else str(error)


@pytest.mark.parametrize("fail", [True, False])
def test_vector(case: dict[str, Any], fail: bool, departures: dict[str, Any]) -> None:
    before = astuple(capture.prefix_supply_counts())
    context = context_of(case, fail=fail)
    token = capture.set_token_sink(context) if case["has_context"] else None
    body: dict[str, Any] = {"messages": []}
    try:
        if case["supply_enabled"]:
            capture.apply_required_prefix(body)
        assert body.get(REQUIRED_PREFIX_FIELD) == case["sent_prefix"]
        assert context.prefix_requested == case["prefix_requested"]
        if case["dropped_before_send"]:
            body.pop(REQUIRED_PREFIX_FIELD, None)
        for check in case["verify"]:
            wanted = check["outcome"]
            if not fail and wanted != "accepted":
                wanted = departures["an_unproven_prefix_is_served_and_marked"]["expected"]["outcome"]
            assert outcome_of(body, check["generation_response"]) == wanted
            assert context.prefix_supplied == check["prefix_supplied"]
    finally:
        if token is not None:
            capture.reset_token_sink(token)
    counted = [now - then for now, then in zip(astuple(capture.prefix_supply_counts()), before, strict=True)]
    assert counted == case["counts_supplied_eligible_total"]


async def test_a_served_call_without_proof_marks_its_rollout(case: dict[str, Any]) -> None:
    """W35: such a call has its record, as evidence, and its rollout is never trained on."""
    unproven = [check for check in case["verify"] if check["outcome"] != "accepted"]
    for check in unproven:
        context = context_of(case, fail=False)
        token = capture.set_token_sink(context)
        body: dict[str, Any] = {}
        capture.apply_required_prefix(body)
        capture.prove_required_prefix({} if case["dropped_before_send"] else body, check["generation_response"])
        arrays = {"prompt_token_ids": [1, 2, 9], "generation_token_ids": [4], "generation_log_probs": [-0.5]}
        await capture.capture_tokens({"choices": [{"message": {"content": "A", **arrays}}]})
        capture.reset_token_sink(token)
        kept = context.token_sink
        assert isinstance(kept, PlainTokenSink)
        assert [(entry.prefix_requested, entry.prefix_supplied) for entry in kept.entries] == [(True, False)]
        assert kept.marks == [("r0", "c1")]
