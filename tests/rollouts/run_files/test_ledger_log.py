from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gym_ray.errors import StorageError
from gym_ray.rollouts.run_files.frames import FRAME_BYTES, FrameKind, read_frames
from gym_ray.rollouts.run_files.ledger_log import LedgerLog, rollout_digest
from gym_ray.storage.calls import FileCalls


async def write(path: Path, count: int, calls: FileCalls | None = None) -> None:
    with LedgerLog(path, calls=calls) as log:
        await asyncio.gather(*(log.append(FrameKind.STARTED, n, n % 3, f"{n}-0") for n in range(count)))


class Counting(FileCalls):
    def __init__(self) -> None:
        self.syncs = self.read = 0
        self.fail_at: int | None = None

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        data = super().pread(fd, size, offset)
        self.read += len(data)
        return data

    def sync_data(self, fd: int) -> None:
        self.syncs += 1
        if self.fail_at == self.syncs:
            raise OSError(28, "No space left on device")
        super().sync_data(fd)


async def test_frames_come_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "ledger.log"
    await write(path, 5)
    assert path.stat().st_size == 5 * FRAME_BYTES
    frames = list(read_frames(path))
    assert [(f.kind, f.ordinal, f.attempt) for f in frames] == [(FrameKind.STARTED, n, n % 3) for n in range(5)]
    assert frames[2].digest == rollout_digest("2-0")


async def test_frames_that_wait_together_share_a_sync(tmp_path: Path) -> None:
    calls = Counting()
    await write(tmp_path / "ledger.log", 500, calls)
    assert calls.syncs <= 2
    assert len(list(read_frames(tmp_path / "ledger.log"))) == 500


async def test_every_truncation_keeps_exactly_the_whole_frames_and_can_be_continued(tmp_path: Path) -> None:
    path = tmp_path / "ledger.log"
    await write(path, 2)
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        with LedgerLog(path) as log:
            await log.append(FrameKind.CANCELLED, 9, 0, "9-0")
        kept = cut // FRAME_BYTES
        assert [f.ordinal for f in read_frames(path)] == [*range(kept), 9]


async def test_a_tail_of_zeros_after_a_power_cut_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "ledger.log"
    await write(path, 2)
    path.write_bytes(path.read_bytes() + bytes(3 * FRAME_BYTES + 7))
    LedgerLog(path).close()
    assert path.stat().st_size == 2 * FRAME_BYTES


async def test_damage_before_a_whole_frame_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger.log"
    await write(path, 3)
    data = bytearray(path.read_bytes())
    data[FRAME_BYTES + 20] ^= 1
    path.write_bytes(data)
    with pytest.raises(StorageError, match=f"byte {FRAME_BYTES} "):
        LedgerLog(path)


async def test_a_long_tail_of_zeros_is_walked_back_to_the_last_whole_frame(tmp_path: Path) -> None:
    path = tmp_path / "ledger.log"
    await write(path, 1500)
    whole = path.read_bytes()
    path.write_bytes(whole + bytes(200_000))
    LedgerLog(path).close()
    assert path.read_bytes() == whole
    assert len(list(read_frames(path))) == 1500


async def test_opening_reads_the_end_of_a_long_log_only(tmp_path: Path) -> None:
    path = tmp_path / "ledger.log"
    await write(path, 3000)
    data = bytearray(path.read_bytes())
    data[FRAME_BYTES * 10] ^= 1
    path.write_bytes(data)
    calls = Counting()
    LedgerLog(path, calls=calls).close()
    assert calls.read <= 64 * 1024
    with pytest.raises(StorageError, match=rf"ledger\.log: the frame at byte {FRAME_BYTES * 10} is damaged"):
        list(read_frames(path))


async def test_a_failed_sync_refuses_this_and_all_later_starts(tmp_path: Path) -> None:
    calls = Counting()
    calls.fail_at = 2
    with LedgerLog(tmp_path / "ledger.log", calls=calls) as log:
        await log.append(FrameKind.STARTED, 0, 0, "0-0")
        for _ in range(2):
            with pytest.raises(StorageError, match="No space left"):
                await log.append(FrameKind.STARTED, 1, 0, "1-0")
    assert calls.syncs == 2


async def test_a_closed_log_refuses(tmp_path: Path) -> None:
    log = LedgerLog(tmp_path / "ledger.log")
    log.close()
    log.close()
    with pytest.raises(StorageError, match="closed"):
        await log.append(FrameKind.STARTED, 0, 0, "0-0")


async def test_a_cancelled_caller_does_not_disturb_the_others(tmp_path: Path) -> None:
    path = tmp_path / "ledger.log"
    with LedgerLog(path) as log:
        tasks = [asyncio.create_task(log.append(FrameKind.STARTED, n, 0, f"{n}-0")) for n in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in done] == [type(None), asyncio.CancelledError, type(None)]
    assert {0, 2} <= {frame.ordinal for frame in read_frames(path)}


WRITER = """
import asyncio, sys
from pathlib import Path
from gym_ray.rollouts.run_files.frames import FrameKind
from gym_ray.rollouts.run_files.ledger_log import LedgerLog

async def main():
    with LedgerLog(Path(sys.argv[1])) as log:
        for n in range(10**9):
            await log.append(FrameKind.STARTED, n, 0, f"{n}-0")
            sys.stdout.write(f"{n}\\n")
            sys.stdout.flush()

asyncio.run(main())
"""


@pytest.mark.parametrize("acknowledged", [1, 40])
def test_kill_9_loses_no_acknowledged_frame(tmp_path: Path, acknowledged: int) -> None:
    path = tmp_path / "ledger.log"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        told = [int(process.stdout.readline()) for _ in range(acknowledged)]
        os.kill(process.pid, signal.SIGKILL)
        told += [int(line) for line in process.stdout.read().splitlines() if line.isdigit()]
    LedgerLog(path).close()
    assert [frame.ordinal for frame in read_frames(path)][: len(told)] == told
