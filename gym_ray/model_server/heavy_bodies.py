"""Request bodies that would stall the event loop while they are parsed.

Parsing a megabyte of small values holds the interpreter's lock for tens of milliseconds, on whatever thread it runs. A
forwarded request needs two of its members only, so a child interpreter reads them, and the model's name is replaced
there as well. Whoever asks such a body for anything else pays for parsing it here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Set
from typing import Any

from gym_ray import exact_json
from gym_ray.child_interpreter import ChildInterpreter
from gym_ray.errors import ChildInterpreterError

__all__ = ["HeavyBody", "body_work", "is_heavy", "parse_heavy"]

_HEAVY_BYTES = 1024**2
_HEAVY_VALUES = 16_384
_HEAVY_TEXT_BYTES = 8 * 1024**2
_LONGEST_SCALAR = 1024


def is_heavy(raw: bytes) -> bool:
    """Whether parsing takes more than a few milliseconds: many values, or very much text."""
    if len(raw) <= _HEAVY_BYTES:
        return False
    return len(raw) > _HEAVY_TEXT_BYTES or raw.count(b",") > _HEAVY_VALUES


def body_work(raw: bytes, members: Mapping[str, Any] | None) -> Any:
    """Run in the child: split an object's top-level members, or return its bytes with ``members`` replaced.

    Returns:
        Without ``members`` the small ones, and the names of the others.

    Raises:
        ValueError: The bytes are no JSON.
        TypeError: They are JSON of another kind.
    """
    body = exact_json.loads(raw)
    if not isinstance(body, dict):
        raise TypeError("no object")
    if members is not None:
        return exact_json.dumps({**body, **members})
    small = {name: value for name, value in body.items() if _is_small(value)}
    return small, frozenset(body) - frozenset(small)


async def parse_heavy(child: ChildInterpreter[Any], raw: bytes) -> HeavyBody:
    """Return a heavy body without having parsed it here.

    Raises:
        ValueError: The bytes are no JSON.
        TypeError: They are JSON of another kind.
    """
    try:
        small, large = await asyncio.to_thread(child.call, raw, None)
    except ChildInterpreterError:
        small, large = await asyncio.to_thread(body_work, raw, None)  # a lost child costs time, not the call
    return HeavyBody(child, raw, small, large)


class HeavyBody(Mapping[str, Any]):
    """A JSON object whose small top-level members are known, and whose others are parsed when they are asked for.

    Args:
        child: Interpreter of :func:`body_work`.
        raw: The object's bytes.
        small: Its top-level members that are short texts, numbers, booleans and null.
        large: Names of its other members.
    """

    def __init__(self, child: ChildInterpreter[Any], raw: bytes, small: Mapping[str, Any], large: Set[str]) -> None:
        self._child, self._raw, self._small, self._large = child, raw, small, large
        self._whole: dict[str, Any] | None = None

    def __getitem__(self, name: str) -> Any:
        return self._parsed()[name] if name in self._large else self._small[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parsed())

    def __len__(self) -> int:
        return len(self._small) + len(self._large)

    async def replaced(self, members: Mapping[str, Any]) -> bytes:
        """Return the object's bytes with top-level members replaced or added.

        Raises:
            ValueError: The object nests too deeply.
        """
        try:
            encoded: bytes = await asyncio.to_thread(self._child.call, self._raw, members)
        except ChildInterpreterError:
            encoded = await asyncio.to_thread(body_work, self._raw, members)
        return encoded

    def _parsed(self) -> dict[str, Any]:
        if self._whole is None:
            self._whole = exact_json.loads(self._raw)
        return self._whole


def _is_small(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= _LONGEST_SCALAR
    return value is None or isinstance(value, bool | int | float)
