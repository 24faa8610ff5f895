"""Tokens in, tokens out on a stock vLLM server that was started with ``--enable-scale-out``.

A call that continues a proven parent is rendered, generated and derendered by three requests, so that the very tokens
of the parent go in. Where the rendering does not prove where the parent's turn ends, the call stays one of text. If one
of the requests fails, the call fails with an error that names it; nothing is tried in its place.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gym_ray import exact_json
from gym_ray.errors import EngineError, UnsupportedRequestError
from gym_ray.model_server.off_loop import off_loop
from gym_ray.model_server.upstream import UpstreamEngine
from gym_ray.model_server.vllm.continuation import (
    TurnSuffix,
    common_end,
    continued,
    last_turn,
    may_continue,
    turn_only,
    with_placeholder_answer,
)
from gym_ray.model_server.vllm.refusals import without_ids
from gym_ray.token_id_capture.exact_tokens import ParentTokens
from gym_ray.token_id_capture.token_arrays import TokenArray, pack_token_ids

__all__ = ["Continuation", "Generated", "TokenIn"]

_log = logging.getLogger(__name__)
_RENDER: Final = "/v1/chat/completions/render"
_GENERATE: Final = "/inference/v1/generate"
_DERENDER: Final = "/v1/chat/completions/derender"
_NOT_RENDERED: Final = ("stream", "stream_options", "return_token_ids")
_BOUNDS: Final = ("max_tokens", "max_completion_tokens")
_BYTES_PER_TOKEN: Final = 4
"""About what a token takes in a request, as text or as a number."""
_KEPT_SUFFIXES: Final = 256


@dataclass(frozen=True, slots=True, eq=False)
class Continuation:
    """A call that continues its parent's exact tokens.

    Attributes:
        prompt: What goes in.
        request: What is asked of ``/inference/v1/generate``.
        rendered: The Chat request that was rendered.
    """

    prompt: TokenArray
    request: Mapping[str, Any]
    rendered: Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Generated:
    """What came of a continuation.

    Attributes:
        answer: The answer in tokens.
        chat: The same as a Chat answer.
    """

    answer: dict[str, Any]
    chat: dict[str, Any]


class TokenIn:
    """Continues parents' exact tokens on one server.

    Args:
        upstream: The server.
        served_model: The name that the server knows its model by.
    """

    def __init__(self, upstream: UpstreamEngine, served_model: str) -> None:
        self._upstream = upstream
        self._served_model = served_model
        self._proven: OrderedDict[TurnSuffix, None] = OrderedDict()

    async def continuation(self, body: Mapping[str, Any], parent: ParentTokens) -> Continuation | None:
        """Return how a request continues its parent, None where that cannot be proven or the request is not plain.

        Raises:
            EngineError: The server does not render; the request is named.
        """
        at = last_turn(body)
        if at is None or not may_continue(body, parent):
            return None
        chat = {name: value for name, value in body.items() if name not in _NOT_RENDERED}
        chat |= {"model": self._served_model, "logprobs": True}
        size = _BYTES_PER_TOKEN * parent.token_ids.size
        rendered = await self._post(_RENDER, chat, size)
        if rendered.get("features"):
            return None  # images and sounds: their placeholders belong to this rendering
        whole, turn = _ids(rendered), _ids(await self._post(_RENDER, turn_only(chat, at), size))
        end = int(parent.token_ids[-1])
        suffix = TurnSuffix.of(turn, end)
        if suffix is None:
            return None
        unsure = None if parent.ended_by else turn
        if not await self._is_the_templates(suffix, unsure, with_placeholder_answer(chat, at), size):
            return None
        prompt = continued(parent, whole, turn, suffix)
        request = None if prompt is None else _generation(rendered, chat, prompt, whole)
        return None if prompt is None or request is None else Continuation(prompt, request, chat)

    async def run(self, continuation: Continuation) -> Generated:
        """Generate, and return the answer both ways.

        Raises:
            EngineError: The server refused or answered with something else; the request is named.
        """
        size = _BYTES_PER_TOKEN * continuation.prompt.size
        answer = await self._post(_GENERATE, continuation.request, size)
        prompt = continuation.request["token_ids"]
        derender = {
            "model": self._served_model,
            "generate_response": answer,
            "prompt_tokens": len(prompt),
            "prompt_token_ids": prompt,
            "chat_request": continuation.rendered,
        }
        return Generated(answer, await self._post(_DERENDER, derender, size))

    async def _is_the_templates(
        self, suffix: TurnSuffix, unsure_turn: TokenArray | None, placeholder: Mapping[str, Any], size: int
    ) -> bool:
        """Whether this comes behind a turn because of the template, not of the parent; asked once for each suffix.

        Args:
            suffix: What stands behind the last token of the parent.
            unsure_turn: The parent's turn, rendered, if the engine did not say that its last token ends the turn. A
                call that was cut may end in a token of the suffix, such as a line end; so its last token must be the
                first one that the template puts there.
            placeholder: The request with a placeholder as the text of the turn.
            size: About how large it is, in bytes.
        """
        if suffix in self._proven:
            self._proven.move_to_end(suffix)
            return True
        try:
            other = _ids(await self._post(_RENDER, placeholder, size))
        except EngineError as error:
            # The client did not send this request, so it is not the client's failure; the call stays one of text.
            _log.warning("a call is not continued from tokens, because the end of its turn cannot be proven: %s", error)
            return False
        if TurnSuffix.of(other, suffix.end) != suffix:
            return False
        if unsure_turn is not None and common_end(unsure_turn, other) != suffix.size + 1:
            return False
        self._proven[suffix] = None
        if len(self._proven) > _KEPT_SUFFIXES:
            self._proven.popitem(last=False)
        return True

    async def _post(self, path: str, body: Mapping[str, Any], size_bytes: int) -> dict[str, Any]:
        raw = await off_loop(size_bytes, lambda: _encoded(body))
        reply = await self._upstream.post_at_root(path, raw)
        answer = await reply.read()
        if reply.status >= 400:
            raise _refusal(path, reply.status, without_ids(answer))
        parsed = await off_loop(len(answer), lambda: exact_json.loads_object(answer))
        if parsed is None:
            raise EngineError(f"the server's {path} answered {reply.status} with something that is no JSON object")
        return parsed


def _generation(
    rendered: Mapping[str, Any], chat: Mapping[str, Any], prompt: TokenArray, whole: TokenArray
) -> dict[str, Any] | None:
    """Return the request for the generation, None when the prompt leaves no room for an answer."""
    sampling = rendered.get("sampling_params")
    if not isinstance(sampling, Mapping):
        raise EngineError(f"the server's {_RENDER} gave no sampling_params")
    sampling = {**sampling, "logprobs": sampling.get("logprobs") or 0}
    room = sampling.get("max_tokens")
    if type(room) is int and all(chat.get(name) is None for name in _BOUNDS):
        # The server filled the context up behind its own rendering, which need not be as long as the parent's tokens.
        room += whole.size - prompt.size
        if room < 1:
            return None
        sampling["max_tokens"] = room
    kept = {name: value for name, value in rendered.items() if value is not None}
    return kept | {
        "token_ids": prompt.tolist(),
        "sampling_params": sampling,
        "stream": False,
        "return_token_ids": True,
    }


def _ids(rendered: Mapping[str, Any]) -> TokenArray:
    ids = rendered.get("token_ids")
    try:
        if isinstance(ids, list):
            return pack_token_ids(ids)
    except ValueError as error:
        raise EngineError(f"the server's {_RENDER} gave token ids that are none: {error}") from None
    raise EngineError(f"the server's {_RENDER} gave no list of token_ids")


def _refusal(path: str, status: int, raw: bytes) -> EngineError:
    remedy = "start vLLM with --enable-scale-out, or set scale_out to false"
    if status == 403:
        return EngineError(f"the server refuses {path} (403): {remedy}")
    parsed = exact_json.loads_object(raw) or {}
    error = parsed.get("error")
    if status == 404 and not isinstance(error, Mapping):
        return EngineError(f"the server has no {path} (404): it takes vLLM 0.32 or later; {remedy}")
    said = error.get("message") if isinstance(error, Mapping) else raw.decode("utf-8", "replace")
    return EngineError(f"the server's {path} answered {status}: {str(said)[:1000]}", status, raw)


def _encoded(body: Mapping[str, Any]) -> bytes:
    try:
        return exact_json.dumps(body)
    except ValueError as error:
        raise UnsupportedRequestError(f"request body: {error}; it cannot be sent to be rendered") from None
