"""Token ids and log probabilities out of an engine's answer, taken as they are or refused with the index at fault.

An id that was cut, counted from a truth value or put together from the characters of a text would train a model on
tokens it never saw (C326).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from typing import Any, Final

import numpy as np

from gym_ray.token_id_capture.token_arrays import LogProbs, TokenIds

__all__ = ["ID_PREFIX", "enter_prefix", "exact_ids", "exact_log_probs", "lax_ids", "lax_log_probs", "token_id_of"]

ID_PREFIX: Final = "token_id:"
_REQUIRED_PREFIX_FIELD: Final = "required_prefix_token_ids"
_NONE_SAID: Final = -9999.0
"""vLLM writes this where it has no log probability for a token, or one of minus infinity."""


def enter_prefix(request: MutableMapping[str, Any], prefix_token_ids: TokenIds) -> MutableMapping[str, Any]:
    """Put a new list of the prefix into a request as ``required_prefix_token_ids`` and return the request (C130)."""
    ids = prefix_token_ids
    request[_REQUIRED_PREFIX_FIELD] = ids.tolist() if isinstance(ids, np.ndarray | memoryview | array) else list(ids)
    return request


def exact_ids(values: object, what: str) -> TokenIds:
    """Return ids: an array as it is, a list or tuple as a new list of integers.

    Each is an integer, a text of digits, or ``token_id:<digits>``.

    Raises:
        TypeError: The values are no sequence of ids.
        ValueError: One of them is no id; its index is named.
    """
    if isinstance(values, np.ndarray | memoryview | array):
        return values
    listed = _listed(values, what)
    if set(map(type, listed)) <= {int}:
        return listed
    return [token_id_of(value, f"{what}: index {at}") for at, value in enumerate(listed)]


def token_id_of(value: object, where: str) -> int:
    """Return one id.

    Raises:
        ValueError: It is none; ``where`` stands in front of the message.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        digits = value.removeprefix(ID_PREFIX)
        if digits.isascii() and digits.isdigit() and len(digits) <= 20:
            return int(digits)
    raise ValueError(f"{where}: {value!r} is no token id; it may be an integer, its digits, or {ID_PREFIX}<digits>")


def exact_log_probs(values: object, what: str) -> LogProbs:
    """Return log probabilities: an array as it is, a list or tuple as a new list of floats.

    Raises:
        TypeError: The values are no sequence, or one is no number; its index is named.
        ValueError: One is what an engine writes where it has none; its index is named.
    """
    if isinstance(values, np.ndarray | memoryview | array):
        return values
    listed = _listed(values, what)
    if not set(map(type, listed)) <= {float}:
        listed = [_number(value, f"{what}: index {at}") for at, value in enumerate(listed)]
    if _NONE_SAID in listed:
        at = listed.index(_NONE_SAID)
        raise ValueError(f"{what}: index {at}: {_NONE_SAID} says that the engine has no log probability for this token")
    return listed


def lax_ids(values: Any, convert: Callable[[Any], int]) -> list[int]:
    """Return what ``convert`` makes of each value, whatever that is."""
    return [convert(value) for value in values]


def lax_log_probs(values: Iterable[Any]) -> list[float]:
    """Return the values as ``float()`` reads them."""
    return [float(value) for value in values]


def _number(value: object, where: str) -> float:
    if isinstance(value, int | float | np.floating) and not isinstance(value, bool):
        return float(value)
    raise TypeError(f"{where}: {value!r} is no log probability")


def _listed(values: object, what: str) -> list[Any]:
    if not isinstance(values, Sequence) or isinstance(values, str | bytes | bytearray):
        raise TypeError(f"{what}: a list is needed, not {type(values).__name__}")
    return list(values)
