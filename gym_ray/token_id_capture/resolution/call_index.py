"""Which calls of a rollout a request may continue, from conversations alone; no tokens are held here (W12).

A candidate must have been asked exactly what the request begins with, and its answer must follow right behind that,
unchanged. If anything about it is in doubt, it is not the parent (B43-B46, W30-W33).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from gym_ray.token_id_capture.fingerprint import (
    FINGERPRINT_VERSION,
    ConversationHasher,
    HashedItems,
    assistant_fingerprint,
    is_model_authored,
    turn_digest,
)
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.request_items import is_text_turn
from gym_ray.token_id_capture.resolution.parent_links import AMBIGUOUS_REASON, NO_MATCH_REASON

__all__ = ["CallIndex", "IndexedCall", "Unresolved", "hashed_items"]

_REASONING: Final = "reasoning"
_ONLY_REASONING: Final = frozenset({_REASONING})
_CALLS: Final = "_call"  # custom_tool_call, web_search_call, ...: the model makes them, and a tool answers
_NOTHING_SAID: Final = assistant_fingerprint([{"role": "assistant"}])


class IndexedCall(NamedTuple):
    """What the record of a call says about the conversations that continue it; a rollout has many.

    Attributes:
        model_call_id: The call.
        fingerprint: What the model wrote up to its answer, that included; empty if the record was never stamped.
        version: Version of the fingerprint, None if the record does not say.
        context_len: Number of its request items.
        context_digest: Their digest.
        strict_digest: Their stricter digest (W33), empty if the record has none.
        text_input_digest: Digest of the one turn that follows them where ``input`` was a text (W33), else empty.
        model_items: Items that the model wrote in request and answer (W31), None if the record does not say.
        digest: Claimed digest of its tokens.
        cum_len: Claimed number of its tokens.
        other_types: Types of its answer's items that are not part of the fingerprint, such as ``reasoning``.
        is_wordless: Its answer has no other items than those, such as the call of a custom tool alone.
    """

    model_call_id: str
    fingerprint: str
    version: int | None
    context_len: int
    context_digest: str
    strict_digest: str
    text_input_digest: str
    model_items: int | None
    digest: str | None
    cum_len: int | None
    other_types: frozenset[str]
    is_wordless: bool

    @classmethod
    def of(cls, entry: PackedEntry) -> IndexedCall:
        """Read a record."""
        extras = entry.extras
        others = [item.get("type") for item in entry.output_items if not is_model_authored(item)]
        return cls(
            entry.model_call_id,
            entry.continuation_fingerprint,
            entry.fingerprint_version,
            entry.continuation_context_len,
            entry.continuation_context_digest,
            extras.strict_context_digest,
            extras.text_input_digest,
            extras.model_items,
            entry.digest,
            entry.cum_len,
            _ONLY_REASONING.union(kind for kind in others if isinstance(kind, str)) if others else _ONLY_REASONING,
            0 < len(others) == len(entry.output_items),
        )

    @property
    def identity(self) -> tuple[str, int | None] | None:
        """Calls with one identity have the same tokens, so one stands for all; None proves nothing."""
        return (self.digest, self.cum_len) if self.digest else None


@dataclass(frozen=True, slots=True)
class Unresolved:
    """No call is proved to be the parent, for this reason (B82)."""

    reason: str


class CallIndex:
    """The calls of one rollout by what the model had written (B43-B46)."""

    def __init__(self) -> None:
        self._by_fingerprint: dict[str, list[IndexedCall]] = {}

    def add(self, call: IndexedCall) -> None:
        """Take a call that has not been added; one that was never stamped, or by another version, is left out (B44)."""
        if call.fingerprint and call.version in (None, FINGERPRINT_VERSION):
            self._by_fingerprint.setdefault(call.fingerprint, []).append(call)

    def parent_of(self, items: HashedItems) -> IndexedCall | Unresolved:
        """Return the one call that a request continues; the request holds something that the model wrote."""
        hasher = items.hasher
        known = self._by_fingerprint.get(hasher.fingerprint(), ())
        candidates = [call for call in known if _continues(hasher, call) and _is_answered(items, call)]
        if not candidates:
            return Unresolved(NO_MATCH_REASON)
        return _only(candidates) or _only_by_count(candidates, hasher.model_items) or Unresolved(AMBIGUOUS_REASON)


def hashed_items(items: Sequence[object] | None) -> HashedItems:
    """Return request items with their hashes, which are computed unless they come with them.

    Raises:
        ValueError: An item cannot be hashed (B31-B33).
    """
    if isinstance(items, HashedItems):
        return items
    given = () if items is None else items  # items of a text input are empty, and yet not nothing
    hasher = ConversationHasher()
    hasher.feed(given)
    return HashedItems(given, hasher)


def _continues(hasher: ConversationHasher, call: IndexedCall) -> bool:
    """Whether the request begins with exactly the items of the call's request (B43.2, W33)."""
    count = call.context_len
    if not call.context_digest or not 0 <= count <= hasher.item_count or hasher.digest(count) != call.context_digest:
        return False
    return not call.strict_digest or hasher.strict_digest(count) == call.strict_digest


def _is_answered(items: Sequence[object], call: IndexedCall) -> bool:
    """Whether the call's answer follows everything that the call was asked (W32).

    A text ``input`` has no item (B25), but a request that goes on has a turn for it: exactly one, with this text (W33).
    """
    at = call.context_len
    if not call.text_input_digest:
        return _answer_comes_at(at, items, call)
    asked = at < len(items) and is_text_turn(items[at]) and turn_digest(items[at]) == call.text_input_digest
    return asked and _answer_comes_at(at + 1, items, call)


def _answer_comes_at(at: int, items: Sequence[object], call: IndexedCall) -> bool:
    """Whether the call's answer stands whole and unbroken at an index.

    Everything that the model wrote from there on is the answer, since both fingerprints agree; so it is enough that
    nothing foreign comes before its end. What the model did without words is in no fingerprint: where that stands
    further on, another call came in between, and its tokens would be taken for those of a tool.
    """
    answered = False
    while at < len(items) and (is_model_authored(items[at]) or _type_of(items[at]) in call.other_types):
        answered = answered or call.is_wordless or is_model_authored(items[at])
        at += 1
    return answered and not any(map(_says_or_does_something, items[at:]))


def _type_of(item: object) -> str:
    kind = item.get("type") if isinstance(item, dict) and not item.get("role") else None
    return kind if isinstance(kind, str) else ""


def _says_or_does_something(item: object) -> bool:
    if is_model_authored(item):
        return assistant_fingerprint([item]) != _NOTHING_SAID
    kind = _type_of(item)
    return kind == _REASONING or kind.endswith(_CALLS)


def _only(calls: Sequence[IndexedCall]) -> IndexedCall | None:
    """Return the call that stands for all of them, if their tokens are interchangeable (B43.3, B43.4)."""
    first = min(calls, key=lambda call: call.model_call_id)
    if len(calls) == 1:
        return first
    identities = {call.identity for call in calls}
    return first if len(identities) == 1 and None not in identities else None


def _only_by_count(calls: Iterable[IndexedCall], model_items: int) -> IndexedCall | None:
    """Break a tie that empty answers cause: they add an item and no words (W31). Only if every record has its count."""
    calls = list(calls)
    if any(call.model_items is None for call in calls):
        return None
    chosen = [call for call in calls if call.model_items == model_items]
    return _only(chosen) if chosen else None
