"""Values that JSON cannot express, spelled as ``{"$t": kind, "v": ...}`` in files of cases (C6)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["FloatOfItsOwn", "IntOfItsOwn", "TextOfItsOwn", "as_array", "spelled"]


class IntOfItsOwn(int):
    """An integer that is no exact ``int``."""


class FloatOfItsOwn(float):
    """A float that is no exact ``float``."""


class TextOfItsOwn(str):
    """A text that is no exact ``str``."""

    __slots__ = ()


def _nest(depth: int) -> list[Any]:
    nested: list[Any] = []
    for _ in range(depth - 1):
        nested = [nested]
    return nested


_KINDS: Final[dict[str, Callable[[Any], Any]]] = {
    "nan": lambda _: float("nan"),
    "inf": lambda _: float("inf"),
    "-inf": lambda _: float("-inf"),
    "tuple": tuple,
    "bytes": bytes.fromhex,
    "set": set,
    "range": lambda ends: list(range(*ends)),
    "repeat": lambda pair: [pair[0]] * pair[1],
    "np.int64": np.int64,
    "np.float64": np.float64,
    "np.float32": np.float32,
    "strsub": TextOfItsOwn,
    "intsub": IntOfItsOwn,
    "floatsub": FloatOfItsOwn,
    "odict": OrderedDict,
    "kv": lambda pairs: dict(map(tuple, pairs)),
    "nest": _nest,
}


def spelled(value: Any) -> Any:
    """Return what a case spells, all the way down.

    Raises:
        KeyError: It spells a kind that nobody knows.
    """
    if isinstance(value, list):
        return [spelled(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "$t" in value:
        return _KINDS[value["$t"]](spelled(value.get("v")))
    return {key: spelled(item) for key, item in value.items()}


def as_array(values: Any) -> NDArray[Any] | None:
    """Return a list of exact ``int`` of 64 bits without sign, or of exact ``float``, as an array; else None."""
    if not isinstance(values, list):
        return None
    kinds = set(map(type, values))
    if kinds <= {int} and all(0 <= value < 1 << 64 for value in values):
        return np.array(values, np.uint64)
    return np.array(values, np.float64) if kinds == {float} else None
