from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from gym_ray.cli.token_remarks import check_source, collection_remarks, print_warnings, server_remarks
from gym_ray.errors import SettingsError
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
