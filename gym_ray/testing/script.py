"""What a scripted engine or upstream answers, and when: for tests only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

from gym_ray.token_id_capture.exact_tokens import TokenOutcome

__all__ = ["JSON", "SSE", "ScriptedAnswer", "ScriptedCutError"]

JSON = "application/json"
SSE = "text/event-stream; charset=utf-8"


class ScriptedCutError(Exception):
    """Ends a scripted answer in the middle, as a dying process would."""


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """One answer, chunk by chunk.

    Attributes:
        chunks: Body pieces, each sent as one.
        status: HTTP status.
        content_type: Value of the content-type header.
        headers: Further headers.
        start_gate: Status and headers wait for this event.
        gates: Chunk ``i`` waits for ``gates[i]``; ``gates[len(chunks)]`` delays the end.
        cut: The connection dies after the last chunk instead of ending.
        tokens: What the engine says about its tokens when it is asked.
    """

    chunks: Sequence[bytes]
    status: int = 200
    content_type: str = JSON
    headers: Sequence[tuple[str, str]] = ()
    start_gate: asyncio.Event | None = None
    gates: Mapping[int, asyncio.Event] = field(default_factory=dict)
    cut: bool = False
    tokens: TokenOutcome | None = None

    @property
    def body(self) -> bytes:
        """All chunks as one."""
        return b"".join(self.chunks)

    @property
    def all_headers(self) -> list[tuple[str, str]]:
        """The content type and the further headers."""
        return [("content-type", self.content_type), *self.headers]

    async def started(self) -> None:
        """Wait for the start gate."""
        if self.start_gate is not None:
            await self.start_gate.wait()

    async def play(self) -> AsyncIterator[bytes]:
        """Yield the chunks as their gates open.

        Raises:
            ScriptedCutError: The script cuts the answer.
        """
        for index, chunk in enumerate(self.chunks):
            if index in self.gates:
                await self.gates[index].wait()
            yield chunk
        if len(self.chunks) in self.gates:
            await self.gates[len(self.chunks)].wait()
        if self.cut:
            raise ScriptedCutError("scripted cut")
