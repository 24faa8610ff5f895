"""Which records of expert routing fit a call; the payload itself is never touched."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest

from gym_ray.token_id_capture.adapters.routed_experts import fitting_experts


def encoded(values: Any) -> str:
    file = io.BytesIO()
    np.save(file, values)
    return base64.b64encode(file.getvalue()).decode()


def rows(count: int, dtype: Any = np.uint8) -> Any:
    return (np.arange(count * 4) % 7 + 1).reshape(count, 2, 2).astype(dtype)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32])
@pytest.mark.parametrize(("count", "tokens", "start"), [(5, 6, 0), (6, 6, 0), (24, 60, 35), (0, 1, 0)])
def test_an_array_that_fits_is_kept_as_it_is(dtype: Any, count: int, tokens: int, start: int) -> None:
    payload = encoded(rows(count, dtype))
    assert fitting_experts([payload], tokens, start) == (payload, "")


@pytest.mark.parametrize(
    ("payload", "tokens", "start", "why"),
    [
        (encoded(rows(4)), 6, 0, "experts_gap: 4 rows for 6 tokens from 0 on, 5 fit"),
        (encoded(rows(7)), 6, 0, "experts_gap"),
        (encoded(rows(60 - 36 - 1)), 60, 35, "experts_gap"),  # B36: a delta whose start is off by one
        (encoded(np.zeros((6, 2, 2), np.uint8)), 6, 0, "experts_suspect: all 6 rows are 0"),
        (encoded(np.zeros((5, 2, 2), np.int32)), 6, 0, "experts_suspect"),
        ([[[0, 0]]] * 5, 6, 0, "experts_suspect"),
        ([[[1, 0]]] * 3, 6, 0, "experts_gap"),
        (encoded(rows(5))[:-8], 6, 0, "experts_unreadable: "),
        (encoded(rows(5))[:-3], 6, 0, "experts_unreadable"),
        (encoded(rows(5))[:40], 6, 0, "experts_unreadable"),
        ("", 6, 0, "experts_unreadable"),
        ("no base64 \u2028", 6, 0, "experts_unreadable"),
        (encoded(np.array(5, np.uint8)), 6, 0, "experts_unreadable"),
        (encoded(np.zeros(5, "S3")), 6, 0, "experts_suspect"),
        (7, 6, 0, "experts_unreadable: int"),
        ({}, 6, 0, "experts_unreadable: dict"),
    ],
)
def test_an_array_that_does_not_fit_is_left_out_and_said(payload: Any, tokens: int, start: int, why: str) -> None:
    kept, said = fitting_experts([payload], tokens, start)
    assert kept is None
    assert said.startswith(why)


def test_one_value_is_enough_to_say_something() -> None:
    for at in range(20):
        values = np.zeros((5, 2, 2), np.uint8)
        values.flat[at] = 1
        payload = encoded(values)
        assert fitting_experts([payload], 6) == (payload, ""), at


def test_no_array_is_nothing_to_say_and_two_are_nothing_to_join() -> None:
    assert fitting_experts([], 6) == (None, "")
    assert fitting_experts([encoded(rows(2)), encoded(rows(3))], 6)[1].startswith("experts_parts: 2 arrays")


def test_a_large_array_is_not_decoded() -> None:
    payload = encoded(rows(50_000, np.int32))
    assert fitting_experts([payload], 50_001)[0] is payload
