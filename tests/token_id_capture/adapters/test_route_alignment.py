"""Expert routes are cut to the tokens that a call stages, a row for each, or stay as they came."""

from __future__ import annotations

import base64
import io
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gym_ray.token_id_capture.adapters import classify_route_span, decode_routed_experts, encode_routed_experts
from gym_ray.token_id_capture.adapters.route_alignment import CallLengths, aligned_routes

LENGTHS = CallLengths(prev_len=5, prompt_len=8, generation_len=4)  # 12 tokens, 7 of them staged
NONE = [[-1, -1], [-1, -1]]


def rows(count: int, dtype: Any = np.int64, start: int = 0) -> Any:
    """Rows that say which token they belong to."""
    return np.arange(start, start + count).repeat(4).reshape(count, 2, 2).astype(dtype)


def npy(values: Any, **kwargs: Any) -> str:
    file = io.BytesIO()
    np.save(file, values, **kwargs)
    return base64.b64encode(file.getvalue()).decode()


def staged(payload: object, lengths: CallLengths = LENGTHS, start: int | None = None) -> Any:
    """Decode what is staged, and check that readers take every row for a token of the call."""
    decoded = decode_routed_experts(aligned_routes(payload, lengths, start)).values
    carried = lengths.delta_len - lengths.generation_len
    assert classify_route_span(carried, lengths.generation_len, len(decoded)) == "full"
    return decoded


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32])
def test_stock_routes_of_a_whole_call_become_those_of_its_delta(dtype: Any) -> None:
    found = staged(npy(rows(11, dtype)))
    assert found.tolist() == [*rows(6, start=5).tolist(), NONE]
    assert aligned_routes(npy(rows(11, dtype)), LENGTHS).startswith("nrlre1:int16:7x2x2:")


@pytest.mark.parametrize(
    ("count", "first", "start", "wanted"),
    [
        (11, 0, 0, [*rows(6, start=5).tolist(), NONE]),
        (6, 5, 5, [*rows(6, start=5).tolist(), NONE]),
        (6, 5, None, [*rows(6, start=5).tolist(), NONE]),
        (9, 2, 2, [*rows(6, start=5).tolist(), NONE]),
        (4, 7, 7, [NONE, NONE, *rows(4, start=7).tolist(), NONE]),
        (12, 0, None, rows(7, start=5).tolist()),
        (7, 5, None, rows(7, start=5).tolist()),
        (7, 5, 5, rows(7, start=5).tolist()),
    ],
)
def test_routes_that_leave_prompt_tokens_out_are_placed_by_where_they_start(
    count: int, first: int, start: int | None, wanted: Any
) -> None:
    assert staged(npy(rows(count, np.uint8, first)), start=start).tolist() == wanted


def test_a_root_gets_a_sentinel_behind_its_last_token() -> None:
    found = staged(npy(rows(11, np.uint8)), CallLengths(0, 8, 4))
    assert found.tolist() == [*rows(11).tolist(), NONE]


def test_experts_beyond_16_bits_are_kept_whole() -> None:
    payload = aligned_routes(npy(rows(11, np.uint16) + np.uint16(60000)), LENGTHS)
    assert isinstance(payload, str)
    assert payload.startswith("nrlre1:int32:")
    assert decode_routed_experts(payload).values[0, 0, 0] == 60005


def test_experts_beyond_32_bits_are_not_cut_to_others(caplog: pytest.LogCaptureFixture) -> None:
    payload = npy(rows(11, np.uint64) + np.uint64(1 << 32))
    assert aligned_routes(payload, LENGTHS) == payload
    assert "do not fit int32" in caplog.text


@pytest.mark.parametrize("form", [lambda values: encode_routed_experts(values, "int8"), lambda values: values.tolist()])
def test_routes_of_patched_workers_keep_their_form(form: Any) -> None:
    whole, short = aligned_routes(form(rows(12)), LENGTHS), aligned_routes(form(rows(11)), LENGTHS)
    assert whole == form(rows(7, start=5))
    assert short == form(np.concatenate((rows(6, start=5), [NONE])))


@pytest.mark.parametrize("form", [encode_routed_experts, lambda values: values.tolist()])
@pytest.mark.parametrize("count", [7, 4])
def test_routes_of_the_delta_or_of_the_generation_stay_as_they_are(form: Any, count: int) -> None:
    payload = form(rows(count))
    assert aligned_routes(payload, LENGTHS) is payload


@pytest.mark.parametrize("form", [encode_routed_experts, lambda values: values.tolist()])
@pytest.mark.parametrize(
    "lengths",
    [CallLengths(1, 8, 4), CallLengths(0, 1, 11), CallLengths(1, 1, 11)],
    ids=["all but the parent's one token", "all but the prompt's one token", "both"],
)
def test_routes_with_two_places_are_left_out(form: Any, lengths: CallLengths, caplog: pytest.LogCaptureFixture) -> None:
    assert aligned_routes(form(rows(11)), lengths) is None
    assert "are left out: 11 rows begin with the first token, or with the second" in caplog.text
    assert aligned_routes(form(rows(10)), lengths) == form(rows(10))
    assert staged(form(rows(12)), lengths).tolist() == rows(lengths.delta_len, start=lengths.prev_len).tolist()


@pytest.mark.parametrize(
    "payload",
    [
        npy(rows(10, np.uint8)),
        npy(rows(11, np.float32)),
        npy(rows(11, np.uint8).reshape(11, 4)),
        npy(rows(11, np.uint8))[:-8],
        npy(rows(11, np.uint8))[:20],
        "k05VTVBZ not base64",
        "nrlre1:int16:12x2x2:@@",
        "nrlre1:int16",
        [[[1]], 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
        [],
    ],
)
def test_routes_that_cannot_be_placed_stay_as_they_came_and_are_said(
    payload: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert aligned_routes(payload, LENGTHS) is payload
    assert "are staged as the engine gave them" in caplog.text


@pytest.mark.parametrize("payload", ["garbage", {"any": 1}, "", "nrlre1"])
def test_what_is_no_known_form_is_not_looked_at(payload: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    assert aligned_routes(payload, LENGTHS) is payload
    assert caplog.records == []


class Trap:
    """Makes a directory when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_pickled_routes_are_never_loaded(tmp_path: Path) -> None:
    payload = npy(np.array([[[Trap(tmp_path / "loaded")]]], object), allow_pickle=True)
    assert aligned_routes(payload, LENGTHS) is payload
    assert not (tmp_path / "loaded").exists()


def test_stock_routes_of_all_but_the_last_token_begin_with_the_first() -> None:
    found = staged(npy(rows(11, np.uint8)), CallLengths(1, 8, 4))
    assert found.tolist() == [*rows(10, start=1).tolist(), NONE]
