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

__all__ = ["compute_extras_digest"]

_HEAD: Final = EXTRAS_DIGEST_DOMAIN + bytes([EXTRAS_DIGEST_VERSION])
_U64: Final = struct.Struct(">Q").pack
_I64: Final = struct.Struct(">q").pack
_F64: Final = struct.Struct(">d").pack
_INFINITY: Final = float("inf")
# So many pieces are joined before they are hashed: the encoding of large extras is never held as a whole.
_JOINED_PIECES: Final = 4096


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


def _encoded(extras: dict[Any, Any]) -> Iterator[bytes]:
    """Yield the encoding piece by piece; a stack holds what is left of each open container."""
    yield _opening(extras)
    open_containers = [_members(extras)]
    while open_containers:
        for key, value in open_containers[-1]:
            yield key
            kind = type(value)
            if kind is dict or kind is list:
                if len(open_containers) >= MAX_EXTRAS_DEPTH:
                    raise ValueError(f"extras are nested more than {MAX_EXTRAS_DEPTH} deep")
                yield _opening(value)
                open_containers.append(_members(value))
                break
            encode = _SCALARS.get(kind)
            if encode is None:
                raise TypeError(f"extras hold {value!r}, and {kind.__name__} is no type of JSON")
            yield encode(value)
        else:
            open_containers.pop()


def _opening(container: dict[Any, Any] | list[Any]) -> bytes:
    return (b"D" if isinstance(container, dict) else b"L") + _U64(len(container))


def _members(container: dict[Any, Any] | list[Any]) -> Iterator[tuple[bytes, Any]]:
    """Return pairs of an encoded key and a value; an element of a list has no key."""
    if isinstance(container, list):
        return iter([(b"", value) for value in container])
    keys = set(map(type, container))
    if not keys <= {str}:
        odd = next(key for key in container if type(key) is not str)
        raise TypeError(f"extras have the key {odd!r}, which is no exact str")
    # Code points sort like their UTF-8 bytes (C92).
    return iter([(_text(key), container[key]) for key in sorted(container)])


def _text(value: str) -> bytes:
    encoded = value.encode()
    return _U64(len(encoded)) + encoded


def _integer(value: int) -> bytes:
    try:
        return b"I" + _I64(value)
    except struct.error:
        raise ValueError(f"extras hold {value}, which has more than 64 bits") from None


def _number(value: float) -> bytes:
    if not -_INFINITY < value < _INFINITY:
        raise ValueError(f"extras hold {value}, which is not finite")
    return b"F" + _F64(value)


_SCALARS: Final[dict[type, Callable[[Any], bytes]]] = {
    type(None): lambda _: b"N",
    bool: lambda value: b"B\x01" if value else b"B\x00",
    int: _integer,
    float: _number,
    str: lambda value: b"S" + _text(value),
}
