from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest

from gym_ray.storage.calls import FileCalls
from gym_ray.testing.storage_faults import FaultyCalls, ForgetfulCalls
from gym_ray.token_id_capture.protocols import CaptureProblem
from gym_ray.token_id_capture.token_files.rollout_folder import RolloutFolder
from gym_ray.token_id_capture.token_files.rollout_state import INTENTS_SUFFIX, STATE_SUFFIX, RolloutState

INTENTS = "r0.tokens.intents"


def folder(root: Path, calls: FileCalls | None = None) -> RolloutFolder:
    return RolloutFolder(root, calls or FileCalls())


def test_a_missing_state_is_the_default_and_reading_creates_nothing(tmp_path: Path) -> None:
    files = folder(tmp_path)
    assert files.stored_state("r0") is None
    assert files.state("r0") == RolloutState()
    assert files.marks("r0") == files.intents("r0") == []
    assert not files.is_marked("r0")
    assert not files.holds_anything("r0")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"frozen":3}'])
def test_an_unreadable_state_begins_anew_and_says_so(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "r0.tokens.state.json").write_bytes(data)
    with caplog.at_level(logging.WARNING):
        assert folder(tmp_path).stored_state("r0") is None
    assert f"{tmp_path}/r0.tokens.state.json: the lifecycle cannot be read" in caplog.text


def test_state_and_marks_outlive_a_power_cut(tmp_path: Path) -> None:
    calls = ForgetfulCalls()
    files = folder(tmp_path, calls)
    files.publish("r0", RolloutState(frozen=True, snapshot_id="s", version=1))
    files.add_mark("r0", CaptureProblem("lost", "c0"))
    files.add_mark("r0", CaptureProblem("lost", "c1"))
    kept = calls.after_power_cut(tmp_path)
    assert RolloutState.of_bytes(kept["r0.tokens.state.json"]).snapshot_id == "s"
    assert kept["r0.tokens.incomplete"].count(b"\n") == 2
    assert files.marks("r0") == [CaptureProblem("lost", "c0"), CaptureProblem("lost", "c1")]


def test_an_intent_counts_once_and_only_with_its_line_feed(tmp_path: Path) -> None:
    (tmp_path / INTENTS).write_bytes(b"c0\nc1\n\nc0\nc2")
    assert folder(tmp_path).intents("r0") == ["c0", "c1"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"c0\nc1\nc2\n", b"c0\nc2\n"),
        (b"c0\nc1\n", b"c0\n"),
        (b"c1\n", b""),
        (b"c1\nc0\nc1\n", b"c0\n"),
        (b"c11\nc1x\n", b"c11\nc1x\n"),
        (b"c0\nc1\ntorn", b"c0\n"),
        (b"", b""),
    ],
)
def test_a_withdrawn_intent_is_gone_for_every_reader(tmp_path: Path, before: bytes, after: bytes) -> None:
    calls = ForgetfulCalls()
    (tmp_path / INTENTS).write_bytes(before)
    fd = calls.open(str(tmp_path / INTENTS), os.O_RDONLY)
    calls.sync(fd)
    calls.close(fd)
    directory = calls.open(str(tmp_path), os.O_RDONLY)
    calls.sync(directory)
    calls.close(directory)
    folder(tmp_path, calls).remove_intent("r0", "c1")
    assert (tmp_path / INTENTS).read_bytes() == after
    assert calls.after_power_cut(tmp_path)[INTENTS] == after


def test_withdrawing_without_any_intent_is_fine(tmp_path: Path) -> None:
    folder(tmp_path).remove_intent("r0", "c1")
    assert os.listdir(tmp_path) == []


def test_a_failed_withdrawal_leaves_the_intents(tmp_path: Path) -> None:
    calls = FaultyCalls(only=lambda path: True)
    (tmp_path / INTENTS).write_bytes(b"c0\nc1\nc2\n")
    calls.write_error = OSError(errno.ENOSPC, "full")
    with pytest.raises(OSError, match="full"):
        folder(tmp_path, calls).remove_intent("r0", "c1")
    assert (tmp_path / INTENTS).read_bytes() == b"c0\nc1\nc2\n"
    assert os.listdir(tmp_path) == [INTENTS]


def test_removal_is_durable_and_takes_what_is_there(tmp_path: Path) -> None:
    calls = ForgetfulCalls()
    files = folder(tmp_path, calls)
    files.publish("r0", RolloutState())
    files.add_mark("r0", CaptureProblem("lost"))
    assert files.holds_anything("r0")
    files.remove("r0", STATE_SUFFIX, INTENTS_SUFFIX)
    assert list(calls.after_power_cut(tmp_path)) == ["r0.tokens.incomplete"]
