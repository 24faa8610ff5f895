"""Training calls at the server: what is asked of the capture, in which order, and what the client sees of it."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from gym_ray.dialects import CHAT, DIALECT_BY_PATH, MESSAGES, RESPONSES
from gym_ray.dialects.reassembly import reassemble
from gym_ray.errors import EngineTimeoutError, EngineUnavailableError
from gym_ray.model_call_capture import CaptureWriter
from gym_ray.model_server.app import AppOptions, build_app
from gym_ray.model_server.bridged import BridgeOptions
from gym_ray.model_server.engine import EngineAnswer, EngineRequest
from gym_ray.model_server.serving import AppServer
from gym_ray.testing.fake_engine import FakeEngine
from gym_ray.testing.script import SSE, ScriptedAnswer
from gym_ray.testing.scripted_dialects import json_answer, stream_answer
from gym_ray.testing.waiting import until
from gym_ray.token_id_capture.exact_tokens import ExactTokens, ParentTokens, TokenOutcome, Untrainable
from gym_ray.token_id_capture.token_arrays import pack_log_probs, pack_token_ids

PREFIX = "/ng-rollout/r-0/training-token-capture"
PATH_OF = {dialect: path for path, dialect in DIALECT_BY_PATH.items()}
DIALECTS = sorted(PATH_OF)
USER = {"role": "user", "content": "hi"}
BODIES: dict[str, dict[str, Any]] = {
    RESPONSES: {"input": [USER]},
    CHAT: {"messages": [USER]},
    MESSAGES: {"max_tokens": 9, "messages": [USER]},
}
USER_ITEM: dict[str, Any] = {RESPONSES: USER, CHAT: USER, MESSAGES: {"type": "message", **USER}}
TOKENS = ExactTokens(pack_token_ids([1, 2]), pack_token_ids([3]), pack_log_probs([-0.5]))
PARENT = ParentTokens("c0", pack_token_ids([1, 2, 3]), "eos", 1)
CARRIED = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}


class Capture:
    """Stands for the real capture, and writes down what it is told, in one log with the engine."""

    def __init__(self) -> None:
        self.weight_version: str | int | None = None
        self.log: list[str] = []
        self.calls: list[Call] = []
        self.marks: list[tuple[str, str]] = []
        self.parent: ParentTokens | None = None
        self.refuses: Exception | None = None
        self.unproved: str | None = None
        self.commit_gate: asyncio.Event | None = None

    def begin(self, rollout_id: str, model_call_id: str, *, model: str = "") -> Call:
        call = Call(self, rollout_id, model_call_id)
        self.calls.append(call)
        return call

    def mark_soon(self, rollout_id: str, model_call_id: str = "") -> None:
        self.marks.append((rollout_id, model_call_id))


@dataclass
class Call:
    """One call, and how it ended."""

    capture: Capture
    rollout_id: str
    model_call_id: str
    items: Sequence[object] | None = None
    parent: ParentTokens | None = None
    response: Mapping[str, Any] | None = None
    outcome: TokenOutcome | None = None
    reasons: list[str] = field(default_factory=list)

    async def resolve(self, items: Sequence[object] | None) -> None:
        self.capture.log.append("resolve")
        self.items, self.parent = items, self.capture.parent

    async def intend(self) -> None:
        self.capture.log.append("intend")
        if self.capture.refuses is not None:
            raise self.capture.refuses

    async def commit(self, response: Mapping[str, Any], outcome: TokenOutcome | None) -> None:
        self.capture.log.append("commit")
        self.response, self.outcome = response, outcome
        if self.capture.commit_gate is not None:
            await self.capture.commit_gate.wait()
        self.capture.log.append("kept")

    async def untrainable(self, outcome: Untrainable) -> None:
        self.capture.log.append("untrainable")
        self.reasons.append(f"{outcome.reason}: {outcome.detail}")

    async def withdraw(self, reason: str) -> None:
        self.capture.log.append("withdraw")
        self.reasons.append(reason)

    def abandon(self) -> None:
        self.capture.log.append("abandon")

    def refusal(self, outcome: TokenOutcome | None) -> str | None:
        return self.capture.unproved if outcome is not None else None


class Engine(FakeEngine):
    """A fake engine that writes into the capture's log when it is asked."""

    def __init__(self, capture: Capture, **options: Any) -> None:
        super().__init__(**options)
        self._log = capture.log

    async def answer(self, request: EngineRequest) -> EngineAnswer:
        self._log.append("ask")
        return await super().answer(request)


