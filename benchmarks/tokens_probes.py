"""The measurements of the benchmark ``tokens``; each runs in a process of its own, through the code that servers run.

Rollouts are long tool-using conversations in the chat dialect: a turn adds a tool call and its result, 500 tokens, of
which the policy samples 50. Syncs are left out at the seam where the storage layer meets the operating system; every
other system call is made.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import statistics
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from gym_ray.storage.calls import SyncOutcome
from gym_ray.storage.local_calls import LocalFileCalls
from gym_ray.token_id_capture.assembly import assemble
from gym_ray.token_id_capture.call_capture import CallCapture, TokenCapture
from gym_ray.token_id_capture.exact_tokens import ExactTokens
from gym_ray.token_id_capture.lineage import FileLineageResolver
from gym_ray.token_id_capture.records import ParentResolutionStatus, TokenEntry
from gym_ray.token_id_capture.request_items import request_items
from gym_ray.token_id_capture.store import TokenCaptureStore
from gym_ray.token_id_capture.token_arrays import digest_packed, encode_packed, pack_log_probs, pack_token_ids

TOKENS_A_TURN, SAMPLED_A_TURN = 500, 50
VOCABULARY = 150_000
COLUMNS = frozenset({"prompt_token_ids", "generation_token_ids", "generation_log_probs"})
MIB = 1 << 20
WORDS = ("the ", "file ", "has ", "lines ", "and ", 'quotes" ', "x = 1\n", "na\u00efve ")
TOOLS = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}] * 8


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

    def __init__(self, rollout_id: str, turns: int, *, tokens_a_turn: int = TOKENS_A_TURN) -> None:
        random = np.random.default_rng(7)
        self.rollout_id, self.turns, self._tokens_a_turn = rollout_id, turns, tokens_a_turn
        self._ids = random.integers(0, VOCABULARY, turns * tokens_a_turn, dtype=np.uint32)
        self._log_probs = -random.random(turns * SAMPLED_A_TURN, dtype=np.float32)
        text = [WORDS[place * 5 % len(WORDS)] for place in range(tokens_a_turn)]
        self._result, self._said = "".join(text), "".join(text[:SAMPLED_A_TURN])

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
        end = turn * self._tokens_a_turn
        prompt, sampled = self._ids[: end - SAMPLED_A_TURN], self._ids[end - SAMPLED_A_TURN : end]
        log_probs = self._log_probs[(turn - 1) * SAMPLED_A_TURN : turn * SAMPLED_A_TURN]
        return ExactTokens(pack_token_ids(prompt), pack_token_ids(sampled), pack_log_probs(log_probs), ended_by="eos")


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


def memory_bytes(field: str) -> int:
    """What the kernel says about this process: ``VmRSS`` or ``VmHWM``."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def least_s(work: Callable[[], object], rounds: int) -> float:
    """Return the least processor time of several runs."""
    best = float("inf")
    for _ in range(rounds):
        begun = time.process_time()
        work()
        best = min(best, time.process_time() - begun)
    return best


def probe_digest(_directory: Path, tokens: int, rounds: int) -> dict[str, float]:
    """The digest of a sequence, and of the very bytes it hashes, in turns."""
    ids = pack_token_ids(np.random.default_rng(1).integers(0, VOCABULARY, tokens, dtype=np.uint32))
    encoded = encode_packed(ids)
    found = {"digest_s": float("inf"), "sha256_s": float("inf"), "bytes": float(len(encoded))}
    for _ in range(rounds):
        found["digest_s"] = min(found["digest_s"], least_s(lambda: digest_packed(ids), 1))
        found["sha256_s"] = min(found["sha256_s"], least_s(lambda: hashlib.sha256(encoded).hexdigest(), 1))
    return found


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


def probe_append(directory: Path, calls: int, samples: int) -> dict[str, float]:
    """Calls of a rollout of ``calls`` calls and tenth calls of others, in turns in one process: begun, then kept."""
    system = UnsyncedCalls()
    store = TokenCaptureStore(directory, calls=system)
    taken: dict[str, list[float]] = {}

    async def call_of(rollout_id: str, number: int, kind: str = "") -> None:
        entry = entry_of(rollout_id, number)
        steps = {
            "begin": lambda: store.begin_call(rollout_id, entry.model_call_id),
            "append": lambda: store.put(entry),
        }
        for name, step in steps.items():
            written, begun = system.written, time.process_time()
            await step()
            if kind:
                taken.setdefault(f"{name}_{kind}_us", []).append((time.process_time() - begun) * 1e6)
                taken.setdefault(f"{name}_{kind}_bytes", []).append(system.written - written)

    async def work() -> None:
        first = calls - samples // 2
        for number in range(first):
            await call_of("long", number)
        for sample in range(samples):
            for number in range(9):
                await call_of(f"short-{sample}", number)
            await call_of(f"short-{sample}", 9, "short")
            await call_of("long", first + sample, "long")
        await store.close()

    asyncio.run(work())
    return {name: statistics.median(values) for name, values in taken.items()}


