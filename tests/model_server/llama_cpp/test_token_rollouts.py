"""Rollouts on the real model through the whole server: the row is, token for token, what the engine said.

What the engine said is read on the wire between it and llama.cpp, before any of our code looks at it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from gym_ray.dialects import CHAT, DIALECT_BY_PATH, MESSAGES, RESPONSES
from gym_ray.dialects.reassembly import reassemble
from gym_ray.model_call_capture import CaptureWriter
from gym_ray.model_server.app import build_app
from gym_ray.model_server.llama_cpp.client import LlamaCppClient
from gym_ray.model_server.llama_cpp.engine import LlamaCppEngine
from gym_ray.model_server.serving import AppServer
from gym_ray.token_id_capture.builder import run_builder
from gym_ray.token_id_capture.call_capture import TokenCapture
from gym_ray.token_id_capture.protocols import TokenCaptureSnapshot
from gym_ray.token_id_capture.resolution.resolvers import FileLineageResolver
from gym_ray.token_id_capture.rows import TrainingRow, training_rows
from gym_ray.token_id_capture.store import TokenCaptureStore

pytestmark = pytest.mark.model

PATH_OF = {dialect: path for path, dialect in DIALECT_BY_PATH.items()}
DIALECTS = sorted(PATH_OF)
QUESTION = "What is the status of order 1043?"
SCHEMA = {
    "type": "object",
    "properties": {"order_id": {"type": "string", "maxLength": 8}},
    "required": ["order_id"],
    "additionalProperties": False,
}


@dataclass
class Said:
    """One completion on the wire: what was sent, and the objects that came back."""

    sent: dict[str, Any]
    answers: list[dict[str, Any]] = field(default_factory=list)

    @property
    def prompt(self) -> list[int]:
        return list(self.sent["prompt"])

    @property
    def tokens(self) -> list[int]:
        return [token for answer in self.answers for token in answer.get("tokens") or ()]

    @property
    def log_probs(self) -> list[float]:
        items = [item for answer in self.answers for item in answer.get("completion_probabilities") or ()]
        return [item["logprob"] for item in items]

    @property
    def counters(self) -> tuple[int, int]:
        return self.answers[-1]["tokens_evaluated"], self.answers[-1]["tokens_predicted"]


class ListeningClient(LlamaCppClient):
    """Keeps what goes over the wire."""

    said: list[Said]

    async def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        answer = await super().complete(body)
        self.said.append(Said(dict(body), [answer]))
        return answer

    async def open_stream(self, body: Mapping[str, Any]) -> httpx.Response:
        self.said.append(Said(dict(body)))
        return await super().open_stream(body)

    async def events(self, response: httpx.Response) -> AsyncGenerator[dict[str, Any]]:
        said = self.said[-1]
        async for event in super().events(response):
            said.answers.append(event)
            yield event


@dataclass
class Rollout:
    """A server with the real model, and one rollout on it."""

    http: httpx.AsyncClient
    said: list[Said]
    store: TokenCaptureStore
    directory: Path

    async def ask(self, dialect: str, body: Mapping[str, Any], rollout_id: str = "r-0") -> dict[str, Any]:
        path = f"/ng-rollout/{rollout_id}/training-token-capture{PATH_OF[dialect]}"
        response = await self.http.post(path, json=body)
        assert response.status_code == 200, response.text
        assert b"token_ids" not in response.content
        assert b"log_probs" not in response.content
        answer = reassemble(dialect, response.content) if body.get("stream") else response.json()
        assert answer is not None
        return answer

    async def frozen(self, rollout_id: str = "r-0") -> TokenCaptureSnapshot:
        snapshot = await self.store.freeze(rollout_id)
        assert not snapshot.incomplete, snapshot.problems
        path = self.directory / f"{rollout_id}.capture.jsonl"
        recorded = [json.loads(line) for line in path.read_text().splitlines()]
        assert {entry.model_call_id for entry in snapshot.packed} == {record["model_call_id"] for record in recorded}
        return snapshot

    async def rows(self, rollout_id: str = "r-0", *, branches: bool = False) -> list[TrainingRow]:
        built = run_builder((await self.frozen(rollout_id)).packed)
        return training_rows(rollout_id, built, branches=branches)


@asynccontextmanager
async def rollout(directory: Path, model_url: str) -> AsyncIterator[Rollout]:
    engine = LlamaCppEngine(model_url, model_name="policy")
    listening = ListeningClient(model_url, max_connections=8, request_timeout_s=60)
    listening.said = []
    engine._client = listening
    await engine.ready(30)
    store = TokenCaptureStore(directory / "tokens")
    capture = TokenCapture(store, FileLineageResolver(store))
    writer = CaptureWriter(directory / "calls", server_name="policy")
    await asyncio.to_thread(writer.start)
    server = AppServer(build_app(engine, server_name="policy", capture=writer, tokens=capture))
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=60) as http:
            yield Rollout(http, listening.said, store, directory / "calls")
    finally:
        await server.stop(grace_s=5)
        await asyncio.to_thread(writer.close)
        await capture.aclose()
        await engine.aclose()


def first_body(dialect: str, **members: Any) -> dict[str, Any]:
    asked = {"role": "user", "content": QUESTION}
    tool = {"name": "look_up_order", "description": "Look up one order."}
    if dialect == RESPONSES:
        tools = [{"type": "function", **tool, "parameters": SCHEMA}]
        body = {"input": [asked], "tools": tools, "tool_choice": "required", "max_output_tokens": 96}
    elif dialect == CHAT:
        tools = [{"type": "function", "function": {**tool, "parameters": SCHEMA}}]
        body = {"messages": [asked], "tools": tools, "tool_choice": "required", "max_tokens": 96}
    else:
        tools = [{**tool, "input_schema": SCHEMA}]
        body = {"messages": [asked], "tools": tools, "tool_choice": {"type": "any"}, "max_tokens": 96}
    return {"model": "policy", "temperature": 0, **body, **members}


SHORT = {"type": "json_schema", "name": "status", "schema": {"enum": ["It is shipped.", "It is on hold."]}}
SHORT_ANSWER: dict[str, dict[str, Any]] = {
    RESPONSES: {"text": {"format": SHORT}, "tool_choice": "none"},
    CHAT: {"response_format": {"type": "json_schema", "json_schema": SHORT}, "tool_choice": "none"},
    MESSAGES: {"output_config": {"format": SHORT}, "tool_choice": {"type": "none"}},
}
"""What keeps a text turn short: the model of these tests may otherwise go on for long."""


def next_body(dialect: str, body: Mapping[str, Any], answer: Mapping[str, Any], said: str) -> dict[str, Any]:
    """Return the request that goes on behind ``answer``: a tool's result behind its call, else the user's text."""
    if dialect == RESPONSES:
        (item,) = answer["output"]
        more: list[dict[str, Any]] = [item]
        called = item["type"] == "function_call"
        result = {"type": "function_call_output", "call_id": item.get("call_id"), "output": said}
        more.append(result if called else {"role": "user", "content": said})
        return {**body, "input": [*body["input"], *more], **SHORT_ANSWER[dialect]}
    turn = {"role": "assistant", "content": answer["content"]} if dialect == MESSAGES else chat_turn(answer)
    calls = [block for block in turn["content"] or () if block["type"] == "tool_use"] if dialect == MESSAGES else []
    reply: dict[str, Any] = {"role": "user", "content": said}
    if calls:
        reply["content"] = [{"type": "tool_result", "tool_use_id": calls[0]["id"], "content": said}]
    elif turn.get("tool_calls"):
        reply = {"role": "tool", "tool_call_id": turn["tool_calls"][0]["id"], "content": said}
    return {**body, "messages": [*body["messages"], turn, reply], **SHORT_ANSWER[dialect]}


def chat_turn(answer: Mapping[str, Any]) -> dict[str, Any]:
    message = answer["choices"][0]["message"]
    return {name: message[name] for name in ("role", "content", "tool_calls") if message.get(name) is not None}


def check_row(row: TrainingRow, said: Sequence[Said]) -> None:
    """Hold a row against the wire: every token, every log probability, every place of loss."""
    assert (row.mask_sample, row.reasons) == (False, ())
    learned = np.zeros(row.token_ids.size, bool)
    log_probs: list[float] = []
    so_far: list[int] = []
    for one in said:
        assert one.counters == (len(one.prompt), len(one.tokens)), "the engine's own counters"
        assert len(one.log_probs) == len(one.tokens)
        assert one.prompt[: len(so_far)] == so_far, "the parent's exact tokens went in"
        so_far = [*one.prompt, *one.tokens]
        learned[len(one.prompt) : len(so_far)] = True
        log_probs += one.log_probs
    assert row.token_ids.tolist() == so_far
    assert row.loss_mask().tolist() == learned.tolist()
    assert row.policy_log_probs.tolist() == log_probs
    assert row.dense_log_probs()[learned].tolist() == np.array(log_probs, np.float32).tolist()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_rollout_with_a_tool_becomes_the_row_that_the_engine_said(
    tmp_path: Path, model_url: str, dialect: str, stream: bool
) -> None:
    async with rollout(tmp_path, model_url) as one:
        body = first_body(dialect, stream=stream)
        for said in ('{"order_id": "1043", "status": "shipped"}', "Thanks. And who carries it?"):
            body = next_body(dialect, body, await one.ask(dialect, body), said)
        await one.ask(dialect, body)
        snapshot = await one.frozen()
        (row,) = await one.rows()
    assert len(one.said) == 3
    check_row(row, one.said)
    kinds = [span.kind for span in row.spans]
    assert kinds == ["prompt", "policy", "interstitial", "policy", "interstitial", "policy"]
    calls = {entry.model_call_id: entry for entry in snapshot.packed}
    assert row.constrained_calls == tuple(span.model_call_id for span in row.spans if span.kind == "policy")
    first, second, third = (calls[call_id] for call_id in row.constrained_calls)
    assert (first.parent_call_id, first.prefix_supplied) == (None, False)
    assert (second.parent_call_id, third.parent_call_id) == (first.model_call_id, second.model_call_id)
    assert second.prefix_supplied
    assert third.prefix_supplied
    assert (second.prompt_is_delta, third.extras.token_in) == (True, "completion")


async def test_a_turn_sampled_as_other_tokens_than_its_text_has_is_continued_by_those(
    tmp_path: Path, model_url: str
) -> None:
    others = 0
    async with rollout(tmp_path, model_url) as one:
        for attempt in range(8):
            rollout_id = f"r-{attempt}"
            body = first_body(RESPONSES, temperature=2, seed=attempt)
            answer = await one.ask(RESPONSES, body, rollout_id)
            second = next_body(RESPONSES, body, answer, "unknown order")
            await one.ask(RESPONSES, second, rollout_id)
            await one.http.post("/v1/responses", json=second)  # not captured, so its prompt is rendered anew
            sampled, continued, rendered = one.said[-3:]
            turn = [*sampled.prompt, *sampled.tokens]
            assert continued.prompt[: len(turn)] == turn
            (row,) = await one.rows(rollout_id)
            check_row(row, [sampled, continued])
            others += rendered.prompt[: len(turn)] != turn
            if others:
                break
    assert others, "each of these turns was sampled as the very tokens that its text has"


async def test_two_continuations_of_one_call_are_two_rows_and_their_shared_tokens_are_learned_once(
    tmp_path: Path, model_url: str
) -> None:
    async with rollout(tmp_path, model_url) as one:
        body = first_body(CHAT)
        answer = await one.ask(CHAT, body)
        for status in ("shipped", "on hold"):
            await one.ask(CHAT, next_body(CHAT, body, answer, json.dumps({"status": status})))
        rows = await one.rows(branches=True)
    root, left, right = one.said
    assert len(rows) == 2
    expected = {(*said.prompt, *said.tokens): said for said in (left, right)}
    assert {tuple(row.token_ids.tolist()) for row in rows} == set(expected)
    first, second = rows
    check_row(first, [root, expected[tuple(first.token_ids.tolist())]])
    shared = len(root.prompt) + len(root.tokens)
    assert (second.shared_prefix, second.shared_with) == (shared, first.chain_id)
    own = expected[tuple(second.token_ids.tolist())]
    assert np.flatnonzero(second.loss_mask()).tolist() == list(
        range(len(own.prompt), len(own.prompt) + len(own.tokens))
    )


async def test_few_shot_turns_are_a_seed_and_weights_may_change_on_the_way(tmp_path: Path, model_url: str) -> None:
    shots = []
    for order, status in (("1001", "delivered"), ("1002", "cancelled")):
        call = {"call_id": f"call_{order}", "name": "look_up_order", "arguments": json.dumps({"order_id": order})}
        shots += [
            {"role": "user", "content": f"What is the status of order {order}?"},
            {"type": "function_call", **call},
            {"type": "function_call_output", "call_id": call["call_id"], "output": json.dumps({"status": status})},
            {"role": "assistant", "content": f"Order {order} is {status}."},
        ]
    async with rollout(tmp_path, model_url) as one:
        version = "/ng-token-capture/weight-version"
        assert (await one.http.post(version, json={"version": 6})).status_code == 200
        body = first_body(RESPONSES, tool_choice="auto")
        body["input"] = [*shots, *body["input"]]
        answer = await one.ask(RESPONSES, body)
        assert json.loads(answer["output"][0]["arguments"]) == {"order_id": "1043"}
        assert (await one.http.post(version, json={"version": 7})).status_code == 200
        second = await one.ask(
            RESPONSES, next_body(RESPONSES, body, answer, '{"status": "shipped"}') | {"stream": True}
        )
        assert "shipped" in second["output"][0]["content"][0]["text"]
        (row,) = await one.rows()
    check_row(row, one.said)
    policy = [(span.start, span.end) for span in row.spans if span.kind == "policy"]
    assert [(span.version, span.start, span.end) for span in row.weight_spans] == [
        (6, *policy[0]),
        (7, *policy[1]),
    ]


async def test_a_stream_whose_ids_are_not_all_told_masks_its_rollout_and_says_why(
    tmp_path: Path, model_url: str
) -> None:
    text = "\U0001f9a4\U0001fabf \U0001face"
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": text}] * 2
    body = {"messages": [*turns, turns[0]], "temperature": 0, "max_tokens": 30, "stream": True}
    async with rollout(tmp_path, model_url) as one:
        answer = await one.ask(CHAT, body)
        assert answer["choices"][0]["message"]["content"] == text
        snapshot = await one.store.freeze("r-0")
    assert snapshot.incomplete
    assert snapshot.packed == ()
    (said,) = one.said
    numbers = f"the engine predicted {said.counters[1]} tokens and reported {len(said.tokens)}"
    assert ("ids_missing", numbers) in [(problem.reason, problem.detail) for problem in snapshot.problems]


async def test_a_stop_text_that_costs_a_log_prob_makes_the_call_untrainable(tmp_path: Path, model_url: str) -> None:
    async with rollout(tmp_path, model_url) as one:
        body = {**first_body(RESPONSES), "text": {"format": SHORT}, "tools": [], "tool_choice": "none", "stop": ["is"]}
        await one.ask(RESPONSES, body)
        snapshot = await one.store.freeze("r-0")
    (said,) = one.said
    assert said.counters == (len(said.prompt), len(said.tokens))
    assert len(said.log_probs) < len(said.tokens), "llama.cpp now tells all of them"
    assert (snapshot.incomplete, snapshot.packed) == (True, ())
    numbers = f"{len(said.tokens)} tokens have {len(said.log_probs)} log probabilities"
    assert ("log_prob_missing", numbers) in [(problem.reason, problem.detail) for problem in snapshot.problems]