@dataclass
class Served:
    """A model server with a recording capture."""

    http: httpx.AsyncClient
    engine: Engine
    capture: Capture
    directory: Path

    async def ask(self, dialect: str, prefix: str = PREFIX, **members: Any) -> httpx.Response:
        return await self.http.post(prefix + PATH_OF[dialect], json={**BODIES[dialect], **members})

    @property
    def log(self) -> list[str]:
        return self.capture.log

    @property
    def call(self) -> Call:
        (call,) = self.capture.calls
        return call

    def record(self) -> dict[str, Any]:
        (line,) = (self.directory / "r-0.capture.jsonl").read_text().splitlines()
        found: dict[str, Any] = json.loads(line)
        return found


@asynccontextmanager
async def served(
    directory: Path,
    script: Callable[[EngineRequest], ScriptedAnswer] | None = None,
    *,
    capture_calls: bool = True,
    options: AppOptions | None = None,
    run_token: str | None = None,
    **engine_options: Any,
) -> AsyncIterator[Served]:
    capture = Capture()
    engine = Engine(capture, script=script or with_tokens, **{"token_dialects": DIALECTS, **engine_options})
    writer = CaptureWriter(directory, server_name="m") if capture_calls else None
    if writer is not None:
        await asyncio.to_thread(writer.start)
    app = build_app(
        engine,
        server_name="m",
        capture=writer,
        tokens=capture,  # type: ignore[arg-type]
        run_token=run_token,
        options=options or AppOptions(bridge=BridgeOptions(keep_alive_s=20)),
    )
    server = AppServer(app)
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=30) as http:
            yield Served(http, engine, capture, directory)
    finally:
        await server.stop(grace_s=5)
        if writer is not None:
            await asyncio.to_thread(writer.close)


def scripted(request: EngineRequest, **facts: Any) -> ScriptedAnswer:
    made = (stream_answer if request.stream else json_answer)(request.dialect, "hello there")
    return ScriptedAnswer(made.chunks, content_type=made.content_type, **facts)


def with_tokens(request: EngineRequest) -> ScriptedAnswer:
    return scripted(request, tokens=TOKENS)


def plays(answer: ScriptedAnswer) -> Callable[[EngineRequest], ScriptedAnswer]:
    return lambda _: answer


def raises(error: Exception) -> Callable[[EngineRequest], ScriptedAnswer]:
    def script(_: EngineRequest) -> ScriptedAnswer:
        raise error

    return script


def text_of(dialect: str, answer: Mapping[str, Any]) -> str:
    if dialect == CHAT:
        return str(answer["choices"][0]["message"]["content"])
    parts = answer["content"] if dialect == MESSAGES else answer["output"][0]["content"]
    return "".join(part["text"] for part in parts)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_forwarded_call_is_kept_before_its_answer_ends(tmp_path: Path, dialect: str, stream: bool) -> None:
    async with served(tmp_path) as server:
        server.capture.parent = PARENT
        response = await server.ask(dialect, stream=stream)
        record = server.record()
    assert response.status_code == 200
    asked = server.engine.requests[0]
    assert response.content == (stream_answer if stream else json_answer)(dialect, "hello there").body
    assert server.log == ["resolve", "intend", "ask", "commit", "kept"]
    call = server.call
    assert (call.rollout_id, call.model_call_id, call.items) == ("r-0", record["model_call_id"], [USER_ITEM[dialect]])
    assert asked.tokens is not None
    assert asked.tokens.parent is PARENT
    assert call.outcome is TOKENS
    assert call.response == record["response"]
    assert text_of(dialect, call.response or {}) == "hello there"


