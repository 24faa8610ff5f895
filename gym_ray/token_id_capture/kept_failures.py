"""A ledger that forgets no failure: what a full disk refuses stays in memory, and is tried again until it is durable.

A call whose row and whose failure are both lost would look as if it had never been, and its rollout as if it were
whole. As long as the process lives, its manifests name every failure, durable or not.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Final, TypeVar

from gym_ray.errors import CaptureError
from gym_ray.token_id_capture.bounded_calls import BoundedCalls
from gym_ray.token_id_capture.capturing.late_marks import LateMarks
from gym_ray.token_id_capture.lineage import LineageResolution
from gym_ray.token_id_capture.staging.ledger.protocol import CaptureLedger
from gym_ray.token_id_capture.staging.ledger_records import (
    CaptureLedgerCommit,
    ManifestFailure,
    RolloutManifest,
    RolloutRemoval,
)

__all__ = ["FailureKeepingLedger"]

_log = logging.getLogger(__name__)
_CLOSE_S: Final = 10.0

_T = TypeVar("_T")


class FailureKeepingLedger:
    """Implements ``CaptureLedger`` over another ledger, each call of which is bounded. Belongs to one event loop.

    Args:
        ledger: Keeps the rows; closed by :meth:`close`.
        timeout_s: Longest that it may take for one call.
        retry_interval_s: Pause before failures that it refused are tried again; it doubles, up to 30 s.
    """

    def __init__(self, ledger: CaptureLedger, *, timeout_s: float, retry_interval_s: float = 1.0) -> None:
        self._ledger = ledger
        self._bounded = BoundedCalls(timeout_s)
        self._late = LateMarks(self._told, retry_interval_s=retry_interval_s)

    async def resolve(self, rollout_id: str, items: Sequence[Any]) -> LineageResolution:
        """Return which committed call a request continues; see the protocol."""
        return await self._within(self._ledger.resolve(rollout_id, items), f"the look-up in rollout {rollout_id!r}")

    async def record(self, commit: CaptureLedgerCommit) -> None:
        """Keep the row of one committed call; see the protocol."""
        await self._within(self._ledger.record(commit), f"the row of call {commit.record.model_call_id!r}")

    async def record_failure(self, rollout_id: str, model_call_id: str, reason: str) -> None:
        """Keep why a call has no usable row: durably, or in memory until it can be written down.

        Raises:
            ValueError: An id or the reason is none.
        """
        try:
            await self._told(rollout_id, model_call_id, reason)
        except ValueError:
            raise
        except Exception as error:  # noqa: BLE001 - boundary: whatever a ledger raises, the failure is kept here
            _log.error(
                "%s: the ledger cannot keep the failure %s of call %s yet: %s", rollout_id, reason, model_call_id, error
            )
            self._late.add(rollout_id, model_call_id, reason)

    async def manifest(self, rollout_id: str) -> RolloutManifest:
        """Return every row and every failure of a rollout, those that are not durable yet among them."""
        found = await self._within(self._ledger.manifest(rollout_id), f"the manifest of rollout {rollout_id!r}")
        kept = [ManifestFailure(model_call_id=call, reason=why) for _, call, why in self._late.of(rollout_id)]
        missing = [failure for failure in kept if failure not in found.failures]
        return found if not missing else found.model_copy(update={"failures": [*found.failures, *missing]})

    async def has_rows(self, rollout_id: str) -> bool:
        """Whether anything is known of a rollout; failures count (C202)."""
        known = await self._within(self._ledger.has_rows(rollout_id), f"the rows of rollout {rollout_id!r}")
        return known or bool(self._late.of(rollout_id))

    async def retire(self, rollout_ids: Sequence[str]) -> RolloutRemoval:
        """Close rollouts for good; see the protocol."""
        removal = await self._within(self._ledger.retire(rollout_ids), "retiring rollouts")
        self._forget(rollout_ids)
        return removal

    async def delete(self, rollout_ids: Sequence[str]) -> RolloutRemoval:
        """Remove rows and fences; see the protocol."""
        removal = await self._within(self._ledger.delete(rollout_ids), "deleting rollouts")
        self._forget(rollout_ids)
        return removal

    def is_process_shared(self) -> bool:
        """Whether ledgers in other processes see the same rows."""
        return self._ledger.is_process_shared()

    def evicts(self) -> bool:
        """Whether rows may be lost while the server runs."""
        return self._ledger.evicts()

    async def close(self) -> None:
        """Try what is not durable once more, and close the ledger; rollouts with a failure that is lost are logged.

        Raises:
            CaptureError: The ledger did not end well.
        """
        for rollout_id in sorted(await self._late.aclose(_CLOSE_S)):
            _log.error("%s: a failure of its capture was never written down", rollout_id)
        await self._bounded.aclose(_CLOSE_S)
        await self._ledger.close()

    def _forget(self, rollout_ids: Sequence[str]) -> None:
        for rollout_id in rollout_ids:
            self._late.drop(rollout_id)

    async def _told(self, rollout_id: str, model_call_id: str, reason: str) -> None:
        told = self._ledger.record_failure(rollout_id, model_call_id, reason)
        await self._within(told, f"the failure of call {model_call_id!r}")

    async def _within(self, call: Coroutine[Any, Any, _T], what: str) -> _T:
        try:
            return await self._bounded.run(call, what)
        except TimeoutError as error:
            raise CaptureError(str(error)) from error
