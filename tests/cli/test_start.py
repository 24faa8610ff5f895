"""What the start of a command says and how it can be stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]
ROOT = Path(__file__).parents[2]
ROW = {"responses_create_params": {"input": "q"}, "options": [{"A": "x"}], "expected_answer": "A"}
COMMAND = (
    *(sys.executable, "-m", "gym_ray", "eval", "run", "--resources-server", "mcqa", "--model-type", "openai_model"),
    *("--agent", "mcqa_simple_agent", "--input", "rows.jsonl", "--output", "out.jsonl"),
    "++policy_base_url=http://127.0.0.1:1/v1",
)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROW) + "\n")
    (tmp_path / "env.yaml").write_text("policy_api_key: sk-not-a-key\npolicy_model_name: m\n")
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def start(tmp_path: Path, *more: str) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [*COMMAND, *more],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_an_endpoint_that_is_down_is_named_with_the_reason(
    tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    process = start(tmp_path, "++model_endpoint_timeout_s=3")
    started.append(process)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 1
    assert "starting servers: policy_model: " in err, "the reason is shown while it waits"
    last = err.strip().splitlines()[-1]
    assert last.startswith("error: policy_model: ")
    assert "http://127.0.0.1:1/v1" in last
    assert "Connection refused" in last
    assert "sk-not-a-key" not in err
    assert "Traceback" not in err


def wait_for_python(process: subprocess.Popen[str]) -> None:
    """Wait until the interpreter catches Ctrl-C; before, on a busy machine, nobody could make it quiet."""
    deadline = time.monotonic() + 60
    while True:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        (caught,) = (line.split()[1] for line in lines if line.startswith("SigCgt:"))
        if int(caught, 16) >> (signal.SIGINT - 1) & 1:
            return
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("delay_s", [1.0, 3.0, 6.0])
def test_ctrl_c_during_the_start_is_quiet_and_ends_it(
    tmp_path: Path, started: list[subprocess.Popen[str]], delay_s: float
) -> None:
    process = start(tmp_path)
    started.append(process)
    wait_for_python(process)
    time.sleep(delay_s)  # the moment is the input of this test: before, during and after Ray comes up
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=150)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert not (tmp_path / "out.jsonl").exists()
