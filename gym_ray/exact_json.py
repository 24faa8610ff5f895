"""JSON that loses nothing: fast where orjson is exact, the standard library where it is not.

orjson turns integers beyond 64 bits into floats without a word, refuses lone surrogates and NaN, and stops at a fixed
nesting depth. Evidence must survive all four (A54, B40, B41), so each of them takes the slower exact path.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

import orjson

__all__ = ["dumps", "loads", "loads_object", "loads_within", "nests_deeper"]

# 19 digits is the shortest run that can pass 2^63; shorter ones are exact in orjson. Every body comes through here, so
# they are looked for in a translated sample, at a twentieth of what a regular expression costs: 19 digits in a row show
# three in a row among every sixth byte, and few texts do. Where they do, the bytes that span the three tell most often.
_DIGITS_AS_ZEROS = bytes(48 if 48 <= byte <= 57 else 0 for byte in range(256))
_LONG_NUMBER = b"0" * 19
_STRIDE = 6
_SAMPLED_NUMBER = b"0" * (len(_LONG_NUMBER) // _STRIDE)
_SPAN = _STRIDE * (len(_SAMPLED_NUMBER) - 1) + 1
_REACH = len(_LONG_NUMBER) + _STRIDE  # a run that a sample hints at lies within this many bytes on either side of it
_MOST_HINTS = 48
_WINDOW_BYTES = 96 * 1024
_SMALL_BYTES = 4096  # up to here a sample saves nothing


def loads(data: bytes) -> Any:
    """Parse one JSON text.

    Returns:
        The value; integers of any size and lone surrogates are exact, NaN and infinities become floats.

    Raises:
        ValueError: The bytes are not UTF-8 JSON, or nest deeper than the interpreter can follow.
    """
    if len(data) < len(_LONG_NUMBER) or not _holds_long_number(data):
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            pass  # a lone surrogate, NaN or depth is not yet a failure: the exact parser decides
    try:
        return json.loads(data.decode("utf-8"))
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None


def loads_within(text: bytes) -> Callable[[bytes], Any]:
    """Return a parser for the many JSON texts that stand in ``text``, at less cost each than :func:`loads`.

    What it returns is exact. Unless it is :func:`loads` itself, it raises ValueError also for some texts that only
    that can read, those with a lone surrogate among them.
    """
    return loads if _holds_long_number(text) else orjson.loads


def _holds_long_number(data: bytes) -> bool:
    size = len(data)
    if size <= _SMALL_BYTES:
        return _LONG_NUMBER in data.translate(_DIGITS_AS_ZEROS)
    if size <= _WINDOW_BYTES:
        return _window_holds_long_number(data)
    overlap = len(_LONG_NUMBER) - 1  # in windows, so that a huge body is not copied as a whole
    starts = range(0, size, _WINDOW_BYTES)
    return any(_window_holds_long_number(data[at : at + _WINDOW_BYTES + overlap]) for at in starts)


def _window_holds_long_number(data: bytes) -> bool:
    sample = data[::_STRIDE].translate(_DIGITS_AS_ZEROS)
    hint = sample.find(_SAMPLED_NUMBER)
    for _ in range(_MOST_HINTS):
        if hint < 0:
            return False
        place = hint * _STRIDE
        if data[place : place + _SPAN].isdigit():
            around = data[max(0, place - _REACH) : place + 2 * _REACH]
            if _LONG_NUMBER in around.translate(_DIGITS_AS_ZEROS):
                return True
        hint = sample.find(_SAMPLED_NUMBER, hint + 1)
    return _LONG_NUMBER in data.translate(_DIGITS_AS_ZEROS)  # a text that is full of numbers


def loads_object(data: bytes) -> dict[str, Any] | None:
    """Parse one JSON text and return it if it is an object, else None; never raises for bad bytes."""
    try:
        value = loads(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def nests_deeper(value: Any, levels: int) -> bool:
    """Whether objects and arrays stand in each other more than ``levels`` deep; any depth can be asked about."""
    layer = [value] if isinstance(value, dict | list) else []
    for _ in range(levels):
        items = [parent.values() if isinstance(parent, dict) else parent for parent in layer]
        layer = [item for some in items for item in some if isinstance(item, dict | list)]
        if not layer:
            return False
    return bool(layer)


def dumps(value: Any, *, deepest_levels: int | None = None, as_line: bool = False) -> bytes:
    """Encode a value as compact UTF-8 JSON without a trailing line feed (A66).

    Non-finite numbers become null, values without a JSON form become their string, lone surrogates stay as their
    escape sequence, integers of any size are exact.

    Args:
        value: What to encode.
        deepest_levels: Refuse what nests deeper; not below 254, which the fast path takes unasked. None takes as much
            as the interpreter can follow, which depends on how deep its own calls are.
        as_line: End with a line feed.

    Raises:
        ValueError: The value nests too deeply.
    """
    try:
        return orjson.dumps(value, default=str, option=orjson.OPT_APPEND_NEWLINE if as_line else None)
    except orjson.JSONEncodeError:
        pass  # big integer, surrogate, non-string key or depth: the exact encoder decides
    if deepest_levels is not None and nests_deeper(value, deepest_levels):
        raise ValueError(f"value is nested too deeply: more than {deepest_levels} levels")
    try:
        text = json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"), default=str)
    except RecursionError:
        raise ValueError("value is nested too deeply for JSON") from None
    text = f"{text}\n" if as_line else text
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return _escape_surrogates(text)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _escape_surrogates(text: str) -> bytes:
    return re.sub("[\ud800-\udfff]", lambda match: f"\\u{ord(match.group()):04x}", text).encode("utf-8")
