"""Every mistake on the command line is one clear message and a non-zero exit code, and costs nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gym_ray.settings.servers import IMPLEMENTATIONS

pytestmark = pytest.mark.timeout(400)  # processes of their own, also on a busy machine
ROOT = Path(__file__).parents[2]
ROW = {"responses_create_params": {"input": "q"}, "options": [{"A": "x"}], "expected_answer": "A"}


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


@pytest.fixture
def gym_ray(tmp_path: Path) -> Callable[..., Done]:
    """Run the command in an empty directory."""

    def run(*arguments: str) -> Done:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"COLUMNS": "400"}
        done = subprocess.run(
            [sys.executable, "-m", "gym_ray", *arguments],
            cwd=tmp_path,
            env=environment | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Done(done.returncode, done.stdout, done.stderr)

    return run


def rows(tmp_path: Path, *lines: str) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(line + "\n" for line in lines))
    return str(path)


EVAL = ("eval", "run", "--resources-server", "mcqa", "--model-type", "local_model", "--agent", "mcqa_simple_agent")


@pytest.mark.parametrize(
    ("arguments", "mentions"),
    [
        (["--resources-server", "mcka"], ["mcka", "mcqa"]),
        (["--model-type", "openai"], ["openai", "openai_model"]),
        (["--config", "missing.yaml"], ["missing.yaml"]),
        (["++observabillity_enabled=true"], ["command line", "observabillity_enabled", "observability_enabled"]),
        (["++observability_enabled=true"], ["model_call_capture_dir", "observability_enabled", "required"]),
        (["++observability_enabled=true", "++model_call_capture_dir=rel"], ["model_call_capture_dir", "absolute"]),
        (["++observability_enabled=perhaps"], ["command line", "observability_enabled", "perhaps"]),
        (["++mcqa.resources_servers.mcqa.port=70000"], ["mcqa", "port", "65535"]),
        (["++mcqa_simple_agent.responses_api_agents.simple_agent.model_server.name=nobody"], ["nobody"]),
        (["++broken=[1"], ["command line", "broken"]),
        (["--agent", "nobody"], ["nobody", "mcqa_simple_agent"]),
        (["--limit", "-1"], ["limit"]),
        (["--no-such-flag"], ["--no-such-flag"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and value[0].startswith(("-", "+")) else None,
)
def test_wrong_settings(
    gym_ray: Callable[..., Done], tmp_path: Path, arguments: list[str], mentions: list[str]
) -> None:
    source = rows(tmp_path, json.dumps(ROW))
    done = gym_ray(*EVAL, "--input", source, "--output", "out.jsonl", *arguments)
    assert done.code != 0
    for mention in mentions:
        assert mention in done.err
    assert not (tmp_path / "out.jsonl").exists()


ENDPOINT = ("++policy_base_url=http://127.0.0.1:1/v1", "++policy_api_key=k", "++policy_model_name=m")
VLLM = "policy_model.responses_api_models.vllm_model"
COMMAND = """
program:
  responses_api_agents:
    command_agent: {command: "ls 'half", model_server: {name: policy_model}}
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--model-type", "vllm_model", *ENDPOINT, f"++{VLLM}.dialects=[chat,complete]"],
            f"command line: {VLLM}.dialects: ['chat', 'complete'] is not accepted; "
            "should be a list of one or more of responses, chat, messages",
        ),
        (
            ["--model-type", "vllm_model", *ENDPOINT, f"++{VLLM}.dialects=chat"],
            f"command line: {VLLM}.dialects: 'chat' is not accepted; should be a list, in brackets: [one, two]",
        ),
        (
            ["--model-type", "anthropic_model", "++policy_model_name=m"],
            "${policy_api_key} is not set; put policy_api_key into env.yaml or pass ++policy_api_key=…",
        ),
        (
            ["--model-type", "local_model", "++capture_redaction.patterns=['(half']"],
            "command line: capture_redaction.patterns.0: '(half' is not accepted; should be a regular expression: ",
        ),
        (
            ["--model-type", "local_model", "--config", "program.yaml"],
            'command_agent.command: "ls \'half" is not accepted; should be a command line: No closing quotation',
        ),
    ],
    ids=["dialect", "no-list", "no-key", "no-regular-expression", "no-command"],
)
def test_wrong_settings_of_engines_and_agents(
    gym_ray: Callable[..., Done], tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "program.yaml").write_text(COMMAND)
    done = gym_ray("eval", "run", "--input", rows(tmp_path, json.dumps(ROW)), "--output", "out.jsonl", *arguments)
    assert done.code != 0
    assert message in done.err


