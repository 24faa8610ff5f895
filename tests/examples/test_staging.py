"""The examples of staging: what the worker staged is what each way of reading gives back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gym_ray.testing.staged_rollout import StagedRollout
from gym_ray.token_id_capture.staging import CaptureLedgerCommit, FileCaptureLedger
from gym_ray.token_id_capture.staging.parquet import ParquetStagingSink

EXAMPLES = Path(__file__).parents[2] / "examples" / "staging"


def run(name: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=50, check=False)


def said(name: str, *arguments: str, cwd: Path) -> list[str]:
    done = run(name, *arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_workers_calls_become_rows_with_their_pixels(tmp_path: Path) -> None:
    where = str(tmp_path / "staged")
    (told,) = said("worker.py", where, "ledger", "--rollouts", "3", cwd=tmp_path)
    assert told.startswith("6 calls of 3 rollouts staged in")
    proved = said("read_rows.py", where, "ledger", cwd=tmp_path)
    assert [line.split(":")[0] for line in proved] == ["0-0", "1-0", "2-0"]
    for line in proved:
        # Questions of 23 and 22 bytes, and two answers of eight.
        assert line.startswith(f"{line[:3]}: 61 tokens, 16 to learn from, mean log prob -4.554, reward None")
        assert line.endswith("; 0.pixel_values[0]: bfloat16[3, 32, 32]")
    plain = said("read_rows.py", where, "ledger", "--with", "pyarrow", cwd=tmp_path)
    assert plain == [line.split(", reward")[0] for line in proved]


def test_media_of_every_call_ids_of_64_bits_and_damaged_calls(tmp_path: Path) -> None:
    """Two calls with media of one name, ids that 31 bits do not hold, and a rollout whose calls are gone."""
    rollouts, where = [], tmp_path / "staged"
    for name in ("r0", "r1"):
        rollout = StagedRollout(name)
        rollout.add("c0", [1, 2], [3], admitted_at=1.0)
        rollout.add("c1", [2**63], [2**40], parent="c0", admitted_at=2.0)
        rollouts.append(rollout)
    media = [{"pixels": np.zeros((1, 2), np.int8)}, {"pixels": [np.ones(3, np.int8), "a note"]}]
    for rollout in rollouts:
        with ParquetStagingSink(where) as sink:
            records = rollout.snapshots()
            for at, (record, given) in enumerate(zip(records, media, strict=True)):
                key = sink.stage(record, attachments=given).staging_key
                rollout.rows[at] = rollout.rows[at].model_copy(update={"staging_key": key})

    async def commit() -> None:
        ledger = FileCaptureLedger(tmp_path / "ledger")
        for rollout in rollouts:
            keys: list[str] = []
            for row in rollout.rows:
                keys.append(row.staging_key)
                told = {"staging_chain": list(keys), "request_items": [], "response_items": []}
                await ledger.record(CaptureLedgerCommit(rollout_id=rollout.rollout_id, record=row, **told))
        await ledger.close()

    asyncio.run(commit())
    pictures = "; 0.pixels[0]: int8[1, 2]; 1.pixels[0]: int8[3]; 1.pixels[1]: str"
    proved = said("read_rows.py", str(where), "ledger", cwd=tmp_path)
    assert [line.split(":")[0] for line in proved] == ["r0", "r1"]
    assert all("5 tokens, 2 to learn from" in line and line.endswith(pictures) for line in proved)
    plain = said("read_rows.py", str(where), "ledger", "--with", "pyarrow", cwd=tmp_path)
    assert plain == [line.split(", reward")[0] for line in proved]
    for segment in where.rglob("*.calls.parquet"):
        if segment.parent.name == rollouts[1].rows[0].staging_key.split(":")[3].partition("-")[0]:
            segment.unlink()
    whole, gone = said("read_rows.py", str(where), "ledger", cwd=tmp_path)
    assert whole == proved[0]
    assert gone.startswith("r1: nothing to learn from")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["{here}/staged", "nowhere"], "nowhere: no such directory; name the token_id_capture.dir"),
        (["{here}/staged", ".", "--with", "pyarrow"], "staged holds no segments of calls"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, arguments: list[str], problem: str) -> None:
    done = run("read_rows.py", *(one.format(here=tmp_path) for one in arguments), cwd=tmp_path)
    assert done.returncode == 2
    assert problem in done.stderr
