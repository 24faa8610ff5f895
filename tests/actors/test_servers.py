"""Servers on Ray actors: they start or say why not, come back where they were, and answer while they are busy."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gym_ray.errors import ServerStartError
from gym_ray.model_call_capture import CaptureStore
from gym_ray.testing.fake_upstream import FakeUpstream

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
TOKEN = {"authorization": "Bearer token-of-the-run"}

MODEL = """
policy_model:
  responses_api_models:
    openai_model:
      openai_base_url: {upstream}/v1
      openai_api_key: sk-of-the-upstream
      openai_model: some-model
      {more}
"""


def eventually(check: Callable[[], bool], what: str, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, f"not in {timeout_s} s: {what}"
        time.sleep(0.05)


def test_a_killed_server_comes_back_on_its_port_and_goes_on_capturing(
    ray_cluster: None, tmp_path: Path, write_settings: Callable[..., Any], serve: Callable[[Any], str]
) -> None:
    from gym_ray.actors.calls import get
    from gym_ray.actors.servers import start_servers

    settings = write_settings(MODEL.format(upstream=serve(FakeUpstream(text="still here")), more=""))
    servers = start_servers(settings, run_token="token-of-the-run", cache_dir=tmp_path)
    try:
        (endpoint,) = servers.directory.models["policy_model"]
        (host,) = servers.hosts.values()
        url = f"{endpoint.url}/ng-rollout/0-0/v1/responses"
        assert httpx.post(url, json={"input": "a"}, headers=TOKEN).status_code == 200
        first = get(host.health.remote(), 60)
        assert first.ready
        os.kill(first.pid, signal.SIGKILL)

        def answers() -> bool:
            try:
                return httpx.post(url, json={"input": "b"}, headers=TOKEN, timeout=30).status_code == 200
            except httpx.HTTPError:
                return False

        eventually(answers, "an answer from the restarted server")
        assert get(host.health.remote(), 60).pid != first.pid
    finally:
        servers.stop()
    calls = CaptureStore(settings.capture_dir).read("0-0")
    assert len(calls) == 2
    with pytest.raises(httpx.HTTPError):
        httpx.post(url, json={"input": "c"}, headers=TOKEN, timeout=5)


def test_servers_hand_their_records_to_one_hosted_writer(
    ray_cluster: None, tmp_path: Path, write_settings: Callable[..., Any], serve: Callable[[Any], str]
) -> None:
    from gym_ray.actors.servers import start_servers

    text = MODEL.format(upstream=serve(FakeUpstream(text="hosted")), more="replicas: 2")
    settings = write_settings(text, "++model_call_capture_writer=hosted")
    servers = start_servers(settings, run_token="token-of-the-run", cache_dir=tmp_path)
    try:
        assert list(servers.engines) == ["capture-writer"], "one for all replicas"
        for endpoint in servers.directory.models["policy_model"]:
            url = f"{endpoint.url}/ng-rollout/0-0/v1/responses"
            assert httpx.post(url, json={"input": "a"}, headers=TOKEN, timeout=60).status_code == 200
            calls = CaptureStore(settings.capture_dir).read("0-0")
            assert calls, "an answer came before its record"
    finally:
        servers.stop()
    assert len(CaptureStore(settings.capture_dir).read("0-0")) == 2


@pytest.mark.parametrize(
    ("more", "upstream", "mentions"),
    [
        ("port: {taken}", None, ["policy_model", "{taken}", "in use"]),
        ("connect_timeout_s: 1", "http://127.0.0.1:1", ["policy_model", "http://127.0.0.1:1"]),
    ],
    ids=["port-in-use", "engine-down"],
)
def test_a_server_that_cannot_start_says_why(
    ray_cluster: None,
    tmp_path: Path,
    write_settings: Callable[..., Any],
    serve: Callable[[Any], str],
    more: str,
    upstream: str | None,
    mentions: list[str],
) -> None:
    from gym_ray.actors.servers import start_servers

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        text = MODEL.format(upstream=upstream or serve(FakeUpstream()), more=more.format(taken=port))
        settings = write_settings(text, "++model_endpoint_timeout_s=2")
        with pytest.raises(ServerStartError) as error:
            start_servers(settings, run_token="token-of-the-run", cache_dir=tmp_path)
    for mention in mentions:
        assert mention.format(taken=port) in str(error.value)
    assert "sk-of-the-upstream" not in str(error.value)


def test_an_unwritable_capture_directory_is_refused_at_start(
    ray_cluster: None, tmp_path: Path, write_settings: Callable[..., Any], serve: Callable[[Any], str]
) -> None:
    from gym_ray.actors.servers import start_servers

    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    text = MODEL.format(upstream=serve(FakeUpstream()), more="")
    settings = write_settings(text, f"++model_call_capture_dir={blocked}/model-calls")
    with pytest.raises(ServerStartError, match=str(blocked)):
        start_servers(settings, run_token="token-of-the-run", cache_dir=tmp_path)


def test_health_answers_while_the_actors_loop_is_blocked(ray_cluster: None) -> None:
    from gym_ray.actors.calls import get
    from gym_ray.actors.cluster import close_actors, local_node, start_actor
    from gym_ray.actors.health import Watched

    class Blocked(Watched):
        def __init__(self) -> None:
            self._ready = True
            self.release = False

        async def block(self) -> None:
            while not self.release:
                time.sleep(0.01)  # noqa: ASYNC251 - blocking the loop is the point

        async def close(self) -> None:
            return None

    actor = start_actor(Blocked, local_node(), "blocked")
    try:
        assert get(actor.health.remote(), 60).ready
        actor.block.remote()
        assert get([actor.health.remote() for _ in range(20)], 60)
    finally:
        close_actors([actor], 0.1)


def test_a_restarted_actor_that_cannot_start_tries_again_until_it_can(ray_cluster: None, tmp_path: Path) -> None:
    from gym_ray.actors.calls import get
    from gym_ray.actors.cluster import close_actors, local_node, pick_ports, start_actor
    from gym_ray.actors.http_host import HttpHost

    starts = tmp_path / "starts"

    class Stumbling(HttpHost):
        async def _open(self) -> Any:
            with starts.open("a") as file:
                file.write("x")
            if starts.stat().st_size in (2, 3):
                raise ServerStartError("not yet")
            return FakeUpstream()

    port = pick_ports(local_node(), "127.0.0.1", 1)[0]
    actor = start_actor(Stumbling, local_node(), "stumbling", "stumbling", "127.0.0.1", port)
    try:
        url = get(actor.url.remote(), 60)
        os.kill(get(actor.health.remote(), 60).pid, signal.SIGKILL)

        def answers() -> bool:
            try:
                return httpx.get(f"{url}/v1/models", timeout=5).status_code == 200
            except httpx.HTTPError:
                return False

        eventually(lambda: starts.stat().st_size == 4 and answers(), "the fourth start")
    finally:
        close_actors([actor], 5)


def test_ports_are_different_free_and_outside_of_what_outgoing_connections_take(ray_cluster: None) -> None:
    from gym_ray.actors.cluster import local_node, pick_ports

    ports = pick_ports(local_node(), "127.0.0.1", 50)
    assert len(set(ports)) == 50
    assert all(10001 <= port <= 20000 for port in ports)