def test_help_names_every_model_type(gym_ray: Callable[..., Done]) -> None:
    for command in (("env", "start"), ("eval", "run")):
        done = gym_ray(*command, "--help")
        assert done.code == 0
        for name in IMPLEMENTATIONS["responses_api_models"]:
            assert name in done.out


@pytest.mark.parametrize(
    ("lines", "mentions"),
    [
        (None, ["missing.jsonl"]),
        ([], ["rows.jsonl", "no rows"]),
        ([json.dumps(ROW), '{"half":'], ["rows.jsonl:2"]),
        ([json.dumps(ROW), "[1]"], ["rows.jsonl:2", "object"]),
        ([json.dumps({"options": []})], ["rows.jsonl:1", "responses_create_params"]),
        ([json.dumps(ROW | {"_ng_rollout_id": "../up"})], ["rows.jsonl:1", "_ng_rollout_id", "'../up'"]),
        ([json.dumps(ROW | {"_ng_task_index": "a/b"})], ["rows.jsonl:1", "_ng_task_index", "a/b"]),
    ],
    ids=["missing", "empty", "broken-line", "no-object", "no-body", "bad-id", "bad-index"],
)
def test_wrong_rows(gym_ray: Callable[..., Done], tmp_path: Path, lines: list[str] | None, mentions: list[str]) -> None:
    source = "missing.jsonl" if lines is None else rows(tmp_path, *lines)
    earlier = tmp_path / "out.jsonl"
    earlier.write_text("an earlier result\n")
    done = gym_ray(*EVAL, "--input", source, "--output", "out.jsonl")
    assert done.code != 0
    for mention in mentions:
        assert mention in done.err
    assert earlier.read_text() == "an earlier result\n"


def test_an_unknown_agent_in_a_row_is_named_with_its_line(gym_ray: Callable[..., Done], tmp_path: Path) -> None:
    known, unknown = ({"agent_ref": {"name": name}} for name in ("mcqa_simple_agent", "mcqa_simpel_agent"))
    source = rows(tmp_path, json.dumps(ROW | known), json.dumps(ROW | unknown))
    done = gym_ray(*EVAL[:-2], "--input", source, "--output", "out.jsonl")
    assert done.code != 0
    assert "rows.jsonl:2" in done.err
    assert "mcqa_simpel_agent" in done.err
    assert "mcqa_simple_agent" in done.err


def test_an_output_that_cannot_be_written(gym_ray: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = gym_ray(*EVAL, "--input", rows(tmp_path, json.dumps(ROW)), "--output", "file/out.jsonl")
    assert done.code != 0
    assert "file" in done.err


def test_no_serve_without_servers(gym_ray: Callable[..., Done], tmp_path: Path) -> None:
    source = rows(tmp_path, json.dumps(ROW))
    done = gym_ray(
        *("eval", "run", "--no-serve", "--agent", "a", "--input", source, "--output", "o.jsonl"),
        "++head_server.port=1",
    )
    assert done.code != 0
    assert "http://127.0.0.1:1" in done.err
    assert "gym-ray env start" in done.err


@pytest.mark.parametrize("command", [("env", "start"), ("eval", "run", "--input", "r", "--output", "o")])
def test_nothing_to_start(gym_ray: Callable[..., Done], command: tuple[str, ...]) -> None:
    done = gym_ray(*command)
    assert done.code != 0
    assert "no server to start" in done.err


@pytest.mark.parametrize(
    ("arguments", "mention"),
    [
        (("captures", "ls", "nowhere"), "nowhere"),
        (("captures", "show", ".", "0-0"), "0-0"),
        (("captures", "show", ".", "../x"), "'../x'"),
    ],
)
def test_captures_that_are_not_there(gym_ray: Callable[..., Done], arguments: tuple[str, ...], mention: str) -> None:
    done = gym_ray(*arguments)
    assert done.code != 0
    assert mention in done.err


def test_the_head_port_in_use(gym_ray: Callable[..., Done]) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = gym_ray(
            *("env", "start", "--resources-server", "mcqa", "--model-type", "local_model"),
            f"++head_server.port={port}",
        )
    assert done.code != 0
    assert f"127.0.0.1:{port}" in done.err
    assert "head_server.port" in done.err


def test_only_the_commands_that_need_ray_load_it(gym_ray: Callable[..., Done]) -> None:
    check = "import sys, gym_ray.cli.app; assert 'ray' not in sys.modules, 'ray was loaded'"
    subprocess.run([sys.executable, "-c", check], cwd=ROOT, check=True, timeout=150)
