"""What was hashed of a rollout's conversations, so that a request is hashed from its first new item on (W11).

A beginning counts as known only if it is equal in every value and every type to a private copy: 1, 1.0 and true are
three things, and so are null and NaN. So an item that changed early in the history is seen.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
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
class _Conversation:
    """The items of one request.

    Attributes:
        items: Private copies.
        untexted: Indexes of the items in which numbers or truth values occur.
        size: Length of all items as JSON, in bytes.
        marks: Numbers of items, ascending, each with the hashes after so many; the last one is after all.
    """

    items: list[object]
    untexted: tuple[int, ...]
    size: int
    marks: tuple[tuple[int, ConversationHasher], ...]


@dataclass(slots=True, eq=False)
class _Rollout:
    """The conversations of a rollout, the one used last at the end, and how much they hold."""

    conversations: list[_Conversation] = field(default_factory=list)
    items: int = 0
    size: int = 0


class ConversationCache:
    """Hashes request items, each item of a growing conversation once. Safe for threads.

    Bounds are running totals, the least recently used rollout is forgotten first; forgetting costs a pass, never an
    answer. Memory is about three times ``max_bytes``.

    Args:
        max_rollouts: Most rollouts to remember.
        max_items: Most items of all their conversations.
        max_bytes: Most bytes of those items as JSON.

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
        with self._lock:
            rollout = self._rollouts.get(rollout_id)
            known = tuple(rollout.conversations) if rollout else ()
        base, count, before = _longest_beginning(known, plain)
        hasher = before.copy()
        hasher.feed(plain[count:])
        hashed = HashedItems(plain, hasher)
        conversation = base if base and count == len(plain) else _grown(base, count, hashed)
        if conversation is not None:
            replaced = base if base and count == len(base.items) else None
            self._remember(rollout_id, conversation, replaced)
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
            items, size = sign * len(conversation.items), sign * conversation.size
            rollout.items += items
            rollout.size += size
            self._items += items
            self._size += size

    def _over_bounds(self) -> bool:
        return len(self._rollouts) > self._max_rollouts or self._items > self._max_items or self._size > self._max_bytes


def _longest_beginning(
    known: Iterable[_Conversation], plain: list[object]
) -> tuple[_Conversation | None, int, ConversationHasher]:
    """Return a known conversation, how many of its items the request begins with, and the hashes after those."""
    base, longest, before = None, 0, None
    for conversation in known:
        for count, hasher in reversed(conversation.marks):
            if count <= longest:
                break
            if _begins(plain, conversation, count):
                base, longest, before = conversation, count, hasher
                break
    return base, longest, before or ConversationHasher()


def _begins(plain: list[object], known: _Conversation, count: int) -> bool:
    """Whether the first ``count`` items are the known ones, value for value and type for type.

    Where there is only text, equal values have equal types; for the rest, JSON tells the types.
    """
    whole = count == len(known.items)
    if len(plain) < count or plain[:count] != (known.items if whole else known.items[:count]):
        return False
    untexted = [at for at in known.untexted if at < count]
    return not untexted or _json([plain[at] for at in untexted]) == _json([known.items[at] for at in untexted])


def _grown(base: _Conversation | None, count: int, hashed: HashedItems) -> _Conversation | None:
    """Return the conversation of a request that begins with ``count`` items of ``base``, None if it has no copy."""
    new = hashed[count:]
    text = _json(new)
    copies = None if text is None else orjson.loads(text)
    if text is None or copies != new or not copies:
        return None  # what JSON cannot hold or changes, such as NaN
    untexted = tuple(at for at, item in enumerate(copies, count) if not _is_text(item))
    end = (len(hashed), hashed.hasher.copy())
    if base is None:
        return _Conversation(copies, untexted, len(text), (end,))
    kept = [mark for mark in base.marks if mark[0] <= count][1 - _MARKS :]
    return _Conversation(
        [*base.items[:count], *copies],
        (*(at for at in base.untexted if at < count), *untexted),
        base.size * count // len(base.items) + len(text),
        (*kept, end),
    )


def _json(value: object) -> bytes | None:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return None


def _is_text(value: object) -> bool:
    """Whether texts and nulls are all that a parsed JSON value holds."""
    inner: Iterable[object]
    if isinstance(value, dict):
        inner = value.values()
    elif isinstance(value, list):
        inner = value
    else:
        return value is None or isinstance(value, str)
    for each in inner:  # noqa: SIM110 - a generator doubles the cost of a new item
        if type(each) is not str and not _is_text(each):
            return False
    return True
