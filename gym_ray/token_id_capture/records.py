"""The contract's page of token records: one model call's exact tokens, and how they are hashed, linked and extracted.

:class:`TokenEntry` is the public edge and holds lists; :mod:`gym_ray.token_id_capture.packed` is the same record with
arrays, for everything inside. A record that contradicts itself is refused, because what it claims becomes a training
row.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, Final

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from gym_ray.token_id_capture.response_shapes import (
    TOKEN_ARRAYS,
    TOKEN_FIELDS,
    extract_token_fields,
    response_to_output_items,
    strip_token_fields,
)
from gym_ray.token_id_capture.token_arrays import (
    DIGEST_DOMAIN,
    DIGEST_VERSION,
    EMPTY_DIGEST,
    TokenIds,
    digest_packed,
    encode_packed,
    join_tokens,
    pack_token_ids,
)

__all__ = [
    "DIGEST_VERSION",
    "LEDGER_ROW_MISSING_CHAIN_HASH_REASON",
    "LEDGER_ROW_MISSING_RESPONSE_ID_REASON",
    "MAX_DELTA_LINKS",
    "TOKEN_ARRAYS",
    "TOKEN_ENTRY_MIN_SCHEMA_VERSION",
    "TOKEN_ENTRY_RECORD_SCHEMA_VERSION",
    "TOKEN_FIELDS",
    "UNCOMMITTED_CALL_REASON",
    "UNRESOLVED_PARENT_REASON",
    "_DIGEST_DOMAIN",
    "_EMPTY_DIGEST",
    "ParentResolutionStatus",
    "TokenEntry",
    "compute_digest",
    "cumulative_tokens",
    "encode_token_ids",
    "extract_token_fields",
    "response_to_output_items",
    "stamp_lineage",
    "strip_token_fields",
]

TOKEN_ENTRY_RECORD_SCHEMA_VERSION: Final = 1
TOKEN_ENTRY_MIN_SCHEMA_VERSION: Final = 1
_DIGEST_DOMAIN: Final = DIGEST_DOMAIN
_EMPTY_DIGEST: Final = EMPTY_DIGEST

MAX_DELTA_LINKS: Final = 10_000
"""How many delta records in a row are followed to a whole prompt; a longer chain is not proved (B48, B101)."""

UNRESOLVED_PARENT_REASON: Final = "unresolved_parent"
UNCOMMITTED_CALL_REASON: Final = "request_finished_without_staged_coordinates"
LEDGER_ROW_MISSING_RESPONSE_ID_REASON: Final = "ledger_row_missing_response_id"
LEDGER_ROW_MISSING_CHAIN_HASH_REASON: Final = "ledger_row_missing_chain_hash"


class ParentResolutionStatus(StrEnum):
    """Whether a model call has a proven captured predecessor (B2)."""

    ROOT = "root"
    RESOLVED = "resolved"
    UNRESOLVED = "unresolved"


def _list_of(kinds: str, what: str) -> Callable[[object], object]:
    """Turn buffers of the given numpy kinds into lists, and leave everything else for the field to judge."""

    def convert(value: object) -> object:
        if isinstance(value, memoryview | array):
            value = np.asarray(value)
        if not isinstance(value, np.ndarray):
            return value
        if value.ndim != 1 or value.dtype.kind not in kinds:
            raise ValueError(f"must be a one-dimensional array of {what}, not {value.dtype} of shape {value.shape}")
        return value.tolist()

    return convert


_TokenIdList = Annotated[list[int], BeforeValidator(_list_of("iuO", "integers"))]
_LogProbList = Annotated[list[float], BeforeValidator(_list_of("fiuO", "numbers"))]


class TokenEntry(BaseModel):
    """One model call's content and exact tokens (B3-B8); B names the meaning of each field.

    Numbers are read leniently, unknown members are kept, 1-D integer or float arrays are taken for lists. Validation
    runs when a record is made or read, not when an attribute is assigned (B8).

    Raises:
        ValidationError: A field has the wrong type, or the record contradicts itself (B6); a ValueError.
    """

    model_config = ConfigDict(extra="allow")

    schema_version: int = TOKEN_ENTRY_RECORD_SCHEMA_VERSION
    rollout_id: str
    model_call_id: str
    model: str = ""
    prompt_token_ids: _TokenIdList
    generation_token_ids: _TokenIdList
    generation_log_probs: _LogProbList
    routed_experts: Any | None = None
    output_items: list[dict[Any, Any]] = Field(default_factory=list)
    token_item_index: int | None = None
    response_id: str | None = None
    created_at: float = 0.0
    parent_call_id: str | None = None
    cum_len: int | None = None
    digest: str | None = None
    parent_resolution: ParentResolutionStatus | None = None
    continuation_fingerprint: str = ""
    continuation_context_len: int = 0
    continuation_context_digest: str = ""
    parent_resolution_reason: str = ""
    fingerprint_version: int | None = None
    prompt_is_delta: bool = False
    prefix_requested: bool = False
    prefix_supplied: bool = False

    @model_validator(mode="after")
    def _refuse_a_newer_record(self) -> TokenEntry:
        problem = schema_problem(self.schema_version)
        if problem:
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _refuse_a_contradiction(self) -> TokenEntry:
        problem = (
            array_problem(len(self.generation_token_ids), len(self.generation_log_probs))
            or index_problem(self.token_item_index, len(self.output_items))
            or parent_problem(self.parent_resolution, self.parent_call_id)
            or delta_problem(self.prompt_is_delta, self.parent_resolution, self.parent_call_id)
        )
        if problem:
            raise ValueError(problem)
        return self


def schema_problem(version: int) -> str:
    """Say what is wrong with a record's schema version (B6.1, B6.2); empty if nothing is."""
    if version > TOKEN_ENTRY_RECORD_SCHEMA_VERSION:
        return (
            f"token record has schema version {version}, this reader knows up to {TOKEN_ENTRY_RECORD_SCHEMA_VERSION}: "
            "upgrade the reader"
        )
    if version < TOKEN_ENTRY_MIN_SCHEMA_VERSION:
        return (
            f"token record has schema version {version}, below the supported minimum {TOKEN_ENTRY_MIN_SCHEMA_VERSION}"
        )
    return ""


