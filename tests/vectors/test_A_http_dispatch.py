"""One request through the whole application of a model server whose engine is asked for complete answers only."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

from gym_ray.dialects import CHAT, RESPONSES
from gym_ray.dialects.sse import EventScanner
from gym_ray.model_call_capture import CaptureStore, CaptureWriter, read_model_call_records
from gym_ray.model_server.app import AppOptions, build_app
from gym_ray.model_server.bridged import BridgeOptions
from gym_ray.model_server.engine import EngineAnswer, EngineRequest
from gym_ray.testing.fake_engine import FakeEngine
from gym_ray.testing.script import ScriptedAnswer

FILE = "A_http_dispatch.json"
KEEP_ALIVE_S = 0.05


class Backend(FakeEngine):
    """Answers as a case says; a slow one waits until the client has got a comment."""

    def __init__(self, case: dict[str, Any], document: dict[str, Any], heard: asyncio.Event) -> None:
        super().__init__(script=self.play, dialects=(RESPONSES, CHAT))
        self.case, self.document, self.heard = case, document, heard

    async def answer(self, request: EngineRequest) -> EngineAnswer:
        if self.case.get("backend_slower_than_keepalive"):
            await self.heard.wait()
        return await super().answer(request)

    def play(self, request: EngineRequest) -> ScriptedAnswer:
        match self.case.get("backend_raises"):
            case "HTTPException 429":
                return ScriptedAnswer([b'{"detail":"slow down"}'], 429)
            case "RuntimeError":
                raise RuntimeError("a text that no client may see")
        whole = self.document["default_chat_answer" if request.dialect == CHAT else "default_answer"]
        return ScriptedAnswer([json.dumps({**whole, **self.case.get("answer_overrides", {})}).encode()])


class Exchange:
    """One ASGI request and what came back."""

    def __init__(self, case: dict[str, Any], heard: asyncio.Event) -> None:
        self.path, self.heard = f"/ng-rollout/0-0{case['path']}", heard
        self.request = case["raw_body"].encode() if "raw_body" in case else json.dumps(case["body"]).encode()
        self.status, self.body = 0, b""
        self.headers: dict[str, str] = {}
        self._asked = False

    async def receive(self) -> dict[str, Any]:
        if self._asked:
            await asyncio.Event().wait()  # the client stays
        self._asked = True
        return {"type": "http.request", "body": self.request, "more_body": False}

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
            return
        self.body += message.get("body", b"")
        if message.get("body", b"").startswith(b":"):
            self.heard.set()

    def frames(self) -> list[dict[str, Any]]:
        """Return the events in the vectors' form; neighbouring comments count once."""
        found: list[dict[str, Any]] = []
        scanner = EventScanner()
        for part in self.body.split(b"\n\n")[:-1]:
            if part.startswith(b":"):
                comment = {"comment": part[1:].strip().decode()}
                found += [comment] if found[-1:] != [comment] else []
                continue
            (event,) = scanner.feed(part + b"\n\n")
            found.append({"event": event.name or None, "type": _type_of(event.data), **_error_of(event.data)})
        return found


def _type_of(data: bytes) -> str | None:
    return "[DONE]" if data == b"[DONE]" else json.loads(data).get("type")


def _error_of(data: bytes) -> dict[str, Any]:
    error = {} if data == b"[DONE]" else json.loads(data).get("error") or {}
    return {"error": {key: error[key] for key in ("type", "code")}} if "code" in error and "type" in error else {}


def changes_of(case: dict[str, Any], departures: dict[str, Any], part: str) -> dict[str, Any]:
    rules = [rule for rule in departures.values() if rule["file"] == FILE and case["id"] in rule.get("ids", [])]
    return {key: value for rule in rules for key, value in rule.get(part, {}).items()}


def is_subsequence(expected: list[Any], found: list[Any]) -> bool:
    rest = iter(found)
    return all(any(item == other for other in rest) for item in expected)


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, str) and "<hex32>" in expected:
        return bool(re.fullmatch(re.escape(expected).replace("<hex32>", "[0-9a-f]{32}"), str(found)))
    return bool(found == expected)


async def test_vector(
    case: dict[str, Any], tmp_path: Path, departures: dict[str, Any], document: dict[str, Any]
) -> None:
    heard = asyncio.Event()
    backend, exchange = Backend(case, document, heard), Exchange(case, heard)
    writer = CaptureWriter(tmp_path / "captures", server_name="policy_model")
    writer.start()
    options = AppOptions(forwarded=frozenset(), bridge=BridgeOptions(keep_alive_s=KEEP_ALIVE_S))
    app = build_app(backend, server_name="policy_model", capture=writer, options=options)
    headers = [(b"content-type", b"application/json"), (b"host", b"model")]
    scope = {"type": "http", "method": "POST", "path": exchange.path, "query_string": b"", "headers": headers}
    async with asyncio.timeout(30):
        await app(scope, exchange.receive, exchange.send)  # type: ignore[arg-type]
    await asyncio.to_thread(writer.close)
    expected = {**case["expected"], **changes_of(case, departures, "expected")}
    assert exchange.status in expected.get("status_in", [expected.get("status")])
    assert [dict(request.body) for request in backend.requests] == expected["backend_calls"]
    if "json" in expected:
        expected["json"] = {**expected["json"], **changes_of(case, departures, "json")}
    check_answer(case["path"], exchange, expected)
    if "captured" in expected:
        check_capture(writer.store, expected, changes_of(case, departures, "captured"))


def check_answer(path: str, exchange: Exchange, expected: dict[str, Any]) -> None:
    assert exchange.headers["content-type"].startswith(expected.get("content_type", ""))
    if "cache_control" in expected:
        assert exchange.headers["cache-control"] == "no-cache"  # A134: also where the peer leaves it out
    if "frames" in expected:
        # W25: a replayed Responses stream has more events than the peer's; those keep their order and their ends.
        found = [
            {key: "@none" if value is None else value for key, value in frame.items()} for frame in exchange.frames()
        ]
        wanted = [
            {key: "@none" if value is None else value for key, value in frame.items()} for frame in expected["frames"]
        ]
        assert is_subsequence(wanted, found)
        assert (found[0], found[-1]) == (wanted[0], wanted[-1])
        assert path == "/v1/responses" or found == wanted
    details = json.loads(exchange.body)["detail"] if "detail" in expected else []
    for wanted, detail in zip(expected.get("detail", []), details, strict=True):
        assert (detail["type"], detail["msg"]) == (wanted["type"], wanted["msg"])
        assert detail["loc"][: len(wanted["loc0"])] == wanted["loc0"]
        assert "url" not in detail
    if "json" in expected:
        found_json = json.loads(exchange.body)
        assert {key: value for key, value in found_json.items() if value is not None} == expected["json"]


def check_capture(store: CaptureStore, expected: dict[str, Any], changes: dict[str, Any]) -> None:
    records = [record.as_json() for record in read_model_call_records(store, "0-0")]
    wanted = [{**record, **changes} for record in expected["captured"]]
    assert len(records) == len(wanted)
    for found, record in zip(records, wanted, strict=True):
        assert {key: found[key] for key in record if not same(found[key], record[key])} == {}
    for name in ("request_raw", "response_raw"):
        assert [found[name] is not None for found in records] == expected[f"captured_{name}"]
