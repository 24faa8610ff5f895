"""What the record of a call is made of: the prompt behind its prefix, judged alike in whatever form, and copies."""

from __future__ import annotations

import re
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from gym_ray.token_id_capture.staging import (
    CaptureAdmission,
    Column,
    RolloutTokenCapture,
    StagedCallRecord,
    compute_chain_hash,
    compute_extras_digest,
    compute_prefix_hash,
)
from gym_ray.token_id_capture.staging.active_call import ActiveCall
from gym_ray.token_id_capture.staging.columns import id_column
from gym_ray.token_id_capture.staging.failures import CaptureFailure
from gym_ray.token_id_capture.staging.record_of_call import BuildTurns, CallTokens, record_of_call

NARROW = [5, 6, 7, 8]
WIDE = [5, 2**32, 2**63 - 1, 8]


def begun(prefix: list[int]) -> ActiveCall:
    admission = CaptureAdmission(
        rollout_id="r",
        model_call_id="c1",
        parent_call_id="c0",
        prev_len=len(prefix),
        mode="token_in",
        required_prefix_token_ids=prefix,
        parent_chain_hash=compute_chain_hash(None, prefix),
    )
    return RolloutTokenCapture(None, lambda: 1).begin_call(admission)  # type: ignore[arg-type]


def made(prefix: list[int], prompt: Any, extras: Any = None) -> StagedCallRecord | CaptureFailure:
    return record_of_call(begun(prefix), CallTokens(prompt, [3], [-0.5]), extras, BuildTurns())


FORMS: dict[str, Callable[[list[int]], Any]] = {
    "int64": lambda ids: np.array(ids, np.int64),
    "uint64": lambda ids: np.array(ids, np.uint64),
    "big-endian": lambda ids: np.array(ids, ">i8"),
    "strided": lambda ids: np.repeat(np.array(ids, np.int64), 2)[::2],
    "backwards": lambda ids: np.array(ids[::-1], np.int64)[::-1],
    "column": lambda ids: id_column(ids),
    "signed column": lambda ids: Column(np.array(ids, np.int64)),
    "buffer": lambda ids: array("q", ids),
    "memoryview": lambda ids: memoryview(array("q", ids)),
}
SMALL_FORMS = {
    "uint8": lambda ids: np.array(ids, np.uint8),
    "int16": lambda ids: np.array(ids, np.int16),
    "big-endian uint32": lambda ids: np.array(ids, ">u4"),
}


@pytest.mark.parametrize("prefix", [NARROW, WIDE])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rest", [[], [9], [9, 2**40]])
def test_an_array_makes_the_record_that_a_list_makes(prefix: list[int], form: str, rest: list[int]) -> None:
    record, wanted = made(prefix, FORMS[form](prefix + rest)), made(prefix, prefix + rest)
    assert isinstance(record, StagedCallRecord)
    assert record == wanted
    assert record.token_ids_delta == [*rest, 3]
    assert record.cumulative_hash == compute_prefix_hash([*prefix, *rest, 3])
    assert record.compute_digest() == record.digest
    if prefix is NARROW:  # a wide prefix can widen what follows
        assert record.token_ids_delta.array.dtype == (np.uint64 if 2**40 in rest else np.uint32)


@pytest.mark.parametrize("form", SMALL_FORMS)
def test_a_small_array_makes_the_record_that_a_list_makes(form: str) -> None:
    assert made(NARROW, SMALL_FORMS[form]([*NARROW, 9])) == made(NARROW, [*NARROW, 9])


@pytest.mark.parametrize("prefix", [NARROW, WIDE, [2**64 - 1, 6, 7, 8], [2**63, 6, 7, 8]])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("prompt", "kind", "reason"),
    [
        ([0, 6, 7, 8, 9], "prefix_mismatch", "differs from index 0 on"),
        ([5], "prefix_mismatch", "ends at index|differs from index"),
        ([], "prefix_mismatch", "ends at index 0"),
        ([-1, 6, 7, 8, 9], "invalid_tokens", "token id -1 at index 0 is negative"),
        ([5 - 2**32, 6, 7, 8, 9], "invalid_tokens", "at index 0 is negative"),
        ([-(2**63), 6, 7, 8, 9], "invalid_tokens", "at index 0 is negative"),
        ([5, 6, 7, 2**32 + 8, 9], "prefix_mismatch", "differs from index"),
    ],
)
def test_another_prompt_is_refused_in_whatever_it_is_held(
    prefix: list[int], form: str, prompt: list[int], kind: str, reason: str
) -> None:
    if form in ("uint64", "column") and min(prompt, default=0) < 0:
        prompt = [abs(token) + 1 for token in prompt]
        kind, reason = "prefix_mismatch", "differs from index"
    for given in (FORMS[form](prompt), prompt):
        failure = made(prefix, given)
        assert isinstance(failure, CaptureFailure)
        assert failure.kind == kind
        assert re.search(reason, failure.reason)


@pytest.mark.parametrize("prefix", [NARROW, WIDE])
def test_a_negative_id_behind_the_prefix_is_named_by_its_place_in_the_prompt(prefix: list[int]) -> None:
    failure = made(prefix, np.array([*prefix, 9, -3]))
    assert failure == CaptureFailure("invalid_tokens", "token id -3 at index 5 is negative")


