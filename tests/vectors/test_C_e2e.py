"""One captured call of each kind through the whole server, message by message (C242-C272).

What the ledger and the evaluation record hold is looked at whenever the client is sent something. Events are compared,
not messages: small frames go out together here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gym_ray.dialects import CHAT, MESSAGES, RESPONSES
from gym_ray.dialects.conversion.bridge import Bridge
from gym_ray.dialects.replay import failure_frames, replay_frames
from gym_ray.model_call_capture import CaptureWriter, read_model_call_records
from gym_ray.model_server.app import AppOptions, build_app
from gym_ray.model_server.bridged import BridgeOptions
from gym_ray.model_server.external import route
from gym_ray.model_server.external.reserved import RESERVED_IN_ANSWERS
from gym_ray.model_server.serving import AppServer
from gym_ray.model_server.upstream import UpstreamEngine
from gym_ray.model_server.vllm.engine import VllmBehaviour, VllmEngine
from gym_ray.testing.fake_upstream import FakeUpstream
from gym_ray.testing.script import ScriptedAnswer
from gym_ray.testing.staging_worker import ScriptedWorker
from gym_ray.token_id_capture.config import TokenIdCaptureConfig, build_external_staging
from gym_ray.token_id_capture.external_staging import ExternalStaging
from gym_ray.token_id_capture.staging import StagedCallRecord, StageResult

FILE = "C_e2e.json"
DIALECT_OF = {"chat/completions": CHAT, "responses": RESPONSES, "messages": MESSAGES, "compaction": RESPONSES}
PATH_OF = {CHAT: "/v1/chat/completions", RESPONSES: "/v1/responses", MESSAGES: "/v1/messages"}
TURNS = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "m", "messages": TURNS},
    RESPONSES: {"model": "m", "input": TURNS},
    MESSAGES: {"model": "m", "max_tokens": 9, "messages": TURNS},
}
TOLD_TO_WORKERS = ("stream", "ng_capture", "logprobs", "top_logprobs", "return_tokens_as_token_ids")
KEEP_ALIVE_S = 0.02
PREFIXES = {"unprefixed": "", "eval_prefix_only": "/ng-rollout/r1"}
"""Kinds whose calls are not captured for training (C242)."""
REFUSALS = {
    "overflow": ScriptedAnswer([b'{"error":{"message":"more than the context length"}}'], 400),
    "worker_500": ScriptedAnswer([b'{"error":{"message":"the worker broke"}}'], 500),
}


class RejectingSink:
    def stage(self, _record: StagedCallRecord, *, attachments: object = None) -> StageResult:
        assert attachments is None
        return StageResult(ok=False, error="no room")


def break_coordinates(mode: str, answer: dict[str, Any]) -> None:
    if mode == "no_coords":
        del answer["ng_commit_coords"]
    elif mode == "wrong_identity":
        answer["ng_commit_coords"]["model_call_id"] = "another"


@dataclass
class Seen:
    """What was sent, and what was durable just before."""

    kind: str
    events: list[str]
    records: int
    failures: list[str]
    lines: list[tuple[int | None, str | None]]


@dataclass
class Client:
    """Sends one request to an ASGI application, and notes every message."""

    external: ExternalStaging
    writer: CaptureWriter | None
    body: dict[str, Any]
    heard: asyncio.Event
    status: int = 0
    content_type: str = ""
    text: bytes = b""
    seen: list[Seen] = field(default_factory=list)
    _asked: bool = False

    async def receive(self) -> dict[str, Any]:
        if self._asked:
            await asyncio.Event().wait()  # the client stays
        self._asked = True
        return {"type": "http.request", "body": json.dumps(self.body).encode(), "more_body": False}

    async def send(self, message: dict[str, Any]) -> None:
        manifest = await self.external.ledger.manifest("r1")
        body = message.get("body", b"")
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.content_type = dict(message["headers"])[b"content-type"].decode()
        self.text += body
        is_stream = self.content_type.startswith("text/event-stream")
        self.seen.append(
            Seen(
                "start" if message["type"] == "http.response.start" else "body",
                list(events_in(body)) if is_stream else [],
                len(manifest.records),
                [failure.reason for failure in manifest.failures],
                [] if self.writer is None else lines_of(self.writer),
            )
        )
        if self.text.count(b": keep-alive") >= 2:
            self.heard.set()


def lines_of(writer: CaptureWriter) -> list[tuple[int | None, str | None]]:
    return [(record.status_code, record.error_category) for record in read_model_call_records(writer.store, "r1")]


def events_in(body: bytes) -> Iterator[str]:
    for frame in body.decode().split("\n\n")[:-1]:
        if frame.startswith(":"):
            yield frame
            continue
        lines = dict(line.split(": ", 1) for line in frame.splitlines())
        payload = {"object": lines["data"]} if lines["data"] == "[DONE]" else json.loads(lines["data"])
        yield lines.get("event") or payload["object"]


@asynccontextmanager
async def engine_of(worker: ScriptedWorker, *, compacting: bool) -> AsyncIterator[VllmEngine]:
    upstream = AppServer(FakeUpstream(worker))
    await upstream.start()
    dialects = (CHAT,) if compacting else (RESPONSES, CHAT, MESSAGES)
    engine = VllmEngine(
        UpstreamEngine(f"{upstream.url}/v1", dialects=dialects), served_model="m", behaviour=VllmBehaviour()
    )
    await engine.start()
    try:
        yield engine
    finally:
        await engine.aclose()
        await upstream.stop(1.0)


def kind_of(case: dict[str, Any]) -> str:
    return str(case["id"].split("/")[0].removeprefix("slow_"))


def request_of(case: dict[str, Any]) -> dict[str, Any]:
    body = {**BODIES[DIALECT_OF[case["dialect"]]], **({"stream": True} if case["stream"] else {})}
    match kind_of(case):
        case "client_stream_override":
            body["metadata"] = {"extra_body": '{"stream": true}'}
        case "n2":
            body["n"] = 2
    return body


async def run(case: dict[str, Any], tmp_path: Path) -> tuple[Client, ScriptedWorker, ExternalStaging]:
    kind, heard = kind_of(case), asyncio.Event()
    worker = ScriptedWorker(
        changes=lambda answer: break_coordinates(kind, answer),
        sink=RejectingSink() if kind == "sink_rejects" else None,
        refusal=REFUSALS.get(kind),
    )
    worker.gate = heard if case["id"].startswith("slow_") else None
    external = build_external_staging(
        TokenIdCaptureConfig(enabled=True, external_staging=True, rebuild_response=False, dir=tmp_path / "ledger"),
        capture_dir=None,
        control_token="secret",
    )
    assert external is not None
    writer = CaptureWriter(tmp_path / "captures", server_name="policy") if case["observability"] else None
    if writer is not None:
        writer.start()
    compacting = case["dialect"] == "compaction"
    extensions = frozenset({"required_prefix_token_ids"} if compacting else ())
    slow = KEEP_ALIVE_S if worker.gate is not None else 15.0
    options = AppOptions(bridge=BridgeOptions(keep_alive_s=slow, extensions=extensions))
    client = Client(external, writer, request_of(case), heard)
    prefix = PREFIXES.get(kind, "/ng-rollout/r1/training-token-capture")
    scope = {
        "type": "http",
        "method": "POST",
        "path": prefix + PATH_OF[DIALECT_OF[case["dialect"]]],
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"host", b"model")],
    }
    async with engine_of(worker, compacting=compacting) as engine, asyncio.timeout(30):
        app = build_app(engine, server_name="policy", capture=writer, options=options, external=external)
        await app(scope, client.receive, client.send)  # type: ignore[arg-type]
    if writer is not None:
        await asyncio.to_thread(writer.close)
    return client, worker, external


def broken(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the step fail that the case is about."""

    def fail(*_: object, **__: object) -> Any:
        raise ValueError("a text that no client may see")

    match kind_of(case):
        case "conversion_error":
            monkeypatch.setattr(Bridge, "answer", fail)
        case "serialization_error":
            monkeypatch.setattr(route, "replay_frames", fail)


