"""Whether work on one call is small enough for an event loop, which it would hold up for about a millisecond at most.

Larger work runs on a thread. The estimates must be cheap themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from itertools import islice
from typing import Any, Final

from gym_ray.token_id_capture.exact_tokens import ExactTokens
from gym_ray.token_id_capture.records import TOKEN_ARRAYS
from gym_ray.token_id_capture.request_items import text_input_of

__all__ = ["can_be_compared_inline", "can_be_hashed_inline", "can_be_recorded_inline"]

_COMPARED_ITEMS: Final = 2048
_COMPARED_CHARACTERS: Final = 1024 * 1024
_HASHED_ITEMS: Final = 256
_HASHED_CHARACTERS: Final = 256 * 1024
_CONVERTED_TOKENS: Final = 16_384
_HASHED_TOKENS: Final = 65_536
_PLAIN_MEMBERS: Final = 3


def can_be_compared_inline(items: Sequence[object]) -> bool:
    """Whether request items are few enough to be compared with known ones."""
    return _are_at_most(_COMPARED_ITEMS, _COMPARED_CHARACTERS, items)


def can_be_hashed_inline(items: Sequence[object], *, known: int) -> bool:
    """Whether request items are few enough to be hashed, all but the first ``known``, whose hashes are known."""
    return _are_at_most(_HASHED_ITEMS, _HASHED_CHARACTERS, items, known)


def can_be_recorded_inline(tokens: ExactTokens | Mapping[str, Any], *, delta: bool) -> bool:
    """Whether tokens are few enough to be made into a record.

    Args:
        tokens: The tokens, or token fields of an answer, which have to be converted.
        delta: Most of the prompt is its parent's, which is compared and hashed, and not converted.
    """
    if isinstance(tokens, ExactTokens):
        size = tokens.prompt_token_ids.size + tokens.generation_token_ids.size
        return size <= (_HASHED_TOKENS if delta else _CONVERTED_TOKENS)
    counted = [tokens.get(name) for name in TOKEN_ARRAYS]
    return sum(len(values) for values in counted if isinstance(values, Sized)) <= _CONVERTED_TOKENS


def _are_at_most(count: int, characters: int, items: Sequence[object], known: int = 0) -> bool:
    text = len(text_input_of(items) or "")
    return len(items) - known <= count and text + sum(map(_characters, islice(items, known, None))) <= characters


def _characters(item: object) -> int:
    """Estimate how much text an item holds; what nests deeper counts as much as its parts are many."""
    if not isinstance(item, dict):
        return 0
    content = item.get("content")
    if type(content) is str and len(item) <= _PLAIN_MEMBERS:
        return len(content)  # the usual item, and there are many
    total = 0
    for value in item.values():
        for part in value if isinstance(value, list) else (value,):
            texts = part.values() if isinstance(part, dict) else (part,)
            total += sum(len(text) for text in texts if isinstance(text, str | list | dict))
    return total
