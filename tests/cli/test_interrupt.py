"""Ctrl-C and ``kill -9`` in the middle of a run: what has ended stays, and the exit code says so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gym_ray.model_call_capture import CaptureStore
from gym_ray.testing.numbered_upstream import numbered_upstream
from gym_ray.testing.serving import served

pytestmark = [pytest.mark.ray, pytest.mark.timeout(500)]
ROOT = Path(__file__).parents[2]
ROWS = 60

SETTINGS = f"""
policy_model:
  responses_api_models:
    openai_model: {{openai_base_url: "UPSTREAM/v1", openai_api_key: k, openai_model: numbered}}
diary_agent:
  responses_api_agents:
    callable_agent: {{callable: "{ROOT}/tests/actors/agents/diary_agent.py:agent"}}
"""


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Start a run of 60 slow rollouts in a process group of its own, as a terminal would."""
    row = {"agent_ref": {"name": "diary_agent"}, "diary": str(tmp_path / "diary.jsonl")}
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps(row | {"responses_create_params": {"input": f"row {n}"}}) + "\n" for n in range(ROWS))
    )
    processes: list[subprocess.Popen[str]] = []

    def run() -> subprocess.Popen[str]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "gym_ray", "eval", "run", "--config", "settings.yaml", "--concurrency", "4"),
                *("--input", "rows.jsonl", "--output", "out.jsonl", "++observability_enabled=true"),
                f"++model_call_capture_dir={tmp_path}/model-calls",
            ],
            cwd=tmp_path,
            env=environment | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        processes.append(process)
        return process

    with served(numbered_upstream(0.3)) as url:
        (tmp_path / "settings.yaml").write_text(SETTINGS.replace("UPSTREAM", url))
        yield run
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def wait_for_records(path: Path, count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 180
    while len(records(path)) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def check_evidence(tmp_path: Path) -> None:
    """Every answer that an agent was given is captured, and every record holds all of its own calls."""
    store = CaptureStore(tmp_path / "model-calls")
    for entry in records(tmp_path / "diary.jsonl"):
        if entry["what"] == "answer":
            kept = [(call["response"] or {}).get("id") for _, call in store.read_available(entry["rollout"])[0]]
            assert entry["id"] in kept
    for record in records(tmp_path / "out.jsonl"):
        assert [call["response_id"] for call in record["ng_model_call_capture"]["calls"]] == record["answers"]


@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "kill"])
def test_what_has_ended_is_stored_when_a_run_is_told_to_stop(
    tmp_path: Path, start: Callable[[], subprocess.Popen[str]], told: signal.Signals
) -> None:
    process = start()
    wait_for_records(tmp_path / "out.jsonl", 4, process)
    if told == signal.SIGINT:
        os.killpg(process.pid, told)  # a terminal sends it to the whole group, Ray's processes included
    else:
        process.send_signal(told)  # `kill` reaches the command alone
    out, err = process.communicate(timeout=150)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    stored = records(tmp_path / "out.jsonl")
    assert 4 <= len(stored) < ROWS
    assert "unfinished" in out
    assert str(tmp_path / "out.jsonl") in out
    check_evidence(tmp_path)


def test_a_killed_driver_leaves_whole_files_and_a_free_output(
    tmp_path: Path, start: Callable[[], subprocess.Popen[str]]
) -> None:
    process = start()
    wait_for_records(tmp_path / "out.jsonl", 4, process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=150)
    earlier = records(tmp_path / "out.jsonl")
    assert len(earlier) >= 4
    check_evidence(tmp_path)

    deadline = time.monotonic() + 150
    again = start()
    previous = tmp_path / "out.run" / "previous"
    while not any(previous.glob("*/out.jsonl")):  # the dead run's collector may take a moment to go
        if again.poll() is not None:
            assert "another collector" in again.communicate()[1]
            assert time.monotonic() < deadline
            again = start()
        time.sleep(0.1)
    (aside,) = previous.iterdir()
    kept = records(aside / "out.jsonl")
    assert kept[: len(earlier)] == earlier, "an earlier run's results are set aside, whole"
