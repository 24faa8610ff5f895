from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, cast

import httpx
import numpy as np
import pytest
from starlette.responses import JSONResponse

from gym_ray.dialects import CHAT, RESPONSES
from gym_ray.errors import EngineError
from gym_ray.inference_worker.app import build_worker_app
from gym_ray.inference_worker.prefixes import StagedPrefixes
from gym_ray.inference_worker.staging_engine import StagingEngine
from gym_ray.inference_worker.weights import WeightVersion
from gym_ray.model_server.engine import EngineRequest
from gym_ray.model_server.serving import AppServer
from gym_ray.testing.fake_engine import FakeEngine
from gym_ray.testing.fake_llama_cpp import LAST, MARKERS, FakeLlamaCpp, ids_of, running_engine
from gym_ray.testing.script import ScriptedAnswer
from gym_ray.testing.waiting import until
from gym_ray.token_id_capture.adapters import decode_routed_experts
from gym_ray.token_id_capture.exact_tokens import ExactTokens
from gym_ray.token_id_capture.staging.async_capture import AsyncRolloutTokenCapture
from gym_ray.token_id_capture.staging.capture import RolloutTokenCapture
from gym_ray.token_id_capture.staging.memory_sink import MemoryStaging
from gym_ray.token_id_capture.staging.records import CommitCoords

USER = [{"role": "user", "content": "Q"}]
PROMPT = [
    MARKERS["<bos>"],
    MARKERS["<start_of_turn>"],
    *ids_of("user\nQ"),
    MARKERS["<end_of_turn>"],
    *ids_of("\n"),
    MARKERS["<start_of_turn>"],
    *ids_of("model\n"),
]


def completion(prompt_tokens: int, text: str) -> JSONResponse:
    """Say ``text`` and end the turn."""
    tokens = [*ids_of(text), MARKERS["<end_of_turn>"]]
    return JSONResponse(
        {
            **LAST,
            "content": text,
            "tokens": tokens,
            "completion_probabilities": [{"id": token, "logprob": -0.25} for token in tokens],
            "tokens_evaluated": prompt_tokens,
            "tokens_predicted": len(tokens),
        }
    )


class Worker:
    """A worker over a scripted llama.cpp."""

    def __init__(self, llama: FakeLlamaCpp, engine: StagingEngine, staging: MemoryStaging, client: Any) -> None:
        self.llama, self.engine, self.staging, self.client = llama, engine, staging, client

    async def ask(self, **body: Any) -> httpx.Response:
        return await self.client.post("/v1/chat/completions", json={"model": "m", "messages": USER, **body})

    async def coords(self, **body: Any) -> CommitCoords:
        answer = await self.ask(**body)
        assert answer.status_code == 200, answer.text
        return CommitCoords.model_validate(answer.json()["ng_commit_coords"])


def root(call_id: str = "c1") -> dict[str, Any]:
    return {"rollout_id": "0-0", "model_call_id": call_id, "mode": "text"}


def child_of(parent: CommitCoords, call_id: str = "c2") -> dict[str, Any]:
    return {
        "rollout_id": "0-0",
        "model_call_id": call_id,
        "parent_call_id": parent.model_call_id,
        "prev_len": parent.cum_len,
        "mode": "token_in",
        "staging_chain": [parent.staging_key],
        "parent_chain_hash": parent.chain_hash,
    }


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    llama, staging = FakeLlamaCpp(), MemoryStaging()
    llama.answer = completion(len(PROMPT), "Hi.\n")
    weights = WeightVersion(3)
    async with AsyncExitStack() as stack:
        inner = await stack.enter_async_context(running_engine(llama))
        capture = AsyncRolloutTokenCapture(RolloutTokenCapture(staging, weights), timeout_s=20)
        stack.push_async_callback(capture.aclose)
        engine = StagingEngine(inner, capture, StagedPrefixes(staging))
        server = AppServer(build_worker_app(engine, weights, name="worker", api_key="key"))
        await server.start()
        stack.push_async_callback(server.stop, 1)
        headers = {"authorization": "Bearer key"}
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=server.url, headers=headers, timeout=20))
        yield Worker(llama, engine, staging, client)


async def test_an_admitted_call_is_staged_before_it_is_answered(worker: Worker) -> None:
    coords = await worker.coords(ng_capture=root(), logprobs=True, top_logprobs=0, return_tokens_as_token_ids=True)
    assert (coords.disposition, coords.weight_version, coords.delta_len) == ("staged", 3, len(PROMPT) + 5)
    (snapshot,) = worker.staging.fetch([str(coords.staging_key)])
    assert snapshot.token_ids_delta == [*PROMPT, *ids_of("Hi.\n"), MARKERS["<end_of_turn>"]]
    assert snapshot.token_mask_delta == [0.0] * len(PROMPT) + [1.0] * 5
    assert snapshot.generation_log_probs_delta == [0.0] * len(PROMPT) + [-0.25] * 5
    assert (snapshot.digest, snapshot.chain_hash) == (coords.digest, coords.chain_hash)