def probe_resolve(directory: Path, turns: int, rollouts: int) -> dict[str, float]:
    """Resolving an early and the last turn of rollouts that this process serves from their beginning."""
    early = max(turns // 10, 2)
    timed: dict[int, list[float]] = {early: [], turns: []}

    async def work(server: Server) -> None:
        await server.run(Conversation("warm", early), early)
        for number in range(rollouts):
            await server.run(Conversation(f"r-{number}", turns), turns, timed)

    asyncio.run(served(directory, work))
    return {"early_us": min(timed[early]) * 1e6, "late_us": min(timed[turns]) * 1e6}


def probe_write(directory: Path, turns: int, rollouts: int) -> dict[str, float]:
    """Capture rollouts for other probes, and tell what they take on the disk."""

    async def work(server: Server) -> None:
        for number in range(rollouts):
            await server.run(Conversation(f"r{turns}-{number}", turns), turns)

    asyncio.run(served(directory, work))
    size = sum(path.stat().st_size for path in directory.glob(f"r{turns}-*"))
    return {"disk_bytes_per_token": size / (rollouts * turns * TOKENS_A_TURN)}


def probe_cold(directory: Path, turns: int, rollouts: int) -> dict[str, float]:
    """Resolving the turn behind the last in a process that has not seen the rollouts, and parsing its request."""
    bodies = {f"r{turns}-{number}": Conversation("x", turns + 1).body(turns + 1) for number in range(rollouts)}
    parse_s, resolve_s = [], []

    async def work(server: Server) -> None:
        for rollout_id, body in bodies.items():
            items = request_items(orjson.loads(body))
            assert items is not None
            _, took = await server.resolve(rollout_id, items, ParentResolutionStatus.RESOLVED)
            parse_s.append(least_s(lambda body=body: orjson.loads(body), 5))
            resolve_s.append(took)

    asyncio.run(served(directory, work))
    return {
        "parse_us": min(parse_s[1:]) * 1e6,  # the first rollout warms the code
        "resolve_us": min(resolve_s[1:]) * 1e6,
        "request_bytes": float(len(bodies[f"r{turns}-0"])),
    }


def probe_build(directory: Path, turns: int, rollouts: int) -> dict[str, float]:
    """Freeze, build and lay out rollouts, hold all of it, and ask the kernel how much memory that is."""
    spent = {"freeze_s": 0.0, "build_s": 0.0, "row_s": 0.0}
    held: list[object] = []
    content = 0

    async def work(store: TokenCaptureStore) -> None:
        nonlocal content
        await one(store, 0)  # warm: code is loaded, pools of memory exist
        for name in spent:
            spent[name] = 0.0
        held.clear()
        content = 0
        gc.collect()
        base["rss"] = memory_bytes("VmRSS")
        for number in range(1, rollouts):
            await one(store, number)

    async def one(store: TokenCaptureStore, number: int) -> None:
        nonlocal content
        begun = time.process_time()
        snapshot = await store.freeze(f"r{turns}-{number}")
        frozen = time.process_time()
        assembled = assemble(snapshot.rollout_id, snapshot.packed, problems=snapshot.problems)
        built = time.process_time()
        rows = assembled.rows()
        spent["row_s"] += time.process_time() - built
        spent["build_s"] += built - frozen
        spent["freeze_s"] += frozen - begun
        if assembled.mask_sample or rows[0].token_ids.size != turns * TOKENS_A_TURN:
            raise SystemExit(f"{snapshot.rollout_id} was not built whole: {assembled.reasons}")
        content += sum(len(orjson.dumps(entry.rest)) for entry in snapshot.packed)
        held.append((snapshot, assembled, rows))

    async def with_store() -> None:
        store = TokenCaptureStore(directory, calls=UnsyncedCalls())
        try:
            await work(store)
        finally:
            await store.close()

    base: dict[str, int] = {}
    asyncio.run(with_store())
    gc.collect()
    count = rollouts - 1
    tokens = count * turns * TOKENS_A_TURN
    return {name: seconds / count for name, seconds in spent.items()} | {
        "rss_bytes_per_token": (memory_bytes("VmRSS") - base["rss"]) / tokens,
        "peak_bytes_per_token": (memory_bytes("VmHWM") - base["rss"]) / tokens,
        "content_bytes_per_token": content / tokens,
        "tokens": float(turns * TOKENS_A_TURN),
    }


def probe_content(directory: Path, turns: int, rollouts: int) -> dict[str, float]:
    """Parse the same records and hold everything but their three token columns: what a build holds besides tokens."""
    held: list[object] = []

    def hold(number: int) -> None:
        with (directory / f"r{turns}-{number}.tokens.jsonl").open("rb") as file:
            for line in file:
                record = orjson.loads(line)
                held.append({name: value for name, value in record.items() if name not in COLUMNS})

    hold(0)
    held.clear()
    gc.collect()
    base = memory_bytes("VmRSS")
    for number in range(1, rollouts):
        hold(number)
    gc.collect()
    tokens = (rollouts - 1) * turns * TOKENS_A_TURN
    return {"content_rss_bytes_per_token": (memory_bytes("VmRSS") - base) / tokens}


PROBES: dict[str, Callable[[Path, int, int], dict[str, float]]] = {
    "append": probe_append,
    "build": probe_build,
    "cold": probe_cold,
    "content": probe_content,
    "digest": probe_digest,
    "resolve": probe_resolve,
    "write": probe_write,
}
