"""What a vLLM server needs beyond forwarding: defaults for requests, and two answers made in its place (A171).

A request for exact tokens is sent by :class:`VllmTokenCalls`; every other one is forwarded without a change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gym_ray import exact_json
from gym_ray.dialects import CHAT, MESSAGES, RESPONSES
from gym_ray.dialects.conversion.schema import REQUIRED_PREFIX
from gym_ray.errors import EngineError, UnsupportedRequestError
from gym_ray.model_call_capture.exchanges.verdict import CONTEXT_LENGTH_EXCEEDED
from gym_ray.model_server.engine import EngineAnswer, EngineRequest
from gym_ray.model_server.local_answers import empty_answer
from gym_ray.model_server.upstream import UpstreamEngine
from gym_ray.model_server.vllm.tokens import TokenBehaviour, VllmTokenCalls
from gym_ray.token_id_capture.exact_tokens import Untrainable
from gym_ray.token_id_capture.reasons import ENGINE_REPORTS_NO_TOKENS

__all__ = ["TokenBehaviour", "VllmBehaviour", "VllmEngine"]

_OVERFLOW_MARKS = (b"context length", b"max_tokens")
_EMPTY_ASSISTANT = "empty_assistant"
_TOKENIZED = ("messages", "tools", "chat_template_kwargs", REQUIRED_PREFIX)
"""Members of a Chat request that decide its prompt."""


@dataclass(frozen=True, slots=True)
class VllmBehaviour:
    """How a vLLM server is asked, and which of its answers are replaced.

    Attributes:
        chat_template_kwargs: Defaults for the request's own.
        extra_body: Members that every request gets unless it has them itself.
        replace_developer_role_with_system: For chat templates that know no developer role.
        propagate_context_overflow_errors: Pass on the 400 for a prompt that is too long.
        sequential_reasoning_allowed: Ask for an answer to a request that ends in an empty assistant turn.
    """

    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    replace_developer_role_with_system: bool = False
    propagate_context_overflow_errors: bool = False
    sequential_reasoning_allowed: bool = True


class VllmEngine:
    """Implements ``Engine`` over a vLLM server.

    Args:
        upstream: The server.
        served_model: Name of local answers whose request names none.
        behaviour: See there.
        tokens: How tokens go in and come out.
    """

    def __init__(
        self,
        upstream: UpstreamEngine,
        *,
        served_model: str,
        behaviour: VllmBehaviour,
        tokens: TokenBehaviour | None = None,
    ) -> None:
        self._upstream = upstream
        self._served_model = served_model
        self._behaviour = behaviour
        self._token_calls = VllmTokenCalls(upstream, served_model, tokens or TokenBehaviour())

    @property
    def dialects(self) -> frozenset[str]:
        """Dialects that the server speaks."""
        return self._upstream.dialects

    @property
    def token_dialects(self) -> frozenset[str]:
        """Chat, where the server speaks it: no other of its dialects carries token ids."""
        return self._upstream.dialects & {CHAT}

    async def start(self) -> None:
        """Open the connection pools."""
        await self._upstream.start()

    async def ready(self, timeout_s: float, on_wait: Callable[[str], None] | None = None) -> None:
        """Return once the server answers; see :meth:`UpstreamEngine.ready`."""
        await self._upstream.ready(timeout_s, on_wait)

    async def answer(self, request: EngineRequest) -> EngineAnswer:
        """Send one request; a prompt that is too long is answered here with an empty completion (A171).

        Raises:
            EngineError: As :meth:`UpstreamEngine.answer`.
        """
        behaviour = self._behaviour
        if not behaviour.sequential_reasoning_allowed and _ends_in_empty_assistant_turn(request):
            return self._empty(request, "content_filter", _EMPTY_ASSISTANT, None)
        asked = request.tokens is not None and request.dialect in self.token_dialects
        try:
            answer = await (self._token_answer(request) if asked else self._upstream.answer(self._adapted(request)))
        except EngineError as error:
            if error.status == 400 and self._is_replaced(error.body):
                return self._empty(request, "length", CONTEXT_LENGTH_EXCEEDED, error.status)
            raise
        if answer.status != 400 or behaviour.propagate_context_overflow_errors:
            return answer
        body = await answer.read()
        if self._is_replaced(body):
            return self._empty(request, "length", CONTEXT_LENGTH_EXCEEDED, answer.status)
        return EngineAnswer.of_bytes(answer.status, answer.headers, body)

    async def models(self) -> EngineAnswer:
        """Answer ``GET /v1/models`` from the server."""
        return await self._upstream.models()

    async def count_tokens(self, request: EngineRequest) -> EngineAnswer:
        """Answer from the server; see :meth:`UpstreamEngine.count_tokens`."""
        return await self._upstream.count_tokens(self._adapted(request))

    async def tokenize(self, body: Mapping[str, Any]) -> list[int]:
        """Return the prompt ids of a Chat request, from the server's own ``/tokenize``; nothing is generated (A173).

        Raises:
            EngineError: The server refused, or its answer holds no list of token ids; status and body are its own.
        """
        asked = {"model": self._served_model, **{name: body[name] for name in _TOKENIZED if name in body}}
        answer = await self._upstream.post_at_root("/tokenize", _encoded(self._with_settings(CHAT, asked)))
        raw = await answer.read()
        if answer.status >= 400:
            raise EngineError(f"the server's /tokenize answered {answer.status}", answer.status, raw)
        tokens = (exact_json.loads_object(raw) or {}).get("tokens")
        if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
            raise EngineError("the server's /tokenize gave no list of token ids")
        return tokens

    async def aclose(self) -> None:
        """Close the pools; idempotent."""
        await self._upstream.aclose()

    async def _token_answer(self, request: EngineRequest) -> EngineAnswer:
        body = self._with_settings(request.dialect, request.body)
        return await self._token_calls.answer(replace(request, body=body))

    def _is_replaced(self, refusal: bytes) -> bool:
        """Whether a refusal is of a prompt that is too long, and is answered here."""
        return not self._behaviour.propagate_context_overflow_errors and any(
            mark in refusal for mark in _OVERFLOW_MARKS
        )

    def _empty(
        self, request: EngineRequest, finish: Literal["length", "content_filter"], reason: str, status: int | None
    ) -> EngineAnswer:
        answer = empty_answer(
            request, served_model=self._served_model, finish=finish, reason=reason, replaced_status=status
        )
        if request.tokens is not None:
            nothing = Untrainable(ENGINE_REPORTS_NO_TOKENS, f"nothing was generated: {reason}")
            answer.tokens = lambda: nothing
        return answer

    def _adapted(self, request: EngineRequest) -> EngineRequest:
        """Return the request with this server's settings; the very same one, bytes and all, when they say nothing."""
        body = self._with_settings(request.dialect, request.body)
        if body is request.body:
            return request
        return replace(request, body=body, raw=_encoded(body))

    def _with_settings(self, dialect: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        behaviour = self._behaviour
        added = {name: value for name, value in behaviour.extra_body.items() if name not in body}
        if behaviour.chat_template_kwargs:
            own = body.get("chat_template_kwargs")
            added["chat_template_kwargs"] = {
                **behaviour.chat_template_kwargs,
                **(own if isinstance(own, Mapping) else {}),
            }
        if behaviour.replace_developer_role_with_system and dialect != MESSAGES:
            key = "messages" if dialect == CHAT else "input"
            turns = body.get(key)
            if isinstance(turns, list) and any(_role(turn) == "developer" for turn in turns):
                added[key] = [{**turn, "role": "system"} if _role(turn) == "developer" else turn for turn in turns]
        return {**body, **added} if added else body


def _encoded(body: Mapping[str, Any]) -> bytes:
    try:
        return exact_json.dumps(body)
    except ValueError as error:
        raise UnsupportedRequestError(f"request body: {error}; the server's settings could not be added") from None


def _role(turn: object) -> object:
    return turn.get("role") if isinstance(turn, Mapping) else None


def _ends_in_empty_assistant_turn(request: EngineRequest) -> bool:
    turns = request.body.get("input" if request.dialect == RESPONSES else "messages")
    last = turns[-1] if isinstance(turns, list) and turns else None
    if not isinstance(last, Mapping) or last.get("role") != "assistant" or last.get("tool_calls"):
        return False
    return not _has_text(last.get("content"))


def _has_text(content: object) -> bool:
    if isinstance(content, str):
        return bool(content.strip())
    if not isinstance(content, list):
        return False
    return any(not isinstance(part, Mapping) or part.get("text") or part.get("type") == "tool_use" for part in content)
