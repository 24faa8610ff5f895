"""A token record with arrays: what stores, resolvers and builders hold, 4 bytes an id instead of 36.

It is the same record as :class:`~gym_ray.token_id_capture.records.TokenEntry`: what one refuses the other refuses, in
the same words. A stored line normally becomes one without keeping a Python object for each token; a line
with unusual types is read through TokenEntry.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

import numpy as np

from gym_ray.token_id_capture.extras import EXTRAS_MEMBER, CallExtras
from gym_ray.token_id_capture.records import (
    TOKEN_ARRAYS,
    TOKEN_ENTRY_RECORD_SCHEMA_VERSION,
    ParentResolutionStatus,
    TokenEntry,
    array_problem,
    delta_problem,
    index_problem,
    parent_problem,
    schema_problem,
)
from gym_ray.token_id_capture.token_arrays import (
    FloatArray,
    TokenArray,
    pack_log_probs,
    pack_token_ids,
)

__all__ = ["PackedEntry", "RecordShapes", "packed_record"]

_REQUIRED: Final = frozenset({"rollout_id", "model_call_id", *TOKEN_ARRAYS})
_STATUSES: Final[dict[str | None, ParentResolutionStatus | None]] = {
    None: None,
    **{str(s): s for s in ParentResolutionStatus},
}
_NONE: Final = type(None)

RecordShapes: TypeAlias = dict[tuple[tuple[str, ...], tuple[type, ...]], bool]
"""Names and types of the members of records, and whether they are exact; most records of a file have one of a few."""

# The types of fields that need no conversion; a record with any other type is validated as a TokenEntry first.
_EXACT_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    **dict.fromkeys(TOKEN_ARRAYS, (list, tuple, np.ndarray)),
    "schema_version": (int,),
    "rollout_id": (str,),
    "model_call_id": (str,),
    "model": (str,),
    "output_items": (list,),
    "token_item_index": (int, _NONE),
    "response_id": (str, _NONE),
    "created_at": (float, int),
    "parent_call_id": (str, _NONE),
    "cum_len": (int, _NONE),
    "digest": (str, _NONE),
    "parent_resolution": (str, _NONE, ParentResolutionStatus),
    "continuation_fingerprint": (str,),
    "continuation_context_len": (int,),
    "continuation_context_digest": (str,),
    "parent_resolution_reason": (str,),
    "fingerprint_version": (int, _NONE),
    "prompt_is_delta": (bool,),
    "prefix_requested": (bool,),
    "prefix_supplied": (bool,),
}


@dataclass(frozen=True, slots=True, eq=False)
class PackedEntry:
    """One validated token record (B6 holds); make it with :meth:`of_entry` or :meth:`of_json`.

    Attributes:
        prompt_token_ids: The prompt, or only what follows the parent if :attr:`prompt_is_delta`.
        generation_token_ids: Sampled tokens.
        generation_log_probs: One per sampled token, finite.
        rest: Every other member of the record, unknown ones included. Not to be changed.
    """

    prompt_token_ids: TokenArray
    generation_token_ids: TokenArray
    generation_log_probs: FloatArray
    rest: Mapping[str, Any]
    _extras: CallExtras | None = field(default=None, init=False, repr=False)

    @classmethod
    def of_entry(cls, entry: TokenEntry) -> PackedEntry:
        """Pack a record; its nested members are shared with ``entry``.

        Raises:
            ValueError: Ids or log probs cannot be packed, or an assignment made the record contradict itself (B8).
        """
        members = {name: getattr(entry, name) for name in TokenEntry.model_fields}
        members.update(entry.model_extra or {})
        packed = cls._of_exact(members)
        if packed is not None:
            return packed
        entry = TokenEntry.model_validate(members)
        try:
            return cls(
                pack_token_ids(entry.prompt_token_ids),
                pack_token_ids(entry.generation_token_ids),
                pack_log_probs(entry.generation_log_probs),
                {
                    name: value
                    for name, value in {**entry.__dict__, **(entry.model_extra or {})}.items()
                    if name not in TOKEN_ARRAYS
                },
            )
        except ValueError as error:
            raise ValueError(f"call {entry.model_call_id!r}: {error}") from None

    @classmethod
    def of_json(cls, record: Mapping[str, Any]) -> PackedEntry:
        """Pack a stored record, as parsed; its nested members are shared with ``record``.

        Raises:
            ValueError: As ``TokenEntry.model_validate`` (B4-B6), or ids or log probs cannot be packed.
        """
        packed = cls._of_exact(record)
        return cls.of_entry(TokenEntry.model_validate(dict(record))) if packed is None else packed

    @classmethod
    def _of_exact(cls, record: Mapping[str, Any]) -> PackedEntry | None:
        """Return the packed record if it needs no conversion and is valid, else None."""
        if not _is_exact(record):
            return None
        try:
            prompt, generation, log_probs = (
                pack_token_ids(record["prompt_token_ids"]),
                pack_token_ids(record["generation_token_ids"]),
                pack_log_probs(record["generation_log_probs"]),
            )
        except ValueError:
            return None
        rest = dict(record)
        for name in TOKEN_ARRAYS:
            del rest[name]
        packed = cls(prompt, generation, log_probs, rest)
        return None if packed._problem() else packed

    @classmethod
    def of_columns(
        cls,
        prompt: TokenArray,
        generation: TokenArray,
        log_probs: FloatArray,
        rest: dict[str, Any],
        shapes: RecordShapes,
    ) -> PackedEntry | None:
        """Return the record of packed columns, None if it is one for :meth:`of_json`.

        Args:
            prompt: Its prompt.
            generation: Its generated tokens.
            log_probs: Their log probabilities, finite.
            rest: All its other members, without lone surrogates; the record keeps them.
            shapes: What was found of earlier records; this one's is added.
        """
        shape = tuple(rest), tuple(map(type, rest.values()))
        exact = shapes.get(shape)
        if exact is None:
            exact = shapes[shape] = _has_exact_types({**dict.fromkeys(TOKEN_ARRAYS, ()), **rest})
        if not exact or not _has_known_values(rest):
            return None
        packed = cls(prompt, generation, log_probs, rest)
        return None if packed._problem() else packed

    def _problem(self) -> str:
        member = self.rest.get
        status, parent_call_id = _STATUSES[member("parent_resolution")], member("parent_call_id")
        return (
            schema_problem(member("schema_version", TOKEN_ENTRY_RECORD_SCHEMA_VERSION))
            or array_problem(self.generation_token_ids.size, self.generation_log_probs.size)
            or index_problem(member("token_item_index"), len(member("output_items", ())))
            or parent_problem(status, parent_call_id)
            or delta_problem(member("prompt_is_delta", False), status, parent_call_id)
        )

    def entry(self) -> TokenEntry:
        """Return the record with lists of its own; what is nested in its items is shared with this one."""
        arrays = {name: getattr(self, name).tolist() for name in TOKEN_ARRAYS}
        return TokenEntry.model_validate({**self.rest, **arrays})

    @property
    def rollout_id(self) -> str:
        """The training sample."""
        return cast("str", self.rest["rollout_id"])

    @property
    def model_call_id(self) -> str:
        """Joins the evaluation record of the same call."""
        return cast("str", self.rest["model_call_id"])

    @property
    def model(self) -> str:
        """Served model name."""
        return cast("str", self.rest.get("model", ""))

    @property
    def output_items(self) -> list[dict[str, Any]]:
        """Response content without token arrays."""
        return cast("list[dict[str, Any]]", self.rest.get("output_items", []))

    @property
    def token_item_index(self) -> int | None:
        """Index of the output item that carried the tokens."""
        return cast("int | None", self.rest.get("token_item_index"))

    @property
    def response_id(self) -> str | None:
        """Id of the response that the client received."""
        return cast("str | None", self.rest.get("response_id"))

    @property
    def created_at(self) -> float:
        """Wall clock at capture, seconds."""
        return float(self.rest.get("created_at", 0.0))

    @property
    def parent_call_id(self) -> str | None:
        """Claimed predecessor."""
        return cast("str | None", self.rest.get("parent_call_id"))

    @property
    def parent_resolution(self) -> ParentResolutionStatus | None:
        """Request-time decision."""
        return _STATUSES[self.rest.get("parent_resolution")]

    @property
    def parent_resolution_reason(self) -> str:
        """Diagnostic code of the decision."""
        return cast("str", self.rest.get("parent_resolution_reason", ""))

    @property
    def continuation_fingerprint(self) -> str:
        """Lookup key of calls that continue this one."""
        return cast("str", self.rest.get("continuation_fingerprint", ""))

    @property
    def continuation_context_len(self) -> int:
        """Number of request items of this call."""
        return cast("int", self.rest.get("continuation_context_len", 0))

    @property
    def continuation_context_digest(self) -> str:
        """Digest of those request items."""
        return cast("str", self.rest.get("continuation_context_digest", ""))

    @property
    def fingerprint_version(self) -> int | None:
        """Algorithm version of the fingerprint."""
        return cast("int | None", self.rest.get("fingerprint_version"))

    @property
    def prompt_is_delta(self) -> bool:
        """Whether the prompt holds only what follows the parent."""
        return cast("bool", self.rest.get("prompt_is_delta", False))

    @property
    def prefix_requested(self) -> bool:
        """Whether the engine was asked to reuse the parent's tokens."""
        return cast("bool", self.rest.get("prefix_requested", False))

    @property
    def prefix_supplied(self) -> bool:
        """Whether the prompt proved that it did."""
        return cast("bool", self.rest.get("prefix_supplied", False))

    @property
    def cum_len(self) -> int | None:
        """Claimed length of the cumulative sequence, in tokens."""
        return cast("int | None", self.rest.get("cum_len"))

    @property
    def digest(self) -> str | None:
        """Claimed digest of the cumulative sequence."""
        return cast("str | None", self.rest.get("digest"))

    @property
    def routed_experts(self) -> Any | None:
        """Routing payload of the engine, opaque."""
        return self.rest.get("routed_experts")

    @property
    def extras(self) -> CallExtras:
        """The record's ``gym_ray`` member, read once."""
        if self._extras is None:
            object.__setattr__(self, "_extras", CallExtras.of(self.rest.get(EXTRAS_MEMBER)))
        return cast("CallExtras", self._extras)


