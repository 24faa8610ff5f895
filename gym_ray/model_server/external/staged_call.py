"""One captured call whose worker stages its tokens: admitted, then committed or failed, exactly once (C250-C262).

However the call ends, the ledger knows it before the client hears of it. No fault of the capture behind the admission
fails the call: the client is served, and the ledger says why the tokens cannot be used (C3).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from gym_ray.model_call_capture.exchanges.exchange import TrainingCall
from gym_ray.model_server.off_loop import off_loop
from gym_ray.token_id_capture.external_staging import COMMITTED, NOT_ADMITTED, ExternalStaging
from gym_ray.token_id_capture.staging import (
    INVALID_COMMIT_COORDS_REASON,
    UNCOMMITTED_CALL_REASON,
    UNRESOLVED_PARENT_REASON,
    CaptureAdmission,
)
from gym_ray.token_id_capture.staging.committing import NotStagedError, checked_coordinates, ledger_commit
from gym_ray.token_id_capture.staging.ledger.admission import admit

__all__ = ["StagedCall"]

_log = logging.getLogger(__name__)


class StagedCall:
    """A call under way.

    Args:
        staging: The ledger.
        called: Its identity.
        admitted_at: When it came, UNIX seconds.
        size_bytes: Length of its request.
    """

    def __init__(self, staging: ExternalStaging, called: TrainingCall, *, admitted_at: float, size_bytes: int) -> None:
        self._ledger, self._counts, self._called = staging.ledger, staging.counts, called
        self._admitted_at, self._size_bytes = admitted_at, size_bytes
        self._items: Sequence[Any] = ()
        self._admission: CaptureAdmission | None = None
        self._is_committed = self._is_failed = False

    async def admit(self, items: Sequence[Any] | None) -> CaptureAdmission | None:
        """Look the parent up, and return what the worker is told; None for ordinary traffic (C210-C212).

        Args:
            items: The turns of the request; None when they cannot be read, and no parent can be proved.

        Raises:
            Exception: The ledger could not be asked; nothing was admitted (C213).
        """
        called = self._called
        if items is None:
            await self._ledger.record_failure(called.rollout_id, called.model_call_id, UNRESOLVED_PARENT_REASON)
        else:
            self._items = items
            self._admission = await admit(
                self._ledger, rollout_id=called.rollout_id, model_call_id=called.model_call_id, items=items
            )
        if self._admission is None:
            self._counts.ended(NOT_ADMITTED, UNRESOLVED_PARENT_REASON)
        return self._admission

    @asynccontextmanager
    async def settled(self) -> AsyncIterator[None]:
        """See to it that the ledger knows how the call ended, also when it is cancelled (C259).

        A call without a row gets the general reason, behind the specific one where there is one.
        """
        try:
            yield
        finally:
            if self._admission is not None and not self._is_committed:
                await _to_the_end(self._fail(self._admission, UNCOMMITTED_CALL_REASON))

    async def commit(self, parked: Any, served: Mapping[str, Any], response_id: str | None) -> None:
        """Keep the row of the call, or why it has none; durable when it returns. Never raises for either (C253, C254).

        Nothing of the answer may have been sent yet, and all of it must have been written.

        Args:
            parked: The coordinates in the worker's answer, unchecked.
            served: The answer as its client gets it.
            response_id: Its id, None when the worker gave it none.
        """
        if self._admission is not None:
            await _to_the_end(self._commit(self._admission, parked, served, response_id))

    async def _commit(
        self, admission: CaptureAdmission, parked: Any, served: Mapping[str, Any], response_id: str | None
    ) -> None:
        try:
            coordinates = checked_coordinates(parked, admission)
            commit = await off_loop(
                self._size_bytes,
                lambda: ledger_commit(
                    coordinates,
                    admission,
                    served=served,
                    response_id=response_id,
                    request_items=self._items,
                    admitted_at=self._admitted_at,
                ),
            )
            await self._ledger.record(commit)
        except NotStagedError as problem:
            self._say(problem.reason, problem.detail)
            await self._fail(admission, problem.reason)
        except Exception as error:  # noqa: BLE001 - boundary: whatever keeps the row away, the answer is served (C254)
            self._say(INVALID_COMMIT_COORDS_REASON, f"{type(error).__name__}: {error}")
            await self._fail(admission, INVALID_COMMIT_COORDS_REASON)
        else:
            self._is_committed = True
            self._counts.ended(admission.mode, COMMITTED)

    async def _fail(self, admission: CaptureAdmission, reason: str) -> None:
        """Keep a reason why an admitted call has no row; the first one is what it is counted under."""
        if not self._is_failed:
            self._counts.ended(admission.mode, reason)
        self._is_failed = True
        called = self._called
        try:
            await self._ledger.record_failure(called.rollout_id, called.model_call_id, reason)
        except Exception:  # noqa: BLE001 - boundary: a fault of the capture must not fail the call (C3)
            _log.exception("%s: the failure of call %s is not kept", called.rollout_id, called.model_call_id)

    def _say(self, reason: str, detail: str) -> None:
        called = self._called
        _log.warning("%s: call %s is not committed: %s: %s", called.rollout_id, called.model_call_id, reason, detail)


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Await work that must not be cut short; a cancellation is obeyed when it has ended. The work bounds itself."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled
