from __future__ import annotations

import hashlib
import struct
from array import array
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.token_id_capture.token_arrays import (
    DIGEST_DOMAIN,
    EMPTY_DIGEST,
    TokenArray,
    digest_packed,
    encode_packed,
    join_tokens,
    pack_log_probs,
    pack_token_ids,
    starts_with,
)

token_lists = st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 2**64 - 1), max_size=40)


def encoded_one_by_one(ids: list[int]) -> bytes:
    return b"\x01" + struct.pack(">Q", len(ids)) + b"".join(struct.pack(">Q", one) for one in ids)


@given(token_lists)
def test_packing_keeps_every_id(ids: list[int]) -> None:
    packed = pack_token_ids(ids)
    assert packed.tolist() == ids
    assert packed.dtype == (np.uint64 if max(ids, default=0) >= 2**32 else np.uint32)
    assert packed.flags.c_contiguous
    assert not packed.flags.writeable
    for other in (
        np.array(ids, np.uint64),
        array("Q", ids),
        memoryview(array("Q", ids)),
        tuple(ids),
        np.array(ids, ">u8"),
    ):
        again = pack_token_ids(other)
        assert again.tolist() == ids
        assert again.dtype == packed.dtype
        assert not again.flags.writeable


@given(token_lists)
def test_the_encoding_is_that_of_ids_one_by_one(ids: list[int]) -> None:
    packed = pack_token_ids(ids)
    assert encode_packed(packed) == encoded_one_by_one(ids)
    expected = hashlib.sha256(DIGEST_DOMAIN + encoded_one_by_one(ids)).hexdigest() if ids else EMPTY_DIGEST
    assert digest_packed(packed) == expected


