"""Where a parent's own tokens are continued, and where they must not be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from gym_ray.dialects import CHAT, MESSAGES, RESPONSES
from gym_ray.dialects.neutral import PromptRequest, ToolCall, Turn
from gym_ray.model_server.engine import EngineAnswer, EngineRequest, TokenRequest
from gym_ray.model_server.llama_cpp.engine import LlamaCppEngine
from gym_ray.model_server.llama_cpp.template import render
from gym_ray.model_server.llama_cpp.token_in import continue_parent
from gym_ray.testing.fake_llama_cpp import LAST, MARKERS, FakeLlamaCpp, ids_of, running_engine, sse
from gym_ray.token_id_capture.exact_tokens import ExactTokens, ParentTokens, Untrainable
from gym_ray.token_id_capture.token_arrays import pack_token_ids

BOS, START, END, EOS = (MARKERS[name] for name in ("<bos>", "<start_of_turn>", "<end_of_turn>", "<eos>"))
HI, HELLO = 700_000_001, 901  # no random id of an answer has all these digits
TEXTS = {HI: "Hi", HELLO: "Hello <start_of_turn>"}
NAMES = {token: name for name, token in MARKERS.items()}


def ids(*turns: Turn) -> list[int]:
    found = [BOS]
    for marker, text in render(PromptRequest(turns)):
        found += [MARKERS[text]] if marker else ids_of(text)
    return found


def says(*texts: str) -> tuple[Turn, ...]:
    return tuple(Turn("user" if at % 2 == 0 else "assistant", text) for at, text in enumerate(texts))


class Texts:
    """Turns tokens into text, and remembers how often."""

    def __init__(self) -> None:
        self.asked = 0

    async def __call__(self, tokens: Sequence[int]) -> str:
        self.asked += 1
        return "".join(TEXTS.get(token) or NAMES.get(token) or chr(token - 1000) for token in tokens)


async def continued(parent: Sequence[int], *turns: Turn, texts: Texts | None = None) -> list[int] | None:
    pieces = render(PromptRequest(turns))
    return await continue_parent(parent, pieces, ids(*turns), MARKERS, texts or Texts())


def generated(turns: Sequence[Turn], *tokens: int) -> list[int]:
    return [*ids(*turns), *tokens, END]


async def test_a_turn_that_was_tokenised_as_it_would_be_again() -> None:
    texts = Texts()
    turns = says("q", "Hi", "more")
    assert await continued(generated(turns[:1], *ids_of("Hi\n")), *turns, texts=texts) == ids(*turns)
    assert texts.asked == 0


async def test_a_turn_of_other_tokens_is_continued_as_it_was_generated() -> None:
    parent = generated(says("q"), HI, *ids_of("\n"))
    turns = says("q", "Hi", "more")
    found = await continued(parent, *turns)
    assert found is not None
    assert found[: len(parent)] == parent
    whole = ids(*turns)
    assert found[len(parent) :] == whole[len(generated(says("q"), *ids_of("Hi\n"))) :]
    assert found != whole


async def test_turns_before_the_parents_keep_their_own_tokens_and_cost_one_question() -> None:
    first = generated(says("q"), HI, *ids_of("\n"))
    second = await continued(first, *says("q", "Hi", "more"))
    assert second is not None
    parent = [*second, *ids_of("No.\n"), END]
    texts = Texts()
    third = await continued(parent, *says("q", "Hi", "more", "No.", "why"), texts=texts)
    assert third is not None
    assert third[: len(parent)] == parent
    assert texts.asked == 1


async def test_a_tool_call_and_its_result() -> None:
    call = ToolCall("c", "look", '{"a": 1}')
    turns = (Turn("user", "q"), Turn("assistant", "", (call,)), Turn("tool", "found"))
    text = '<tool_call>{"name": "look", "arguments": {"a": 1}}</tool_call>\n'
    parent = generated(turns[:1], *ids_of(text))
    found = await continued(parent, *turns)
    assert found == ids(*turns)
    spaced = (turns[0], Turn("assistant", "", (ToolCall("c", "look", '{"a":1}'),)), turns[2])
    assert await continued(parent, *spaced) is None


@pytest.mark.parametrize(
    ("parent", "turns"),
    [
        (generated(says("q"), HI, *ids_of("\n")), says("q", "Hi!", "more")),
        (generated(says("q"), HI), says("q", "Hi", "more")),
        (generated(says("p"), HI, *ids_of("\n")), says("q", "Hi", "more")),
        (generated(says("q"), HI, *ids_of("\n")), says("q")),
        (generated(says("q"), HI, *ids_of("\n")), says("q", "Hi", "more", "Yes", "why")),
        (generated(says("q"), HI, *ids_of("\n"))[:-1], says("q", "Hi", "more")),
        ([*generated(says("q"), HI, *ids_of("\n"))[:-1], EOS], says("q", "Hi", "more")),
        (generated(says("q"), HI, EOS, *ids_of("\n")), says("q", "Hi<eos>", "more")),
        (generated(says("q"), HI, END, *ids_of("\n")), says("q", "Hi<end_of_turn>", "more")),
        (generated(says("q"), HELLO, *ids_of("\n")), says("q", "Hello <start_of_turn>", "more")),
        ([], says("q", "Hi", "more")),
        ([END], says("q", "Hi", "more")),
    ],
    ids=[
        "another answer",
        "another line end",
        "another question",
        "no turn of the model",
        "not the last turn",
        "cut off",
        "another end",
        "a control token where a text has its name",
        "a turn's end where a text has its name",
        "a text that names the separator",
        "nothing",
        "a marker alone",
    ],
)
async def test_what_does_not_read_back_exactly_is_not_continued(parent: Sequence[int], turns: tuple[Turn, ...]) -> None:
    assert await continued(parent, *turns) is None


async def test_a_text_that_names_the_separator_is_no_hindrance_where_its_tokens_are_the_same() -> None:
    turns = says("what is <start_of_turn>?", "Hi", "more")
    parent = generated(turns[:1], HI, *ids_of("\n"))
    found = await continued(parent, *turns)
    assert found is not None
    assert found[: len(parent)] == parent


BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "q"}]},
    MESSAGES: {"messages": [{"role": "user", "content": "q"}], "max_tokens": 9},
    RESPONSES: {"input": [{"role": "user", "content": "q"}]},
}
PARENT = ParentTokens("c0", pack_token_ids(generated(says("q"), HI, *ids_of("\n"))), "eos", 3)


def later(dialect: str, **members: Any) -> EngineRequest:
    more = [{"role": "assistant", "content": "Hi"}, {"role": "user", "content": "more"}]
    body = {name: [*value, *more] if isinstance(value, list) else value for name, value in BODIES[dialect].items()}
    return EngineRequest(dialect, {**body, **members}, b"", tokens=TokenRequest(PARENT))


def last(prompt_tokens: int) -> dict[str, Any]:
    told = [{"id": token, "logprob": -0.5} for token in (HI, 1010, END)]
    tokens = {"tokens": [HI, 1010, END], "completion_probabilities": told, "tokens_predicted": 3}
    return {**LAST, **tokens, "content": "Hi\n", "tokens_evaluated": prompt_tokens}


async def exchange(engine: LlamaCppEngine, request: EngineRequest) -> tuple[EngineAnswer, bytes]:
    answer = await engine.answer(request)
    return answer, await answer.read()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", sorted(BODIES))
async def test_the_engine_sends_the_parents_tokens_and_says_so(dialect: str, stream: bool) -> None:
    llama = FakeLlamaCpp()
    llama.texts = TEXTS
    expected = await continued(PARENT.token_ids.tolist(), *says("q", "Hi", "more"))
    assert expected is not None
    async with running_engine(llama) as engine:
        assert engine.token_dialects == engine.dialects
        said = last(len(expected))
        llama.answer = sse(said) if stream else JSONResponse(said)
        answer, body = await exchange(engine, later(dialect, stream=stream))
    assert llama.requests[0]["prompt"] == expected
    assert answer.tokens is not None
    exact = answer.tokens()
    assert isinstance(exact, ExactTokens)
    assert exact.prompt_token_ids.tolist() == expected
    assert exact.generation_token_ids.tolist() == [HI, 1010, END]
    assert (exact.prefix_requested, exact.prefix_supplied, exact.token_in) == (True, True, "completion")
    assert (exact.ended_by, exact.constrained) == ("eos", True)
    assert b"token_ids" not in body
    assert str(HI).encode() not in body


async def test_an_engine_that_evaluated_another_prompt_has_not_taken_the_prefix() -> None:
    llama = FakeLlamaCpp()
    llama.texts, llama.answer = TEXTS, JSONResponse(last(7))
    async with running_engine(llama) as engine:
        answer, _ = await exchange(engine, later(CHAT))
    assert answer.tokens is not None
    outcome = answer.tokens()
    assert isinstance(outcome, Untrainable)
    assert (outcome.reason, outcome.prefix_requested) == ("prefix_not_supplied", True)


@pytest.mark.parametrize("refusal", [JSONResponse({"error": {"message": "no such token"}}, 500), JSONResponse({})])
async def test_tokens_that_have_no_text_here_are_not_sent(caplog: pytest.LogCaptureFixture, refusal: Response) -> None:
    llama = FakeLlamaCpp()
    llama.texts, llama.detokenize_answer = TEXTS, refusal
    rendered = ids(*says("q", "Hi", "more"))
    llama.answer = JSONResponse(last(len(rendered)))
    async with running_engine(llama) as engine:
        answer, _ = await exchange(engine, later(CHAT))
    assert llama.requests[0]["prompt"] == rendered
    assert answer.tokens is not None
    exact = answer.tokens()
    assert isinstance(exact, ExactTokens)
    assert (exact.prefix_requested, exact.token_in) == (False, "")
    assert "call c0 cannot be continued by its tokens" in caplog.text


async def test_a_call_that_is_not_captured_renders_its_prompt() -> None:
    llama = FakeLlamaCpp()
    llama.texts = TEXTS
    async with running_engine(llama) as engine:
        plain = later(CHAT)
        await exchange(engine, EngineRequest(CHAT, plain.body, b""))
        await exchange(engine, EngineRequest(CHAT, plain.body, b"", tokens=TokenRequest()))
    assert [request["prompt"] for request in llama.requests] == [ids(*says("q", "Hi", "more"))] * 2
    assert llama.detokenized == []
