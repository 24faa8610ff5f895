from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from gym_ray.testing.token_source import call_entry
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.records import TokenEntry
from gym_ray.token_id_capture.token_files.entry_lines import (
    RawLine,
    encode_entry,
    is_same_record,
    iterate_lines,
    parse_line,
)


def entry(**members: Any) -> TokenEntry:
    return TokenEntry(**{**call_entry("c0", [1, 2], [3]).model_dump(), **members})


def read_back(line: bytes) -> TokenEntry:
    return PackedEntry.of_json(parse_line(line)).entry()


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"prompt_token_ids": [0, 2**32, 2**63, 2**64 - 1]},
        {"generation_log_probs": [-5e-324]},
        {"generation_log_probs": [-0.000012345678901234567]},
        {"site": {"b": 1, "a": ["ü", "\ud800", 2**70, -(2**70)]}},
        {"site": {"when": "2026", "nested": [{"z": None, "y": 1e300}]}},
        {"routed_experts": [[[1, 2], [3, 4]]]},
        {"model": "\ud800"},
        {"output_items": [{"type": "message", "text": "line\nfeed\u2028"}]},
    ],
)
def test_a_record_comes_back_as_it_was(members: dict[str, Any]) -> None:
    given_entry = entry(**members)
    line = encode_entry(given_entry)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert read_back(line) == given_entry


def test_the_line_is_compact_sorted_and_the_same_every_time() -> None:
    line = encode_entry(entry(zebra={"b": 1, "a": 2}, apple=1))
    members = json.loads(line)
    assert line == json.dumps(members, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    exact = encode_entry(entry(zebra={"b": 2**70, "a": 2}, apple=1))  # by the exact encoder
    assert exact == line.replace(b'"b":1', b'"b":1180591620717411303424')


class Item(BaseModel):
    text: str


def test_what_has_no_json_form_of_its_own_is_spelled_out() -> None:
    line = encode_entry(entry(item=Item(text="t"), when=datetime(2026, 1, 2, tzinfo=UTC), experts=np.arange(3)))
    members = parse_line(line)
    assert members["item"] == {"text": "t"}
    assert members["when"] == "2026-01-02T00:00:00+00:00"
    assert members["experts"] == [0, 1, 2]
    exact = parse_line(encode_entry(entry(item=Item(text="t"), big=2**70)))
    assert exact["item"] == {"text": "t"}


@pytest.mark.parametrize("members", [{}, {"big": 2**70}], ids=["usual", "exact_encoder"])
@pytest.mark.parametrize(
    "experts",
    [
        np.arange(2400).reshape(40, 60).T,
        np.arange(2400)[::2],
        np.arange(2400).astype(">i4"),
        np.arange(2400).astype(object),
        [{"layer": np.ones((3, 4), np.float16).T}, np.float32(0.5), (np.int64(7),)],
    ],
    ids=["transposed", "strided", "big_endian", "objects", "nested"],
)
def test_arrays_of_any_layout_are_kept_whole(experts: Any, members: dict[str, Any]) -> None:
    def listed(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: listed(item) for name, item in value.items()}
        return [listed(item) for item in value] if isinstance(value, list | tuple) else value.tolist()

    assert read_back(encode_entry(entry(routed_experts=experts, **members))).routed_experts == listed(experts)


@pytest.mark.parametrize("members", [{}, {"big": 2**70}], ids=["usual", "exact_encoder"])
@pytest.mark.parametrize("value", [object(), b"\xff", [{"at": object()}]], ids=["object", "bytes", "nested"])
def test_what_has_no_json_form_at_all_is_refused_and_not_described(value: Any, members: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="call 'c0'"):
        encode_entry(entry(routed_experts=value, **members))


@pytest.mark.parametrize(
    ("update", "problem"),
    [
        ({"generation_log_probs": [float("nan")]}, "generation_log_probs|log prob|finite|nan"),
        ({"generation_log_probs": [float("-inf")]}, "finite|inf"),
        ({"generation_token_ids": [-3]}, "-3"),
        ({"prompt_token_ids": [1, 2**64]}, str(2**64)),
        ({"generation_token_ids": [3, 4]}, "generation_token_ids has 2 tokens"),
        ({"token_item_index": 7}, "token_item_index 7"),
        ({"schema_version": 2}, "upgrade the reader"),
        ({"prompt_is_delta": True}, "prompt_is_delta"),
    ],
)
def test_no_line_is_made_of_what_no_reader_takes_back(update: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=f"(?i){problem}"):
        encode_entry(entry().model_copy(update=update))


def test_depth_without_end_is_refused() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(ValueError, match="deep"):
        encode_entry(entry().model_copy(update={"routed_experts": nested}))


@pytest.mark.parametrize(
    "text",
    [
        "18446744073709551616",
        "-9223372036854775809",
        "[0.00012345678901234567,18446744073709551617]",
        '{"a":1234567890123456789012}',
        "0.12345678901234567890123456789012345678901234567890",
        "[123456789012345678901.5,1e22]",
    ],
)
def test_numbers_are_parsed_exactly(text: str) -> None:
    assert parse_line(text.encode()) == json.loads(text)
    assert repr(parse_line(text.encode())) == repr(json.loads(text))


@given(st.lists(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False)), max_size=5))
def test_any_number_is_parsed_exactly(numbers: list[float]) -> None:
    assert repr(parse_line(json.dumps(numbers).encode())) == repr(numbers)


def test_no_json_is_refused() -> None:
    for line in (b"", b'{"cut', b"\x00\x00", b"\xff"):
        with pytest.raises(ValueError, match=r"Expecting|decode|Unterminated"):
            parse_line(line)


def test_records_are_the_same_whenever_and_however_they_were_written() -> None:
    one = encode_entry(entry(created_at=1.5))
    assert is_same_record(one, one.rstrip())
    assert is_same_record(one, encode_entry(entry(created_at=99.0)))
    assert is_same_record(one, json.dumps(json.loads(one)).encode())
    assert not is_same_record(one, encode_entry(entry(created_at=1.5, generation_log_probs=[-0.5])))
    assert not is_same_record(b"[1]", b"[2]")


def lines_of(data: bytes, start: int = 0) -> list[RawLine]:
    return list(iterate_lines(lambda size, offset: data[offset : offset + size], start, len(data)))


def test_lines_know_where_they_are_and_whether_they_are_whole_and_last() -> None:
    assert lines_of(b"one\n\n  \ntwo\n\n") == [RawLine(0, b"one", True, False), RawLine(8, b"two", True, True)]
    assert lines_of(b"one\ntw") == [RawLine(0, b"one", True, False), RawLine(4, b"tw", False, True)]
    assert lines_of(b"one\ntwo\n", 4) == [RawLine(4, b"two", True, True)]
    assert lines_of(b"") == lines_of(b"\n\n") == []


def test_lines_across_blocks_and_short_reads(tmp_path: Path) -> None:
    data = b"a" * 1_500_000 + b"\n" + b"b" * 2_200_000 + b"\nc"
    expected = [(0, 1_500_000, True), (1_500_001, 2_200_000, True), (3_700_002, 1, False)]
    assert [(line.offset, len(line.data), line.terminated) for line in lines_of(data)] == expected

    def read(size: int, offset: int) -> bytes:
        return data[offset : offset + min(size, 300_000)]

    short = list(iterate_lines(read, 0, len(data)))
    assert [(line.offset, len(line.data), line.terminated) for line in short] == expected
