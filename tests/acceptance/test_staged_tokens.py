"""Tokens and media staged by a worker: safe before their answer leaves, proved before anybody learns from them.

Whole rollouts: a worker with pictures, a model server, a ledger, storage, and a trainer at the end.
``test_staged_statements.py`` is the map of everything else.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import ml_dtypes
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gym_ray.dialects import CHAT, DIALECT_BY_PATH, MESSAGES, RESPONSES
from gym_ray.dialects.reassembly import reassemble
from gym_ray.errors import ForeignKeyError, ReceiptVerificationError, RolloutRetiredError, SettingsError
from gym_ray.model_call_capture import CaptureStore, read_model_call_records
from gym_ray.model_server.control_client import ControlClient
from gym_ray.model_server.external.reserved import RESERVED_IN_ANSWERS
from gym_ray.testing.staged_site import CONTROL_TOKEN, StagedSite, staged_site
from gym_ray.testing.staging_worker import ScriptedWorker
from gym_ray.testing.storage_faults import RecordingCalls
from gym_ray.token_id_capture.config import TokenIdCaptureConfig, build_external_staging
from gym_ray.token_id_capture.staging import (
    FileCaptureLedger,
    MemoryCaptureLedger,
    RolloutManifest,
    RolloutRemoval,
    build_receipt,
    compute_extras_digest,
    verify_and_linearize,
)
from gym_ray.token_id_capture.staging.parquet import AttachmentView, ParquetStagingSink, ParquetStagingSource

PATH_OF = {dialect: path for path, dialect in DIALECT_BY_PATH.items()}
TURNS = 3
ROLLOUT = "t3-g0"
Media = Callable[[Mapping[str, Any]], Mapping[str, Any] | None]


def turn_of(body: Mapping[str, Any]) -> int:
    return sum(message["role"] == "user" for message in body["messages"]) - 1


def said_at(turn: int) -> dict[str, Any]:
    return {"role": "assistant", "content": f"answer {turn}"}


def pixels(turn: int) -> Any:
    return np.random.default_rng(turn).random((3, 8, 8), np.float32).astype(ml_dtypes.bfloat16)


def pictures(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Each call hands over only its new media: two pictures, none, and a mapping without any."""
    turn = turn_of(body)
    return {0: {"pixel_values": pixels(0), "grid": [pixels(7), pixels(8)[:1]]}, 1: None}.get(turn, {})


@dataclass
class Stage:
    """A model server with a worker that stages into a directory, and what a trainer has to reach both."""

    site: StagedSite
    where: Path

    async def play(self, dialect: str = CHAT, *, stream: bool = False, turns: int = TURNS) -> list[httpx.Response]:
        history: list[dict[str, Any]] = []
        heard = []
        for turn in range(turns):
            history.append({"role": "user", "content": f"question {turn}"})
            body: dict[str, Any] = {"model": "m", **({"stream": True} if stream else {})}
            body |= {"input": history} if dialect == RESPONSES else {"messages": history}
            body |= {"max_tokens": 99} if dialect == MESSAGES else {}
            heard.append(await self.site.post(PATH_OF[dialect], body, ROLLOUT))
            history.append(said_at(turn))
        return heard

    async def manifest(self) -> RolloutManifest:
        """Ask as a trainer does."""

        def ask() -> RolloutManifest:
            with ControlClient(self.site.url, CONTROL_TOKEN, 20.0) as client:
                return client.manifest(ROLLOUT)

        return await asyncio.to_thread(ask)

    @property
    def segments(self) -> list[Path]:
        return sorted(self.where.rglob("*.parquet"))

    def truth(self) -> tuple[list[int], list[float]]:
        """What the worker itself read and said, token by token."""
        ids: list[int] = []
        mask: list[float] = []
        for turn, body in enumerate(self.site.worker.bodies):
            shown = body["messages"][-1:] if turn else body["messages"]
            for text, kind in ((json.dumps(shown), 0.0), (json.dumps(said_at(turn)), 1.0)):
                ids += map(ord, text)
                mask += [kind] * len(text)
        return ids, mask


@asynccontextmanager
async def stage(directory: Path, media: Media = pictures, *, observability: bool = False) -> AsyncIterator[Stage]:
    where = directory / "staged"
    with ParquetStagingSink(where) as sink, ParquetStagingSource(where) as source:
        worker = ScriptedWorker(lambda body: said_at(turn_of(body)), sink=sink, source=source, media=media)
        async with staged_site(directory, worker, observability=observability) as site:
            yield Stage(site, where)


