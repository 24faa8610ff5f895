"""Empties the captures of attempts that are about to begin, so that no earlier call is taken for theirs (D25).

Ids are deterministic: what an earlier run left under one would mix with what comes now.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

import httpx

from gym_ray.capture_location import CaptureLocation
from gym_ray.errors import StorageError
from gym_ray.model_call_capture.captures import Captures, open_captures
from gym_ray.rollouts.tokens.token_sources import StaleCaptures

__all__ = ["Clearing"]

_log = logging.getLogger(__name__)
_Wanted = tuple[tuple[str, ...], asyncio.Future[None]]
_ENDED = "the run ended before these captures were cleared"
_A_ROUND = 256
"""Attempts that are cleared together at most."""
_APART_S = 0.2
"""From the beginning of one round to that of the next: each asks every server, which costs more than its attempts."""


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
        self._waiting: list[_Wanted] = []
        self._rounds: asyncio.Task[None] | None = None
        self._round_at = 0.0

    async def clear(self, rollout_ids: Sequence[str]) -> None:
        """Empty the captures of these attempts, and tell the servers that they begin anew (D25, D28, B125).

        Whoever calls while others are being cleared, or soon after, waits for the next round, which takes all that
        wait: servers are asked once a round, not once an attempt.

        Raises:
            StorageError: A capture could not be cleared; the attempt must not run.
            CaptureError: A token capture could not be removed; the same.
        """
        cleared: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((tuple(rollout_ids), cleared))
        if self._rounds is None:
            self._rounds = asyncio.create_task(self._clear_rounds())
        await cleared

    async def _clear_rounds(self) -> None:
        while self._waiting:
            taken: Sequence[_Wanted] = ()
            try:
                if self._calls is not None:
                    await asyncio.sleep(self._round_at - time.monotonic())
                    self._round_at = time.monotonic() + _APART_S
                taken, self._waiting = self._waiting[:_A_ROUND], self._waiting[_A_ROUND:]
                await self._clear_round(taken)
            except Exception as error:  # noqa: BLE001 - raised where each of them is waited for
                _fail(taken, error)
            except asyncio.CancelledError:
                _fail(taken, StorageError(_ENDED))
                raise
        self._rounds = None

    async def _clear_round(self, taken: Sequence[_Wanted]) -> None:
        rollout_ids = [rollout_id for wanted, _ in taken for rollout_id in wanted]
        failed: dict[str, Exception] = {}
        if self._calls is not None:
            untold = await self._calls.forget(rollout_ids, client=self._client)
            if untold:  # the join asks the same servers again, and a rollout whose server does not answer gets a gap
                _log.warning("%s begin anew, and these servers could not be told: %s", rollout_ids, list(untold))
            failed = await asyncio.to_thread(_clear_each, self._calls, rollout_ids)
        for wanted, cleared in taken:
            problem = next((failed[rollout_id] for rollout_id in wanted if rollout_id in failed), None)
            problem = problem or await self._delete_tokens(wanted)
            if cleared.done():  # whoever waited was cancelled
                continue
            if problem is None:
                cleared.set_result(None)
            else:
                cleared.set_exception(problem)

    async def _delete_tokens(self, rollout_ids: Sequence[str]) -> Exception | None:
        if self._tokens is None:
            return None
        try:
            for rollout_id in rollout_ids:
                await self._tokens.delete(rollout_id)
        except Exception as error:  # noqa: BLE001 - raised where this attempt's clearing is waited for
            return error
        return None

    async def aclose(self) -> None:
        """Close the connections to the servers and the files; idempotent."""
        rounds, self._rounds = self._rounds, None
        if rounds is not None:
            rounds.cancel()
            await asyncio.wait({rounds})
        _fail(self._waiting, StorageError(_ENDED))  # also where the round's task was cancelled before its first step
        await self._client.aclose()
        if self._calls is not None:
            self._calls.close()
        if self._tokens is not None:
            await self._tokens.close()


def _clear_each(calls: Captures, rollout_ids: Sequence[str]) -> dict[str, Exception]:
    """Clear these rollouts, and return what went wrong by id: one that cannot be cleared keeps no other from it."""
    failed: dict[str, Exception] = {}
    for rollout_id in rollout_ids:
        try:
            calls.clear(rollout_id)
        except Exception as error:  # noqa: BLE001 - raised where this attempt's clearing is waited for
            failed[rollout_id] = error
    return failed


def _fail(wanted: Sequence[_Wanted], error: Exception) -> None:
    for _, cleared in wanted:
        if not cleared.done():
            cleared.set_exception(error)
