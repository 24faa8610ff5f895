"""Values are judged by exact types in lists and by dtype in arrays, and never changed on the way into a hash."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gym_ray.token_id_capture.staging.columns import Column
from gym_ray.token_id_capture.staging.hash_input import (
    checked_digest,
    float32_values,
    read_u64,
    strict_floats,
    strict_token_ids,
)


def test_packed_values_are_taken_as_they_are() -> None:
    ids, mask = np.array([1, 2], np.uint32), np.array([True])
    ids.flags.writeable = False
    assert strict_token_ids(ids) is ids
    assert strict_token_ids(Column(ids)) is ids
    assert strict_floats(mask, "mask") is mask
    assert float32_values(mask, "mask") is mask
    probs = np.array([-0.5], np.float32)
    assert float32_values(strict_floats(probs, "log probs"), "log probs") is probs


@pytest.mark.parametrize("value", [-1, 2**64, True, 1.0, "1", None, np.int64(1)])
def test_a_length_is_an_exact_integer_of_64_bits(value: Any) -> None:
    assert read_u64(2**64 - 1, "prev_len") == 2**64 - 1
    with pytest.raises(ValueError, match="prev_len"):
        read_u64(value, "prev_len")


@pytest.mark.parametrize("value", ["a" * 63, "a" * 65, "A" * 64, "a" * 64 + "\n", b"a" * 64, 7, "\uff11" * 64, ""])
def test_a_digest_is_64_lowercase_hex_digits(value: Any) -> None:
    assert checked_digest("0f" * 32, "digest") == bytes([15] * 32)
    with pytest.raises(ValueError, match=r"chain_hash .* is not 64 lowercase hex digits"):
        checked_digest(value, "chain_hash")
    with pytest.raises(TypeError, match="chain_hash is missing"):
        checked_digest(None, "chain_hash")
