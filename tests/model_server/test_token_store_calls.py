"""Training calls with the real store behind them: what is in the rollout's files after each kind of call."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gym_ray.dialects import CHAT, DIALECT_BY_PATH, MESSAGES, RESPONSES
from gym_ray.dialects.reassembly import reassemble
from gym_ray.errors import EngineTimeoutError
from gym_ray.model_server.app import build_app
from gym_ray.model_server.engine import EngineRequest
from gym_ray.model_server.serving import AppServer
from gym_ray.storage.calls import FileCalls
from gym_ray.testing.fake_engine import FakeEngine
from gym_ray.testing.script import ScriptedAnswer
from gym_ray.testing.scripted_dialects import json_answer, stream_answer
from gym_ray.testing.storage_faults import FaultyCalls
from gym_ray.testing.waiting import until
from gym_ray.token_id_capture.builder import run_builder
from gym_ray.token_id_capture.call_capture import TokenCapture
from gym_ray.token_id_capture.exact_tokens import ExactTokens
from gym_ray.token_id_capture.protocols import TokenCaptureSnapshot
from gym_ray.token_id_capture.resolution.resolvers import FileLineageResolver
from gym_ray.token_id_capture.rows import TrainingRow, training_rows
from gym_ray.token_id_capture.store import TokenCaptureStore
from gym_ray.token_id_capture.token_arrays import pack_log_probs, pack_token_ids

PATH_OF = {dialect: path for path, dialect in DIALECT_BY_PATH.items()}
DIALECTS = sorted(PATH_OF)
Script = Callable[[EngineRequest], ScriptedAnswer]


def texts_of(dialect: str, body: Mapping[str, Any]) -> list[tuple[str, str]]:
    turns = body["input" if dialect == RESPONSES else "messages"]
    return [(turn["role"], text_of(turn["content"])) for turn in turns]


def text_of(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def tokens_of(text: str) -> list[int]:
    return [ord(character) for character in text]


def prompt_of(turns: Sequence[tuple[str, str]]) -> list[int]:
    return tokens_of("".join(f"{role[0]}:{text}|" for role, text in turns) + "a:")


def says(text: str, dialect: str, stream: bool, **facts: Any) -> ScriptedAnswer:
    made = (stream_answer if stream else json_answer)(dialect, text)
    return ScriptedAnswer(made.chunks, content_type=made.content_type, **facts)


def answers(request: EngineRequest) -> ScriptedAnswer:
    """Say how many turns there are; a character is a token."""
    turns = texts_of(request.dialect, request.body)
    text = f"turn {len(turns)}"
    sampled = tokens_of(f"{text}|")
    tokens = ExactTokens(
        pack_token_ids(prompt_of(turns)),
        pack_token_ids(sampled),
        pack_log_probs([-0.5] * len(sampled)),
        ended_by="eos",
    )
    return says(text, request.dialect, request.stream, tokens=tokens)


@dataclass
class Site:
    """A model server with its token store."""

    http: httpx.AsyncClient
    engine: FakeEngine
    store: TokenCaptureStore
    capture: TokenCapture

    async def ask(
        self, dialect: str, turns: Sequence[tuple[str, str]], rollout_id: str = "r-0", **members: Any
    ) -> httpx.Response:
        items = [{"role": role, "content": text} for role, text in turns]
        body = {"input": items} if dialect == RESPONSES else {"messages": items, "max_tokens": 9}
        path = f"/ng-rollout/{rollout_id}/training-token-capture{PATH_OF[dialect]}"
        return await self.http.post(path, json={**body, **members})

    async def frozen(self, rollout_id: str = "r-0") -> TokenCaptureSnapshot:
        assert await self.capture.settled(rollout_id, 20)
        return await self.store.freeze(rollout_id)

    async def row(self, rollout_id: str = "r-0") -> TrainingRow:
        snapshot = await self.frozen(rollout_id)
        assert not snapshot.incomplete, snapshot.problems
        (row,) = training_rows(rollout_id, run_builder(snapshot.packed))
        return row


@asynccontextmanager
async def site(
    directory: Path, script: Script = answers, calls: FileCalls | None = None, spoken: Sequence[str] = DIALECTS
) -> AsyncIterator[Site]:
    engine = FakeEngine(script=script, token_dialects=spoken)
    store = TokenCaptureStore(directory, calls=calls)
    capture = TokenCapture(store, FileLineageResolver(store), retry_interval_s=0.01)
    server = AppServer(build_app(engine, server_name="m", capture=None, tokens=capture))
    await server.start()
    try:
        limits = httpx.Limits(max_connections=64)
        async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=30, limits=limits) as http:
            yield Site(http, engine, store, capture)
    finally:
        await server.stop(grace_s=5)
        await capture.aclose()


def heard(dialect: str, response: httpx.Response, stream: bool) -> str:
    answer = reassemble(dialect, response.content) if stream else response.json()
    assert answer is not None
    if dialect == CHAT:
        return str(answer["choices"][0]["message"]["content"])
    return text_of(answer["content"] if dialect == MESSAGES else answer["output"][0]["content"])


@pytest.mark.parametrize("spoken", [DIALECTS, [CHAT]], ids=["forwarded", "converted"])
async def test_many_rollouts_at_once_each_become_their_own_row(tmp_path: Path, spoken: Sequence[str]) -> None:
    async def run(rollout_id: str, number: int) -> list[int]:
        turns = [("user", f"question {number}")]
        for turn in range(4):
            dialect, stream = DIALECTS[number % 3], (number + turn) % 2 == 0
            response = await one.ask(dialect, turns, rollout_id, stream=stream)
            assert response.status_code == 200, response.text
            turns += [("assistant", heard(dialect, response, stream)), ("user", f"more {turn}")]
        return [*prompt_of(turns[:-2]), *tokens_of(f"{turns[-2][1]}|")]

    async with site(tmp_path, spoken=spoken) as one:
        expected = await asyncio.gather(*(run(f"r-{number}", number) for number in range(12)))
        for number, tokens in enumerate(expected):
            row = await one.row(f"r-{number}")
            assert (row.mask_sample, row.token_ids.tolist()) == (False, tokens)
            policy = "".join(chr(token) for token in row.token_ids[row.loss_mask()])
            assert policy == "turn 1|turn 3|turn 5|turn 7|"


async def test_an_error_of_the_engine_and_a_good_retry_leave_a_whole_rollout(tmp_path: Path) -> None:
    failures: list[Exception] = [EngineTimeoutError("nothing came")]

    def script(request: EngineRequest) -> ScriptedAnswer:
        if failures:
            raise failures.pop()
        return answers(request)

    async with site(tmp_path, script) as one:
        assert (await one.ask(CHAT, [("user", "q")])).status_code == 504
        assert (await one.ask(CHAT, [("user", "q")])).status_code == 200
        row = await one.row()
    assert (row.mask_sample, len(row.spans)) == (False, 2)


async def test_a_client_that_left_leaves_its_rollout_incomplete(tmp_path: Path) -> None:
    never = asyncio.Event()

    def script(request: EngineRequest) -> ScriptedAnswer:
        made = answers(request)
        return ScriptedAnswer(made.chunks, content_type=made.content_type, gates={1: never}, tokens=made.tokens)

    async with site(tmp_path, script) as one:
        asking = asyncio.ensure_future(one.ask(CHAT, [("user", "q")], stream=True))
        await until(lambda: one.engine.open_answers > 0)
        asking.cancel()
        await until(lambda: one.engine.open_answers == 0)
        snapshot = await one.frozen()
    assert snapshot.incomplete
    assert snapshot.packed == ()


async def test_a_stream_that_broke_off_is_named_in_its_rollout(tmp_path: Path) -> None:
    def script(request: EngineRequest) -> ScriptedAnswer:
        made = answers(request)
        return ScriptedAnswer(made.chunks[:3], content_type=made.content_type, cut=True, tokens=made.tokens)

    async with site(tmp_path, script) as one:
        with pytest.raises(httpx.RemoteProtocolError):
            await one.ask(CHAT, [("user", "q")], stream=True)
        snapshot = await one.frozen()
    assert snapshot.incomplete
    (problem,) = [problem for problem in snapshot.problems if problem.reason == "ids_missing"]
    assert problem.detail.startswith("the stream broke off: EngineError: the engine died")


async def test_an_engine_without_tokens_is_named_in_its_rollout(tmp_path: Path) -> None:
    async with site(tmp_path, spoken=()) as one:
        assert (await one.ask(CHAT, [("user", "q")], stream=True)).status_code == 200
        snapshot = await one.frozen()
    assert snapshot.incomplete
    assert ("ids_missing", "the answer carries no token ids") in [
        (each.reason, each.detail) for each in snapshot.problems
    ]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_call_from_before_its_rollout_was_cleared_is_none_of_its_records(tmp_path: Path, stream: bool) -> None:
    go_on = asyncio.Event()

    def script(request: EngineRequest) -> ScriptedAnswer:
        made = answers(request)
        gates = {0: go_on} if texts_of(CHAT, request.body)[0][1] == "old" else {}
        return ScriptedAnswer(made.chunks, content_type=made.content_type, gates=gates, tokens=made.tokens)

    async with site(tmp_path, script) as one:
        old = asyncio.ensure_future(one.ask(CHAT, [("user", "old")], stream=stream))
        await until(lambda: one.engine.open_answers > 0)
        one.capture.forget("r-0")
        TokenCaptureStore(tmp_path).delete("r-0")
        await one.ask(CHAT, [("user", "new")])
        go_on.set()
        assert heard(CHAT, await old, stream) == "turn 1"
        row = await one.row()
    assert row.token_ids.tolist() == [*prompt_of([("user", "new")]), *tokens_of("turn 1|")]


async def test_a_full_disk_refuses_a_call_before_and_marks_it_after_generation(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "no space left on device")
    calls = FaultyCalls(lambda path: path.endswith((".tokens.intents", ".tokens.jsonl")))

    def script(request: EngineRequest) -> ScriptedAnswer:
        calls.write_error = full
        return answers(request)

    async with site(tmp_path, script, calls) as one:
        calls.write_error = full
        refused = await one.ask(CHAT, [("user", "q")])
        assert refused.status_code == 503
        assert not one.engine.requests
        calls.write_error = None
        served = await one.ask(CHAT, [("user", "q")])
        assert heard(CHAT, served, stream=False) == "turn 1"
        calls.write_error = None
        snapshot = await one.frozen()
    assert snapshot.incomplete
    assert any(each.reason == "capture_failed" and "no space left" in each.detail for each in snapshot.problems)


async def test_a_call_on_an_unobserved_path_marks_its_rollout_durably(tmp_path: Path) -> None:
    async with site(tmp_path) as one:
        assert (await one.ask(RESPONSES, [("user", "q")])).status_code == 200
        path = "/ng-rollout/r-0/training-token-capture/ng-token-capture/weight-version"
        assert (await one.http.post(path, json={"version": 3})).status_code == 200
        snapshot = await one.frozen()
    assert snapshot.incomplete
    assert len(snapshot.packed) == 1


async def test_the_version_of_the_weights_is_that_of_the_call(tmp_path: Path) -> None:
    async with site(tmp_path) as one:
        for version in ("step-1", 2):
            await one.http.post("/ng-token-capture/weight-version", json={"version": version})
            turns = [("user", "q")] if version == "step-1" else [("user", "q"), ("assistant", "turn 1"), ("user", "r")]
            await one.ask(CHAT, turns)
        row = await one.row()
    policy = [(span.start, span.end) for span in row.spans if span.kind == "policy"]
    assert [(span.version, span.start, span.end) for span in row.weight_spans] == [
        ("step-1", *policy[0]),
        (2, *policy[1]),
    ]


async def test_an_id_that_no_file_can_be_named_after_is_refused(tmp_path: Path) -> None:
    async with site(tmp_path) as one:
        response = await one.ask(CHAT, [("user", "q")], "ä")
    assert response.status_code == 400  # a client tries again after a 503, which could never help
    assert "'ä' cannot name token files" in response.json()["error"]["message"]
    assert not one.engine.requests


async def test_answers_are_what_they_are_without_capture(tmp_path: Path) -> None:
    async with site(tmp_path) as one:
        for dialect in DIALECTS:
            for stream in (False, True):
                response = await one.ask(dialect, [("user", "q")], f"r-{dialect}-{stream}", stream=stream)
                assert response.content == says("turn 1", dialect, stream).body
                plain = await one.http.post(PATH_OF[dialect], content=response.request.content)
                assert plain.content == response.content
                assert plain.headers["content-type"] == response.headers["content-type"]
