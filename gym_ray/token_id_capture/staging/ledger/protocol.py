"""What a capture ledger must do: keep one token-free row of every committed call of a rollout (C200-C203).

The worker's storage holds the tokens; the ledger holds hashes, lengths and the keys that lead there. A row that was
recorded can be read by every serving process, and it is durable before the call's first byte leaves (C2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from gym_ray.token_id_capture.lineage import LineageResolution
from gym_ray.token_id_capture.staging.ledger_records import CaptureLedgerCommit, RolloutManifest, RolloutRemoval

__all__ = ["CaptureLedger"]


@runtime_checkable
class CaptureLedger(Protocol):
    """Rows of committed calls and of failures, by rollout; may be asked from any event loop, many times at once."""

    async def resolve(self, rollout_id: str, items: Sequence[Any]) -> LineageResolution:
        """Return which committed call a request with these items continues, if that is proved (C208).

        A match carries ``staging_chain``, ``prev_len`` (the parent's whole length) and ``chain_hash``, and no tokens.

        Raises:
            ValueError: The id is none, or the items cannot be hashed.
            CaptureError: The ledger could not be read, or is damaged.
        """

    async def record(self, commit: CaptureLedgerCommit) -> None:
        """Keep the row of one committed call; durable when it returns. An identical replay changes nothing (C201).

        Of a retired rollout it is dropped with a warning that names the staging key (C231).

        Raises:
            ValueError: The id is none, or the call has another row or a failure already.
            CaptureError: It could not be kept.
        """

    async def record_failure(self, rollout_id: str, model_call_id: str, reason: str) -> None:
        """Keep why a call has no usable row; durable when it returns. Every distinct reason is kept, in order (C202).

        Raises:
            ValueError: An id or the reason is none.
            CaptureError: It could not be kept.
        """

    async def manifest(self, rollout_id: str) -> RolloutManifest:
        """Return every row and every failure of a rollout; of an unknown one, an empty manifest (C207).

        Raises:
            ValueError: The id is none.
            RolloutRetiredError: The rollout is retired.
            CaptureError: The ledger could not be read.
        """

    async def has_rows(self, rollout_id: str) -> bool:
        """Whether anything was recorded of a rollout; failures count (C202).

        Raises:
            ValueError: The id is none.
            RolloutRetiredError: The rollout is retired.
            CaptureError: The ledger could not be read.
        """

    async def retire(self, rollout_ids: Sequence[str]) -> RolloutRemoval:
        """Close rollouts for good and remove their rows; every process sees it when this returns (C230, C231, C233).

        Raises:
            TypeError: One string was given.
            ValueError: An id is none; nothing was changed.
            CaptureError: It could not be done; repeat it.
        """

    async def delete(self, rollout_ids: Sequence[str]) -> RolloutRemoval:
        """Remove rows and fences, so that the ids can be used again (C232, C233).

        Raises:
            TypeError: One string was given.
            ValueError: An id is none; nothing was changed.
            CaptureError: It could not be done; repeat it.
        """

    def is_process_shared(self) -> bool:
        """Whether ledgers in other processes see the same rows (C200)."""

    def evicts(self) -> bool:
        """Whether rows may be gone before they are retired; external staging refuses such a ledger (C203)."""

    async def close(self) -> None:
        """Let go of threads and files; can be called again."""
