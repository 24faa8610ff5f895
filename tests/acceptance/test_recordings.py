"""What real engines sent, replayed by an upstream: capture changes neither a byte nor a header of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gym_ray.dialects import CHAT, DIALECT_BY_PATH, MESSAGES, RESPONSES
from gym_ray.model_call_capture.records import build_record
from gym_ray.model_server.app import build_app
from gym_ray.model_server.serving import AppServer
from gym_ray.model_server.upstream import UpstreamEngine
from gym_ray.testing.captured_model import CapturedModel, captured_model
from gym_ray.testing.fake_upstream import FakeUpstream, recorded
from gym_ray.testing.script import ScriptedAnswer

RECORDINGS: dict[str, dict[str, Any]] = {
    f"{path.parent.name}/{path.stem}": recording
    for path in sorted((Path(__file__).parents[1] / "recordings").glob("*/*.json"))
    if (recording := json.loads(path.read_text("utf-8")))["path"] in DIALECT_BY_PATH
}


class Replaying:
    """An upstream that plays one answer at a time, a server that captures in front of it, and one that does not."""

    def __init__(self, captured: CapturedModel, plain: httpx.AsyncClient, capturing: httpx.AsyncClient) -> None:
        self.captured, self.plain, self.capturing = captured, plain, capturing
        self.playing = ScriptedAnswer([])


@asynccontextmanager
async def replaying(directory: Path) -> AsyncIterator[Replaying]:
    upstream = AppServer(FakeUpstream(lambda request: link.playing))
    await upstream.start()
    engine = UpstreamEngine(f"{upstream.url}/v1", api_key="sk-1", dialects=(RESPONSES, CHAT, MESSAGES))
    await engine.start()
    bare = AppServer(build_app(engine, server_name="policy_model", capture=None))
    await bare.start()
    try:
        async with (
            captured_model(directory, engine) as model,
            httpx.AsyncClient(base_url=bare.url, trust_env=False, timeout=30) as plain,
            httpx.AsyncClient(base_url=model.url, trust_env=False, timeout=30) as capturing,
        ):
            link = Replaying(model, plain, capturing)
            yield link
    finally:
        await bare.stop(grace_s=5)
        await engine.aclose()
        await upstream.stop(grace_s=5)


async def ask(http: httpx.AsyncClient, path: str, body: Any) -> tuple[int, bytes, list[tuple[str, str]]]:
    """Return status, the body's bytes as they came, and all headers but the time of day, in their order."""
    async with http.stream("POST", path, json=body) as response:
        content = b"".join([chunk async for chunk in response.aiter_raw()])
    headers = [(name, value) for name, value in response.headers.multi_items() if name != "date"]
    return response.status_code, content, headers


def recut(answer: ScriptedAnswer, size: int | None) -> ScriptedAnswer:
    """Cut a body into pieces of ``size`` bytes, its first 1,000 of them."""
    if size is None:
        return answer
    body = answer.body[: 1000 * size]
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    headers = [pair for pair in answer.headers if pair[0] != "content-length" or len(body) == len(answer.body)]
    return ScriptedAnswer(pieces, answer.status, answer.content_type, headers)


@pytest.mark.parametrize("cut", [None, 1, 700], ids=["as recorded", "byte by byte", "across events"])
async def test_bytes_and_headers_are_the_engines_with_capture_on_and_off(tmp_path: Path, cut: int | None) -> None:
    async with replaying(tmp_path) as link:
        for number, (name, recording) in enumerate(RECORDINGS.items()):
            link.playing = recut(recorded(recording), cut)
            path, body = recording["path"], recording["request"]
            without = await ask(link.plain, path, body)
            unprefixed = await ask(link.capturing, path, body)
            prefixed = await ask(link.capturing, f"/ng-rollout/{number}-0{path}", body)
            assert without[:2] == (link.playing.status, link.playing.body), name
            assert without == unprefixed == prefixed, name
            (record,) = await asyncio.to_thread(link.captured.records, f"{number}-0")
            assert record["request"] == body, name
            if "event-stream" in link.playing.content_type:
                assert record["response_raw"].encode() == link.playing.body, name
            elif link.playing.body == recorded(recording).body:
                assert record["response"] == json.loads(link.playing.body), name
            build_record(record, 0)


async def test_whole_recordings_are_judged_by_what_they_are(tmp_path: Path) -> None:
    async with replaying(tmp_path) as link:
        for number, (name, recording) in enumerate(RECORDINGS.items()):
            link.playing = recorded(recording)
            await ask(link.capturing, f"/ng-rollout/{number}-0{recording['path']}", recording["request"])
            (record,) = await asyncio.to_thread(link.captured.records, f"{number}-0")
            assert record["status_code"] == recording["status"], name
            assert (record["error_category"] in (None, "incomplete")) == (recording["status"] < 400), name
            if recording["status"] < 400:
                call = build_record(record, 0)
                assert None not in (call.response_id, call.model), name
