"""The log probabilities of one choice, collected item by item from whatever shape an engine gives them."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["LogProbColumn"]

_NONE_SAID: Final = -9999.0
"""vLLM writes this where it has no log probability for a token, or one of minus infinity."""
_ID_TEXT: Final = "token_id:"


class LogProbColumn:
    """Values in the order they came, and the ids that stand beside them where the engine gives any.

    Attributes:
        values: Log probabilities; NaN where the engine has none.
        named: The token id of each value; None once a value came without.
        absent_at: Index of the first value that the engine did not have, None when it had all.
    """

    __slots__ = ("absent_at", "named", "values")

    def __init__(self) -> None:
        self.values = array("d")
        self.named: array[int] | None = array("Q")
        self.absent_at: int | None = None

    def __len__(self) -> int:
        return len(self.values)

    def take_items(self, items: object) -> int:
        """Take the ``content`` of a ``logprobs`` member and return how many items it had; anything else has none."""
        if not isinstance(items, list):
            return 0
        for item in items:
            said = item if isinstance(item, Mapping) else {}
            self._take(said.get("logprob"), _named_id(said))
        return len(items)

    def take_values(self, values: list[Any]) -> None:
        """Take a list of bare values."""
        for value in values:
            self._take(value, None)

    def take_pairs(self, pairs: list[Any]) -> None:
        """Take SGLang's ``[log prob, token id, …]``."""
        for pair in pairs:
            whole = isinstance(pair, list) and len(pair) >= 2
            self._take(pair[0] if whole else None, _id(pair[1]) if whole else None)

    def _take(self, value: object, named: int | None) -> None:
        if not isinstance(value, int | float) or isinstance(value, bool) or value == _NONE_SAID:
            self.absent_at = len(self.values) if self.absent_at is None else self.absent_at
            value = float("nan")
        try:
            self.values.append(value)
        except OverflowError:  # an integer beyond every float is no log probability
            self.values.append(float("inf"))
        if named is None:
            self.named = None
        elif self.named is not None:
            self.named.append(named)


def _id_in_text(text: object) -> int | None:
    """Return the id in a token text like ``token_id:42``; None when it holds none."""
    if not isinstance(text, str) or not text.startswith(_ID_TEXT):
        return None
    digits = text[len(_ID_TEXT) :]
    return _id(int(digits)) if digits.isascii() and digits.isdigit() and len(digits) <= 20 else None


def _named_id(item: Mapping[str, Any]) -> int | None:
    named = _id(item.get("token_id"))
    return _id_in_text(item.get("token")) if named is None else named


def _id(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 64 else None
