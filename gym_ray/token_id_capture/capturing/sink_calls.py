"""Calls a sink's methods and optional extensions, each for a bounded time.

A sink is foreign code. If it hangs, the model's answer must still be served; if it lacks a method, that is logged as an
error, because a rollout that cannot be marked may be trained on with tokens missing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from gym_ray.errors import RolloutIdError, RolloutRetiredError
from gym_ray.token_id_capture.protocols import CallOutcome
from gym_ray.token_id_capture.records import TokenEntry

__all__ = ["BoundedCalls", "SinkCalls"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class BoundedCalls:
    """Awaits foreign coroutines for a bounded time; one that does not end in time is cancelled, and kept until it ends.

    Args:
        timeout_s: Longest wait for each; None waits without bound.
    """

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._running: set[asyncio.Task[Any]] = set()

    async def run(self, call: Coroutine[Any, Any, _T], what: str) -> _T:
        """Return what ``call`` returns.

        Raises:
            TimeoutError: It took too long; it was cancelled, whether or not it heeds that.
            Exception: What ``call`` raises.
        """
        if self._timeout_s is None:
            return await call
        task = asyncio.ensure_future(call)
        self._running.add(task)
        task.add_done_callback(self._ended)
        try:
            done, _ = await asyncio.wait({task}, timeout=self._timeout_s)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not done:
            task.cancel()
            raise TimeoutError(f"{what} did not end within {self._timeout_s:g} s")
        return task.result()

    async def aclose(self, timeout_s: float) -> None:
        """Wait for calls that did not end in time, ``timeout_s`` at most."""
        if self._running:
            await asyncio.wait(self._running, timeout=timeout_s)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited has seen it, or was told that the call took too long


class SinkCalls:
    """One sink's methods and optional extensions.

    Args:
        sink: The sink; it may lack anything, which is said where it is missed.
        bounded: How long each call may take.
    """

    def __init__(self, sink: object, bounded: BoundedCalls) -> None:
        self._sink, self._bounded = sink, bounded

    @property
    def notes_calls(self) -> bool:
        """Whether the sink notes a call before it is dispatched."""
        return self._method("begin_call") is not None

    async def begin(self, rollout_id: str, model_call_id: str) -> None:
        """Note a call that is about to be dispatched, if the sink notes calls (B83).

        Raises:
            Exception: What the sink raises, or ``TimeoutError``.
        """
        begin_call = self._method("begin_call")
        if begin_call is not None:
            await self._bounded.run(begin_call(rollout_id, model_call_id), "begin_call of the token sink")

    async def put(self, entry: TokenEntry) -> None:
        """Keep a record.

        Raises:
            Exception: What the sink raises, or ``TimeoutError``.
            TypeError: The sink has no ``put``.
        """
        put = self._method("put")
        if put is None:
            raise TypeError(f"{type(self._sink).__name__} has no method put")
        await self._bounded.run(put(entry), "put of the token sink")

    async def end(self, rollout_id: str, model_call_id: str, outcome: CallOutcome, reason: str) -> bool:
        """Tell how a call ended that has no record, and return whether the sink takes that (W23).

        Raises:
            Exception: What the sink raises, or ``TimeoutError``.
        """
        end_call = self._method("end_call")
        if end_call is None:
            return False
        await self._bounded.run(end_call(rollout_id, model_call_id, outcome, reason), "end_call of the token sink")
        return True

    async def mark(self, rollout_id: str, model_call_id: str = "", reason: str = "") -> None:
        """Mark a rollout incomplete, with the reason where the sink keeps reasons of calls (B92).

        Raises:
            Exception: What the sink raises, or ``TimeoutError``. Nothing where no second try would help, which is
                logged as an error: the sink has no mark, the rollout was handed over, or its id is none.
        """
        try:
            await self._mark(rollout_id, model_call_id, reason)
        except (RolloutRetiredError, RolloutIdError) as error:
            _log.error("%s: call %r is not marked, and will not be: %s", rollout_id, model_call_id, error)

    async def _mark(self, rollout_id: str, model_call_id: str, reason: str) -> None:
        if model_call_id and reason and await self.end(rollout_id, model_call_id, "untrainable", reason):
            return
        mark = self._method("mark_incomplete")
        if mark is None:
            _log.error(
                "%s: call %r has no record, and %s cannot mark its rollout: it may be trained on with tokens missing",
                rollout_id,
                model_call_id,
                type(self._sink).__name__,
            )
            return
        await self._bounded.run(mark(rollout_id, model_call_id), "mark_incomplete of the token sink")

    def _method(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]] | None:
        method = getattr(self._sink, name, None)
        return method if callable(method) else None
