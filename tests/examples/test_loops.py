"""The training loop and the run over two nodes, as a user starts them, with the embedded model."""

from __future__ import annotations

import os
import re
import runpy
import secrets
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gym_ray.rollouts.training.results import RolloutGroup, RolloutResult
from gym_ray.token_id_capture.token_table import masked_table, token_table

EXAMPLES = Path(__file__).parents[2] / "examples"
TRAIN, TWO_NODES = EXAMPLES / "training_loop" / "train.py", EXAMPLES / "two_nodes_s3" / "run.py"


def ran(tmp_path: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    ray = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    }
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        env=own | ray,
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )


def result(reward: float | None, token_ids: list[int], index: int = 0) -> RolloutResult:
    row = {
        "rollout_id": f"0-{index}",
        "chain_id": "c",
        "mask_sample": False,
        "reasons": [],
        "token_ids": token_ids,
        "loss_mask": [0, *[1] * (len(token_ids) - 1)],
        "policy_log_probs": [-0.5] * (len(token_ids) - 1),
        "spans": [
            {"kind": "prompt", "start": 0, "end": 1},
            {"kind": "policy", "start": 1, "end": len(token_ids)},
        ],
        "weight_spans": [],
    }
    lost = reward is None
    tokens = masked_table(f"0-{index}", ["deadline"]) if lost else token_table([row], reward=reward)
    reasons = ("deadline",) if lost else ()
    return RolloutResult(f"0-{index}", 0, 0, index, 0, reward, lost, reasons, None, tokens, None)


def test_advantages_are_relative_to_the_group() -> None:
    train = runpy.run_path(str(TRAIN))
    assert train["advantages"]([1.0, 0.0, 0.0, 1.0]) == [1.0, -1.0, -1.0, 1.0]
    assert train["advantages"]([1.0, 1.0, 1.0]) == [0.0, 0.0, 0.0]
    found = train["advantages"]([3.0, 1.0, 2.0])
    assert sum(found) == pytest.approx(0.0)
    assert np.std(found) == pytest.approx(1.0)


def test_lost_rollouts_are_left_out_and_a_group_of_one_gives_nothing() -> None:
    train = runpy.run_path(str(TRAIN))
    group = RolloutGroup(0, (result(1.0, [5, 6, 7]), result(None, [], 1), result(0.0, [5, 8], 2)))
    samples = list(train["samples_of"](group))
    assert [(sample.rollout_id, sample.advantage) for sample in samples] == [("0-0", 1.0), ("0-2", -1.0)]
    assert [sample.token_ids.tolist() for sample in samples] == [[5, 6, 7], [5, 8]]
    assert not samples[0].token_ids.flags.writeable
    assert train["learn"](samples) == (3, -0.5)
    assert list(train["samples_of"](RolloutGroup(0, (result(1.0, [5, 6]), result(None, [], 1))))) == []
    tokens, log_prob = train["learn"]([])
    assert tokens == 0
    assert np.isnan(log_prob)


@pytest.mark.ray
@pytest.mark.model
@pytest.mark.timeout(400)
def test_the_loop_prints_a_line_for_each_step(tmp_path: Path) -> None:
    done = ran(tmp_path, TRAIN, "--steps", "2", "--tasks", "1", "--repeats", "2", "--output", tmp_path / "loop")
    assert done.returncode == 0, done.stderr
    head, *lines = [line.split() for line in done.stdout.splitlines() if re.match(r" +(step|\d)", line)]
    assert head[:5] == ["step", "weights", "groups", "usable", "lost"]
    assert [line[:5] for line in lines] == [["1", "1", "1", "2", "0"], ["2", "2", "1", "2", "0"]]
    assert all(int(line[6]) > 0 and float(line[7]) < 0 for line in lines), "tokens, and what they were sampled with"


@pytest.mark.ray
@pytest.mark.model
@pytest.mark.timeout(400)
def test_two_nodes_capture_into_an_object_store(tmp_path: Path) -> None:
    done = ran(tmp_path, TWO_NODES, "--limit", "2", "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^(\d-0): reward \S+, (\d+) calls, (\d+) of them in the store$", done.stdout, re.MULTILINE)
    assert [rollout for rollout, _, _ in sorted(found)] == ["0-0", "1-0"]
    assert all(attached == stored != "0" for _, attached, stored in found)
    writers, segments = re.findall(r"^(\d+) writers published (\d+) segments$", done.stdout, re.MULTILINE)[0]
    assert (writers, int(segments) >= 2) == ("2", True), "a model server on each node"