@pytest.mark.parametrize("count", [8191, 8192, 8193, 20_000])
def test_a_digest_does_not_depend_on_the_blocks_that_it_is_hashed_in(count: int) -> None:
    packed = pack_token_ids(range(count))
    assert digest_packed(packed) == hashlib.sha256(DIGEST_DOMAIN + encoded_one_by_one(list(range(count)))).hexdigest()
    assert digest_packed(packed[::1]) == digest_packed(pack_token_ids(np.arange(count, dtype=np.int64)))


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64])
def test_every_integer_type_is_taken(dtype: Any) -> None:
    assert pack_token_ids(np.array([0, 5, 127], dtype)).tolist() == [0, 5, 127]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([4, -9, -2], "token id -9 at index 1 is negative"),
        ([1.5, 2**64, -3], "token id -3 at index 2 is negative"),
        ([1, 2**64], "token id 18446744073709551616 at index 1 is 2\\*\\*64 or more"),
        ([1, 2.0], "token id 2.0 at index 1 is not an integer"),
        ([1, "2"], "token id '2' at index 1 is not an integer"),
        ([1, None], "token id None at index 1 is not an integer"),
        ("12", "sequence of numbers, not str"),
        (b"12", "sequence of numbers, not bytes"),
        (7, "sequence of numbers, not int"),
        ({1: 2}, "sequence of numbers, not dict"),
        ({1, 2}, "sequence of numbers, not set"),
        (np.array([3, -1, -2]), "token id -1 at index 1 is negative"),
        (np.array([-5], np.int8), "token id -5 at index 0 is negative"),
        (np.array([2**64, 1]), "token id 18446744073709551616 at index 0 is 2\\*\\*64 or more"),
        (np.array([1, -(2**70)], object), "token id -1180591620717411303424 at index 1 is negative"),
        (np.array([1.0, 2.0]), "integers, not an array of float64"),
        (np.array([True]), "integers, not an array of bool"),
        (np.array([[1, 2]]), "one-dimensional, not of shape \\(1, 2\\)"),
        (np.array(3), "one-dimensional"),
        (array("d", [1.0]), "integers, not an array of float64"),
    ],
)
def test_what_is_no_token_id_is_refused_and_named(values: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack_token_ids(values)


def test_a_writable_array_is_copied_and_a_read_only_one_shared() -> None:
    writable = np.array([1, 2, 3], np.uint32)
    packed = pack_token_ids(writable)
    writable[0] = 9
    assert packed.tolist() == [1, 2, 3]
    assert pack_token_ids(packed) is packed
    assert np.shares_memory(pack_token_ids(packed[1:]), packed)
    wide = pack_token_ids(np.array([1, 2], np.uint64))
    assert wide.dtype == np.uint32


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([-0.5, 0, -1.25], np.float32),
        ([-0.1], np.float64),
        ([float(np.float32(-0.1))], np.float32),
        ([-1e300], np.float64),
        ([1e-60], np.float64),
        ([], np.float32),
        (np.array([-0.1], np.float32), np.float32),
        (np.array([-0.1]), np.float64),
        (np.array([-0.5], np.float16), np.float32),
        (np.array([-2, 0]), np.float32),
        (np.array([-0.5, -1], object), np.float32),
        (array("f", [-0.5]), np.float32),
        (memoryview(array("d", [-0.1])), np.float64),
        ((np.float32(-0.5), True), np.float32),
    ],
)
def test_log_probs_are_kept_exactly(values: Any, dtype: Any) -> None:
    packed = pack_log_probs(values)
    assert packed.dtype == dtype
    assert packed.tolist() == [float(value) for value in values]
    assert not packed.flags.writeable
    assert packed.flags.c_contiguous


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False)))
def test_any_finite_log_prob_survives(values: list[float]) -> None:
    packed = pack_log_probs(values)
    assert [struct.pack("d", value) for value in packed.tolist()] == [struct.pack("d", value) for value in values]
    narrow = all(abs(value) < 3e38 and float(np.float32(value)) == value for value in values)
    assert packed.dtype == (np.float32 if narrow else np.float64)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([-0.5, float("nan")], "log prob nan at index 1 is not finite"),
        ([float("-inf")], "log prob -inf at index 0 is not finite"),
        (np.array([0.0, np.inf], np.float32), "log prob inf at index 1 is not finite"),
        ([0.0, None], "log prob None at index 1 is not a number"),
        ([0.0, "1"], "log prob '1' at index 1 is not a number"),
        ([10**400], "log prob 1000+ at index 0 is not a number that a float can hold"),
        (np.array([[0.5]]), "one-dimensional"),
        (np.array(["a"]), "log prob 'a' at index 0 is not a number"),
        ("0.5", "sequence of numbers, not str"),
        (0.5, "sequence of numbers, not float"),
    ],
)
def test_what_is_no_log_prob_is_refused_and_named(values: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack_log_probs(values)


def test_a_writable_float_array_is_copied() -> None:
    for dtype in (np.float32, np.float64):
        writable = np.array([-0.1, -0.2], dtype)
        packed = pack_log_probs(writable)
        writable[0] = 7
        assert packed[0] == dtype(-0.1)
        assert pack_log_probs(packed) is packed


@given(token_lists, token_lists, st.integers(0, 40))
def test_starts_with_is_that_of_lists(ids: list[int], other: list[int], cut: int) -> None:
    packed = pack_token_ids(ids)
    for prefix in (other, ids[:cut], [*ids[:cut], 1]):
        expected = ids[: len(prefix)] == prefix
        assert starts_with(packed, pack_token_ids(prefix)) is expected
        assert starts_with(packed, np.array(prefix, np.uint64)) is expected


@given(st.lists(token_lists, max_size=4))
def test_joining_is_that_of_lists(parts: list[list[int]]) -> None:
    joined = join_tokens([pack_token_ids(part) for part in parts])
    assert joined.tolist() == [one for part in parts for one in part]
    assert not joined.flags.writeable


def in_one_buffer(values: list[int], *cuts: int) -> tuple[TokenArray, list[TokenArray]]:
    owner = np.array(values, np.uint32)
    edges = [0, *cuts, len(values)]
    return owner, [owner[start:end] for start, end in pairwise(edges)]


def test_neighbours_in_one_buffer_are_joined_without_a_copy() -> None:
    owner, parts = in_one_buffer(list(range(10)), 3, 3, 7)
    joined = join_tokens(parts[1:])
    assert joined.tolist() == list(range(3, 10))
    assert np.shares_memory(joined, owner)
    assert not joined.flags.writeable
    assert join_tokens(parts[:1]) is parts[0]


def test_parts_that_are_apart_are_copied() -> None:
    owner, parts = in_one_buffer(list(range(10)), 3, 7)
    for chosen in (
        [parts[0], parts[2]],
        [parts[1], parts[0]],
        [parts[0], pack_token_ids([3, 4])],
        [owner[::2], owner[1:3]],
    ):
        joined = join_tokens(chosen)
        assert joined.tolist() == [one for part in chosen for one in part.tolist()]
        assert not np.shares_memory(joined, owner)


def test_ids_of_both_widths_join() -> None:
    joined = join_tokens([pack_token_ids([1]), pack_token_ids([2**63])])
    assert joined.tolist() == [1, 2**63]
    assert join_tokens([]).size == 0
