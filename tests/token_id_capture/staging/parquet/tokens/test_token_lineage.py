"""The resolver over segments: all acknowledged records of every process, read once, and nothing that was cleared."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gym_ray.storage.opening import open_store
from gym_ray.testing.token_source import call_entry
from gym_ray.testing.watched_store import WatchedStore
from gym_ray.token_id_capture.lineage import LineageResolution, stamp_continuation
from gym_ray.token_id_capture.records import ParentResolutionStatus, TokenEntry
from gym_ray.token_id_capture.staging.parquet import ParquetLineageResolver, ParquetTokenSink, ParquetTokenSource

ROLLOUT = "3-1"
QUESTION = {"role": "user", "content": "q0"}


class Backend:
    """A store in memory, and the clients that a test opened over it."""

    def __init__(self) -> None:
        self.url = f"memory://{secrets.token_hex(6)}"
        self.store = WatchedStore(open_store(self.url))
        self.sink = ParquetTokenSink(self.url, store=self.store)
        self.source = ParquetTokenSource(self.url, store=self.store)
        self.resolver = ParquetLineageResolver(self.url, store=self.store)

    async def close(self) -> None:
        for client in (self.sink, self.source, self.resolver):
            await client.close()


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    made = Backend()
    yield made
    await made.close()


def said(call_id: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": call_id}]
    return {"type": "message", "role": "assistant", "content": content}


def asked(*answers: str) -> list[dict[str, Any]]:
    """Return the items of a request behind these answers."""
    items = [QUESTION]
    for answer in answers:
        items += [said(answer), {"role": "user", "content": f"behind {answer}"}]
    return items


def turn(call_id: str, tokens: list[int], parent: TokenEntry | None = None, behind: tuple[str, ...] = ()) -> TokenEntry:
    return stamp_continuation(call_entry(call_id, tokens, [9], parent), asked(*behind))


def parent_of(found: LineageResolution) -> tuple[str, tuple[int, ...]] | None:
    return found.match and (found.match.model_call_id, tuple(found.match.cumulative_token_ids))


async def test_a_chain_is_followed_as_it_grows(backend: Backend) -> None:
    root = turn("c0", [1, 2])
    assert (await backend.resolver.resolve(ROLLOUT, asked())).status is ParentResolutionStatus.ROOT
    await backend.sink.put(root)
    assert parent_of(await backend.resolver.resolve(ROLLOUT, asked("c0"))) == ("c0", (1, 2, 9))
    await backend.sink.put(turn("c1", [3], root, ("c0",)))
    assert parent_of(await backend.resolver.resolve(ROLLOUT, asked("c0", "c1"))) == ("c1", (1, 2, 9, 3, 9))
    assert backend.resolver.is_process_shared()


async def test_a_look_up_reads_only_new_segments_and_lists_nothing(backend: Backend) -> None:
    root = turn("c0", [1, 2])
    await backend.sink.put(root)
    await backend.sink.put(call_entry("x", [1], [2], rollout_id="other"))
    await backend.resolver.resolve(ROLLOUT, asked("c0"))
    backend.store.requests.clear()
    await backend.resolver.resolve(ROLLOUT, asked("c0"))
    assert {request.method for request in backend.store.requests} <= {"exists", "read"}
    assert backend.store.bytes_read() == 0
    await backend.sink.put(turn("c1", [3], root, ("c0",)))
    backend.store.requests.clear()
    await backend.resolver.resolve(ROLLOUT, asked("c0", "c1"))
    read = {request.name for request in backend.store.requests if request.nbytes}
    assert len(read) == 1


async def test_an_open_resolver_sees_a_sink_that_begins_later(backend: Backend) -> None:
    await backend.resolver.resolve(ROLLOUT, asked("c0"))
    backend.store.hides = lambda _: True
    later = ParquetTokenSink(backend.url, store=WatchedStore(open_store(backend.url)))
    await later.put(turn("c0", [1, 2]))
    assert parent_of(await backend.resolver.resolve(ROLLOUT, asked("c0"))) == ("c0", (1, 2, 9))
    await later.close()


async def test_a_deleted_rollout_has_no_parents(backend: Backend) -> None:
    await backend.sink.put(turn("c0", [1, 2]))
    await backend.resolver.resolve(ROLLOUT, asked("c0"))
    await asyncio.to_thread(backend.source.delete, ROLLOUT)
    found = await backend.resolver.resolve(ROLLOUT, asked("c0"))
    assert (found.status, found.reason) == (ParentResolutionStatus.ROOT, "seeded_root")
    await backend.sink.put(turn("c0", [5]))
    assert parent_of(await backend.resolver.resolve(ROLLOUT, asked("c0"))) == ("c0", (5, 9))
    fresh = ParquetLineageResolver(backend.url)
    assert parent_of(await fresh.resolve(ROLLOUT, asked("c0"))) == ("c0", (5, 9))
    await fresh.close()


@pytest.mark.parametrize("evidence", ["begun", "marked", "retired"])
async def test_a_prefilled_answer_is_a_root_only_where_nothing_is_known(backend: Backend, evidence: str) -> None:
    assert (await backend.resolver.resolve(ROLLOUT, asked("c0"))).reason == "seeded_root"
    if evidence == "begun":
        await backend.sink.begin_call(ROLLOUT, "c1")
    elif evidence == "marked":
        await backend.sink.mark_incomplete(ROLLOUT)
    else:
        snapshot = await backend.source.freeze(ROLLOUT)
        assert await backend.source.drop(ROLLOUT, snapshot_id=snapshot.snapshot_id, version=snapshot.version)
    assert (await backend.resolver.resolve(ROLLOUT, asked("c0"))).status is ParentResolutionStatus.UNRESOLVED


async def test_a_damaged_segment_is_no_missing_parent(backend: Backend) -> None:
    await backend.sink.put(turn("c0", [1, 2]))
    name = next(name for name in backend.store.list() if name.endswith(".tokens.parquet"))
    backend.store.publish(name, backend.store.read(name)[:-9])
    for _ in range(2):
        with pytest.raises(ValueError, match="truncated"):
            await backend.resolver.resolve(ROLLOUT, asked("c0"))


async def test_records_of_one_call_that_differ_are_no_parent(backend: Backend) -> None:
    await backend.sink.put(turn("c0", [1, 2]))
    other = ParquetTokenSink(backend.url)
    await other.put(turn("c0", [1, 3]))
    with pytest.raises(ValueError, match="two records that differ"):
        await backend.resolver.resolve(ROLLOUT, asked("c0"))
    await other.close()
