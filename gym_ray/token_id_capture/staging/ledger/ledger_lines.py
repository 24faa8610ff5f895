"""One line of a ledger file: the row of a committed call, or why a call has none (C206, C207).

The bytes are the peer's, so that either reads what the other wrote. No line holds a token. A line that is none of these
is damage and is named, because what it said may have made another row unusable.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from gym_ray.correlation import check_rollout_id
from gym_ray.errors import DamagedRecordError
from gym_ray.token_id_capture.fingerprint import ConversationHasher
from gym_ray.token_id_capture.lineage import IndexedCall
from gym_ray.token_id_capture.staging.constants import (
    LEDGER_ROW_MISSING_CHAIN_HASH_REASON,
    LEDGER_ROW_MISSING_RESPONSE_ID_REASON,
)
from gym_ray.token_id_capture.staging.ledger_records import CallRecord, CaptureLedgerCommit, ManifestFailure

__all__ = [
    "DAMAGED_LINE_REASON",
    "LedgerLine",
    "check_commit",
    "commit_line",
    "commit_row",
    "damaged_line",
    "failure_row",
    "line_of",
    "manifest_entry",
    "parsed_row",
    "read_line",
]

DAMAGED_LINE_REASON: Final = "ledger_line_damaged"
"""A line of a ledger could not be read. Where the call id stands, a manifest names the file and the line."""

_DIGEST: Final = re.compile("[0-9a-f]{64}")
_AS_IN_RECORD: Final = (
    "model_call_id",
    "parent_call_id",
    "staging_key",
    "weight_version",
    "prev_len",
    "delta_len",
    "cum_len",
    "extras_digest",
    "mode",
    "admitted_at",
    "chain_hash",
    "cumulative_hash",
    "response_id",
    "output_fingerprint",
    "continuation_fingerprint",
    "fingerprint_version",
)


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """What a look-up needs to know of a line; the rest stays in the file.

    Attributes:
        model_call_id: Its call.
        sameness: Digest of all that the line says; a replay has the same.
        failure_reason: Why the call has no row; None for a row.
        lookup: How requests that continue the call are recognised; None for a failure.
        staging_key: Where its tokens are; empty if nothing says.
        staging_chain: Keys from the root to the call, the last its own.
        cum_len: Number of its tokens with all before them; None if the row lacks it.
        chain_hash: None if the row lacks it.
        digest: Digest of the whole sequence.
    """

    model_call_id: str
    sameness: bytes
    failure_reason: str | None = None
    lookup: IndexedCall | None = None
    staging_key: str = ""
    staging_chain: tuple[str, ...] = ()
    cum_len: int | None = None
    chain_hash: str | None = None
    digest: str = ""


def check_commit(commit: CaptureLedgerCommit) -> str:
    """Return the rollout id of a commit that can be kept.

    Raises:
        ValueError: No file can be named after its rollout, or the staging chain does not end with its own key (C70).
    """
    record, chain = commit.record, commit.staging_chain
    if chain and chain[-1] != record.staging_key:
        raise ValueError(
            f"the staging chain of call {record.model_call_id!r} ends with {chain[-1]!r}, "
            f"not with its own key {record.staging_key!r}"
        )
    return check_rollout_id(commit.rollout_id)


def commit_row(commit: CaptureLedgerCommit) -> dict[str, Any]:
    """Return the columns of a committed call (C206).

    Content that cannot be hashed makes a row that nothing finds, and no failure (C320).
    """
    record = commit.record
    row: dict[str, Any] = {name: getattr(record, name) for name in _AS_IN_RECORD}
    row["staging_digest"], row["digest"] = record.digest, record.cumulative_hash
    row["staging_chain"] = list(commit.staging_chain)
    row.update(_lookup_columns(commit))
    return row


def _lookup_columns(commit: CaptureLedgerCommit) -> dict[str, Any]:
    hasher = ConversationHasher()
    try:
        hasher.feed(commit.request_items)
        context_digest = hasher.digest()
        hasher.feed(commit.response_items)
    except ValueError:
        return {"fingerprint": None, "context_len": len(commit.request_items), "context_digest": None}
    return {
        "fingerprint": hasher.fingerprint(),
        "context_len": len(commit.request_items),
        "context_digest": context_digest,
    }


def failure_row(model_call_id: str, reason: str) -> dict[str, Any]:
    """Return the columns that say why a call has no row.

    Raises:
        ValueError: One of them is no text, or empty.
    """
    failure = ManifestFailure(model_call_id=model_call_id, reason=reason)
    return {"failure_reason": failure.reason, "model_call_id": failure.model_call_id}


def commit_line(row: Mapping[str, Any]) -> bytes:
    """Return a row as a line, its end included: compact JSON with sorted keys (C204)."""
    return json.dumps(row, sort_keys=True, separators=(",", ":")).encode("ascii") + b"\n"


def read_line(data: bytes, place: str) -> LedgerLine | None:
    """Read a line without its end; None for a blank one.

    Args:
        data: The line.
        place: File and line number, for the message.

    Raises:
        DamagedRecordError: It is no line of a ledger.
    """
    row = parsed_row(data, place)
    if row is None:
        return None
    _entry(row, place)
    return line_of(row, place)


def parsed_row(data: bytes, place: str) -> dict[str, Any] | None:
    """Return the columns of a line; None for a blank one.

    Raises:
        DamagedRecordError: It is no JSON object with a call id.
    """
    if not data.strip():
        return None
    try:
        row = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedRecordError(f"{place}: not JSON: {error}") from error
    if not isinstance(row, dict):
        raise DamagedRecordError(f"{place}: not a JSON object")
    _text(row, "model_call_id", place)
    return row


def line_of(row: Mapping[str, Any], place: str, line: bytes | None = None) -> LedgerLine:
    """Return what a look-up needs of a row's columns; ``line`` is :func:`commit_line` of it, where that is known.

    Raises:
        DamagedRecordError: A column that a look-up rests on is of another type.
    """
    call_id = row["model_call_id"]
    sameness = hashlib.blake2b(line or commit_line(row), digest_size=16).digest()
    if row.get("failure_reason") is not None:
        return LedgerLine(call_id, sameness, failure_reason=_text(row, "failure_reason", place))
    chain = row.get("staging_chain")
    chain = [] if chain is None else chain
    if not isinstance(chain, list) or not all(isinstance(key, str) and key for key in chain):
        raise DamagedRecordError(f"{place}: staging_chain is no list of keys")
    staging_key = _optional(row, "staging_key", place) or ""
    if chain and staging_key and chain[-1] != staging_key:
        raise DamagedRecordError(
            f"{place}: staging_chain ends with {chain[-1]!r}, not with its own key {staging_key!r}"
        )
    chain_hash, cumulative_hash = _digest(row, "chain_hash", place), _digest(row, "cumulative_hash", place)
    cum_len = _number(row, "cum_len", place)
    return LedgerLine(
        call_id,
        sameness,
        lookup=_lookup(row, place, f"{cumulative_hash}:{chain_hash}" if cumulative_hash and chain_hash else None),
        staging_key=staging_key,
        staging_chain=tuple(chain),
        cum_len=cum_len,
        chain_hash=chain_hash,
        digest=_optional(row, "digest", place) or cumulative_hash or "",
    )


def _lookup(row: Mapping[str, Any], place: str, identity: str | None) -> IndexedCall:
    version = _number(row, "fingerprint_version", place)
    return IndexedCall(
        model_call_id=row["model_call_id"],
        fingerprint=_optional(row, "fingerprint", place) or "",
        version=-1 if version is None else version,  # a row that does not say is of no version (C208)
        context_len=_number(row, "context_len", place) or 0,
        context_digest=_optional(row, "context_digest", place) or "",
        strict_digest="",
        text_input_digest="",
        model_items=None,
        digest=identity,
        cum_len=_number(row, "cum_len", place),
        other_types=frozenset({"reasoning"}),
        is_wordless=False,
    )


def manifest_entry(row: Mapping[str, Any], place: str) -> CallRecord | ManifestFailure | None:
    """Return what a manifest says of a row; None for a row without a staging key (C207).

    Raises:
        DamagedRecordError: It contradicts itself, or a column that a look-up rests on is of another type.
    """
    line_of(row, place)
    return _entry(row, place)


def _entry(row: Mapping[str, Any], place: str) -> CallRecord | ManifestFailure | None:
    try:
        return _checked_entry(row)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "row"
        raise DamagedRecordError(f"{place}: {field}: {first['msg']}") from error


def _checked_entry(row: Mapping[str, Any]) -> CallRecord | ManifestFailure | None:
    call_id = row["model_call_id"]
    if row.get("failure_reason") is not None:
        return ManifestFailure(model_call_id=call_id, reason=row["failure_reason"])
    if not row.get("staging_key"):
        return None
    if not row.get("response_id"):
        return ManifestFailure(model_call_id=call_id, reason=LEDGER_ROW_MISSING_RESPONSE_ID_REASON)
    if not row.get("chain_hash") or not row.get("cumulative_hash"):
        return ManifestFailure(model_call_id=call_id, reason=LEDGER_ROW_MISSING_CHAIN_HASH_REASON)
    columns = {name: row[name] for name in _AS_IN_RECORD if name in row}
    return CallRecord(digest=row.get("staging_digest"), **columns)


def damaged_line(place: str) -> ManifestFailure:
    """Return the failure that stands in a manifest for a damaged line."""
    return ManifestFailure(model_call_id=place, reason=DAMAGED_LINE_REASON)


def _text(row: Mapping[str, Any], name: str, place: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value:
        raise DamagedRecordError(f"{place}: {name} is no text, or empty: {value!r}")
    return value


def _optional(row: Mapping[str, Any], name: str, place: str) -> str | None:
    value = row.get(name)
    if value is None or isinstance(value, str):
        return value
    raise DamagedRecordError(f"{place}: {name} is no text: {value!r}")


def _digest(row: Mapping[str, Any], name: str, place: str) -> str | None:
    value = _optional(row, name, place)
    if not value or _DIGEST.fullmatch(value):
        return value
    raise DamagedRecordError(f"{place}: {name} is no digest: {value!r}")


def _number(row: Mapping[str, Any], name: str, place: str) -> int | None:
    value = row.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise DamagedRecordError(f"{place}: {name} is no count: {value!r}")