@pytest.mark.parametrize("observability", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", [CHAT, RESPONSES, MESSAGES])
async def test_a_rollout_with_pictures_is_safe_before_it_is_answered_and_proved_before_it_is_used(
    tmp_path: Path, dialect: str, stream: bool, observability: bool
) -> None:
    async with stage(tmp_path, observability=observability) as one:
        heard = await one.play(dialect, stream=stream)
        manifest, truth = await one.manifest(), one.truth()
        ledger = (tmp_path / "ledger" / f"{ROLLOUT}.lineage.jsonl").read_text()
    assert [response.status_code for response in heard] == [200] * TURNS
    for turn, response in enumerate(heard):
        whole = reassemble(dialect, response.content) if stream else response.json()
        assert (whole or {})["id"] == f"completion-{turn + 1}"
        assert f"answer {turn}" in response.text
        assert [name for name in RESERVED_IN_ANSWERS if name in response.text] == []
    assert "token_ids" not in ledger
    # A trainer, in a process that never saw the worker.
    receipt = build_receipt(manifest, {"id": f"completion-{TURNS}"}, reward=1.0)
    assert (receipt.terminal_selection, receipt.capture_poisoned) == ("response_id", False)
    keys = [record.staging_key for record in manifest.records]
    with ParquetStagingSource(one.where) as source:
        row = verify_and_linearize(receipt, source.fetch(keys))
        extras = source.fetch_extras(keys)
        found = source.fetch_attachments(keys[0])
        assert [source.fetch_attachments(key) for key in keys[1:]] == [{}, {}]
        grid = found["grid"]
        assert isinstance(found["pixel_values"], AttachmentView)
        assert isinstance(grid, list)
        tensors = [found["pixel_values"].read(), *(view.read() for view in grid)]
    assert (list(row.token_ids), list(row.token_mask)) == truth
    assert list(row.logprobs) == [-0.5 * kind for kind in truth[1]]
    assert [row.weight_versions, row.model_call_ids] == [(3,) * TURNS, tuple(r.model_call_id for r in manifest.records)]
    assert [compute_extras_digest(one) for one in extras] == [kept.extras_digest for kept in row.extras_commitments]
    for tensor, wanted in zip(tensors, [pixels(0), pixels(7), pixels(8)[:1]], strict=True):
        assert (tensor.dtype, tensor.shape, tensor.tobytes()) == (wanted.dtype, wanted.shape, wanted.tobytes())
    if observability:
        records = read_model_call_records(CaptureStore(tmp_path / "captures"), ROLLOUT)
        assert [record.model_call_id for record in records] == list(row.model_call_ids)


async def test_media_change_no_digest(tmp_path: Path) -> None:
    manifests = []
    for name, media in (("with", pictures), ("without", lambda _: None)):
        async with stage(tmp_path / name, media) as one:
            await one.play(turns=1)
            manifests.append((await one.manifest()).records[0])
    told = ("digest", "extras_digest", "chain_hash", "cumulative_hash")
    (kept,) = {tuple(getattr(record, name) for name in told[1:]) for record in manifests}
    assert None not in kept
    with ParquetStagingSource(tmp_path / "with/staged") as source:
        (call,) = source.fetch([manifests[0].staging_key])
    assert set(call.model_dump()) & {"attachments", "media", "pixel_values"} == set()
    changed = call.model_dump() | {"model_call_id": manifests[1].model_call_id, "digest": manifests[1].digest}
    assert type(call)(**changed).digest == manifests[1].digest  # the id of the call is all that differs


NOT_KEPT: dict[str, Mapping[Any, Any]] = {
    "objects": {"p": np.array([object()], object)},
    "an unknown type": {"p": object()},
    "a name that is no text": {5: np.zeros(2)},
    "a structure": {"p": np.zeros(2, [("a", "i4")])},
    "dates": {"p": np.array(["2020-01-01"], "datetime64[D]")},
    "a mapping in a mapping": {"p": {"q": np.zeros(2)}},
    "a good one beside a bad one": {"good": np.zeros(2), "bad": {1, 2}},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", NOT_KEPT)
async def test_media_that_cannot_be_kept_cost_the_capture_and_not_the_answer(
    tmp_path: Path, name: str, stream: bool
) -> None:
    async with stage(tmp_path, lambda _: NOT_KEPT[name]) as one:
        heard = await one.play(stream=stream, turns=2)
        manifest, segments = await one.manifest(), one.segments
    assert [response.status_code for response in heard] == [200, 200]
    assert all(f"answer {turn}" in response.text for turn, response in enumerate(heard))
    assert segments == []
    # The second call continues a call that has no tokens: it is never made a root.
    reasons = [failure.reason for failure in manifest.failures]
    general = "request_finished_without_staged_coordinates"
    assert (manifest.records, reasons) == ([], ["worker_capture_failed", general, "unresolved_parent"])
    receipt = build_receipt(manifest, {"id": "completion-2"}, reward=1.0)
    assert (receipt.capture_poisoned, receipt.failure_reason) == (True, "worker_capture_failed")
    with pytest.raises(ReceiptVerificationError, match=r"^rollout_failed: worker_capture_failed"):
        verify_and_linearize(receipt, [])


def cut(share: float) -> Callable[[Path], object]:
    return lambda path: os.truncate(path, int(path.stat().st_size * share))


SPOILS: dict[str, Callable[[Path], object]] = {
    "truncated": cut(0.6),
    "truncated by little": cut(0.999),
    "empty": cut(0),
    "of somebody else": lambda path: pq.write_table(pa.table({"token_ids": [[1]]}), path),
    "no Parquet at all": lambda path: path.write_text("a diary"),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("name", SPOILS)
async def test_spoilt_files_give_one_clear_error_and_no_call(tmp_path: Path, name: str) -> None:
    async with stage(tmp_path) as one:
        await one.play()
        manifest, segments = await one.manifest(), one.segments
    keys = [record.staging_key for record in manifest.records]
    assert len(segments) == TURNS
    SPOILS[name](segments[1])
    with ParquetStagingSource(one.where) as source:
        for read in (source.fetch, source.fetch_prefix_token_ids, source.fetch_extras):
            with pytest.raises(KeyError if name == "gone" else ValueError) as caught:
                read(keys)
            assert segments[1].name.split(".")[0].lstrip("0") in str(caught.value)
        assert [call.model_call_id for call in source.fetch([keys[2], keys[0]])] == [
            manifest.records[2].model_call_id,
            manifest.records[0].model_call_id,
        ]


async def test_keys_of_another_store_name_both(tmp_path: Path) -> None:
    for name in ("one", "other"):
        async with stage(tmp_path / name) as one:
            await one.play(turns=1)
            manifest = await one.manifest()
    with ParquetStagingSource(tmp_path / "one/staged") as source:
        places = [
            json.loads((tmp_path / name / "staged/store.json").read_text())["store_id"] for name in ("one", "other")
        ]
        for read in (lambda: source.fetch([manifest.records[0].staging_key]), lambda: source.retire(manifest)):
            with pytest.raises(ForeignKeyError) as caught:
                read()
            assert all(place in str(caught.value) for place in places)


async def test_cleaning_up_is_listed_by_the_manifest_and_can_be_repeated(tmp_path: Path) -> None:
    async with stage(tmp_path) as one:
        await one.play()
        await one.play(turns=1)  # a root that nothing continues, and is still to be removed
        manifest = await one.manifest()
        assert len(manifest.records) == TURNS + 1
        with ParquetStagingSource(one.where) as source:
            assert [source.retire(manifest), source.retire(manifest)] == [TURNS + 1, 0]
        with ParquetStagingSource(one.where) as source:
            for record in manifest.records:
                with pytest.raises(KeyError, match="retired"):
                    source.fetch([record.staging_key])

        def retire() -> list[RolloutRemoval]:
            with ControlClient(one.site.url, CONTROL_TOKEN, 20.0) as client:
                return [client.retire([ROLLOUT]), client.retire([ROLLOUT])]

        assert await asyncio.to_thread(retire) == [RolloutRemoval(removed=[ROLLOUT]), RolloutRemoval(absent=[ROLLOUT])]
        with pytest.raises(RolloutRetiredError):
            await one.manifest()


# --- what nobody else looks at ---------------------------------------------------------------------------------------


class Removals(RecordingCalls):
    """Notes what is made and removed as well."""

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        fd = super().open(path, flags, mode)
        if flags & os.O_EXCL:
            self.log.append(("create", Path(path).name))
        return fd

    def unlink(self, path: str) -> None:
        self.log.append(("unlink", Path(path).name))
        super().unlink(path)


async def test_a_fence_is_durable_before_rows_go_and_a_repetition_only_syncs(tmp_path: Path) -> None:
    calls = Removals()
    ledger = FileCaptureLedger(tmp_path, calls=calls)
    await ledger.record_failure("r1", "c0", "why")
    told = []
    for _ in range(2):
        calls.log.clear()
        await ledger.retire(["r1", "never"])
        told.append([entry for entry in calls.log if entry[0] in ("create", "sync", "unlink")])
    await ledger.close()
    synced = ("sync", tmp_path.name)
    fences = [("create", "r1.lineage.retired"), ("create", "never.lineage.retired")]
    assert told == [[*fences, synced, ("unlink", "r1.lineage.jsonl"), synced], [synced]]


class OfOneProcess(MemoryCaptureLedger):
    """Keeps every row, where no other process sees it."""

    def evicts(self) -> bool:
        return False


async def test_servers_that_share_a_model_share_their_ledger(tmp_path: Path) -> None:
    config = TokenIdCaptureConfig(
        enabled=True, external_staging=True, rebuild_response=False, lineage_store=f"{__name__}:OfOneProcess"
    )
    alone = build_external_staging(config, capture_dir=tmp_path, control_token="secret")
    assert alone is not None
    await alone.aclose()
    with pytest.raises(SettingsError, match="OfOneProcess sees the calls of one process, and 2 serve"):
        build_external_staging(config, capture_dir=tmp_path, control_token="secret", workers=2)