def packed_record(entry: TokenEntry | PackedEntry) -> PackedEntry:
    """Return the record with arrays.

    One whose log probabilities came to differ from its tokens in number, after it was validated (B8), stays as it is:
    the chain that holds it names it.

    Raises:
        ValueError: No array can hold its ids or log probabilities, or an assignment made it contradict itself.
    """
    if isinstance(entry, PackedEntry):
        return entry
    generated = len(entry.generation_token_ids)
    if len(entry.generation_log_probs) == generated:
        return PackedEntry.of_entry(entry)
    fitting = entry.model_copy(update={"generation_log_probs": [0.0] * generated})
    log_probs = pack_log_probs(entry.generation_log_probs)
    return dataclasses.replace(PackedEntry.of_entry(fitting), generation_log_probs=log_probs)


def _is_exact(record: Mapping[str, Any]) -> bool:
    if not _has_exact_types(record) or not _has_known_values(record):
        return False
    texts = (record[name] for name in _EXACT_TYPES.keys() & record.keys())
    return not any(type(text) is str and not text.isascii() and _holds_surrogate(text) for text in texts)


def _has_exact_types(record: Mapping[str, Any]) -> bool:
    """Whether every member that a record needs is there, and no name and no type needs converting."""
    if not record.keys() >= _REQUIRED or not "".join(record).isascii():
        return False
    return all(type(value) in _EXACT_TYPES[name] for name, value in record.items() if name in _EXACT_TYPES)


def _has_known_values(record: Mapping[str, Any]) -> bool:
    items = record.get("output_items", ())
    return record.get("parent_resolution") in _STATUSES and all(type(item) is dict for item in items)


def _holds_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)
