from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gym_ray.errors import StorageError
from gym_ray.rollouts.capture_owner import CaptureOwner

HOLDER = """
import sys
from pathlib import Path
from gym_ray.rollouts.capture_owner import CaptureOwner
owner = CaptureOwner(Path(sys.argv[1]), sys.argv[3:], Path(sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
"""


def test_overlapping_live_runs_refuse_each_other_and_disjoint_ones_do_not(tmp_path: Path) -> None:
    first = CaptureOwner(tmp_path, ["0-0", "1-0"], Path("/out/first.jsonl"))
    with pytest.raises(StorageError, match=r"rollout id 1-0 .* /out/first\.jsonl.*model_call_capture_dir"):
        CaptureOwner(tmp_path, ["2-0", "1-0"], Path("/out/second.jsonl"))
    disjoint = CaptureOwner(tmp_path, ["2-0", "10-0"], Path("/out/third.jsonl"))
    first.close()
    first.close()
    CaptureOwner(tmp_path, ["0-0", "1-0"], Path("/out/second.jsonl")).close()
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
            CaptureOwner(tmp_path, ["0-0"], Path("/out/mine.jsonl"))
        os.kill(holder.pid, signal.SIGKILL)
    mine = CaptureOwner(tmp_path, ["0-0"], Path("/out/mine.jsonl"))
    assert len(list(tmp_path.glob(".gym-ray/owners/*.ids"))) == 1, "the dead run's file is gone"
    mine.close()


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        CaptureOwner(tmp_path / "file", ["0-0"], Path("/out.jsonl"))


def test_a_million_ids_cost_no_memory_where_nobody_else_runs(tmp_path: Path) -> None:
    seen = 0

    def ids() -> object:
        nonlocal seen
        for number in range(1000):
            seen += 1
            yield f"{number}-0"

    owner = CaptureOwner(tmp_path, ids(), Path("/out.jsonl"))  # type: ignore[arg-type]
    assert seen == 1000
    owner.close()