@pytest.mark.parametrize("shown", [False, True])
async def test_the_record_of_a_call_knows_the_tokens_that_its_client_is_not_told_of(
    tmp_path: Path, shown: bool
) -> None:
    # W13: a streamed chat answer without usage, of which the engine said its exact tokens
    chunks = [chunk for chunk in stream_answer(CHAT, "hello").chunks if shown or b"usage" not in chunk]
    script = plays(ScriptedAnswer(chunks, content_type=SSE, tokens=TOKENS))
    async with served(tmp_path, script) as server:
        response = await server.ask(CHAT, stream=True)
        record = server.record()
    assert response.content == b"".join(chunks)
    expected = {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}
    assert record.get("usage") == (None if shown else expected)
    assert ("usage" in record["response"]) is shown


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("spoken", DIALECTS)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_engine_is_asked_where_it_reports_tokens(
    tmp_path: Path, dialect: str, spoken: str, stream: bool
) -> None:
    async with served(tmp_path, token_dialects=(spoken,)) as server:
        response = await server.ask(dialect, stream=stream)
        record = server.record()
    (asked,) = server.engine.requests
    assert asked.dialect == spoken
    assert asked.stream is (stream and dialect == spoken)
    assert server.log == ["resolve", "intend", "ask", "commit", "kept"]
    call = server.call
    assert call.outcome is TOKENS
    assert call.items == [USER_ITEM[dialect]]
    answer = reassemble(dialect, response.content) if stream else response.json()
    assert answer is not None
    assert call.response is not None
    assert text_of(dialect, answer) == text_of(dialect, call.response) == "hello there"
    assert answer["id"] == call.response["id"]
    assert record["model_call_id"] == call.model_call_id
    assert b"token_ids" not in response.content


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_forwarded_stream_flows_and_only_its_end_waits_for_the_record(tmp_path: Path, dialect: str) -> None:
    go_on, end = asyncio.Event(), asyncio.Event()
    chunks = stream_answer(dialect, "hello there").chunks
    last = {CHAT: b"[DONE]", RESPONSES: b"response.completed", MESSAGES: b"message_stop"}[dialect]
    script = plays(ScriptedAnswer(chunks, content_type=SSE, gates={2: go_on, len(chunks): end}, tokens=TOKENS))
    async with served(tmp_path, script) as server:
        server.capture.commit_gate = asyncio.Event()
        path, body = PREFIX + PATH_OF[dialect], {**BODIES[dialect], "stream": True}
        async with server.http.stream("POST", path, json=body) as response:
            seen, arrived = b"", aiter(response.aiter_raw())
            while len(seen) < sum(map(len, chunks[:2])):
                seen += await anext(arrived)
            assert "commit" not in server.log
            go_on.set()
            while len(seen) < sum(map(len, chunks[:-1])):
                seen += await anext(arrived)
            assert "commit" not in server.log, "the engine's answer has not ended"
            end.set()
            await until(lambda: "commit" in server.log)
            rest = asyncio.ensure_future(anext(arrived))
            await asyncio.wait([rest], timeout=0.1)
            assert not rest.done(), "the end waits for the record"
            assert last not in seen
            server.capture.commit_gate.set()
            seen += await rest
            async for chunk in arrived:
                seen += chunk
    assert seen == b"".join(chunks)
    assert server.call.outcome is TOKENS


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_nothing_of_a_converted_or_whole_answer_is_sent_before_the_record(tmp_path: Path, stream: bool) -> None:
    for dialect in (RESPONSES, CHAT):
        if stream and dialect == CHAT:
            continue
        async with served(tmp_path / dialect, token_dialects=(CHAT,)) as server:
            server.capture.commit_gate = asyncio.Event()
            asking = asyncio.ensure_future(server.ask(dialect, stream=stream))
            await until(lambda server=server: "commit" in server.log)
            await asyncio.wait([asking], timeout=0.1)
            assert not asking.done()
            server.capture.commit_gate.set()
            assert (await asking).status_code == 200


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("spoken", [CHAT, RESPONSES])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_call_that_cannot_be_noted_is_refused_before_anything_is_asked(
    tmp_path: Path, dialect: str, spoken: str, stream: bool
) -> None:
    async with served(tmp_path, token_dialects=(spoken,)) as server:
        server.capture.refuses = OSError("no space left on /secret/place")
        response = await server.ask(dialect, stream=stream)
        record = server.record()
    assert response.status_code == 503
    error = response.json()["error"]
    assert error["message"] == "the call could not be noted for token capture (OSError); nothing was generated"
    assert error["type"] == ("overloaded_error" if dialect == MESSAGES else error["type"])
    assert server.log == ["resolve", "intend"]
    assert (record["status_code"], record["upstream_attempted"]) == (503, False)
    assert record["local_response_reason"] == "token_capture_failed"


