"""What a staging store holds after its writer was killed, and after a power cut at any moment."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from gym_ray.storage.posix import PosixStore
from gym_ray.testing.killed_process import lines_until_killed
from gym_ray.testing.numbered_calls import media_of_call, numbered_call
from gym_ray.testing.staging_process import staged_of
from gym_ray.testing.storage_faults import ForgetfulCalls
from gym_ray.token_id_capture.staging.parquet.calls.staging_sink import ParquetStagingSink
from gym_ray.token_id_capture.staging.parquet.calls.staging_source import ParquetStagingSource
from gym_ray.token_id_capture.staging.parquet.segments.layout import parse_segment_name


def check_acknowledged(source: ParquetStagingSource, acknowledged: dict[int, str]) -> None:
    """Every call that was acknowledged is there with its tokens and with every attachment."""
    numbers = list(acknowledged)
    snapshots = source.fetch([acknowledged[number] for number in numbers])
    for number, snapshot in zip(numbers, snapshots, strict=True):
        record, media = staged_of(number)
        assert (snapshot.model_call_id, snapshot.digest) == (record.model_call_id, record.digest)
        views = source.fetch_attachments(acknowledged[number])
        assert views.keys() == (media or {}).keys()
        for name, wanted in (media or {}).items():
            view = views[name]
            assert not isinstance(view, list)
            assert np.array_equal(view.read(), wanted), (number, name)


def check_listed(store: PosixStore) -> int:
    """Everything that is listed is a whole segment; returns how many there are."""
    segments = [name for name in store.list() if name != "store.json"]
    for name in segments:
        assert parse_segment_name(name) is not None, name
        pq.read_table(store.root / name)
    return len(segments)


def kill_again_and_again(directory: Path, rounds: int) -> int:
    """Kill the process at random points; returns how many kills hit it while it was writing."""
    rng, hits, first = random.Random(rounds), 0, 0
    for round_number in range(rounds):
        root = directory / str(round_number % 3)  # the next writer finds what the killed one left
        command = [sys.executable, "-m", "gym_ray.testing.staging_process", str(root), str(first)]
        left_before = set(root.rglob(".*.parquet"))
        lines = lines_until_killed(command, rng.randint(1, 40))
        acknowledged = {int(number): key for number, key in (line.decode().split() for line in lines)}
        assert acknowledged, "the kill came before anything was acknowledged"
        hits += bool(set(root.rglob(".*.parquet")) - left_before)
        with ParquetStagingSource(root) as source:
            check_acknowledged(source, acknowledged)
        assert check_listed(PosixStore(root)) > 0
        first = max(acknowledged) + 1_000
    return hits


@pytest.mark.timeout(120)
def test_a_killed_writer_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    assert kill_again_and_again(tmp_path, 10) >= 5


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_hundred_killed_writers_lose_nothing_they_acknowledged(tmp_path: Path) -> None:
    assert kill_again_and_again(tmp_path, 200) >= 100


class CutCalls(ForgetfulCalls):
    """Stops the world after so many calls, as a power cut would."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.left = steps

    def _step(self) -> None:
        if self.left == 0:
            raise OSError("the power is gone")
        self.left -= 1

    def write(self, fd: int, data: bytes | memoryview) -> int:
        self._step()
        return super().write(fd, data)

    def sync(self, fd: int) -> None:
        self._step()
        super().sync(fd)

    def link(self, source: str, target: str) -> None:
        self._step()
        super().link(source, target)

    def unlink(self, path: str) -> None:
        self._step()
        super().unlink(path)


def stage_until_cut(root: Path, steps: int) -> tuple[dict[int, str], CutCalls, bool]:
    """Stage three calls; returns the keys of the acknowledged ones, and whether there was a cut."""
    calls, keys = CutCalls(steps), {}
    try:
        sink = ParquetStagingSink(root, store=PosixStore(root, calls=calls))
    except OSError:
        return {}, calls, True
    for number in range(3):
        result = sink.stage(numbered_call(number), attachments=media_of_call(number))
        if result.ok:
            keys[number] = str(result.staging_key)
    sink.close()
    return keys, calls, len(keys) < 3


def replay_cut(root: Path, calls: CutCalls, after: Path) -> None:
    """Write down what a power cut leaves: bytes and names that were synced, and nothing else."""
    for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
        target = after / folder.relative_to(root)
        target.mkdir(parents=True, exist_ok=True)
        for name, data in calls.after_power_cut(folder).items():
            (target / name).write_bytes(data)


def test_a_power_cut_at_any_step_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    for steps in range(200):
        root, after = tmp_path / f"before-{steps}", tmp_path / f"after-{steps}"
        root.mkdir()
        keys, calls, cut = stage_until_cut(root, steps)
        replay_cut(root, calls, after)
        check_listed(PosixStore(after))
        if keys:
            with ParquetStagingSource(after) as source:
                found = source.fetch(list(keys.values()))
                assert [call.digest for call in found] == [numbered_call(number).digest for number in keys]
                for number, key in keys.items():
                    for name, wanted in media_of_call(number).items():
                        view = source.fetch_attachments(key)[name]
                        assert not isinstance(view, list)
                        assert np.array_equal(view.read(), wanted)
        if not cut:
            assert steps > 20, "there were hardly any steps to cut at"
            return
    raise AssertionError("the last run was cut as well")
