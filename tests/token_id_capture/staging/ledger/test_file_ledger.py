"""The ledger in files: what other processes do to them, damage, crashes, and what is told and when."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gym_ray.errors import CaptureError, RecordConflictError, RolloutRetiredError
from gym_ray.storage.calls import FileCalls
from gym_ray.testing.killed_process import lines_until_killed
from gym_ray.testing.ledger_commits import asked_at, commit_of_turn
from gym_ray.testing.storage_faults import FaultyCalls, ForgetfulCalls, RecordingCalls
from gym_ray.testing.waiting import until
from gym_ray.token_id_capture.staging import FileCaptureLedger, ManifestFailure, RolloutRemoval, admit
from gym_ray.token_id_capture.staging.ledger.cached_file import FileCache
from gym_ray.token_id_capture.staging.ledger.ledger_lines import (
    DAMAGED_LINE_REASON,
    commit_line,
    commit_row,
    failure_row,
)

FILE = "r1.lineage.jsonl"


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[FileCaptureLedger]:
    ledger = FileCaptureLedger(tmp_path)
    yield ledger
    await ledger.close()


@pytest.fixture
async def other(tmp_path: Path) -> AsyncIterator[FileCaptureLedger]:
    """What another process has."""
    ledger = FileCaptureLedger(tmp_path)
    yield ledger
    await ledger.close()


async def kept(ledger: FileCaptureLedger, rollout_id: str = "r1") -> list[str]:
    return [record.model_call_id for record in (await ledger.manifest(rollout_id)).records]


async def parent(ledger: FileCaptureLedger, turn: int) -> str | None:
    match = (await ledger.resolve("r1", asked_at(turn))).match
    return match and match.model_call_id


def line(turn: int, tokens: str = "") -> bytes:
    return commit_line(commit_row(commit_of_turn(turn, tokens=tokens)))


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


class TestOtherProcesses:
    async def test_what_one_recorded_the_other_continues(
        self, ledger: FileCaptureLedger, other: FileCaptureLedger
    ) -> None:
        for turn in range(4):
            recording, asking = (ledger, other) if turn % 2 else (other, ledger)
            await recording.record(commit_of_turn(turn))
            assert await parent(asking, turn + 1) == f"c{turn}"
        with pytest.raises(RecordConflictError):
            await ledger.record(commit_of_turn(0, admitted_at=1.0))
        await ledger.record(commit_of_turn(0))
        assert await kept(other) == ["c0", "c1", "c2", "c3"]

    async def test_a_new_file_of_the_same_length_is_read_anew(self, ledger: FileCaptureLedger, tmp_path: Path) -> None:
        path = tmp_path / FILE
        path.write_bytes(line(0))
        assert await parent(ledger, 1) == "c0"
        with path.open("r+b") as file:  # the same inode, the same length
            file.write(line(0, "others"))
        found = (await ledger.resolve("r1", asked_at(1))).match
        assert found is not None
        assert found.chain_hash == commit_of_turn(0, tokens="others").record.chain_hash

    async def test_a_new_file_whose_last_line_is_the_old_one_is_read_anew(
        self, ledger: FileCaptureLedger, tmp_path: Path
    ) -> None:
        path, failure = tmp_path / FILE, commit_line(failure_row("c9", "failed"))
        path.write_bytes(line(0) + failure)
        assert await parent(ledger, 1) == "c0"
        path.write_bytes(line(0, "others") + failure)  # its id is used again, and so is its inode
        found = (await ledger.resolve("r1", asked_at(1))).match
        assert found is not None
        assert found.chain_hash == commit_of_turn(0, tokens="others").record.chain_hash

    async def test_a_longer_new_file_is_read_anew(self, ledger: FileCaptureLedger, tmp_path: Path) -> None:
        path = tmp_path / FILE
        path.write_bytes(line(0))
        assert await parent(ledger, 1) == "c0"
        path.write_bytes(line(0, "others") + line(1))
        found = (await ledger.resolve("r1", asked_at(1))).match
        assert found is not None
        assert found.chain_hash == commit_of_turn(0, tokens="others").record.chain_hash
        assert await parent(ledger, 2) == "c1"

    async def test_a_cut_file_is_read_anew(self, ledger: FileCaptureLedger, tmp_path: Path) -> None:
        path = tmp_path / FILE
        path.write_bytes(line(0) + line(1))
        assert await parent(ledger, 2) == "c1"
        path.write_bytes(line(0))
        assert await parent(ledger, 2) is None
        assert await parent(ledger, 1) == "c0"

    async def test_retirement_and_deletion_are_seen_at_once(
        self, ledger: FileCaptureLedger, other: FileCaptureLedger
    ) -> None:
        await ledger.record(commit_of_turn(0))
        assert await parent(other, 1) == "c0"
        await ledger.retire(["r1"])
        assert await parent(other, 1) is None
        await other.record(commit_of_turn(1))
        with pytest.raises(RolloutRetiredError):
            await other.manifest("r1")
        assert await other.delete(["r1"]) == RolloutRemoval(absent=["r1"])
        await ledger.record(commit_of_turn(0, tokens="others"))
        assert await kept(other) == ["c0"]

    async def test_a_straggler_of_a_retired_rollout_leaves_no_file(
        self, ledger: FileCaptureLedger, tmp_path: Path
    ) -> None:
        await ledger.retire(["r1"])
        await ledger.record(commit_of_turn(0))
        assert names(tmp_path) == ["r1.lineage.retired"]

    async def test_a_ledger_that_began_anew_meanwhile_survives_the_end_of_a_retirement(
        self, tmp_path: Path, other: FileCaptureLedger
    ) -> None:
        class Pausing(FileCalls):
            """Stops between the fence and the removal."""

            fenced, go_on = threading.Event(), threading.Event()

            def sync(self, fd: int) -> None:
                super().sync(fd)
                if (tmp_path / "r1.lineage.retired").exists() and not self.fenced.is_set():
                    self.fenced.set()
                    self.go_on.wait(30)

        await other.record(commit_of_turn(0))
        calls = Pausing()
        ledger = FileCaptureLedger(tmp_path, calls=calls)
        retiring = asyncio.create_task(ledger.retire(["r1"]))
        await until(calls.fenced.is_set)
        await other.delete(["r1"])
        await other.record(commit_of_turn(0, call_id="fresh"))
        calls.go_on.set()
        assert await retiring == RolloutRemoval(absent=["r1"])
        assert await kept(other) == ["fresh"]
        await ledger.close()

    @pytest.mark.parametrize("how", ["retire", "delete"])
    async def test_a_removal_waits_for_the_append_that_has_begun(self, tmp_path: Path, how: str) -> None:
        class Locking(FileCalls):
            waits = threading.Event()

            def lock_exclusive(self, fd: int, *, wait: bool) -> bool:
                self.waits.set()
                return super().lock_exclusive(fd, wait=wait)

        slow, locking = FaultyCalls(only=lambda path: path.endswith(".lineage.jsonl")), Locking()
        writer, remover = FileCaptureLedger(tmp_path, calls=slow), FileCaptureLedger(tmp_path, calls=locking)
        slow.sync_gate = threading.Event()
        recording = asyncio.create_task(writer.record(commit_of_turn(0)))
        await until(slow.syncs_waiting.is_set)
        removing = asyncio.create_task(getattr(remover, how)(["r1"]))
        await until(locking.waits.is_set)
        assert FILE in names(tmp_path)
        slow.sync_gate.set()
        await recording
        assert await removing == RolloutRemoval(removed=["r1"])
        assert FILE not in names(tmp_path)
        await writer.close()
        await remover.close()

    @pytest.mark.parametrize("how", ["retire", "delete"])
    async def test_a_removal_forgets_what_was_known_and_counts_an_empty_file_as_absent(
        self, ledger: FileCaptureLedger, tmp_path: Path, how: str
    ) -> None:
        await ledger.record(commit_of_turn(0))
        (tmp_path / "r2.lineage.jsonl").touch()
        assert not await ledger.has_rows("r2")
        assert await getattr(ledger, how)(["r2", "r1"]) == RolloutRemoval(removed=["r1"], absent=["r2"])
        assert len(ledger._cache) == 0
        assert not [name for name in names(tmp_path) if name.endswith(".jsonl")]

    async def test_a_fence_beside_rows_closes_nothing(self, ledger: FileCaptureLedger, tmp_path: Path) -> None:
        await ledger.record(commit_of_turn(0))
        (tmp_path / "r1.lineage.retired").touch()  # who retired it was killed before it removed the rows
        await ledger.record(commit_of_turn(1))
        assert await kept(ledger) == ["c0", "c1"]
        assert await ledger.retire(["r1"]) == RolloutRemoval(removed=["r1"])


class TestDamage:
    @pytest.mark.parametrize(
        "damage",
        [
            b"{",
            b"[]",
            b'"text"',
            b"\x00\x00\x00",
            b'{"failure_reason":"x"}',
            b'{"failure_reason":5,"model_call_id":"c"}',
            b'{"model_call_id":"c","staging_chain":[5]}',
            b'{"model_call_id":"c","cum_len":-1}',
            b'{"model_call_id":"c","staging_key":"k","staging_chain":["k","other"]}',
            b'{"model_call_id":"c","fingerprint":5}',
            b'{"model_call_id":"c","staging_key":"k","response_id":"r","chain_hash":"x","cumulative_hash":"y"}',
            b"[" * 100_000,
        ],
    )
    async def test_a_damaged_line_is_named_and_its_rollout_is_closed(
        self, ledger: FileCaptureLedger, tmp_path: Path, damage: bytes
    ) -> None:
        (tmp_path / FILE).write_bytes(line(0) + damage + b"\n" + line(1))
        manifest = await ledger.manifest("r1")
        assert [record.model_call_id for record in manifest.records] == ["c0", "c1"]
        assert manifest.failures == [ManifestFailure(model_call_id=f"{FILE}:2", reason=DAMAGED_LINE_REASON)]
        assert await parent(ledger, 2) is None
        assert await admit(ledger, rollout_id="r1", model_call_id="c9", items=asked_at(2)) is None
        await ledger.record(commit_of_turn(2))
        assert await kept(ledger) == ["c0", "c1", "c2"]

    async def test_a_row_that_contradicts_itself_is_damage(self, ledger: FileCaptureLedger, tmp_path: Path) -> None:
        row = commit_row(commit_of_turn(0)) | {"delta_len": 3}
        (tmp_path / FILE).write_bytes(commit_line(row))
        manifest = await ledger.manifest("r1")
        assert manifest.records == []
        assert manifest.failures == [ManifestFailure(model_call_id=f"{FILE}:1", reason=DAMAGED_LINE_REASON)]

    @pytest.mark.parametrize("spelled", [{"fingerprint_version": None}, {}])
    async def test_a_row_that_does_not_say_its_version_is_nobodys_parent(
        self, ledger: FileCaptureLedger, tmp_path: Path, spelled: dict[str, None]
    ) -> None:
        row = commit_row(commit_of_turn(0))
        del row["fingerprint_version"]
        (tmp_path / FILE).write_bytes(commit_line(row | spelled))
        assert await parent(ledger, 1) is None

    @pytest.mark.parametrize("key", ["", None])
    async def test_a_row_without_a_key_is_nobodys_parent(
        self, ledger: FileCaptureLedger, tmp_path: Path, key: str | None
    ) -> None:
        row = commit_row(commit_of_turn(0)) | {"staging_key": key}
        (tmp_path / FILE).write_bytes(commit_line(row))
        assert await parent(ledger, 1) is None
        assert await ledger.has_rows("r1")

    async def test_a_call_with_rows_that_differ_is_nobodys_parent(
        self, ledger: FileCaptureLedger, tmp_path: Path
    ) -> None:
        row = commit_row(commit_of_turn(1, tokens="others")) | {"model_call_id": "c0"}
        (tmp_path / FILE).write_bytes(line(0) + commit_line(row))
        assert [await parent(ledger, turn) for turn in (1, 2)] == [None, None]
        assert await kept(ledger) == ["c0", "c0"]

    async def test_a_torn_end_is_not_read_and_cut_off_by_the_next_append(self, tmp_path: Path) -> None:
        path, ledger = tmp_path / FILE, FileCaptureLedger(tmp_path, calls=Unsynced())
        whole = len(line(1))
        for cut in [*range(1, whole - 4, 5), *range(whole - 4, whole)]:
            path.write_bytes(line(0) + line(1)[:cut])
            assert await kept(ledger) == ["c0"]
            assert await parent(ledger, 2) is None
            await ledger.record(commit_of_turn(1))
            assert path.read_bytes() == line(0) + line(1)
            assert await parent(ledger, 2) == "c1"
        await ledger.close()

    async def test_blank_lines_say_nothing(self, ledger: FileCaptureLedger, tmp_path: Path) -> None:
        (tmp_path / FILE).write_bytes(b"\n" + line(0) + b" \n")
        manifest = await ledger.manifest("r1")
        assert (len(manifest.records), manifest.failures) == (1, [])


class Unsynced(FileCalls):
    """Syncs nothing: what a power cut leaves is not the matter here."""

    def sync_data(self, fd: int) -> None:
        pass

    def sync(self, fd: int) -> None:
        pass


class TestDurability:
    async def test_a_row_is_written_then_synced_then_told(self, tmp_path: Path) -> None:
        calls = RecordingCalls()
        ledger = FileCaptureLedger(tmp_path, calls=calls)
        calls.log.clear()
        await ledger.record(commit_of_turn(0))
        told = list(calls.log)
        assert told == [
            ("lock", FILE),
            ("write", FILE),
            ("sync_data", FILE),
            ("sync", tmp_path.name),
            ("unlock", FILE),
        ]
        await ledger.close()

    async def test_what_was_told_survives_a_power_cut(self, tmp_path: Path) -> None:
        calls = ForgetfulCalls()
        ledger = FileCaptureLedger(tmp_path / "ledger", calls=calls)
        for turn in range(3):
            await ledger.record(commit_of_turn(turn))
            await ledger.record_failure(f"f{turn}", "c", "reason")
            assert calls.after_power_cut(tmp_path / "ledger")[FILE] == b"".join(map(line, range(turn + 1)))
            assert calls.after_power_cut(tmp_path / "ledger")[f"f{turn}.lineage.jsonl"]
        await ledger.retire(["r1"])
        left = calls.after_power_cut(tmp_path / "ledger")
        assert FILE not in left
        assert "r1.lineage.retired" in left
        await ledger.close()

    async def test_a_replay_of_what_a_killed_process_left_is_made_durable(self, tmp_path: Path) -> None:
        root = tmp_path / "ledger"
        root.mkdir()
        (root / FILE).write_bytes(line(0))
        calls = ForgetfulCalls()
        ledger = FileCaptureLedger(root, calls=calls)
        assert calls.after_power_cut(root) == {}
        await ledger.record(commit_of_turn(0))
        assert calls.after_power_cut(root) == {FILE: line(0)}
        await ledger.close()

    async def test_what_could_not_be_synced_is_not_there(self, tmp_path: Path) -> None:
        class Failing(FileCalls):
            fails = True

            def sync_data(self, fd: int) -> None:
                if self.fails:
                    raise OSError(errno.EIO, "the disk is gone")
                super().sync_data(fd)

        calls = Failing()
        ledger = FileCaptureLedger(tmp_path, calls=calls)
        with pytest.raises(CaptureError, match=r"r1\.lineage\.jsonl: the row of call 'c0' .*r1/c0.*disk is gone"):
            await ledger.record(commit_of_turn(0))
        assert await kept(ledger) == []
        calls.fails = False
        await ledger.record(commit_of_turn(0))
        assert await kept(ledger) == ["c0"]
        await ledger.close()

    async def test_a_full_disk_leaves_no_half_line(self, tmp_path: Path) -> None:
        calls = FaultyCalls(only=lambda path: path.endswith(".lineage.jsonl"))
        ledger = FileCaptureLedger(tmp_path, calls=calls)
        await ledger.record(commit_of_turn(0))
        calls.write_error, calls.bytes_before_error = OSError(errno.ENOSPC, "no space left"), 20
        with pytest.raises(CaptureError, match="no space left"):
            await ledger.record(commit_of_turn(1))
        calls.write_error = None
        assert (tmp_path / FILE).read_bytes() == line(0)
        await ledger.record(commit_of_turn(1))
        assert await kept(ledger) == ["c0", "c1"]
        await ledger.close()

    async def test_a_place_that_cannot_be_used_is_refused_at_once(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(CaptureError, match="could not be created"):
            FileCaptureLedger(tmp_path / "file" / "ledger")

    async def test_a_directory_that_is_gone_is_no_empty_ledger(
        self, ledger: FileCaptureLedger, other: FileCaptureLedger, tmp_path: Path
    ) -> None:
        await ledger.record(commit_of_turn(0))
        os.rename(tmp_path, elsewhere := tmp_path.with_name("elsewhere"))
        for asked in (ledger, other):
            for rollout_id in ("r1", "unknown"):
                for refused in (
                    asked.manifest(rollout_id),
                    asked.has_rows(rollout_id),
                    asked.resolve(rollout_id, asked_at(1)),
                    admit(asked, rollout_id=rollout_id, model_call_id="c1", items=asked_at(1)),
                    asked.record(commit_of_turn(1, rollout_id)),
                    asked.record_failure(rollout_id, "c1", "failed"),
                    asked.retire([rollout_id]),
                    asked.delete([rollout_id]),
                ):
                    with pytest.raises(CaptureError, match="No such file"):
                        await refused
        os.rename(elsewhere, tmp_path)
        assert await kept(ledger) == ["c0"]

    async def test_what_fails_is_kept_nowhere(self, tmp_path: Path) -> None:
        calls = FaultyCalls(lambda path: path.endswith(".jsonl"))
        ledger = FileCaptureLedger(tmp_path, calls=calls)
        calls.write_error = OSError(errno.ENOSPC, "full")
        for number in range(20):
            with pytest.raises(CaptureError, match="full"):
                await ledger.record(commit_of_turn(0, f"r{number}"))
        assert not ledger._files._batches
        await ledger.close()

    def test_a_fork_is_told_to_open_its_own(self, tmp_path: Path) -> None:
        ledger = FileCaptureLedger(tmp_path)
        asyncio.run(ledger.record(commit_of_turn(0)))
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.write(writer, asyncio.run(_use(ledger)).encode())
            finally:
                os._exit(0)
        os.close(writer)
        with open(reader) as told:
            lines = told.read().splitlines()
        os.waitpid(child, 0)
        assert len(lines) == 3
        assert all(f"belongs to process {os.getpid()}" in line for line in lines)
        assert asyncio.run(kept(ledger)) == ["c0"]
        asyncio.run(ledger.close())

    async def test_a_closed_ledger_refuses(self, tmp_path: Path) -> None:
        ledger = FileCaptureLedger(tmp_path)
        await ledger.close()
        await ledger.close()
        with pytest.raises(CaptureError, match="closed"):
            await ledger.record(commit_of_turn(0))
        with pytest.raises(CaptureError, match="closed"):
            await ledger.has_rows("r1")


async def _use(ledger: FileCaptureLedger) -> str:
    uses = [ledger.record(commit_of_turn(1)), ledger.manifest("r1"), ledger.retire(["r1"])]
    answers = await asyncio.gather(*uses, return_exceptions=True)
    await ledger.close()
    return "\n".join(map(str, answers))


async def test_a_ledger_that_could_not_be_closed_in_time_says_so_until_it_is_closed(tmp_path: Path) -> None:
    calls = FaultyCalls(only=lambda path: path.endswith(".lineage.jsonl"))
    calls.sync_gate = threading.Event()
    ledger = FileCaptureLedger(tmp_path, calls=calls, close_timeout_s=0.01)
    row = asyncio.create_task(ledger.record(commit_of_turn(0)))
    await until(calls.syncs_waiting.is_set)
    for _ in range(2):
        with pytest.raises(CaptureError, match=r"rows were still being written after 0\.01 s"):
            await ledger.close()
    ledger._close_timeout_s = 30.0
    calls.sync_gate.set()
    await row
    await ledger.close()
    await ledger.close()
    again = FileCaptureLedger(tmp_path)
    assert await kept(again) == ["c0"]
    await again.close()


class TestManyAtOnce:
    async def test_calls_that_wait_at_the_same_time_share_their_syncs(self, tmp_path: Path) -> None:
        calls = FaultyCalls(only=lambda path: path.endswith(".lineage.jsonl"))
        synced: list[int] = []
        whole = calls.sync_data

        def sync_data(fd: int) -> None:
            synced.append(fd)
            whole(fd)

        calls.sync_data = sync_data  # type: ignore[method-assign]
        calls.sync_gate = threading.Event()
        ledger = FileCaptureLedger(tmp_path, calls=calls)
        commits = [commit_of_turn(0, call_id=f"c-{number}", tokens=str(number)) for number in range(64)]
        first = asyncio.create_task(ledger.record(commits[0]))
        await until(calls.syncs_waiting.is_set)
        others = [asyncio.create_task(ledger.record(commit)) for commit in commits[1:]]
        await asyncio.sleep(0)
        calls.sync_gate.set()
        await asyncio.gather(first, *others)
        assert len(synced) == 2
        assert sorted(await kept(ledger)) == sorted(commit.record.model_call_id for commit in commits)
        await ledger.close()

    async def test_equal_rows_that_wait_together_share_their_fate(self, tmp_path: Path) -> None:
        calls = FaultyCalls(only=lambda path: path.endswith(".lineage.jsonl"))
        calls.sync_gate = threading.Event()
        ledger = FileCaptureLedger(tmp_path, calls=calls)
        before = asyncio.create_task(ledger.record(commit_of_turn(0)))
        await until(calls.syncs_waiting.is_set)
        waiting = [
            asyncio.create_task(ledger.record(commit))
            for commit in (commit_of_turn(1), commit_of_turn(1), commit_of_turn(1, admitted_at=1.0))
        ]
        waiting.append(asyncio.create_task(ledger.record_failure("r1", "c3", "lost")))
        waiting.append(asyncio.create_task(ledger.record(commit_of_turn(3))))
        await asyncio.sleep(0)
        calls.sync_gate.set()
        await before
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(outcome) for outcome in found] == [
            type(None),
            type(None),
            RecordConflictError,
            type(None),
            RecordConflictError,
        ]
        assert await kept(ledger) == ["c0", "c1"]
        await ledger.close()

    async def test_no_equal_row_is_told_kept_when_the_one_that_was_written_is_not(self, tmp_path: Path) -> None:
        class Failing(FaultyCalls):
            fails = False

            def sync_data(self, fd: int) -> None:
                super().sync_data(fd)
                if self.fails:
                    raise OSError(errno.EIO, "the disk is gone")

        calls = Failing(only=lambda path: path.endswith(".lineage.jsonl"))
        calls.sync_gate = threading.Event()
        ledger = FileCaptureLedger(tmp_path, calls=calls)
        before = asyncio.create_task(ledger.record(commit_of_turn(0)))
        await until(calls.syncs_waiting.is_set)
        rows = [asyncio.create_task(ledger.record(commit_of_turn(1))) for _ in range(3)]
        await asyncio.sleep(0)
        calls.fails = True
        calls.sync_gate.set()
        found = await asyncio.gather(before, *rows, return_exceptions=True)
        assert [type(outcome) for outcome in found] == [CaptureError] * 4
        assert await kept(ledger) == []
        await ledger.close()

    async def test_who_stops_waiting_stops_no_append(self, tmp_path: Path) -> None:
        calls = FaultyCalls(only=lambda path: path.endswith(".lineage.jsonl"))
        calls.sync_gate = threading.Event()
        ledger = FileCaptureLedger(tmp_path, calls=calls)
        before = asyncio.create_task(ledger.record(commit_of_turn(0)))
        await until(calls.syncs_waiting.is_set)
        impatient, patient = (asyncio.create_task(ledger.record(commit_of_turn(turn))) for turn in (1, 2))
        await asyncio.sleep(0)
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        calls.sync_gate.set()
        await asyncio.wait_for(asyncio.gather(before, patient), 20)
        assert await kept(ledger) == ["c0", "c1", "c2"]
        await ledger.close()

    async def test_one_rollout_of_many_processes(self, tmp_path: Path) -> None:
        script = """
