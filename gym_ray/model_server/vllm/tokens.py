"""Asks a vLLM server for the exact tokens of calls, and gives clients the answers that they asked for.

A streamed answer stays streamed, and what the client did not ask for is taken out of every chunk. The exception is a
call that continues its parent's tokens on a stock server: the server cannot turn tokens into a stream of chunks, so a
client that streams gets the whole answer as a stream once it is complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from gym_ray import exact_json
from gym_ray.dialects import CHAT
from gym_ray.dialects.conversion.schema import REQUIRED_PREFIX
from gym_ray.dialects.frames import event_frame
from gym_ray.dialects.replay import replay_frames
from gym_ray.dialects.sse import parse_objects
from gym_ray.errors import EngineError, UnsupportedRequestError
from gym_ray.model_server.engine import EngineAnswer, EngineRequest
from gym_ray.model_server.headers import JSON_HEADERS, SSE_HEADERS
from gym_ray.model_server.heavy_bodies import HeavyBody
from gym_ray.model_server.off_loop import off_loop
from gym_ray.model_server.upstream import UpstreamEngine
from gym_ray.model_server.vllm.client_view import ClientView
from gym_ray.model_server.vllm.continuation import last_turn
from gym_ray.model_server.vllm.refusals import without_ids
from gym_ray.model_server.vllm.stream import ClientStream
from gym_ray.model_server.vllm.token_in import Continuation, Generated, TokenIn
from gym_ray.token_id_capture.adapters.supplied_prefix import SuppliedPrefix
from gym_ray.token_id_capture.adapters.vllm import RequestFacts, tokens_of_chat_answer, tokens_of_generate_answer
from gym_ray.token_id_capture.adapters.vllm_stream import ChatTokenStream
from gym_ray.token_id_capture.exact_tokens import ParentTokens, TokenOutcome, Untrainable
from gym_ray.token_id_capture.reasons import (
    ENGINE_REPORTS_NO_TOKENS,
    MALFORMED_TOKENS,
    PREFIX_NOT_SUPPLIED,
    PROMPT_IDS_MISSING,
)

__all__ = ["TokenBehaviour", "VllmTokenCalls"]

_UNPROVEN: Final = (PREFIX_NOT_SUPPLIED, PROMPT_IDS_MISSING, ENGINE_REPORTS_NO_TOKENS)


@dataclass(frozen=True, slots=True)
class TokenBehaviour:
    """How a parent's tokens go into a vLLM server.

    Attributes:
        scale_out: Through the token routes of a stock server started with ``--enable-scale-out``.
        supply_prefix_token_ids: As ``required_prefix_token_ids``, which patched workers take (B94).
        fail_unproven_prefix: An answer whose prompt does not prove it fails; else it is served, and its tokens are
            not used (W35).
    """

    scale_out: bool = False
    supply_prefix_token_ids: bool = False
    fail_unproven_prefix: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """One call under way; ``body`` is the client's, with this server's settings as defaults."""

    request: EngineRequest
    body: Mapping[str, Any]
    facts: RequestFacts
    view: ClientView
    prefix: SuppliedPrefix | None = None

    def proven(self, outcome: TokenOutcome) -> TokenOutcome:
        return outcome if self.prefix is None else self.prefix.proven(outcome)


class VllmTokenCalls:
    """Asks a vLLM server for answers whose exact tokens are known.

    Args:
        upstream: The server.
        served_model: The name that the server knows its model by.
        behaviour: See there.
    """

    def __init__(self, upstream: UpstreamEngine, served_model: str, behaviour: TokenBehaviour) -> None:
        self._upstream = upstream
        self._served_model = served_model
        self._behaviour = behaviour
        self._token_in = TokenIn(upstream, served_model)

    async def answer(self, request: EngineRequest) -> EngineAnswer:
        """Answer one Chat request; :attr:`EngineAnswer.tokens` is set on every answer that is no refusal.

        Args:
            request: Its body has the server's settings as defaults; its raw bytes are not used.

        Raises:
            EngineError: As :meth:`UpstreamEngine.answer`; or one of the token routes failed, which is named; or the
                proof of a supplied prefix failed and is wanted.
        """
        body = request.body
        call = _Call(request, body, RequestFacts.of(body), ClientView.of(body))
        parent = None if request.tokens is None else request.tokens.parent
        if parent is not None and self._behaviour.scale_out:
            continuation = await self._token_in.continuation(body, parent)
            if continuation is not None:
                return await self._continued(call, continuation)
        return await self._chat(call, parent)

    async def _chat(self, call: _Call, parent: ParentTokens | None) -> EngineAnswer:
        added: dict[str, Any] = {"model": self._served_model, "logprobs": True, "return_token_ids": True}
        if call.request.stream:
            added["stream_options"] = _with_usage(call)
        if parent is not None and self._supplies_prefix(call.body):
            added[REQUIRED_PREFIX] = parent.token_ids.tolist()
            call = replace(call, prefix=SuppliedPrefix(parent.token_ids, "required_prefix"))
        raw = await _encoded(call, added)
        reply = await self._upstream.answer(replace(call.request, body={**call.body, **added}, raw=raw, tokens=None))
        if reply.status >= 400:
            return reply if call.prefix is None else await _without_ids(reply)
        return self._streamed(call, reply) if _is_stream(reply) else await self._whole(call, reply)

    def _supplies_prefix(self, body: Mapping[str, Any]) -> bool:
        supplies = self._behaviour.supply_prefix_token_ids and body.get(REQUIRED_PREFIX) is None
        return supplies and last_turn(body) is not None

    def _streamed(self, call: _Call, reply: EngineAnswer) -> EngineAnswer:
        tokens = ChatTokenStream(call.facts)
        guard = _PrefixGuard(call.prefix if self._behaviour.fail_unproven_prefix else None, tokens)
        body = ClientStream(reply.body, tokens, call.view, guard.refusal)
        headers = [pair for pair in reply.headers if pair[0] != "content-length"]
        return EngineAnswer(reply.status, headers, body, reply.aclose, tokens=lambda: call.proven(tokens.outcome()))

    async def _whole(self, call: _Call, reply: EngineAnswer) -> EngineAnswer:
        raw = await reply.read()
        shown, told = await off_loop(len(raw), lambda: _read(raw, call))
        outcome = call.proven(told)
        self._check(call, outcome)
        headers = reply.headers if shown is raw else [pair for pair in reply.headers if pair[0] != "content-length"]
        return EngineAnswer.of_bytes(reply.status, headers, shown, tokens=lambda: outcome)

    async def _continued(self, call: _Call, continuation: Continuation) -> EngineAnswer:
        call = replace(call, prefix=SuppliedPrefix(continuation.prompt, "render", whole=True))
        generated = await self._token_in.run(continuation)
        outcome = call.proven(tokens_of_generate_answer(generated.answer, call.facts))
        self._check(call, outcome)
        size = 8 * continuation.prompt.size
        if call.request.stream:
            text = await off_loop(size, lambda: _as_stream(generated, call.view))
            return EngineAnswer.of_bytes(200, list(SSE_HEADERS), text, tokens=lambda: outcome)
        text = await off_loop(size, lambda: _written(_shown_chat(generated, call.view)))
        return EngineAnswer.of_bytes(200, list(JSON_HEADERS), text, tokens=lambda: outcome)

    def _check(self, call: _Call, outcome: TokenOutcome) -> None:
        wanted = call.prefix is not None and self._behaviour.fail_unproven_prefix
        if wanted and isinstance(outcome, Untrainable) and outcome.reason in _UNPROVEN:
            raise EngineError(_mismatch(outcome.detail))


class _PrefixGuard:
    """Compares the prompt of a stream with the tokens that went in, once and before any content is served."""

    def __init__(self, prefix: SuppliedPrefix | None, tokens: ChatTokenStream) -> None:
        self._prefix, self._tokens = prefix, tokens

    def refusal(self, ended: bool) -> str:
        prefix, prompt = self._prefix, self._tokens.prompt
        if prefix is None or (prompt is None and not ended):
            return ""
        self._prefix = None
        problem = "the engine reported no prompt ids" if prompt is None else prefix.problem(prompt)
        return _mismatch(problem) if problem else ""


def _with_usage(call: _Call) -> dict[str, Any]:
    """Return the client's stream options, the usage at the end asked for.

    If the client did not ask for it, its wish for the usage in every chunk has no effect, and must not get one now.
    """
    own = call.body.get("stream_options")
    options = {**(own if isinstance(own, Mapping) else {}), "include_usage": True}
    if not call.view.usage:
        options.pop("continuous_usage_stats", None)
    return options


async def _without_ids(refusal: EngineAnswer) -> EngineAnswer:
    raw = without_ids(await refusal.read())
    headers = [pair for pair in refusal.headers if pair[0] != "content-length"]
    return EngineAnswer.of_bytes(refusal.status, headers, raw)


def _mismatch(detail: str) -> str:
    return f"the parent's tokens were to be continued, and {detail} (on_unproven_prefix: fail)"


def _read(raw: bytes, call: _Call) -> tuple[bytes, TokenOutcome]:
    """Return what the client sees of a whole answer, and what the answer says of its tokens."""
    answer = exact_json.loads_object(raw)
    if answer is None:
        return call.view.strip_unreadable(raw), Untrainable(MALFORMED_TOKENS, "the answer is no JSON object")
    outcome = tokens_of_chat_answer(answer, call.facts)
    return (_written(answer) if call.view.strip(answer) else raw), outcome


def _shown_chat(generated: Generated, view: ClientView) -> dict[str, Any]:
    """Return a derendered answer as the chat route would have given it to this client."""
    answer = generated.chat
    choices, told = _choices(answer), _choices(generated.answer)
    if view.ids and choices and told:
        answer["prompt_token_ids"] = generated.answer.get("prompt_token_ids")
        choices[0]["token_ids"] = told[0].get("token_ids")
    for choice in choices:
        log_probs = choice.get("logprobs")
        content = log_probs.get("content") if isinstance(log_probs, Mapping) else None
        for item in content if isinstance(content, list) else ():
            if isinstance(item, dict) and isinstance(item.get("top_logprobs"), list):
                item["top_logprobs"] = item["top_logprobs"][: view.top_log_probs]
    view.strip(answer)
    return answer


def _as_stream(generated: Generated, view: ClientView) -> bytes:
    answer = _shown_chat(generated, view)
    frames = replay_frames(CHAT, answer, include_usage=view.usage)
    if view.ids and len(frames) > 1:
        ids = _choices(answer)[0].get("token_ids") if _choices(answer) else None
        last = max(index for index, frame in enumerate(frames[:-1]) if _choices(parse_objects(frame)[0]))
        frames[0] = _with(frames[0], {"prompt_token_ids": answer.get("prompt_token_ids")}, {})
        frames[last] = _with(frames[last], {}, {"token_ids": ids})
    return b"".join(frames)


def _with(frame: bytes, members: Mapping[str, Any], of_choice: Mapping[str, Any]) -> bytes:
    chunk = {**parse_objects(frame)[0], **members}
    return event_frame({**chunk, "choices": [{**choice, **of_choice} for choice in chunk["choices"]]})


def _choices(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    choices = answer.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def _written(answer: Mapping[str, Any]) -> bytes:
    try:
        return exact_json.dumps(answer)
    except ValueError as error:
        raise EngineError(f"the answer cannot be written without its token ids: {error}") from None


async def _encoded(call: _Call, added: Mapping[str, Any]) -> bytes:
    body = call.body
    try:
        if isinstance(body, HeavyBody):
            return await body.replaced(added)
        return await off_loop(len(call.request.raw), lambda: exact_json.dumps({**body, **added}))
    except ValueError as error:
        raise UnsupportedRequestError(f"request body: {error}; token ids could not be asked for") from None


def _is_stream(reply: EngineAnswer) -> bool:
    kind = next((value for name, value in reply.headers if name == "content-type"), "")
    return kind.strip().lower().startswith("text/event-stream")