@pytest.mark.parametrize("dtype", [bool, float, object, np.float32, "U1", "m8[s]", complex])
def test_an_array_of_something_else_is_refused_although_it_begins_with_the_prefix(dtype: Any) -> None:
    failure = made([1, 1], np.array([1, 1, 0]).astype(dtype))
    assert failure == CaptureFailure(
        "invalid_tokens", f"prompt_token_ids: an array of {np.dtype(dtype)} holds no token ids"
    )


@pytest.mark.parametrize(
    "values", [np.array([[1, 1, 0]]), np.array(1), Column(np.array([True, True])), Column(np.ones(3))]
)
def test_another_shape_or_another_column_is_no_prompt(values: Any) -> None:
    failure = made([1, 1], values)
    assert isinstance(failure, CaptureFailure)
    assert failure.kind == "invalid_tokens"


@pytest.mark.parametrize("field", ["prompt", "generated", "log_probs"])
def test_what_a_masked_array_hides_is_not_taken_for_equal(field: str) -> None:
    hidden = {
        "prompt": np.ma.MaskedArray([1, 99, 7], [False, True, False]),
        "generated": np.ma.MaskedArray([3, 4], [False, True]),
        "log_probs": np.ma.MaskedArray([-1.0, np.nan], [False, True]),
    }
    tokens = {"prompt": np.array([1, 2, 7]), "generated": np.array([3, 4]), "log_probs": np.array([-1.0, -2.0])}
    failure = record_of_call(begun([1, 2]), CallTokens(**{**tokens, field: hidden[field]}), None, BuildTurns())
    assert isinstance(failure, CaptureFailure)
    assert failure.kind == "invalid_tokens"
    assert "not MaskedArray" in failure.reason
    assert isinstance(record_of_call(begun([1, 2]), CallTokens(**tokens), None, BuildTurns()), StagedCallRecord)


def test_a_record_keeps_its_values_when_those_that_were_given_change() -> None:
    prompt, generated, log_probs = np.array([5, 6, 7, 8, 9]), np.array([3, 4]), np.array([-0.5, -0.25], np.float32)
    deep = {"a": [1, {"b": [2]}], "c": {"d": "e"}}
    record = record_of_call(begun(NARROW), CallTokens(prompt, generated, log_probs), deep, BuildTurns())
    assert isinstance(record, StagedCallRecord)
    for column in (prompt, generated, log_probs):
        column[:] = 0
    deep["a"][1]["b"].append(3)  # type: ignore[index]
    deep["c"]["d"] = "f"  # type: ignore[index, call-overload]
    deep["g"] = 1  # type: ignore[assignment]
    assert record.token_ids_delta == [9, 3, 4]
    assert record.generation_log_probs_delta == [0.0, -0.5, -0.25]
    assert record.extras == {"a": [1, {"b": [2]}], "c": {"d": "e"}}
    assert record.compute_digest() == record.digest
    assert compute_extras_digest(record.extras) == record.extras_digest


class Changing(Mapping[str, Any]):
    """Says something else each time it is read."""

    def __init__(self) -> None:
        self.reads = 0

    def __getitem__(self, key: str) -> int:
        self.reads += 1
        return self.reads

    def __iter__(self) -> Iterator[str]:
        return iter("a")

    def __len__(self) -> int:
        return 1


def test_extras_are_read_once() -> None:
    record = made(NARROW, NARROW, Changing())
    assert isinstance(record, StagedCallRecord)
    assert record.extras == {"a": 1}
    assert record.extras_digest == compute_extras_digest({"a": 1})


@pytest.mark.parametrize("given", [0, 7, None])
def test_the_version_that_was_given_is_stamped_also_if_it_is_the_first(given: int | None) -> None:
    admission = CaptureAdmission(rollout_id="r", model_call_id="c", mode="text")
    call = RolloutTokenCapture(None, lambda: 5).begin_call(admission, weight_version=given)  # type: ignore[arg-type]
    record = record_of_call(call, CallTokens([1], [2], [-0.5]), None, BuildTurns())
    assert isinstance(record, StagedCallRecord)
    assert record.weight_version == (5 if given is None else given)


def test_turns_go_round_and_there_is_always_one() -> None:
    turns = BuildTurns(2)
    first, second, again = turns.turn(), turns.turn(), turns.turn()
    assert first is again
    assert first is not second
    assert BuildTurns().turn() is not None


def test_extras_that_take_their_time_hold_no_other_call_up() -> None:
    """A mapping of the caller's own may wait for anything; it is read before the turn is taken."""
    begun_reading, go_on = threading.Event(), threading.Event()

    class Slow(Mapping[str, Any]):
        def __getitem__(self, name: str) -> Any:
            return len(name)

        def __len__(self) -> int:
            return 1

        def __iter__(self) -> Iterator[str]:
            begun_reading.set()
            assert go_on.wait(20)
            return iter("a")

    turns, made = BuildTurns(1), list[object]()

    def slowly() -> None:
        made.append(record_of_call(begun([1]), CallTokens([1, 5], [2], [-0.5]), Slow(), turns))

    thread = threading.Thread(target=slowly)
    thread.start()
    try:
        assert begun_reading.wait(20)
        assert isinstance(record_of_call(begun([1]), CallTokens([1, 5], [2], [-0.5]), None, turns), StagedCallRecord)
    finally:
        go_on.set()
        thread.join(20)
    assert isinstance(made[0], StagedCallRecord)