FAILURES = [
    (raises(EngineTimeoutError("nothing came")), 504, "nothing came"),
    (raises(EngineUnavailableError("not ready")), 503, "not ready"),
    (raises(KeyError("a text that no client may see")), 500, "KeyError"),
    (plays(ScriptedAnswer([b'{"error":{"message":"too long","type":"invalid_request_error"}}'], 400)), 400, "too long"),
    (plays(ScriptedAnswer([b"busy"], 503)), 503, "busy"),
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("dialect", [CHAT, MESSAGES])
@pytest.mark.parametrize(("script", "status", "text"), FAILURES, ids=["late", "away", "crash", "refusal", "plain"])
async def test_a_call_whose_client_got_an_error_is_withdrawn(
    tmp_path: Path, dialect: str, stream: bool, script: Any, status: int, text: str
) -> None:
    async with served(tmp_path, script, token_dialects=(CHAT,)) as server:
        response = await server.ask(dialect, stream=stream)
    assert response.status_code == status
    assert text in response.text
    assert "no client may see" not in response.text
    assert server.log == ["resolve", "intend", "ask", "withdraw"]


async def test_an_answer_that_breaks_off_unserved_is_withdrawn(tmp_path: Path) -> None:
    for spoken in (CHAT, RESPONSES):
        script = plays(ScriptedAnswer([b'{"half'], cut=True))
        async with served(tmp_path / spoken, script, token_dialects=(spoken,)) as server:
            response = await server.ask(CHAT)
        assert response.status_code == 502
        assert server.log[-1] == "withdraw"
        assert "died in the middle" in server.call.reasons[0]


@pytest.mark.parametrize("spoken", [CHAT, RESPONSES])
async def test_an_error_in_a_success_is_withdrawn_when_it_says_nothing(tmp_path: Path, spoken: str) -> None:
    script = plays(ScriptedAnswer([b'{"error":{"message":"no credit"}}']))
    async with served(tmp_path, script, token_dialects=(spoken,)) as server:
        response = await server.ask(CHAT)
    assert "no credit" in response.text
    assert response.status_code == (200 if spoken == CHAT else 502)
    assert server.log[-1] == "withdraw"


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("chunks", "ending"), [(0, "withdraw"), (1, "withdraw"), (-2, "untrainable")])
async def test_a_stream_that_dies_is_judged_by_what_was_served(
    tmp_path: Path, dialect: str, chunks: int, ending: str
) -> None:
    whole = stream_answer(dialect, "hello there").chunks
    script = plays(ScriptedAnswer(whole[:chunks], content_type=SSE, cut=True, tokens=TOKENS))
    async with served(tmp_path, script) as server:
        with pytest.raises(httpx.RemoteProtocolError):
            await server.ask(dialect, stream=True)
    assert server.log == ["resolve", "intend", "ask", ending]
    assert "the stream broke off: EngineError: the engine died" in server.call.reasons[0]
    if ending == "untrainable":
        assert server.call.reasons[0].startswith("ids_missing: ")


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("said", "ending"), [(False, "withdraw"), (True, "untrainable")])
async def test_a_stream_that_ends_in_an_error_or_without_an_end(
    tmp_path: Path, dialect: str, said: bool, ending: str
) -> None:
    whole = list(stream_answer(dialect, "hello there").chunks)
    begun = whole[:-2] if said else whole[:1]
    failed = {
        CHAT: b'data: {"error": {"message": "boom"}}\n\n',
        RESPONSES: b'event: error\ndata: {"type": "error", "message": "boom"}\n\n',
        MESSAGES: b'event: error\ndata: {"type": "error", "error": {"message": "boom"}}\n\n',
    }[dialect]
    for tail, reason in (([failed], "the stream ended in an error"), ([], "it has no terminal event")):
        script = plays(ScriptedAnswer([*begun, *tail], content_type=SSE, tokens=TOKENS))
        async with served(tmp_path / reason[:8], script) as server:
            response = await server.ask(dialect, stream=True)
        assert response.content == b"".join([*begun, *tail])
        assert server.log == ["resolve", "intend", "ask", ending]
        assert reason in server.call.reasons[0]


