"""Token ids and log probabilities out of an engine's answer, taken as they are or refused with the index at fault.

An id that was cut, counted from a truth value or put together from the characters of a text would train a model on
tokens it never saw (C326).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gym_ray.token_id_capture.token_arrays import LogProbs, TokenIds

__all__ = [
    "BUFFERS",
    "ID_PREFIX",
    "enter_prefix",
    "exact_ids",
    "exact_log_probs",
    "id_buffer",
    "lax_ids",
    "lax_log_probs",
    "log_prob_buffer",
    "token_id_of",
]

BUFFERS: Final = (np.ndarray, memoryview, array)
ID_PREFIX: Final = "token_id:"
_REQUIRED_PREFIX_FIELD: Final = "required_prefix_token_ids"
_NONE_SAID: Final = -9999.0
"""vLLM writes this where it has no log probability for a token, or one of minus infinity."""


def enter_prefix(request: MutableMapping[str, Any], prefix_token_ids: TokenIds) -> MutableMapping[str, Any]:
    """Put a new list of the prefix into a request as ``required_prefix_token_ids`` and return the request (C130)."""
    ids = prefix_token_ids
    request[_REQUIRED_PREFIX_FIELD] = ids.tolist() if isinstance(ids, BUFFERS) else list(ids)
    return request


def exact_ids(values: object, what: str) -> TokenIds:
    """Return ids: an array of integers as it is, a list or tuple as a new list of integers.

    Each is an integer, a text of digits, or ``token_id:<digits>``. Whether it is negative is not looked at.

    Raises:
        TypeError: The values are no sequence of ids.
        ValueError: One of them is no id, and its index is named; or an array holds something else.
    """
    if isinstance(values, BUFFERS):
        return id_buffer(values, what)
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
    """Return log probabilities: an array as one of floats, a list or tuple as a new list of floats.

    Raises:
        TypeError: The values are no sequence, or one is no number; its index is named.
        ValueError: One is what an engine writes where it has none; its index is named. Or an array holds no numbers.
    """
    log_probs = log_prob_buffer(values, what) if isinstance(values, BUFFERS) else _float_list(values, what)
    if _NONE_SAID in log_probs:
        at = list(log_probs).index(_NONE_SAID)
        raise ValueError(f"{what}: index {at}: {_NONE_SAID} says that the engine has no log probability for this token")
    return log_probs


def id_buffer(values: Any, what: str) -> NDArray[Any]:
    """Return a buffer of integers as an array.

    Raises:
        ValueError: It holds something else, or has not one dimension.
    """
    return _checked(np.asarray(values), what, "integers", "iu")


def log_prob_buffer(values: Any, what: str) -> NDArray[Any]:
    """Return a buffer of numbers as an array of floats.

    Raises:
        ValueError: It holds something else, or has not one dimension.
    """
    numbers = _checked(np.asarray(values), what, "numbers", "fiu")
    return numbers if numbers.dtype.kind == "f" else numbers.astype(np.float64)


def lax_ids(values: Any, convert: Callable[[Any], int]) -> list[int]:
    """Return what ``convert`` makes of each value, whatever that is."""
    return [convert(value) for value in values]


def lax_log_probs(values: Iterable[Any]) -> list[float]:
    """Return the values as ``float()`` reads them."""
    return [float(value) for value in values]


def _checked(numbers: NDArray[Any], what: str, wanted: str, kinds: str) -> NDArray[Any]:
    if numbers.ndim != 1 or numbers.dtype.kind not in kinds:
        raise ValueError(f"{what}: an array of {wanted} is needed, not {numbers.dtype} of shape {numbers.shape}")
    return numbers


def _float_list(values: object, what: str) -> list[float]:
    listed = _listed(values, what)
    if set(map(type, listed)) <= {float}:
        return listed
    return [_number(value, f"{what}: index {at}") for at, value in enumerate(listed)]


def _number(value: object, where: str) -> float:
    if isinstance(value, int | float | np.floating) and not isinstance(value, bool):
        return float(value)
    raise TypeError(f"{where}: {value!r} is no log probability")


def _listed(values: object, what: str) -> list[Any]:
    if not isinstance(values, Sequence) or isinstance(values, str | bytes | bytearray):
        raise TypeError(f"{what}: a list is needed, not {type(values).__name__}")
    return list(values)
