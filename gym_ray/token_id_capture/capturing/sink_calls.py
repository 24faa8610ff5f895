"""Calls a sink's methods and optional extensions, each for a bounded time.

A sink is foreign code. If it hangs, the model's answer must still be served; if it lacks a method, that is logged as an
error, because a rollout that cannot be marked may be trained on with tokens missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from gym_ray.errors import RolloutIdError, RolloutRetiredError
from gym_ray.token_id_capture.bounded_calls import BoundedCalls
from gym_ray.token_id_capture.protocols import CallOutcome
from gym_ray.token_id_capture.records import TokenEntry

__all__ = ["SinkCalls"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


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
