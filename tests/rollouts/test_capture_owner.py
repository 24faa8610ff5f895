from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gym_ray.capture_location import CaptureLocation
from gym_ray.errors import StorageError
from gym_ray.rollouts.capture_owner import CaptureOwner

HOLDER = """
import sys
from pathlib import Path
from gym_ray.capture_location import CaptureLocation
from gym_ray.rollouts.capture_owner import CaptureOwner
owner = CaptureOwner(CaptureLocation(sys.argv[1]), sys.argv[3:], Path(sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
"""


def test_overlapping_live_runs_refuse_each_other_and_disjoint_ones_do_not(tmp_path: Path) -> None:
    first = CaptureOwner(CaptureLocation.of(tmp_path), ["0-0", "1-0"], Path("/out/first.jsonl"))
    with pytest.raises(StorageError, match=r"rollout id 1-0 .* /out/first\.jsonl.*model_call_capture_dir"):
        CaptureOwner(CaptureLocation.of(tmp_path), ["2-0", "1-0"], Path("/out/second.jsonl"))
    disjoint = CaptureOwner(CaptureLocation.of(tmp_path), ["2-0", "10-0"], Path("/out/third.jsonl"))
    first.close()
    first.close()
    CaptureOwner(CaptureLocation.of(tmp_path), ["0-0", "1-0"], Path("/out/second.jsonl")).close()
    disjoint.close()
    assert not list(tmp_path.glob(".gym-ray/owners/*.ids"))


def test_a_claim_ends_with_its_process(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path), "/out/other.jsonl", "0-0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StorageError, match="0-0"):
            CaptureOwner(CaptureLocation.of(tmp_path), ["0-0"], Path("/out/mine.jsonl"))
        os.kill(holder.pid, signal.SIGKILL)
    mine = CaptureOwner(CaptureLocation.of(tmp_path), ["0-0"], Path("/out/mine.jsonl"))
    assert len(list(tmp_path.glob(".gym-ray/owners/*.ids"))) == 1, "the dead run's file is gone"
    mine.close()


@pytest.mark.parametrize(("first", "second"), [("0-0", "0-0-a2"), ("0-0-a1", "0-0"), ("0-0-a1", "0-0-a12")])
def test_attempts_of_one_rollout_overlap(tmp_path: Path, first: str, second: str) -> None:
    owner = CaptureOwner(CaptureLocation.of(tmp_path), [first], Path("/out/first.jsonl"))
    with pytest.raises(StorageError, match="rollout id 0-0 belongs"):
        CaptureOwner(CaptureLocation.of(tmp_path), [second], Path("/out/second.jsonl"))
    no_attempts = ["0-0-a0", "0-0-a1x"]
    CaptureOwner(CaptureLocation.of(tmp_path), no_attempts, Path("/out/third.jsonl")).close()
    owner.close()


def test_a_run_that_ends_while_another_looks_is_met_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = CaptureOwner(CaptureLocation.of(tmp_path), ["0-0"], Path("/out/first.jsonl"))
    closing = threading.Thread(target=ending.close)
    seen: list[list[Path]] = []
    glob = Path.glob

    def close_after_listing(directory: Path, pattern: str) -> list[Path]:
        found = list(glob(directory, pattern))
        closing.start()
        closing.join(0.1)  # it must be waiting for us; without the lock it has ended by now
        seen.append([path for path in found if path.exists()])
        return found

    monkeypatch.setattr(Path, "glob", close_after_listing)
    with pytest.raises(StorageError, match="belongs to the run"):
        CaptureOwner(CaptureLocation.of(tmp_path), ["0-0"], Path("/out/second.jsonl"))
    monkeypatch.undo()
    closing.join(20)
    assert len(seen[0]) == 1
    CaptureOwner(CaptureLocation.of(tmp_path), ["0-0"], Path("/out/second.jsonl")).close()


def test_a_claim_ends_where_its_file_cannot_be_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    owner = CaptureOwner(CaptureLocation.of(tmp_path), ["0-0"], Path("/out/first.jsonl"))
    lock = tmp_path / ".gym-ray" / "owners" / "lock"
    lock.unlink()
    lock.mkdir()
    owner.close()
    assert "cannot be removed" in caplog.text
    lock.rmdir()
    CaptureOwner(CaptureLocation.of(tmp_path), ["0-0"], Path("/out/second.jsonl")).close()


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        CaptureOwner(CaptureLocation.of(tmp_path / "file"), ["0-0"], Path("/out.jsonl"))


def test_a_million_ids_cost_no_memory_where_nobody_else_runs(tmp_path: Path) -> None:
    seen = 0

    def ids() -> object:
        nonlocal seen
        for number in range(1000):
            seen += 1
            yield f"{number}-0"

    owner = CaptureOwner(CaptureLocation.of(tmp_path), ids(), Path("/out.jsonl"))  # type: ignore[arg-type]
    assert seen == 1000
    owner.close()


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_a_claim_is_its_owners_only_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        owner = CaptureOwner(CaptureLocation.of(tmp_path / "captures"), ["0-0"], Path("/out/first.jsonl"))
    finally:
        os.umask(before)
    modes = {
        path.name: path.stat().st_mode & 0o777 for path in [tmp_path / "captures", *tmp_path.rglob("captures/**/*")]
    }
    owner.close()
    assert {mode for name, mode in modes.items() if name in {"captures", ".gym-ray", "owners"}} == {0o700}
    assert {mode for name, mode in modes.items() if name == "lock" or name.endswith(".ids")} == {0o600}
