"""Writers of an object store whose answers a test decides: they live, fall silent, come back, sign off.

They keep the layout of :mod:`gym_ray.model_call_capture.segments.layout`; no process and no port is behind them.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from typing import Any

import httpx

from gym_ray import exact_json
from gym_ray.model_call_capture.registry import RegisteredWriter, encode_writer, writer_name
from gym_ray.model_call_capture.segments.layout import encode_segment, mark_name, read_index, segment_name
from gym_ray.storage.store import SegmentStore

__all__ = ["ScriptedWriter", "WriterWorld"]


@dataclass(slots=True)
class WriterWorld:
    """A place with writers, and the network to them.

    Attributes:
        store: Where the segments are.
        own: The store beside it.
        writers: The writers by id, registered or not.
        asked: Ids of the writers that were asked, in order.
    """

    store: SegmentStore
    own: SegmentStore
    writers: dict[str, ScriptedWriter] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def writer(self, name: str, *, started_at: float = 1.0) -> ScriptedWriter:
        """Start and register a writer."""
        made = ScriptedWriter(self, f"{name}-{uuid.uuid4().hex[:6]}")
        self.writers[made.writer_id] = made
        registered = RegisteredWriter(
            made.writer_id, name, None, f"http://{made.writer_id}", "token", "here", 1, started_at=started_at
        )
        self.own.create(writer_name(made.writer_id), encode_writer(registered))
        return made

    def client(self) -> httpx.AsyncClient:
        """Return a client whose requests reach the writers that answer."""
        return httpx.AsyncClient(transport=httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        writer = self.writers[request.url.host]
        self.asked.append(writer.writer_id)
        if not writer.answers:
            raise httpx.ConnectError("refused", request=request)
        return httpx.Response(200, content=exact_json.dumps(writer.answer(json.loads(request.content))))


@dataclass(slots=True)
class ScriptedWriter:
    """One writer.

    Attributes:
        world: Where it is.
        writer_id: Its id.
        answers: Whether it can be reached.
        seq: Number of its last segment.
        calls: What it remembers: rollout to ``[call id, segment, offset, length]``.
        open: Open calls by rollout.
        more: What every answer says besides.
    """

    world: WriterWorld
    writer_id: str
    answers: bool = True
    seq: int = 0
    calls: dict[str, list[list[Any]]] = field(default_factory=dict)
    open: dict[str, list[str]] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)

    def record(self, *records: tuple[str, dict[str, Any]]) -> str:
        """Publish one segment of ``(rollout id, exchange)``, and return its name."""
        self.seq += 1
        name = segment_name(self.writer_id, self.seq)
        lines = [
            (rollout_id, str(exchange["model_call_id"]), exact_json.dumps(exchange) + b"\n")
            for rollout_id, exchange in records
        ]
        data = encode_segment(self.writer_id, self.seq, lines)
        self.world.store.create(name, data)
        index = read_index(data, len(data), name=name)
        for record in getattr(index, "records"):  # noqa: B009 - all of the data is at hand
            self.calls.setdefault(record.rollout_id, []).append([record.call_id, name, record.offset, record.length])
        return name

    def mark(self, rollout_id: str) -> None:
        """Mark a rollout as having lost a record."""
        self.world.store.publish(mark_name(rollout_id), b"{}\n")

    def sign_off(self) -> None:
        """End in order."""
        self.answers = False
        self.world.own.delete(writer_name(self.writer_id))

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Answer a question as a model server does."""
        for rollout_id in asked.get("forget", ()):
            self.calls.pop(rollout_id, None)
        rollouts = {
            rollout_id: {
                "recorded": self.calls.get(rollout_id, []),
                "open": self.open.get(rollout_id, []),
                "incomplete": False,
            }
            for rollout_id in asked["rollout_ids"]
        }
        return {"writer_id": self.writer_id, "rollouts": rollouts, **self.more}
