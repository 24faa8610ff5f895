"""One rollout's records become a trajectory or a mask with a reason; nothing a capture holds raises."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gym_ray.testing.token_source import FakeTokenSource, call_entry
from gym_ray.token_id_capture import assembly
from gym_ray.token_id_capture.assembly import (
    Ending,
    assemble,
    trajectories_for_rollout,
    trajectories_from_source,
)
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.protocols import CaptureProblem
from gym_ray.token_id_capture.records import ParentResolutionStatus, TokenEntry
from gym_ray.token_id_capture.store import TokenCaptureStore

UNRESOLVED = ParentResolutionStatus.UNRESOLVED
C1 = call_entry("c1", [1, 2], [3, 4], response_id="resp_1", created_at=1.0)
C2 = call_entry("c2", [5], [6], C1, response_id="resp_2", created_at=2.0)
C2B = call_entry("c2b", [5], [7], C1, response_id="resp_2b", created_at=3.0)
OTHER = call_entry("x", [9], [8], response_id="resp_x", created_at=4.0)


@pytest.fixture(params=["lists", "arrays"])
def as_given(request: pytest.FixtureRequest) -> Any:
    def given(*entries: TokenEntry) -> Sequence[TokenEntry | PackedEntry]:
        return entries if request.param == "lists" else [PackedEntry.of_entry(entry) for entry in entries]

    return given


def test_a_proved_rollout_is_delivered_with_all_its_metrics(as_given: Any) -> None:
    built = assemble("3-1", as_given(C1, C2), project=True, model="m")
    assert built.response is not None
    assert [item["prompt_token_ids"] for item in built.response["output"]] == [[1, 2], [1, 2, 3, 4, 5]]
    assert (built.response["id"], built.response["model"]) == ("proj-3-1", "m")
    assert (built.mask_sample, built.reasons, built.error) == (False, (), "")
    assert built.metrics == {
        "n_calls": 2,
        "terminal_attribution": {"method": "none", "call_id": None, "reason": "no_response_object", "chain": ""},
        "chains": 1,
        "roots": 1,
        "quarantined_calls": 0,
        "quarantined_fraction": 0.0,
        "delivered_fraction": 1.0,
        "generated_tokens_captured": 3,
        "generated_tokens_delivered": 3,
        "parent_link_failures": {},
        "unresolved_parent_calls": 0,
        "empty_generation_calls": 0,
    }


@pytest.mark.parametrize(
    ("entries", "ending", "reasons"),
    [
        ((C1, C2, OTHER), Ending(), {"several_roots", "several_chains"}),
        ((C1, C2, OTHER), Ending(explicit_terminal_call_id="c2"), set()),
        ((C1, C2, C2B), Ending(), {"unresolved_retries"}),
        ((C1, C2, C2B), Ending(declared_response_id="resp_2b"), set()),
        ((C1,), Ending(declared_response_id="resp_9"), {"terminal_not_attributed"}),
        ((C1,), Ending(explicit_terminal_call_id="c9"), set()),
        (
            (C1, call_entry("u", [5, 6], [7], status=UNRESOLVED)),
            Ending(),
            {"unresolved_parent_calls", "several_roots", "several_chains"},
        ),
        (
            (C1, call_entry("u", [5, 6], [7], status=UNRESOLVED)),
            Ending(explicit_terminal_call_id="u"),
            {"terminal_broken"},
        ),
        (
            (C1, call_entry("e", [5], [], C1)),
            Ending(explicit_terminal_call_id="e"),
            {"terminal_not_captured"},
        ),
    ],
)
def test_a_mask_names_every_reason(
    as_given: Any, entries: tuple[TokenEntry, ...], ending: Ending, reasons: set[str]
) -> None:
    built = assemble("3-1", as_given(*entries), ending=ending)
    assert set(built.reasons) == reasons
    assert built.mask_sample == bool(reasons)
    rows = built.rows()
    assert [(row.mask_sample, set(row.reasons) >= reasons) for row in rows] == [(bool(reasons), True)]


def test_what_is_missing_from_a_capture_masks_it_and_is_named() -> None:
    problems = [CaptureProblem("damaged_line", "", "line 3"), CaptureProblem("dangling_intent", "c3")]
    built = assemble("3-1", [C1, C2], problems=problems, ending=Ending(explicit_terminal_call_id="c2"))
    assert built.metrics["terminal_attribution"]["chain"] == "delivered"
    assert built.mask_sample
    assert built.reasons == ("capture_incomplete", "damaged_line", "dangling_intent")
    assert built.metrics["capture_incomplete"] is True
    assert built.metrics["capture_problems"] == {"damaged_line": 1, "dangling_intent": 1}
    assert built.problems == tuple(problems)
    (row,) = built.rows()
    assert row.mask_sample


def test_an_incomplete_capture_without_a_named_problem_has_the_metrics_of_the_contract_alone() -> None:
    built = assemble("3-1", [C1, C2], incomplete=True)
    assert built.reasons == ("capture_incomplete",)
    assert "capture_problems" not in built.metrics


def test_a_rollout_without_records_is_a_failed_build_that_says_what_was_lost() -> None:
    built = assemble("3-1", [], problems=[CaptureProblem("usage_mismatch", "c1")])
    assert built.as_build() == {
        "rollout_id": "3-1",
        "builder": "prefix_merging",
        "rebuilt_response": None,
        "mask_sample": True,
        "mask_reasons": ["capture_incomplete", "usage_mismatch", "no_token_records"],
        "error": "no_token_records: nothing was recorded of the tokens of rollout 3-1",
        "metrics": {"n_calls": 0, "capture_incomplete": True, "capture_problems": {"usage_mismatch": 1}},
    }
    assert built.rows() == []


@pytest.mark.parametrize("project", [True, False])
def test_a_rollout_that_generated_nothing_is_a_failed_build(project: bool) -> None:
    built = assemble("3-1", [call_entry("e", [1], [])], project=project)
    assert built.mask_sample
    assert built.reasons == ("build_failed",)
    assert built.error.startswith("build_failed: ValueError: no chain was built")
    assert built.metrics == {
        "n_calls": 1,
        "terminal_attribution": {"method": "none", "call_id": None, "reason": "no_response_object", "chain": "error"},
    }


def test_a_record_that_came_to_contradict_itself_is_a_failed_build() -> None:
    broken = C1.model_copy(deep=True)
    broken.generation_log_probs.append(-1.0)
    built = assemble("3-1", [broken])
    assert built.mask_sample
    assert "'c1'" in built.error
    assert built.as_build()["rebuilt_response"] is None


def test_an_unknown_builder_is_a_failed_build() -> None:
    built = assemble("3-1", [C1], builder="nonesuch")
    assert "unknown builder 'nonesuch'" in built.error
    assert built.mask_sample


def test_two_records_of_one_call_that_differ_mask_the_rollout_whatever_its_end() -> None:
    other = C2.model_copy(update={"generation_token_ids": [99]})
    for ending in (Ending(), Ending(explicit_terminal_call_id="c2")):
        built = assemble("3-1", [C1, C2, other], ending=ending)
        assert built.mask_sample
        assert built.metrics["parent_link_failures"] == {"duplicate_call_id_conflict": 1}


def test_one_sequence_a_call_is_delivered_as_rows_and_never_as_a_response() -> None:
    built = assemble("3-1", [C1, C2, OTHER], builder="per_request")
    assert (built.mask_sample, built.reasons) == (False, ())
    assert sorted(row.token_ids.tolist() for row in built.rows()) == [[1, 2, 3, 4], [1, 2, 3, 4, 5, 6], [9, 8]]
    refused = assemble("3-1", [C1], builder="per_request", project=True)
    assert refused.mask_sample
    assert "one sequence a call" in refused.error


def test_a_call_that_cannot_be_rebuilt_masks_the_sequences_of_the_others() -> None:
    delta = C2.model_copy(update={"prompt_is_delta": True, "prompt_token_ids": [5], "parent_call_id": "gone"})
    built = assemble("3-1", [C1, delta], builder="per_request")
    assert built.reasons == ("unresolved_parent_calls",)


def test_all_chains_are_rows_and_shared_tokens_are_learned_from_once() -> None:
    c3, c3b = call_entry("c3", [10], [11], C2), call_entry("c3b", [20], [21], C2)
    built = assemble("3-1", [C1, C2, c3, c3b], ending=Ending(explicit_terminal_call_id="c3"))
    first, second = built.rows(branches=True)
    assert (first.chain_id, first.token_ids.tolist()) == ("main", [1, 2, 3, 4, 5, 6, 10, 11])
    assert second.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 20, 21]
    assert (second.shared_prefix, second.shared_with) == (6, "main")
    assert np.flatnonzero(second.loss_mask()).tolist() == [7]
    both = built.rows(branches=True, shared_prefix_loss="all")
    assert np.flatnonzero(both[1].loss_mask()).tolist() == [2, 3, 5, 7]


def test_a_rollout_whose_end_cannot_be_looked_for_is_unattributed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RecursionError("deep response")

    monkeypatch.setattr(assembly, "resolve_terminal", fail)
    built = assemble("3-1", [C1, C2], ending=Ending(declared_response_id="resp_2"))
    assert built.metrics["terminal_attribution"]["reason"] == "attribution_error"
    assert built.reasons == ("terminal_not_attributed",)
    assert "3-1: its last call could not be looked for" in caplog.text


async def test_a_source_is_frozen_once_and_built_once_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    run_builder = assembly.run_builder

    def counted(*arguments: Any) -> Any:
        runs.append(threading.get_ident())
        return run_builder(*arguments)

    monkeypatch.setattr(assembly, "run_builder", counted)
    source = FakeTokenSource([C2, C1])
    build = await trajectories_from_source("3-1", source, verified_response={"id": "resp_2", "output": []})
    assert len(runs) == 1
    assert runs[0] != threading.get_ident()
    assert (source.froze, source.dropped) == (["3-1"], [])
    assert build["_capture_snapshot"] == {"snapshot_id": "snap", "version": 7}
    assert build["metrics"]["terminal_attribution"]["call_id"] == "c2"
    assert (build["unresolved_retries"], build["unresolved_parent_calls"]) == ([], [])
    assert "error" not in build


async def test_a_source_that_cannot_freeze_masks_the_rollout() -> None:
    build = await trajectories_from_source("3-1", FakeTokenSource(failure=RuntimeError("transport down")))
    assert build == {
        "rollout_id": "3-1",
        "builder": "prefix_merging",
        "rebuilt_response": None,
        "mask_sample": True,
        "mask_reasons": ["freeze_failed"],
        "error": "freeze_failed: RuntimeError: transport down",
        "metrics": {"n_calls": 0},
    }


async def test_a_cancelled_freeze_is_cancelled() -> None:
    class Hanging(FakeTokenSource):
        async def freeze(self, rollout_id: str) -> Any:
            started.set()
            await asyncio.Event().wait()

    started = asyncio.Event()
    task = asyncio.create_task(trajectories_from_source("3-1", Hanging()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def stored(directory: Path, *entries: TokenEntry) -> Path:
    store = TokenCaptureStore(directory)
    for entry in entries:
        store.append(entry)
    store.shut_down()
    return directory


def test_a_directory_is_frozen_and_built_and_keeps_its_records(tmp_path: Path) -> None:
    directory = stored(tmp_path, C1, C2)
    build = trajectories_for_rollout("3-1", [directory, tmp_path / "not looked at"], model="m")
    assert build is not None
    assert (build["mask_sample"], build["rebuilt_response"]["model"]) == (False, "m")
    assert trajectories_for_rollout("3-1", [str(directory)], model="m") == build
    assert not (tmp_path / "not looked at").exists()
    assert (directory / "3-1.tokens.jsonl").stat().st_size


async def test_a_directory_can_be_built_where_an_event_loop_runs(tmp_path: Path) -> None:
    directory = await asyncio.to_thread(stored, tmp_path, C1)
    build = trajectories_for_rollout("3-1", [directory], explicit_terminal_call_id="c1")
    assert build is not None
    assert build["metrics"]["terminal_attribution"]["chain"] == "delivered"


def test_without_a_directory_there_is_no_build() -> None:
    assert trajectories_for_rollout("3-1", []) is None


def test_damage_in_a_file_masks_its_rollout_and_names_itself(tmp_path: Path) -> None:
    directory = stored(tmp_path, C1, C2)
    path = directory / "3-1.tokens.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + b"damaged\n" + second)
    build = trajectories_for_rollout("3-1", [directory])
    assert build is not None
    assert build["mask_sample"] is True
    assert build["metrics"]["n_calls"] == 2
    assert build["metrics"]["capture_problems"] == {"damaged_line": 1}
    assert build["mask_reasons"] == ["capture_incomplete", "damaged_line"]


@pytest.mark.parametrize("rollout_id", ["a/b", "3-1"])
def test_a_directory_that_cannot_be_read_masks_the_rollout(tmp_path: Path, rollout_id: str) -> None:
    (tmp_path / "file").touch()
    directory = tmp_path if rollout_id == "a/b" else tmp_path / "file"
    build = trajectories_for_rollout(rollout_id, [directory])
    assert build is not None
    assert build["error"].startswith("freeze_failed: ")
    assert build["mask_sample"] is True


def test_a_doubt_about_a_call_masks_every_row_and_one_about_which_chain_counts_masks_none() -> None:
    branches = assemble("r0", [C1, C2, C2B], ending=Ending())
    assert branches.mask_sample
    assert all(row.mask_sample for row in branches.rows(branches=True))  # two tries of one prompt: which one counts?
    other = call_entry("x", [9], [8])
    roots = assemble("r0", [C1, C2, other], ending=Ending())
    assert roots.mask_sample
    assert [row.mask_sample for row in roots.rows()] == [True]
    assert [row.mask_sample for row in roots.rows(branches=True)] == [False, False]
