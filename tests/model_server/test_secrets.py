"""No key reaches a file, a log line, a label or an exception, however the client and the upstream treat it (B67)."""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gym_ray.dialects import DIALECT_BY_PATH
from gym_ray.model_call_capture import CaptureWriter
from gym_ray.model_call_capture.exchanges.redaction import Redactor, secret_digest
from gym_ray.model_server.app import build_app
from gym_ray.model_server.serving import AppServer
from gym_ray.model_server.upstream import UpstreamEngine
from gym_ray.testing.fake_upstream import FakeUpstream, UpstreamRequest
from gym_ray.testing.script import SSE, ScriptedAnswer
from gym_ray.testing.scripted_dialects import json_answer, stream_answer

OURS, TOKEN = "sk-FAKE-1234567890", "run-token-FAKE-1234567890"
DIGEST_KEY = b"digest key"
QUERY, CLIENT_HEADER, ANSWER_HEADER = "AIzaFAKEquery", "client-header-FAKE", "answer-header-FAKE"
PASSWORD = "hunter-FAKE-22"
ECHO = f"Incorrect API key provided: {OURS}. You also sent {QUERY} to us."


def script(request: UpstreamRequest) -> ScriptedAnswer:
    """Answer as the request's prompt says, with whatever the request held."""
    body = json.loads(request.body or b"{}")
    dialect = DIALECT_BY_PATH.get(request.path, "chat")
    headers = [("x-answer", ANSWER_HEADER)]
    said = f"you are {request.headers.get('authorization')} {request.headers.get('x-api-key')}; {ECHO}"
    match body.get("mode"):
        case "error":
            answer = {"error": {"message": ECHO, "key": request.headers.get("authorization"), "password": PASSWORD}}
            return ScriptedAnswer([json.dumps(answer).encode()], 401, headers=headers)
        case "page":
            return ScriptedAnswer([f"<html>{said}</html>".encode()], 502, "text/html", headers)
        case "stream":
            whole = stream_answer(dialect, said)
            return ScriptedAnswer(whole.chunks, 200, SSE, headers)
        case "cut":
            return ScriptedAnswer([f"data: {json.dumps({'error': {'message': said}})}\n".encode()], 200, SSE, cut=True)
        case "redirect":
            return ScriptedAnswer([], 307, headers=[("location", f"http://127.0.0.1:1/v1?key={QUERY}")])
        case _:
            return ScriptedAnswer([json_answer(dialect, said).body], 200, headers=headers)


@dataclass
class Site:
    http: httpx.AsyncClient
    writer: CaptureWriter


@asynccontextmanager
async def site(directory: Path) -> AsyncIterator[Site]:
    redactor = Redactor([OURS, TOKEN], keys=["password"], patterns=[r"AIza\w+"], digest_key=DIGEST_KEY)
    writer = CaptureWriter(directory, server_name="policy_model", run_token=TOKEN, redactor=redactor)
    await asyncio.to_thread(writer.start)
    upstream = AppServer(FakeUpstream(script))
    await upstream.start()
    engine = UpstreamEngine(f"{upstream.url}/v1", api_key=OURS, dialects=DIALECT_BY_PATH.values())
    await engine.start()
    server = AppServer(build_app(engine, server_name="policy_model", capture=writer, run_token=TOKEN))
    await server.start()
    try:
        headers = {"authorization": f"Bearer {TOKEN}", "x-api-key": TOKEN, "x-mine": CLIENT_HEADER}
        async with httpx.AsyncClient(base_url=server.url, headers=headers, trust_env=False, timeout=20) as http:
            yield Site(http, writer)
    finally:
        await server.stop(5)
        await engine.aclose()
        await upstream.stop(1)
        await asyncio.to_thread(writer.close)


def files(directory: Path) -> dict[str, str]:
    """Return everything under a directory, without the registry's entry, which must hold the run's token."""
    paths = [path for path in directory.rglob("*") if path.is_file() and path.parent.name != "writers"]
    return {str(path): path.read_bytes().decode("utf-8", "replace") for path in paths}


SECRETS = (OURS, TOKEN, QUERY, CLIENT_HEADER, ANSWER_HEADER, PASSWORD)
MODES = ("plain", "error", "page", "stream", "cut", "redirect")


@pytest.mark.parametrize("mode", MODES)
async def test_no_key_is_found_by_grep(tmp_path: Path, mode: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "gym_ray")
    caught: list[str] = []
    async with site(tmp_path) as at:
        for path in DIALECT_BY_PATH:
            body = {"model": "m", "mode": mode, "token": TOKEN, "password": PASSWORD, "escaped": OURS}
            content = json.dumps(body).replace("FAKE-123", "FAKE\\u002d123").encode()
            try:
                await at.http.post(f"/ng-rollout/0-0{path}?key={QUERY}", content=content)
                await at.http.post(f"/ng-rollout/.bad{path}?key={QUERY}", content=content)
            except httpx.HTTPError as error:
                caught.append("".join(traceback.format_exception(error)))
        everything = {**files(tmp_path), "log": caplog.text, "labels": repr(at.writer.telemetry.drain())}
        records = at.writer.store.read("0-0")
    assert len(records) == 3
    everything |= {f"exception {number}": text for number, text in enumerate(caught)}
    for name, text in everything.items():
        for secret in SECRETS:
            assert secret not in text, f"{secret} in {name}"
    for record in records:
        assert record["request"]["token"] == secret_digest(TOKEN, DIGEST_KEY)
        assert record["request"]["escaped"] == secret_digest(OURS, DIGEST_KEY)
        assert record["request"]["password"] == secret_digest(PASSWORD, DIGEST_KEY)
        if mode in ("plain", "stream", "cut"):  # an error's text loses our key before the client sees it
            assert secret_digest(OURS, DIGEST_KEY) in json.dumps(record.get("response_raw") or record["response"])


async def test_what_the_client_gets_is_not_changed_by_capture(tmp_path: Path) -> None:
    async with site(tmp_path) as at:
        for mode in ("plain", "stream"):
            body: dict[str, Any] = {"model": "m", "mode": mode, "password": PASSWORD}
            plain = await at.http.post("/v1/chat/completions", json=body)
            captured = await at.http.post("/ng-rollout/0-0/v1/chat/completions", json=body)
            assert plain.content == captured.content


async def test_logs_and_errors_of_a_disk_that_fails_hold_no_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Redactor):
        def redact(self, record: dict[str, Any]) -> dict[str, Any]:
            raise RecursionError("too deep")

    writer = CaptureWriter(tmp_path, server_name="s", redactor=Failing([OURS], digest_key=DIGEST_KEY))
    writer.start()
    exchange = writer.begin("0-0", "chat")
    assert exchange is not None
    exchange.request = [json.dumps({"key": OURS}).encode()]
    await writer.commit(exchange)
    assert writer.store.is_incomplete("0-0")
    await asyncio.to_thread(writer.close)
    assert not any(OURS in text for text in [*files(tmp_path).values(), caplog.text])
    assert "could not be recorded: too deep" in caplog.text
