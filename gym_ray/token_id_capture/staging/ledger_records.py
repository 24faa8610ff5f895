"""What a ledger keeps of a call, what it answers about a rollout, and what a trainer makes of both (C66-C79).

None of these holds a token: hashes, lengths and keys say which tokens a call has, and where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from gym_ray.token_id_capture.staging.call_shape import length_problem, link_problem
from gym_ray.token_id_capture.staging.constants import CallMode, TerminalSelection
from gym_ray.token_id_capture.staging.records import (
    DigestHex,
    Identifier,
    NonNegInt,
    StagingRecord,
    VersionedRecord,
)

__all__ = [
    "CallRecord",
    "CaptureLedgerCommit",
    "ManifestFailure",
    "RolloutManifest",
    "RolloutReceipt",
    "RolloutRemoval",
]


class CallRecord(VersionedRecord):
    """One call in a ledger and in a manifest (C66-C68). The rollout is the ledger's, not the row's.

    Attributes:
        model_call_id: The call.
        parent_call_id: The call that it continues; None for a root.
        prev_len: Tokens before its delta; this and the next six are those of its coordinates.
        delta_len: Tokens of its delta.
        cum_len: Tokens of prompt and answer.
        weight_version: Which weights generated it.
        digest: Of the staged record.
        extras_digest: Of its extras.
        staging_key: Leads to the staged record.
        mode: How its prompt was made.
        chain_hash: Of the chain that ends with it.
        cumulative_hash: Of all its tokens.
        response_id: The id of the answer as the client got it.
        admitted_at: Seconds since 1970, if known.
        output_fingerprint: Of the answer's items.
        continuation_fingerprint: Of the conversation that a continuation begins with.
        fingerprint_version: How the fingerprints are computed; 0 for a call without.
    """

    model_call_id: Identifier
    parent_call_id: Identifier | None = None
    prev_len: NonNegInt
    delta_len: NonNegInt
    cum_len: NonNegInt
    weight_version: NonNegInt
    digest: DigestHex
    extras_digest: DigestHex
    staging_key: Identifier
    mode: CallMode = "token_in"
    chain_hash: DigestHex
    cumulative_hash: DigestHex
    response_id: Identifier
    admitted_at: Annotated[float, Field(strict=True)] | None = None
    output_fingerprint: DigestHex | None = None
    continuation_fingerprint: DigestHex | None = None
    fingerprint_version: NonNegInt = 0

    def _problem(self) -> str:
        return link_problem(self.mode, self.parent_call_id, self.prev_len) or length_problem(
            self.prev_len, self.delta_len, self.cum_len
        )


class CaptureLedgerCommit(StagingRecord):
    """All that a ledger needs to keep a call and to find it as a parent (C70).

    Attributes:
        rollout_id: The rollout.
        record: The row.
        staging_chain: Keys of the chain, root first; ends with the record's own.
        request_items: Items of the request, as it was received.
        response_items: Items of the answer.
    """

    rollout_id: Identifier
    record: CallRecord
    staging_chain: Sequence[Identifier] = ()
    request_items: list[dict[str, Any]]
    response_items: list[dict[str, Any]]


class ManifestFailure(StagingRecord):
    """A call that was lost, and why; readers accept reasons that they do not know (C71).

    Attributes:
        model_call_id: The call, or the place of a line that cannot be read.
        reason: Why.
    """

    model_call_id: Identifier
    reason: Identifier


class RolloutManifest(StagingRecord):
    """Everything a ledger knows about a rollout (C72). A call may stand there twice: whoever reads it must decide.

    Attributes:
        rollout_id: The rollout.
        records: Its committed calls, in the order in which they were.
        failures: Calls that were lost.
    """

    rollout_id: Identifier
    records: list[CallRecord] = Field(default_factory=list)
    failures: list[ManifestFailure] = Field(default_factory=list)


class RolloutReceipt(VersionedRecord):
    """A rollout as a trainer takes it: its calls, its reward, and the call that ended it, or why it cannot be used.

    Trainable is a receipt that is not poisoned, has no ``failure_reason``, and names its terminal and how that was
    told (C75-C77).

    Attributes:
        rollout_id: The rollout.
        reward: Of the rollout, if it was scored.
        terminal_model_call_id: The call that ended it.
        manifest: Its calls, each once.
        capture_poisoned: It cannot be trained on.
        failure_reason: Why it is poisoned.
        terminal_selection: How the terminal call was told.
        terminal_attribution_reason: What was found when it was told.
    """

    rollout_id: Identifier
    reward: float | None = None
    terminal_model_call_id: Identifier | None = None
    manifest: list[CallRecord] = Field(default_factory=list)
    capture_poisoned: bool = False
    failure_reason: str | None = None
    terminal_selection: TerminalSelection | None = None
    terminal_attribution_reason: str | None = None

    def _problem(self) -> str:
        return self._manifest_problem() or self._state_problem()

    def _manifest_problem(self) -> str:
        known: set[str] = set()
        for row in self.manifest:
            if row.model_call_id in known:
                return f"call {row.model_call_id!r} stands twice in the manifest"
            known.add(row.model_call_id)
        if self.terminal_model_call_id is not None and self.terminal_model_call_id not in known:
            return f"the terminal call {self.terminal_model_call_id!r} is not in the manifest"
        return ""

    def _state_problem(self) -> str:
        if not self.capture_poisoned and self.failure_reason is not None:
            return f"the rollout failed ({self.failure_reason!r}) and is not poisoned"
        if self.terminal_model_call_id is not None:
            return "" if self.terminal_selection is not None else "a terminal call needs its terminal_selection"
        if not self.capture_poisoned:
            return "a receipt without a terminal call is poisoned"
        if self.terminal_selection is None and self.failure_reason is None:
            return "a receipt without a terminal call and a terminal_selection needs its failure_reason"
        return ""


class RolloutRemoval(StagingRecord):
    """What became of rollouts that a ledger was asked to retire or delete, in the order of the request (C79).

    Attributes:
        removed: Those of which something was there.
        absent: The others.
    """

    removed: list[Identifier] = Field(default_factory=list)
    absent: list[Identifier] = Field(default_factory=list)
