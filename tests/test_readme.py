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
from typing import Any

import pytest

from gym_ray.model_server.engines import build_engine
from gym_ray.settings import load_settings, server_config_paths
from gym_ray.settings.servers import IMPLEMENTATIONS
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
        # Servers that somebody runs on the usual port stay as they are.
        text += f"head_server: {{port: {free_port()}}}\n"
        (tmp_path / "env.yaml").write_text(text.replace("${oc.env:OPENAI_API_KEY}", "sk-not-a-key"))
        yield tmp_path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@contextlib.contextmanager
def started(script: str, cwd: Path, *, says: str = "ready") -> Iterator[None]:
    """Run a command that serves until Ctrl-C, from when it says that it does, and press it at the end."""
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
            if says in line:
                ready.set()

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    deadline = time.monotonic() + 240
    while not ready.wait(0.1):
        assert process.poll() is None, "".join(said)
        assert time.monotonic() < deadline, "".join(said)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(120) == 0, "".join(said)
        listener.join(10)
        assert process.stderr is not None
        process.stderr.close()


def test_the_two_terminal_walk(workplace: Path) -> None:
    port = free_port()
    (workplace / "question_agent.yaml").write_text(block("yaml", "http_agent").replace("7000", str(port)))
    command = "gym-ray env start --config question_agent.yaml"
    assert command in README
    with started(block("bash", "env start").replace("gym-ray env start", command), workplace):
        out = bash(block("bash", "--no-serve"), workplace)
        check_the_agent_server(workplace, port)
        collect = block("bash", "--no-serve").partition("head -n")[0].rstrip()
        said = bash(f"{collect} ++token_id_capture.enabled=true ++token_id_capture.dir=/tokens 2>&1 || true", workplace)
    assert "token_id_capture.enabled: is true here and false at the servers of 127.0.0.1:" in said
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


def test_a_run_that_goes_on_and_what_it_leaves(workplace: Path) -> None:
    command = block("bash", "--resume").replace("local_model", "openai_model")
    first = bash(command, workplace)
    done = records(workplace / "results" / "rollouts.jsonl")
    assert len(done) == 20
    lines = (workplace / "results" / "rollouts.jsonl").read_text().splitlines(keepends=True)
    (workplace / "results" / "rollouts.jsonl").write_text("".join(lines[:-1]) + lines[-1][:100])
    again = bash(command.rstrip() + " 2>&1\n", workplace)
    assert "19 of 20 rows are done, 1 are left" in again
    assert "20 rollouts: 20 healthy" in first
    assert len(records(workplace / "results" / "rollouts.jsonl")) == 20

    out = bash(block("bash", "eval health"), workplace)
    assert "errors: 0" in out
    assert "20 records: 0 joined again, 20 unchanged" in out
    table = README.partition("## Reading results")[2].partition("## ")[0]
    for field in re.findall(r"^\| `(\w+)` ", table, re.MULTILINE):
        assert field in done[0] or field == "ng_agent_observations", field

    reading = block("python", "read_inline").replace("results/rollouts", str(workplace / "results" / "rollouts"))
    script = f"source .venv/bin/activate\npython - <<'END'\n{reading}END\n"
    assert len(bash(script, workplace).splitlines()) == 20


def check_the_agent_server(workplace: Path, port: int) -> None:
    """Start the agent server of the README beside the servers that run, and collect with it."""
    (head,) = re.findall(r"port: (\d+)", (workplace / "env.yaml").read_text())
    server = block("bash", "http_agent_server").replace("7000", str(port)).rstrip()
    collect = block("bash", "--no-serve").replace("mcqa_rollouts", "question_agent")
    assert "with `--no-serve --agent question_agent`" in README
    with started(f"{server} --head http://127.0.0.1:{head}", workplace, says="Uvicorn running"):
        bash(collect.replace("mcqa_simple_agent", "question_agent"), workplace)
    (record,) = records(workplace / "results" / "question_agent.jsonl")
    assert record["agent_ref"]["name"] == "question_agent"
    assert record["ng_model_call_capture"]["metrics"]["num_calls"] == 1
    assert record["extracted_answer"] == "B"


def test_an_agent_of_your_own(workplace: Path) -> None:
    code = block("python", "AsyncOpenAI")
    example = (ROOT / "examples" / "agents" / "openai_sdk_agent.py").read_text()
    assert code in example, "the README shows the example as it is"
    (workplace / "my_agent.yaml").write_text(block("yaml", "my_agent"))
    out = bash(block("bash", "my_agent.yaml"), workplace)
    assert "my_agent" in out
    done = records(workplace / "results" / "my_agent.jsonl")
    assert len(done) == 3
    for record in done:
        assert record["ng_model_call_capture"]["metrics"]["num_calls"] == 1
        assert record["extracted_answer"] == "B"
        assert record["reward"] in (0.0, 1.0)


def test_a_program_as_it_is(workplace: Path) -> None:
    redaction = block("yaml", "capture_redaction").replace("${oc.env:DIGEST_KEY}", "key-of-all-digests")
    (workplace / "my_program.yaml").write_text(block("yaml", "command_agent") + redaction)
    bash(block("bash", "my_program.yaml"), workplace)
    done = records(workplace / "results" / "my_program.jsonl")
    assert len(done) == 2
    for record in done:
        assert record["extracted_answer"] == "B"
        (call,) = record["ng_model_call_capture"]["calls"]
        file = (
            workplace / "results" / "program-calls" / f"{record['ng_model_call_capture']['rollout_id']}.capture.jsonl"
        )
        (raw,) = records(file)
        assert raw["request"]["stream"] is True, "the program streams"
        assert call["tokens_out"] == raw["response"]["usage"]["output_tokens"]


