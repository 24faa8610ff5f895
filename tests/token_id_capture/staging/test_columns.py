"""Columns read like lists, hold arrays, and never change a value."""

from __future__ import annotations

import copy
import pickle
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.testing.spelled_values import FloatOfItsOwn, IntOfItsOwn
from gym_ray.token_id_capture.staging.columns import Column, id_column, log_prob_column, mask_column

IDS = st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 2**32 - 1), max_size=30)
MASKS = st.lists(st.sampled_from([0.0, -0.0, 1.0]), max_size=30)
PROBS = st.lists(st.floats(-1e30, 1e30) | st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=30)


def behaves_like(column: Column[Any], values: list[Any]) -> None:
    assert column == values == column.tolist() == list(column)
    assert column == tuple(values)
    assert values == column
    assert [type(value) for value in column] == [type(value) for value in values]
    assert len(column) == len(values)
    assert list(reversed(column)) == values[::-1]
    one: list[Any] = [1]
    assert column + one == [*values, 1]
    assert one + column == [1, *values]
    assert column + column == values + values
    for at in range(-len(values), len(values)):
        assert column[at] == values[at]
        assert type(column[at]) is type(values[at])
    for part in (slice(None, None, -1), slice(1, 3), slice(-2, None)):
        assert column[part] == values[part]
    assert all(value in column for value in values)
    assert "x" not in column
    copied = pickle.loads(pickle.dumps(column))
    assert copied == column == copy.deepcopy(column)
    assert copied.array.dtype == column.array.dtype
    assert not copied.array.flags.writeable


@given(IDS)
def test_ids(ids: list[int]) -> None:
    column = id_column(ids)
    behaves_like(column, ids)
    assert column.array.dtype == (np.uint32 if max(ids, default=0) < 2**32 else np.uint64)
    assert id_column(np.array(ids, np.uint64)) == column == id_column(tuple(ids)) == id_column(column)


@given(MASKS)
def test_masks(mask: list[float]) -> None:
    column = mask_column(mask)
    behaves_like(column, mask)
    signed = bool(np.signbit(mask).any())
    assert column.array.dtype == (np.float32 if signed else np.bool_)
    assert np.signbit(column.tolist()).tolist() == np.signbit(mask).tolist()
    for form in (np.array(mask, np.float64), np.array(mask, np.float32), column):
        assert mask_column(form).array.dtype == column.array.dtype
        assert np.signbit(np.asarray(mask_column(form))).tolist() == np.signbit(column.array).tolist()
    assert mask_column([int(value) for value in mask]) == mask == mask_column(np.array(mask, np.uint8))


@given(PROBS)
def test_log_probs_of_a_list_stay_as_they_are(probs: list[float]) -> None:
    column = log_prob_column(probs)
    behaves_like(column, probs)
    exact = all(value == float(np.float32(value)) for value in probs)
    assert column.array.dtype == (np.float32 if exact else np.float64)
    assert log_prob_column(column).array.dtype == column.array.dtype


@given(PROBS)
def test_log_probs_of_an_array_are_those_of_float32(probs: list[float]) -> None:
    given_array = np.array(probs, np.float64)
    column = log_prob_column(given_array)
    with np.errstate(under="ignore"):
        rounded = given_array.astype(np.float32)
    vanished = bool(((rounded == 0) & (given_array != 0)).any())
    assert column.array.dtype == (np.float64 if vanished else np.float32)
    assert column == (given_array if vanished else rounded)
    assert log_prob_column(rounded) == rounded.tolist()


def test_numbers_of_other_types_become_plain() -> None:
    assert [type(value) for value in log_prob_column([np.float64(-0.5), FloatOfItsOwn(-1.5), -2])] == [float] * 3
    assert [type(value) for value in id_column([IntOfItsOwn(7)])] == [int]
    assert log_prob_column(array("f", [-0.5])) == [-0.5]
    assert id_column(memoryview(array("Q", [2**63]))) == [2**63]


def test_a_read_only_array_is_shared_and_another_one_copied() -> None:
    ids = np.array([1, 2, 3], np.uint32)
    copied = id_column(ids)
    ids[0] = 9
    assert copied == [1, 2, 3]
    ids.flags.writeable = False
    assert id_column(ids).array is ids
    probs = np.array([-0.5], np.float32)
    probs.flags.writeable = False
    assert log_prob_column(probs).array is probs


def test_a_column_cannot_be_changed() -> None:
    column = Column[int](np.array([1, 2]))
    with pytest.raises(ValueError, match="read-only"):
        column.array[0] = 5
    with pytest.raises(TypeError, match="item assignment"):
        column[0] = 5  # type: ignore[index]
    with pytest.raises(TypeError, match="unhashable"):
        hash(column)


