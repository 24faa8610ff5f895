"""An engine in front of another: an admitted call's tokens are durable in storage before its answer leaves.

The model server admits a call by the field ``ng_capture`` and gets its commit coordinates in ``ng_commit_coords``. A
call whose tokens cannot be staged is answered all the same; its coordinates say that it is not captured (C3). A call
without that field is ordinary traffic and passes as it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from pydantic import ValidationError

from gym_ray import exact_json
from gym_ray.dialects import CHAT
from gym_ray.errors import EngineError, StagedPrefixError, UnsupportedRequestError
from gym_ray.inference_worker.prefixes import StagedPrefix, StagedPrefixes
from gym_ray.model_server.engine import Engine, EngineAnswer, EngineRequest, TokenRequest
from gym_ray.model_server.headers import JSON_HEADERS
from gym_ray.model_server.off_loop import off_loop
from gym_ray.token_id_capture.adapters.request_facts import RequestFacts
from gym_ray.token_id_capture.adapters.route_alignment import CallLengths, aligned_routes
from gym_ray.token_id_capture.exact_tokens import ExactTokens, ParentTokens, TokenOutcome
from gym_ray.token_id_capture.extras import CallExtras
from gym_ray.token_id_capture.reasons import ENGINE_REPORTS_NO_TOKENS
from gym_ray.token_id_capture.staging.active_call import ActiveCall
from gym_ray.token_id_capture.staging.async_capture import AsyncRolloutTokenCapture
from gym_ray.token_id_capture.staging.constants import NG_CAPTURE_FIELD, NG_COMMIT_COORDS_FIELD, REQUIRED_PREFIX_FIELD
from gym_ray.token_id_capture.staging.records import CaptureAdmission, CommitCoords
from gym_ray.token_id_capture.token_arrays import join_tokens

__all__ = ["StagingEngine"]

_log = logging.getLogger(__name__)
_OURS: Final = (NG_CAPTURE_FIELD, REQUIRED_PREFIX_FIELD, "return_tokens_as_token_ids", "logprobs", "top_logprobs")
"""Fields that the model server asks a worker with; the engine behind is asked for its tokens in its own way."""


class StagingEngine:
    """Implements :class:`gym_ray.model_server.engine.Engine`.

    Args:
        engine: The model; it reports exact tokens in the Chat dialect.
        capture: Stages the tokens of calls.
        prefixes: Finds the tokens that a call continues.

    Raises:
        EngineError: The engine does not report tokens in the Chat dialect.
    """

    def __init__(self, engine: Engine, capture: AsyncRolloutTokenCapture, prefixes: StagedPrefixes) -> None:
        if CHAT not in engine.token_dialects:
            raise EngineError("this engine does not report the exact tokens of Chat answers, so nothing can be staged")
        self._engine, self._capture, self._prefixes = engine, capture, prefixes

    @property
    def dialects(self) -> frozenset[str]:
        """Those of the engine."""
        return self._engine.dialects

    @property
    def token_dialects(self) -> frozenset[str]:
        """None: tokens go to storage, not to whoever asks."""
        return frozenset()

    async def start(self) -> None:
        """Start the engine."""
        await self._engine.start()

    async def ready(self, timeout_s: float, on_wait: Callable[[str], None] | None = None) -> None:
        """Return once the engine answers; see the protocol."""
        await self._engine.ready(timeout_s, on_wait)

    async def models(self) -> EngineAnswer:
        """List the engine's models."""
        return await self._engine.models()

    async def count_tokens(self, request: EngineRequest) -> EngineAnswer:
        """Ask the engine; see the protocol."""
        return await self._engine.count_tokens(request)

    async def aclose(self) -> None:
        """Close the engine; idempotent."""
        await self._engine.aclose()

    async def answer(self, request: EngineRequest) -> EngineAnswer:
        """Generate; the answer to an admitted call exists only once its tokens are staged.

        Raises:
            UnsupportedRequestError: The admission is malformed, or the call wants a stream or several choices (400).
            EngineError: The engine failed; nothing was staged.
        """
        if NG_CAPTURE_FIELD not in request.body:
            return await self._engine.answer(request)
        admission = _admission_of(request)
        prefix = await self._prefix(admission)
        if isinstance(prefix, StagedPrefixError):
            return await self._uncaptured(request, admission, prefix)
        call = self._capture.begin_call(admission, prefix_token_ids=None if prefix is None else prefix.token_ids)
        try:
            reply = await self._engine.answer(_asked(request, prefix))
            raw = await reply.read()
            answer = await off_loop(len(raw), lambda: exact_json.loads_object(raw))
        except BaseException as error:
            await self._capture.fail_call(call, reason=f"no answer: {type(error).__name__}: {error}")
            raise
        if reply.status >= 400 or answer is None:
            await self._capture.fail_call(call, reason=f"the engine answered {reply.status}")
            return EngineAnswer.of_bytes(reply.status, reply.headers, raw)
        return _answered(reply, answer, await self._stage(call, reply.tokens, request))

    async def _prefix(self, admission: CaptureAdmission) -> StagedPrefix | StagedPrefixError | None:
        try:
            return await self._prefixes.of(admission)
        except StagedPrefixError as error:
            return error

    async def _uncaptured(
        self, request: EngineRequest, admission: CaptureAdmission, problem: StagedPrefixError
    ) -> EngineAnswer:
        """Answer a call whose prefix is not proved: the client is served, and the call is not captured."""
        _log.error("rollout %s: call %s is not captured: %s", admission.rollout_id, admission.model_call_id, problem)
        coords = self._capture.refuse(admission, reason=str(problem))
        reply = await self._engine.answer(_asked(request, None))
        raw = await reply.read()
        answer = await off_loop(len(raw), lambda: exact_json.loads_object(raw))
        if reply.status >= 400 or answer is None:
            return EngineAnswer.of_bytes(reply.status, reply.headers, raw)
        return _answered(reply, answer, coords)

    async def _stage(
        self, call: ActiveCall, tokens: Callable[[], TokenOutcome] | None, request: EngineRequest
    ) -> CommitCoords:
        try:
            outcome = None if tokens is None else tokens()
            if not isinstance(outcome, ExactTokens):
                reason = ENGINE_REPORTS_NO_TOKENS if outcome is None else f"{outcome.reason}: {outcome.detail}"
                return await self._capture.fail_call(call, reason=reason)
            extras = _extras(outcome, await _staged_routes(outcome, call.admission.prev_len, request))
        except Exception as error:  # noqa: BLE001 - boundary: whatever an engine's report holds, its answer is served
            reason = f"its tokens cannot be read: {type(error).__name__}: {error}"
            return await self._capture.fail_call(call, reason=reason)
        coords = await self._capture.complete_call(
            call,
            prompt_token_ids=outcome.prompt_token_ids,
            generated_token_ids=outcome.generation_token_ids,
            generated_logprobs=outcome.generation_log_probs,
            extras=extras,
        )
        if coords.staging_key is not None and coords.chain_hash is not None:
            whole = join_tokens([outcome.prompt_token_ids, outcome.generation_token_ids])
            generated = int(outcome.generation_token_ids.size)
            known = StagedPrefix(coords.rollout_id, coords.model_call_id, coords.chain_hash, whole, generated)
            self._prefixes.remember(coords.staging_key, known)
        return coords