def array_problem(generated: int, log_probs: int) -> str:
    """Say how the two arrays of a generation disagree in length (B6.3); empty if they agree."""
    if generated == log_probs:
        return ""
    return f"generation_token_ids has {generated} tokens, generation_log_probs {log_probs} values"


def index_problem(index: int | None, items: int) -> str:
    """Say why a carrier index points at no output item (B6.4); empty if it does or is absent."""
    if index is None or 0 <= index < items:
        return ""
    return f"token_item_index {index} is outside the {items} output items"


def parent_problem(status: ParentResolutionStatus | None, parent_call_id: str | None) -> str:
    """Say how a parent decision and a parent id contradict each other (B6.5, B6.6, B16); empty if they do not."""
    if status is ParentResolutionStatus.RESOLVED and not parent_call_id:
        return "parent_resolution 'resolved' needs a parent_call_id"
    if status not in (None, ParentResolutionStatus.RESOLVED) and parent_call_id is not None:
        return f"parent_resolution {str(status)!r} must not have a parent_call_id, but it is {parent_call_id!r}"
    return ""


def delta_problem(is_delta: bool, status: ParentResolutionStatus | None, parent_call_id: str | None) -> str:
    """Say why a record cannot hold a delta prompt (B6.7); empty if it can or does not."""
    if not is_delta or (parent_call_id is not None and status is ParentResolutionStatus.RESOLVED):
        return ""
    return "prompt_is_delta needs a parent_call_id and parent_resolution 'resolved'"


def encode_token_ids(token_ids: TokenIds) -> bytes:
    """Return version, count and ids, big-endian: ``9 + 8 n`` bytes (B9); lists and integer arrays agree (B12).

    Raises:
        ValueError: An id is negative, 2**64 or more, or no integer (B10, W22).
    """
    return encode_packed(pack_token_ids(token_ids))


def compute_digest(token_ids: TokenIds) -> str:
    """Return the digest of an exact token sequence, 64 lowercase hex digits (B11).

    Raises:
        ValueError: As :func:`encode_token_ids`.
    """
    return digest_packed(pack_token_ids(token_ids))


def cumulative_tokens(entry: TokenEntry) -> list[int]:
    """Return prompt and generation of a call as a new list (B13).

    Raises:
        ValueError: The record holds a delta, so its parents are needed.
    """
    if entry.prompt_is_delta:
        raise ValueError(f"call {entry.model_call_id!r} holds a delta prompt: its parent chain is needed")
    return [*entry.prompt_token_ids, *entry.generation_token_ids]


def stamp_lineage(
    entry: TokenEntry,
    parent_call_id: str | None,
    parent_resolution: ParentResolutionStatus | None = None,
    cumulative: TokenIds | None = None,
) -> TokenEntry:
    """Set length and digest of the cumulative sequence and the parent decision on ``entry``, and return it (B14-B16).

    Args:
        entry: The record; unchanged if this raises.
        parent_call_id: The proven parent, or None.
        parent_resolution: The decision; None only for writers that make none.
        cumulative: The whole sequence; needed for a delta record, and trusted there.

    Raises:
        ValueError: Decision and parent id contradict each other, a delta record comes without ``cumulative``, or
            ``cumulative`` differs from the record's own arrays, or ids cannot be encoded.
    """
    status = None if parent_resolution is None else ParentResolutionStatus(parent_resolution)
    problem = parent_problem(status, parent_call_id)
    if problem:
        raise ValueError(f"call {entry.model_call_id!r}: {problem}")
    if entry.prompt_is_delta and cumulative is not None:
        whole = pack_token_ids(cumulative)
    elif entry.prompt_is_delta:
        raise ValueError(f"call {entry.model_call_id!r} holds a delta prompt: its cumulative tokens are needed")
    else:
        whole = join_tokens([pack_token_ids(entry.prompt_token_ids), pack_token_ids(entry.generation_token_ids)])
        if cumulative is not None and not np.array_equal(pack_token_ids(cumulative), whole):
            raise ValueError(
                f"call {entry.model_call_id!r}: cumulative tokens differ from the record's prompt and generation"
            )
    entry.cum_len = int(whole.size)
    entry.digest = digest_packed(whole)
    entry.parent_call_id = parent_call_id
    entry.parent_resolution = status
    return entry
