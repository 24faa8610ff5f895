"""Whatever the umask, nobody but its owner reads what a capture writes."""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gym_ray.model_call_capture.open_log import OpenLog, list_logs
from gym_ray.model_call_capture.recovery import adopt_dead_logs, lost_calls_of_dead_writers
from gym_ray.model_call_capture.store import CaptureStore
from gym_ray.model_call_capture.writer import CaptureWriter
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.local_calls import file_calls_for
from gym_ray.storage.posix import make_directory


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(root: Path) -> dict[str, str]:
    """Return the permission bits of everything in a directory, and of itself."""
    found = {".": root}
    for folder, folders, files in os.walk(root):
        for name in [*folders, *files]:
            path = Path(folder) / name
            found[str(path.relative_to(root))] = path
    return {name: oct(stat.S_IMODE(path.stat().st_mode)) for name, path in found.items()}


def only_for_the_owner(root: Path) -> list[str]:
    """Return what others may look into, after checking that there is anything."""
    found = modes(root)
    assert len(found) > 1
    right = {name: "0o700" if (root / name).is_dir() else "0o600" for name in found}
    return [f"{name} {mode}" for name, mode in found.items() if mode != right[name]]


async def one_call(writer: CaptureWriter, rollout_id: str) -> None:
    exchange = writer.begin(rollout_id, "chat")
    assert exchange is not None
    await writer.commit(exchange)


async def test_everything_a_writer_creates(tmp_path: Path, umask: int) -> None:
    root = tmp_path / "deep" / "captures"
    writer = CaptureWriter(root, server_name="s")
    writer.start()
    await one_call(writer, "0-0")
    writer.store.mark_incomplete("0-1")
    names = [".open", f".open/{writer.writer_id}.log", ".gym-ray", ".gym-ray/writers"]
    names += [f".gym-ray/writers/{writer.writer_id}.json", "0-0.capture.jsonl", "0-1.capture.incomplete"]
    assert set(modes(root)) == {".", *names}
    assert only_for_the_owner(root) == []
    assert stat.S_IMODE(root.parent.stat().st_mode) == 0o777 & ~umask  # what lies beside captures is not theirs
    writer.close()


def test_everything_a_store_creates_without_a_writer(tmp_path: Path, umask: int) -> None:
    recorded, marked = CaptureStore(tmp_path / "a"), CaptureStore(tmp_path / "b")
    recorded.record("0-0", {})
    marked.mark_incomplete("0-0")
    assert only_for_the_owner(recorded.root) + only_for_the_owner(marked.root) == []


def test_everything_that_adopting_creates(tmp_path: Path, umask: int) -> None:
    root = tmp_path / "captures"
    CaptureStore(root).record("0-1", {})
    dead = OpenLog(root, "s-1.log", max_bytes=4096)
    dead.begin("c" * 32, "0-0")
    dead.close()
    assert only_for_the_owner(root) == []
    adopt_dead_logs(CaptureStore(root), "s")
    assert {".gym-ray/adopt.lock", "0-0.capture.incomplete"} <= set(modes(root))
    assert only_for_the_owner(root) == []


async def test_a_directory_of_the_users_own_keeps_its_mode_and_its_files_are_for_their_owner(
    tmp_path: Path, umask: int
) -> None:
    root = tmp_path / "captures"
    root.mkdir()
    root.chmod(0o755)
    writer = CaptureWriter(root, server_name="s")
    writer.start()
    await one_call(writer, "0-0")
    writer.close()
    assert only_for_the_owner(root) == [". 0o755"]


async def test_looser_files_of_ours_are_tightened_when_they_are_opened(tmp_path: Path) -> None:
    root = tmp_path / "captures"
    (root / ".open").mkdir(parents=True, mode=0o700)
    (root / ".gym-ray").mkdir(mode=0o700)
    root.chmod(0o700)
    log = root / ".open" / "s-1.log"
    log.write_text(f"B {'c' * 32} 0-9\n")
    loose = [root / "0-0.capture.jsonl", root / "0-1.capture.jsonl", root / "0-2.capture.incomplete", log]
    loose.append(root / ".gym-ray" / "adopt.lock")
    for path in loose:
        path.touch()
        path.chmod(0o666)
    assert lost_calls_of_dead_writers(CaptureStore(root), ["0-9"]) == {"0-9": ["c" * 32]}
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    writer = CaptureWriter(root, server_name="s")
    writer.start()
    await one_call(writer, "0-0")
    writer.store.clear("0-1")
    writer.store.mark_incomplete("0-2")
    writer.close()
    assert list_logs(root) == []
    assert only_for_the_owner(root) == []


class WithoutPermissions(FileCalls):
    """A file system whose files all have one mode."""

    def change_mode(self, fd: int, mode: int) -> None:
        raise OSError(errno.EPERM, "operation not permitted")


def test_a_file_system_without_permissions_is_used_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    path = tmp_path / "0-0.capture.jsonl"
    path.touch(0o666)
    path.chmod(0o666)
    store = CaptureStore(tmp_path, calls=WithoutPermissions())
    store.record("0-0", {})
    assert store.read("0-0") == [{}]
    (message,) = caplog.messages
    assert message.startswith(f"{path} can be read by others, and that cannot be changed: ")


class Foreign(FileCalls):
    """Files of somebody else."""

    def fstat(self, fd: int) -> os.stat_result:
        found = list(super().fstat(fd))
        found[stat.ST_UID] += 1
        return os.stat_result(found)


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "0-0.capture.jsonl"
    path.touch()
    path.chmod(0o666)
    CaptureStore(tmp_path, calls=Foreign()).record("0-0", {})
    assert stat.S_IMODE(path.stat().st_mode) == 0o666


def test_the_calls_of_a_local_disk_do_the_same(tmp_path: Path) -> None:
    calls = file_calls_for(tmp_path)
    make_directory(calls, tmp_path / "a" / "b", 0o700)
    CaptureStore(tmp_path / "a" / "b", calls=calls).record("0-0", {})
    assert only_for_the_owner(tmp_path / "a" / "b") == []
