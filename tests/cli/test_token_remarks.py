from __future__ import annotations

import io
import json
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
from rich.console import Console

from gym_ray.cli import env, run_collection
from gym_ray.cli.app import main
from gym_ray.cli.token_remarks import (
    check_places,
    check_source,
    collection_remarks,
    control_token,
    print_warnings,
    server_remarks,
)
from gym_ray.errors import ClusterError, SettingsError
from gym_ray.settings import CallableAgentOptions, RunSettings, ServerSettings

IN_SINK = {"enabled": True, "sink": "m:Sink", "lineage_store": "m:Lineage"}
FILES = {"enabled": True, "dir": "/tokens"}


def settings(block: dict[str, Any], agent_name: str | None = None, **takes_part: bool) -> RunSettings:
    servers = {
        name: ServerSettings(
            name,
            "responses_api_agents",
            "callable_agent",
            CallableAgentOptions(callable="m:f", token_id_capture=trained),
        )
        for name, trained in takes_part.items()
    }
    return RunSettings(token_id_capture=block, servers=servers, agent_name=agent_name)


def test_what_works_and_is_likely_not_meant_is_said() -> None:
    odd = settings({**IN_SINK, "dir": "/tokens", "lineage_store": None, "allow_unresolved_continuations": True}, a=True)
    said = [
        "token_id_capture.dir is not used: the sink m:Sink keeps the records",
        "the sink m:Sink has no lineage store: rollouts of more than one call will be masked",
    ]
    assert server_remarks(odd) == collection_remarks(odd) == said
    out = io.StringIO()
    print_warnings(Console(file=out, width=40), said)
    assert out.getvalue().splitlines() == [f"warning {remark}" for remark in said]


@pytest.mark.parametrize(
    ("made", "who"),
    [
        (settings(FILES, a=False), "the agent a takes no part"),
        (settings(FILES, a=False, b=False), "its agents take no part"),
        (settings(FILES, "b", a=True, b=False), "the agent b takes no part"),
    ],
)
def test_a_capture_in_which_nobody_takes_part_is_named(made: RunSettings, who: str) -> None:
    assert server_remarks(made) == [], "servers may serve a collection with agents of its own"
    (remark,) = collection_remarks(made)
    assert f"no tokens are captured: {who}; set token_id_capture: true" in remark


@pytest.mark.parametrize(
    "made",
    [
        settings({}, a=False),
        settings(FILES, a=True, b=False),
        settings({**FILES, "all_agents": True}, "a", a=False),
    ],
)
def test_nothing_is_said_without_a_reason(made: RunSettings) -> None:
    assert collection_remarks(made) == []


def test_records_cannot_get_what_a_sink_keeps_without_a_source() -> None:
    with pytest.raises(SettingsError, match=r"token_id_capture\.source: is required: .* that m:Sink keeps"):
        check_source(settings(IN_SINK))
    for block in ({}, FILES, {**IN_SINK, "source": "m:Source"}, {**IN_SINK, "rebuild_response": False}):
        check_source(settings(block))


def test_the_secret_of_the_control_routes_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    staged = settings({**FILES, "external_staging": True, "rebuild_response": False})
    monkeypatch.delenv("NEMO_GYM_TOKEN_CAPTURE_CONTROL_TOKEN", raising=False)
    assert control_token(settings(FILES)) is None
    with pytest.raises(SettingsError, match="set NEMO_GYM_TOKEN_CAPTURE_CONTROL_TOKEN to the token"):
        control_token(staged)
    monkeypatch.setenv("NEMO_GYM_TOKEN_CAPTURE_CONTROL_TOKEN", "secret of the trainer")
    assert control_token(staged) == "secret of the trainer"
    assert "secret of the trainer" not in staged.to_yaml() + repr(staged)


STAGED = {**FILES, "external_staging": True, "rebuild_response": False}
PARQUET = "gym_ray.token_id_capture.staging.parquet:"
S3 = {"where": "s3://b/run", "storage_options": {"endpoint": "hush"}}
NO_ENDPOINT = r"^s3://b/run: storage_options\.endpoint: s3:// has no such option; did you mean endpoint_url\?$"


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({**STAGED, "staging": S3}, NO_ENDPOINT),
        ({**STAGED, "staging": {"where": "ftp://x/y"}}, "no store whose values are there whole or not at all"),
        ({**STAGED, "staging": {"where": __file__}}, "is a file, not a directory"),
        ({**IN_SINK, "sink": PARQUET + "ParquetTokenSink", "sink_kwargs": S3}, NO_ENDPOINT),
        (
            {**IN_SINK, "source": PARQUET + "ParquetTokenSource"},
            r"source_kwargs: .*ParquetTokenSource .* it needs where",
        ),
        ({**IN_SINK, "lineage_store": PARQUET + "ParquetLineage"}, r"lineage_store: .* has no class ParquetLineage"),
    ],
)
def test_a_place_that_nobody_could_open_is_refused_before_anything_starts(block: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        check_places(settings(block))
    assert "hush" not in str(caught.value)


def test_places_that_can_be_opened_are_not_touched(tmp_path: Path) -> None:
    place = {"where": str(tmp_path / "new")}
    for block in (
        {},
        IN_SINK,  # foreign classes may be installed elsewhere alone
        {**STAGED, "staging": place},
        {**IN_SINK, "sink": PARQUET + "ParquetTokenSink", "sink_kwargs": place},
        {"enabled": False, "sink": PARQUET + "ParquetTokenSink", "sink_kwargs": S3},
    ):
        check_places(settings(block))
    assert list(tmp_path.iterdir()) == []


def no_ray(*_: object, **__: object) -> NoReturn:
    raise ClusterError("no Ray here")


@pytest.mark.parametrize(
    ("command", "overrides", "said"),
    [
        ("eval", (), "warning token_id_capture is enabled and no tokens are captured: the agent a takes no part; set"),
        ("env", ("++token_id_capture.dir=/t",), "warning token_id_capture.dir is not used: the sink m:Sink keeps"),
        ("eval", ("++token_id_capture.source=null",), "error: settings: token_id_capture.source: is required"),
        *(
            (
                command,
                (f"++token_id_capture.sink='{PARQUET}ParquetTokenSink'",),
                f"error: settings: token_id_capture.sink_kwargs: {PARQUET}ParquetTokenSink cannot be made: it needs wh",
            )
            for command in ("eval", "env")
        ),
    ],
)
def test_a_command_says_it_before_anything_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    overrides: tuple[str, ...],
    said: str,
) -> None:
    for module in (env, run_collection):
        monkeypatch.setattr(module, "ray_session", no_ray)
    monkeypatch.chdir(tmp_path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    block = {**IN_SINK, "source": "m:Source"}
    servers = {
        "policy_model": {"responses_api_models": {"local_model": {}}},
        "a": {"responses_api_agents": {"callable_agent": {"callable": "m:f"}}},
    }
    Path("run.yaml").write_text(json.dumps({"token_id_capture": block, "head_server": {"port": port}, **servers}))
    Path("rows.jsonl").write_text('{"agent_ref": {"name": "a"}, "responses_create_params": {"input": "q"}}\n')
    files = ("--input", "rows.jsonl", "--output", "out.jsonl") if command == "eval" else ()
    arguments = (command, "run" if command == "eval" else "start", "--config", "run.yaml", *files, *overrides)
    monkeypatch.setattr(sys, "argv", ["gym-ray", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 1
    err = capsys.readouterr().err.splitlines()
    assert err[0].startswith(said)
    assert err[-1] == ("error: no Ray here" if said.startswith("warning") else err[0])
