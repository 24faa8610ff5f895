"""Whether an engine's record of expert routing fits the tokens of its call.

The payload stays opaque and is never decoded as a whole. One that does not fit is left out: a router replayed from a
shifted array would be wrong for every token, and the call itself is sound without it.
"""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Sequence
from typing import Any, Final

from numpy.lib import format as npy

__all__ = ["fitting_experts"]

_HEADER_CHARACTERS: Final = 1024
"""Base64 characters at the start that hold the header: 128 bytes as a rule, a multiple of 64 always."""
_ZERO: Final = "A"
_READERS: Final = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def fitting_experts(payloads: Sequence[Any], tokens: int, start: int = 0) -> tuple[Any | None, str]:
    """Return the payload, or None and why it does not fit.

    An engine routes every token but the last, which no pass follows, so ``tokens - start - 1`` rows fit, and so does
    one row more.

    Args:
        payloads: What an answer carries: base64 of the bytes of an ``.npy`` file with a row a token, or a list of rows.
        tokens: Prompt and generated tokens of the call.
        start: Leading tokens that the engine was asked to leave out.
    """
    if not payloads:
        return None, ""
    if len(payloads) > 1:
        return None, f"experts_parts: {len(payloads)} arrays in one answer, and nothing says how they join"
    payload = payloads[0]
    if isinstance(payload, list):
        rows = len(payload)
    elif isinstance(payload, str):
        try:
            rows = _rows(payload)
        except ValueError as error:
            return None, f"experts_unreadable: {error}"
    else:
        return None, f"experts_unreadable: {type(payload).__name__} is neither base64 text nor a list"
    wanted = tokens - start
    if rows not in (wanted - 1, wanted):
        return None, f"experts_gap: {rows} rows for {tokens} tokens from {start} on, {wanted - 1} fit"
    if rows and _all_zero(payload):
        return None, f"experts_suspect: all {rows} rows are 0, as a kernel without routing returns them"
    return payload, ""


def _rows(payload: str) -> int:
    """Return the rows of an array, its size checked against its header.

    Raises:
        ValueError: It is no array, or is cut.
    """
    shape, dtype, data_start = _header(payload)
    if not shape or dtype.hasobject:
        raise ValueError(f"an array of {dtype} with shape {shape} holds no row a token")
    values = 1
    for length in shape:
        values *= length
    padding = len(payload) - len(payload.rstrip("="))
    found, wanted = len(payload) // 4 * 3 - padding, data_start + values * dtype.itemsize
    if len(payload) % 4 or found != wanted:
        raise ValueError(f"{found} bytes, where the header announces {wanted}")
    return int(shape[0])


def _header(payload: str) -> tuple[tuple[int, ...], Any, int]:
    try:
        file = io.BytesIO(base64.b64decode(payload[:_HEADER_CHARACTERS], validate=True))
        read = _READERS.get(npy.read_magic(file), npy.read_array_header_1_0)
        shape, _, dtype = read(file)
    except (binascii.Error, ValueError) as error:
        raise ValueError(str(error).splitlines()[0]) from None
    return shape, dtype, file.tell()


def _all_zero(payload: str | list[Any]) -> bool:
    if isinstance(payload, list):
        return not any(_says_something(row) for row in payload)
    _, _, data_start = _header(payload)
    # The first whole group of four characters behind the header; what a group shares with the header is data as well.
    first = -(-data_start // 3) * 4
    straddling = base64.b64decode(payload[first - 4 : first])[data_start % 3 :] if data_start % 3 else b""
    return not any(straddling) and not payload[first:].strip(_ZERO + "=")


def _says_something(value: object) -> bool:
    if isinstance(value, list):
        return any(_says_something(item) for item in value)
    return value != 0