def _admission_of(request: EngineRequest) -> CaptureAdmission:
    if request.dialect != CHAT or request.stream:
        raise UnsupportedRequestError("an admitted call is a Chat Completions request that is not streamed", 400)
    if request.body.get("n") not in (None, 1):
        raise UnsupportedRequestError("an admitted call has one choice: leave n out", 400)
    try:
        return CaptureAdmission.model_validate(request.body[NG_CAPTURE_FIELD])
    except ValidationError as error:
        raise UnsupportedRequestError(f"{NG_CAPTURE_FIELD} is no admission: {error}", 400) from error


def _asked(request: EngineRequest, prefix: StagedPrefix | None) -> EngineRequest:
    body = {name: value for name, value in request.body.items() if name not in _OURS}
    parent = None
    if prefix is not None:
        parent = ParentTokens(prefix.model_call_id, prefix.token_ids, generated=prefix.generated)
    return replace(request, body=body, raw=exact_json.dumps(body), tokens=TokenRequest(parent))


async def _staged_routes(outcome: ExactTokens, prev_len: int, request: EngineRequest) -> object:
    """Return the engine's routes of experts cut to the tokens that the call stages (C344); None for none.

    An engine tells those of its whole prompt, most of which was staged by the calls before.
    """
    if outcome.routed_experts is None:
        return None
    lengths = CallLengths(prev_len, int(outcome.prompt_token_ids.size), int(outcome.generation_token_ids.size))
    start = RequestFacts.of(request.body).experts_start
    return await asyncio.to_thread(aligned_routes, outcome.routed_experts, lengths, start)


def _extras(outcome: ExactTokens, routes: object) -> dict[str, Any] | None:
    """Return what is kept beside the tokens: routes of experts, and what a trainer must know to use the log probs."""
    facts = CallExtras(
        weight_spans=outcome.weight_spans,
        constrained=outcome.constrained,
        ended_by=outcome.ended_by,
        token_in=outcome.token_in,
    ).to_json()
    extras: dict[str, Any] = {"gym_ray": facts} if facts else {}
    if routes is not None:
        extras["routed_experts"] = routes
    return extras or None


def _answered(reply: EngineAnswer, answer: Mapping[str, Any], coords: CommitCoords) -> EngineAnswer:
    body = {**answer, NG_COMMIT_COORDS_FIELD: coords.model_dump(mode="json")}
    return EngineAnswer.of_bytes(reply.status, list(JSON_HEADERS), exact_json.dumps(body))
