"""When a run with too many masked rollouts ends, and what it says then."""

from __future__ import annotations

import math
import pickle

import pytest

from gym_ray.errors import MaskLimitExceededError
from gym_ray.token_id_capture.mask_limit import MaskLimit


def noted(limit: MaskLimit, sequence: str) -> int | None:
    """Return the index at which the limit is exceeded."""
    for index, sign in enumerate(sequence):
        try:
            limit.note(sign != ".", [sign] if sign != "." else [])
        except MaskLimitExceededError:
            return index
    return None


@pytest.mark.parametrize(
    ("fraction", "min_samples", "sequence", "exceeded_at"),
    [
        (0.5, 4, "mmm.", 3),
        (0.5, 4, "mm..", None),
        (0.0, 1, "..m", 2),
        (1.0, 1, "mmmm", None),
        (None, 1, "mmmm", None),
        (0.5, 50, "m" * 49, None),
        (0.5, 50, "m" * 50, 49),
    ],
)
def test_a_run_ends_when_strictly_more_than_the_share_is_masked(
    fraction: float | None, min_samples: int, sequence: str, exceeded_at: int | None
) -> None:
    assert noted(MaskLimit(fraction, min_samples), sequence) == exceeded_at


def test_a_late_collapse_is_seen_in_the_window_long_before_the_whole_run_shows_it() -> None:
    sequence = "." * 1000 + "m" * 200
    assert noted(MaskLimit(0.5, 4), sequence) is None
    assert noted(MaskLimit(0.5, 4, window=20), sequence) == 1010


def test_the_window_counts_only_when_it_is_full() -> None:
    assert noted(MaskLimit(0.5, 2, window=4), "..m" + "mm") == 4


def test_the_error_counts_the_rollout_that_tipped_the_balance_and_its_reasons() -> None:
    limit = MaskLimit(0.5, 3)
    limit.note(True, ["capture_incomplete", "damaged_line", "capture_incomplete"])
    limit.note(False, ["ignored"])
    with pytest.raises(MaskLimitExceededError) as caught:
        limit.note(True, ["capture_incomplete"])
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.masked, error.finalised, error.max_mask_fraction, error.window) == (2, 3, 0.5, None)
    assert error.reasons == {"capture_incomplete": 2, "damaged_line": 1}
    assert (limit.masked, limit.finalised) == (2, 3)


def test_the_error_of_a_window_has_the_reasons_of_the_window() -> None:
    limit = MaskLimit(0.6, 1, window=3)
    for reason in ("", "", "old", "", "", "", "newest"):
        limit.note(bool(reason), [reason])
    with pytest.raises(MaskLimitExceededError) as caught:
        limit.note(True, ["newest", "capture_incomplete"])
    error = caught.value
    assert (error.masked, error.finalised, error.window) == (2, 3, 3)
    assert error.reasons == {"newest": 2, "capture_incomplete": 1}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((-0.1, 1), "max_mask_fraction"),
        ((1.5, 1), "max_mask_fraction"),
        ((math.nan, 1), "max_mask_fraction"),
        ((0.5, 0), "mask_fraction_min_samples"),
        ((0.5, 10, 9), "mask_fraction_window"),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(arguments: tuple[float, int], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        MaskLimit(*arguments)
