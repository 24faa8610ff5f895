"""What was hashed of a rollout's conversations, so that a request is hashed from its first new item on (W11).

A beginning counts as known only if its JSON is the same to the byte: 1, 1.0 and true are three things. So an item that
changed early in the history is seen. No object of a caller is kept, since its owner may change it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import orjson

from gym_ray.token_id_capture.fingerprint import ConversationHasher, HashedItems

__all__ = ["ConversationCache"]

_MAX_ROLLOUTS: Final = 1024
_MAX_ITEMS: Final = 1_000_000
_MAX_BYTES: Final = 256 << 20
# A rollout may run several conversations at a time: sub-agents, branches, a summary and what it summarises.
_CONVERSATIONS: Final = 4
# Ends of earlier requests of one conversation, for retries and for branches that leave it there.
_MARKS: Final = 8


@dataclass(frozen=True, slots=True, eq=False)
class _Mark:
    """What is known of the first ``count`` items: their hashes, and where they end in the JSON."""

    count: int
    size: int
    hasher: ConversationHasher


@dataclass(frozen=True, slots=True, eq=False)
class _Conversation:
    """The items of one request.

    Attributes:
        text: Their JSON, a list.
        marks: Beginnings of it, ascending; the last one is the whole.
        nulled: Private copies of the items in which there is a null, by index.
    """

    text: bytes
    marks: tuple[_Mark, ...]
    nulled: Mapping[int, object]

    @property
    def count(self) -> int:
        return self.marks[-1].count


@dataclass(slots=True, eq=False)
class _Rollout:
    """The conversations of a rollout, the one used last at the end, and how much they hold."""

    conversations: list[_Conversation] = field(default_factory=list)
    items: int = 0
    size: int = 0


class ConversationCache:
    """Hashes request items, each item of a growing conversation once. Safe for threads.

    Bounds are running totals, the least recently used rollout is forgotten first; forgetting costs a pass, never an
    answer.

    Args:
        max_rollouts: Most rollouts to remember.
        max_items: Most items of all their conversations.
        max_bytes: Most bytes of those items as JSON, which is what they are kept as.

    Raises:
        ValueError: A bound is not positive.
    """

    def __init__(
        self, *, max_rollouts: int = _MAX_ROLLOUTS, max_items: int = _MAX_ITEMS, max_bytes: int = _MAX_BYTES
    ) -> None:
        for name, bound in (("max_rollouts", max_rollouts), ("max_items", max_items), ("max_bytes", max_bytes)):
            if bound <= 0:
                raise ValueError(f"{name} must be at least 1, not {bound}")
        self._max_rollouts, self._max_items, self._max_bytes = max_rollouts, max_items, max_bytes
        self._rollouts: OrderedDict[str, _Rollout] = OrderedDict()
        self._items = self._size = 0
        self._lock = threading.Lock()

    def hashed(self, rollout_id: str, items: Sequence[object]) -> HashedItems:
        """Return the items with their hashes, the same as if every item was hashed now.

        Raises:
            ValueError: An item cannot be hashed (B31-B33); what was known stays known.
        """
        plain = list(items)
        text = _json(plain)
        with self._lock:
            rollout = self._rollouts.get(rollout_id)
            known = tuple(rollout.conversations) if rollout and text is not None else ()
        base, mark = _longest_beginning(known, plain, text or b"")
        count, hasher = (mark.count, mark.hasher.copy()) if mark else (0, ConversationHasher())
        hasher.feed(plain[count:])
        hashed = HashedItems(plain, hasher)
        conversation = base if base and count == len(plain) else _grown(base, mark, hashed, text)
        if conversation is not None:
            self._remember(rollout_id, conversation, base if base and count == base.count else None)
        return hashed

    def _remember(self, rollout_id: str, conversation: _Conversation, replaced: _Conversation | None) -> None:
        with self._lock:
            rollout = self._rollouts.setdefault(rollout_id, _Rollout())
            self._rollouts.move_to_end(rollout_id)
            before = rollout.conversations
            others = [known for known in before if known is not replaced]
            rollout.conversations = [*others[1 - _CONVERSATIONS :], conversation]
            self._count(rollout, rollout.conversations, 1)
            self._count(rollout, before, -1)
            while self._rollouts and self._over_bounds():
                _, forgotten = self._rollouts.popitem(last=False)
                self._items -= forgotten.items
                self._size -= forgotten.size

    def _count(self, rollout: _Rollout, conversations: Iterable[_Conversation], sign: int) -> None:
        for conversation in conversations:
            items, size = sign * conversation.count, sign * len(conversation.text)
            rollout.items += items
            rollout.size += size
            self._items += items
            self._size += size

    def _over_bounds(self) -> bool:
        return len(self._rollouts) > self._max_rollouts or self._items > self._max_items or self._size > self._max_bytes


def _longest_beginning(
    known: Iterable[_Conversation], plain: list[object], text: bytes
) -> tuple[_Conversation | None, _Mark | None]:
    """Return the known conversation of which the request begins with most, and how much that is."""
    base, longest = None, None
    for conversation in known:
        for mark in reversed(conversation.marks):
            if longest and mark.count <= longest.count:
                break
            if _begins(plain, text, conversation, mark):
                base, longest = conversation, mark
                break
    return base, longest


def _begins(plain: list[object], text: bytes, known: _Conversation, mark: _Mark) -> bool:
    """Whether a request begins with the items up to a mark, value for value and type for type.

    Equal JSON means equal items, except that NaN is written as null; so items with nulls are compared themselves. Every
    item that was hashed is an object, so one that ends at the mark in one JSON ends there in the other.
    """
    if not text.startswith(memoryview(known.text)[: mark.size]):
        return False
    return all(plain[at] == item for at, item in known.nulled.items() if at < mark.count)


def _grown(
    base: _Conversation | None, mark: _Mark | None, hashed: HashedItems, text: bytes | None
) -> _Conversation | None:
    """Return the conversation of a request that begins like ``base`` up to a mark; None if JSON cannot hold it."""
    count, size = (mark.count, mark.size) if mark else (0, 0)
    if text is None or len(hashed) == count:
        return None
    nulled = {at: item for at, item in base.nulled.items() if at < count} if base else {}
    if text.find(b"null", size) >= 0:
        new = hashed[count:]
        copies = orjson.loads(orjson.dumps(new))
        if copies != new:
            return None  # there is a NaN
        nulled |= {at: item for at, item in enumerate(copies, count) if _has_null(item)}
    kept = [known for known in base.marks if known.count <= count][1 - _MARKS :] if base else []
    return _Conversation(text, (*kept, _Mark(len(hashed), len(text) - 1, hashed.hasher.copy())), nulled)


def _json(value: object) -> bytes | None:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return None


def _has_null(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_has_null, value.values()))
    return any(map(_has_null, value)) if isinstance(value, list) else value is None
