"""The commands and the code of the README run as they stand there."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gym_ray.testing.fake_upstream import FakeUpstream
from gym_ray.testing.serving import served

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str, containing: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    return [block for block in found if containing in block]


def block(language: str, containing: str) -> str:
    (only,) = blocks(language, containing)
    return only


def environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "VIRTUAL_ENV", "PYTHON"))}
    return kept | {"COLUMNS": "200"}


def bash(script: str, cwd: Path) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Path]:
    """A directory as a reader has it: the environment, the examples, and an env.yaml for an endpoint that answers."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    with served(FakeUpstream(text="It is \\boxed{B}")) as url:
        text = block("yaml", "policy_base_url").replace("https://api.openai.com", url)
        with socket.socket() as probe:  # servers that somebody runs on the usual port stay as they are
            probe.bind(("127.0.0.1", 0))
            head = f"head_server: {{port: {probe.getsockname()[1]}}}\n"
        (tmp_path / "env.yaml").write_text(text.replace("${oc.env:OPENAI_API_KEY}", "sk-not-a-key") + head)
        yield tmp_path


@contextlib.contextmanager
def started(script: str, cwd: Path) -> Iterator[None]:
    """Run a command that serves until Ctrl-C, and press it at the end."""
    process = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=cwd,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    said: list[str] = []
    ready = threading.Event()

    def listen() -> None:
        for line in process.stderr or []:
            said.append(line)
            if line.startswith("ready"):
                ready.set()

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    deadline = time.monotonic() + 120
    while not ready.wait(0.1):
        assert process.poll() is None, "".join(said)
        assert time.monotonic() < deadline, "".join(said)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 0, "".join(said)
        listener.join(10)
        assert process.stderr is not None
        process.stderr.close()


def test_the_two_terminal_walk(workplace: Path) -> None:
    with started(block("bash", "env start"), workplace):
        out = bash(block("bash", "--no-serve"), workplace)
    record = json.loads(next(line for line in out.splitlines() if line.startswith("{")))
    assert record["ng_model_call_capture"]["rollout_id"] == "0-0"
    assert record["ng_model_call_capture"]["metrics"]["num_calls"] == 1
    assert "0-0.capture.jsonl" in out.splitlines()

    listed = bash(block("bash", "captures ls"), workplace)
    assert "0-0" in listed
    assert "boxed" in listed

    reading = block("python", "CaptureStore").replace("/absolute/path/to", str(workplace))
    scope: dict[str, object] = {}
    exec(compile(reading, "README.md", "exec"), scope)
    assert len(scope["calls"]) == 1  # type: ignore[arg-type]
    assert scope["totals"]["num_calls"] == 1  # type: ignore[index]
    for path in workplace.rglob("*"):
        if path.is_file() and "results" in path.parts:
            assert b"sk-not-a-key" not in path.read_bytes(), path


def test_an_agent_of_your_own(workplace: Path) -> None:
    code = block("python", "AsyncOpenAI")
    example = (ROOT / "examples" / "agents" / "openai_sdk_agent.py").read_text()
    assert code in example, "the README shows the example as it is"
    (workplace / "my_agent.yaml").write_text(block("yaml", "my_agent"))
    out = bash(block("bash", "my_agent.yaml"), workplace)
    assert "my_agent" in out
    records = [json.loads(line) for line in (workplace / "results" / "my_agent.jsonl").read_text().splitlines()]
    assert len(records) == 3
    for record in records:
        assert record["ng_model_call_capture"]["metrics"]["num_calls"] == 1
        assert record["extracted_answer"] == "B"
        assert record["reward"] in (0.0, 1.0)


@pytest.mark.model
def test_make_eval(tmp_path: Path) -> None:
    assert "make eval" in block("bash", "make test")
    results = tmp_path / "results"
    out = bash(f"make -C '{ROOT}' eval EVAL_DIR='{results}'", tmp_path)
    for name in ("rollouts.jsonl", "rollouts_aggregate_metrics.json", "model-calls"):
        assert str(results / name) in out
    records = [json.loads(line) for line in (results / "rollouts.jsonl").read_text().splitlines()]
    expected = len((ROOT / "examples" / "mixed.jsonl").read_text().splitlines())
    assert len(records) == expected
    for record in records:
        capture = record["ng_model_call_capture"]
        assert "gaps" not in capture
        assert capture["metrics"]["num_calls"] >= 1
        assert capture["metrics"]["tokens_in"] > 0
        assert capture["metrics"]["tokens_out"] > 0
        texts = [part["text"] for item in record["response"]["output"] for part in item.get("content") or []]
        assert "".join(texts).strip()
        file = results / "model-calls" / f"{capture['rollout_id']}.capture.jsonl"
        assert len(file.read_text().splitlines()) == capture["metrics"]["num_calls"]
    several = [record for record in records if record["ng_model_call_capture"]["metrics"]["num_calls"] >= 2]
    assert several
    for record in several:
        second = json.loads(
            (results / "model-calls" / f"{record['ng_model_call_capture']['rollout_id']}.capture.jsonl")
            .read_text()
            .splitlines()[1]
        )
        results_given = [item for item in second["request"]["input"] if item.get("type") == "function_call_output"]
        assert json.loads(results_given[-1]["output"])["status"], "the second call carries the tool's real result"
