from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gym_ray.cli import agent_metrics
from gym_ray.cli.agent_metrics import ask_agents, metrics_urls
from gym_ray.errors import AgentError
from gym_ray.server_directory import Endpoint, ServerDirectory
from gym_ray.settings import CallableAgentOptions, HttpAgentOptions, RunSettings, ServerSettings
from gym_ray.testing.serving import served

CHUNKS = (b'{"verify_responses":[', b'{"reward":1.0}', b"]}")


class Agent:
    """An agent server that keeps what it is sent and answers what it is told to."""

    def __init__(self, answer: Response) -> None:
        self.seen: list[tuple[Any, dict[str, str]]] = []
        self._answer = answer
        self.app = Starlette(routes=[Route("/aggregate_metrics", self._metrics, methods=["POST"])])

    async def _metrics(self, request: Request) -> Response:
        self.seen.append((json.loads(await request.body()), dict(request.headers)))
        return self._answer


@pytest.mark.parametrize("run_token", [None, "token-of-the-run"])
def test_an_agent_gets_the_body_in_chunks_and_its_answer_counts(run_token: str | None) -> None:
    agent = Agent(JSONResponse({"agent_metrics": {"x": 1}}))
    with served(agent.app) as url:
        answer = ask_agents({"a": url}, run_token=run_token)("a", iter(CHUNKS))
    assert json.loads(answer or b"") == {"agent_metrics": {"x": 1}}
    ((body, headers),) = agent.seen
    assert body == {"verify_responses": [{"reward": 1.0}]}
    assert headers.get("x-gym-ray-run-token") == run_token


def test_an_agent_that_nobody_can_ask_has_no_metrics_of_its_own() -> None:
    def nobody_reads() -> Iterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    assert ask_agents({})("a", nobody_reads()) is None
    with served(Starlette()) as url:
        assert ask_agents({"a": url})("a", iter(CHUNKS)) is None


def test_what_goes_wrong_is_named() -> None:
    agent = Agent(JSONResponse({"detail": "out of order"}, status_code=500))
    with served(agent.app) as url, pytest.raises(AgentError, match=r"/aggregate_metrics answered 500: .*out of order"):
        ask_agents({"a": url})("a", iter(CHUNKS))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # bound and not listening: nobody else can take the port, and it refuses
        with pytest.raises(AgentError, match="ConnectError"):
            ask_agents({"a": f"http://127.0.0.1:{probe.getsockname()[1]}"})("a", iter(CHUNKS))


def test_an_answer_without_end_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_metrics, "_MOST_ANSWER_BYTES", 1000)
    agent = Agent(JSONResponse({"agent_metrics": {"x": "y" * 2000}}))
    with served(agent.app) as url, pytest.raises(AgentError, match="answered more than 1000 bytes"):
        ask_agents({"a": url})("a", iter(CHUNKS))


def test_an_agent_without_a_server_is_asked_where_its_rollouts_are_scored() -> None:
    scorer = {"type": "resources_servers", "name": "scorer"}
    servers = {
        "over_http": HttpAgentOptions(base_url="http://agent:1/"),
        "scored": CallableAgentOptions(callable="m:f", resources_server=scorer),
        "alone": CallableAgentOptions(callable="m:f"),
    }
    settings = RunSettings(
        servers={
            name: ServerSettings(
                name=name,
                type="responses_api_agents",
                implementation="http_agent" if name == "over_http" else "callable_agent",
                options=options,
            )
            for name, options in servers.items()
        }
    )
    directory = ServerDirectory({}, {"scorer": [Endpoint("n", "http://scorer:2")]})
    assert metrics_urls(settings, directory) == {"over_http": "http://agent:1", "scored": "http://scorer:2"}
