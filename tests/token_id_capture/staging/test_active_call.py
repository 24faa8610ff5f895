"""What a prefix may be, and that a call is claimed once."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest

from gym_ray.errors import CaptureError
from gym_ray.token_id_capture.staging import ActiveCall, CaptureAdmission, Column
from gym_ray.token_id_capture.staging.active_call import resolved_prefix

ROOT = CaptureAdmission(rollout_id="r0", model_call_id="c0", mode="text")
CHILD: dict[str, Any] = {"rollout_id": "r0", "model_call_id": "c1", "parent_call_id": "c0", "mode": "token_in"}
CHILD |= {"parent_chain_hash": "a" * 64, "prev_len": 3}
CHAINED = CaptureAdmission(**CHILD, staging_chain=["r0/c0"])
INLINE = CaptureAdmission(**CHILD, required_prefix_token_ids=[1, 2, 3])
BOTH = CaptureAdmission(**CHILD, required_prefix_token_ids=[1, 2, 3], staging_chain=["r0/c0"])


@pytest.mark.parametrize("admission", [CHAINED, INLINE, BOTH])
@pytest.mark.parametrize(
    "given",
    [
        [1, 2, 3],
        np.array([1, 2, 3]),
        np.array([1, 2, 3], np.uint8),
        np.arange(6)[1:4],
        array("I", [1, 2, 3]),
        memoryview(array("q", [1, 2, 3])),
        Column(np.array([1, 2, 3], np.uint32)),
    ],
    ids=lambda given: type(given).__name__,
)
def test_a_prefix_can_come_as_a_list_or_as_any_array(admission: CaptureAdmission, given: Any) -> None:
    assert resolved_prefix(admission, given) == [1, 2, 3]


@pytest.mark.parametrize(
    ("admission", "given", "why"),
    [
        (CHAINED, None, "its staging_chain was not given"),
        (CHAINED, [1, 2], "has 3 ids, not 2"),
        (CHAINED, [1, 2, 3, 4], "has 3 ids, not 4"),
        (CHAINED, np.ma.MaskedArray([1, 9, 3], [False, True, False]), "not MaskedArray"),
        (INLINE, [1, 2, 4], "not the one that it was admitted with"),
        (INLINE, [], "has 3 ids, not 0"),
        (ROOT, [1], "text mode has no prefix"),
        (CHAINED, (1, 2, 3), "not a tuple"),
        (CHAINED, "123", "must be a list"),
        (CHAINED, [1, 2, -3], "negative"),
        (CHAINED, [1, True, 3], "True at index 1"),
        (CHAINED, np.array([1.0, 2.0, 3.0]), "array of float64"),
        (CHAINED, np.array([1, True, 3], object), "array of object"),
        (CHAINED, np.array([[1, 2, 3]]), "one-dimensional"),
    ],
)
def test_a_prefix_that_cannot_be_is_the_callers_mistake(admission: CaptureAdmission, given: Any, why: str) -> None:
    with pytest.raises(CaptureError, match=why) as caught:
        resolved_prefix(admission, given)
    assert str(caught.value).startswith(f"rollout r0: call {admission.model_call_id}: ")


def test_without_an_argument_the_prefix_is_that_of_the_admission() -> None:
    assert resolved_prefix(INLINE, None) == [1, 2, 3]
    assert resolved_prefix(ROOT, None) == []
    assert resolved_prefix(ROOT, np.array([], np.int64)) == []


def test_a_call_is_claimed_once() -> None:
    call = ActiveCall(ROOT, 1, ROOT.required_prefix_token_ids)
    assert not call.completed
    call.claim()
    assert call.completed
    with pytest.raises(CaptureError, match="rollout r0: call c0 was completed before"):
        call.claim()
