"""The short way for many lines, held against the general one: whatever stands in a line, it agrees or declines."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.testing.token_source import call_entry
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.records import TOKEN_ARRAYS, TokenEntry
from gym_ray.token_id_capture.token_files.entry_lines import encode_entry, may_round, parse_line
from gym_ray.token_id_capture.token_files.packed_lines import pack_lines

HUGE = 2**64 + 1
BASE: dict[str, Any] = {
    "rollout_id": "r0",
    "model_call_id": "c0",
    "prompt_token_ids": [5, 150_000],
    "generation_token_ids": [7],
    "generation_log_probs": [-0.25],
    "output_items": [{"type": "message", "role": "assistant", "content": "a"}],
}
CHAINED = {"parent_call_id": "p", "parent_resolution": "resolved", "prompt_is_delta": True}

numbers = st.sampled_from(
    [0, 1, -1, 7, 2**32 - 1, 2**32, 2**64 - 1, 2**64, HUGE, -HUGE, 1.0, 1.5, -0.1, -5e-324, 1e300]
)
odd_numbers = st.sampled_from([None, True, "5", [], [1], {}, float("nan"), float("inf")])
texts = st.sampled_from(["", "x", "é", "\ud800", "[1]", 'a]"', '{"generation_log_probs":[1]}', f":{HUGE}", "root"])
nested = st.recursive(
    numbers | odd_numbers | texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*TOKEN_ARRAYS, "a", 'x"generation_log_probs', "gym_ray"]), inner, max_size=3)
    ),
    max_leaves=6,
)
columns = st.lists(numbers | odd_numbers, max_size=3) | st.lists(st.integers(0, 2**32 - 1), max_size=4)
names = st.sampled_from([*TokenEntry.model_fields, *TOKEN_ARRAYS, "gym_ray", "aaa", "zzz", 'x"prompt_token_ids', "é"])


@st.composite
def line_texts(draw: st.DrawFn) -> bytes:
    """A record's line: as the store writes it, with members changed, in any order and spelling, twice, or damaged."""
    record = {**BASE, **draw(st.sampled_from([{}, CHAINED]))}
    for name in draw(st.lists(names, max_size=4)):
        record[name] = draw(columns if name in TOKEN_ARRAYS else nested)
    for name in draw(st.lists(st.sampled_from(list(record)), max_size=1)):
        del record[name]
    ordered = draw(st.sampled_from([sorted(record), list(record), list(record)[::-1]]))
    separators = draw(st.sampled_from([(",", ":"), (",", ":"), (", ", ": ")]))
    members = [json.dumps({name: record[name]}, separators=separators)[1:-1] for name in ordered]
    members += draw(st.lists(st.sampled_from(members), max_size=1)) if members else []
    text = "{" + separators[0].join(members) + "}"
    if draw(st.booleans()):  # as the store writes them, without escapes
        text = text.replace("\\u00e9", "é")
    line = text.encode()
    damage = draw(st.sampled_from(["", "", "", "cut", "byte", "escaped"]))
    if damage == "cut":
        return line[: draw(st.integers(0, len(line)))]
    if damage == "byte":
        at = draw(st.integers(0, len(line) - 1))
        return (
            line[:at]
            + draw(st.sampled_from([b"0", b"-", b".", b",", b"]", b'"', b"e", b" ", b"\x00"]))
            + line[at + 1 :]
        )
    return line.replace(b"token_ids", b"token_id\\u0073", 1) if damage == "escaped" else line


def as_general(line: bytes) -> PackedEntry | None:
    """The record in a line by the exact parser alone; None if it is refused."""
    try:
        record = json.loads(line.decode())
        return PackedEntry.of_json(record) if isinstance(record, dict) else None
    except (ValueError, RecursionError):
        return None


def contents(entry: PackedEntry) -> list[object]:
    arrays = [getattr(entry, name) for name in TOKEN_ARRAYS]
    return [[(array.dtype, array.tolist()) for array in arrays], repr(sorted(entry.rest.items()))]


@given(st.lists(line_texts(), min_size=1, max_size=4))
def test_a_record_is_the_general_ways_or_nobodys(lines: list[bytes]) -> None:
    for line, packed in zip(lines, pack_lines(lines), strict=True):
        if packed is not None:
            expected = as_general(line)
            assert expected is not None, line
            assert contents(packed) == contents(expected), line


@given(line_texts())
def test_a_parsed_line_makes_the_record_that_an_exact_parser_makes(line: bytes) -> None:
    try:
        record = parse_line(line)
        found = PackedEntry.of_json(record) if isinstance(record, dict) else None
    except ValueError:
        found = None
    expected = as_general(line)
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert contents(found) == contents(expected)


