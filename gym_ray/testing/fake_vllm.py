"""What a vLLM server does with tokens, in small: for tests only.

A template like ChatML, a tokenizer with an id a character, and answers that a test chooses as ids. Some ids spell the
same characters as others, so that a rendered answer is not made of the ids that were sampled, as with real tokenizers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gym_ray.testing.fake_upstream import UpstreamRequest
from gym_ray.testing.script import SSE, ScriptedAnswer

__all__ = ["END", "FakeVllm", "spelled"]

_START: Final = 1
END: Final = 2
"""The end-of-turn token."""
_LINE_END: Final = 3
_FIRST_CHARACTER: Final = 10_000
_SAMPLED_OFFSET: Final = 100
_CALL: Final = "CALL "


def spelled(text: str) -> list[int]:
    """Return the ids that the model samples for a text of ASCII; rendering the same text gives other ids."""
    return [_SAMPLED_OFFSET + ord(character) for character in text]


class FakeVllm:
    """Answers the chat route and the token routes; use :meth:`script` with a ``FakeUpstream``.

    Args:
        answers: What the model samples, call by call; each ends with :data:`END` unless it was cut. A text that begins
            with ``CALL `` becomes a tool call with the rest as its arguments.
        scale_out: The token routes are open; else they answer 403.
        takes_prefix: A patched server: ``required_prefix_token_ids`` stands in for as much of the prompt.
        weight_version: What it says about its weights.
    """

    def __init__(
        self,
        answers: Sequence[Sequence[int]],
        *,
        scale_out: bool = True,
        takes_prefix: bool = False,
        weight_version: str = "w1",
    ) -> None:
        self._answers = iter(answers)
        self._scale_out, self._takes_prefix, self._weight_version = scale_out, takes_prefix, weight_version

    def script(self, request: UpstreamRequest) -> ScriptedAnswer:
        """Answer one request."""
        body = json.loads(request.body) if request.body else {}
        if request.path == "/v1/chat/completions":
            return self._chat(body)
        if not self._scale_out:
            return _json({"error": {"message": "the token routes need --enable-scale-out"}}, 403)
        match request.path:
            case "/v1/chat/completions/render":
                return self._render(body)
            case "/inference/v1/generate":
                return self._generate(body)
            case "/v1/chat/completions/derender":
                return self._derender(body)
        return _json({"detail": "Not Found"}, 404)

    def _chat(self, body: Mapping[str, Any]) -> ScriptedAnswer:
        prompt, sampled = self._prompt(body), list(next(self._answers))
        if body.get("stream"):
            return ScriptedAnswer(list(_chunks(body, prompt, sampled)), content_type=SSE)
        answer = _chat_answer(sampled, len(prompt))
        choice = answer["choices"][0]
        choice["logprobs"] = {"content": _chat_log_probs(sampled)} if body.get("logprobs") else None
        if body.get("return_token_ids"):
            answer["prompt_token_ids"], choice["token_ids"] = prompt, sampled
        return _json(answer)

    def _prompt(self, body: Mapping[str, Any]) -> list[int]:
        rendered, prefix = _rendered(body), body.get("required_prefix_token_ids")
        if not prefix or not self._takes_prefix:
            return rendered
        last = max(i for i, message in enumerate(body["messages"]) if message["role"] == "assistant")
        turn = _rendered({**body, "messages": body["messages"][: last + 1], "add_generation_prompt": False})
        return [*prefix, _LINE_END, *rendered[len(turn) :]]

    def _render(self, body: Mapping[str, Any]) -> ScriptedAnswer:
        sampling: dict[str, Any] = {"temperature": 1.0, "max_tokens": body.get("max_tokens", 64)}
        if body.get("logprobs"):
            sampling["logprobs"] = body.get("top_logprobs", 0)
        return _json(
            {
                "request_id": "chatcmpl-1",
                "token_ids": _rendered(body),
                "features": {"image": ["h"]} if _has_image(body) else None,
                "sampling_params": sampling,
                "model": body["model"],
                "return_token_ids": None,
                "stream": False,
            }
        )

    def _generate(self, body: Mapping[str, Any]) -> ScriptedAnswer:
        prompt, sampled = body["token_ids"], list(next(self._answers))
        span = {"version": self._weight_version, "start": 0, "end": len(sampled)}
        choice = {
            "index": 0,
            "finish_reason": "stop" if sampled[-1:] == [END] else "length",
            "stop_reason": None,
            "token_ids": sampled,
            "routed_experts": None,
            "weight_versions": [span],
            "logprobs": {
                "content": [{"token_id": token, "logprob": _log_prob(at)} for at, token in enumerate(sampled)]
            },
        }
        return _json({"prompt_token_ids": prompt, "choices": [choice], "usage": _usage(len(prompt), len(sampled))})

    def _derender(self, body: Mapping[str, Any]) -> ScriptedAnswer:
        sampled = body["generate_response"]["choices"][0]["token_ids"]
        answer = _chat_answer(sampled, body["prompt_tokens"])
        content = [{**item, "top_logprobs": [dict(item)]} for item in _chat_log_probs(sampled)]
        answer["choices"][0]["logprobs"] = {"content": content}
        return _json(answer)


def _rendered(body: Mapping[str, Any]) -> list[int]:
    ids = _written(json.dumps(body["tools"])) if body.get("tools") else []
    for message in body["messages"]:
        ids += [_START, *_written(message["role"]), _LINE_END, *_written(_words(message)), END, _LINE_END]
    return ids if body.get("add_generation_prompt") is False else [*ids, _START, *_written("assistant"), _LINE_END]


def _words(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content or ())
    calls = message.get("tool_calls") or ()
    return text + "".join(f"{_CALL}{call['function']['arguments']}" for call in calls)


def _has_image(body: Mapping[str, Any]) -> bool:
    contents = [message.get("content") for message in body["messages"]]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return any(part.get("type") != "text" for part in parts)


def _written(text: str) -> list[int]:
    return [_FIRST_CHARACTER + ord(character) for character in text]


def _read(sampled: Sequence[int]) -> str:
    return "".join(_character(token) for token in sampled if token != END)


def _character(token: int) -> str:
    if token == _LINE_END:
        return "\n"
    return chr(token - (_FIRST_CHARACTER if token >= _FIRST_CHARACTER else _SAMPLED_OFFSET))


def _log_prob(at: int) -> float:
    return -0.5 - at / 8


def _chat_log_probs(sampled: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {
            "token": "" if token == END else _character(token),
            "logprob": _log_prob(at),
            "bytes": None,
            "top_logprobs": [],
        }
        for at, token in enumerate(sampled)
    ]


def _usage(prompt: int, sampled: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def _chat_answer(sampled: Sequence[int], prompt: int) -> dict[str, Any]:
    text = _read(sampled)
    message: dict[str, Any] = {"role": "assistant", "content": text}
    finish = "stop" if list(sampled[-1:]) == [END] else "length"
    if text.startswith(_CALL):
        function = {"name": "look", "arguments": text.removeprefix(_CALL)}
        message |= {"content": None, "tool_calls": [{"id": "k1", "type": "function", "function": function}]}
        finish = "tool_calls"
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": "served",
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": None,
                "finish_reason": finish,
                "stop_reason": None,
                "token_ids": None,
            }
        ],
        "usage": _usage(prompt, len(sampled)),
        "prompt_token_ids": None,
    }


def _chunks(body: Mapping[str, Any], prompt: list[int], sampled: list[int]) -> Iterator[bytes]:
    asked = body.get("return_token_ids")
    whole = _chat_answer(sampled, len(prompt))
    yield _chunk({"delta": {"role": "assistant", "content": ""}}, prompt_token_ids=prompt if asked else None)
    calls = whole["choices"][0]["message"].get("tool_calls")
    for at, token in enumerate(sampled):
        last = at == len(sampled) - 1
        told: dict[str, Any] = {"finish_reason": whole["choices"][0]["finish_reason"] if last else None}
        told["logprobs"] = {"content": _chat_log_probs(sampled)[at : at + 1]} if body.get("logprobs") else None
        told["token_ids"] = [token] if asked else None
        text = _read([token])
        if not calls:
            yield _chunk({"delta": {"content": text}, **told})
        elif last:  # a parser holds a call's text back until the call is whole, and only its ids come
            yield _chunk({"delta": {"tool_calls": [{**calls[0], "index": 0}]}, **told})
        elif asked:
            yield _chunk({"delta": {}, **told})
    if (body.get("stream_options") or {}).get("include_usage"):
        yield b"data: " + json.dumps({**_HEAD, "choices": [], "usage": whole["usage"]}).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


_HEAD: Final = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": "served"}


def _chunk(choice: Mapping[str, Any], **members: Any) -> bytes:
    told = {**_HEAD, "choices": [{"index": 0, **choice}], **members}
    return b"data: " + json.dumps(told, separators=(",", ":")).encode() + b"\n\n"


def _json(value: Mapping[str, Any], status: int = 200) -> ScriptedAnswer:
    return ScriptedAnswer([json.dumps(value, separators=(",", ":")).encode()], status)
