"""Token sinks in memory that keep what they were told, and fail or hang as a test says."""

from __future__ import annotations

import asyncio

from gym_ray.token_id_capture.records import TokenEntry

__all__ = ["NotingTokenSink", "PlainTokenSink"]


class PlainTokenSink:
    """A sink with the methods of the protocol and no other.

    Attributes:
        entries: Records, as they came.
        marks: Rollout and call of each mark.
        closed: How often it was closed.
        failures: Method name to what it raises, after it was told and before it keeps anything.
        hanging: Method names that wait until :attr:`released` is set.
        released: Lets hanging methods go on.
        reached: Set once any method was called.
        asked: Method names in the order of the calls.
    """

    def __init__(self) -> None:
        self.entries: list[TokenEntry] = []
        self.marks: list[tuple[str, str]] = []
        self.closed = 0
        self.failures: dict[str, Exception] = {}
        self.hanging: set[str] = set()
        self.released, self.reached = asyncio.Event(), asyncio.Event()
        self.asked: list[str] = []

    async def put(self, entry: TokenEntry) -> None:
        """Keep a record."""
        await self._asked("put")
        self.entries.append(entry)

    async def mark_incomplete(self, rollout_id: str, model_call_id: str = "") -> None:
        """Keep a mark."""
        await self._asked("mark_incomplete")
        self.marks.append((rollout_id, model_call_id))

    async def close(self) -> None:
        """Count."""
        await self._asked("close")
        self.closed += 1

    async def _asked(self, method: str) -> None:
        self.asked.append(method)
        self.reached.set()
        if method in self.hanging:
            await self.released.wait()
        if method in self.failures:
            raise self.failures[method]


class NotingTokenSink(PlainTokenSink):
    """A sink that also notes calls before they are dispatched, and how those without a record ended.

    Attributes:
        begun: Rollout and call of each noted call.
        ended: Rollout, call, outcome and reason.
    """

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[tuple[str, str]] = []
        self.ended: list[tuple[str, str, str, str]] = []

    async def begin_call(self, rollout_id: str, model_call_id: str) -> None:
        """Keep a note."""
        await self._asked("begin_call")
        self.begun.append((rollout_id, model_call_id))

    async def end_call(self, rollout_id: str, model_call_id: str, outcome: str, reason: str = "") -> None:
        """Keep an outcome."""
        await self._asked("end_call")
        self.ended.append((rollout_id, model_call_id, outcome, reason))

    async def has_evidence(self, rollout_id: str) -> bool:
        """Whether anything was kept of a rollout."""
        kept = [(entry.rollout_id, "") for entry in self.entries] + self.marks + self.begun
        return any(known == rollout_id for known, _ in kept)
