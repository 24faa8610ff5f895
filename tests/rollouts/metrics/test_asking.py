from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from gym_ray.errors import AgentError
from gym_ray.rollouts.metrics.asking import AgentMetrics


class Agent:
    """An agent server on a real socket that answers with one status."""

    def __init__(self) -> None:
        self.status, self.answer = 200, b'{"agent_metrics":{}}'
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        agent = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                agent.headers.append({name.lower(): value for name, value in self.headers.items()})
                body = b""
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size + 2)[:-2]
                self.rfile.readline()
                agent.bodies.append(self.path.encode() + b" " + body)
                self.send_response(agent.status)
                self.send_header("content-length", str(len(agent.answer)))
                self.end_headers()
                self.wfile.write(agent.answer)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def agent() -> Iterator[Agent]:
    running = Agent()
    yield running
    running.stop()


def body() -> Iterator[bytes]:
    yield b'{"verify_responses":['
    yield b'{"reward":1}'
    yield b"]}"


def test_the_body_is_streamed_and_the_answer_returned(agent: Agent) -> None:
    with AgentMetrics({"a": agent.url + "/"}, {"x-token": "t"}) as post:
        assert post("a", body()) == agent.answer
    path, sent = agent.bodies[0].split(b" ", 1)
    assert path == b"/aggregate_metrics"
    assert json.loads(sent) == {"verify_responses": [{"reward": 1}]}
    assert agent.headers[0]["transfer-encoding"] == "chunked"
    assert agent.headers[0]["content-type"] == "application/json"
    assert agent.headers[0]["x-token"] == "t"


def test_only_known_agents_are_asked(agent: Agent) -> None:
    with AgentMetrics({"a": agent.url}) as post:
        assert post("other", body()) is None
    assert agent.bodies == []


@pytest.mark.parametrize("status", [404, 405, 501])
def test_an_agent_without_the_route_has_the_defaults(agent: Agent, status: int) -> None:
    agent.status = status
    with AgentMetrics({"a": agent.url}) as post:
        assert post("a", body()) is None


def test_an_error_is_named_with_its_status_and_text(agent: Agent) -> None:
    agent.status, agent.answer = 500, b"division by zero"
    with AgentMetrics({"a": agent.url}) as post, pytest.raises(AgentError, match=r"answered 500: division by zero"):
        post("a", body())


def test_an_agent_that_is_gone_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with AgentMetrics({"a": f"http://127.0.0.1:{port}"}) as post, pytest.raises(AgentError, match=f":{port}/aggregate"):
        post("a", body())


def test_an_answer_has_a_limit(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gym_ray.rollouts.metrics.asking._MOST_ANSWER_BYTES", 100)
    agent.answer = b"x" * 101
    with AgentMetrics({"a": agent.url}) as post, pytest.raises(AgentError, match="more than 100 bytes"):
        post("a", body())