@pytest.fixture
def all_cases(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    path = request.config.getoption("--vectors") / FILE
    return {case["id"]: case for case in json.loads(path.read_text("utf-8"))["cases"]}


async def test_vector(
    case: dict[str, Any],
    all_cases: dict[str, dict[str, Any]],
    departures: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    like = departures["no_client_adds_members_through_metadata"]
    is_plain = (
        like["predicate"].startswith("the request has a stream in its metadata") and kind_of(case) == like["kind"]
    )
    wanted = all_cases[case["id"].replace(like["kind"], like["like"], 1)] if is_plain else case
    broken(case, monkeypatch)
    client, worker, external = await run(case, tmp_path)
    manifest = await external.ledger.manifest("r1")
    await external.aclose()
    assert [failure.reason for failure in manifest.failures] == wanted["final_failures"]
    assert len(manifest.records) == wanted["final_records"]
    assert len(worker.staging) == wanted["staged_records"]
    if wanted["response_id"] is not None:
        assert manifest.records[0].response_id == wanted["response_id"]
    assert (b"completion-1" in client.text) >= wanted["response_id_in_client_bytes"]
    assert [name for name in RESERVED_IN_ANSWERS if name.encode() in client.text] == wanted["internal_fields_leaked"]
    assert b"a text that no client may see" not in client.text
    check_worker_request(worker, wanted)
    check_status(client, wanted, departures)
    check_events(client, wanted, departures)
    check_order(client, wanted)


def check_worker_request(worker: ScriptedWorker, wanted: dict[str, Any]) -> None:
    if wanted["worker_request"] is None:
        assert worker.bodies == []
        return
    (body,) = worker.bodies
    told = {name: body[name] for name in TOLD_TO_WORKERS if name in body}
    if "ng_capture" in told:
        assert len(told["ng_capture"].pop("model_call_id")) == 32
        told["ng_capture"]["model_call_id"] = "<minted>"
    # The compaction adapter's own prefix is the worker's to fetch: no_prefix_of_the_clients_own.
    asked = {name: value for name, value in wanted["worker_request"].items() if name != "required_prefix_token_ids"}
    assert {"stream": False, **told} == asked
    assert "required_prefix_token_ids" not in body


def check_status(client: Client, wanted: dict[str, Any], departures: dict[str, Any]) -> None:
    start = wanted["messages"][0]
    rule = departures["several_answers_are_the_clients_fault"]
    status = rule["expected"]["status"] if wanted["id"] in rule["ids"] else start["status"]
    assert client.status == status
    # failures_are_told_in_the_clients_dialect: the peer's HTTP errors are plain text, ours are JSON.
    kind = "application/json" if start["content_type"] == "text/plain" else start["content_type"]
    assert client.content_type.startswith(kind)


def check_events(client: Client, wanted: dict[str, Any], departures: dict[str, Any]) -> None:
    expected = [event for message in wanted["messages"] for event in message.get("events", [])]
    found = [event for seen in client.seen for event in seen.events]
    if wanted["id"].startswith("slow_serialization_error"):
        expected = [*expected, *departures["a_slow_stream_says_why_it_ends"]["expected"]["events"]]
    cut_short = departures["an_incomplete_replay_of_a_captured_call_says_so"]
    if kind_of(wanted) == cut_short["kind"] and wanted["stream"] and DIALECT_OF[wanted["dialect"]] == RESPONSES:
        expected[-1] = cut_short["expected"]["event"]
    comments = [event for event in found if event.startswith(":")]
    assert len(comments) >= expected.count(": keep-alive")
    told = [event for event in found if not event.startswith(":")]
    expected = [event for event in expected if not event.startswith(":")]
    rest = iter(told)
    assert all(any(event == other for other in rest) for event in expected)
    assert told[:1] + told[-1:] == expected[:1] + expected[-1:]
    assert told == expected or wanted["dialect"] in ("responses", "compaction")  # W25 adds events between them


def check_order(client: Client, wanted: dict[str, Any]) -> None:
    """Whatever the client is sent but comments, the ledger has its row or its failures before it (C252, C256)."""
    slow = wanted["id"].startswith("slow_")
    for seen in client.seen:
        if slow and seen.kind == "start":
            assert (seen.records, seen.failures) == (0, [])
        elif seen.events != [": keep-alive"]:  # comments may be on either side
            assert (seen.records, seen.failures) == (wanted["final_records"], wanted["final_failures"])
    if not wanted["observability"]:
        assert all(seen.lines == [] for seen in client.seen)
        return
    assert [len(seen.lines) for seen in client.seen[:-1]] == [0] * (len(client.seen) - 1)
    assert client.seen[-1].lines == [verdict_of(client, wanted)]


def verdict_of(client: Client, wanted: dict[str, Any]) -> tuple[int | None, str | None]:
    last = wanted["messages"][-1]
    if last["capture_error"] == "exception":  # failures_are_told_in_the_clients_dialect
        return client.status, "upstream_error"
    return last["capture_status"], last["capture_error"]


def test_sse(document: dict[str, Any], departures: dict[str, Any]) -> None:
    """The text of replayed and failed streams; only white space in JSON, and what W25 adds, differ."""
    assert document["sse"]
    for case in document["sse"]:
        _, dialect, *_ = case["id"].split("/")
        if case["id"].endswith("failure"):
            frames = failure_frames(RESPONSES, status=500, message=case["message"])
        else:
            frames = replay_frames(dialect, case["input"], include_usage=case.get("include_usage", False))
        found = [parsed(frame) for frame in b"".join(frames).decode().split("\n\n")[:-1]]
        wanted = [parsed(frame) for frame in case["text"].split("\n\n")[:-1]]
        if dialect == MESSAGES:
            output = departures["message_start_does_not_know_the_end"]["expected"]["output_tokens"]
            start = wanted[0][1]["message"]
            start.update(stop_reason=None, stop_sequence=None, usage={**start["usage"], "output_tokens": output})
        if dialect != RESPONSES:
            assert found == wanted, case["id"]
            continue
        rule = departures["replay_adds_the_events_of_sdk_helpers"]
        assert rule["predicate"] == "the dialect is responses"
        names = [name for name, _ in wanted]
        assert [of_peer(payload) for name, payload in found if name in names] == [of_peer(one) for _, one in wanted]


def of_peer(payload: dict[str, Any]) -> dict[str, Any]:
    """What the peer's event says as well: no sequence numbers, and ids of failures are drawn anew."""
    kept = {name: value for name, value in payload.items() if name != "sequence_number"}
    told = kept.get("response", {})
    if told.get("error") is not None:
        kept["response"] = {name: told[name] for name in ("object", "status", "output", "error")}
    return kept


def parsed(frame: str) -> tuple[str, Any]:
    lines = dict(line.split(": ", 1) for line in frame.splitlines())
    return lines.get("event", ""), lines["data"] if lines["data"] == "[DONE]" else json.loads(lines["data"])
