from __future__ import annotations

import math
from typing import Any

import pytest

from gym_ray.token_id_capture.adapters.log_prob_column import LogProbColumn


def taken(items: Any) -> LogProbColumn:
    column = LogProbColumn()
    column.take_items(items)
    return column


def test_values_keep_their_order_and_the_ids_beside_them() -> None:
    column = LogProbColumn()
    assert column.take_items([{"logprob": -0.5, "token_id": 7}, {"logprob": -1, "token": "token_id:8"}]) == 2
    assert column.take_items([{"logprob": 0.0, "token_id": 9}]) == 1
    assert column.values.tolist() == [-0.5, -1.0, 0.0]
    assert column.named is not None
    assert column.named.tolist() == [7, 8, 9]
    assert (len(column), column.absent_at) == (3, None)


def test_one_value_without_an_id_leaves_none_named() -> None:
    assert taken([{"logprob": -0.5, "token_id": 7}, {"logprob": -0.5, "token": "a"}]).named is None


@pytest.mark.parametrize("text", ["token_id:", "token_id:x", "token_id:-1", f"token_id:{2**64}", "7", None])
def test_a_text_that_holds_no_id_names_no_token(text: object) -> None:
    assert taken([{"logprob": -0.5, "token": text}]).named is None


@pytest.mark.parametrize("value", [None, "-0.5", True, -9999.0])
def test_the_first_value_that_the_engine_did_not_have_is_remembered(value: object) -> None:
    column = taken([{"logprob": -0.5}, {"logprob": value}, {}])
    assert column.absent_at == 1
    assert [math.isnan(each) for each in column.values] == [False, True, True]


def test_an_integer_beyond_every_float_is_no_log_probability() -> None:
    assert taken([{"logprob": 10**400}]).values.tolist() == [math.inf]


@pytest.mark.parametrize("items", [None, {}, "ab", 3])
def test_what_is_no_list_has_no_items(items: object) -> None:
    assert len(taken(items)) == 0


def test_bare_values_and_pairs() -> None:
    column = LogProbColumn()
    column.take_values([-0.5, -0.25])
    assert (column.values.tolist(), column.named) == ([-0.5, -0.25], None)
    column = LogProbColumn()
    column.take_pairs([[-0.5, 7, "a"], [-0.25, 8, None]])
    assert column.named is not None
    assert (column.values.tolist(), column.named.tolist()) == ([-0.5, -0.25], [7, 8])
    column.take_pairs([[-0.5]])
    assert (column.absent_at, column.named) == (2, None)
