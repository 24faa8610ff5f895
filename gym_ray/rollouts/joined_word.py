"""Tells the writers of captures that rollouts are joined, so that they need not remember their calls any longer.

Whoever comes while a round is under way goes with the next one: under load servers are asked once for many rollouts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import httpx

from gym_ray.errors import StorageError
from gym_ray.model_call_capture.captures import Captures

__all__ = ["JoinedWord"]

_log = logging.getLogger(__name__)
_A_ROUND = 256
_Waiting = tuple[str, asyncio.Future[None]]


class JoinedWord:
    """Tells the writers of one place. Close it before the client, when nobody waits for it any longer.

    Args:
        captures: The place.
        client: Pooled HTTP client.
    """

    def __init__(self, captures: Captures, client: httpx.AsyncClient) -> None:
        self._captures, self._client = captures, client
        self._waiting: list[_Waiting] = []
        self._rounds: asyncio.Task[None] | None = None

    async def tell(self, rollout_id: str) -> None:
        """Return when the writers were told, or could not be, which is logged: they keep a few bytes more."""
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((rollout_id, told))
        if self._rounds is None:
            self._rounds = asyncio.create_task(self._tell_all())
        await told

    async def aclose(self) -> None:
        """Return when the rounds under way have ended."""
        if self._rounds is not None:
            await asyncio.wait({self._rounds})

    async def _tell_all(self) -> None:
        try:
            while self._waiting:
                taken, self._waiting = self._waiting[:_A_ROUND], self._waiting[_A_ROUND:]
                problem: Exception | None = None
                try:
                    await self._tell_these([rollout_id for rollout_id, _ in taken])
                except Exception as error:  # noqa: BLE001 - raised where each of them is waited for
                    problem = error
                _end(taken, problem)
        finally:
            self._rounds = None

    async def _tell_these(self, rollout_ids: Sequence[str]) -> None:
        try:
            untold = await self._captures.forget(rollout_ids, client=self._client, withdraw_open=False)
        except StorageError as error:
            untold = (str(error),)
        if untold:  # the records are durable; a writer that was not told keeps a few bytes more, and nothing is lost
            _log.warning("%s: not told that they are joined: %s", ", ".join(rollout_ids), ", ".join(untold))


def _end(waiting: Sequence[_Waiting], problem: Exception | None) -> None:
    for _, told in waiting:
        if told.done():  # whoever waited was cancelled
            continue
        if problem is None:
            told.set_result(None)
        else:
            told.set_exception(problem)