async def test_the_client_is_told_what_the_engine_said_and_where_its_tokens_are(worker: Worker) -> None:
    answer = (await worker.ask(ng_capture=root())).json()
    assert answer["choices"][0]["message"]["content"] == "Hi."
    assert "token_ids" not in json.dumps(answer)
    assert answer["choices"][0].get("logprobs") is None


async def test_a_child_continues_the_very_tokens_that_storage_holds(worker: Worker) -> None:
    parent = await worker.coords(ng_capture=root())
    messages = [*USER, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "R"}]
    follows = [*ids_of("\n"), MARKERS["<start_of_turn>"], *ids_of("user\nR"), MARKERS["<end_of_turn>"]]
    follows += [*ids_of("\n"), MARKERS["<start_of_turn>"], *ids_of("model\n")]
    worker.llama.answer = completion(parent.cum_len + len(follows), "Yes.\n")
    coords = await worker.coords(ng_capture=child_of(parent), messages=messages)
    assert coords.disposition == "staged"
    said = [*PROMPT, *ids_of("Hi.\n"), MARKERS["<end_of_turn>"]]
    assert worker.llama.requests[-1]["prompt"][: parent.cum_len] == said
    (snapshot,) = worker.staging.fetch([str(coords.staging_key)])
    assert snapshot.token_ids_delta[: len(follows)] == follows
    assert (coords.prev_len, coords.delta_len) == (parent.cum_len, len(follows) + 6)


async def test_a_prompt_that_does_not_continue_the_parent_is_served_and_not_captured(worker: Worker) -> None:
    parent = await worker.coords(ng_capture=root())
    other = [
        {"role": "user", "content": "Z"},
        {"role": "assistant", "content": "No."},
        {"role": "user", "content": "R"},
    ]
    worker.llama.answer = completion(len(PROMPT) + 22, "Yes.\n")
    answer = await worker.ask(ng_capture=child_of(parent), messages=other)
    assert answer.json()["choices"][0]["message"]["content"] == "Yes."
    assert answer.json()["ng_commit_coords"]["disposition"] == "capture_failed"
    assert len(worker.staging) == 1


async def test_a_chain_that_storage_does_not_hold_is_served_and_not_captured(worker: Worker) -> None:
    parent = await worker.coords(ng_capture=root())
    admission = {**child_of(parent), "staging_chain": ["gone"]}
    coords = await worker.coords(ng_capture=admission)
    assert (coords.disposition, coords.prev_len, coords.cum_len) == ("capture_failed", parent.cum_len, parent.cum_len)


async def test_tokens_that_the_engine_cannot_tell_are_not_captured(worker: Worker) -> None:
    worker.llama.answer = JSONResponse({**LAST, "content": "Hi.\n", "tokens_evaluated": len(PROMPT)})
    assert (await worker.coords(ng_capture=root())).disposition == "capture_failed"
    assert len(worker.staging) == 0


async def test_a_call_without_an_admission_is_ordinary_traffic(worker: Worker) -> None:
    answer = await worker.ask()
    assert answer.status_code == 200
    assert "ng_commit_coords" not in answer.json()
    assert len(worker.staging) == 0


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"ng_capture": root(), "stream": True}, "not streamed"),
        ({"ng_capture": root(), "n": 2}, "one choice"),
        ({"ng_capture": {"rollout_id": "0-0"}}, "no admission"),
        ({"ng_capture": None}, "no admission"),
        ({"ng_capture": {**root(), "prev_len": 3}}, "no admission"),
    ],
)
async def test_a_request_that_cannot_be_admitted_is_a_400_that_says_why(worker: Worker, body: Any, said: str) -> None:
    answer = await worker.ask(**body)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]
    assert worker.llama.requests == []


async def test_an_engine_that_fails_stages_nothing_and_is_told(worker: Worker) -> None:
    worker.llama.answer = JSONResponse({"error": {"message": "no room", "code": 500}}, 500)
    answer = await worker.ask(ng_capture=root())
    assert answer.status_code >= 500
    assert len(worker.staging) == 0


async def test_a_client_that_leaves_stages_nothing(worker: Worker) -> None:
    worker.llama.hang = asyncio.Event()
    asked = asyncio.create_task(worker.ask(ng_capture=root()))
    await until(lambda: bool(worker.llama.requests))
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    worker.llama.hang.set()
    worker.llama.hang = None
    assert (await worker.coords(ng_capture=root("c9"))).disposition == "staged"
    assert len(worker.staging) == 1


async def test_calls_are_stamped_with_the_weights_that_served_when_they_were_admitted(worker: Worker) -> None:
    said = await worker.client.post("/ng-token-capture/weight-version", json={"version": 9})
    assert said.json() == {"version": 9, "previous": 3}
    assert (await worker.coords(ng_capture=root())).weight_version == 9


