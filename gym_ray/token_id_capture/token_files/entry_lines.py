"""Token records as lines: compact JSON with sorted keys, one record a line, the same bytes for the same record (B60).

Numbers survive exactly both ways; a line that no reader could turn back into its record is never made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import orjson
from pydantic_core import to_jsonable_python

from gym_ray import exact_json
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.records import TokenEntry

__all__ = ["RawLine", "encode_entry", "is_same_record", "iterate_lines", "may_round", "parse_line"]

_OPTIONS: Final = orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
_BLOCK_BYTES: Final = 1 << 16

# From 19 digits on, orjson may round an integer. Digits behind a point do not count, and nearly every record has a log
# probability with that many; nor do those of a hexadecimal digest. So it matters what stands before them.
_DIGITS_AS_ZEROS: Final = bytes(48 if 48 <= byte <= 57 else byte for byte in range(256))
_LONG_NUMBER: Final = b"0" * 19
_LONG_INTEGERS: Final = tuple(before.to_bytes() + _LONG_NUMBER for before in b":,[- \t\r\n")
_LOG_PROBS: Final = b',"generation_log_probs":['
_GENERATION: Final = b'],"generation_token_ids":['
_PROMPT: Final = b',"prompt_token_ids":['


def encode_entry(entry: TokenEntry) -> bytes:
    """Return a record as a line with its line feed (B5, B60).

    Raises:
        ValueError: The record cannot be read back: its numbers are not tokens or not finite (W21), or an assignment
            made it contradict itself (B8); it holds something that has no JSON form, or nests too deeply for JSON.
    """
    PackedEntry.of_entry(entry)
    members = {name: getattr(entry, name) for name in TokenEntry.model_fields}
    members.update(entry.model_extra or {})
    try:
        return orjson.dumps(members, default=_plain, option=_OPTIONS)
    except orjson.JSONEncodeError:  # a big integer, a lone surrogate, depth: the exact encoder decides
        try:
            return exact_json.dumps(_sorted(members), as_line=True)
        except RecursionError:
            raise ValueError(f"call {entry.model_call_id!r}: the record nests too deeply for JSON") from None
        except ValueError as error:
            raise ValueError(f"call {entry.model_call_id!r}: {error}") from None


def _plain(value: object) -> Any:
    """Return what stands for a value that JSON does not know; never how it looks, which may leave most of it out.

    Raises:
        ValueError: Nothing does.
    """
    if callable(as_list := getattr(value, "tolist", None)):  # an array of any layout and library, and its scalars
        return as_list()
    return to_jsonable_python(value)


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        members = {str(name): item for name, item in value.items()}
        return {name: _sorted(members[name]) for name in sorted(members)}
    if isinstance(value, list | tuple):
        return [_sorted(item) for item in value]
    return value if value is None or isinstance(value, str | int | float) else _sorted(_plain(value))


def parse_line(line: bytes) -> Any:
    """Parse one line exactly, but for numbers in token columns that are no token ids.

    Raises:
        ValueError: It is no JSON.
    """
    if not may_round(line):
        try:
            return orjson.loads(line)
        except orjson.JSONDecodeError:
            pass  # what only the exact parser can read is not damaged yet
    return exact_json.loads(line)


def may_round(line: bytes) -> bool:
    """Whether orjson might round an integer of a line that matters, so that only the exact parser will do."""
    zeros = _without_columns(line).translate(_DIGITS_AS_ZEROS)
    return _LONG_NUMBER in zeros and (
        zeros.startswith(_LONG_NUMBER) or any(integer in zeros for integer in _LONG_INTEGERS)
    )


def _without_columns(line: bytes) -> bytes:
    """Return what stands around a record's three columns of numbers, or all of a line that is laid out otherwise.

    They are most of a line. A log probability is rounded to a float anyway, and what is rounded is no token id. They
    are the record's own columns, and nothing else goes with them, where no other object begins before the first or
    ends behind the last.
    """
    floats = line.find(_LOG_PROBS)
    generation = line.find(b"]", floats)
    generation_end = line.find(b"]", generation + 1)
    prompt = line.find(_PROMPT, generation_end)
    head, tail = line[:floats], line[line.find(b"]", prompt) :]
    if floats < 0 or prompt < 0 or not line.startswith(_GENERATION, generation):
        return line
    if head.count(b"{") != 1 or tail.count(b"}") != 1:
        return line
    return b"".join((head, line[generation_end:prompt], tail))


def is_same_record(one: bytes, other: bytes) -> bool:
    """Whether two lines are one record; when it was written does not matter (B53, W24).

    Raises:
        ValueError: They differ, and one of them is no JSON.
    """
    if one.rstrip() == other.rstrip():
        return True
    records = parse_line(one), parse_line(other)
    for record in records:
        if isinstance(record, dict):
            record.pop("created_at", None)
    return bool(records[0] == records[1])


class RawLine(NamedTuple):
    """A line of a file that is not blank.

    Attributes:
        offset: Where it begins.
        data: Its bytes without the line feed.
        terminated: Whether it had a line feed.
        is_last: Whether nothing but blank lines follows it.
    """

    offset: int
    data: bytes
    terminated: bool
    is_last: bool


def iterate_lines(read: Callable[[int, int], bytes], start: int, size: int) -> Iterator[RawLine]:
    """Yield the lines of a file between two offsets, a block at a time.

    Args:
        read: Returns at most that many bytes at an offset, none when the file ends before it.
        start: Begin of a line.
        size: Where to stop.
    """
    held: tuple[int, bytes, bool] | None = None
    for offset, data, terminated in _split(read, start, size):
        if not data or data.isspace():
            continue
        if held is not None:
            yield RawLine(*held, is_last=False)
        held = (offset, data, terminated)
    if held is not None:
        yield RawLine(*held, is_last=True)


def _split(read: Callable[[int, int], bytes], start: int, size: int) -> Iterator[tuple[int, bytes, bool]]:
    pieces: list[bytes] = []
    begin = at = start
    while at < size and (block := read(min(_BLOCK_BYTES, size - at), at)):
        at += len(block)
        *whole, rest = block.split(b"\n")
        for data in whole:
            line = b"".join([*pieces, data])
            pieces.clear()
            yield begin, line, True
            begin += len(line) + 1
        pieces.append(rest)
    yield begin, b"".join(pieces), False
