"""The measurements of the benchmark ``staging``, each in a process of its own, through the code that workers run."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import json
import os
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measuring import memory_bytes
from gym_ray.storage.posix import PosixStore
from gym_ray.token_id_capture.staging.capture import RolloutTokenCapture
from gym_ray.token_id_capture.staging.constants import NO_EXTRAS_DIGEST
from gym_ray.token_id_capture.staging.digests import compute_chain_hash, compute_prefix_hash
from gym_ray.token_id_capture.staging.ledger_records import CallRecord, RolloutReceipt
from gym_ray.token_id_capture.staging.memory_sink import MemoryStaging
from gym_ray.token_id_capture.staging.parquet import ParquetStagingSink, ParquetStagingSource
from gym_ray.token_id_capture.staging.parquet.segments.schema import CALLS_PER_ROW_GROUP, CALLS_SCHEMA, writer_options
from gym_ray.token_id_capture.staging.records import CaptureAdmission, CommitCoords, StagedCallRecord, StageResult
from gym_ray.token_id_capture.staging.verify import verify_and_linearize

MIB = 1024 * 1024
VOCABULARY = 150_000
CALL_TOKENS, CALL_GENERATED = 2000, 500
NEW_TOKENS = 500
FEW_SINGLE_CALLS = 96


class NullSink:
    """Says that everything is durable, and keeps the records if asked to."""

    def __init__(self, *, keep: bool = False) -> None:
        self.records: list[StagedCallRecord] = []
        self._keep = keep

    def stage(self, record: StagedCallRecord, *, attachments: Mapping[str, Any] | None = None) -> StageResult:
        """Keep nothing durably."""
        del attachments
        if self._keep:
            self.records.append(record)
        return StageResult(ok=True, staging_key="somewhere")


def give_back() -> None:
    """Give memory that nothing uses back to the kernel, so that it is not taken for what waits."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def forget_peak() -> None:
    """Let ``VmHWM`` begin anew."""
    Path("/proc/self/clear_refs").write_text("5")


