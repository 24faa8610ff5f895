"""Large request bodies: who parses them, and that nothing about them changes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gym_ray import exact_json
from gym_ray.child_interpreter import ChildInterpreter
from gym_ray.dialects import CHAT
from gym_ray.model_server import heavy_bodies
from gym_ray.model_server.app import build_app
from gym_ray.model_server.heavy_bodies import HeavyBody, body_work, is_heavy, parse_heavy
from gym_ray.model_server.serving import AppServer
from gym_ray.model_server.upstream import UpstreamEngine
from gym_ray.testing.fake_upstream import FakeUpstream

MESSAGES = [{"role": "user", "content": str(number)} for number in range(60_000)]
BIG = 2**70


def heavy_raw(**members: Any) -> bytes:
    return json.dumps({"messages": MESSAGES, "seed": BIG, "stream": True, **members}).encode()


@pytest.fixture
def child() -> Iterator[ChildInterpreter[Any]]:
    found: ChildInterpreter[Any] = ChildInterpreter(body_work)
    yield found
    found.close()


def test_many_values_or_very_much_text_are_heavy() -> None:
    assert is_heavy(heavy_raw())
    assert is_heavy(b'"' + b"x" * 9 * 1024**2 + b'"')
    assert not is_heavy(b'"' + b"x" * 2 * 1024**2 + b'"')
    assert not is_heavy(b"[" + b"1," * 100_000 + b"1]")


async def test_small_members_are_known_without_parsing_here(
    child: ChildInterpreter[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = await parse_heavy(child, heavy_raw(model="m"))
    parsed: list[int] = []
    monkeypatch.setattr(heavy_bodies.exact_json, "loads", lambda raw: parsed.append(len(raw)) or json.loads(raw))
    assert (body["model"], body.get("stream"), body.get("nothing"), body["seed"]) == ("m", True, None, BIG)
    assert "user" not in body
    assert len(body) == 4
    assert not parsed
    assert body["messages"] == MESSAGES
    assert len(parsed) == 1
    assert dict(body)["messages"] == MESSAGES
    assert len(parsed) == 1


async def test_a_replaced_member_is_the_only_change(child: ChildInterpreter[Any]) -> None:
    raw = heavy_raw(model="m")
    body = await parse_heavy(child, raw)
    assert exact_json.loads(await body.replaced({"model": "real"})) == {**json.loads(raw), "model": "real"}


@pytest.mark.parametrize(("raw", "error"), [(b"[]", TypeError), (b"{", ValueError)])
async def test_what_is_no_object_is_refused(child: ChildInterpreter[Any], raw: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        await parse_heavy(child, raw)


async def test_a_lost_child_costs_time_and_no_call(child: ChildInterpreter[Any]) -> None:
    body = await parse_heavy(child, b'{"model":"m"}')
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    assert await body.replaced({"model": "x"}) == b'{"model":"x"}'
    child.close()
    assert isinstance(await parse_heavy(child, b'{"a":[]}'), HeavyBody)


@asynccontextmanager
async def served(child: ChildInterpreter[Any] | None, dialects: tuple[str, ...]) -> AsyncIterator[tuple[Any, Any]]:
    fake = FakeUpstream()
    upstream = AppServer(fake)
    await upstream.start()
    engine = UpstreamEngine(f"{upstream.url}/v1", model_name="real-model", dialects=dialects)
    await engine.start()
    server = AppServer(build_app(engine, server_name="m", capture=None, child=child))
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=60) as http:
            yield fake, http
    finally:
        await server.stop(grace_s=5)
        await engine.aclose()
        await upstream.stop(grace_s=5)


@pytest.mark.parametrize("with_child", [False, True], ids=["thread", "child"])
async def test_a_heavy_request_is_forwarded_whole(child: ChildInterpreter[Any], with_child: bool) -> None:
    async with served(child if with_child else None, (CHAT,)) as (fake, http):
        response = await http.post("/v1/chat/completions", content=heavy_raw(model="m"))
        invalid = await http.post("/v1/chat/completions", content=heavy_raw()[:-1])
        array = await http.post("/v1/chat/completions", content=json.dumps(MESSAGES))
    assert response.headers["content-type"].startswith("text/event-stream")
    assert exact_json.loads(fake.requests[0].body) == json.loads(heavy_raw(model="real-model"))
    assert (invalid.status_code, array.status_code, len(fake.requests)) == (422, 422, 1)
    assert invalid.json()["detail"][0]["type"] == "json_invalid"
    assert array.json()["detail"][0]["type"] == "dict_type"


async def test_the_event_loop_goes_on_while_the_child_parses(child: ChildInterpreter[Any]) -> None:
    """The loop turns many times during one parse; had the parse held it, it would have turned once."""
    await parse_heavy(child, b"{}")  # the child is up
    turns = 0
    parse = asyncio.ensure_future(parse_heavy(child, heavy_raw()))
    while not parse.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 100