import asyncio, sys
from gym_ray.testing.ledger_commits import commit_of_turn
from gym_ray.token_id_capture.staging import FileCaptureLedger

async def main():
    ledger = FileCaptureLedger(sys.argv[1])
    mine = [commit_of_turn(0, call_id=f"{sys.argv[2]}-{n}", tokens=f"{sys.argv[2]}-{n}") for n in range(40)]
    shared = [commit_of_turn(0, call_id=f"all-{n}", tokens=str(n)) for n in range(40)]
    for n in range(0, 40, 8):
        await asyncio.gather(*map(ledger.record, [*mine[n : n + 8], *shared[n : n + 8]]))
    await ledger.close()

asyncio.run(main())
"""
        workers = [
            await asyncio.create_subprocess_exec(sys.executable, "-c", script, str(tmp_path), str(number))
            for number in range(3)
        ]
        assert [await worker.wait() for worker in workers] == [0, 0, 0]
        ledger = FileCaptureLedger(tmp_path)
        expected = [f"{name}-{number}" for name in (*range(3), "all") for number in range(40)]
        assert sorted(await kept(ledger)) == sorted(expected)
        await ledger.close()


WRITER = """
import asyncio, sys
from gym_ray.testing.ledger_commits import commit_of_turn
from gym_ray.token_id_capture.staging import FileCaptureLedger

