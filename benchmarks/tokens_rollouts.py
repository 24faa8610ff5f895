"""Rollouts for the benchmark ``tokens``, captured through the code that servers run.

They are long tool-using conversations in the chat dialect: a turn adds a tool call and its result, 500 tokens, of which
the policy samples a share. Syncs are left out where the storage layer meets the operating system; every
other system call is made.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from gym_ray.storage.calls import SyncOutcome
from gym_ray.storage.local_calls import LocalFileCalls
from gym_ray.token_id_capture.call_capture import CallCapture, TokenCapture
from gym_ray.token_id_capture.exact_tokens import ExactTokens
from gym_ray.token_id_capture.lineage import FileLineageResolver
from gym_ray.token_id_capture.records import ParentResolutionStatus, TokenEntry
from gym_ray.token_id_capture.request_items import request_items
from gym_ray.token_id_capture.store import TokenCaptureStore
from gym_ray.token_id_capture.token_arrays import pack_log_probs, pack_token_ids

TOKENS_A_TURN, SAMPLED_A_TURN = 500, 50
VOCABULARY = 150_000
WORDS = ("the ", "file ", "has ", "lines ", "and ", 'quotes" ', "x = 1\n", "na\u00efve ")
TOOLS = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}] * 8


@dataclass(frozen=True)
class Kind:
    """What the turns of a rollout are like.

    Attributes:
        sampled: Tokens of a turn that the policy samples.
        wide: Its log probabilities need float64.
    """

    sampled: int = SAMPLED_A_TURN
    wide: bool = False

    @property
    def name(self) -> str:
        """Share of sampled tokens in percent, and bits of a log probability."""
        return f"{100 * self.sampled // TOKENS_A_TURN}-{64 if self.wide else 32}"

    def rollout_id(self, turns: int, number: int) -> str:
        """Return the id of one of its rollouts."""
        return f"k{self.name}-t{turns}-{number}"


USUAL = Kind()
KINDS = {kind.name: kind for kind in (USUAL, Kind(wide=True), Kind(250), Kind(250, wide=True))}


class UnsyncedCalls(LocalFileCalls):
    """Every call but the syncs.

    Attributes:
        written: Bytes that were written.
    """

    written = 0

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """Write once, and count."""
        taken = super().write(fd, data)
        self.written += taken
        return taken

    def write_at(self, fd: int, data: bytes, offset: int) -> int:
        """Write at an offset, and count."""
        taken = super().write_at(fd, data, offset)
        self.written += taken
        return taken

    def sync_data(self, fd: int) -> None:
        """Sync nothing."""

    def sync(self, fd: int) -> None:
        """Sync nothing."""

    def sync_all(self, fds: Sequence[int], tell: Callable[[list[SyncOutcome]], None]) -> None:
        """Tell that all is well."""
        tell([(index, None) for index in range(len(fds))])


class Conversation:
    """One rollout's turns: what is asked, what is answered, and the exact tokens of both."""

    def __init__(self, rollout_id: str, turns: int, kind: Kind = USUAL) -> None:
        random = np.random.default_rng(7)
        self.rollout_id, self.turns, self._sampled = rollout_id, turns, kind.sampled
        self._ids = random.integers(0, VOCABULARY, turns * TOKENS_A_TURN, dtype=np.uint32)
        self._log_probs = -random.random(turns * kind.sampled, dtype=np.float64 if kind.wide else np.float32)
        text = [WORDS[place * 5 % len(WORDS)] for place in range(TOKENS_A_TURN)]
        self._result, self._said = "".join(text), "".join(text[: kind.sampled])

    def messages(self, turn: int) -> list[dict[str, Any]]:
        """Return the messages of a request, the first turn being 1."""
        messages = [{"role": "system", "content": self._result}, {"role": "user", "content": "Begin."}]
        for past in range(1, turn):
            content = f"{past}: {self._result}"
            messages += [self.answer(past), {"role": "tool", "tool_call_id": f"call_{past}", "content": content}]
        return messages

    def body(self, turn: int) -> bytes:
        """Return a request as it arrives."""
        return orjson.dumps({"model": "m", "messages": self.messages(turn), "tools": TOOLS})

    def answer(self, turn: int) -> dict[str, Any]:
        """Return the message that answers a request."""
        arguments = json.dumps({"path": f"src/{turn}.py", "from": turn})
        call = {"id": f"call_{turn}", "type": "function", "function": {"name": "read", "arguments": arguments}}
        return {"role": "assistant", "content": f"{turn}: {self._said}", "tool_calls": [call]}

    def response(self, turn: int) -> dict[str, Any]:
        """Return the whole answer."""
        choice = {"index": 0, "message": self.answer(turn), "finish_reason": "tool_calls"}
        return {"id": f"chatcmpl-{turn}", "object": "chat.completion", "model": "m", "choices": [choice]}

    def tokens(self, turn: int) -> ExactTokens:
        """Return what the engine consumed and sampled."""
        end, sampled = turn * TOKENS_A_TURN, self._sampled
        prompt, generation = self._ids[: end - sampled], self._ids[end - sampled : end]
        log_probs = pack_log_probs(self._log_probs[(turn - 1) * sampled : turn * sampled])
        return ExactTokens(pack_token_ids(prompt), pack_token_ids(generation), log_probs, ended_by="eos")


