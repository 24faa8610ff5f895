"""One answer of an engine, asked for in any dialect, streamed or not: the records say the same of it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gym_ray.dialects import CHAT, DIALECT_BY_PATH, MESSAGES, RESPONSES
from gym_ray.dialects.reassembly import reassemble
from gym_ray.model_call_capture import CaptureStore, ModelCallRecord, read_model_call_records
from gym_ray.model_server.app import AppOptions
from gym_ray.model_server.bridged import BridgeOptions
from gym_ray.model_server.engine import EngineRequest
from gym_ray.testing.captured_model import captured_model
from gym_ray.testing.fake_engine import FakeEngine
from gym_ray.testing.script import SSE, ScriptedAnswer

DIALECTS = (RESPONSES, CHAT, MESSAGES)
PATH_OF = {dialect: path for path, dialect in DIALECT_BY_PATH.items()}
MODEL, WHY, SAID, ARGUMENTS = "engine-model", "First look it up.", "Let me see \u2028 na\u00efve \U0001f600.", '{"n":1}'
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
TURN = [{"role": "user", "content": "hi"}]
ASKED: dict[str, dict[str, Any]] = {
    RESPONSES: {"input": "hi", "tools": [{"type": "function", "name": "add", "parameters": SCHEMA, "strict": False}]},
    CHAT: {"messages": TURN, "tools": [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}]},
    MESSAGES: {"max_tokens": 9, "messages": TURN, "tools": [{"name": "add", "input_schema": SCHEMA}]},
}


# --- the engine: reasoning, a text and a tool call in each dialect, written by hand, whole and in events -------------


def event(payload: dict[str, Any], *, named: bool = True) -> bytes:
    head = f"event: {payload['type']}\n" if named and "type" in payload else ""
    return f"{head}data: {json.dumps(payload, ensure_ascii=False)}\n\n".encode()


def in_chat(stream: bool, finish: str) -> list[bytes]:
    calls = finish == "tool_calls"
    usage = {"prompt_tokens": 20, "completion_tokens": 7, "total_tokens": 27}
    usage |= {"prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": {"reasoning_tokens": 3}}
    head = {"id": "chatcmpl-1", "created": 1_790_000_000, "model": MODEL}
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": ARGUMENTS}}
    if not stream:
        message = {"role": "assistant", "content": SAID, "reasoning_content": WHY}
        message |= {"tool_calls": [call]} if calls else {}
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return [json.dumps({**head, "object": "chat.completion", "choices": [choice], "usage": usage}).encode()]
    started = {"index": 0, **call, "function": {"name": "add", "arguments": ""}}
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *({"reasoning_content": c} for c in WHY)]
    deltas += [{"content": character} for character in SAID]
    if calls:
        deltas.append({"tool_calls": [started]})
        deltas += [{"tool_calls": [{"index": 0, "function": {"arguments": c}}]} for c in ARGUMENTS]
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks += [{"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}, {"choices": [], "usage": usage}]
    return [*(event({**head, "object": "chat.completion.chunk", **chunk}) for chunk in chunks), b"data: [DONE]\n\n"]


def in_responses(stream: bool, finish: str) -> list[bytes]:
    usage = {"input_tokens": 20, "output_tokens": 7, "total_tokens": 27}
    usage |= {"input_tokens_details": {"cached_tokens": 4}, "output_tokens_details": {"reasoning_tokens": 3}}
    part = {"type": "output_text", "text": SAID, "annotations": []}
    items: list[dict[str, Any]] = [
        {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": WHY}]},
        {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]},
    ]
    if finish == "tool_calls":
        call = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "add", "arguments": ARGUMENTS}
        items.append({**call, "status": "completed"})
    cut = finish == "length"
    status = "incomplete" if cut else "completed"
    head = {"id": "resp_1", "object": "response", "created_at": 1_790_000_000, "model": MODEL, "error": None}
    head["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
    whole = {**head, "status": status, "output": items, "usage": usage}
    if not stream:
        return [json.dumps(whole).encode()]
    events = [{"type": "response.created", "response": {**head, "status": "in_progress", "output": []}}]
    events += [{"type": "response.output_item.done", "output_index": n, "item": item} for n, item in enumerate(items)]
    return [*map(event, events), event({"type": f"response.{status}", "response": whole})]


def in_messages(stream: bool, finish: str) -> list[bytes]:
    calls = finish == "tool_calls"
    counts = {"input_tokens": 16, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 0}
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": MODEL, "stop_sequence": None}
    end = {"tool_calls": "tool_use", "stop": "end_turn", "length": "max_tokens"}[finish]
    blocks: list[dict[str, Any]] = [
        {"type": "thinking", "thinking": WHY, "signature": "c2ln"},
        {"type": "text", "text": SAID},
        *([{"type": "tool_use", "id": "call_1", "name": "add", "input": json.loads(ARGUMENTS)}] if calls else []),
    ]
    if not stream:
        whole = {**head, "content": blocks, "stop_reason": end, "usage": {**counts, "output_tokens": 7}}
        return [json.dumps(whole).encode()]
    begun = {**head, "content": [], "stop_reason": None, "usage": {**counts, "output_tokens": 1}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": begun}]
    shells = [{**blocks[0], "thinking": "", "signature": ""}, {"type": "text", "text": ""}]
    shells += [{**block, "input": {}} for block in blocks[2:]]
    deltas: list[list[dict[str, Any]]] = [
        [*({"type": "thinking_delta", "thinking": c} for c in WHY), {"type": "signature_delta", "signature": "c2ln"}],
        [{"type": "text_delta", "text": c} for c in SAID],
        [{"type": "input_json_delta", "partial_json": c} for c in ARGUMENTS],
    ]
    for index, (shell, block_deltas) in enumerate(zip(shells, deltas, strict=False)):
        events.append({"type": "content_block_start", "index": index, "content_block": shell})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in block_deltas]
        events.append({"type": "content_block_stop", "index": index})
    events.append({"type": "message_delta", "delta": {"stop_reason": end}, "usage": {"output_tokens": 7}})
    return [event(payload) for payload in [*events, {"type": "message_stop"}]]


WRITTEN = {CHAT: in_chat, RESPONSES: in_responses, MESSAGES: in_messages}


@dataclass(frozen=True)
class Call:
    """One call: what its client got, and its record."""

    client: str
    spoken: str
    stream: bool
    answer: dict[str, Any]
    record: ModelCallRecord

    def told(self) -> dict[str, Any]:
        """What must not depend on how and by whom the answer was asked for."""
        names = ["model", "tokens_in", "tokens_out", "tokens_total", "cached_tokens", "cache_hit", "reasoning_content"]
        calls = [call.model_dump() for call in self.record.tool_calls]
        return {name: getattr(self.record, name) for name in names} | {"tool_calls": calls}


async def call_all(directory: Path, finish: str) -> list[Call]:
    calls = []
    for spoken in DIALECTS:

        def script(request: EngineRequest) -> ScriptedAnswer:
            chunks = WRITTEN[request.dialect](request.stream, finish)
            return ScriptedAnswer(chunks, content_type=SSE) if request.stream else ScriptedAnswer(chunks)

        engine = FakeEngine(script=script, dialects=(spoken,))
        options = AppOptions(bridge=BridgeOptions(incomplete_event=True))
        async with (
            captured_model(directory / spoken, engine, options=options) as model,
            httpx.AsyncClient(base_url=model.url, trust_env=False, timeout=30) as http,
        ):
            for client in DIALECTS:
                for stream in (False, True):
                    rollout_id = f"{client}-{stream}"
                    body = {**ASKED[client], "model": MODEL, "stream": stream}
                    response = await http.post(f"/ng-rollout/{rollout_id}{PATH_OF[client]}", json=body)
                    assert response.status_code == 200, response.text
                    answer = reassemble(client, response.content) if stream else response.json()
                    assert answer is not None
                    store = CaptureStore(directory / spoken)
                    (record,) = await asyncio.to_thread(read_model_call_records, store, rollout_id)
                    calls.append(Call(client, spoken, stream, answer, record))
    assert len(calls) == 18
    return calls


FINISH = {
    "tool_calls": {RESPONSES: None, CHAT: "tool_calls", MESSAGES: "tool_use"},
    "stop": {RESPONSES: None, CHAT: "stop", MESSAGES: "end_turn"},
    "length": {RESPONSES: "max_output_tokens", CHAT: "length", MESSAGES: "max_tokens"},
}


@pytest.mark.parametrize("finish", FINISH)
async def test_records_agree_whatever_the_dialects_and_whether_it_was_streamed(tmp_path: Path, finish: str) -> None:
    expected_calls = [{"call_id": "call_1", "name": "add", "arguments": {"n": 1}}] if finish == "tool_calls" else []
    expected: dict[str, Any] = {
        "model": MODEL,
        "tokens_in": 20,
        "tokens_out": 7,
        "tokens_total": 27,
        "cached_tokens": 4,
        "cache_hit": True,
        "reasoning_content": WHY,
        "tool_calls": expected_calls,
    }
    for call in await call_all(tmp_path, finish):
        record, which = call.record, f"{call.client} client of a {call.spoken} engine, streamed {call.stream}"
        assert call.told() == expected, which
        assert record.finish_reason == FINISH[finish][call.client], which
        # A stream can say that it is incomplete; a JSON answer says so in its status, with a null category (W10).
        told_by_event = finish == "length" and call.stream and call.client == RESPONSES
        assert record.error_category == ("incomplete" if told_by_event else None), which
        assert record.response_id == call.answer["id"], which
        if call.client == call.spoken:
            assert record.response_id == {CHAT: "chatcmpl-1", RESPONSES: "resp_1", MESSAGES: "msg_1"}[call.client], (
                which
            )
        # The dialect of Messages counts no reasoning tokens, and null is not zero.
        assert record.tokens_reasoning == (None if call.spoken == MESSAGES else 3), which
        if not (call.stream and call.client == call.spoken):
            assert record.latency_ttft_ms is None, which
        assert SAID in json.dumps(record.response, ensure_ascii=False), which
