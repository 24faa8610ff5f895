"""Commands as agents, with real processes: what reaches them, what becomes of what they say, what is captured."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from gym_ray.agents import AgentRunner, RunContext, ServerUrls
from gym_ray.agents.build import build_agent
from gym_ray.agents.command_agent import CommandAgent
from gym_ray.environments import build_environment_app
from gym_ray.environments.mcqa import McqaEnvironment
from gym_ray.errors import SettingsError
from gym_ray.evidence.run_result import RunFailure, RunResult
from gym_ray.settings import CommandAgentOptions, ModelServerRef, ResourcesServerRef, RunSettings, ServerSettings
from gym_ray.settings.agent_options import COMMAND_VARIABLES
from gym_ray.testing.agent_servers import ScriptedResources, in_process_client
from gym_ray.testing.captured_model import captured_model
from gym_ray.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="commands run on Linux only")

TOKEN = "run-token-123456789"
EXAMPLES = Path(__file__).parents[2] / "examples"
PARAMS = {"input": [{"role": "user", "content": "hello?"}], "instructions": "Be brief."}
ROW = {"responses_create_params": PARAMS, "expected_answer": "the-answer-key"}
URLS = ServerUrls({"policy_model": "http://127.0.0.1:9"}, {"desk": "http://desk"})


def options(*command: str, **fields: Any) -> CommandAgentOptions:
    return CommandAgentOptions(command=command, model_server=ModelServerRef(name="policy_model"), **fields)


def python(code: str, *arguments: str, **fields: Any) -> CommandAgentOptions:
    return options("{python}", "-c", code, *arguments, **fields)


async def run(
    agent: CommandAgentOptions,
    *,
    row: dict[str, Any] | None = None,
    urls: ServerUrls = URLS,
    desk: ScriptedResources | None = None,
    timeout_s: float | None = 40.0,
) -> RunResult:
    settings = RunSettings(servers={"cli": ServerSettings("cli", "responses_api_agents", "command_agent", agent)})
    async with in_process_client({"http://desk": desk or ScriptedResources()}) as http:
        runner = AgentRunner(settings, urls, run_token=TOKEN, http=http, connect_patience_s=0.0)
        try:
            return await runner.run(json.dumps(ROW if row is None else row).encode(), "7-1-a2", "cli", timeout_s)
        finally:
            await runner.aclose()


async def reply_of(agent: CommandAgentOptions, **given: Any) -> dict[str, Any]:
    result = await run(agent, **given)
    assert result.failure is None, result.failure
    assert result.reply is not None
    reply: dict[str, Any] = json.loads(result.reply)
    return reply


async def failure_of(agent: CommandAgentOptions, **given: Any) -> RunFailure:
    result = await run(agent, **given)
    assert result.failure is not None, result.reply
    return result.failure


def text_of(reply: dict[str, Any]) -> str:
    (item,) = reply["response"]["output"]
    assert (item["type"], item["role"]) == ("message", "assistant")
    (part,) = item["content"]
    text: str = part["text"]
    return text


def there(path: str) -> bool:
    return os.path.exists(path)


OPENAI_PROGRAM = """
from openai import OpenAI
with OpenAI(max_retries=0) as client:
    messages = [{"role": "user", "content": "hi"}]
    said = [client.chat.completions.create(model="m", messages=messages).choices[0].message.content]
    chunks = client.chat.completions.create(model="m", messages=messages, stream=True)
    said.append("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices))
    said.append(client.responses.create(model="m", input="hi").output_text)
    events = client.responses.create(model="m", input="hi", stream=True)
    said.append([event for event in events][-1].response.output_text)
print(said)
"""
ANTHROPIC_PROGRAM = """
from anthropic import Anthropic
with Anthropic(max_retries=0) as client:
    ask = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    said = [client.messages.create(**ask).content[0].text]
    with client.messages.stream(**ask) as stream:
        said.append(stream.get_final_text())
print(said)
"""


@pytest.mark.parametrize(
    ("program", "calls"),
    [
        (OPENAI_PROGRAM, [("chat", None), ("chat", True), ("responses", None), ("responses", True)]),
        (ANTHROPIC_PROGRAM, [("messages", None), ("messages", True)]),
    ],
    ids=["openai", "anthropic"],
)
async def test_calls_of_the_sdks_are_captured_under_the_rollout(
    tmp_path: Path, program: str, calls: list[tuple[str, bool | None]]
) -> None:
    async with captured_model(tmp_path, FakeEngine("hello there"), run_token=TOKEN) as model:
        reply = await reply_of(python(program), urls=ServerUrls({"policy_model": model.url}, {}))
        assert text_of(reply) == f"{['hello there'] * len(calls)}\n"
        records = model.records("7-1-a2")
        assert [(r["dialect"], r["request"].get("stream")) for r in records] == calls
        assert {(r["status_code"], r["error_category"]) for r in records} == {(200, None)}
        assert model.rollout_ids() == ["7-1-a2"]


async def test_the_example_program_answers_and_is_scored(tmp_path: Path) -> None:
    row = json.loads((EXAMPLES / "mcqa" / "questions.jsonl").read_bytes().splitlines()[0])
    program = str(EXAMPLES / "agents" / "command_line_agent.py")
    agent = options("{python}", program, "{model}", resources_server=ResourcesServerRef(name="desk"))
    settings = RunSettings(servers={"cli": ServerSettings("cli", "responses_api_agents", "command_agent", agent)})
    environment = build_environment_app(McqaEnvironment(), "mcqa")
    async with (
        captured_model(tmp_path, FakeEngine(f"\\boxed{{{row['expected_answer']}}}"), run_token=TOKEN) as model,
        in_process_client({"http://desk": environment}) as http,
    ):
        urls = ServerUrls({"policy_model": model.url}, {"desk": "http://desk"})
        runner = AgentRunner(settings, urls, run_token=TOKEN, http=http)
        result = await runner.run(json.dumps(row).encode(), "0-0", "cli", 40.0)
        await runner.aclose()
        assert result.failure is None, result.failure
        assert result.reply is not None
        assert json.loads(result.reply)["reward"] == 1.0
        (record,) = model.records("0-0")
        assert (record["dialect"], record["request"]["stream"], record["request"]["model"]) == (
            "responses",
            True,
            "policy_model",
        )


SEES = """
import json, os, sys
place = os.environ["GYM_RAY_INPUT_FILE"]
json.dump({
    "arguments": sys.argv[1:], "environment": dict(os.environ), "directory": os.getcwd(), "files": os.listdir(),
    "stdin": sys.stdin.read(), "file": open(place).read(), "mode": os.stat(os.path.dirname(place)).st_mode & 0o777,
}, sys.stdout)
"""


async def test_the_urls_of_a_command_that_takes_part_in_token_capture_say_so() -> None:
    program = "import os; print(os.environ['OPENAI_BASE_URL'], os.environ['ANTHROPIC_BASE_URL'])"
    async with in_process_client({}) as http:
        context = RunContext("7-1", http, TOKEN, URLS, token_capture=True)
        said = text_of(await CommandAgent("cli", python(program)).run(ROW, context))
    root = "http://127.0.0.1:9/ng-rollout/7-1/training-token-capture"
    assert said.split() == [f"{root}/v1", root]


async def test_what_a_command_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-worker")
    names = ("input_file", "output_file", "rollout_id", "model", "start_directory")
    agent = python(SEES, *(f"{name}={{{name}}}" for name in names), "{print} ${HOME}", environment={"M": "x-{model}"})
    sees = json.loads(text_of(await reply_of(agent)))
    environment = sees["environment"]
    root = "http://127.0.0.1:9/ng-rollout/7-1-a2"
    hidden = "**********"  # the program was given the token; its reply does not hold it
    assert {
        name: environment[name] for name in environment if "_" in name and not name.startswith(("LC_", "SSL_"))
    } == {
        "OPENAI_BASE_URL": f"{root}/v1",
        "OPENAI_API_BASE": f"{root}/v1",
        "OPENAI_API_KEY": hidden,
        "ANTHROPIC_BASE_URL": root,
        "ANTHROPIC_API_KEY": hidden,
        "ANTHROPIC_AUTH_TOKEN": hidden,
        "GYM_RAY_ROLLOUT_ID": "7-1-a2",
        "GYM_RAY_MODEL": "policy_model",
        "GYM_RAY_INPUT_FILE": environment["GYM_RAY_INPUT_FILE"],
        "GYM_RAY_OUTPUT_FILE": environment["GYM_RAY_OUTPUT_FILE"],
        "GYM_RAY_COMMAND_ID": environment["GYM_RAY_COMMAND_ID"],
    }
    assert environment.keys() >= set(COMMAND_VARIABLES), "what settings may not set is what commands get"
    assert environment["M"] == "x-policy_model"
    assert sees["arguments"] == [
        f"input_file={environment['GYM_RAY_INPUT_FILE']}",
        f"output_file={environment['GYM_RAY_OUTPUT_FILE']}",
        "rollout_id=7-1-a2",
        "model=policy_model",
        f"start_directory={Path.cwd()}",
        "{print} ${HOME}",
    ]
    assert json.loads(sees["stdin"]) == json.loads(sees["file"]) == PARAMS
    assert (sees["files"], sees["mode"]) == ([], 0o700)
    assert not there(sees["directory"]), "a fresh directory, removed afterwards"
    assert not there(os.path.dirname(environment["GYM_RAY_INPUT_FILE"]))


async def test_the_key_is_right_and_on_no_command_line() -> None:
    code = (
        "import os, hashlib\n"
        "lines = [open(f'/proc/{pid}/cmdline').read() for pid in ('self', os.getppid())]\n"
        "assert 'command_guard' in lines[1], lines\n"
        "key = os.environ['OPENAI_API_KEY']\n"
        "assert not any(key in line for line in lines)\n"
        "print(hashlib.sha256(key.encode()).hexdigest())\n"
    )
    import hashlib

    assert text_of(await reply_of(python(code))).strip() == hashlib.sha256(TOKEN.encode()).hexdigest()


async def test_the_row_chooses_the_model() -> None:
    row = {"responses_create_params": {"input": "x", "model": "big"}}
    assert text_of(await reply_of(options("echo", "-n", "{model}"), row=row)) == "big"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"input": "one"}, "one"),
        (PARAMS, "Be brief.\n\nhello?"),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "x"}]}, 3]}, "a"),
    ],
)
async def test_input_as_text(given: dict[str, Any], expected: str) -> None:
    agent = options("sh", "-c", 'cat; echo; cat "$1"', "sh", "{input_file}", input_format="text")
    assert text_of(await reply_of(agent, row={"responses_create_params": given})) == f"{expected}\n{expected}"


async def test_an_input_without_text_is_named() -> None:
    row: dict[str, Any] = {"responses_create_params": {"input": []}}
    failure = await failure_of(options("cat", input_format="text"), row=row)
    assert "responses_create_params.input" in failure.message
    failure = await failure_of(options("cat"), row={})
    assert "responses_create_params" in failure.message


@pytest.mark.parametrize(
    ("output", "text", "reward"),
    [
        ("the answer\n", "the answer\n", None),
        ('the answer\n{"reward": 0.5}\n', "the answer", 0.5),
        ('{"reward": null}', "", None),
        ('{"answer": 3}\n', '{"answer": 3}\n', None),
        ('{"reward": 1}\nlast\n', '{"reward": 1}\nlast\n', None),
        ("", "", None),
    ],
)
async def test_the_program_may_report_its_reward(output: str, text: str, reward: float | None) -> None:
    reply = await reply_of(python(f"print({output!r}, end='')"))
    assert (text_of(reply), reply["reward"]) == (text, reward)
    assert reply["responses_create_params"] == PARAMS
    assert reply["command"] == {"exit_code": 0, "stdout_bytes": len(output), "stderr_bytes": 0}


@pytest.mark.parametrize("reward", ["NaN", '"1"', "true"])
async def test_a_reward_that_is_none_is_a_failure(reward: str) -> None:
    failure = await failure_of(python(f"print('{{\"reward\": {reward}}}')"))
    assert failure.failure_class == "agent_run_error"


async def test_a_resources_server_scores_and_the_program_cannot() -> None:
    desk = ScriptedResources(verify=lambda body: {"reward": 0.25, "seen": body["response"]["output"][0]["content"]})
    agent = python("""print('hi\\n{"reward": 1}')""", resources_server=ResourcesServerRef(name="desk"))
    reply = await reply_of(agent, desk=desk)
    assert reply["reward"] == 0.25
    assert reply["seen"][0]["text"] == 'hi\n{"reward": 1}\n'
    assert [a.path for a in desk.arrivals] == [
        f"/ng-rollout/7-1-a2/{route}" for route in ("seed_session", "verify", "close_session")
    ]


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_a_failed_command_says_how_and_what_it_said_last(stream: str) -> None:
    code = (
        f"import os, sys; print('x' * 5000, os.environ['OPENAI_API_KEY'], 'bad luck', file=sys.{stream}); sys.exit(3)"
    )
    failure = await failure_of(python(code))
    assert (failure.failure_class, failure.error_type, failure.http_status) == ("agent_run_error", "AgentError", None)
    assert failure.message.startswith("agent cli: its command exited with status 3: ")
    assert failure.message.endswith("********** bad luck")
    assert failure.response_body is not None
    assert failure.response_body.startswith(f"{stream} (5030 bytes) ends:\nxxx")
    assert failure.response_body.endswith("********** bad luck\n")
    assert TOKEN not in repr(failure)


async def test_half_a_secret_is_not_shown_either() -> None:
    code = "import os, sys; sys.stdout.write(os.environ['OPENAI_API_KEY'] + os.environ['MY_SECRET'] + 'y' * 92)"
    agent = python(code, environment={"MY_SECRET": "sk-mine-987654321"}, max_output_bytes=100)
    text = text_of(await reply_of(agent))
    assert text == "*" * 8 + "y" * 92


async def test_a_killed_command_names_the_signal() -> None:
    failure = await failure_of(options("sh", "-c", "kill -KILL $$"))
    assert failure.message == "agent cli: its command was killed by SIGKILL"


async def test_a_program_that_is_not_there_is_named() -> None:
    failure = await failure_of(options("no-such-program"))
    assert failure.failure_class == "agent_run_error"
    assert "its command no-such-program could not be started: there is no such program on the PATH /" in failure.message


async def test_a_program_is_named_from_where_the_run_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tool.sh").write_text("#!/bin/sh\necho -n mine\n")
    (tmp_path / "tool.sh").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert text_of(await reply_of(options("./tool.sh"))) == "mine"


async def test_a_working_directory_of_ones_own_is_kept(tmp_path: Path) -> None:
    reply = await reply_of(options("sh", "-c", "pwd; echo 1 > kept", working_directory=tmp_path))
    assert text_of(reply) == f"{tmp_path}\n"
    assert (tmp_path / "kept").read_text() == "1\n"


async def test_the_answer_may_stand_in_a_file() -> None:
    agent = options(
        "sh", "-c", 'echo noise; printf "from the file" > "$1"', "sh", "{output_file}", answer_from="output_file"
    )
    reply = await reply_of(agent)
    assert text_of(reply) == "from the file"
    assert reply["command"]["stdout_bytes"] == 6


@pytest.mark.parametrize(
    ("write", "problem"),
    [
        ("true", "wrote no output file"),
        ('ln -s /etc/passwd "$1"', "symbolic link"),
        ('mkfifo "$1"', "not a regular file"),
    ],
)
async def test_an_output_file_that_is_none_is_a_failure(write: str, problem: str) -> None:
    failure = await failure_of(options("sh", "-c", write, "sh", "{output_file}", answer_from="output_file"))
    assert failure.failure_class == "agent_run_error"
    assert problem in failure.message


@pytest.mark.parametrize("answer_from", ["stdout", "output_file"])
async def test_an_answer_that_was_cut_is_incomplete(answer_from: str) -> None:
    code = (
        "import sys\n"
        "target = open(sys.argv[1], 'wb') if sys.argv[2] == 'output_file' else sys.stdout.buffer\n"
        "target.write(('ä' * 100).encode())\n"
    )
    agent = python(code, "{output_file}", answer_from, answer_from=answer_from, max_output_bytes=5)
    reply = await reply_of(agent)
    assert text_of(reply) == "ää"
    assert reply["response"]["status"] == "incomplete"
    assert reply["response"]["incomplete_details"] == {"reason": "max_output_bytes"}


async def test_time_over_is_a_timeout_of_the_agent() -> None:
    failure = await failure_of(options("sleep", "60", timeout_s=0.3, kill_grace_s=0.1))
    assert (failure.failure_class, failure.error_type) == ("agent_timeout", "AgentTimeoutError")
    assert "did not end within 0.3 s" in failure.message


async def test_the_attempts_own_time_ends_the_command_too(tmp_path: Path) -> None:
    code = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
        "time.sleep(60)\n"
    )
    failure = await failure_of(python(code, kill_grace_s=0.2), timeout_s=1.5)
    assert failure.failure_class == "agent_timeout"
    assert "left behind" not in failure.message
    if (tmp_path / "pid").exists():  # it was given the time to begin
        assert not there(f"/proc/{(tmp_path / 'pid').read_text()}")


async def test_no_files_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    await reply_of(options("sh", "-c", "mkdir -p a/b; echo 1 > a/b/c"))
    await failure_of(options("false"))
    await failure_of(options("sleep", "60", kill_grace_s=0.1), timeout_s=0.2)
    async with asyncio.timeout(20):
        while os.listdir(tmp_path):  # noqa: ASYNC110 - a thread removes them
            await asyncio.sleep(0.01)


async def test_cancelling_while_the_files_are_written_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    gate = threading.Event()

    def slow_mkdtemp(prefix: str) -> str:
        assert gate.wait(20)
        made.append(str(tmp_path / prefix))
        os.mkdir(made[0])
        return made[0]

    monkeypatch.setattr(tempfile, "mkdtemp", slow_mkdtemp)
    agent = CommandAgent("cli", options("true"))
    async with in_process_client({}) as http:
        task = asyncio.create_task(agent.run(ROW, RunContext("0-0", http, TOKEN, URLS)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert made == []
    gate.set()
    async with asyncio.timeout(20):
        while not made or there(made[0]):  # noqa: ASYNC110 - a thread makes and removes it
            await asyncio.sleep(0.01)


async def test_files_that_cannot_be_written_are_no_fault_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    failure = await failure_of(options("true"))
    assert failure.failure_class == "agent_request_failed"
    assert "the files of its command cannot be written" in failure.message


def test_settings_build_it_and_other_systems_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ServerSettings("cli", "responses_api_agents", "command_agent", options("x", kill_grace_s=7))
    agent = build_agent(server)
    assert isinstance(agent, CommandAgent)
    assert agent.stop_s == 7
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SettingsError, match=r"cli\.responses_api_agents\.command_agent: commands run on Linux only"):
        build_agent(server)
