"""How a run uses a source of token captures, which may be foreign code.

A source that hangs must not hold a run up for ever, and what an earlier run left under the same ids must not mix with
the captures of this one.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import Any, Final, Protocol

from gym_ray.errors import CaptureError, GymRayError
from gym_ray.token_id_capture.bounded_calls import BoundedCalls
from gym_ray.token_id_capture.protocols import CaptureProblem, TokenCaptureSnapshot, TokenSource
from gym_ray.token_id_capture.reasons import MARK_PENDING
from gym_ray.token_id_capture.staging import CaptureLedger

__all__ = ["BoundedSource", "LossySource", "StaleCaptures", "StaleRows"]

_log = logging.getLogger(__name__)
_TIMEOUT_S: Final = 30.0
"""Longest time for one call: a freeze and a drop together stay below what a join may take."""


class _Deletes(Protocol):
    def delete(self, rollout_id: str) -> object: ...

    async def close(self) -> None: ...


class BoundedSource:
    """A source that answers in time or raises. Closing it closes the source, and never raises.

    Args:
        source: The source.
        timeout_s: Longest that it may take for one question.
    """

    def __init__(self, source: TokenSource, timeout_s: float = _TIMEOUT_S) -> None:
        self._source, self._name, self._timeout_s = source, type(source).__name__, timeout_s
        self._calls = BoundedCalls(timeout_s)

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        """Freeze; ``TimeoutError`` when it takes too long."""
        return await self._calls.run(self._source.freeze(rollout_id), f"freeze of {self._name}")

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        """Drop; ``TimeoutError`` when it takes too long."""
        asked = self._source.drop(rollout_id, snapshot_id=snapshot_id, version=version)
        return await self._calls.run(asked, f"drop of {self._name}")

    async def close(self) -> None:
        """Close the source."""
        try:
            await self._calls.run(self._source.close(), f"close of {self._name}")
            await self._calls.aclose(self._timeout_s)
        except Exception:  # noqa: BLE001 - boundary: a source may raise anything, and its owner has more to close
            _log.exception("%s could not be closed", self._name)


class LossySource:
    """A source of a capture that is known to have lost tokens, though it does not say so itself yet.

    Args:
        source: The source; it stays its owner's.
    """

    def __init__(self, source: TokenSource) -> None:
        self._source = source

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        """Freeze; the snapshot is incomplete and says why."""
        found = await self._source.freeze(rollout_id)
        problem = CaptureProblem(MARK_PENDING, "", "a server lost tokens and could not write that down yet")
        problems = (*found.problems, problem)
        return TokenCaptureSnapshot(rollout_id, found.packed, True, found.snapshot_id, found.version, problems)

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:  # noqa: ARG002 - as the protocol
        """Drop nothing: what is incomplete is evidence."""
        return False

    async def close(self) -> None:
        """Leave the source open."""


class StaleRows:
    """What deletes the rows of a rollout whose tokens the workers keep, and its fence if it was retired (C232).

    Args:
        ledger: The ledger; closed by :meth:`close`.
    """

    def __init__(self, ledger: CaptureLedger) -> None:
        self._ledger = ledger

    async def delete(self, rollout_id: str) -> None:
        """Delete what the ledger has of a rollout."""
        await self._ledger.delete([rollout_id])

    async def close(self) -> None:
        """Close the ledger."""
        await self._ledger.close()


class StaleCaptures:
    """Deletes token captures of attempts that are about to begin (B125).

    Args:
        keeper: Whatever has ``delete(rollout_id)``, which may block or be a coroutine, and ``close``.
        timeout_s: Longest that it may take for one capture.
    """

    def __init__(self, keeper: _Deletes, timeout_s: float = _TIMEOUT_S) -> None:
        self._keeper, self._timeout_s = keeper, timeout_s

    @classmethod
    def of(cls, source: TokenSource) -> StaleCaptures | None:
        """Return what deletes captures behind a source of the user's own; None, with a warning, if that cannot."""
        if callable(getattr(source, "delete", None)):
            return cls(source)  # type: ignore[arg-type]  # looked up by name: it stands outside the protocol
        _log.warning(
            "%s has no delete(rollout_id): what an earlier run left in it under the same ids is not cleared",
            type(source).__name__,
        )
        return None

    async def delete(self, rollout_id: str) -> None:
        """Delete the capture of one attempt.

        Raises:
            CaptureError: It could not be deleted; the attempt must not run.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._asked(rollout_id)
        except GymRayError:
            raise
        except Exception as error:
            name = type(self._keeper).__name__
            raise CaptureError(f"{rollout_id}: {name} could not delete its earlier capture: {error!r}") from error

    async def _asked(self, rollout_id: str) -> None:
        delete: Any = self._keeper.delete
        if inspect.iscoroutinefunction(delete):
            await delete(rollout_id)
        else:
            await asyncio.to_thread(delete, rollout_id)

    async def close(self) -> None:
        """Close what keeps the captures."""
        await self._keeper.close()
