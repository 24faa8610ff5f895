from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray import exact_json

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**80), max_value=2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(alphabet=st.characters(exclude_categories=[])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_what_is_written_is_read_back_exactly(value: object) -> None:
    line = exact_json.dumps(value)
    assert b"\n" not in line
    line.decode("utf-8")
    assert exact_json.loads(line) == value


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 9007199254740993, 10**40])
def test_integers_beyond_64_bits_are_exact_both_ways(number: int) -> None:
    assert exact_json.loads(b'{"n":%d}' % number) == {"n": number}
    assert exact_json.dumps({"n": number}) == b'{"n":%d}' % number


def test_a_lone_surrogate_survives_as_its_escape() -> None:
    value = exact_json.loads(b'{"t":"cut \\ud83d"}')
    assert value == {"t": "cut \ud83d"}
    assert exact_json.dumps(value) == b'{"t":"cut \\ud83d"}'


def test_odd_values_have_a_json_form() -> None:
    class Odd:
        def __str__(self) -> str:
            return "odd"

    line = exact_json.dumps({1: float("nan"), "big": 2**70, "o": Odd(), "l": [float("inf")], "é": (1,)})
    assert json.loads(line) == {"1": None, "big": 2**70, "o": "odd", "l": [None], "é": [1]}
    assert "é".encode() in line


def test_too_deep_is_a_value_error_and_no_object() -> None:
    deep = b"[" * 200_000 + b"]" * 200_000
    with pytest.raises(ValueError, match="deep"):
        exact_json.loads(deep)
    assert exact_json.loads_object(deep) is None


@pytest.mark.parametrize(("levels", "deeper"), [(0, True), (2, True), (3, False), (4, False)])
def test_depth_is_counted_in_objects_and_arrays(levels: int, deeper: bool) -> None:
    assert exact_json.nests_deeper({"a": [1, {"b": 2}], "c": {}}, levels) == deeper
    assert not exact_json.nests_deeper("text", levels)
    assert exact_json.nests_deeper(exact_json.loads(b"[" * 1000 + b"]" * 1000), 999)


@pytest.mark.parametrize("leaf", [b"1", b"%d" % 2**70, b'"\\ud83d"'])
def test_a_limit_on_depth_is_kept_on_both_paths(leaf: bytes) -> None:
    for levels in (254, 300):
        data = b"[" * levels + leaf + b"]" * levels
        if levels == 254:
            assert exact_json.dumps(exact_json.loads(data), deepest_levels=254) == data
        else:
            with pytest.raises(ValueError, match="more than 254 levels"):
                exact_json.dumps(exact_json.loads(data), deepest_levels=254)


@pytest.mark.parametrize("data", [b"", b"[1]", b"nope", b"\xff{}", b'"text"'])
def test_only_objects_are_objects(data: bytes) -> None:
    assert exact_json.loads_object(data) is None


@pytest.mark.parametrize("value", ["plain", 2**70, "\ud83d", [float("nan")]])
def test_a_line_ends_with_its_one_line_feed(value: object) -> None:
    assert exact_json.dumps(value, as_line=True) == exact_json.dumps(value) + b"\n"


@pytest.mark.parametrize("place", [0, 65_520, 65_536, 200_000])
def test_a_long_number_is_found_wherever_it_stands_in_a_large_text(place: int) -> None:
    number = 2**64 + 1
    data = b'["' + b"x" * place + b'",%d,"' % number + b"x" * 100_000 + b'"]'
    assert exact_json.loads(data)[1] == number
    assert exact_json.loads_within(data)(b"[%d]" % number) == [number]


def test_a_parser_for_many_small_texts_is_exact() -> None:
    loads = exact_json.loads_within(b'{"a":1}{"b":[true]}')
    assert [loads(b'{"a":1}'), loads(b'{"b":[true]}')] == [{"a": 1}, {"b": [True]}]
    with pytest.raises(ValueError, match="surrogate"):
        loads(b'"\\ud83d"')


@given(st.integers(0, 40), st.integers(10**18, 10**22), st.booleans(), st.integers(0, 40))
def test_a_long_number_is_exact_at_every_place_and_of_every_length(
    before: int, number: int, negative: bool, after: int
) -> None:
    number = -number if negative else number
    assert exact_json.loads(b'["%s",%d,"%s"]' % (b"x" * before, number, b"y" * after))[1] == number


@given(st.lists(st.integers(-(10**21), 10**21) | st.integers(0, 200_000), max_size=200), st.integers(0, 3))
def test_long_numbers_among_many_short_ones_are_exact(numbers: list[int], spaces: int) -> None:
    data = b" " * spaces + json.dumps(numbers, separators=(",", ":")).encode()
    assert exact_json.loads(data) == numbers
    assert exact_json.loads_within(data)(data) == numbers
