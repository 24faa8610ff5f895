"""A call ends once in the ledger, however often it is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gym_ray.errors import CaptureError
from gym_ray.model_call_capture.exchanges.exchange import TrainingCall
from gym_ray.model_server.external.staged_call import StagedCall
from gym_ray.token_id_capture.external_staging import ExternalStaging
from gym_ray.token_id_capture.staging import CaptureAdmission, CaptureLedgerCommit, MemoryStaging, RolloutTokenCapture
from gym_ray.token_id_capture.staging.ledger.memory_ledger import MemoryCaptureLedger

SERVED = {"id": "a1", "choices": [{"message": {"role": "assistant", "content": "hello"}}]}


class GatedLedger(MemoryCaptureLedger):
    """Writes when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.gate = asyncio.Event(), asyncio.Event()

    async def record(self, commit: CaptureLedgerCommit) -> None:
        self.asked.set()
        await self.gate.wait()
        await super().record(commit)

    async def record_failure(self, rollout_id: str, model_call_id: str, reason: str) -> None:
        self.asked.set()
        await self.gate.wait()
        await super().record_failure(rollout_id, model_call_id, reason)


def call_of(ledger: MemoryCaptureLedger) -> StagedCall:
    staging = ExternalStaging(ledger, "vllm_worker", "secret")
    return StagedCall(staging, TrainingCall("r1", "c1"), admitted_at=1.0, size_bytes=10)


def coordinates(admission: CaptureAdmission) -> dict[str, Any]:
    capture = RolloutTokenCapture(MemoryStaging(), lambda: 1)
    call = capture.begin_call(admission)
    staged = capture.complete_call(call, prompt_token_ids=[1, 2], generated_token_ids=[3], generated_logprobs=[-0.5])
    return staged.model_dump(mode="json")


async def admitted(call: StagedCall) -> CaptureAdmission:
    admission = await call.admit([{"role": "user", "content": "hi"}])
    assert admission is not None
    return admission


async def cancelled_meanwhile(task: asyncio.Task[None], ledger: GatedLedger) -> None:
    """Cancel a task while the ledger writes, twice, and let the ledger write only then."""
    await ledger.asked.wait()
    for _ in range(2):
        task.cancel()
        await asyncio.wait({task}, timeout=0.01)
        assert not task.done()
    ledger.gate.set()
    await asyncio.wait({task})
    assert task.cancelled()


async def test_a_row_is_written_to_its_end() -> None:
    ledger = GatedLedger()
    call = call_of(ledger)
    admission = await admitted(call)

    async def serve() -> None:
        async with call.settled():
            await call.commit(coordinates(admission), SERVED, "a1")

    await cancelled_meanwhile(asyncio.create_task(serve()), ledger)
    manifest = await ledger.manifest("r1")
    assert ([record.response_id for record in manifest.records], manifest.failures) == (["a1"], [])


async def test_a_failure_is_written_to_its_end() -> None:
    ledger = GatedLedger()
    call = call_of(ledger)
    await admitted(call)
    waiting = asyncio.Event()

    async def serve() -> None:
        async with call.settled():
            waiting.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(serve())
    await waiting.wait()
    task.cancel()
    await cancelled_meanwhile(task, ledger)
    assert [failure.reason for failure in (await ledger.manifest("r1")).failures] == [
        "request_finished_without_staged_coordinates"
    ]


async def test_a_call_that_was_never_admitted_ends_without_a_word() -> None:
    ledger = MemoryCaptureLedger()
    await ledger.retire(["r1"])
    call = call_of(ledger)
    assert await call.admit([{"role": "user", "content": "hi"}]) is None
    async with call.settled():
        await call.commit({"not": "looked at"}, SERVED, "a1")
    await ledger.delete(["r1"])
    assert not await ledger.has_rows("r1")


async def test_turns_that_cannot_be_read_have_no_proven_parent() -> None:
    ledger = MemoryCaptureLedger()
    assert await call_of(ledger).admit(None) is None
    assert [failure.reason for failure in (await ledger.manifest("r1")).failures] == ["unresolved_parent"]


async def test_a_failure_that_nobody_keeps_harms_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(MemoryCaptureLedger):
        async def record_failure(self, rollout_id: str, model_call_id: str, reason: str) -> None:
            del rollout_id, model_call_id, reason
            raise CaptureError("broken")

    call = call_of(Broken())
    await admitted(call)
    async with call.settled():
        await call.commit(None, SERVED, "a1")
    assert "the failure of call c1 is not kept" in caplog.text


async def test_the_error_of_a_call_is_kept_behind_its_failure() -> None:
    ledger = MemoryCaptureLedger()
    call = call_of(ledger)
    await admitted(call)
    with pytest.raises(ZeroDivisionError):
        async with call.settled():
            raise ZeroDivisionError
    assert await ledger.has_rows("r1")


async def test_each_call_is_counted_once_by_how_it_ended() -> None:
    ledger = MemoryCaptureLedger()
    staging = ExternalStaging(ledger, "vllm_worker", "secret")

    def begun(call_id: str) -> StagedCall:
        return StagedCall(staging, TrainingCall("r1", call_id), admitted_at=1.0, size_bytes=10)

    first = begun("c1")
    async with first.settled():
        await first.commit(coordinates(await admitted(first)), SERVED, "a1")
    lost = begun("c2")
    async with lost.settled():
        await admitted(lost)
    silent = begun("c4")
    async with silent.settled():
        await admitted(silent)
        await silent.commit(None, SERVED, "a4")
    assert [failure.reason for failure in (await ledger.manifest("r1")).failures] == [
        "request_finished_without_staged_coordinates",
        "worker_response_missing_commit_coordinates",
        "request_finished_without_staged_coordinates",
    ]
    stranger = begun("c3")
    async with stranger.settled():
        assert await stranger.admit(None) is None
        await stranger.commit(None, SERVED, "a2")
    assert staging.counts.counts() == {
        ("text", "committed"): 1,
        ("text", "request_finished_without_staged_coordinates"): 1,
        ("text", "worker_response_missing_commit_coordinates"): 1,
        ("not_admitted", "unresolved_parent"): 1,
    }
