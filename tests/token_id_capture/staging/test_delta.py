"""Deltas: the packed form says what the lists say, and keeps no prompt alive."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.token_id_capture.staging.columns import Column
from gym_ray.token_id_capture.staging.delta import build_staging_delta, packed_delta
from gym_ray.token_id_capture.token_arrays import pack_token_ids

IDS = st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 200_000), max_size=20)


@given(IDS, IDS, st.integers(-2, 22))
def test_the_packed_delta_is_that_of_the_lists(prompt: list[int], generated: list[int], prev_len: int) -> None:
    probs = [-0.5 - at for at in range(len(generated))]
    arrays = (pack_token_ids(prompt), pack_token_ids(generated), np.array(probs, np.float32))
    if not 0 <= prev_len <= len(prompt) or len(prompt) + len(generated) == prev_len:
        for build, values in ((build_staging_delta, (prompt, generated, probs)), (packed_delta, arrays)):
            with pytest.raises(ValueError, match=r"prev_len is|adds no token"):
                build(*values, prev_len)
        return
    expected = build_staging_delta(prompt, generated, probs, prev_len)
    made = packed_delta(*arrays, prev_len)
    assert tuple(map(Column[Any], (made.token_ids, made.token_mask, made.log_probs))) == expected


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log_probs_keep_their_type(dtype: type[np.float32] | type[np.float64]) -> None:
    ids = pack_token_ids([1, 2])
    made = packed_delta(ids, ids, np.array([-0.1, -0.2], dtype), 1)
    assert made.log_probs.dtype == dtype
    assert made.log_probs.tolist() == [0.0, *np.array([-0.1, -0.2], dtype).tolist()]
    assert not np.signbit(made.log_probs[0])


def test_a_delta_of_generated_tokens_alone_owns_its_memory() -> None:
    prompt, generated = pack_token_ids(range(100_000)), pack_token_ids([5])
    made = packed_delta(prompt, generated, np.array([-1.0], np.float32), 100_000)
    for column in (made.token_ids, made.token_mask, made.log_probs):
        assert column.base is None
        assert column.size == 1
    assert made.token_ids is not generated


@pytest.mark.parametrize("at", [0, 1, 2])
def test_anything_but_a_list_is_a_type_error(at: int) -> None:
    given_lists: list[Any] = [[1], [2], [-0.5]]
    given_lists[at] = tuple(given_lists[at])
    with pytest.raises(TypeError, match="of lists, not of tuple"):
        build_staging_delta(given_lists[0], given_lists[1], given_lists[2], 0)
