"""A finished rollout gets its tokens or a mask; its capture goes only when the record no longer needs it."""

from __future__ import annotations

import asyncio
import copy
import json
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.testing.token_source import FakeTokenSource, call_entry
from gym_ray.token_id_capture import delivery
from gym_ray.token_id_capture.assembly import trajectories_for_rollout, trajectories_from_source
from gym_ray.token_id_capture.delivery import (
    capture_build_can_retire,
    finalize_rollout_token_capture,
    mask_reasons,
    retire_rollout_token_capture,
)
from gym_ray.token_id_capture.mask_limit import MaskLimit
from gym_ray.token_id_capture.protocols import CaptureProblem

C1 = call_entry("c1", [1, 2], [3, 4], response_id="resp_1", created_at=1.0)
C2 = call_entry("c2", [5], [6], C1, response_id="resp_2", created_at=2.0)


def record(**members: Any) -> dict[str, Any]:
    response = {"id": "resp_2", "model": "m", "output": [{"type": "message", "content": "B"}], "metadata": {"k": 1}}
    return {"_ng_task_index": 3, "_ng_rollout_index": 1, "reward": 1.0, "response": response} | members


async def finalised(result: dict[str, Any], source: FakeTokenSource) -> dict[str, Any]:
    build = await finalize_rollout_token_capture(result, source)
    assert build is not None
    return build


async def test_a_proved_rollout_gets_its_tokens_and_keeps_all_else() -> None:
    result = record()
    build = await finalised(result, FakeTokenSource([C2, C1]))
    assert [item["generation_token_ids"] for item in result["response"]["output"]] == [[3, 4], [6]]
    assert result["response"]["metadata"] == {"k": 1}
    assert result["_ng_token_capture"] == build["metrics"]
    assert "mask_sample" not in result
    assert mask_reasons(build) == ()
    assert json.loads(json.dumps(result)) == result


async def test_a_masked_record_says_what_its_capture_lacks() -> None:
    problems = [CaptureProblem("usage_mismatch", "c3", "3 of 5 ids")]
    result = record()
    build = await finalised(result, FakeTokenSource([C1, C2], incomplete=True, problems=problems))
    assert result["mask_sample"] is True
    assert result["_ng_token_capture"]["capture_problems"] == {"usage_mismatch": 1}
    assert mask_reasons(build) == ("capture_incomplete", "usage_mismatch")
    assert not capture_build_can_retire(build)


@pytest.mark.parametrize("source", [FakeTokenSource([C1, C2], incomplete=True), FakeTokenSource([])])
async def test_a_second_finalisation_never_retires_what_the_first_masked(source: FakeTokenSource) -> None:
    result = record()
    await finalised(result, source)
    masked = copy.deepcopy(result)
    again = await finalised(result, FakeTokenSource([C1, C2]))
    assert result == masked
    assert again["mask_sample"] is True
    assert mask_reasons(again) == ("already_masked",)
    assert not capture_build_can_retire(again)
    assert not await retire_rollout_token_capture("3-1", source, again)
    assert source.dropped == []


async def test_a_second_finalisation_of_a_clean_record_may_retire() -> None:
    result, source = record(), FakeTokenSource([C1, C2])
    await finalised(result, source)
    delivered = copy.deepcopy(result)
    again = await finalised(result, source)
    assert result == delivered
    assert again == {
        "rebuilt_response": None,
        "mask_sample": False,
        "_redundant_capture": True,
        "_capture_snapshot": {"snapshot_id": "snap", "version": 7},
    }
    assert await retire_rollout_token_capture("3-1", source, again)
    assert source.dropped == [("3-1", "snap", 7)]


async def test_metrics_that_came_from_elsewhere_do_not_pass_for_a_finalisation() -> None:
    result = record(_ng_token_capture={"n_calls": 9})
    await finalised(result, FakeTokenSource([C1, C2]))
    assert result["_ng_token_capture"]["n_calls"] == 2


