"""One ASGI request through the middleware: what the client got, when the record was durable, what the files hold."""

from __future__ import annotations

import asyncio
import errno
import json
import re
from pathlib import Path
from typing import Any

from gym_ray.model_call_capture.exchanges.exchange import ExecutionFacts, publish_execution_facts
from gym_ray.model_call_capture.middleware import CaptureMiddleware
from gym_ray.model_call_capture.records import read_available_model_call_records
from gym_ray.model_call_capture.store import CaptureStore
from gym_ray.model_call_capture.writer import CaptureWriter
from gym_ray.testing.storage_faults import FaultyCalls

ROLLOUT = "0-0"
# Where a response was partly put together after an exception, the peer's fields that follow from it are not given (W8).
FROM_PARTIAL_RESPONSE = ["response", "response_id", "model", "response_status", "finish_reason", "tool_calls"]
FROM_PARTIAL_RESPONSE += ["reasoning_content", "cache_hit", "cached_tokens", "cache_creation_tokens"]
FROM_PARTIAL_RESPONSE += ["tokens_in", "tokens_out", "tokens_reasoning", "tokens_total"]
TOKENS = {
    "<hex32>": lambda value: bool(re.fullmatch("[0-9a-f]{32}", value)),
    "<epoch>": lambda value: isinstance(value, float) and value > 1e9,
    "<ms>": lambda value: value is None or value == round(value, 2) >= 0,
}


class ClientResponseError(Exception):
    """What a backend client raises for an upstream's error status."""

    def __init__(self, status: int, response_content: bytes) -> None:
        super().__init__(status)
        self.status, self.response_content = status, response_content


class OneCall:
    """Plays a case's app and its client; keeps one trace of both, with the sync of the record between."""

    def __init__(self, case: dict[str, Any], calls: FaultyCalls) -> None:
        self.case, self.app_of, self.calls = case, case.get("app") or {}, calls
        self.trace: list[str] = []

    def error(self) -> BaseException:
        kind = self.app_of["raises"]["type"]
        if kind == "ClientResponseError":  # the case gives the upstream's answer only where it is expected again
            (exchange,) = self.case["expected"]["exchanges"]
            return ClientResponseError(exchange["status_code"], exchange["response_raw"].encode())
        kinds = {"RuntimeError": RuntimeError, "TimeoutError": TimeoutError, "CancelledError": asyncio.CancelledError}
        return kinds[kind]("boom")

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        raises = self.app_of.get("raises") or {}
        await receive()
        if "execution" in self.app_of:
            publish_execution_facts(scope, ExecutionFacts(**self.app_of["execution"]))
        if raises.get("before_start"):
            raise self.error()
        headers = [(b"content-type", self.app_of["content_type"].encode())]
        await send({"type": "http.response.start", "status": self.app_of["status"], "headers": headers})
        for index, chunk in enumerate(self.app_of.get("body_chunks", [])):
            if raises.get("before_chunk") == index:
                raise self.error()
            await send({"type": "http.response.body", "body": wire(chunk), "more_body": True})
        if raises:
            raise self.error()
        await send({"type": "http.response.body", "body": wire(self.app_of.get("final_body", "")), "more_body": False})

    async def receive(self) -> dict[str, Any]:
        return {"type": "http.request", "body": wire(self.case["request_body"]), "more_body": False}

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.trace.append("forward:start")
            return
        kind = "forward" if message.get("more_body") else "forward-end"
        self.trace.append(f"{kind}:{message.get('body', b'').decode('utf-8', 'surrogateescape')}")

    async def run(self, writer: CaptureWriter) -> str | None:
        headers = [(name.encode(), value.encode()) for name, value in self.case.get("request_headers", [])]
        scope = {"type": "http", "method": self.case["method"], "path": self.case["path"], "headers": headers}
        try:
            await CaptureMiddleware(self.app, writer)(scope, self.receive, self.send)  # type: ignore[arg-type]
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the cases raise several kinds
            return type(error).__name__
        return None


class TracingCalls(FaultyCalls):
    """Notes the sync of a record in the call's trace."""

    trace: list[str] | None = None

    def sync_data(self, fd: int) -> None:
        super().sync_data(fd)
        if self.trace is not None and self.path_of(fd).endswith(".capture.jsonl"):
            self.trace.append("record")


def wire(text: str) -> bytes:
    """A replacement character stands for a byte that is no UTF-8: the file itself cannot hold one."""
    return text.replace("\ufffd", "\udcff").encode("utf-8", "surrogateescape")


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, str) and expected in TOKENS:
        return TOKENS[expected](found)
    if isinstance(expected, dict) and isinstance(found, dict):
        return list(found) == list(expected) and all(same(found[key], value) for key, value in expected.items())
    if isinstance(expected, list) and isinstance(found, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    return type(found) is type(expected) and bool(found == expected)


def without(record: dict[str, Any], names: list[str]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in names}


def departed(case: dict[str, Any], departures: dict[str, Any]) -> dict[str, Any]:
    """Return what the departures change in a case's exchanges and records."""
    changes: dict[str, Any] = {}
    for rule in departures.values():
        if rule["file"] == "A_middleware.json" and case["id"] in rule.get("ids", []):
            changes |= rule["expected"]
    return changes


async def test_vector(case: dict[str, Any], tmp_path: Path, departures: dict[str, Any]) -> None:
    calls = TracingCalls(only=lambda path: path.endswith(".capture.jsonl"))
    writer = CaptureWriter(tmp_path / "captures", server_name="policy_model", calls=calls)
    writer.start()
    if case.get("store_write_fails"):
        calls.open_error = OSError(errno.ENOSPC, "no space left on device")
    call, expected = OneCall(case, calls), case["expected"]
    calls.trace = call.trace
    raised = await call.run(writer)
    await asyncio.to_thread(writer.close)
    store = CaptureStore(writer.store.root)
    assert raised == expected.get("raised")
    if "trace" in expected:
        assert call.trace == expected["trace"]
    assert sorted(path.name for path in store.root.glob("[!.]*")) == expected["files"]
    if "exchanges" not in expected:
        (exchange,) = store.read(ROLLOUT)
        assert exchange["error_category"] == expected["error_category"]
        return
    partial = FROM_PARTIAL_RESPONSE if case["origin"] == "corrected" and raised else []
    changes = departed(case, departures)
    records, invalid = read_available_model_call_records(store, ROLLOUT)
    assert invalid == 0
    for found, wanted in (
        (store.read(ROLLOUT), expected["exchanges"]),
        ([record.model_dump(mode="json") for record in records], expected["records"]),
    ):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert same(without(one, partial), without(other | changes, partial)), json.dumps([one, other], indent=1)
