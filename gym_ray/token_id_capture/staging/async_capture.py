"""Capture for serving code on an event loop: sinks work on threads, so many at once, each for a bounded time (C331).

A sink that hangs must not hold an answer for ever. Whoever waits is told that the call is not captured; should the sink
succeed later, nobody will ever hear of what it stored, and it is counted as an orphan.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from typing import Any, Final

from gym_ray.errors import CaptureError
from gym_ray.token_id_capture.staging.active_call import ActiveCall
from gym_ray.token_id_capture.staging.capture import RolloutTokenCapture
from gym_ray.token_id_capture.staging.columns import Column
from gym_ray.token_id_capture.staging.record_of_call import CallTokens
from gym_ray.token_id_capture.staging.records import CaptureAdmission, CommitCoords
from gym_ray.token_id_capture.staging.staging_threads import StagingThreads
from gym_ray.token_id_capture.token_arrays import LogProbs, TokenIds

__all__ = ["AsyncRolloutTokenCapture"]

_log = logging.getLogger(__name__)

_MAX_CONCURRENT: Final = 64
_TIMEOUT_S: Final = 30.0


class AsyncRolloutTokenCapture:
    """The methods of a :class:`RolloutTokenCapture` for one event loop; those that stage are coroutines.

    Args:
        capture: Does the work.
        max_concurrent: Completions that run at once, each on a thread of its own; more wait for one to end.
        timeout_s: Longest time from a completion's call to its answer, waiting included; None for no bound.

    Raises:
        ValueError: A bound is not positive.
    """

    def __init__(
        self,
        capture: RolloutTokenCapture,
        *,
        max_concurrent: int = _MAX_CONCURRENT,
        timeout_s: float | None = _TIMEOUT_S,
    ) -> None:
        if max_concurrent < 1 or (timeout_s is not None and timeout_s <= 0):
            raise ValueError(f"bounds must be positive, not max_concurrent {max_concurrent} and timeout_s {timeout_s}")
        self._capture, self._timeout_s, self._max_concurrent = capture, timeout_s, max_concurrent
        self._slots = asyncio.Semaphore(max_concurrent)
        self._lock = threading.Lock()
        self._threads = StagingThreads()
        self._orphans, self._waiting, self._closed = 0, 0, False
        self._quiet = asyncio.Event()

    @property
    def failures(self) -> Mapping[str, int]:
        """How many calls were not captured, by the class of what went wrong (C330); a snapshot."""
        return self._capture.failures

    @property
    def orphans(self) -> int:
        """How many calls were staged after their caller had been told otherwise, or had stopped waiting."""
        return self._orphans

    @property
    def running(self) -> int:
        """How many completions are on threads, those that nobody waits for any more included."""
        return self._threads.busy

    def begin_call(
        self,
        admission: CaptureAdmission,
        *,
        prefix_token_ids: TokenIds | Column[int] | None = None,
        stream: bool = False,
        weight_version: int | None = None,
    ) -> ActiveCall:
        """Begin an admitted call; never blocks. See :meth:`RolloutTokenCapture.begin_call`."""
        return self._capture.begin_call(
            admission, prefix_token_ids=prefix_token_ids, stream=stream, weight_version=weight_version
        )

    def refuse(self, admission: CaptureAdmission, *, reason: str) -> CommitCoords:
        """Return the coordinates of a call that was never begun. See :meth:`RolloutTokenCapture.refuse`."""
        return self._capture.refuse(admission, reason=reason)

    async def complete_call(
        self,
        call: ActiveCall,
        *,
        prompt_token_ids: TokenIds | Column[int],
        generated_token_ids: TokenIds | Column[int],
        generated_logprobs: LogProbs | Column[float],
        extras: Mapping[str, Any] | None = None,
        attachments: Mapping[str, Any] | None = None,
    ) -> CommitCoords:
        """Stage a call and return where it is, or that it is not captured.

        As :meth:`RolloutTokenCapture.complete_call`, and not captured as well if it takes too long.

        Raises:
            CaptureError: The call was completed before, or this capture is closed, which leaves the call open.
        """
        tokens = CallTokens(prompt_token_ids, generated_token_ids, generated_logprobs)
        return await self._completed(
            call, lambda: self._capture.finish_call(call, tokens, extras=extras, attachments=attachments)
        )

    async def complete_call_from_response(
        self, call: ActiveCall, payload: Any, *, attachments: Mapping[str, Any] | None = None
    ) -> CommitCoords:
        """Read an engine's answer and stage. See :meth:`RolloutTokenCapture.complete_call_from_response`.

        Raises:
            CaptureError: The call was completed before, or there is no adapter or this capture is closed, which leave
                the call open.
        """
        self._capture.require_adapter()
        return await self._completed(
            call, lambda: self._capture.finish_call_from_response(call, payload, attachments=attachments)
        )

    async def fail_call(self, call: ActiveCall, *, reason: str) -> CommitCoords:
        """Give a call up; never waits. See :meth:`RolloutTokenCapture.fail_call`."""
        return self._capture.fail_call(call, reason=reason)

    async def aclose(self, timeout_s: float | None = None) -> int:
        """Take no more completions and wait for those that have begun; can be called again.

        Args:
            timeout_s: Longest wait; None for no bound.

        Returns:
            How many still run: threads of sinks that hang. They do not keep the process from ending.
        """
        self._closed = True
        began = time.monotonic()
        if self._waiting:
            self._quiet.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._quiet.wait()
        left = None if timeout_s is None else max(began + timeout_s - time.monotonic(), 0)
        return await asyncio.to_thread(self._threads.close, left)

    async def _completed(self, call: ActiveCall, work: Callable[[], CommitCoords]) -> CommitCoords:
        if self._closed:
            raise CaptureError(
                f"rollout {call.rollout_id}: call {call.model_call_id} cannot be staged: capture is closed"
            )
        call.claim()  # here and not on the thread, so that nobody else completes a call whose deadline has passed
        self._waiting += 1
        try:
            return await self._claimed(call, work)
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._quiet.set()

    async def _claimed(self, call: ActiveCall, work: Callable[[], CommitCoords]) -> CommitCoords:
        loop = asyncio.get_running_loop()
        deadline = None if self._timeout_s is None else loop.time() + self._timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                await self._slots.acquire()
        except TimeoutError:
            waited = f"{self._max_concurrent} other calls were being staged for {self._timeout_s:g} s"
            return self._capture.fail_claimed(call, "deadline", waited)
        except asyncio.CancelledError:
            self._given_up(call)
            raise
        try:
            future = self._start(loop, work)
        except RuntimeError as error:
            self._slots.release()
            return self._capture.fail_claimed(call, "unexpected", f"there is no thread to stage it: {error}")
        return await self._answer(call, future, deadline)

    async def _answer(self, call: ActiveCall, future: Future[CommitCoords], deadline: float | None) -> CommitCoords:
        """Wait for a thread; its future tells who was first, the result or the deadline."""
        waited_for = asyncio.wrap_future(future)
        waited_for.add_done_callback(_seen)
        left = None if deadline is None else max(deadline - asyncio.get_running_loop().time(), 0)
        try:
            await asyncio.wait({waited_for}, timeout=left)
        except asyncio.CancelledError:
            if not future.cancel():
                self._late(future)
            self._given_up(call)
            raise
        if future.cancel():
            return self._capture.fail_claimed(call, "deadline", f"it was not staged within {self._timeout_s:g} s")
        return future.result()

    def _start(self, loop: asyncio.AbstractEventLoop, work: Callable[[], CommitCoords]) -> Future[CommitCoords]:
        future: Future[CommitCoords] = Future()
        self._threads.run(lambda: self._work(work, future), lambda: self._release(loop))
        return future

    def _work(self, work: Callable[[], CommitCoords], future: Future[CommitCoords]) -> None:
        try:
            coordinates = work()
        except BaseException as error:  # noqa: BLE001 - raised again where the completion is awaited
            self._deliver_error(future, error)
        else:
            self._deliver(future, coordinates)

    def _release(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.call_soon_threadsafe(self._slots.release)
        except RuntimeError:
            _log.debug("the event loop was closed before a sink had answered")

    def _deliver(self, future: Future[CommitCoords], coordinates: CommitCoords) -> None:
        try:
            future.set_result(coordinates)
        except InvalidStateError:
            self._late_coordinates(coordinates)

    def _deliver_error(self, future: Future[CommitCoords], error: BaseException) -> None:
        try:
            future.set_exception(error)
        except InvalidStateError:
            _log.error("a completion that nobody waits for any more raised %s: %s", type(error).__name__, error)

    def _late(self, future: Future[CommitCoords]) -> None:
        if future.exception() is None:
            self._late_coordinates(future.result())

    def _late_coordinates(self, coordinates: CommitCoords) -> None:
        if coordinates.disposition != "staged":
            return
        with self._lock:
            self._orphans += 1
        _log.warning(
            "rollout %s: call %s was staged as %s after its caller had stopped waiting; nothing refers to it",
            coordinates.rollout_id,
            coordinates.model_call_id,
            coordinates.staging_key,
        )

    def _given_up(self, call: ActiveCall) -> None:
        self._capture.fail_claimed(call, "failed_by_caller", "whoever waited for its coordinates was cancelled")


def _seen(future: asyncio.Future[CommitCoords]) -> None:
    """Say that an error was seen: whoever waited has it from the thread's own future."""
    if not future.cancelled():
        future.exception()
