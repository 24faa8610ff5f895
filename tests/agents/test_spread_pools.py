from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from gym_ray.agents.spread_pools import SpreadTransport
from gym_ray.testing.serving import served


class Counter:
    """Counts requests under way, and answers once somebody lets them."""

    def __init__(self) -> None:
        self.now = self.most = 0

    async def answer(self, request: Request) -> Response:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.02)
        self.now -= 1
        return PlainTextResponse(request.url.path)

    async def stream(self, _: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            yield b"first"
            await asyncio.Event().wait()

        return StreamingResponse(parts())


@pytest.fixture
def counter() -> Counter:
    return Counter()


@pytest.fixture
def url(counter: Counter) -> Iterator[str]:
    app = Starlette(routes=[Route("/stream", counter.stream), Route("/{rest:path}", counter.answer)])
    with served(app) as url:
        yield url


async def test_requests_beyond_the_limit_wait_and_all_are_answered(counter: Counter, url: str) -> None:
    async with httpx.AsyncClient(transport=SpreadTransport(20, 2.0), trust_env=False) as client:
        answers = await asyncio.gather(*(client.get(f"{url}/{number}") for number in range(100)))
    assert [answer.text for answer in answers] == [f"/{number}" for number in range(100)]
    assert 8 < counter.most <= 20, "more than one pool is used, and never more than all"


async def test_a_place_is_free_again_however_its_request_ended(url: str) -> None:
    async with httpx.AsyncClient(transport=SpreadTransport(1, 2.0), trust_env=False) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get("http://127.0.0.1:9/")
        async with client.stream("GET", f"{url}/stream") as answer:
            async for part in answer.aiter_raw():
                assert part == b"first"
                break
        waiting = asyncio.create_task(client.get(f"{url}/waits"))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(httpx.ReadTimeout):
            await client.get(f"{url}/stream", timeout=0.05)
        assert (await client.get(f"{url}/last")).text == "/last"


async def test_a_request_that_waits_for_a_place_can_be_given_up(url: str) -> None:
    async with httpx.AsyncClient(transport=SpreadTransport(1, 2.0), trust_env=False) as client:
        async with client.stream("GET", f"{url}/stream"):
            waiting = asyncio.create_task(client.get(f"{url}/waits"))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert (await client.get(f"{url}/after")).text == "/after"
