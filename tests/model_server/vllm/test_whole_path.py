"""From a client's request through the server, a vLLM server behind it and the capture, to token records and a row."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gym_ray.agents.context import RunContext, ServerUrls
from gym_ray.agents.responses_loop import ResponsesLoop
from gym_ray.dialects import CHAT, DIALECT_BY_PATH, MESSAGES, RESPONSES
from gym_ray.dialects.reassembly import reassemble
from gym_ray.model_call_capture import CaptureWriter
from gym_ray.model_server.app import build_app
from gym_ray.testing.fake_upstream import UpstreamRequest, recorded
from gym_ray.testing.fake_vllm import END, FakeVllm, spelled
from gym_ray.testing.script import ScriptedAnswer
from gym_ray.testing.vllm_link import VllmLink, linked_vllm
from gym_ray.token_id_capture.builder import run_builder
from gym_ray.token_id_capture.call_capture import TokenCapture
from gym_ray.token_id_capture.delivery import trajectories_from_source
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.records import ParentResolutionStatus
from gym_ray.token_id_capture.resolution.resolvers import FileLineageResolver
from gym_ray.token_id_capture.rows import TrainingRow, training_rows
from gym_ray.token_id_capture.store import TokenCaptureStore

RECORDINGS = Path(__file__).parents[2] / "recordings/vllm_0_32"
ROLLOUT = "r-0"
PREFIX = f"/ng-rollout/{ROLLOUT}/training-token-capture"
PATH_OF = {dialect: path for path, dialect in DIALECT_BY_PATH.items()}
USER = {"role": "user", "content": "hi"}


def recording(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDINGS / f"{name}.json").read_text())
    return found


class Server:
    """A model server with capture, and the store it keeps tokens in."""

    def __init__(self, http: httpx.AsyncClient, link: VllmLink, store: TokenCaptureStore) -> None:
        self.http, self.link, self.store = http, link, store

    async def ask(self, dialect: str, body: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        response = await self.http.post(f"{PREFIX}{PATH_OF[dialect]}", json=body)
        assert response.status_code == 200, response.text
        answer = reassemble(dialect, response.content) if body.get("stream") else response.json()
        assert answer is not None
        return answer, response.content

    def entries(self) -> list[PackedEntry]:
        entries, problems = self.store.read_packed(ROLLOUT)
        assert problems == []
        return entries


@asynccontextmanager
async def server(
    tmp_path: Path, script: Callable[[UpstreamRequest], ScriptedAnswer], **options: Any
) -> AsyncIterator[Server]:
    (tmp_path / "calls").mkdir()
    store = TokenCaptureStore(tmp_path / "tokens")
    tokens = TokenCapture(store, FileLineageResolver(store))
    writer = CaptureWriter(tmp_path / "calls", server_name="policy_model")
    writer.start()
    try:
        async with linked_vllm(script, **options) as link:
            app = build_app(link.engine, server_name="policy_model", capture=writer, tokens=tokens)
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://model") as http:
                yield Server(http, link, store)
    finally:
        await tokens.aclose()
        writer.close(5)


@pytest.mark.parametrize("name", ["chat_tokens", "chat_stream_usage_tokens"])
async def test_recorded_answers_become_records(tmp_path: Path, name: str) -> None:
    async with server(tmp_path, lambda request: recorded(recording(name))) as model:
        answer, text = await model.ask(CHAT, {"messages": [USER], "stream": "stream" in name})
        (entry,) = model.entries()
    whole = json.loads(recording("chat_tokens")["body"])
    assert entry.prompt_token_ids.tolist() == whole["prompt_token_ids"]
    assert entry.generation_token_ids.tolist() == whole["choices"][0]["token_ids"]
    said = [item["logprob"] for item in whole["choices"][0]["logprobs"]["content"]]
    assert entry.generation_log_probs.tolist() == said
    assert (entry.extras.ended_by, entry.response_id) == ("length", answer["id"])
    assert b"289" not in text


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("chat_n2_stream", "several_choices"),
        ("chat_stream", "engine_reports_no_tokens"),
        ("chat_too_long", "engine_reports_no_tokens"),
    ],
)
async def test_recorded_answers_without_usable_tokens_leave_a_reason(tmp_path: Path, name: str, reason: str) -> None:
    body = {"messages": [USER], "stream": True, "n": 2 if name == "chat_n2_stream" else 1}
    async with server(tmp_path, lambda request: recorded(recording(name))) as model:
        await model.ask(CHAT, body)
        snapshot = await model.store.freeze(ROLLOUT)
    assert snapshot.incomplete
    assert [problem.reason for problem in snapshot.problems] == [reason]


ANSWERS = ['CALL {"city":"Rome"}', "sunny", "bye"]
CALLED = {"name": "look", "arguments": '{"city":"Rome"}'}
TOOLS: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}}


def chat_turns(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = [USER]
    for position, answer in enumerate(answers):
        turns.append(answer["choices"][0]["message"])
        turns.append({"role": "tool", "tool_call_id": "k1", "content": "21 C"} if position == 0 else USER)
    return turns


def response_items(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = [USER]
    for position, answer in enumerate(answers):
        turns += answer["output"]
        call_id = next((item["call_id"] for item in answer["output"] if item["type"] == "function_call"), "")
        turns.append({"type": "function_call_output", "call_id": call_id, "output": "21 C"} if position == 0 else USER)
    return turns


def message_turns(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = [USER]
    for position, answer in enumerate(answers):
        turns.append({"role": "assistant", "content": answer["content"]})
        used = next((block["id"] for block in answer["content"] if block["type"] == "tool_use"), "")
        result = [{"type": "tool_result", "tool_use_id": used, "content": "21 C"}]
        turns.append({"role": "user", "content": result} if position == 0 else USER)
    return turns


def body_of(dialect: str, answers: list[dict[str, Any]]) -> dict[str, Any]:
    if dialect == CHAT:
        return {
            "messages": chat_turns(answers),
            "tools": [{"type": "function", "function": {"name": "look", "parameters": TOOLS}}],
        }
    if dialect == RESPONSES:
        tool = {"type": "function", "name": "look", "parameters": TOOLS, "strict": False}
        return {"input": response_items(answers), "tools": [tool]}
    return {"messages": message_turns(answers), "max_tokens": 50, "tools": [{"name": "look", "input_schema": TOOLS}]}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("dialect", [CHAT, RESPONSES, MESSAGES])
async def test_a_rollout_with_a_tool_becomes_one_row_of_the_very_tokens(
    tmp_path: Path, dialect: str, stream: bool
) -> None:
    fake = FakeVllm([[*spelled(text), END] for text in ANSWERS])
    answers: list[dict[str, Any]] = []
    async with server(tmp_path, fake.script, scale_out=True) as model:
        for _ in ANSWERS:
            answer, text = await model.ask(dialect, {**body_of(dialect, answers), "stream": stream})
            assert b'prompt_token_ids":[' not in text
            answers.append(answer)
        entries = model.entries()
        snapshot = await model.store.freeze(ROLLOUT)
        sent = [body for path, body in zip(model.link.paths, model.link.sent, strict=True) if path.endswith("generate")]
    assert [entry.prefix_supplied for entry in entries] == [False, True, True]
    assert [entry.extras.token_in for entry in entries] == ["", "render", "render"]
    assert [span.version for entry in entries for span in entry.extras.weight_spans] == ["w1", "w1"]
    assert not snapshot.incomplete
    (row,) = training_rows(ROLLOUT, run_builder(snapshot.packed))
    policy = [token for text in ANSWERS for token in (*spelled(text), END)]
    assert row.token_ids[row.loss_mask()].tolist() == policy
    assert row.token_ids.tolist() == [*sent[1]["token_ids"], *spelled("bye"), END]
    assert row.policy_log_probs.tolist() == [-0.5 - at / 8 for text in ANSWERS for at in range(len(text) + 1)]
    assert not row.mask_sample


@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_settings_ask_for_is_shown_as_without_capture(tmp_path: Path, stream: bool) -> None:
    fake = FakeVllm([[*spelled("ab"), END]] * 2)
    asked = {"return_token_ids": True, "logprobs": True}
    async with server(tmp_path, fake.script, extra_body=asked) as model:
        body = {"messages": [USER], "stream": stream}
        _, shown = await model.ask(CHAT, body)
        plain = await model.http.post(PATH_OF[CHAT], json=body)
    assert shown == plain.content
    assert b"prompt_token_ids" in shown


async def test_retokenised_history_is_no_continuation(tmp_path: Path) -> None:
    # B39: the second prompt spells the first answer with other ids, so the tokens of both calls are no one sequence
    fake = FakeVllm([[*spelled(text), END] for text in ("ab", "cd")])
    async with server(tmp_path, fake.script) as model:
        first, _ = await model.ask(CHAT, {"messages": [USER]})
        turns = [USER, first["choices"][0]["message"], USER]
        await model.ask(CHAT, {"messages": turns})
        first_entry, second_entry = model.entries()
        snapshot = await model.store.freeze(ROLLOUT)
    assert second_entry.parent_call_id == first_entry.model_call_id
    assert (second_entry.prefix_requested, second_entry.prefix_supplied) == (False, False)
    out = run_builder(snapshot.packed)
    assert out.notes.parent_link_failures == {"parent_digest_mismatch": 1}
    first_row, second_row = training_rows(ROLLOUT, out, branches=True)
    assert first_row.token_ids[first_row.loss_mask()].tolist() == [*spelled("ab"), END]
    assert second_row.token_ids[second_row.loss_mask()].tolist() == [*spelled("cd"), END]
    assert second_row.mask_sample


async def test_a_prefix_that_was_not_supplied_leaves_a_reason(tmp_path: Path) -> None:
    fake = FakeVllm([[*spelled(text), END] for text in ("ab", "cd")])
    async with server(tmp_path, fake.script, supply_prefix_token_ids=True) as model:
        first, _ = await model.ask(CHAT, {"messages": [USER]})
        await model.ask(CHAT, {"messages": [USER, first["choices"][0]["message"], USER], "stream": True})
        snapshot = await model.store.freeze(ROLLOUT)
    assert [problem.reason for problem in snapshot.problems] == ["prefix_not_supplied"]
    assert len(snapshot.packed) == 1


async def the_row(model: Server) -> TrainingRow:
    """The one row of a rollout that is not masked."""
    build = await trajectories_from_source(ROLLOUT, model.store)
    assert (build["mask_sample"], build["mask_reasons"]) == (False, [])
    (row,) = training_rows(ROLLOUT, run_builder((await model.store.freeze(ROLLOUT)).packed))
    return row


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("head", [{}, {"instructions": "Be brief."}], ids=["bare", "instructions"])
async def test_a_client_that_begins_with_a_text_gets_one_row(
    tmp_path: Path, head: dict[str, Any], stream: bool
) -> None:
    """W33: by the bare rule the first call goes before any question at all."""
    fake = FakeVllm([[*spelled(text), END] for text in ("ab", "cd", "ef")])
    asked = {**head, "stream": stream}
    async with server(tmp_path, fake.script, scale_out=True) as model:
        first, _ = await model.ask(RESPONSES, {"input": "hi", **asked})
        turns = [{"type": "message", **USER}, *first["output"], USER]
        second, _ = await model.ask(RESPONSES, {"input": turns, **asked})
        await model.ask(RESPONSES, {"input": [*turns, *second["output"], USER], **asked})
        entries = model.entries()
        row = await the_row(model)
    assert [entry.continuation_context_len for entry in entries] == [len(head), 3 + len(head), 5 + len(head)]
    assert [entry.parent_call_id for entry in entries] == [None, *(entry.model_call_id for entry in entries[:2])]
    assert [entry.prefix_supplied for entry in entries] == [False, True, True]
    policy = [token for text in ("ab", "cd", "ef") for token in (*spelled(text), END)]
    assert row.token_ids[row.loss_mask()].tolist() == policy


@pytest.mark.parametrize(
    "begun",
    [
        {"input": [{"role": "user", "content": "ho"}]},
        {"input": []},
        {"input": [{"role": "developer", "content": "Be brief."}, USER]},
        {"input": [USER], "instructions": "Be brief."},
    ],
    ids=["another_text", "no_turn", "developer", "instructions"],
)
async def test_whatever_else_a_client_goes_on_with_continues_no_text(tmp_path: Path, begun: dict[str, Any]) -> None:
    fake = FakeVllm([[*spelled(text), END] for text in ("ab", "cd")])
    async with server(tmp_path, fake.script, scale_out=True) as model:
        first, _ = await model.ask(RESPONSES, {"input": "hi"})
        await model.ask(RESPONSES, {**begun, "input": [*begun["input"], *first["output"], USER]})
        statuses = [entry.parent_resolution for entry in model.entries()]
        build = await trajectories_from_source(ROLLOUT, model.store)
    assert statuses == [ParentResolutionStatus.ROOT, ParentResolutionStatus.UNRESOLVED]
    assert build["mask_sample"]


async def test_the_tool_loop_makes_one_row_of_a_text(tmp_path: Path) -> None:
    fake = FakeVllm([[*spelled(text), END] for text in ANSWERS[:2]])
    async with server(tmp_path, fake.script, scale_out=True) as model:
        urls = ServerUrls({"policy_model": "http://model"}, {})
        context = RunContext(ROLLOUT, model.http, "unused", urls, token_capture=True)
        response = await ResponsesLoop(context, "policy_model", None).run({**body_of(RESPONSES, []), "input": "hi"})
        row = await the_row(model)
    assert [item["type"] for item in response["output"]] == ["function_call", "function_call_output", "message"]
    assert row.token_ids[row.loss_mask()].tolist() == [token for text in ANSWERS[:2] for token in (*spelled(text), END)]
