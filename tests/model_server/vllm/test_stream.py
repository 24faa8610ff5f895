"""A captured stream as its client sees it: cut anywhere, never late, byte for byte where nothing is taken out."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gym_ray.errors import EngineError
from gym_ray.model_server.vllm.client_view import ClientView
from gym_ray.model_server.vllm.stream import ClientStream
from gym_ray.token_id_capture.adapters.vllm_stream import ChatTokenStream
from gym_ray.token_id_capture.exact_tokens import ExactTokens

RECORDINGS = Path(__file__).parents[2] / "recordings/vllm_0_32"
EVERYTHING = ClientView(ids=True, log_probs=True, usage=True, experts=True)
NOTHING = ClientView()


def recorded(name: str) -> bytes:
    return str(json.loads((RECORDINGS / f"{name}.json").read_text())["body"]).encode()


ASKED = recorded("chat_stream_usage_tokens")


async def pieces(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def shown(*chunks: bytes, view: ClientView = NOTHING, tokens: ChatTokenStream | None = None) -> bytes:
    stream = ClientStream(pieces(*chunks), tokens or ChatTokenStream(), view)
    return b"".join([chunk async for chunk in stream])


def said(chunk: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


async def test_a_client_that_asked_for_nothing_sees_the_stream_it_would_have_seen() -> None:
    plain = recorded("chat_stream").replace(b',"system_fingerprint":"vllm-0.32.0-5cb1dac3"', b"")
    same_id = (await shown(ASKED)).replace(b"chatcmpl-80d048001120cea6", b"chatcmpl-874388f495bae427")
    assert same_id == plain  # the server puts the fingerprint into the chunk with the usage, where there is one


@pytest.mark.parametrize("view", [NOTHING, ClientView(log_probs=True)])
async def test_it_does_not_matter_where_a_stream_is_cut(view: ClientView) -> None:
    whole_tokens = ChatTokenStream()
    whole = await shown(ASKED, view=view, tokens=whole_tokens)
    expected = whole_tokens.outcome()
    assert isinstance(expected, ExactTokens)
    for at in range(len(ASKED) + 1):
        tokens = ChatTokenStream()
        assert await shown(ASKED[:at], ASKED[at:], view=view, tokens=tokens) == whole, at
        outcome = tokens.outcome()
        assert isinstance(outcome, ExactTokens), at
        assert outcome.generation_token_ids.tolist() == expected.generation_token_ids.tolist(), at
        assert outcome.generation_log_probs.tolist() == expected.generation_log_probs.tolist(), at


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("ends", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
async def test_small_pieces_and_any_line_end_give_the_same_tokens(ends: bytes, size: int) -> None:
    text = ASKED.replace(b"\n", ends)
    tokens = ChatTokenStream()
    out = await shown(*(text[at : at + size] for at in range(0, len(text), size)), tokens=tokens)
    assert b"289" not in out
    assert out.count(b"data:") == ASKED.count(b"data:") - 1
    assert isinstance(tokens.outcome(), ExactTokens)


async def test_a_client_that_asked_for_everything_gets_the_servers_own_bytes() -> None:
    assert await shown(ASKED, view=EVERYTHING) == ASKED


async def test_events_that_need_no_change_keep_their_bytes() -> None:
    text = (
        b"\xef\xbb\xbf: hello\n\n"
        b'event: odd\ndata: {"a" : 1}\n\n'
        b"data: no json\n\n"
        b"data: [1, 2]\n\n"
        b": ping {\r\n\r\n"
        b'data: {"choices" : [ ]}\r\n\r\n'
        b'data: {"choices":[{"delta":{"content":"\xe2\x80\xa8\\u2028"},"token_ids":null}]}\n\n'
        b"data: [DONE] \n\n"
    )
    assert await shown(text) == text
    for at in range(len(text)):
        assert await shown(text[:at], text[at:]) == text, at


async def test_a_changed_event_keeps_its_name_and_its_big_numbers() -> None:
    text = b'event: x\ndata: {"n":18446744073709551617,"choices":[{"token_ids":[1],"delta":{"content":"\\ud800"}}]}\n\n'
    out = await shown(text)
    assert out == text.replace(b"event: x", b"event: x").replace(b"[1]", b"null")


async def test_a_chunk_with_ids_and_no_text_is_counted_and_not_shown() -> None:
    tokens = ChatTokenStream()
    log_probs = {"content": [{"token": "x", "logprob": -1.0}]}
    first = said({"choices": [{"index": 0, "delta": {"role": "assistant"}}], "prompt_token_ids": [1, 2]})
    silent = said(
        {"choices": [{"index": 0, "delta": {}, "token_ids": [7], "logprobs": log_probs, "finish_reason": None}]}
    )
    end = said({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": None}]})
    usage = said({"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 1}})
    out = await shown(first, silent, end, usage, tokens=tokens)
    outcome = tokens.outcome()
    assert isinstance(outcome, ExactTokens)
    assert outcome.generation_token_ids.tolist() == [7]
    assert (
        out
        == first.replace(b"[1, 2]", b"null").replace(b": ", b":").replace(b", ", b",").replace(b"data:", b"data: ")
        + end
    )
    assert silent in await shown(first, silent, view=ClientView(ids=True, log_probs=True))
    assert b'"logprob"' in await shown(silent, view=ClientView(log_probs=True))


async def test_an_event_goes_out_before_the_next_one_is_there() -> None:
    taken: list[int] = []

    async def slow() -> AsyncIterator[bytes]:
        for number in range(3):
            taken.append(number)
            yield said({"choices": [{"delta": {"content": str(number)}, "token_ids": [number]}]})

    stream = ClientStream(slow(), ChatTokenStream(), NOTHING)
    for number in range(3):
        assert f'"{number}"'.encode() in await anext(stream)
        assert taken == list(range(number + 1))
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_the_last_event_needs_no_blank_line() -> None:
    tokens = ChatTokenStream()
    out = await shown(ASKED.removesuffix(b"\n\ndata: [DONE]\n\n"), tokens=tokens)
    assert isinstance(tokens.outcome(), ExactTokens)
    assert b"usage" not in out


async def test_a_stream_that_must_not_go_on_ends_before_its_first_word() -> None:
    asked: list[bool] = []

    def refusal(ended: bool) -> str:
        asked.append(ended)
        return "the prompt is another one"

    stream = ClientStream(pieces(ASKED), ChatTokenStream(), NOTHING, refusal)
    with pytest.raises(EngineError, match="another one"):
        await anext(stream)
    assert asked == [False]


async def test_a_break_in_the_stream_is_the_engines() -> None:
    async def breaks() -> AsyncIterator[bytes]:
        yield ASKED[:500]
        raise EngineError("gone")

    with pytest.raises(EngineError, match="gone"):
        _ = [chunk async for chunk in ClientStream(breaks(), ChatTokenStream(), NOTHING)]


async def test_a_chunk_that_cannot_be_written_again_is_an_error_and_no_leak() -> None:
    deep = b'{"a":' * 900 + b"1" + b"}" * 900
    text = b'data: {"choices":[{"token_ids":[1]}],"x":' + deep + b"}\n\n"
    assert await shown(text.replace(b"[1]", b"null")) == text.replace(b"[1]", b"null")
    with pytest.raises(EngineError, match="nested too deeply"):
        await shown(text)
