"""How a conversation is recognised: a fingerprint of what the model wrote, and digests of everything said before.

The fingerprint finds the calls that a request may continue, the digests prove that nothing before them changed. Both
bytes are fixed by the contract (B28); an item that cannot be hashed exactly is refused, never skipped.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gym_ray.token_id_capture.hashing.canonical_items import canonicalize_tool_arguments, is_model_authored, item_of
from gym_ray.token_id_capture.hashing.item_bytes import context_bytes, item_bytes, spine_bytes
from gym_ray.token_id_capture.request_items import RequestItems, text_turn

__all__ = [
    "FINGERPRINT_VERSION",
    "BegunHashing",
    "ConversationHasher",
    "HashedItems",
    "assistant_fingerprint",
    "canonicalize_tool_arguments",
    "conversation_digest",
    "is_model_authored",
    "turn_digest",
]

FINGERPRINT_VERSION: Final = 2

_SPINE_DOMAIN: Final = b"nemo-gym-lineage"
_CONTEXT_DOMAIN: Final = b"nemo-gym-lineage-context"
_STRICT_DOMAIN: Final = b"gym-ray-strict-context-1"
_DIGEST_BYTES: Final = 32


def assistant_fingerprint(items: Sequence[object] | None) -> str:
    """Return the fingerprint of what the model wrote, as hex; empty if it wrote nothing (B28, B29).

    Raises:
        ValueError: A member is no object, or something that the model wrote cannot be hashed (B31-B33).
    """
    if isinstance(items, HashedItems):
        return items.hasher.fingerprint()
    state, authored = hashlib.sha256(_SPINE_DOMAIN), False
    for item in map(item_of, items or ()):
        if is_model_authored(item):
            authored = True
            state.update(spine_bytes(item))
    return state.hexdigest() if authored else ""


def conversation_digest(items: Sequence[object] | None) -> str:
    """Return the digest of all items, as hex (B28, B29).

    Raises:
        ValueError: A member is no object, or cannot be hashed (B31-B33).
    """
    if isinstance(items, HashedItems):
        return items.hasher.digest()
    state = hashlib.sha256(_CONTEXT_DOMAIN)
    for item in map(item_of, items or ()):
        state.update(context_bytes(item))
    return state.hexdigest()


def turn_digest(item: object) -> str:
    """Return the strict digest of a conversation of this one turn, as hex (W33).

    Raises:
        ValueError: It is no object, or cannot be hashed (B31-B33).
    """
    hasher = ConversationHasher()
    hasher.feed([item])
    return hasher.strict_digest()


@dataclass(slots=True)
class _Hashes:
    """What is known of a conversation up to its last item."""

    spine: Any = field(default_factory=lambda: hashlib.sha256(_SPINE_DOMAIN))
    context: Any = field(default_factory=lambda: hashlib.sha256(_CONTEXT_DOMAIN))
    model_items: int = 0
    digests: bytearray = field(default_factory=lambda: bytearray(hashlib.sha256(_CONTEXT_DOMAIN).digest()))
    # Few items have anything that the context digest leaves out: (items so far, hash so far) after each that has.
    uncovered_at: list[int] = field(default_factory=lambda: [0])
    uncovered: list[bytes] = field(default_factory=lambda: [b""])

    def copy(self) -> _Hashes:
        return _Hashes(
            self.spine.copy(),
            self.context.copy(),
            self.model_items,
            self.digests.copy(),
            self.uncovered_at.copy(),
            self.uncovered.copy(),
        )


class ConversationHasher:
    """Hashes a conversation in one pass, and remembers the digests of every beginning of it (W11).

    It keeps 32 bytes an item and no item. Not for two threads at once; :meth:`copy` first.
    """

    __slots__ = ("_hashes",)

    def __init__(self, _hashes: _Hashes | None = None) -> None:
        self._hashes = _hashes or _Hashes()

    @property
    def item_count(self) -> int:
        """Items fed so far."""
        return len(self._hashes.digests) // _DIGEST_BYTES - 1

    @property
    def model_items(self) -> int:
        """Items fed so far that the model wrote (B30, W31)."""
        return self._hashes.model_items

    def feed(self, items: Iterable[object]) -> None:
        """Take the next items of the conversation.

        Raises:
            ValueError: An item cannot be hashed (B31-B33); the items before it are taken, it and the rest are not.
        """
        hashes, written = self._hashes, []
        state, digests = hashes.context, hashes.digests
        try:
            for item in map(item_of, items):
                spine, context, uncovered = item_bytes(item)
                state.update(context)
                digests += state.copy().digest()
                if spine is not None:
                    written.append(spine)
                if uncovered:
                    self._note(uncovered)
        finally:
            hashes.spine.update(b"".join(written))
            hashes.model_items += len(written)

    def _note(self, uncovered: bytes) -> None:
        """Chain what the context digest leaves out of the last item."""
        hashes, at = self._hashes, self.item_count
        hashes.uncovered.append(hashlib.sha256(b"%b%d:%b" % (hashes.uncovered[-1], at, uncovered)).digest())
        hashes.uncovered_at.append(at)

    def fingerprint(self) -> str:
        """Return the fingerprint of everything that the model wrote so far; empty if it wrote nothing (B29)."""
        return self._hashes.spine.hexdigest() if self._hashes.model_items else ""

    def digest(self, count: int | None = None) -> str:
        """Return the conversation digest of the first ``count`` items, or of all.

        Raises:
            ValueError: Fewer items were fed.
        """
        return self._digest_of(self._counted(count)).hex()

    def strict_digest(self, count: int | None = None) -> str:
        """Return a digest of the first ``count`` items that also covers what the other leaves out (W33), as hex.

        Raises:
            ValueError: Fewer items were fed.
        """
        count = self._counted(count)
        uncovered = self._hashes.uncovered[bisect_right(self._hashes.uncovered_at, count) - 1]
        return hashlib.sha256(_STRICT_DOMAIN + self._digest_of(count) + uncovered).hexdigest()

    def copy(self) -> ConversationHasher:
        """Return an independent hasher of the same conversation."""
        return ConversationHasher(self._hashes.copy())

    def _counted(self, count: int | None) -> int:
        if count is None:
            return self.item_count
        if not 0 <= count <= self.item_count:
            raise ValueError(f"cannot digest {count} items of a conversation of {self.item_count}")
        return count

    def _digest_of(self, count: int) -> bytes:
        return bytes(self._hashes.digests[count * _DIGEST_BYTES : (count + 1) * _DIGEST_BYTES])


class HashedItems(RequestItems):
    """Request items together with their hashes; equal to the plain list, and not to be changed.

    Args:
        items: The items; a text ``input`` that they carry is carried on.
        hasher: Was fed with them.

    Attributes:
        hasher: Their hashes.
        text_input_digest: Digest of the turn that the text ``input`` stands for; empty without one (W33).

    Raises:
        ValueError: The text cannot be hashed (B33).
    """

    __slots__ = ("hasher", "text_input_digest")

    def __init__(self, items: Iterable[object], hasher: ConversationHasher) -> None:
        super().__init__(items)
        self.hasher = hasher
        self.text_input_digest = "" if self.text_input is None else turn_digest(text_turn(self.text_input))


@dataclass(frozen=True, slots=True)
class BegunHashing:
    """Request items that were compared with what is known, and are not hashed yet.

    Attributes:
        known: How many of them, from the first on, are known; the others are what takes time.
        finish: Returns the items with their hashes; on any thread, once.
    """

    known: int
    finish: Callable[[], HashedItems]