def line_of(**members: Any) -> bytes:
    return encode_entry(TokenEntry(**{**call_entry("c0", [1, 2], [3]).model_dump(), **members})).rstrip()


USUAL = [
    line_of(),
    line_of(prompt_token_ids=[], generation_token_ids=[], generation_log_probs=[]),
    line_of(prompt_token_ids=[0, 2**32 - 1], generation_log_probs=[-0.1]),
    line_of(generation_token_ids=[1, 2], generation_log_probs=[-1e-310, -1e300]),
    line_of(digest="1234567890" * 6 + "abcd", gym_ray={"chain_hash": "0" * 64}),
    line_of(output_items=[{"type": "message", "content": "é"}], routed_experts=[[1, 2]], site={"a": [1.5]}),
    line_of(**CHAINED),
]


@pytest.mark.parametrize("line", USUAL)
def test_what_the_store_writes_takes_the_short_way(line: bytes) -> None:
    (packed,) = pack_lines([line])
    general = as_general(line)
    assert packed is not None
    assert general is not None
    assert contents(packed) == contents(general)
    for name in TOKEN_ARRAYS:
        assert not getattr(packed, name).flags.writeable


def test_many_lines_share_their_buffers_and_nothing_else() -> None:
    damaged = [line_of()[:-1], b"[1]", b"null", b"7", line_of(prompt_token_ids=[2**32])]
    lines = [line for pair in zip(USUAL, [*damaged, *damaged], strict=False) for line in pair]
    packed = pack_lines(lines)
    assert [one is None for one in packed] == [False, True] * len(USUAL)
    assert [contents(one) for one in packed if one] == [contents(one) for one in pack_lines(USUAL) if one]
    assert len({id(one.prompt_token_ids.base) for one in packed if one}) == 1
    widths = [one.generation_log_probs.dtype for one in packed if one]
    assert widths == [np.float64 if place in (2, 3) else np.float32 for place in range(len(USUAL))]


def test_no_lines_are_no_records() -> None:
    assert pack_lines([]) == []


@pytest.mark.parametrize(
    "members",
    [
        {"site": HUGE},
        {"aaa": HUGE},
        {"zzz": [HUGE]},
        {"generation_other": HUGE},
        {"aaa": {"a": 1, "generation_log_probs": [HUGE], "generation_token_ids": [1]}},
        {"aaa": [{"a": 1, "generation_log_probs": [HUGE], "generation_token_ids": [1]}]},
        {"output_items": [{"a": 1, "generation_log_probs": [HUGE], "generation_token_ids": [1]}]},
        {"output_items": [{"a": 1, "prompt_token_ids": [HUGE]}]},
        {"output_items": [{"a": 1, "prompt_token_ids": ["]", HUGE]}]},
        {"routed_experts": {"a": 1, "prompt_token_ids": [HUGE]}},
        {'zzz"prompt_token_ids': [HUGE]},
    ],
)
def test_an_integer_that_orjson_would_round_is_seen_wherever_it_stands(members: dict[str, Any]) -> None:
    line = line_of(**members)
    assert may_round(line)
    assert pack_lines([line]) == [None]
    record = parse_line(line)
    assert {name: record[name] for name in members} == members


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # A member of another name that ends like a column's, where a column would stand.
        (',"gener', ',"x\\"generation_log_probs":[HUGE],"generation_token_ids":[3],"gener'),
        # The record's own column is spelled with a space, and what is not its own as the store spells a column.
        (',"prompt_token_ids":[1,2]', ',"prompt_token_ids" :[1,2],"x\\"prompt_token_ids":[HUGE]'),
        (',"prompt_token_ids":[1,2]', ',"prompt_token_ids" :[1,2],"x":{"a":1,"prompt_token_ids":[HUGE]}'),
        (',"prompt_token_ids":[1,2]', ',"prompt_token_ids" :[1,2],"x":[{"a":1,"prompt_token_ids":[HUGE]}]'),
    ],
)
def test_what_only_looks_like_a_column_is_no_column(old: str, new: str) -> None:
    line = line_of().replace(old.encode(), new.replace("HUGE", str(HUGE)).encode(), 1)
    assert str(HUGE).encode() in line
    assert may_round(line)
    assert parse_line(line) == json.loads(line)


def test_digits_that_are_no_integer_are_left_to_orjson() -> None:
    for line in USUAL:
        assert not may_round(line)
    assert not may_round(line_of(response_id="1234567890123456789012"))
    assert may_round(line_of(response_id=":1234567890123456789012"))  # more than needed, never less
