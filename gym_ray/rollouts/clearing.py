"""Empties the captures of attempts that are about to begin, so that no earlier call is taken for theirs (D25).

Ids are deterministic: what an earlier run left under one would mix with what comes now.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

import httpx

from gym_ray.model_call_capture import CaptureStore
from gym_ray.model_call_capture.quiesce import forget
from gym_ray.model_call_capture.recovery import clear_rollout
from gym_ray.token_id_capture.store import TokenCaptureStore

__all__ = ["Clearing"]

_log = logging.getLogger(__name__)


class Clearing:
    """Clears attempts of one run. Close it with :meth:`aclose`.

    Args:
        capture_dir: The run's capture directory, None when model calls are not captured.
        token_dir: Directory of the run's token files, None when it has none.
    """

    def __init__(self, capture_dir: Path | None, token_dir: Path | None = None) -> None:
        self._calls = None if capture_dir is None else CaptureStore(capture_dir)
        self._tokens = None if token_dir is None else TokenCaptureStore(token_dir)
        # Servers are asked directly: a proxy of the environment is for the internet, not for the own nodes.
        self._client = httpx.AsyncClient(timeout=httpx.Timeout(10.0), trust_env=False)

    async def clear(self, rollout_ids: Sequence[str]) -> None:
        """Empty the captures of these attempts, and tell the servers that they begin anew (D25, D28, B125).

        Raises:
            StorageError: A capture could not be cleared; the attempt must not run.
            CaptureError: Token files could not be removed; the same.
        """
        if self._calls is not None:
            untold = await forget(self._calls.root, rollout_ids, client=self._client)
            if untold:  # the join asks the same servers again, and a rollout whose server does not answer gets a gap
                _log.warning("%s begin anew, and these servers could not be told: %s", list(rollout_ids), list(untold))
        for rollout_id in rollout_ids:
            await asyncio.to_thread(self._clear_files, rollout_id)

    def _clear_files(self, rollout_id: str) -> None:
        if self._calls is not None:
            clear_rollout(self._calls, rollout_id)
        if self._tokens is not None:
            self._tokens.delete(rollout_id)

    async def aclose(self) -> None:
        """Close the connections to the servers and the files; idempotent."""
        await self._client.aclose()
        if self._tokens is not None:
            await self._tokens.close()
