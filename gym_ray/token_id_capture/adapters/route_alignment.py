"""Cuts an engine's expert routes to the tokens that a call stages: a row for each of them, no row for others (C344).

An engine routes the whole prompt, of which a call stages only what its parent did not; and it has no route for the last
token, which no pass follows. Stock vLLM sends the bytes of an ``.npy`` file as base64, patched workers an envelope or
nested lists. What cannot be placed without doubt stays as it came: readers judge rows by their number, and refuse what
they cannot read.
"""

from __future__ import annotations

import base64
import binascii
import io
import logging
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from gym_ray.token_id_capture.adapters.routes import (
    MISSING_ROUTE_SENTINEL,
    ROUTES_PREFIX,
    decode_routed_experts,
    encode_routed_experts,
    routed_experts_token_count,
)

__all__ = ["CallLengths", "aligned_routes"]

_log = logging.getLogger(__name__)

_NPY_START: Final = base64.b64encode(b"\x93NUMPY").decode("ascii")


@dataclass(frozen=True, slots=True)
class CallLengths:
    """How many tokens a call has.

    Attributes:
        prev_len: Tokens of its parent's chain, which it does not stage again.
        prompt_len: Tokens of its whole prompt.
        generation_len: Tokens that it sampled.
    """

    prev_len: int
    prompt_len: int
    generation_len: int

    @property
    def cum_len(self) -> int:
        """All tokens of the sequence."""
        return self.prompt_len + self.generation_len

    @property
    def delta_len(self) -> int:
        """Tokens that the call stages."""
        return self.cum_len - self.prev_len


def aligned_routes(payload: object, lengths: CallLengths, prompt_start: int | None = None) -> object:
    """Return routes with one row for each staged token, or the payload as it is where rows cannot be placed.

    None where rows have two places, one of which is wrong by a token, and readers would judge them by their number.

    Args:
        payload: An envelope, nested lists, base64 of an ``.npy`` file, or something else, which stays as it is.
        lengths: Of the call.
        prompt_start: Leading tokens that the engine was asked to leave out of its ``.npy`` file; None infers it.
    """
    try:
        if isinstance(payload, str) and payload.startswith(_NPY_START):
            return _of_npy(payload, lengths, prompt_start)
        if isinstance(payload, list) or (isinstance(payload, str) and payload.startswith(f"{ROUTES_PREFIX}:")):
            return _cut(payload, lengths)
    except ValueError as error:
        _log.warning("expert routes are staged as the engine gave them, not cut to the call's tokens: %s", error)
    return payload


def _cut(payload: str | list[Any], lengths: CallLengths) -> object:
    """Cut what a patched worker sends: rows of the whole sequence, its last token with a row or without."""
    rows = routed_experts_token_count(payload)
    if rows in (lengths.delta_len, lengths.generation_len):
        if rows != lengths.cum_len - 1:
            return payload
        _log.warning("expert routes are left out: %d rows begin with the first token, or with the second", rows)
        return None
    if rows not in (lengths.cum_len - 1, lengths.cum_len):
        return payload
    routes = decode_routed_experts(payload)
    placed = _placed(routes.values, 0, lengths)
    return placed.tolist() if isinstance(payload, list) else encode_routed_experts(placed, routes.dtype)


def _of_npy(payload: str, lengths: CallLengths, prompt_start: int | None) -> str:
    values = _npy_values(payload)
    start = _npy_start(len(values), lengths) if prompt_start is None else prompt_start
    if len(values) not in (lengths.cum_len - start - 1, lengths.cum_len - start):
        raise ValueError(f"{len(values)} rows are no routes of {lengths.cum_len} tokens from {start} on")
    placed = _placed(values, start, lengths)
    fits = int(placed.max()) <= np.iinfo(np.int16).max and int(placed.min()) >= np.iinfo(np.int16).min
    return encode_routed_experts(placed, "int16" if fits else "int32")


def _npy_start(rows: int, lengths: CallLengths) -> int:
    """Return where rows begin whose number is one less than that of the tokens, as stock vLLM has it; or as many."""
    for missing in (1, 0):
        for start in (0, lengths.prev_len):
            if rows == lengths.cum_len - start - missing:
                return start
    raise ValueError(
        f"{rows} rows fit neither the {lengths.cum_len} tokens of the call nor the {lengths.delta_len} it stages"
    )


def _npy_values(payload: str) -> NDArray[Any]:
    try:
        file = io.BytesIO(base64.b64decode(payload, validate=True))
        values: NDArray[Any] = npy.read_array(file, allow_pickle=False)
    except (binascii.Error, ValueError, EOFError) as error:
        raise ValueError(f"the array of expert routes cannot be read: {str(error).splitlines()[0]}") from None
    if values.ndim != 3 or values.dtype.kind not in "iu":
        raise ValueError(f"expert routes are integers by token, layer and rank, not {values.dtype} {values.shape}")
    return values


def _placed(values: NDArray[Any], start: int, lengths: CallLengths) -> NDArray[Any]:
    """Return a row for each staged token: those from ``start`` on, and the sentinel for tokens without one."""
    kept = values[max(lengths.prev_len - start, 0) :]
    before = max(start - lengths.prev_len, 0)
    wide = np.int64 if values.dtype.kind == "u" else values.dtype  # an id that int32 cuts would be another one
    placed = np.full((lengths.delta_len, *values.shape[1:]), MISSING_ROUTE_SENTINEL, wide)
    placed[before : before + len(kept)] = kept
    return placed