def least_in_turns(works: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Return the least processor time of each of several works, done in turns."""
    best = [float("inf")] * len(works)
    for _ in range(rounds):
        for index, work in enumerate(works):
            begun = time.process_time()
            work()
            best[index] = min(best[index], time.process_time() - begun)
    return best


def tokens_of(seed: int, count: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, count, dtype=np.uint32)


def log_probs_of(seed: int, count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return -np.random.default_rng(seed).random(count, dtype=np.float32)


def text_admission(call_id: str, rollout_id: str = "0-0") -> CaptureAdmission:
    return CaptureAdmission(rollout_id=rollout_id, model_call_id=call_id, mode="text")


def hashed_bytes(delta: int, cumulative: int) -> bytes:
    """Return as many bytes as the three digests of a call hash, but for their few bytes of names and lengths."""
    return os.urandom(8 * delta + 8 * cumulative + 16 * delta)


def complete_over_sha256(
    rounds: int, admission: CaptureAdmission, prefix: Any, inputs: dict[str, Any], delta: int, cumulative: int
) -> dict[str, float]:
    capture = RolloutTokenCapture(NullSink(), lambda: 1)
    data = hashed_bytes(delta, cumulative)

    def complete() -> None:
        call = capture.begin_call(admission, prefix_token_ids=prefix)
        assert capture.complete_call(call, **inputs).disposition == "staged"

    complete()
    call_s, sha256_s = least_in_turns([complete, lambda: hashlib.sha256(data).hexdigest()], rounds)
    return {"call_s": call_s, "sha256_s": sha256_s, "bytes": float(len(data))}


def probe_complete_arrays(_directory: Path, tokens: int, rounds: int) -> dict[str, float]:
    """A call of arrays, half of them generated."""
    half = tokens // 2
    inputs = {
        "prompt_token_ids": tokens_of(1, half),
        "generated_token_ids": tokens_of(2, half),
        "generated_logprobs": log_probs_of(3, half),
    }
    return complete_over_sha256(rounds, text_admission("c"), None, inputs, tokens, tokens)


def probe_complete_lists(_directory: Path, tokens: int, rounds: int) -> dict[str, float]:
    """The same call from lists, as parsed from JSON."""
    half = tokens // 2
    inputs = {
        "prompt_token_ids": tokens_of(1, half).tolist(),
        "generated_token_ids": tokens_of(2, half).tolist(),
        "generated_logprobs": log_probs_of(3, half).astype(np.float64).tolist(),
    }
    return complete_over_sha256(rounds, text_admission("c"), None, inputs, tokens, tokens)


def probe_complete_child(_directory: Path, tokens: int, rounds: int) -> dict[str, float]:
    """A call with a long prefix and few new tokens."""
    prefix, new = tokens_of(1, tokens), tokens_of(2, NEW_TOKENS)
    half = NEW_TOKENS // 2
    admission = CaptureAdmission(
        rollout_id="0-0",
        model_call_id="c2",
        parent_call_id="c1",
        prev_len=tokens,
        mode="token_in",
        staging_chain=["a key"],
        parent_chain_hash=compute_chain_hash(None, prefix),
    )
    inputs = {
        "prompt_token_ids": np.concatenate([prefix, new[:half]]),
        "generated_token_ids": new[half:],
        "generated_logprobs": log_probs_of(3, NEW_TOKENS - half),
    }
    return complete_over_sha256(rounds, admission, prefix, inputs, NEW_TOKENS, tokens + NEW_TOKENS)


Inputs = dict[str, np.ndarray[Any, Any]]


def inputs_of(calls: int, tokens: int = CALL_TOKENS, generated: int = CALL_GENERATED) -> list[Inputs]:
    """Return what an engine hands over for each call: other tokens for each, so that nothing compresses by itself."""
    return [
        {
            "prompt_token_ids": tokens_of(number, tokens - generated),
            "generated_token_ids": tokens_of(number + calls, generated),
            "generated_logprobs": log_probs_of(number, generated),
        }
        for number in range(calls)
    ]


def stage_call(capture: RolloutTokenCapture, number: int, inputs: Inputs) -> CommitCoords:
    call = capture.begin_call(text_admission(f"call-{number}", f"{number // 8}-0"))
    coords = capture.complete_call(call, **inputs)
    assert coords.disposition == "staged"
    return coords


def meet(pool: ThreadPoolExecutor, threads: int) -> None:
    """Return once all threads of a pool are there, with their stacks."""
    line = threading.Barrier(threads)
    list(pool.map(lambda _: line.wait(), range(threads)))


def stage_from(callers: int, sink: ParquetStagingSink, inputs: Sequence[Inputs]) -> tuple[float, list[str]]:
    """Complete calls from so many threads; return the seconds, and the keys."""
    capture = RolloutTokenCapture(sink, lambda: 1)
    keys = [""] * len(inputs)

    def call(first: int) -> None:
        for number in range(first, len(inputs), callers):
            keys[number] = str(stage_call(capture, number, inputs[number]).staging_key)

    with ThreadPoolExecutor(callers) as pool:
        meet(pool, callers)
        begun = time.perf_counter()
        list(pool.map(call, range(callers)))
        took = time.perf_counter() - begun
    return took, keys


def plain_pyarrow(directory: Path, records: Sequence[StagedCallRecord], batch: int) -> float:
    """Write records as plain pyarrow would: the same schema, codec, row groups, batches and syncs; return seconds."""
    directory.mkdir()
    begun = time.perf_counter()
    for first in range(0, len(records), batch):
        hidden, shown = directory / f".{first}", directory / f"{first}.parquet"
        table = _plain_table(records[first : first + batch])
        pq.write_table(table, hidden, row_group_size=CALLS_PER_ROW_GROUP, **writer_options())
        with hidden.open("rb") as written:
            os.fsync(written.fileno())
        hidden.rename(shown)
        listing = os.open(directory, os.O_RDONLY)
        os.fsync(listing)
        os.close(listing)
    return time.perf_counter() - begun


def _plain_table(records: Sequence[StagedCallRecord]) -> pa.Table:
    def lists(columns: Sequence[np.ndarray[Any, Any]], kind: pa.DataType) -> pa.Array:
        ends = np.cumsum([0, *(column.size for column in columns)], dtype=np.int32)
        return pa.ListArray.from_arrays(ends, pa.array(np.concatenate(columns), kind))

    made: dict[str, Any] = {
        "token_ids": lists([one.token_ids_delta.array.view(np.int32) for one in records], pa.int32()),
        "token_mask": lists([one.token_mask_delta.array for one in records], pa.bool_()),
        "log_probs": lists([one.generation_log_probs_delta.array for one in records], pa.float32()),
        "row_kind": pa.array(["call"] * len(records)),
    }
    for name in ("rollout_id", "model_call_id", "parent_call_id", "mode"):
        made[name] = pa.array([getattr(one, name) for one in records], pa.string())
    for name in ("prev_len", "delta_len", "cum_len", "weight_version"):
        made[name] = pa.array([getattr(one, name) for one in records], pa.uint64())
    for name in ("digest", "extras_digest", "chain_hash", "cumulative_hash"):
        made[name] = pa.array([bytes.fromhex(getattr(one, name)) for one in records], pa.binary(32))
    nothing = {field.name: pa.nulls(len(records), field.type) for field in CALLS_SCHEMA}
    columns = {**nothing, **made}
    return pa.Table.from_arrays([columns[field.name] for field in CALLS_SCHEMA], schema=CALLS_SCHEMA)


def records_of(inputs: Sequence[Inputs]) -> list[StagedCallRecord]:
    sink = NullSink(keep=True)
    capture = RolloutTokenCapture(sink, lambda: 1)
    for number, each in enumerate(inputs):
        stage_call(capture, number, each)
    return sink.records


def probe_stage(directory: Path, callers: int, calls: int) -> dict[str, float]:
    """Many callers at once, plain pyarrow with as many calls a file, and callers one after the other, in turns."""
    inputs = inputs_of(calls)
    with ParquetStagingSink(directory / "warm") as sink:
        stage_from(callers, sink, inputs[:callers])
    few = inputs[:FEW_SINGLE_CALLS]
    took_s: dict[str, list[float]] = {"calls": [], "pyarrow": [], "single": []}
    batches: list[float] = []
    records = records_of(inputs)
    for turn in range(3):
        with ParquetStagingSink(directory / f"many-{turn}") as sink:
            took_s["calls"].append(stage_from(callers, sink, inputs)[0] / calls)
            batches.append(sink.stats().commits.mean_batch)
        batch = max(1, round(batches[-1]))
        took_s["pyarrow"].append(plain_pyarrow(directory / f"plain-{turn}", records, batch) / calls)
        with ParquetStagingSink(directory / f"single-{turn}") as sink:
            took_s["single"].append(stage_from(1, sink, few)[0] / len(few))
    return {
        "calls_per_s": 1 / statistics.median(took_s["calls"]),
        "pyarrow_calls_per_s": 1 / statistics.median(took_s["pyarrow"]),
        "single_calls_per_s": 1 / statistics.median(took_s["single"]),
        "mean_batch": statistics.median(batches),
    }


class HeldStore(PosixStore):
    """Begins no segment before the gate is open."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.gate = threading.Event()

    def stream(self, name: str) -> Any:
        """Wait, then begin a value."""
        self.gate.wait()
        return super().stream(name)


def probe_waiting(directory: Path, tokens: int, calls: int) -> dict[str, float]:
    """What waiting calls take, their records included, and what writing them takes beside."""
    with ParquetStagingSink(directory / "warm") as sink:
        stage_from(8, sink, inputs_of(64))
    each = tokens // calls
    store = HeldStore(directory / "held")
    sink = ParquetStagingSink(store.root, store=store, max_pending_bytes=1 << 40, timeout_s=600)
    with ThreadPoolExecutor(calls) as pool:
        meet(pool, calls)
        give_back()
        before = memory_bytes("VmRSS")
        staged = [pool.submit(sink.stage, record) for record in records_of(inputs_of(calls, each, each // 2))]
        least = each * calls * 9
        while sink.stats().commits.pending_bytes < least:
            time.sleep(0.01)
        give_back()
        held = memory_bytes("VmRSS") - before
        forget_peak()
        store.gate.set()
        assert all(future.result().ok for future in staged)
        peak = memory_bytes("VmHWM") - before
    sink.close()
    total = each * calls
    return {"rss_bytes_per_token": held / total, "commit_rss_bytes": float(peak), "tokens": float(total)}


def probe_fill(directory: Path, callers: int, calls: int) -> dict[str, float]:
    """Fill a store, and note a few keys of its middle."""
    directory.mkdir()
    with ParquetStagingSink(directory / "store") as sink:
        _, keys = stage_from(callers, sink, inputs_of(calls))
    middle = sorted(keys)[calls // 2 : calls // 2 + 8]
    (directory / "keys.json").write_text(json.dumps(middle))
    return {"calls": float(calls)}


class CountingStore(PosixStore):
    """Counts requests and the bytes that they return."""

    requests = 0
    bytes_read = 0

    def _count(self, data: bytes) -> bytes:
        self.requests += 1
        self.bytes_read += len(data)
        return data

    def read(self, name: str) -> bytes:
        """Read and count."""
        return self._count(super().read(name))

    def read_range(self, name: str, start: int, length: int) -> bytes:
        """Read and count."""
        return self._count(super().read_range(name, start, length))

    def read_tail(self, name: str, length: int) -> tuple[bytes, int]:
        """Read and count."""
        data, size = super().read_tail(name, length)
        return self._count(data), size

    def exists(self, name: str) -> bool:
        """Ask and count."""
        self.requests += 1
        return super().exists(name)

    def size(self, name: str) -> int:
        """Ask and count."""
        self.requests += 1
        return super().size(name)

    def list(self, prefix: str = "") -> list[str]:
        """List and count."""
        self.requests += 1
        return super().list(prefix)


def probe_fetch(directory: Path, _size: int, rounds: int) -> dict[str, float]:
    """Fetch one call by a source that knows nothing yet."""
    keys = json.loads((directory / "keys.json").read_text())
    taken, requests, sizes = [], [], []
    for number in range(rounds + 2):
        store = CountingStore(directory / "store")
        begun = time.perf_counter()
        source = ParquetStagingSource(store.root, store=store)
        (snapshot,) = source.fetch([keys[number % len(keys)]])
        taken.append(time.perf_counter() - begun)
        assert len(snapshot.token_ids_delta) == CALL_TOKENS
        requests.append(store.requests)
        sizes.append(store.bytes_read)
    return {
        "fetch_s": statistics.median(taken[2:]),
        "requests": float(max(requests)),
        "bytes": float(max(sizes)),
    }


def probe_attachment(directory: Path, mib: int, _count: int) -> dict[str, float]:
    """One large attachment; what its bytes cost to copy to a synced file is measured beside."""
    media = np.empty(mib * MIB, np.uint8)
    rng = np.random.default_rng(1)
    for first in range(0, media.size, 16 * MIB):
        media[first : first + 16 * MIB] = rng.integers(0, 256, min(16 * MIB, media.size - first), dtype=np.uint8)
    (record,) = records_of(inputs_of(1))
    with ParquetStagingSink(directory / "warm", timeout_s=600) as sink:
        assert sink.stage(record, attachments={"small": media[: 64 * 1024]}).ok
    give_back()
    before = memory_bytes("VmRSS")
    forget_peak()
    with ParquetStagingSink(directory / "store", timeout_s=600, max_pending_bytes=1 << 40) as sink:
        begun = time.perf_counter()
        assert sink.stage(record, attachments={"pixels": media}).ok
        stage_s = time.perf_counter() - begun
    extra = memory_bytes("VmHWM") - before
    begun = time.perf_counter()
    with (directory / "copy").open("wb", buffering=0) as copy:
        for first in range(0, media.size, 16 * MIB):
            copy.write(media[first : first + 16 * MIB].data)
        os.fsync(copy.fileno())
    return {"extra_rss_bytes": float(extra), "stage_s": stage_s, "copy_s": time.perf_counter() - begun}


def probe_verify(_directory: Path, tokens: int, calls: int) -> dict[str, float]:
    """A rollout of one chain."""
    each = tokens // calls
    staging = MemoryStaging()
    capture = RolloutTokenCapture(staging, lambda: 1)
    coords: list[CommitCoords] = []
    sequence = np.empty(0, np.uint32)
    for number in range(calls):
        admission = text_admission("call-0") if not coords else _continued(coords, f"call-{number}")
        call = capture.begin_call(admission, prefix_token_ids=sequence if coords else None)
        prompt, said = np.concatenate([sequence, tokens_of(number, each // 2)]), tokens_of(number, each - each // 2)
        done = capture.complete_call(
            call,
            prompt_token_ids=prompt,
            generated_token_ids=said,
            generated_logprobs=log_probs_of(number, said.size),
        )
        coords.append(done)
        sequence = np.concatenate([prompt, said])
    manifest = [_row(one, number) for number, one in enumerate(coords)]
    receipt = RolloutReceipt(
        rollout_id="0-0",
        terminal_model_call_id=coords[-1].model_call_id,
        terminal_selection="declared",
        manifest=manifest,
    )
    snapshots = staging.fetch([str(one.staging_key) for one in coords])
    assert compute_prefix_hash(sequence) == coords[-1].cumulative_hash
    (verify_s,) = least_in_turns([lambda: verify_and_linearize(receipt, snapshots)], 5)
    return {"verify_s": verify_s}


def _continued(coords: Sequence[CommitCoords], call_id: str) -> CaptureAdmission:
    parent = coords[-1]
    return CaptureAdmission(
        rollout_id="0-0",
        model_call_id=call_id,
        parent_call_id=parent.model_call_id,
        prev_len=parent.cum_len,
        mode="token_in",
        staging_chain=[str(one.staging_key) for one in coords],
        parent_chain_hash=parent.chain_hash,
    )


def _row(coords: CommitCoords, number: int) -> CallRecord:
    facts = coords.model_dump(exclude={"rollout_id", "disposition"})
    assert coords.extras_digest == NO_EXTRAS_DIGEST
    return CallRecord.model_validate(
        {**facts, "mode": "token_in" if coords.parent_call_id else "text", "response_id": f"r{number}"}
    )


PROBES: dict[str, Callable[[Path, int, int], dict[str, float]]] = {
    "complete_arrays": probe_complete_arrays,
    "complete_lists": probe_complete_lists,
    "complete_child": probe_complete_child,
    "stage": probe_stage,
    "waiting": probe_waiting,
    "fill": probe_fill,
    "fetch": probe_fetch,
    "attachment": probe_attachment,
    "verify": probe_verify,
}