async def test_a_mask_of_the_verifier_keeps_the_capture_of_a_record_with_tokens_of_its_own() -> None:
    result = record(mask_sample=True)
    result["response"]["output"][0]["generation_token_ids"] = np.array([3, 4])
    build = await finalised(result, FakeTokenSource([C1, C2]))
    assert (build["_redundant_capture"], build["mask_sample"]) == (True, True)
    assert not capture_build_can_retire(build)


@pytest.mark.parametrize(
    ("members", "error"),
    [
        ({"_ng_rollout_id": "a b"}, "malformed rollout id"),
        ({"_ng_rollout_id": "0-0\n"}, "malformed rollout id"),
        ({"_ng_attempt_index": "x"}, "malformed rollout id"),
        ({"_ng_attempt_index": float("inf")}, "malformed rollout id"),
        ({"_ng_task_index": None}, "no capture key"),
    ],
)
async def test_a_record_whose_capture_cannot_be_found_is_masked(members: dict[str, Any], error: str) -> None:
    result, source = record(**members), FakeTokenSource([C1, C2])
    build = await finalised(result, source)
    assert build["error"].startswith(error)
    assert result["mask_sample"] is True
    assert result["_ng_token_capture"]["error"] == build["error"]
    assert source.froze == []
    assert len(mask_reasons(build)) == 1


@pytest.mark.parametrize("response", [None, "text", [], {}, {"output": None}, {"output": "text"}])
async def test_odd_responses_are_taken_for_what_they_are(response: Any) -> None:
    result = record(response=response)
    build = await finalised(result, FakeTokenSource([C1, C2]))
    assert not build["mask_sample"]
    assert [item["generation_token_ids"] for item in result["response"]["output"]] == [[3, 4], [6]]


async def test_a_response_that_cannot_be_changed_masks_the_record(caplog: pytest.LogCaptureFixture) -> None:
    class Locked(dict[str, Any]):
        def __setitem__(self, *_: Any) -> None:
            raise PermissionError("locked")

    result = record(response=Locked(record()["response"]))
    build = await finalised(result, FakeTokenSource([C1, C2]))
    assert build["error"] == "finalisation_failed: PermissionError: locked"
    assert result["mask_sample"] is True
    assert not capture_build_can_retire(build)
    assert "3-1: token capture could not be finalised" in caplog.text


async def test_a_response_of_another_mapping_is_replaced_as_a_whole() -> None:
    result = record(response=MappingProxyType(record()["response"]))
    await finalised(result, FakeTokenSource([C1, C2]))
    assert result["response"]["id"] == "proj-3-1"
    assert result["response"]["model"] == "m"


async def test_the_agent_may_name_its_last_call_or_response() -> None:
    for members in ({"_ng_terminal_model_call_id": "c1"}, {"terminal_response_id": "resp_1"}):
        result = record(**members)
        result["response"] = {"output": []}
        build = await finalised(result, FakeTokenSource([C1, C2]))
        assert build["metrics"]["terminal_attribution"]["call_id"] == "c1"
        assert len(result["response"]["output"]) == 1
    empty = record(_ng_terminal_model_call_id="", terminal_response_id="")
    assert not (await finalised(empty, FakeTokenSource([C1, C2])))["mask_sample"]


async def test_masked_rollouts_are_warned_about_with_their_reasons(caplog: pytest.LogCaptureFixture) -> None:
    await finalised(record(), FakeTokenSource([C1, C2], incomplete=True))
    assert "3-1: masked: capture_incomplete" in caplog.text
    caplog.clear()
    await finalised(record(), FakeTokenSource([]))
    assert "3-1: masked: no_token_records" in caplog.text
    caplog.clear()
    await finalised(record(), FakeTokenSource([C1, C2]))
    assert caplog.text == ""