async def main():
    ledger = FileCaptureLedger(sys.argv[1])
    async def rollout(name):
        for turn in range(1000):
            await ledger.record(commit_of_turn(turn % 20, name, call_id=f"c-{turn}", tokens=str(turn)))
            sys.stdout.write(f"{name} c-{turn}\\n")
            sys.stdout.flush()
    await asyncio.gather(*(rollout(f"r{number}") for number in range(4)))

asyncio.run(main())
"""


@pytest.mark.parametrize("after", [3, 170])
async def test_a_killed_process_loses_nothing_that_it_told(tmp_path: Path, after: int) -> None:
    told = [row.decode().split() for row in lines_until_killed([sys.executable, "-c", WRITER, str(tmp_path)], after)]
    ledger = FileCaptureLedger(tmp_path)
    for number in range(4):
        name = f"r{number}"
        manifest = await ledger.manifest(name)
        assert manifest.failures == []
        mine = [call_id for rollout_id, call_id in told if rollout_id == name]
        assert {record.model_call_id for record in manifest.records} >= set(mine)
        await ledger.record_failure(name, "after", "the kill")
        assert len((await ledger.manifest(name)).failures) == 1
    await ledger.close()


async def test_files_are_for_their_owner_only(ledger: FileCaptureLedger, tmp_path: Path) -> None:
    await ledger.record(commit_of_turn(0))
    await ledger.retire(["r2"])
    assert names(tmp_path) == [FILE, "r2.lineage.retired"]
    for name in names(tmp_path):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


async def test_a_look_up_reads_only_what_is_new(tmp_path: Path) -> None:
    class Counting(FileCalls):
        read = 0

        def pread(self, fd: int, size: int, offset: int) -> bytes:
            data = super().pread(fd, size, offset)
            self.read += len(data)
            return data

    calls = Counting()
    path = tmp_path / FILE
    path.write_bytes(b"".join(map(line, range(200))))
    ledger = FileCaptureLedger(tmp_path, calls=calls)
    assert await parent(ledger, 200) == "c199"
    assert calls.read == path.stat().st_size
    calls.read = 0
    assert await parent(ledger, 150) == "c149"
    assert calls.read == 0
    await ledger.record(commit_of_turn(200))
    assert await parent(ledger, 201) == "c200"
    assert calls.read < 3 * len(line(200))
    await ledger.close()


async def test_a_damaged_file_is_logged_with_its_place(
    ledger: FileCaptureLedger, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / FILE
    path.write_bytes(b"{\n")
    with caplog.at_level(logging.ERROR):
        assert await ledger.has_rows("r1")
        path.write_bytes(path.read_bytes() + b"\n[\n")
        assert await ledger.has_rows("r1")
    assert [
        record.getMessage().count(f"{FILE}:{number}: ") for record, number in zip(caplog.records, (1, 3), strict=True)
    ] == [1, 1]


def test_the_cache_forgets_the_rollouts_asked_for_longest_ago(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, max_rows=8)
    for name in ("a", "b", "a", "c", "d", "e"):
        (tmp_path / f"{name}.lineage.jsonl").write_bytes(b"")
        with cache.held(name) as cached:
            cached.refresh(FileCalls())
    assert len(cache) == 4
    cache.drop(["d", "e", "a", "unknown"])
    assert len(cache) == 1
    (tmp_path / "long.lineage.jsonl").write_bytes(b"".join(map(line, range(20))))
    with cache.held("long") as cached:
        cached.refresh(FileCalls())
    assert len(cache) == 1
    with cache.held("long") as cached:
        assert cached.rows.weight == 20


async def test_lines_have_no_tokens_and_sorted_keys(ledger: FileCaptureLedger, tmp_path: Path) -> None:
    await ledger.record(commit_of_turn(1))
    (data,) = (tmp_path / FILE).read_bytes().splitlines()
    row = json.loads(data)
    assert list(row) == sorted(row)
    assert not [name for name in row if "token" in name]
    assert os.linesep.encode() not in data