@pytest.mark.parametrize("version", [-1, "9", 1.5, None, True])
async def test_a_weight_version_is_a_whole_number(worker: Worker, version: Any) -> None:
    said = await worker.client.post("/ng-token-capture/weight-version", json={"version": version})
    assert said.status_code == 422
    assert (await worker.coords(ng_capture=root())).weight_version == 3


async def test_nobody_without_the_key_is_served_or_says_which_weights_serve(worker: Worker) -> None:
    for headers in ({}, {"authorization": "Bearer other"}, {"authorization": "Bearer k\u00e9y".encode()}):
        async with httpx.AsyncClient(base_url=worker.client.base_url, headers=headers) as stranger:
            said = await stranger.post("/ng-token-capture/weight-version", json={"version": 9})
            asked = await stranger.post("/v1/chat/completions", json={"messages": USER, "ng_capture": root()})
        assert (said.status_code, asked.status_code) == (401, 401)
    assert len(worker.staging) == 0


async def test_many_calls_at_once_are_each_staged_once(worker: Worker) -> None:
    found = await asyncio.gather(*(worker.coords(ng_capture=root(f"c{number}")) for number in range(40)))
    assert len({coords.staging_key for coords in found}) == 40
    assert len(worker.staging) == 40


async def test_an_engine_that_tells_no_tokens_cannot_be_a_worker() -> None:
    capture = AsyncRolloutTokenCapture(RolloutTokenCapture(MemoryStaging(), lambda: 0))
    with pytest.raises(EngineError, match="does not report the exact tokens"):
        StagingEngine(FakeEngine(), capture, StagedPrefixes(MemoryStaging()))
    await capture.aclose()


@pytest.mark.parametrize("start", [0, 1])
async def test_routes_of_experts_are_those_of_the_staged_tokens(start: int) -> None:
    """The engine routes its whole prompt, and has no route for the last token."""
    turns = [([5, 6], [7], [[1], [2]]), ([5, 6, 7, 8], [9], [[1], [2], [3], [4]])]
    answers = []
    for prompt, said, rows in turns:
        file = io.BytesIO()
        np.save(file, np.array(rows[start:], np.int16)[:, :, None])
        routes = base64.b64encode(file.getvalue()).decode()
        ids, log_probs = np.array(prompt, np.uint32), np.array([-0.5] * len(said), np.float32)
        tokens = ExactTokens(ids, np.array(said, np.uint32), log_probs, routed_experts=routes)
        answers.append(ScriptedAnswer([b'{"id":"a","choices":[{"message":{}}]}'], tokens=tokens))
    staging, script = MemoryStaging(), iter(answers)
    capture = AsyncRolloutTokenCapture(RolloutTokenCapture(staging, lambda: 0))
    engine = StagingEngine(
        FakeEngine(script=lambda _: next(script), token_dialects=[CHAT]), capture, StagedPrefixes(staging)
    )
    parent: CommitCoords | None = None
    found = []
    for _ in turns:
        admission = root() if parent is None else child_of(parent)
        body = {"messages": USER, "routed_experts_prompt_start": start, "ng_capture": admission}
        answer = await engine.answer(EngineRequest(CHAT, body, json.dumps(body).encode()))
        parent = CommitCoords.model_validate(json.loads(await answer.read())["ng_commit_coords"])
        assert parent.disposition == "staged"
        (extras,) = staging.fetch_extras([str(parent.staging_key)])
        assert extras is not None
        found.append(decode_routed_experts(extras["routed_experts"]).values.ravel().tolist())
    await capture.aclose()
    assert found == [[-1 if start else 1, 2, -1], [4, -1]]


async def test_a_report_that_cannot_be_read_costs_no_answer() -> None:
    ids, no_array = np.array([5], np.uint32), cast("Any", None)
    unreadable = ExactTokens(no_array, ids, np.array([-0.5], np.float32), routed_experts="routes")
    answer = ScriptedAnswer([b'{"id":"a","choices":[{"message":{}}]}'], tokens=unreadable)
    staging = MemoryStaging()
    capture = AsyncRolloutTokenCapture(RolloutTokenCapture(staging, lambda: 0))
    inner = FakeEngine(script=lambda _: answer, token_dialects=[CHAT])
    body = {"messages": USER, "ng_capture": root()}
    reply = await StagingEngine(inner, capture, StagedPrefixes(staging)).answer(
        EngineRequest(CHAT, body, json.dumps(body).encode())
    )
    said = json.loads(await reply.read())
    await capture.aclose()
    assert (said["id"], said["ng_commit_coords"]["disposition"]) == ("a", "capture_failed")
    assert (len(staging), capture.failures["failed_by_caller"]) == (0, 1)


async def test_other_dialects_pass_and_cannot_be_admitted(worker: Worker) -> None:
    body = {"model": "m", "input": "Q", "ng_capture": root()}
    with pytest.raises(EngineError, match="Chat Completions"):
        await worker.engine.answer(EngineRequest(RESPONSES, body, json.dumps(body).encode()))
    assert CHAT in worker.engine.dialects
    assert worker.engine.token_dialects == frozenset()
