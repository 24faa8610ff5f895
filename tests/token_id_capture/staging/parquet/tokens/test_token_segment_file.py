"""Damage to a segment is always said: no byte of it can hide a record or an event, or change one."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from gym_ray.storage.opening import open_store
from gym_ray.testing.token_source import call_entry
from gym_ray.token_id_capture.protocols import CaptureProblem
from gym_ray.token_id_capture.staging.parquet import ParquetTokenSink
from gym_ray.token_id_capture.staging.parquet.tokens.token_evidence import read_rows
from gym_ray.token_id_capture.staging.parquet.tokens.token_segment_file import TokenSegmentFile
from gym_ray.token_id_capture.staging.parquet.tokens.token_segments import TokenSegments

ROLLOUT = "3-1"
ENTRY = call_entry("c0", [1, 2], [3])
MARK = CaptureProblem("usage_missing", "c1", "why")


async def written() -> tuple[str, dict[str, str]]:
    """Return the URL of a store with a record and an event, and the segment of each kind."""
    url = f"memory://{secrets.token_hex(6)}"
    sink = ParquetTokenSink(url)
    await asyncio.gather(sink.put(ENTRY), sink.put(call_entry("d0", [4], [5], rollout_id="4-1")))
    await sink.end_call(ROLLOUT, "c1", "untrainable", "usage_missing: why")
    await sink.close()
    names = [name for name in open_store(url).list() if name.endswith(".parquet")]
    return url, {name.split(".")[-2]: name for name in names}


@pytest.mark.parametrize("kind", ["tokens", "events"])
async def test_no_flipped_byte_goes_unsaid(kind: str) -> None:
    url, segments = await written()
    store, name = open_store(url), segments[kind]
    data = store.read(name)
    harmless = 0
    for at in range(secrets.randbelow(9), len(data), 9):
        store.publish(name, data[:at] + bytes([data[at] ^ 0x11]) + data[at + 1 :])
        index = TokenSegments(store, "default", trust_listings=True)
        entries, problems = read_rows(index, ROLLOUT).snapshot()
        index.close()
        is_whole = [entry.entry().model_dump() for entry in entries] == [ENTRY.model_dump()] and problems == [MARK]
        assert is_whole or any(name in problem.detail for problem in problems), at
        harmless += is_whole
    assert harmless < len(data) / 9


@pytest.mark.parametrize("cut", [1, 7, 8, 9, 500, 2_000])
async def test_a_file_that_is_cut_is_named(cut: int) -> None:
    url, segments = await written()
    store, name = open_store(url), segments["tokens"]
    store.publish(name, store.read(name)[:-cut])
    with pytest.raises(ValueError, match=name):
        TokenSegmentFile(store, name, "tokens")


async def test_a_file_of_another_kind_is_named() -> None:
    url, segments = await written()
    store = open_store(url)
    with pytest.raises(ValueError, match="holds rows of kind events, not tokens"):
        TokenSegmentFile(store, segments["events"], "tokens")
    store.publish(segments["tokens"], b"PAR1")
    with pytest.raises(ValueError, match="truncated"):
        TokenSegmentFile(store, segments["tokens"], "tokens")
