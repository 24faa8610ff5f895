"""The digest of a call's extras: one encoding for each JSON-like value, so that equal extras have equal bytes.

Nothing is guessed: a type that JSON does not have is refused, whatever it would look like as JSON (C90, C91). The walk
uses no recursion, so that deep extras end in a named error and not in the interpreter's limit (C325).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from gym_ray.token_id_capture.staging.constants import (
    EXTRAS_DIGEST_DOMAIN,
    EXTRAS_DIGEST_VERSION,
    MAX_EXTRAS_DEPTH,
    NO_EXTRAS_DIGEST,
)

__all__ = ["compute_extras_digest", "copied_extras"]

_HEAD: Final = EXTRAS_DIGEST_DOMAIN + bytes([EXTRAS_DIGEST_VERSION])
_U64: Final = struct.Struct(">Q").pack
_I64: Final = struct.Struct(">q").pack
_F64: Final = struct.Struct(">d").pack
_CONTAINERS: Final = (dict, list)
_INFINITY: Final = float("inf")
# So many pieces are joined before they are hashed: the encoding of large extras is never held as a whole.
_JOINED_PIECES: Final = 4096
# A message shows so many steps of the way to what is refused.
_NAMED_STEPS: Final = 8


def compute_extras_digest(extras: Mapping[str, Any] | None) -> str:
    """Return the digest of extras, 64 lowercase hex digits (C90); the order of keys does not matter.

    Args:
        extras: Any mapping at the top, else only None, ``bool``, ``int`` of 64 bits, finite ``float``, ``str``,
            ``list`` and ``dict`` with text keys, of these very types.

    Raises:
        TypeError: The extras are no mapping, or a value or key has another type; the place is named.
        ValueError: A number is out of range or not finite, a text holds half a surrogate pair, or containers are
            nested more than 256 deep (C325).
    """
    if extras is None:
        return NO_EXTRAS_DIGEST
    if not isinstance(extras, Mapping):
        raise TypeError(f"extras must be a mapping or None, not {type(extras).__name__}")
    state = hashlib.sha256(_HEAD)
    pieces: list[bytes] = []
    for piece in _encoded(dict(extras)):
        pieces.append(piece)
        if len(pieces) >= _JOINED_PIECES:
            state.update(b"".join(pieces))
            pieces.clear()
    state.update(b"".join(pieces))
    return state.hexdigest()


def copied_extras(extras: Mapping[str, Any]) -> dict[str, Any]:
    """Return extras that share no container with those given: what is hashed cannot be changed from outside any more.

    Other values are shared and not looked at.

    Raises:
        ValueError: Containers are nested more than 256 deep, or in themselves (C325).
    """
    own = dict(extras)
    left: list[tuple[Any, int]] = [(own, 1)]
    while left:
        container, depth = left.pop()
        nested = dict.items(container) if type(container) is dict else enumerate(container)
        for label, value in [(label, value) for label, value in nested if type(value) in _CONTAINERS]:
            if depth >= MAX_EXTRAS_DEPTH:
                raise ValueError(f"extras: nested more than {MAX_EXTRAS_DEPTH} deep")
            container[label] = copy = value.copy()
            left.append((copy, depth + 1))
    return own


def _encoded(extras: dict[Any, Any]) -> Iterator[bytes]:
    """Yield the encoding piece by piece; a stack holds what is left of each open container, another where we are."""
    place: list[str | int] = []
    try:
        yield _opening(extras)
        open_containers = [_members(extras)]
        while open_containers:
            for label, key, value in open_containers[-1]:
                place.append(label)
                encode = _SCALARS.get(type(value))
                if encode is None:
                    _refuse_container(value, len(open_containers))
                    yield key + _opening(value)
                    open_containers.append(_members(value))
                    break
                yield key + encode(value)
                place.pop()
            else:
                open_containers.pop()
                del place[-1:]
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind("extras" + "".join(f"[{step!r}]" for step in place[:_NAMED_STEPS]) + f": {error}") from None


def _refuse_container(value: object, depth: int) -> None:
    kind = type(value)
    if kind not in _CONTAINERS:
        raise TypeError(f"{kind.__name__} is no type of JSON")
    if depth >= MAX_EXTRAS_DEPTH:
        raise ValueError(f"nested more than {MAX_EXTRAS_DEPTH} deep")


def _opening(container: dict[Any, Any] | list[Any]) -> bytes:
    return (b"D" if isinstance(container, dict) else b"L") + _U64(len(container))


def _members(container: dict[Any, Any] | list[Any]) -> Iterator[tuple[str | int, bytes, Any]]:
    """Return label, encoded key and value of each member; an element of a list has no encoded key."""
    if isinstance(container, list):
        return ((at, b"", value) for at, value in enumerate(container))
    if not set(map(type, container)) <= {str}:
        odd = next(key for key in container if type(key) is not str)
        raise TypeError(f"the key {odd!r} is no exact str")
    # Code points sort like their UTF-8 bytes (C92).
    return iter([(key, _text(key), container[key]) for key in sorted(container)])


def _text(value: str) -> bytes:
    encoded = value.encode()
    return _U64(len(encoded)) + encoded


def _integer(value: int) -> bytes:
    try:
        return b"I" + _I64(value)
    except struct.error:
        raise ValueError("an integer of more than 64 bits") from None


def _number(value: float) -> bytes:
    if not -_INFINITY < value < _INFINITY:
        raise ValueError(f"{value} is not finite")
    return b"F" + _F64(value)


_SCALARS: Final[dict[type, Callable[[Any], bytes]]] = {
    type(None): lambda _: b"N",
    bool: lambda value: b"B\x01" if value else b"B\x00",
    int: _integer,
    float: _number,
    str: lambda value: b"S" + _text(value),
}
