"""Empties the captures of attempts that are about to begin, so that no earlier call is taken for theirs (D25).

Ids are deterministic: what an earlier run left under one would mix with what comes now.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import httpx

from gym_ray.capture_location import CaptureLocation
from gym_ray.model_call_capture.captures import open_captures
from gym_ray.rollouts.tokens.token_sources import StaleCaptures

__all__ = ["Clearing"]

_log = logging.getLogger(__name__)


class Clearing:
    """Clears attempts of one run. Close it with :meth:`aclose`.

    Args:
        captures: Where the run's model calls are captured, None when model calls are not captured.
        tokens: Deletes the run's token captures, None when it has none or nothing can; closed with this.
    """

    def __init__(self, captures: CaptureLocation | None, tokens: StaleCaptures | None = None) -> None:
        self._calls = None if captures is None else open_captures(captures)
        self._tokens = tokens
        # Servers are asked directly: a proxy of the environment is for the internet, not for the own nodes.
        self._client = httpx.AsyncClient(timeout=httpx.Timeout(10.0), trust_env=False)

    async def clear(self, rollout_ids: Sequence[str]) -> None:
        """Empty the captures of these attempts, and tell the servers that they begin anew (D25, D28, B125).

        Raises:
            StorageError: A capture could not be cleared; the attempt must not run.
            CaptureError: A token capture could not be removed; the same.
        """
        if self._calls is not None:
            untold = await self._calls.forget(rollout_ids, client=self._client)
            if untold:  # the join asks the same servers again, and a rollout whose server does not answer gets a gap
                _log.warning("%s begin anew, and these servers could not be told: %s", list(rollout_ids), list(untold))
        for rollout_id in rollout_ids:
            if self._calls is not None:
                await asyncio.to_thread(self._calls.clear, rollout_id)
            if self._tokens is not None:
                await self._tokens.delete(rollout_id)

    async def aclose(self) -> None:
        """Close the connections to the servers and the files; idempotent."""
        await self._client.aclose()
        if self._calls is not None:
            self._calls.close()
        if self._tokens is not None:
            await self._tokens.close()
