"""Calls whose exact tokens a vLLM server has to say: what it is asked, what the client sees, what is known after."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gym_ray.child_interpreter import ChildInterpreter
from gym_ray.dialects import CHAT, RESPONSES
from gym_ray.dialects.reassembly import reassemble
from gym_ray.dialects.sse import parse_objects
from gym_ray.errors import EngineError
from gym_ray.model_server.engine import EngineRequest, TokenRequest
from gym_ray.model_server.heavy_bodies import body_work, parse_heavy
from gym_ray.testing.fake_upstream import UpstreamRequest, recorded
from gym_ray.testing.fake_vllm import END, FakeVllm, spelled
from gym_ray.testing.script import SSE, ScriptedAnswer
from gym_ray.testing.vllm_link import exact_tokens, linked_vllm, parent_of, untrainable
from gym_ray.token_id_capture.exact_tokens import ExactTokens, ParentTokens
from gym_ray.token_id_capture.token_arrays import pack_token_ids

RECORDINGS = Path(__file__).parents[2] / "recordings/vllm_0_32"
USER = {"role": "user", "content": "hi"}


def recording(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDINGS / f"{name}.json").read_text())
    return found


async def test_the_dialect_with_ids_is_chat_where_the_server_speaks_it() -> None:
    async with linked_vllm() as link:
        assert link.engine.token_dialects == {CHAT}
    async with linked_vllm(dialects=["responses"]) as link:
        assert link.engine.token_dialects == frozenset()


async def test_a_recorded_answer_is_asked_for_with_ids_and_shown_without() -> None:
    async with linked_vllm(lambda request: recorded(recording("chat_tokens"))) as link:
        answer, text = await link.answer({"messages": [USER], "max_tokens": 8})
    assert link.sent == [
        {"messages": [USER], "max_tokens": 8, "model": "served", "logprobs": True, "return_token_ids": True}
    ]
    plain = json.loads(recording("chat")["body"])
    assert {**json.loads(text), "id": plain["id"]} == plain
    assert exact_tokens(answer).generation_token_ids.tolist() == [289, 195, 33, 23, 10, 264, 158, 9]
    assert ("content-length", "696") not in answer.headers
    assert all(name != "content-length" for name, _ in answer.headers)


async def test_a_recorded_stream_is_asked_for_with_usage_and_shown_without() -> None:
    async with linked_vllm(lambda request: recorded(recording("chat_stream_usage_tokens"))) as link:
        answer, text = await link.answer({"messages": [USER], "stream": True})
    assert link.sent[0]["stream_options"] == {"include_usage": True}
    plain = recording("chat_stream")["body"].encode().replace(b',"system_fingerprint":"vllm-0.32.0-5cb1dac3"', b"")
    assert text.replace(b"chatcmpl-80d048001120cea6", b"chatcmpl-874388f495bae427") == plain
    assert exact_tokens(answer).generation_token_ids.tolist() == [289, 195, 33, 23, 10, 264, 158, 9]
    assert ("content-type", "text/event-stream; charset=utf-8") in answer.headers


@pytest.mark.parametrize(
    ("own", "sent"),
    [
        (None, {}),
        ({"continuous_usage_stats": True}, {}),
        ({"include_usage": False, "continuous_usage_stats": True, "x": 1}, {"x": 1}),
        ({"include_usage": True, "continuous_usage_stats": True}, {"continuous_usage_stats": True}),
    ],
)
async def test_the_usage_in_every_chunk_is_not_asked_for_on_the_way(own: Any, sent: dict[str, Any]) -> None:
    # without the capture a server gives it only to those who ask for the usage at the end as well
    async with linked_vllm(lambda request: recorded(recording("chat_stream_usage_tokens"))) as link:
        await link.answer({"messages": [USER], "stream": True, "stream_options": own})
    assert link.sent[0]["stream_options"] == {**sent, "include_usage": True}


@pytest.mark.parametrize("name", ["chat_tokens", "chat_stream_usage_tokens"])
async def test_a_client_that_asked_for_everything_gets_every_byte(name: str) -> None:
    body = {
        "messages": [USER],
        "stream": "stream" in name,
        "logprobs": True,
        "top_logprobs": 2,
        "return_token_ids": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": False},
    }
    async with linked_vllm(lambda request: recorded(recording(name))) as link:
        answer, text = await link.answer(body)
    assert text == recording(name)["body"].encode()
    assert exact_tokens(answer)
    assert link.sent == [{**body, "model": "served"}]


async def test_a_request_without_tokens_is_the_same_as_ever() -> None:
    raw = b'{ "model": "served", "messages": [] }'
    async with linked_vllm(lambda request: recorded(recording("chat_tokens"))) as link:
        answer = await link.engine.answer(EngineRequest(CHAT, json.loads(raw), raw))
        text = await answer.read()
        other = await link.engine.answer(
            EngineRequest(RESPONSES, {"input": "a"}, b'{"input":"a"}', tokens=TokenRequest())
        )
        await other.read()
    assert link.fake.requests[0].body == raw
    assert text == recording("chat_tokens")["body"].encode()
    assert answer.tokens is None
    assert other.tokens is None
    assert "logprobs" not in link.sent[1]


async def test_settings_count_as_asked_for() -> None:
    settings = {"extra_body": {"logprobs": True, "top_k": 3}, "chat_template_kwargs": {"a": 1}}
    async with linked_vllm(lambda request: recorded(recording("chat_tokens")), **settings) as link:
        _, text = await link.answer({"messages": [USER]})
    assert (link.sent[0]["top_k"], link.sent[0]["chat_template_kwargs"]) == (3, {"a": 1})
    assert json.loads(text)["choices"][0]["logprobs"]
    assert json.loads(text)["choices"][0]["token_ids"] is None


async def test_chunks_flow_as_they_come() -> None:
    source = recorded(recording("chat_stream_usage_tokens"))
    gates = {index: asyncio.Event() for index in range(1, len(source.chunks) + 1)}
    async with linked_vllm(lambda request: replace(source, gates=gates)) as link:
        request = EngineRequest(CHAT, {"messages": [USER], "stream": True}, b"", tokens=TokenRequest())
        answer = await link.engine.answer(request)
        for index in range(1, 10):
            chunk = await asyncio.wait_for(anext(aiter(answer.body)), 5)
            assert chunk.count(b"data:") == 1
            gates[index].set()
        gates[10].set()
        gates[11].set()
        rest = [chunk async for chunk in answer.body]
        await answer.aclose()
    assert rest == [b"data: [DONE]\n\n"]
    assert exact_tokens(answer)


async def test_a_stream_that_is_given_up_frees_its_connection() -> None:
    source = recorded(recording("chat_stream_usage_tokens"))
    async with linked_vllm(lambda request: replace(source, gates={2: asyncio.Event()}), max_connections=1) as link:
        request = EngineRequest(CHAT, {"messages": [USER], "stream": True}, b"", tokens=TokenRequest())
        answer = await link.engine.answer(request)
        await anext(aiter(answer.body))
        await answer.aclose()
        again = await asyncio.wait_for(link.engine.answer(request), 5)
        await again.aclose()
    assert untrainable(answer).reason == "ids_missing"


async def test_a_stream_of_two_choices_is_served_and_not_used() -> None:
    async with linked_vllm(lambda request: recorded(recording("chat_n2_stream"))) as link:
        answer, text = await link.answer({"messages": [USER], "stream": True, "n": 2})
    assert untrainable(answer).reason == "several_choices"
    assert len(parse_objects(text)) == len(parse_objects(recording("chat_n2_stream")["body"].encode())) - 1


@pytest.mark.parametrize("stream", [False, True])
async def test_an_older_server_that_tells_no_ids_is_served_and_not_used(stream: bool) -> None:
    name = "chat_stream" if stream else "chat"
    async with linked_vllm(lambda request: recorded(recording(name))) as link:
        answer, text = await link.answer({"messages": [USER], "stream": stream})
    assert text == recording(name)["body"].encode()
    assert untrainable(answer).reason == "engine_reports_no_tokens"


@pytest.mark.parametrize(("stream", "propagate"), [(False, False), (True, False), (False, True)])
async def test_a_prompt_that_is_too_long_generated_nothing(stream: bool, propagate: bool) -> None:
    settings = {"propagate_context_overflow_errors": propagate}
    async with linked_vllm(lambda request: recorded(recording("chat_too_long")), **settings) as link:
        answer, text = await link.answer({"messages": [USER], "stream": stream})
    if propagate:
        assert (answer.status, answer.tokens) == (400, None)
        return
    assert answer.local_reason == "context_length_exceeded"
    assert (untrainable(answer).reason, "nothing was generated" in untrainable(answer).detail) == (
        "engine_reports_no_tokens",
        True,
    )
    assert reassemble(CHAT, text) if stream else json.loads(text)


@pytest.mark.parametrize("name", ["unknown_model", "chat_bad_request"])
async def test_a_refusal_is_the_engines_own(name: str) -> None:
    async with linked_vllm(lambda request: recorded(recording(name))) as link:
        answer, text = await link.answer({"messages": [USER]})
    assert (answer.status, text) == (recording(name)["status"], recording(name)["body"].encode())
    assert answer.tokens is None


async def test_an_answer_that_is_no_json_passes_and_is_not_used() -> None:
    async with linked_vllm(lambda request: ScriptedAnswer([b"pardon?"], content_type="text/plain")) as link:
        answer, text = await link.answer({"messages": [USER]})
    assert text == b"pardon?"
    assert untrainable(answer).reason == "malformed_tokens"


@pytest.mark.parametrize("stream", [False, True])
async def test_ids_that_were_asked_for_do_not_leave_in_what_cannot_be_read(stream: bool) -> None:
    broken = b'{"choices":[{"delta":{"content":"a\x01"},"token_ids":[5,6]}],"prompt_token_ids":[1]}'
    text = b"data: " + broken + b"\n\ndata: [DONE]\n\n" if stream else broken
    script = ScriptedAnswer([text], content_type=SSE if stream else "application/json")
    async with linked_vllm(lambda request: script) as link:
        answer, shown = await link.answer({"messages": [USER], "stream": stream})
    assert shown == text.replace(b"[5,6]", b"null").replace(b"[1]", b"null")
    assert untrainable(answer)


async def test_a_heavy_body_is_rewritten_beside_the_loop() -> None:
    body = {"messages": [{"role": "user", "content": ["a"] * 20_000}], "seed": 2**70}
    raw = json.dumps(body).encode()
    child: ChildInterpreter[Any] = ChildInterpreter(body_work)
    try:
        heavy = await parse_heavy(child, raw)
        async with linked_vllm(lambda request: recorded(recording("chat_tokens"))) as link:
            answer = await link.engine.answer(EngineRequest(CHAT, heavy, raw, tokens=TokenRequest()))
            await answer.read()
        assert link.sent == [{**body, "model": "served", "logprobs": True, "return_token_ids": True}]
    finally:
        child.close()


async def test_a_body_that_nests_too_deeply_is_refused() -> None:
    deep: Any = 1
    for _ in range(3000):
        deep = [deep]
    async with linked_vllm() as link:
        with pytest.raises(EngineError, match="token ids could not be asked for"):
            await link.engine.answer(EngineRequest(CHAT, {"messages": deep}, b"", tokens=TokenRequest()))
    assert not link.fake.requests


FIRST = {"messages": [USER]}
SECOND = {"messages": [USER, {"role": "assistant", "content": "ab"}, {"role": "user", "content": "go on"}]}


@pytest.mark.parametrize("stream", [False, True])
async def test_retokenised_history_is_told_as_it_is(stream: bool) -> None:
    # B39: without token-in the second prompt spells the first answer with other ids; nothing claims otherwise
    model = FakeVllm([[*spelled("ab"), END], [*spelled("cd"), END]])
    async with linked_vllm(model.script) as link:
        first, _ = await link.answer(FIRST)
        parent = parent_of(exact_tokens(first))
        second, text = await link.answer({**SECOND, "stream": stream}, parent)
    tokens = exact_tokens(second)
    assert tokens.prompt_token_ids[: parent.token_ids.size].tolist() != parent.token_ids.tolist()
    assert (tokens.prefix_requested, tokens.prefix_supplied, tokens.token_in) == (False, False, "")
    assert link.paths == ["/v1/chat/completions"] * 2
    assert "required_prefix_token_ids" not in link.sent[1]
    assert b"cd" in text or b'"d"' in text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_call_that_a_parser_holds_back_loses_no_id(stream: bool) -> None:
    sampled = [*spelled('CALL {"city":"Paris"}'), END]
    async with linked_vllm(FakeVllm([sampled]).script) as link:
        answer, text = await link.answer({**FIRST, "stream": stream})
    assert exact_tokens(answer).generation_token_ids.tolist() == sampled
    assert exact_tokens(answer).ended_by == ""  # an answer with calls does not say how it ended
    told = reassemble(CHAT, text) if stream else json.loads(text)
    assert told is not None
    assert told["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == '{"city":"Paris"}'
    if stream:
        assert len(parse_objects(text)) == 2


PATCHED: dict[str, Any] = {"supply_prefix_token_ids": True}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_patched_server_gets_the_parents_tokens_and_proves_it(stream: bool) -> None:
    model = FakeVllm([[*spelled("ab"), END], [*spelled("cd"), END]], takes_prefix=True)
    async with linked_vllm(model.script, **PATCHED) as link:
        first, _ = await link.answer(FIRST)
        parent = parent_of(exact_tokens(first))
        second, text = await link.answer({**SECOND, "stream": stream}, parent)
    assert "required_prefix_token_ids" not in link.sent[0]
    assert link.sent[1]["required_prefix_token_ids"] == parent.token_ids.tolist()
    tokens = exact_tokens(second)
    assert tokens.prompt_token_ids[: parent.token_ids.size].tolist() == parent.token_ids.tolist()
    assert (tokens.prefix_requested, tokens.prefix_supplied, tokens.token_in) == (True, True, "required_prefix")
    assert str(parent.token_ids[0]).encode() + b"," not in text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_server_that_ignores_the_prefix_is_served_and_not_used(stream: bool) -> None:
    # W35: a failed proof does not fail the call
    model = FakeVllm([[*spelled("ab"), END], [*spelled("cd"), END]])
    async with linked_vllm(model.script, **PATCHED) as link:
        first, _ = await link.answer(FIRST)
        second, text = await link.answer({**SECOND, "stream": stream}, parent_of(exact_tokens(first)))
    outcome = untrainable(second)
    assert (outcome.reason, outcome.prefix_requested) == ("prefix_not_supplied", True)
    assert "differs from index" in outcome.detail
    assert text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("told", ["other ids", "no ids"])
async def test_a_failed_proof_fails_the_call_where_that_is_wanted(stream: bool, told: str) -> None:
    name = "chat_stream" if stream else "chat"
    model = FakeVllm([[*spelled("ab"), END], [*spelled("cd"), END]])
    script = model.script if told == "other ids" else lambda request: recorded(recording(name))
    parent = ParentTokens("c1", pack_token_ids([7, 8, END]), "eos", 1)
    async with linked_vllm(script, **PATCHED, fail_unproven_prefix=True) as link:
        with pytest.raises(EngineError, match="on_unproven_prefix: fail"):
            await link.answer({**SECOND, "stream": stream}, parent)
        served, _ = await link.answer({**FIRST, "stream": stream})  # without a parent nothing is to be proven
    assert served.tokens is not None
    assert isinstance(served.tokens(), ExactTokens) is (told == "other ids")


@pytest.mark.parametrize("propagate", [False, True])
async def test_a_refusal_that_repeats_the_prefix_is_told_without_it(propagate: bool) -> None:
    def script(request: UpstreamRequest) -> ScriptedAnswer:
        message = f"1 validation error:\n  {{'type': 'value_error', 'input': {json.loads(request.body)}}}"
        return ScriptedAnswer([json.dumps({"error": {"message": message}}).encode()], 400)

    parent = ParentTokens("c1", pack_token_ids([7, 8, 9, END]), "eos", 1)
    options = {**PATCHED, "propagate_context_overflow_errors": propagate}
    async with linked_vllm(script, **options) as link:
        answer, text = await link.answer({**SECOND, "seed": [1, 2]}, parent)
        assert answer.status == 400
        assert b"'required_prefix_token_ids': []" in text
        assert b"'seed': [1, 2]" in text
        assert all(name != "content-length" for name, _ in answer.headers)
        _, text = await link.answer({**FIRST, "logit_bias": [1, 2, 3, 4]})
        assert b"'logit_bias': [1, 2, 3, 4]" in text  # the client's own, and no ids went in


async def test_a_prefix_that_the_client_sends_is_its_own() -> None:
    model = FakeVllm([[*spelled("cd"), END]], takes_prefix=True)
    parent = ParentTokens("c1", pack_token_ids([7, 8, END]), "eos", 1)
    async with linked_vllm(model.script, **PATCHED) as link:
        answer, _ = await link.answer({**SECOND, "required_prefix_token_ids": [5, END]}, parent)
    assert link.sent[0]["required_prefix_token_ids"] == [5, END]
    assert not exact_tokens(answer).prefix_requested
