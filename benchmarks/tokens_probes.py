"""The measurements of the benchmark ``tokens``, each in a process of its own, through the code that servers run."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import orjson

from benchmarks.measuring import memory_bytes
from benchmarks.tokens_rollouts import (
    KINDS,
    TOKENS_A_TURN,
    USUAL,
    VOCABULARY,
    Conversation,
    Kind,
    Server,
    UnsyncedCalls,
    entry_of,
    served,
)
from gym_ray.token_id_capture.assembly import assemble
from gym_ray.token_id_capture.records import TOKEN_ARRAYS, ParentResolutionStatus
from gym_ray.token_id_capture.request_items import request_items
from gym_ray.token_id_capture.store import TokenCaptureStore
from gym_ray.token_id_capture.token_arrays import digest_packed, encode_packed, pack_token_ids

WINDOWS = 10


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
    ratios = {f"{name}_ratio": window_ratio(taken, name) for name in ("append", "begin")}
    return {name: statistics.median(values) for name, values in taken.items()} | ratios


def window_ratio(taken: dict[str, list[float]], name: str) -> float:
    """Return the median, over windows of time, of the late calls' median over the early calls' of the same window."""
    late, early = taken[f"{name}_long_us"], taken[f"{name}_short_us"]
    size = -(-len(late) // WINDOWS)
    windows = [(late[at : at + size], early[at : at + size]) for at in range(0, len(late), size)]
    return statistics.median(statistics.median(one) / statistics.median(other) for one, other in windows)


def probe_resolve(directory: Path, turns: int, rollouts: int) -> dict[str, float]:
    """Resolving an early and the last turn of rollouts that this process serves from their beginning."""
    early = max(turns // 10, 2)
    timed: dict[int, list[float]] = {early: [], turns: []}

    async def work(server: Server) -> None:
        await server.run(Conversation("warm", early), early)
        for number in range(rollouts):
            await server.run(Conversation(f"r-{number}", turns), turns, timed)

    asyncio.run(served(directory, work))
    ratios = [late / before for late, before in zip(timed[turns], timed[early], strict=True)]
    return {
        "early_us": min(timed[early]) * 1e6,
        "late_us": min(timed[turns]) * 1e6,
        "ratio": statistics.median(ratios),
    }


def probe_write(directory: Path, turns: int, rollouts: int, kind: Kind = USUAL) -> dict[str, float]:
    """Capture rollouts for other probes, and tell what they take on the disk."""

    async def work(server: Server) -> None:
        for number in range(rollouts):
            await server.run(Conversation(kind.rollout_id(turns, number), turns, kind), turns)

    asyncio.run(served(directory, work))
    size = sum(path.stat().st_size for path in directory.glob(f"k{kind.name}-t{turns}-*"))
    return {"disk_bytes_per_token": size / (rollouts * turns * TOKENS_A_TURN)}


def probe_cold(directory: Path, turns: int, rollouts: int) -> dict[str, float]:
    """Resolving the turn behind the last in a process that has not seen the rollouts, and parsing its request.

    For comparison: parsing the lines of its file, which any reader of it has to do, by the fastest parser alone.
    """
    names = [USUAL.rollout_id(turns, number) for number in range(rollouts)]
    body = Conversation("x", turns + 1).body(turns + 1)
    parse_s, lines_s, resolve_s = [], [], []

    async def work(server: Server) -> None:
        for rollout_id in names:
            items = request_items(orjson.loads(body))
            _, took = await server.resolve(rollout_id, items, ParentResolutionStatus.RESOLVED)
            lines = (directory / f"{rollout_id}.tokens.jsonl").read_bytes().splitlines()
            parse_s.append(least_s(lambda: orjson.loads(body), 5))
            lines_s.append(least_s(lambda lines=lines: [orjson.loads(line) for line in lines], 2))
            resolve_s.append(took)

    asyncio.run(served(directory, work))
    found = {"parse": parse_s[1:], "lines": lines_s[1:], "resolve": resolve_s[1:]}  # the first rollout warms the code
    least = {f"{name}_us": min(values) * 1e6 for name, values in found.items()}
    return least | {"ratio": statistics.median(resolve_s[1:]) / min(parse_s), "request_bytes": float(len(body))}


def probe_build(directory: Path, turns: int, rollouts: int, kind: Kind = USUAL) -> dict[str, float]:
    """Freeze, build and lay out rollouts, hold all of it, and ask the kernel how much memory that is."""
    spent = {"freeze_s": 0.0, "build_s": 0.0, "row_s": 0.0}
    held: list[object] = []

    async def work(store: TokenCaptureStore) -> None:
        await one(store, 0)  # warm: code is loaded, pools of memory exist
        for name in spent:
            spent[name] = 0.0
        held.clear()
        gc.collect()
        base["rss"] = memory_bytes("VmRSS")
        for number in range(1, rollouts):
            await one(store, number)

    async def one(store: TokenCaptureStore, number: int) -> None:
        begun = time.process_time()
        snapshot = await store.freeze(kind.rollout_id(turns, number))
        frozen = time.process_time()
        assembled = assemble(snapshot.rollout_id, snapshot.packed, problems=snapshot.problems)
        built = time.process_time()
        rows = assembled.rows()
        spent["row_s"] += time.process_time() - built
        spent["build_s"] += built - frozen
        spent["freeze_s"] += frozen - begun
        if assembled.mask_sample or [row.token_ids.size for row in rows] != [turns * TOKENS_A_TURN]:
            raise SystemExit(f"{snapshot.rollout_id} was not built whole: {assembled.reasons}")
        if (rows[0].policy_log_probs.itemsize == 8) != kind.wide:
            raise SystemExit(f"{snapshot.rollout_id} holds log probs of {rows[0].policy_log_probs.dtype}")
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
        "tokens": float(turns * TOKENS_A_TURN),
    }


def probe_content(directory: Path, turns: int, rollouts: int, kind: Kind = USUAL) -> dict[str, float]:
    """Parse the same records and hold everything but their three token columns: what a build holds besides tokens."""
    held: list[object] = []

    def hold(number: int) -> None:
        with (directory / f"{kind.rollout_id(turns, number)}.tokens.jsonl").open("rb") as file:
            for line in file:
                record = orjson.loads(line)
                held.append({name: value for name, value in record.items() if name not in TOKEN_ARRAYS})

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
    "cold": probe_cold,
    "digest": probe_digest,
    "resolve": probe_resolve,
    **{
        f"{name}@{kind.name}": partial(probe, kind=kind)
        for name, probe in (("build", probe_build), ("content", probe_content), ("write", probe_write))
        for kind in KINDS.values()
    },
}
