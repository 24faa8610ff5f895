"""Whenever a process that joins again is killed, every output is the old or the new one, and the run goes on."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from gym_ray.evidence.join import JoinOptions
from gym_ray.evidence.run_result import RunFailure
from gym_ray.model_call_capture.captures import FileCaptures
from gym_ray.model_call_capture.quiesce import WrittenCalls
from gym_ray.rollouts.rejoining.rejoin import rejoin
from gym_ray.rollouts.run_files.parts_files import read_inline
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.storage.calls import FileCalls
from gym_ray.testing.joined_runs import JoinedRun, captured_call
from gym_ray.testing.storage_faults import ForgetfulCalls
from gym_ray.testing.written_runs import UnsyncedCalls, resumed

_OLD = [["c0"], ["c2"], ["c1"]]
_HALF = [["c0", "late0"], ["c2"], ["c1"]]
_NEW = [["c0", "late0"], ["c2"], ["c1", "late1"]]


def _nobody(rollout_id: str) -> WrittenCalls:
    raise AssertionError(f"the servers were asked about {rollout_id}")


class _Counted(UnsyncedCalls):
    """Kills its process before the given step; without one it counts the steps."""

    def __init__(self, last: int | None = None) -> None:
        self.steps, self._last = 0, last

    def _step(self) -> None:
        if self.steps == self._last:
            os.kill(os.getpid(), signal.SIGKILL)
        self.steps += 1

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        self._step()
        return super().open(path, flags, mode)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """Write a half, and the rest as the next step."""
        self._step()
        return super().write(fd, data[: (len(data) + 1) // 2])

    def sync(self, fd: int) -> None:
        self._step()

    def rename(self, source: str, target: str) -> None:
        self._step()
        super().rename(source, target)
        self._step()

    def unlink(self, path: str) -> None:
        self._step()
        super().unlink(path)
        self._step()


def _rejoin(root: Path, calls: FileCalls) -> None:
    paths = RunPaths.of(root / "out.jsonl")
    rejoin(paths, FileCaptures(root / "captures"), options=JoinOptions(), written_calls=_nobody, calls=calls)


def _is_killed(root: Path, calls: FileCalls) -> bool:
    """Join again in a process that is killed at its step; return whether it was."""
    child = os.fork()
    if child == 0:
        try:
            _rejoin(root, calls)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def _make(root: Path, options: JoinOptions) -> None:
    """Write a run with a reply, a failure and a reply; calls of the first two came late."""
    root.mkdir()
    with JoinedRun(root, 3, options=options, calls=UnsyncedCalls()) as run:
        for ordinal in range(3):
            call_id = f"c{ordinal}"
            run.capture(ordinal, [captured_call(call_id, time.time())])
            invocation = {
                "kind": "agent_invocation",
                "invocation_id": "root",
                "model_calls": [{"model_call_id": call_id}],
            }
            bundle = {"source": "test", "records": [invocation]}
            failed = RunFailure("agent_timeout", "TimeoutError", "too slow")
            run.finish_joined(ordinal, failed if ordinal == 1 else {"reward": 1.0, "ng_agent_observations": bundle})
        for ordinal in range(2):
            run.capture(ordinal, [captured_call(f"late{ordinal}", time.time())])


def _calls_of(root: Path) -> list[list[str]]:
    """Return the calls of each record, which must agree in all its parts."""
    paths, found = RunPaths.of(root / "out.jsonl"), []
    for line in (paths.output.read_bytes() + paths.failures.read_bytes()).splitlines():
        record = read_inline(paths, line)
        attached = [call["model_call_id"] for call in record["ng_model_call_capture"]["calls"]]
        if "ng_trajectory" in record:
            assert attached == [call["model_call_id"] for call in record["ng_trajectory"]["model_calls"]]
            assert record["ng_trajectory"]["model_calls"][0]["request"]["model"] == "m"
        assert ("_ng_rejoined" in record) == (len(attached) == 2)
        found.append(attached)
    return found


@pytest.mark.parametrize("compact", [False, True])
def test_a_kill_at_any_step_leaves_old_or_new(tmp_path: Path, compact: bool) -> None:
    made = tmp_path / "made"
    _make(made, JoinOptions(compact=compact))
    assert _calls_of(made) == _OLD
    counter = _Counted()
    shutil.copytree(made, tmp_path / "whole")
    _rejoin(tmp_path / "whole", counter)
    assert _calls_of(tmp_path / "whole") == _NEW

    met = []
    for step in range(counter.steps):
        root = tmp_path / str(step)
        shutil.copytree(made, root)
        assert _is_killed(root, _Counted(step)), step
        met.append(_calls_of(root))
        found = resumed(RunPaths.of(root / "out.jsonl"), calls=UnsyncedCalls())
        assert not any("disagrees" in warning for warning in found.warnings), "an index of other outputs was left"
        assert list(found.state.done) == [1, 0, 1]
        assert list(found.state.failures) == [0, 1, 0]
        _rejoin(root, UnsyncedCalls())
        assert _calls_of(root) == _NEW
        assert not list(root.glob(".*.tmp"))
    assert all(state in (_OLD, _HALF, _NEW) for state in met)
    assert all(state in met for state in (_OLD, _HALF, _NEW)), "too few kills were met to tell"


class _PowerCuts(ForgetfulCalls):
    """Looks, behind every step, at what a power cut would leave of the outputs."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root, self.left = root, list[dict[str, bytes]]()
        for path in (*root.glob("*.jsonl"), root):
            fd = super().open(str(path), os.O_RDONLY)
            super().sync(fd)
            super().close(fd)

    def _look(self) -> None:
        self.left.append(self.after_power_cut(self._root))

    def write(self, fd: int, data: bytes | memoryview) -> int:
        written = super().write(fd, data)
        self._look()
        return written

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self._look()

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        self._look()


def test_a_power_cut_at_any_step_leaves_old_or_new(tmp_path: Path) -> None:
    root = tmp_path / "made"
    _make(root, JoinOptions(compact=True))
    names = ("out.jsonl", "out_failures.jsonl")
    old = {name: (root / name).read_bytes() for name in names}
    calls = _PowerCuts(root)
    _rejoin(root, calls)
    new = {name: (root / name).read_bytes() for name in names}
    assert all(left[name] in (old[name], new[name]) for left in calls.left for name in names)
    assert {name: calls.left[-1][name] for name in names} == new
