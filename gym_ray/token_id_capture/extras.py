"""What gym-ray adds to a token record: one nested member ``gym_ray``, which other readers carry along unread.

A record without it, or with a damaged one, stays valid: every member has a default that claims nothing.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from gym_ray.token_id_capture.token_arrays import TokenArray, encode_packed, update_with_tokens

__all__ = ["EXTRAS_MEMBER", "CallExtras", "Version", "WeightSpan", "chain_hash"]

EXTRAS_MEMBER: Final = "gym_ray"
Version: TypeAlias = str | int

_CHAIN_DOMAIN: Final = b"gym-ray-token-chain-1"
_UTF_8: Final = ("utf-8", "surrogatepass")
_FEW_TOKENS: Final = 4096
_NUMBER: Final = struct.Struct(">Q").pack
_TEXTS: Final = ("strict_context_digest", "text_input_digest", "ended_by", "token_in")
_VERSIONS: Final = ("version_start", "version_end")


@dataclass(frozen=True, slots=True)
class WeightSpan:
    """Generated tokens ``start`` to ``end`` (exclusive) of one call, sampled with one version of the weights."""

    version: Version
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class CallExtras:
    """The members of ``gym_ray`` on one token record.

    Attributes:
        chain_hash: Hash of the record's own arrays and of the chain before it (W3).
        model_items: Model-authored items in the request and in the call's own output together (W31).
        strict_context_digest: Digest of the request items that leaves nothing out (W33).
        text_input_digest: Digest of the user's turn that a text ``input`` stands for, empty without one (W33).
        version_start: Version of the weights when the call began, as the model server was told.
        version_end: Version of the weights when the call was committed.
        weight_spans: What the engine itself said about versions; it wins over the two stamps.
        constrained: A grammar bounded the choice of tokens; log probs are the model's own.
        ended_by: ``eos`` (the last generated token is the end-of-turn token), ``length``, ``stop_sequence``, or empty.
        token_in: How a supplied prefix went in: ``render``, ``required_prefix``, ``completion``, or empty.
        unknown: Members that this version does not know, kept as they are.
    """

    chain_hash: str | None = None
    model_items: int | None = None
    strict_context_digest: str = ""
    text_input_digest: str = ""
    version_start: Version | None = None
    version_end: Version | None = None
    weight_spans: tuple[WeightSpan, ...] = ()
    constrained: bool = False
    ended_by: str = ""
    token_in: str = ""
    unknown: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, record_extra: object) -> CallExtras:
        """Read the member ``gym_ray`` of a record; whatever is missing or malformed has its default."""
        if not isinstance(record_extra, Mapping) or not record_extra:
            return _NOTHING
        known: dict[str, Any] = {}
        unknown: dict[str, Any] = {}
        for name, value in record_extra.items():
            reader = _READERS.get(name)
            if reader is None:
                unknown[name] = value
            elif (read := reader(value)) is not None:
                known[name] = read
        return cls(**known, unknown=unknown)

    def to_json(self) -> dict[str, Any]:
        """Return the members that say something, ready for the record; empty if none does."""
        members: dict[str, Any] = {
            name: getattr(self, name) for name in _READERS if getattr(self, name) != getattr(_NOTHING, name)
        }
        if self.weight_spans:
            members["weight_spans"] = [
                {"version": span.version, "start": span.start, "end": span.end} for span in self.weight_spans
            ]
        return {**self.unknown, **members}


def chain_hash(
    parent_chain_hash: str | None, digest: str, cum_len: int, prompt: TokenArray, generation: TokenArray
) -> str:
    """Return the hash that binds a record's claims to its arrays and to its parent's chain, as hex (W3).

    Args:
        parent_chain_hash: The parent's, for a record that holds a delta; None for one that holds its whole prompt.
        digest: The digest that the record claims for its cumulative sequence.
        cum_len: The length that the record claims, in tokens.
        prompt: Prompt tokens as the record holds them.
        generation: Generated tokens.
    """
    parent, claimed = (parent_chain_hash or "").encode(*_UTF_8), digest.encode(*_UTF_8)
    claims = b"".join((_CHAIN_DOMAIN, _NUMBER(len(parent)), parent, _NUMBER(len(claimed)), claimed, _NUMBER(cum_len)))
    if prompt.size + generation.size <= _FEW_TOKENS:  # as most records have, and a chain has many of them
        return hashlib.sha256(claims + encode_packed(prompt) + encode_packed(generation)).hexdigest()
    state = hashlib.sha256(claims)
    update_with_tokens(state, prompt)
    update_with_tokens(state, generation)
    return state.hexdigest()


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _version(value: object) -> Version | None:
    return value if isinstance(value, str | int) and not isinstance(value, bool) else None


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _spans(value: object) -> tuple[WeightSpan, ...] | None:
    if not isinstance(value, list | tuple):
        return None
    spans = [_span(item) for item in value]
    whole = tuple(span for span in spans if span is not None)
    return whole if len(whole) == len(spans) else None


def _span(value: object) -> WeightSpan | None:
    if not isinstance(value, Mapping):
        return None
    version, start, end = _version(value.get("version")), _count(value.get("start")), _count(value.get("end"))
    if version is None or start is None or end is None or start > end:
        return None
    return WeightSpan(version, start, end)


_READERS: Final = {
    "chain_hash": _text,
    "model_items": _count,
    "weight_spans": _spans,
    "constrained": _flag,
    **dict.fromkeys(_TEXTS, _text),
    **dict.fromkeys(_VERSIONS, _version),
}
_NOTHING: Final = CallExtras()
