"""Remembers the hashes of a rollout's conversations, so that a request is hashed from its first new item on (W11).

The beginning of a request counts as known only if it equals a private copy in every value and in every type: 1, 1.0 and
true differ, and so do null and NaN. So an item that was changed early in the history is noticed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import orjson

from gym_ray.token_id_capture.fingerprint import BegunHashing, ConversationHasher, HashedItems
from gym_ray.token_id_capture.request_items import RequestItems

__all__ = ["ConversationCache"]

_MAX_ROLLOUTS: Final = 1024
_MAX_ITEMS: Final = 1_000_000
_MAX_BYTES: Final = 256 << 20
# A rollout may run several conversations at a time: sub-agents, branches, a summary and what it summarises.
_CONVERSATIONS: Final = 4
# Ends of earlier requests of one conversation, for retries and for branches that leave it there.
_MARKS: Final = 8
_CONTAINER_BYTES: Final = 400


@dataclass(frozen=True, slots=True, eq=False)
class _Conversation:
    """The items of one request.

    Attributes:
        items: Private copies.
        typed: Indexes of the items that hold more than texts and nulls, so that equal does not mean of one type.
        size: Their size in bytes, roughly.
        marks: Numbers of items, ascending, each with the hashes after so many; the last one is after all.
    """

    items: list[object]
    typed: tuple[int, ...]
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

    Bounds are running totals, and the least recently used rollout is forgotten first. A forgotten one is hashed again,
    with the same result.

    Args:
        max_rollouts: Most rollouts to remember.
        max_items: Most items of all their conversations.
        max_bytes: Most bytes that those items take, roughly.

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
        return self.begun(rollout_id, items).finish()

    def begun(self, rollout_id: str, items: Sequence[object]) -> BegunHashing:
        """Return the items compared with what is known, so that the caller can choose where the rest is hashed.

        They must not change before that is done; it raises as :meth:`hashed`.
        """
        plain = RequestItems(items)
        with self._lock:
            rollout = self._rollouts.get(rollout_id)
            known = tuple(rollout.conversations) if rollout else ()
        base, count, before = _longest_beginning(known, plain)
        return BegunHashing(count, lambda: self._extended(rollout_id, plain, base, count, before))

    def _extended(
        self,
        rollout_id: str,
        plain: RequestItems,
        base: _Conversation | None,
        count: int,
        before: ConversationHasher | None,
    ) -> HashedItems:
        hasher = before.copy() if before else ConversationHasher()
        hasher.feed(plain[count:])
        hashed = HashedItems(plain, hasher)
        conversation = base if base and count == len(plain) else _grown(base, count, hashed)
        if conversation is not None:
            self._remember(rollout_id, conversation, base if base and count == len(base.items) else None)
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
) -> tuple[_Conversation | None, int, ConversationHasher | None]:
    """Return the conversation of which the request begins with most, how many items that is, and their hashes."""
    base, longest, before = None, 0, None
    for conversation in known:
        for count, hasher in reversed(conversation.marks):
            if count <= longest:
                break
            if _begins(plain, conversation, count):
                base, longest, before = conversation, count, hasher
                break
    return base, longest, before


def _begins(plain: list[object], known: _Conversation, count: int) -> bool:
    """Whether the first ``count`` items are the known ones, value for value and type for type.

    Where there are only texts and nulls, equal values have equal types; for the rest, JSON tells the types.
    """
    if len(plain) < count:
        return False
    try:
        if plain[:count] != (known.items if count == len(known.items) else known.items[:count]):
            return False
    except RecursionError:
        return False
    typed = [at for at in known.typed if at < count]
    return not typed or _same_json([plain[at] for at in typed], [known.items[at] for at in typed])


def _same_json(one: object, other: object) -> bool:
    try:
        return orjson.dumps(one) == orjson.dumps(other)
    except orjson.JSONEncodeError:
        return False


def _grown(base: _Conversation | None, count: int, hashed: HashedItems) -> _Conversation | None:
    """Return the conversation of a request that begins with ``count`` items of ``base``, None if it is not kept."""
    copies: list[object] = []
    typed: list[int] = []
    size = 0
    for at in range(count, len(hashed)):
        copier = _Copier()
        try:
            copies.append(copier.copy(hashed[at]))
        except (RecursionError, TypeError):
            return None
        if copier.typed:
            typed.append(at)
        size += copier.size
    if not copies:
        return None
    end = (len(hashed), hashed.hasher.copy())
    if base is None:
        return _Conversation(copies, tuple(typed), size, (end,))
    return _Conversation(
        [*base.items[:count], *copies],
        (*(at for at in base.typed if at < count), *typed),
        base.size * count // len(base.items) + size,
        (*[mark for mark in base.marks if mark[0] <= count][1 - _MARKS :], end),
    )


class _Copier:
    """Copies an item, so that its owner may change it; texts are shared, since nobody can.

    Attributes:
        size: Bytes of what was copied, roughly.
        typed: Whether there was anything but texts, nulls and what holds them.
    """

    __slots__ = ("size", "typed")

    def __init__(self) -> None:
        self.size, self.typed = 0, False

    def copy(self, value: object) -> object:
        """Return a copy that shares nothing that can be changed.

        Raises:
            TypeError: The value holds something that JSON has not.
            RecursionError: It nests too deeply.
        """
        if isinstance(value, dict):
            return self._copy_of_object(value)
        if isinstance(value, list):
            self.size += _CONTAINER_BYTES
            return [self.copy(member) for member in value]
        if isinstance(value, str):
            self.size += len(value)
        elif isinstance(value, int | float):
            self.typed = True
        elif value is not None:
            raise TypeError(f"{type(value).__name__} is no JSON")
        return value

    def _copy_of_object(self, members: dict[object, object]) -> dict[object, object]:
        copied = members.copy()
        self.size += _CONTAINER_BYTES
        for name, member in members.items():
            if type(name) is not str:
                self.typed = True
            if type(member) is str:  # most are, and every new item comes through here
                self.size += len(member)
            else:
                copied[name] = self.copy(member)
        return copied