class Server:
    """What a model server holds, over one directory."""

    def __init__(self, directory: Path) -> None:
        self.calls = UnsyncedCalls()
        self.store = TokenCaptureStore(directory, calls=self.calls)
        self.capture = TokenCapture(self.store, FileLineageResolver(self.store))

    async def resolve(self, rollout_id: str, items: Sequence[object], expected: str) -> tuple[CallCapture, float]:
        """Look a parent up; return the call and the processor seconds it took."""
        call = self.capture.begin(rollout_id, uuid.uuid4().hex)
        begun = time.process_time()
        await call.resolve(items)
        took = time.process_time() - begun
        found = call.resolution
        if found is None or found.status != expected:
            raise SystemExit(f"{rollout_id}: the parent was not {expected}: {found}")
        return call, took

    async def run(self, conversation: Conversation, turns: int, timed: dict[int, list[float]] | None = None) -> None:
        """Capture a conversation's turns, and keep the seconds that resolving some of them took."""
        for turn in range(1, turns + 1):
            items = request_items(orjson.loads(conversation.body(turn)))
            assert items is not None
            status = ParentResolutionStatus.RESOLVED if turn > 1 else ParentResolutionStatus.ROOT
            call, took = await self.resolve(conversation.rollout_id, items, status)
            if timed is not None and turn in timed:
                timed[turn].append(took)
            await call.intend()
            await call.commit(conversation.response(turn), conversation.tokens(turn))
        if self.store.is_incomplete(conversation.rollout_id):
            raise SystemExit(f"{conversation.rollout_id}: calls were lost; the figures would be worthless")


async def served(directory: Path, work: Callable[[Server], Awaitable[None]]) -> None:
    """Do ``work`` with a server, and close it."""
    server = Server(directory)
    try:
        await work(server)
    finally:
        await server.capture.aclose()


def entry_of(rollout_id: str, call: int) -> TokenEntry:
    """A delta record as a server makes it, of equal size for every call below a million."""
    random = np.random.default_rng(call)
    text = "the file has lines " * 8
    return TokenEntry(
        rollout_id=rollout_id,
        model_call_id=uuid.uuid4().hex,
        model="m",
        prompt_token_ids=random.integers(100_000, VOCABULARY, TOKENS_A_TURN - SAMPLED_A_TURN).tolist(),
        generation_token_ids=random.integers(100_000, VOCABULARY, SAMPLED_A_TURN).tolist(),
        generation_log_probs=(-random.integers(10**5, 10**6, SAMPLED_A_TURN) / 2.0**20).tolist(),
        output_items=[{"type": "message", "role": "assistant", "content": f"{call:06} {text}"}],
        token_item_index=0,
        response_id=f"chatcmpl-{call:06}",
        created_at=1_790_000_000.5,
        parent_call_id=uuid.uuid4().hex,
        parent_resolution=ParentResolutionStatus.RESOLVED,
        cum_len=1_000_000 + call,
        digest=uuid.uuid4().hex * 2,
        prompt_is_delta=True,
    )