def test_the_table_of_model_types_is_whole_and_right(tmp_path: Path) -> None:
    rows = re.findall(r"^\| `(\w+_model\w*)` \| .* \| ([\w, ]+) \|$", README, re.MULTILINE)
    assert {name for name, _ in rows} == set(IMPLEMENTATIONS["responses_api_models"])
    keys = ("++policy_base_url=http://127.0.0.1:1/v1", "++policy_api_key=k", "++policy_model_name=m")
    for name, spoken in rows:
        settings = load_settings(server_config_paths(model_type=name), keys, env_file=None, environ={})
        engine = build_engine(settings.servers["policy_model"], local_engine_url="http://127.0.0.1:1")
        assert engine.dialects == {dialect.lower() for dialect in spoken.split(", ")}, name


@pytest.mark.model
def test_training_tokens(tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    out = bash(block("bash", "captures tokens"), tmp_path)
    for word in ("continues", "tool text", "policy", "log prob", "prefix reused", "trainable"):
        assert word in out, out
    assert "training 2 of 2 rollouts have exact tokens" in out
    shown = bash(block("bash", "training/read_rows.py"), tmp_path).splitlines()
    names = [line.split(": ")[0] for line in shown]  # in the order in which rollouts finished, for each form once
    assert names[:2] == names[2:]
    assert sorted(names[:2]) == ["0-0 main", "1-0 main"]
    assert shown[:2] == shown[2:], "records and token files say the same"
    directory = tmp_path / "results" / "tokens"
    assert {path.stat().st_mode & 0o077 for path in [directory, *directory.rglob("*")]} == {0}, "for their owner alone"
    figures = json.loads((tmp_path / "results" / "trained_metrics.json").read_text())
    assert figures["overall"]["token_capture"] == {"finalised": 2, "masked": 0, "mask_reasons": {}}
    scope: dict[str, Any] = {}
    exec(compile(block("python", "def training_rows"), "README.md", "exec"), scope)
    pairs = scope["training_rows"](str(tmp_path / "results" / "trained.jsonl"))
    assert {reward for _, reward in pairs} <= {0.0, 1.0}
    rows = [row for row, _ in pairs]
    done = records(tmp_path / "results" / "trained.jsonl")
    assert {row["rollout_id"] for row in rows} == {"0-0", "1-0"}
    for row in rows:
        assert len(row["token_ids"]) == len(row["loss_mask"]) == row["spans"][-1]["end"]
        assert sum(row["loss_mask"]) == len(row["policy_log_probs"]) > 0
        assert [span["kind"] for span in row["spans"]] == ["prompt", "policy", "interstitial", "policy"]
        (record,) = [each for each in done if each["_ng_training_rows"][0]["rollout_id"] == row["rollout_id"]]
        carriers = [item for item in record["response"]["output"] if "generation_token_ids" in item]
        *_, last = carriers
        assert last["prompt_token_ids"] + last["generation_token_ids"] == row["token_ids"]


@pytest.mark.model
def test_tokens_that_inference_workers_keep(tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    out = bash(block("bash", "external_staging=true"), tmp_path)
    rows = [line for line in out.splitlines() if "to learn from" in line]
    assert [row.split(":")[0] for row in rows] == ["0-0", "1-0"]
    assert all("nothing to learn" not in row and "reward " in row for row in rows)
    staged, proved, by_ray = block("bash", "staging/worker.py").strip().splitlines()[1:]
    out = bash(f"source .venv/bin/activate\n{staged}\n{proved}", tmp_path)
    assert "8 calls of 4 rollouts staged in" in out
    proved_rows = [line.split(", reward")[0] for line in out.splitlines() if "to learn from" in line]
    assert len(proved_rows) == 4
    out = bash(f"source .venv/bin/activate\n{by_ray}", tmp_path)
    assert [line for line in out.splitlines() if "to learn from" in line] == proved_rows


@pytest.mark.model
def test_make_eval(tmp_path: Path) -> None:
    assert "make eval" in block("bash", "make test")
    results = tmp_path / "results"
    out = bash(f"make -C '{ROOT}' eval EVAL_DIR='{results}'", tmp_path)
    for name in ("rollouts.jsonl", "rollouts_aggregate_metrics.json", "model-calls"):
        assert str(results / name) in out
    done = records(results / "rollouts.jsonl")
    expected = len((ROOT / "examples" / "mixed.jsonl").read_text().splitlines())
    assert len(done) == expected
    for record in done:
        capture = record["ng_model_call_capture"]
        assert "gaps" not in capture
        assert capture["metrics"]["num_calls"] >= 1
        assert capture["metrics"]["tokens_in"] > 0
        assert capture["metrics"]["tokens_out"] > 0
        texts = [part["text"] for item in record["response"]["output"] for part in item.get("content") or []]
        assert "".join(texts).strip()
        file = results / "model-calls" / f"{capture['rollout_id']}.capture.jsonl"
        assert len(file.read_text().splitlines()) == capture["metrics"]["num_calls"]
    several = [record for record in done if record["ng_model_call_capture"]["metrics"]["num_calls"] >= 2]
    assert several
    for record in several:
        second = json.loads(
            (results / "model-calls" / f"{record['ng_model_call_capture']['rollout_id']}.capture.jsonl")
            .read_text()
            .splitlines()[1]
        )
        results_given = [item for item in second["request"]["input"] if item.get("type") == "function_call_output"]
        assert json.loads(results_given[-1]["output"])["status"], "the second call carries the tool's real result"