async def test_without_a_source_nothing_happens() -> None:
    result = record()
    assert await finalize_rollout_token_capture(result, None) is None
    assert result == record()
    assert not await retire_rollout_token_capture("3-1", None, {"mask_sample": False, "rebuilt_response": {}})


async def test_what_changed_since_it_was_frozen_stays() -> None:
    source = FakeTokenSource([C1, C2])
    build = await finalised(record(), source)
    source.droppable = False
    assert await retire_rollout_token_capture("3-1", source, build) is False
    assert source.dropped == [("3-1", "snap", 7)]


async def test_a_source_that_fails_to_drop_costs_no_run(caplog: pytest.LogCaptureFixture) -> None:
    source = FakeTokenSource([C1, C2])
    build = await finalised(record(), source)
    source.failure = OSError("gone")
    assert await retire_rollout_token_capture("3-1", source, build) is False
    assert "3-1: its token capture could not be dropped and stays" in caplog.text


@pytest.mark.parametrize(
    "build",
    [
        None,
        {"mask_sample": False, "rebuilt_response": {}},
        {"mask_sample": True, "rebuilt_response": {}, "_capture_snapshot": {"snapshot_id": "snap", "version": 7}},
    ],
)
async def test_nothing_is_dropped_that_was_not_frozen_or_is_masked(build: dict[str, Any] | None) -> None:
    source = FakeTokenSource([C1])
    assert await retire_rollout_token_capture("3-1", source, build) is False
    assert source.dropped == []


async def test_a_cancelled_finalisation_is_cancelled_and_leaves_the_record() -> None:
    class Hanging(FakeTokenSource):
        async def freeze(self, rollout_id: str) -> Any:
            started.set()
            await asyncio.Event().wait()

    started, result = asyncio.Event(), record()
    task = asyncio.create_task(finalize_rollout_token_capture(result, Hanging()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert result == record()


async def test_reasons_feed_the_mask_limit_also_from_builds_of_another_make() -> None:
    assert mask_reasons({"mask_sample": True, "error": "RuntimeError: x"}) == ("RuntimeError: x",)
    assert mask_reasons({"mask_sample": True}) == ("unknown",)
    limit = MaskLimit(1.0, 1)
    build = await finalised(record(), FakeTokenSource([]))
    limit.note(bool(build["mask_sample"]), mask_reasons(build))
    assert (limit.masked, limit.finalised) == (1, 1)


def test_the_builders_of_trajectories_are_found_where_deliveries_are() -> None:
    assert delivery.trajectories_for_rollout is trajectories_for_rollout
    assert delivery.trajectories_from_source is trajectories_from_source


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    names = ("id", "model", "output", "type", "role", "content", "generation_token_ids", "text")
    return st.dictionaries(st.sampled_from(names), inner, max_size=4)


SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.sampled_from(["", "0-0", "a b", "resp_2"])
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | _objects(inner), max_leaves=6)
FIELDS = (
    "_ng_rollout_id",
    "_ng_task_index",
    "_ng_rollout_index",
    "_ng_attempt_index",
    "_ng_terminal_model_call_id",
    "_ng_token_capture",
    "mask_sample",
    "response",
    "terminal_response_id",
)


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES), st.booleans(), st.booleans())
async def test_no_record_makes_a_finalisation_raise_or_lose_evidence(
    result: dict[str, Any], incomplete: bool, fails: bool
) -> None:
    had_tokens, settled = delivery._has_tokens(result), delivery._is_settled(result)
    failure = RuntimeError("down") if fails else None
    source = FakeTokenSource([C1, C2], incomplete=incomplete, failure=failure)
    build = await finalize_rollout_token_capture(result, source)
    assert source.dropped == []
    if build is None:
        assert settled
        return
    assert bool(mask_reasons(build)) == build["mask_sample"]
    if build["mask_sample"]:
        assert result["mask_sample"]
    if capture_build_can_retire(build):
        assert had_tokens or not incomplete
        assert not fails
        assert delivery._has_tokens(result)
