"""Failures that a ledger refuses are told by its manifests all the same, and are written as soon as it can."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from gym_ray.errors import CaptureError, RolloutIdError
from gym_ray.token_id_capture.kept_failures import FailureKeepingLedger
from gym_ray.token_id_capture.staging import ManifestFailure, RolloutManifest
from gym_ray.token_id_capture.staging.ledger.file_ledger import FileCaptureLedger
from gym_ray.token_id_capture.staging.ledger.memory_ledger import MemoryCaptureLedger

WHY = ManifestFailure(model_call_id="c0", reason="why")


class FullDisk(MemoryCaptureLedger):
    """Keeps nothing while it is full."""

    def __init__(self) -> None:
        super().__init__()
        self.full, self.kept = True, asyncio.Event()

    async def record_failure(self, rollout_id: str, model_call_id: str, reason: str) -> None:
        if self.full:
            raise CaptureError("no space left on device")
        await super().record_failure(rollout_id, model_call_id, reason)
        self.kept.set()


async def test_a_failure_that_cannot_be_written_is_told_until_it_is() -> None:
    inner = FullDisk()
    ledger = FailureKeepingLedger(inner, timeout_s=5.0, retry_interval_s=0.01)
    await ledger.record_failure("r0", "c0", "why")
    await ledger.record_failure("r0", "c0", "why")
    assert (await ledger.manifest("r0")).failures == [WHY]
    assert await ledger.has_rows("r0")
    assert not await ledger.has_rows("r1")
    assert (await inner.manifest("r0")).failures == []
    inner.full = False
    async with asyncio.timeout(10):
        await inner.kept.wait()
    assert (await inner.manifest("r0")).failures == [WHY]
    assert (await ledger.manifest("r0")).failures == [WHY]
    await ledger.close()


@pytest.mark.parametrize("remove", ["retire", "delete"])
async def test_a_rollout_that_is_removed_takes_its_failures_along(remove: str) -> None:
    inner = FullDisk()
    ledger = FailureKeepingLedger(inner, timeout_s=5.0, retry_interval_s=60.0)
    await ledger.record_failure("r0", "c0", "why")
    await ledger.record_failure("r1", "c0", "why")
    await getattr(ledger, remove)(["r0"])
    if remove == "delete":
        assert (await ledger.manifest("r0")).failures == []
    assert (await ledger.manifest("r1")).failures == [WHY]
    await ledger.close()


async def test_what_is_lost_at_the_end_is_named(caplog: pytest.LogCaptureFixture) -> None:
    ledger = FailureKeepingLedger(FullDisk(), timeout_s=5.0, retry_interval_s=60.0)
    await ledger.record_failure("r0", "c0", "why")
    with caplog.at_level(logging.ERROR):
        await ledger.close()
    assert "r0: a failure of its capture was never written down" in caplog.text


async def test_an_id_that_names_nothing_is_the_callers_fault() -> None:
    ledger = FailureKeepingLedger(MemoryCaptureLedger(), timeout_s=5.0)
    with pytest.raises(RolloutIdError):
        await ledger.record_failure("a b", "c0", "why")
    await ledger.close()


async def test_a_ledger_that_hangs_holds_nobody_up() -> None:
    class Hanging(MemoryCaptureLedger):
        async def manifest(self, rollout_id: str) -> RolloutManifest:
            raise await asyncio.Event().wait()  # type: ignore[misc]  # it never comes

    ledger = FailureKeepingLedger(Hanging(), timeout_s=0.01)
    with pytest.raises(CaptureError, match=r"the manifest of rollout .r0. did not end within 0\.01 s"):
        await ledger.manifest("r0")
    await ledger.close()


async def test_it_says_of_itself_what_the_ledger_says(tmp_path: Path) -> None:
    files = FailureKeepingLedger(FileCaptureLedger(tmp_path), timeout_s=5.0)
    memory = FailureKeepingLedger(MemoryCaptureLedger(), timeout_s=5.0)
    assert (files.is_process_shared(), files.evicts()) == (True, False)
    assert (memory.is_process_shared(), memory.evicts()) == (False, True)
    await files.close()
    await memory.close()
