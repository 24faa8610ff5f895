"""A stock server continues the exact tokens of a parent: render, generate, derender, and the proof."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gym_ray.dialects import CHAT
from gym_ray.dialects.reassembly import reassemble
from gym_ray.dialects.sse import parse_objects
from gym_ray.errors import EngineError
from gym_ray.model_server.engine import EngineRequest, TokenRequest
from gym_ray.testing.fake_upstream import UpstreamRequest, recorded
from gym_ray.testing.fake_vllm import END, FakeVllm, spelled
from gym_ray.testing.script import ScriptedAnswer
from gym_ray.testing.vllm_link import exact_tokens, linked_vllm, parent_of, untrainable
from gym_ray.testing.waiting import until
from gym_ray.token_id_capture.exact_tokens import ParentTokens
from gym_ray.token_id_capture.extras import WeightSpan
from gym_ray.token_id_capture.token_arrays import pack_token_ids

RECORDINGS = Path(__file__).parents[2] / "recordings/vllm_0_32"
CHAT_ROUTE, RENDER, GENERATE, DERENDER = (
    "/v1/chat/completions",
    "/v1/chat/completions/render",
    "/inference/v1/generate",
    "/v1/chat/completions/derender",
)
FIRST: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
SECOND: dict[str, Any] = {
    "messages": [*FIRST["messages"], {"role": "assistant", "content": "ab"}, {"role": "user", "content": "go on"}]
}
Script = Callable[[UpstreamRequest], ScriptedAnswer]


def recording(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDINGS / f"{name}.json").read_text())
    return found


def answered(model: FakeVllm, path: str, answer: ScriptedAnswer, times: int = 10) -> Script:
    """Return a script that answers ``path`` otherwise, from its ``times``-th request on."""
    seen: list[str] = []

    def script(request: UpstreamRequest) -> ScriptedAnswer:
        seen.append(request.path)
        return answer if request.path == path and seen.count(path) >= times else model.script(request)

    return script


def model_of(*answers: str, **options: Any) -> FakeVllm:
    return FakeVllm([[*spelled(text), END] for text in answers], **options)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_continuation_goes_in_as_the_parents_own_tokens(stream: bool) -> None:
    # B39: rendered, "ab" is spelled with other ids than those that were sampled
    async with linked_vllm(model_of("ab", "cd").script, scale_out=True) as link:
        first, _ = await link.answer(FIRST)
        parent = parent_of(exact_tokens(first))
        second, text = await link.answer({**SECOND, "stream": stream}, parent)
    assert link.paths == [CHAT_ROUTE, RENDER, RENDER, RENDER, GENERATE, DERENDER]
    tokens = exact_tokens(second)
    sent = link.sent[4]["token_ids"]
    assert sent[: parent.token_ids.size] == parent.token_ids.tolist()
    assert tokens.prompt_token_ids.tolist() == sent
    whole, turn = link.sent[1], link.sent[2]
    assert (len(whole["messages"]), len(turn["messages"]), turn["add_generation_prompt"]) == (3, 2, False)
    assert sent[parent.token_ids.size] == 3  # the line end behind the end of a turn, once
    assert (tokens.prefix_requested, tokens.prefix_supplied, tokens.token_in) == (True, True, "render")
    assert tokens.generation_token_ids.tolist() == [*spelled("cd"), END]
    assert (tokens.ended_by, tokens.weight_spans) == ("eos", (WeightSpan("w1", 0, 3),))
    answer = reassemble(CHAT, text) if stream else json.loads(text)
    assert answer is not None
    assert answer["choices"][0]["message"]["content"] == "cd"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert str(sent[0]).encode() + b"," not in text
    assert b'logprob"' not in text


async def test_a_third_turn_continues_the_second_and_proves_the_template_once() -> None:
    turns = [*SECOND["messages"], {"role": "assistant", "content": "cd"}, {"role": "user", "content": "more"}]
    async with linked_vllm(model_of("ab", "cd", "ef").script, scale_out=True) as link:
        first, _ = await link.answer(FIRST)
        second, _ = await link.answer(SECOND, parent_of(exact_tokens(first)))
        parent = parent_of(exact_tokens(second))
        third, _ = await link.answer({"messages": turns}, parent)
    assert link.paths[6:] == [RENDER, RENDER, GENERATE, DERENDER]
    tokens = exact_tokens(third)
    assert tokens.prompt_token_ids[: parent.token_ids.size].tolist() == parent.token_ids.tolist()
    assert tokens.prefix_supplied


async def test_a_tool_call_is_continued_although_it_does_not_say_how_it_ended() -> None:
    call = {"id": "k1", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}}
    turns = [
        *FIRST["messages"],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "k1", "content": "sunny"},
    ]
    async with linked_vllm(model_of('CALL {"a":1}', "fine").script, scale_out=True) as link:
        first, _ = await link.answer(FIRST)
        assert exact_tokens(first).ended_by == ""
        second, text = await link.answer({"messages": turns}, parent_of(exact_tokens(first)))
    assert exact_tokens(second).prefix_supplied
    assert json.loads(text)["choices"][0]["message"]["content"] == "fine"


CALL = {"id": "k1", "type": "function", "function": {"name": "look", "arguments": "{}\n"}}
CALLED: dict[str, Any] = {
    "messages": [*FIRST["messages"], {"role": "assistant", "content": None, "tool_calls": [CALL]}]
}
RESULT = {"role": "tool", "tool_call_id": "k1", "content": "sunny"}


async def test_a_tool_call_that_was_cut_at_a_token_of_the_suffix_stays_text() -> None:
    # cut behind its line end, and the server says "tool_calls": the line end of the template is no end of a turn
    line_end = 3
    model = FakeVllm([[*spelled("CALL {}"), line_end], [*spelled("fine"), END], [*spelled("fine"), END]])
    async with linked_vllm(model.script, scale_out=True) as link:
        first, text = await link.answer(FIRST)
        assert json.loads(text)["choices"][0]["finish_reason"] == "tool_calls"
        cut = parent_of(exact_tokens(first))
        assert (cut.ended_by, cut.token_ids[-1]) == ("", line_end)
        for _ in range(2):
            second, _ = await link.answer({"messages": [*CALLED["messages"], RESULT]}, cut)
            assert not exact_tokens(second).prefix_requested
    assert link.paths == [CHAT_ROUTE, *[RENDER, RENDER, RENDER, CHAT_ROUTE] * 2]


@pytest.mark.parametrize("more", [[], [{"role": "user", "content": "go on"}]])
async def test_nothing_between_an_answer_and_an_empty_turn_is_lost(more: list[dict[str, Any]]) -> None:
    # W32: the empty turn is recognised as the answer before it, and the tool's result stands between the two
    turns = [*CALLED["messages"], RESULT, {"role": "assistant", "content": ""}, *more]
    for options in ({"scale_out": True}, {"supply_prefix_token_ids": True}):
        async with linked_vllm(model_of("CALL {}\n", "fine", takes_prefix=True).script, **options) as link:
            first, _ = await link.answer(FIRST)
            second, _ = await link.answer({"messages": turns}, parent_of(exact_tokens(first)))
        assert link.paths == [CHAT_ROUTE, CHAT_ROUTE]
        assert "required_prefix_token_ids" not in link.sent[1]
        tokens = exact_tokens(second)
        assert not tokens.prefix_requested
        assert "sunny" in "".join(chr(token - 10_000) for token in tokens.prompt_token_ids.tolist() if token > 10_000)


async def test_the_recordings_lead_from_rendering_to_an_answer() -> None:
    turn = json.loads(recording("render_no_generation_prompt")["body"])["token_ids"]
    other = json.dumps({"token_ids": [*turn[:29], 70, 71, 6]}).encode()
    seen: list[str] = []

    def script(request: UpstreamRequest) -> ScriptedAnswer:
        seen.append(request.path)
        renders = [recorded(recording("render")), recorded(recording("render_no_generation_prompt"))]
        by_path = {GENERATE: recorded(recording("generate")), DERENDER: recorded(recording("derender"))}
        if request.path != RENDER:
            return by_path[request.path]
        return [*renders, ScriptedAnswer([other])][seen.count(RENDER) - 1]

    parent = ParentTokens("c1", pack_token_ids(turn), "eos", 3)
    async with linked_vllm(script, scale_out=True) as link:
        body = {name: value for name, value in recording("render")["request"].items() if name != "logprobs"}
        answer, text = await link.answer(body, parent)
    tokens = exact_tokens(answer)
    expected = json.loads(recording("generate")["body"])
    assert tokens.prompt_token_ids.tolist() == expected["prompt_token_ids"]
    assert tokens.generation_token_ids.tolist() == expected["choices"][0]["token_ids"]
    assert (tokens.weight_spans, tokens.token_in) == ((WeightSpan("default", 0, 8),), "render")
    assert link.sent[3] == {**recording("generate")["request"], "stream": False}
    assert link.sent[4]["generate_response"] == expected
    assert link.sent[4]["prompt_token_ids"] == expected["prompt_token_ids"]
    plain = json.loads(recording("chat_two_turns")["body"])
    shown = json.loads(text)
    assert shown["choices"] == plain["choices"]
    assert shown["usage"] == plain["usage"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_asks_for_ids_and_log_probs_gets_them(stream: bool) -> None:
    asked = {"return_token_ids": True, "logprobs": True, "top_logprobs": 0, "stream": stream}
    asked["stream_options"] = {"include_usage": True}
    async with linked_vllm(model_of("ab", "cd").script, scale_out=True) as link:
        first, _ = await link.answer(FIRST)
        parent = parent_of(exact_tokens(first))
        second, text = await link.answer({**SECOND, **asked}, parent)
    assert link.paths[4:] == [GENERATE, DERENDER]
    assert "return_token_ids" not in link.sent[1]
    assert "stream" not in link.sent[1]
    tokens = exact_tokens(second)
    answer = reassemble(CHAT, text) if stream else json.loads(text)
    assert answer is not None
    assert answer["choices"][0]["token_ids"] == tokens.generation_token_ids.tolist()
    first_chunk = parse_objects(text)[0] if stream else answer
    assert first_chunk["prompt_token_ids"] == tokens.prompt_token_ids.tolist()
    items = answer["choices"][0]["logprobs"]["content"]
    assert [item["logprob"] for item in items] == tokens.generation_log_probs.tolist()
    assert all(item["top_logprobs"] == [] for item in items)
    assert answer["usage"]["completion_tokens"] == 3


async def test_a_call_without_a_parent_goes_through_the_chat_route() -> None:
    async with linked_vllm(model_of("ab").script, scale_out=True) as link:
        answer, _ = await link.answer(FIRST)
    assert link.paths == [CHAT_ROUTE]
    assert not exact_tokens(answer).prefix_requested


def parent(ids: list[int], ended_by: str = "eos", generated: int = 1) -> ParentTokens:
    return ParentTokens("c1", pack_token_ids(ids), ended_by, generated)


IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}


@pytest.mark.parametrize(
    ("body", "own", "asked"),
    [
        (SECOND, parent([7, END], "length"), []),
        (SECOND, parent([7, END], "stop_sequence"), []),
        (SECOND, parent([7, END], generated=0), []),
        ({**SECOND, "n": 1, "continue_final_message": True}, parent([7, END]), []),
        ({"messages": FIRST["messages"]}, parent([7, END]), []),
        # the last token of the parent is not in the rendered turn, or is one of its words
        (SECOND, parent([7, 8]), [RENDER] * 2),
        (SECOND, parent([7, 10_000 + ord("b")]), [RENDER] * 3),
        (SECOND, parent([7, 10_000 + ord("i")]), [RENDER] * 3),
        ({"messages": [IMAGE, *SECOND["messages"][1:]]}, parent([7, END]), [RENDER]),
        ({**SECOND, "tools": []}, parent([7] * 200 + [END]), [RENDER] * 3),  # no room is left for an answer
    ],
)
async def test_what_cannot_be_proven_stays_text(body: dict[str, Any], own: ParentTokens, asked: list[str]) -> None:
    async with linked_vllm(model_of("cd").script, scale_out=True) as link:
        answer, text = await link.answer(body, own)
    assert link.paths == [*asked, CHAT_ROUTE]
    tokens = exact_tokens(answer)
    assert (tokens.prefix_requested, tokens.prefix_supplied, tokens.token_in) == (False, False, "")
    assert json.loads(text)["choices"][0]["message"]["content"] == "cd"


async def test_a_template_that_changes_history_stays_text() -> None:
    model = model_of("ab", "cd")
    seen: list[int] = []

    def script(request: UpstreamRequest) -> ScriptedAnswer:
        answer = model.script(request)
        seen.append(request.path == RENDER)
        if sum(seen) != 1 or request.path != RENDER:
            return answer
        rendered = json.loads(answer.body)  # the whole conversation drops what the turn alone still has
        return replace(answer, chunks=[json.dumps({**rendered, "token_ids": rendered["token_ids"][1:]}).encode()])

    async with linked_vllm(script, scale_out=True) as link:
        first, _ = await link.answer(FIRST)
        second, _ = await link.answer(SECOND, parent_of(exact_tokens(first)))
    assert link.paths == [CHAT_ROUTE, RENDER, RENDER, RENDER, CHAT_ROUTE]
    assert not exact_tokens(second).prefix_requested


async def test_room_for_the_answer_shrinks_with_a_longer_prompt() -> None:
    own = parent([*range(100, 120), END], generated=2)
    async with linked_vllm(model_of("cd", "ef").script, scale_out=True) as link:
        await link.answer(SECOND, own)
        longer = len(link.sent[3]["token_ids"]) - _rendered_length(link.sent[0])
        assert link.sent[3]["sampling_params"]["max_tokens"] == 64 - longer
        assert link.sent[3]["sampling_params"]["logprobs"] == 0
        await link.answer({**SECOND, "max_tokens": 9}, own)
    assert link.sent[7]["sampling_params"]["max_tokens"] == 9


def _rendered_length(body: dict[str, Any]) -> int:
    model = FakeVllm([])
    request = UpstreamRequest("POST", RENDER, "", {}, json.dumps(body).encode())
    return len(json.loads(model.script(request).body)["token_ids"])


@pytest.mark.parametrize("stream", [False, True])
async def test_another_prompt_than_was_sent_is_served_and_not_used(stream: bool) -> None:
    model = model_of("cd")

    def script(request: UpstreamRequest) -> ScriptedAnswer:
        answer = model.script(request)
        if request.path != GENERATE:
            return answer
        told = json.loads(answer.body)
        told["prompt_token_ids"].append(5)
        told["usage"]["prompt_tokens"] += 1
        return replace(answer, chunks=[json.dumps(told).encode()])

    async with linked_vllm(script, scale_out=True) as link:
        answer, text = await link.answer({**SECOND, "stream": stream}, parent([7, END]))
    outcome = untrainable(answer)
    assert (outcome.reason, outcome.prefix_requested) == ("prefix_not_supplied", True)
    assert b"cd" in text
    model = model_of("cd")
    async with linked_vllm(script, scale_out=True, fail_unproven_prefix=True) as link:
        with pytest.raises(EngineError, match="on_unproven_prefix: fail"):
            await link.answer({**SECOND, "stream": stream}, parent([7, END]))


async def test_a_server_without_the_flag_is_told_which_one() -> None:
    async with linked_vllm(model_of("ab", scale_out=False).script, scale_out=True) as link:
        await link.answer(FIRST)
        with pytest.raises(EngineError, match="--enable-scale-out") as failure:
            await link.answer(SECOND, parent([7, END]))
    assert (failure.value.status, failure.value.body) == (502, b"")
    assert RENDER in failure.value.message
    assert link.paths == [CHAT_ROUTE, RENDER]


ECHO = {"type": "missing", "loc": "body.new", "input": {"model": "served", "token_ids": [7, 2, 3, 10_001, 10_002]}}


@pytest.mark.parametrize("path", [GENERATE, DERENDER])
async def test_a_refusal_that_repeats_its_request_is_told_without_the_ids(path: str) -> None:
    refusal = ScriptedAnswer([json.dumps({"error": {"message": f"1 validation error:\n {ECHO}"}}).encode()], 400)
    async with linked_vllm(answered(model_of("cd"), path, refusal, 1), scale_out=True) as link:
        with pytest.raises(EngineError, match="1 validation error") as failure:
            await link.answer(SECOND, parent([7, END]))
    assert "'token_ids': []" in failure.value.message
    assert b"'token_ids': []" in failure.value.body


REFUSED = ScriptedAnswer([b'{"error":{"message":"no such thing"}}'], 500)


@pytest.mark.parametrize(
    ("path", "times", "answer", "status", "text"),
    [
        (RENDER, 1, REFUSED, 500, "answered 500: no such thing"),
        (RENDER, 2, REFUSED, 500, "answered 500: no such thing"),
        (RENDER, 1, ScriptedAnswer([b'{"detail":"Not Found"}'], 404), 502, "vLLM 0.32 or later"),
        (RENDER, 1, recorded(recording("unknown_model")), 404, "The model `nope` does not exist"),
        (RENDER, 1, ScriptedAnswer([b"[1]"]), 502, "no JSON object"),
        (RENDER, 1, ScriptedAnswer([b'{"token_ids":"1"}']), 502, "no list of token_ids"),
        (RENDER, 1, ScriptedAnswer([b'{"token_ids":[-1]}']), 502, "token ids that are none"),
        (RENDER, 2, ScriptedAnswer([b'{"token_ids":[1.5]}']), 502, "token ids that are none"),
        (GENERATE, 1, REFUSED, 500, "answered 500: no such thing"),
        (GENERATE, 1, ScriptedAnswer([b"oops"], 503), 503, "answered 503: oops"),
        (DERENDER, 1, REFUSED, 500, "answered 500: no such thing"),
        (DERENDER, 1, ScriptedAnswer([b"oops"]), 502, "no JSON object"),
    ],
)
async def test_a_request_that_fails_is_named_and_nothing_stands_in_for_it(
    path: str, times: int, answer: ScriptedAnswer, status: int, text: str
) -> None:
    async with linked_vllm(answered(model_of("cd"), path, answer, times), scale_out=True) as link:
        with pytest.raises(EngineError) as failure:
            await link.answer(SECOND, parent([7, END]))
    assert (failure.value.status, text in failure.value.message, path in failure.value.message) == (status, True, True)
    assert CHAT_ROUTE not in link.paths


async def test_rendering_without_sampling_params_is_named() -> None:
    model = model_of("cd")

    def script(request: UpstreamRequest) -> ScriptedAnswer:
        answer = model.script(request)
        told = {name: value for name, value in json.loads(answer.body).items() if name != "sampling_params"}
        return replace(answer, chunks=[json.dumps(told).encode()])

    async with linked_vllm(script, scale_out=True) as link:
        with pytest.raises(EngineError, match="gave no sampling_params"):
            await link.answer(SECOND, parent([7, END]))


async def test_a_template_that_refuses_the_trial_stays_text(caplog: pytest.LogCaptureFixture) -> None:
    async with linked_vllm(answered(model_of("cd"), RENDER, REFUSED, times=3), scale_out=True) as link:
        answer, _ = await link.answer(SECOND, parent([7, END]))
    assert link.paths == [RENDER, RENDER, RENDER, CHAT_ROUTE]
    assert not exact_tokens(answer).prefix_requested
    assert "cannot be proven" in caplog.text


@pytest.mark.parametrize("path", [RENDER, GENERATE])
async def test_a_prompt_that_is_too_long_is_answered_as_on_the_chat_route(path: str) -> None:
    too_long = recorded(recording("chat_too_long"))
    async with linked_vllm(answered(model_of("cd"), path, too_long, times=1), scale_out=True) as link:
        answer, _ = await link.answer(SECOND, parent([7, END]))
    assert (answer.local_reason, answer.replaced_status) == ("context_length_exceeded", 400)
    assert untrainable(answer).reason == "engine_reports_no_tokens"
    settings = {"scale_out": True, "propagate_context_overflow_errors": True}
    async with linked_vllm(answered(model_of("cd"), path, too_long, times=1), **settings) as link:
        with pytest.raises(EngineError) as failure:
            await link.answer(SECOND, parent([7, END]))
    assert (failure.value.status, failure.value.body) == (400, too_long.body)


async def test_a_client_that_leaves_ends_the_generation() -> None:
    slow = ScriptedAnswer([b"{}"], start_gate=asyncio.Event())
    async with linked_vllm(answered(model_of("cd"), GENERATE, slow, times=1), scale_out=True) as link:
        request = EngineRequest(CHAT, SECOND, b"", tokens=TokenRequest(parent([7, END])))
        task = asyncio.create_task(link.engine.answer(request))
        await until(lambda: GENERATE in link.paths)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: link.fake.aborted == 1)


async def test_what_was_proven_is_kept_within_bounds() -> None:
    async with linked_vllm(model_of(*["cd"] * 3).script, scale_out=True) as link:
        proven = link.engine._token_calls._token_in._proven
        for _ in range(3):
            await link.answer(SECOND, parent([7, END]))
        assert len(proven) == 1
    assert link.paths.count(RENDER) == 7