@pytest.mark.parametrize("tail", [b"", b'data: {"error":{"message":"boom"}}\n\n'])
@pytest.mark.parametrize(
    ("before", "ending"),
    [
        (b": still working\n\n", "withdraw"),
        (b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n: on\n\n', "withdraw"),
        (b'data: {"choices":[{"delta":{"reasoning_details":[{"text":"hm"}]}}]}\n\n', "untrainable"),
        (b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n', "untrainable"),
        (b'data: {"choices":[{"delta":{"content":"a\nb"}}]}\n\n', "untrainable"),
    ],
)
async def test_only_what_surely_says_nothing_is_withdrawn(
    tmp_path: Path, before: bytes, tail: bytes, ending: str
) -> None:
    script = plays(ScriptedAnswer([before, tail], content_type=SSE, tokens=TOKENS))
    async with served(tmp_path, script) as server:
        assert (await server.ask(CHAT, stream=True)).content == before + tail
    assert server.log[-1] == ending


async def test_what_comes_behind_the_end_of_a_stream_is_handed_on_behind_the_record(tmp_path: Path) -> None:
    chunks = [*stream_answer(CHAT, "hello there").chunks, b": bye\n\n", b": and more\n\n"]
    for cut in (False, True):
        script = plays(ScriptedAnswer(chunks, content_type=SSE, tokens=TOKENS, cut=cut))
        async with served(tmp_path / str(cut), script) as server:
            seen = b""
            try:
                async with server.http.stream(
                    "POST", PREFIX + PATH_OF[CHAT], json={**BODIES[CHAT], "stream": True}
                ) as response:
                    async for chunk in response.aiter_raw():
                        seen += chunk
            except httpx.RemoteProtocolError:
                assert cut
        assert seen == b"".join(chunks)
        assert server.log[-2:] == ["commit", "kept"]
        assert server.engine.open_answers == 0


async def test_an_engine_that_stays_behind_the_end_of_its_stream_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gym_ray.model_server.token_forwarding._AFTER_END_S", 0.05)
    chunks = stream_answer(CHAT, "hello there").chunks
    script = plays(ScriptedAnswer(chunks, content_type=SSE, tokens=TOKENS, gates={len(chunks): asyncio.Event()}))
    async with served(tmp_path, script) as server:
        response = await server.ask(CHAT, stream=True)
    assert response.content == b"".join(chunks)
    assert server.call.outcome is TOKENS
    assert server.engine.open_answers == 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("spoken", [CHAT, RESPONSES])
async def test_the_note_of_a_client_that_leaves_stays(tmp_path: Path, spoken: str, stream: bool) -> None:
    never = asyncio.Event()

    def script(request: EngineRequest) -> ScriptedAnswer:
        made = scripted(request, tokens=TOKENS)
        return ScriptedAnswer(
            made.chunks, content_type=made.content_type, tokens=TOKENS, gates={len(made.chunks): never}
        )

    async with served(tmp_path, script, token_dialects=(spoken,)) as server:
        asking = asyncio.ensure_future(server.ask(CHAT, stream=stream))
        await until(lambda: server.engine.open_answers == 1)
        asking.cancel()
        await until(lambda: server.engine.open_answers == 0)
        await until((tmp_path / "r-0.capture.jsonl").exists)
    assert server.log == ["resolve", "intend", "ask", "abandon"]


@pytest.mark.parametrize(("dialect", "stream"), [(CHAT, False), (RESPONSES, False), (MESSAGES, True)])
async def test_a_call_that_must_prove_its_prefix_fails_before_anything_is_served(
    tmp_path: Path, dialect: str, stream: bool
) -> None:
    async with served(tmp_path, token_dialects=(CHAT,)) as server:
        server.capture.unproved = "the prompt is another one"
        response = await server.ask(dialect, stream=stream)
    assert response.status_code == 502
    assert "the prompt is another one" in response.text
    assert server.log == ["resolve", "intend", "ask", "withdraw"]


async def test_a_stream_is_beyond_refusal(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        server.capture.unproved = "the prompt is another one"
        response = await server.ask(CHAT, stream=True)
    assert response.content == stream_answer(CHAT, "hello there").body
    assert server.log[-2:] == ["commit", "kept"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_several_choices_are_served_and_never_trained(tmp_path: Path, stream: bool) -> None:
    async with served(tmp_path) as server:
        response = await server.ask(CHAT, n=2, stream=stream)
    assert response.status_code == 200
    assert server.call.outcome == Untrainable("several_choices", "n is 2")
    two = json.loads(json_answer(CHAT, "hi").body)
    two["choices"] *= 2
    async with served(tmp_path, plays(ScriptedAnswer([json.dumps(two).encode()], tokens=TOKENS))) as server:
        await server.ask(CHAT)
    assert server.call.outcome == Untrainable("several_choices", "n is 1")


def carrying(request: EngineRequest) -> ScriptedAnswer:
    """Answer as a patched worker does: with tokens in the message, whether or not they were asked for."""
    answer = json.loads(json_answer(request.dialect, "hello there").body)
    item = answer["choices"][0]["message"] if request.dialect == CHAT else answer["output"][0]
    item.update(CARRIED)
    return ScriptedAnswer([json.dumps({**answer, "prompt_token_ids": [1, 2]}).encode()])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("dialect", [CHAT, RESPONSES])
async def test_tokens_that_an_engine_gives_unasked_are_kept_and_not_shown(
    tmp_path: Path, dialect: str, stream: bool
) -> None:
    async with served(tmp_path, carrying, token_dialects=()) as server:
        response = await server.ask(dialect, stream=stream, top_k=3)
    call = server.call
    assert call.response is not None
    item = call.response["choices"][0]["message"] if dialect == CHAT else call.response["output"][0]
    assert {name: item[name] for name in CARRIED} == CARRIED
    assert b"token_ids" not in response.content
    assert b"log_probs" not in response.content
    answer = reassemble(dialect, response.content) if stream else response.json()
    assert answer is not None
    assert text_of(dialect, answer) == "hello there"
    (asked,) = server.engine.requests
    assert (asked.stream, asked.body["top_k"]) == (False, 3)


async def test_members_for_tokens_that_hold_none_stay_as_they_are(tmp_path: Path) -> None:
    answer = json.loads(json_answer(CHAT, "hi").body)
    answer["choices"][0]["message"]["prompt_token_ids"] = None
    body = json.dumps({**answer, "prompt_token_ids": None}).encode()
    async with served(tmp_path, plays(ScriptedAnswer([body], tokens=TOKENS))) as server:
        response = await server.ask(CHAT)
    assert response.content == body


@pytest.mark.parametrize("dialect", [RESPONSES, MESSAGES])
async def test_tokens_in_an_answer_that_is_converted_are_kept(tmp_path: Path, dialect: str) -> None:
    async with served(tmp_path, carrying, token_dialects=(), dialects=(CHAT,)) as server:
        response = await server.ask(dialect)
    outcome = server.call.outcome
    assert isinstance(outcome, ExactTokens)
    assert (outcome.prompt_token_ids.tolist(), outcome.generation_token_ids.tolist()) == ([1, 2], [3])
    assert outcome.generation_log_probs.tolist() == [-0.5]
    assert b"token_ids" not in response.content


async def test_broken_tokens_in_an_answer_that_is_converted_are_named(tmp_path: Path) -> None:
    def script(request: EngineRequest) -> ScriptedAnswer:
        answer = json.loads(carrying(request).body)
        del answer["choices"][0]["message"]["generation_log_probs"]
        return ScriptedAnswer([json.dumps(answer).encode()])

    async with served(tmp_path, script, token_dialects=(), dialects=(CHAT,)) as server:
        assert (await server.ask(RESPONSES)).status_code == 200
    outcome = server.call.outcome
    assert isinstance(outcome, Untrainable)
    assert (outcome.reason, "generation_log_probs" in outcome.detail) == ("ids_missing", True)


async def test_a_client_that_asks_for_tokens_gets_them(tmp_path: Path) -> None:
    async with served(tmp_path, carrying, token_dialects=()) as server:
        response = await server.ask(CHAT, return_token_ids=True)
    assert response.json()["choices"][0]["message"]["generation_token_ids"] == [3]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("dialect", [RESPONSES, MESSAGES])
async def test_a_client_of_another_dialect_never_gets_tokens(tmp_path: Path, dialect: str, stream: bool) -> None:
    asked = {"return_token_ids": True} if dialect == MESSAGES else {}
    async with served(tmp_path, carrying, token_dialects=(), dialects=(CHAT,)) as server:
        response = await server.ask(dialect, stream=stream, **asked)
    assert response.status_code == 200
    assert b"token_ids" not in response.content


async def test_an_answer_without_tokens_is_left_to_the_capture_to_judge(tmp_path: Path) -> None:
    async with served(tmp_path, token_dialects=()) as server:
        response = await server.ask(CHAT)
    assert response.content == json_answer(CHAT, "hello there").body
    assert (server.log[-1], server.call.outcome) == ("kept", None)


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'"text"'])
async def test_an_answer_that_cannot_be_read_is_served_and_marked(tmp_path: Path, body: bytes) -> None:
    async with served(tmp_path, plays(ScriptedAnswer([body], tokens=TOKENS))) as server:
        response = await server.ask(CHAT)
    assert response.content == body
    assert server.log[-1] == "untrainable"
    assert server.call.reasons[0].startswith("malformed_tokens: the engine answered 200 with something that is no JSON")


async def test_a_stream_that_cannot_be_read_is_served_and_marked(tmp_path: Path) -> None:
    chunks = [b"data: [DONE]\n\n"]
    async with served(tmp_path, plays(ScriptedAnswer(chunks, content_type=SSE, tokens=TOKENS))) as server:
        response = await server.ask(CHAT, stream=True)
    assert response.content == chunks[0]
    assert server.log[-1] == "untrainable"


async def test_a_report_that_cannot_be_read_costs_the_tokens_and_not_the_answer(tmp_path: Path) -> None:
    class Broken(Engine):
        async def answer(self, request: EngineRequest) -> EngineAnswer:
            def tokens() -> TokenOutcome:
                raise KeyError("logprobs")

            answer = await super().answer(request)
            answer.tokens = tokens
            return answer

    async with served(tmp_path) as server:
        server.engine.__class__ = Broken
        response = await server.ask(CHAT)
    assert response.status_code == 200
    assert server.call.outcome == Untrainable("malformed_tokens", "KeyError: 'logprobs'")


async def test_an_answer_that_the_server_made_itself_has_no_tokens(tmp_path: Path) -> None:
    class Local(Engine):
        async def answer(self, request: EngineRequest) -> EngineAnswer:
            answer = await super().answer(request)
            answer.local_reason = "context_length_exceeded"
            return answer

    async with served(tmp_path) as server:
        server.engine.__class__ = Local
        await server.ask(CHAT)
    outcome = server.call.outcome
    assert isinstance(outcome, Untrainable)
    assert outcome.reason == "engine_reports_no_tokens"
    assert "context_length_exceeded" in outcome.detail


@pytest.mark.parametrize("prefix", ["", "/ng-rollout/r-0"])
async def test_other_calls_are_not_captured_for_training(tmp_path: Path, prefix: str) -> None:
    async with served(tmp_path) as server:
        response = await server.ask(CHAT, prefix)
    assert response.status_code == 200
    assert server.log == ["ask"]
    assert server.engine.requests[0].tokens is None


async def test_without_an_evaluation_record_the_call_has_a_minted_id(tmp_path: Path) -> None:
    async with served(tmp_path, capture_calls=False) as server:
        response = await server.ask(RESPONSES)
    assert response.status_code == 200
    assert re.fullmatch("[0-9a-f]{32}", server.call.model_call_id)
    assert not any(os.scandir(tmp_path))


async def test_a_request_that_is_refused_leaves_no_note(tmp_path: Path) -> None:
    async with served(tmp_path, token_dialects=(CHAT,), run_token="t", dialects=(CHAT,)) as server:
        assert (await server.ask(CHAT)).status_code == 401
        server.http.headers["authorization"] = "Bearer t"
        assert (await server.ask(RESPONSES, input=7)).status_code == 422
        assert (await server.ask(MESSAGES, messages=7)).status_code == 422
        assert (await server.http.post(PREFIX + PATH_OF[CHAT], content=b"[]")).status_code == 422
        assert (await server.http.get(PREFIX + PATH_OF[CHAT])).status_code == 405
    assert server.log == []
    assert server.capture.marks == []


async def test_messages_that_have_no_responses_form_are_served_without_a_decision(tmp_path: Path) -> None:
    odd = [{"role": "user", "content": [{"type": "document", "source": {"type": "file", "file_id": "f"}}]}]
    async with served(tmp_path) as server:
        response = await server.ask(MESSAGES, messages=odd)
    assert response.status_code == 200
    assert server.call.items is None
    assert server.log[-1] == "kept"


async def test_turns_that_cannot_be_read_are_served_without_a_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_deep(dialect: str, body: Mapping[str, Any]) -> list[object]:
        raise RecursionError("tools that nest as deep as JSON may")

    monkeypatch.setattr("gym_ray.model_server.token_calls.items_of", too_deep)
    async with served(tmp_path) as server:
        response = await server.ask(CHAT)
    assert response.status_code == 200
    assert server.call.items is None
    assert server.log[-1] == "kept"


async def test_tools_and_instructions_are_part_of_the_items(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        tool = {"name": "look", "input_schema": {"type": "object"}}
        await server.ask(MESSAGES, system="be brief", tools=[tool])
    items = server.call.items
    assert items is not None
    first, second = items
    assert second == USER_ITEM[MESSAGES]
    assert isinstance(first, dict)
    assert first["role"] == "_ng_request_envelope"
    assert json.loads(first["content"])["instructions"] == "be brief"


async def test_calls_on_other_paths_mark_their_rollout(tmp_path: Path) -> None:
    options = AppOptions(non_generating=frozenset({("GET", "/health"), ("POST", "/quiet")}))
    async with served(tmp_path, options=options) as server:
        for method, path in (("GET", "/v1/models"), ("GET", "/health"), ("POST", "/v1/messages/count_tokens")):
            assert (await server.http.request(method, PREFIX + path, json=BODIES[MESSAGES])).status_code == 200
        assert (await server.http.post(f"{PREFIX}/quiet")).status_code == 404
        assert server.capture.marks == []
        await server.http.post(f"{PREFIX}/ng-token-capture/weight-version", json={"version": 1})
    assert server.capture.marks == [("r-0", "")]


async def test_our_own_tokenize_route_marks_nothing(tmp_path: Path) -> None:
    async def prompt_ids(_: Mapping[str, Any]) -> list[int]:
        return [1, 2]

    async with served(tmp_path, options=AppOptions(tokenize=prompt_ids), dialects=(CHAT,)) as server:
        response = await server.http.post(f"{PREFIX}/tokenize", json=BODIES[RESPONSES])
    assert response.json() == {"tokens": [1, 2]}
    assert server.capture.marks == []


@pytest.mark.parametrize("version", ["step-7", 7, 0, None])
async def test_a_trainer_says_which_weights_are_served(tmp_path: Path, version: Any) -> None:
    async with served(tmp_path, run_token="t") as server:
        path, key = "/ng-token-capture/weight-version", {"authorization": "Bearer t"}
        assert (await server.http.post(path, json={"version": 1})).status_code == 401
        server.capture.weight_version = "before"
        response = await server.http.post(path, json={"version": version}, headers=key)
    assert response.json() == {"version": version, "previous": "before"}
    assert server.capture.weight_version == version
    assert type(server.capture.weight_version) is type(version)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"version":true}', b'{"version":1.5}', b'{"version":1,"x":2}'])
async def test_a_version_that_is_none_is_refused(tmp_path: Path, body: bytes) -> None:
    async with served(tmp_path) as server:
        response = await server.http.post("/ng-token-capture/weight-version", content=body)
    assert response.status_code == 422
    assert "text, whole number or null" in response.json()["error"]["message"]
    assert server.capture.weight_version is None


async def test_without_token_capture_there_is_no_such_route() -> None:
    engine = FakeEngine()
    server = AppServer(build_app(engine, server_name="m", capture=None))
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=server.url, trust_env=False) as http:
            response = await http.post(PREFIX + PATH_OF[CHAT], json=BODIES[CHAT])
            route = await http.post("/ng-token-capture/weight-version", json={"version": 1})
    finally:
        await server.stop(grace_s=5)
    assert response.status_code == 200
    assert engine.requests[0].tokens is None
    assert route.status_code == 404
