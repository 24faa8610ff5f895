"""What the calls of a rollout say for themselves when the one that ended it is looked for (B112-B114, C184-C188).

Two kinds of rows are asked the same questions: records with tokens, and custody rows, which hold hashes only because
the tokens are in the worker's storage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from typing import Protocol

from gym_ray.token_id_capture.fingerprint import FINGERPRINT_VERSION, assistant_fingerprint
from gym_ray.token_id_capture.packed import PackedEntry, packed_record
from gym_ray.token_id_capture.records import TokenEntry

__all__ = ["CustodyRow", "TerminalRow", "terminal_rows"]


class CustodyRow(Protocol):
    """A call whose tokens a worker staged: the members of a ``CallRecord`` that tell calls apart (C180)."""

    @property
    def model_call_id(self) -> str:
        """The call."""

    @property
    def response_id(self) -> str:
        """Id of its answer as the client got it."""

    @property
    def staging_key(self) -> str:
        """Where its tokens are."""

    @property
    def cum_len(self) -> int:
        """Number of its tokens with all before them."""

    @property
    def chain_hash(self) -> str:
        """Hash of its deltas."""

    @property
    def cumulative_hash(self) -> str:
        """Hash of its whole sequence."""

    @property
    def output_fingerprint(self) -> str | None:
        """What the model wrote in it."""

    @property
    def continuation_fingerprint(self) -> str | None:
        """What the model had written when it ended."""

    @property
    def fingerprint_version(self) -> int:
        """Version of the fingerprints."""


class TerminalRow(Protocol):
    """A call that may have ended a rollout."""

    @property
    def model_call_id(self) -> str:
        """The call."""

    @property
    def response_id(self) -> str | None:
        """Id of its answer."""

    @property
    def identity(self) -> tuple[object, ...]:
        """Rows with one identity are of one token sequence."""

    def continues_to(self, target: str) -> bool:
        """Whether ``target`` is the fingerprint of everything that the model had written when the call ended."""

    def wrote(self, targets: Set[str]) -> bool:
        """Whether one of these is the fingerprint of what the model wrote in the call."""

    @property
    def content_methods(self) -> tuple[str, str]:
        """What it is called when content names this row: if some row continued to the target, and if none did."""


class _RecordRow:
    """A record with tokens."""

    content_methods = ("content_cumulative", "content_output")

    def __init__(self, record: PackedEntry) -> None:
        self._record = record
        self.model_call_id, self.response_id = record.model_call_id, record.response_id

    @property
    def identity(self) -> tuple[object, ...]:
        record = self._record
        if record.digest and record.cum_len is not None:
            return record.digest, record.cum_len
        prompt_follows = record.parent_call_id if record.prompt_is_delta else None
        return prompt_follows, tuple(record.prompt_token_ids.tolist()), tuple(record.generation_token_ids.tolist())

    def continues_to(self, target: str) -> bool:
        record = self._record
        return record.continuation_fingerprint == target and record.fingerprint_version in (None, FINGERPRINT_VERSION)

    def wrote(self, targets: Set[str]) -> bool:
        try:
            return assistant_fingerprint(self._record.output_items) in targets
        except ValueError:
            return False  # an item that cannot be hashed matches nothing


class _CustodyRow:
    """A row without tokens; fingerprints of another version say nothing (C186, C188)."""

    content_methods = ("content", "content")

    def __init__(self, row: CustodyRow) -> None:
        self.model_call_id, self.response_id = row.model_call_id, row.response_id
        self.identity: tuple[object, ...] = (row.cumulative_hash, row.chain_hash, row.cum_len)
        is_current = row.fingerprint_version == FINGERPRINT_VERSION
        self._continuation = row.continuation_fingerprint if is_current else None
        self._output = row.output_fingerprint if is_current else None

    def continues_to(self, target: str) -> bool:
        return self._continuation == target

    def wrote(self, targets: Set[str]) -> bool:
        return self._output in targets


def terminal_rows(rows: Iterable[TokenEntry | PackedEntry | CustodyRow]) -> Iterator[TerminalRow]:
    """Yield the rows to be asked; a record that no array can hold is left out, because it can end no chain."""
    for row in rows:
        if not isinstance(row, TokenEntry | PackedEntry):
            yield _CustodyRow(row)
            continue
        try:
            yield _RecordRow(packed_record(row))
        except ValueError:
            continue  # the builder names it
