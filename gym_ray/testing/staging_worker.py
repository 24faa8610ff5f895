"""An inference worker that stages what it scripts, through the real capture core: for tests only.

Serve it with ``AppServer(FakeUpstream(ScriptedWorker()))``. Its tokens are the characters of the conversation, and its
answers carry everything that a patched server lets slip: ids, log probabilities, routes, spans.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gym_ray.testing.fake_upstream import UpstreamRequest
from gym_ray.testing.script import ScriptedAnswer
from gym_ray.token_id_capture.adapters import VLLMCaptureAdapter
from gym_ray.token_id_capture.staging import CaptureAdmission
from gym_ray.token_id_capture.staging.capture import RolloutTokenCapture
from gym_ray.token_id_capture.staging.memory_sink import MemoryStaging
from gym_ray.token_id_capture.staging.protocols import PrefixSource, StagingSink

__all__ = ["ScriptedWorker"]

Message = Mapping[str, Any]
_HELLO: Message = {"role": "assistant", "content": "hello"}


class ScriptedWorker:
    """Answers Chat requests, and stages those that were admitted.

    Args:
        says: The message of each answer, given the request.
        changes: Changes an answer, staged already, before it is sent.
        sink: Where calls are staged; None takes memory.
        refusal: Answers in place of the model; None lets it answer.
        source: Where prefixes are read; None takes the memory. A sink of one's own needs one.
        media: What is handed over with each call, given the request; None for none.

    Attributes:
        staging: The memory that calls are staged in, if no other sink was given.
        bodies: Requests, oldest first.
        gate: Answers wait for it; None lets them go.
    """

    def __init__(
        self,
        says: Callable[[Mapping[str, Any]], Message] = lambda _: _HELLO,
        *,
        changes: Callable[[dict[str, Any]], Any] | None = None,
        sink: StagingSink | None = None,
        refusal: ScriptedAnswer | None = None,
        source: PrefixSource | None = None,
        media: Callable[[Mapping[str, Any]], Mapping[str, Any] | None] = lambda _: None,
    ) -> None:
        self.staging = MemoryStaging()
        self.bodies: list[dict[str, Any]] = []
        self.gate: asyncio.Event | None = None
        self._says, self._changes, self._refusal, self._media = says, changes, refusal, media
        self._source: PrefixSource = self.staging if source is None else source
        self._capture = RolloutTokenCapture(
            self.staging if sink is None else sink, lambda: 3, VLLMCaptureAdapter(strict=False)
        )

    def __call__(self, request: UpstreamRequest) -> ScriptedAnswer:
        """Answer one request."""
        if request.method == "GET":
            return ScriptedAnswer([b'{"object":"list","data":[{"id":"m","object":"model"}]}'])
        body = json.loads(request.body)
        self.bodies.append(body)
        if self._refusal is not None:
            return replace(self._refusal, start_gate=self.gate)
        answer = self._answer(body)
        if self._changes is not None:
            answer = self._changes(answer) or answer
        return ScriptedAnswer([json.dumps(answer).encode()], start_gate=self.gate)

    def _answer(self, body: Mapping[str, Any]) -> dict[str, Any]:
        given = body.get("ng_capture") or (body.get("offload_params") or {}).get("ng_capture")
        admission = None if given is None else CaptureAdmission.model_validate(given)
        message = dict(self._says(body))
        prefix: list[int] = []
        if admission is not None and admission.staging_chain:
            prefix = self._source.fetch_prefix_token_ids(admission.staging_chain).tolist()
        turns = body["messages"][-1:] if prefix else body["messages"]
        prompt = prefix + [ord(char) for char in json.dumps(turns)]
        generated = [ord(char) for char in json.dumps(message)]
        answer = _completion(len(self.bodies), message, len(prompt), len(generated))
        if admission is None:
            return answer
        answer = _with_tokens(answer, prompt, generated)
        call = self._capture.begin_call(admission, prefix_token_ids=prefix or None)
        coordinates = self._capture.complete_call_from_response(call, answer, attachments=self._media(body))
        return {**answer, "ng_commit_coords": coordinates.model_dump(mode="json")}


def _completion(number: int, message: Message, prompted: int, generated: int) -> dict[str, Any]:
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    usage = {"prompt_tokens": prompted, "completion_tokens": generated, "total_tokens": prompted + generated}
    return {
        "id": f"completion-{number}",
        "object": "chat.completion",
        "created": 5,
        "model": "m",
        "usage": usage,
        "choices": [{"index": 0, "finish_reason": finish, "message": dict(message)}],
    }


def _with_tokens(answer: dict[str, Any], prompt: list[int], generated: list[int]) -> dict[str, Any]:
    """Return an answer with all that a patched server reports of a captured call."""
    log_probs = [-0.5] * len(generated)
    content = [
        {"token": f"token_id:{token}", "logprob": log_prob, "top_logprobs": []}
        for token, log_prob in zip(generated, log_probs, strict=True)
    ]
    (choice,) = answer["choices"]
    message = {
        **choice["message"],
        "prompt_token_ids": prompt,
        "generation_token_ids": generated,
        "generation_log_probs": log_probs,
        "compact_prompt_token_ids": prompt[:1],
    }
    told = {**choice, "message": message, "logprobs": {"content": content}, "token_ids": generated}
    return {**answer, "prompt_token_ids": prompt, "media_spans": [], "prompt_logprobs": [None], "choices": [told]}
