"""Answers that a model server makes itself, without the engine having generated anything (A171)."""

from __future__ import annotations

import time
from typing import Any, Literal

from gym_ray import exact_json
from gym_ray.dialects import CHAT, RESPONSES
from gym_ray.dialects.conversion import chat_to_responses, responses_to_messages
from gym_ray.dialects.replay import replay_frames
from gym_ray.dialects.synthesis.writer import fresh_id, model_of
from gym_ray.errors import UnsupportedRequestError
from gym_ray.model_server.engine import EngineAnswer, EngineRequest
from gym_ray.model_server.headers import JSON_HEADERS, SSE_HEADERS

__all__ = ["empty_answer"]


def empty_answer(
    request: EngineRequest,
    *,
    served_model: str,
    finish: Literal["length", "content_filter"],
    reason: str,
    replaced_status: int | None,
) -> EngineAnswer:
    """Return a completion without any text, in the client's dialect, streamed where the client asked for it.

    Its usage is unknown, not zero: nobody counted the prompt (A4).

    Args:
        request: What the client sent.
        served_model: Name to answer with when the request has none.
        finish: Why it is empty, in the words of the Chat dialect.
        reason: ``local_response_reason`` of the record (A52).
        replaced_status: Status of the engine's answer that this one stands for; None when it was not asked.

    Raises:
        UnsupportedRequestError: The settings that the answer repeats nest too deeply (400).
    """
    completion = _empty_completion(model_of(request.body, served_model), finish)
    answer = _in_dialect(request, completion)
    facts = {"local_reason": reason, "replaced_status": replaced_status}
    if request.stream:
        frames = b"".join(replay_frames(request.dialect, answer))
        return EngineAnswer.of_bytes(200, list(SSE_HEADERS), frames, **facts)
    try:
        body = exact_json.dumps(answer)
    except ValueError as error:
        raise UnsupportedRequestError(f"request body: {error}; its settings cannot be echoed") from None
    return EngineAnswer.of_bytes(200, list(JSON_HEADERS), body, **facts)


def _in_dialect(request: EngineRequest, completion: dict[str, Any]) -> dict[str, Any]:
    if request.dialect == CHAT:
        return completion
    asked = {**request.body, "model": completion["model"]}
    if request.dialect == RESPONSES:
        return chat_to_responses.answer_to_responses(completion, asked)
    response = chat_to_responses.answer_to_responses(completion, {"model": completion["model"], "input": ""})
    return responses_to_messages.answer_to_messages(response, model=completion["model"])


def _empty_completion(model: str, finish: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": "", "refusal": None}
    return {
        "id": fresh_id("chatcmpl-"),
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}],
        "usage": None,
    }
