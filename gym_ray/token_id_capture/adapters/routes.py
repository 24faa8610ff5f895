"""Expert routes as they are staged: an envelope of text, ``nrlre1:<dtype>:<T>x<L>x<K>:<base64>``, or nested lists.

One row a token, of the experts that each layer chose. The digest of a call covers this text as it is, so that encoding
the same values again must give the same bytes (C140-C143). Nothing here guesses which token a row belongs to.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "MISSING_ROUTE_SENTINEL",
    "ROUTES_PREFIX",
    "ExpertRoutes",
    "RouteSpan",
    "classify_route_span",
    "decode_routed_experts",
    "encode_routed_experts",
    "routed_experts_token_count",
]

ROUTES_PREFIX: Final = "nrlre1"
MISSING_ROUTE_SENTINEL: Final = -1
"""Stands where a token has no route, as behind the last one, which no pass of the model follows (C141)."""

RouteSpan: TypeAlias = Literal["full", "tail", "sentinel"]

_LEGACY: Final = "legacy-int"
_DTYPES: Final = {"int8": "<i1", "int16": "<i2", "int32": "<i4"}
_LENGTH: Final = re.compile(r"\+?[0-9]{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True, eq=False)
class ExpertRoutes:
    """Decoded routes.

    Attributes:
        values: Experts by ``[token][layer][rank]``; read-only where they are a view of the envelope's bytes.
        dtype: ``int8``, ``int16``, ``int32``, or ``legacy-int`` for nested lists.
    """

    values: NDArray[Any]
    dtype: str

    @property
    def num_layers(self) -> int:
        """Layers with experts."""
        return int(self.values.shape[1])

    @property
    def topk(self) -> int:
        """Experts that a layer chooses for a token."""
        return int(self.values.shape[2])


def encode_routed_experts(values: NDArray[Any] | list[Any], dtype: str = "int16") -> str:
    """Return routes as an envelope (C140).

    Args:
        values: A three-dimensional array of integers, or such nested lists, at least one value in each direction.
        dtype: ``int8``, ``int16`` or ``int32``.

    Raises:
        ValueError: Another dtype, another shape, something that is no integer, or one that does not fit.
    """
    if dtype not in _DTYPES:
        raise ValueError(f"expert routes are int8, int16 or int32, not {dtype}")
    routes = _checked(values) if isinstance(values, np.ndarray) else _of_lists(values)
    limits = np.iinfo(dtype)
    low, high = int(routes.min()), int(routes.max())
    if low < limits.min or high > limits.max:
        raise ValueError(f"expert routes from {low} to {high} do not fit {dtype}")
    shape = "x".join(map(str, routes.shape))
    body = np.ascontiguousarray(routes, _DTYPES[dtype])
    return f"{ROUTES_PREFIX}:{dtype}:{shape}:{base64.b64encode(body.data).decode('ascii')}"


def decode_routed_experts(payload: object) -> ExpertRoutes:
    """Return the routes of an envelope, or of nested lists (C140, C141).

    Raises:
        ValueError: It is neither, its header is none, its body is no base64, or they disagree about its size.
    """
    if not isinstance(payload, str):
        return ExpertRoutes(_of_lists(payload), _LEGACY)
    dtype, shape, body = _header(payload)
    try:
        data = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"the body of expert routes is no base64: {error}") from None
    wanted = shape[0] * shape[1] * shape[2] * np.dtype(dtype).itemsize
    if len(data) != wanted:
        raise ValueError(f"expert routes of {shape} {dtype} take {wanted} bytes, not {len(data)}")
    if not body.endswith(base64.b64encode(data[-(len(data) % 3 or 3) :]).decode("ascii")):
        raise ValueError("the body of expert routes is not the base64 that its bytes encode to")
    return ExpertRoutes(np.frombuffer(data, _DTYPES[dtype]).reshape(shape), dtype)


def routed_experts_token_count(payload: object) -> int:
    """Return how many tokens have a row, from the header alone; the body is not looked at (C142).

    Raises:
        ValueError: There is no such header, or the list is empty or no list.
    """
    if isinstance(payload, str):
        return _header(payload)[1][0]
    if not isinstance(payload, list) or not payload:
        raise ValueError(f"expert routes are text or a list with a row a token, not {_named(payload)}")
    return len(payload)


def classify_route_span(carry_len: int, generation_len: int, staged_route_len: int) -> RouteSpan:
    """Return which tokens of a call its staged rows belong to (C143).

    Returns:
        ``full``: a row for every carried and generated token. ``tail``: the last ``generation_len`` rows belong to the
        generated tokens. ``sentinel``: no row can be used.

    Raises:
        ValueError: A length is no integer, or negative.
    """
    for name, value in (("carry", carry_len), ("generation", generation_len), ("route", staged_route_len)):
        if type(value) is not int or value < 0:
            raise ValueError(f"the {name} length must be an integer of 0 or more, not {value!r}")
    if staged_route_len > 0 and staged_route_len == carry_len + generation_len:
        return "full"
    return "tail" if 0 < generation_len <= staged_route_len else "sentinel"


def _header(payload: str) -> tuple[str, tuple[int, int, int], str]:
    parts = payload.split(":")
    if len(parts) != 4 or parts[0] != ROUTES_PREFIX:
        raise ValueError(f"expert routes look like {ROUTES_PREFIX}:<dtype>:<T>x<L>x<K>:<base64>, not {payload[:40]!r}")
    _, dtype, dimensions, body = parts
    if dtype not in _DTYPES:
        raise ValueError(f"expert routes are int8, int16 or int32, not {dtype!r}")
    lengths = dimensions.split("x")
    if len(lengths) != 3 or not all(_LENGTH.fullmatch(length) for length in lengths):
        raise ValueError(f"the shape of expert routes is <T>x<L>x<K>, not {dimensions!r}")
    tokens, layers, topk = map(int, lengths)
    if not (tokens and layers and topk):
        raise ValueError(f"the shape of expert routes has an empty side: {dimensions!r}")
    return dtype, (tokens, layers, topk), body


def _of_lists(values: object) -> NDArray[Any]:
    if not isinstance(values, list) or not values:
        raise ValueError(f"expert routes are text or nested lists, not {_named(values)}")
    layers = list(_items(values))
    flat = list(_items(layers))
    if not set(map(type, flat)) <= {int}:
        raise ValueError("expert routes are integers by token, layer and rank")
    try:
        return _checked(np.array(values))
    except (ValueError, OverflowError) as error:
        raise ValueError(f"expert routes are no even block of [token][layer][rank]: {error}") from None


def _items(lists: Iterable[Any]) -> Iterable[Any]:
    lists = list(lists)
    if not all(isinstance(item, list) for item in lists):
        raise ValueError("expert routes are lists of layers, which are lists of experts")
    return chain.from_iterable(lists)


def _checked(values: NDArray[Any]) -> NDArray[Any]:
    if values.ndim != 3 or not values.size or values.dtype.kind not in "iu":
        raise ValueError(
            f"expert routes are integers by token, layer and rank, not {values.dtype} of shape {values.shape}"
        )
    return values


def _named(value: object) -> str:
    return "an empty list" if value == [] else type(value).__name__