def test_a_part_of_a_long_array_is_pickled_alone() -> None:
    column = Column[int](np.arange(100_000))[10:12]
    assert len(pickle.dumps(column)) < 500
    assert pickle.loads(pickle.dumps(column, protocol=5)) == [10, 11]


def test_numpy_reads_a_column_without_copying() -> None:
    column = mask_column([0.0, 1.0])
    assert np.asarray(column) is column.array
    assert np.array(column) is not column.array
    assert np.asarray(column, np.float32).tolist() == [0.0, 1.0]
    with pytest.raises(ValueError, match="only as a copy"):
        np.asarray(column, np.float32, copy=False)


def test_columns_differ_in_value_order_and_length() -> None:
    column = id_column([1, 2])
    for other in ([1], [2, 1], [1, 2, 3], [1, 3], (1,), id_column([1, 3]), np.array([1]), "12", None, {1, 2}):
        assert column != other
    assert repr(column) == "Column([1, 2])"


@pytest.mark.parametrize(
    ("make", "values", "named"),
    [
        (id_column, [1, True], "token id True at index 1 is not an integer"),
        (id_column, [1.0], "token id 1.0 at index 0"),
        (id_column, [np.int64(1)], "at index 0 is not an integer"),
        (id_column, [5, -1], "token id -1 at index 1 is negative"),
        (id_column, [2**64], "2\\*\\*64 or more"),
        (id_column, np.array([0.5]), "token ids must be integers"),
        (id_column, "12", "must be a list, tuple or array, not str"),
        (id_column, None, "must be a list, tuple or array, not NoneType"),
        (mask_column, [0.0, 0.5], "mask value 0.5 at index 1 is neither"),
        (mask_column, [False], "mask value False at index 0 is not a float"),
        (mask_column, ["1"], "mask value '1' at index 0"),
        (mask_column, np.array([0, 2]), "mask value 2 at index 1"),
        (mask_column, np.array([float("nan")]), "mask value nan at index 0"),
        (mask_column, np.array([[1.0]]), "one-dimensional"),
        (log_prob_column, [float("nan")], "log prob nan at index 0"),
        (log_prob_column, [0.0, 1e39], r"log prob 1e\+39 at index 1 is no finite float32"),
        (log_prob_column, np.array([-np.inf], np.float32), "log prob -inf at index 0"),
        (log_prob_column, [10**400], "an integer that no float can hold"),
        (log_prob_column, [True], "log prob True at index 0"),
        (log_prob_column, np.array([1]), "must be floats, not an array of int64"),
        (log_prob_column, np.array([None]), "one-dimensional array of numbers"),
        (log_prob_column, np.array([1.0], np.longdouble), "one-dimensional array of numbers"),
        (Column, np.array([[1]]), "a column is a one-dimensional array of numbers"),
        (Column, np.array(["a"]), "a column is a one-dimensional array of numbers"),
        (Column, np.ma.MaskedArray([1]), "not MaskedArray"),
        (id_column, np.ma.MaskedArray([1]), "not MaskedArray"),
        (id_column, np.array([1, True], object), "token ids must be integers, not an array of object"),
        (id_column, memoryview(np.array([1, True], object)), "token ids must be integers, not an array of object"),
        (mask_column, np.ma.MaskedArray([1.0]), "not MaskedArray"),
        (log_prob_column, np.ma.MaskedArray([1.0]), "not MaskedArray"),
        (log_prob_column, Column(np.array([True])), "must be floats, not an array of bool"),
        (log_prob_column, Column(np.array([1])), "must be floats, not an array of int64"),
        (log_prob_column, Column(np.array([0.5, np.nan])), "log prob nan at index 1"),
        (log_prob_column, Column(np.array([np.inf], np.float32)), "log prob inf at index 0"),
        (mask_column, Column(np.array([0.5])), "mask value 0.5 at index 0"),
    ],
)
def test_what_is_no_column_is_refused_by_name(make: Any, values: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        make(values)


def test_a_column_of_log_probs_becomes_one_that_no_value_of_is_rounded() -> None:
    assert log_prob_column(Column(np.array([-0.1]))).array.dtype == np.float64
    assert log_prob_column(Column(np.array([-0.1]))) == [-0.1]
    assert log_prob_column(Column(np.array([-0.5], ">f4"))).array.dtype == np.dtype("f4")


def test_a_mapped_file_is_an_array_like_any_other(tmp_path: Path) -> None:
    np.array([1, 2], np.uint32).tofile(tmp_path / "ids")
    mapped = np.memmap(tmp_path / "ids", np.uint32, "r")
    assert type(id_column(mapped).array) is np.ndarray
    assert id_column(mapped) == [1, 2]


def test_a_column_does_not_lock_the_array_that_it_shares() -> None:
    values = np.array([1, 2])
    column = Column(values)
    assert np.shares_memory(column.array, values)
    assert values.flags.writeable
    assert not column.array.flags.writeable
