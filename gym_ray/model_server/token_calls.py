"""One call that is captured for training, from its request to its record (B77).

Before the engine is asked, the parent is looked up and the call is noted durably; only that step may refuse the call.
From then on nothing here fails a call or changes its answer: if the answer has no usable tokens, the rollout is marked
incomplete, with a reason. A cancelled call is not ended: its note stays and says that tokens may be missing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from gym_ray.errors import EngineError, RolloutIdError
from gym_ray.model_call_capture.exchanges.exchange import (
    ExecutionFacts,
    TrainingCall,
    publish_execution_facts,
    publish_usage,
    read_training_call,
)
from gym_ray.model_server.engine import Engine, EngineAnswer, TokenRequest
from gym_ray.model_server.errors_wire import error_response
from gym_ray.model_server.off_loop import off_loop
from gym_ray.model_server.replayed import CallFailedError
from gym_ray.model_server.token_answers import (
    asks_for_ids,
    asks_for_several,
    has_several_choices,
    items_of,
    tokens_in,
)
from gym_ray.token_id_capture.call_capture import CallCapture, TokenCapture
from gym_ray.token_id_capture.exact_tokens import ExactTokens, TokenOutcome, Untrainable
from gym_ray.token_id_capture.reasons import ENGINE_REPORTS_NO_TOKENS, IDS_MISSING, MALFORMED_TOKENS, SEVERAL_CHOICES

__all__ = ["EngineRoute", "TokenCall", "TokenCalls"]

_log = logging.getLogger(__name__)
_NOT_NOTED: Final = "token_capture_failed"


class TokenCalls:
    """Begins the training calls of one server.

    Args:
        tokens: Keeps their tokens; None captures nothing.
        engine: The model.
        forwarded: Dialects whose requests go to the engine as they are.
    """

    def __init__(self, tokens: TokenCapture | None, engine: Engine, forwarded: frozenset[str]) -> None:
        self._tokens, self._engine, self._forwarded = tokens, engine, forwarded

    def concerns(self, scope: Mapping[str, Any]) -> bool:
        """Whether a request is captured for training."""
        return self._tokens is not None and read_training_call(scope) is not None

    def begin(
        self, scope: MutableMapping[str, Any], dialect: str, body: Mapping[str, Any], size_bytes: int
    ) -> TokenCall | None:
        """Return the call that a request is, None if it is not captured for training; nothing is kept yet.

        Args:
            scope: The ASGI scope.
            dialect: The client's dialect.
            body: The parsed request, which must not change from now on.
            size_bytes: Its length.
        """
        called = read_training_call(scope)
        if self._tokens is None or called is None:
            return None
        capture = self._tokens.begin(called.rollout_id, called.model_call_id)
        route = self._route(dialect, streamed=body.get("stream") is True)
        return TokenCall(called, capture, scope, body, size_bytes, route)

    def _route(self, dialect: str, *, streamed: bool) -> EngineRoute:
        reported = self._engine.token_dialects
        spoken = reported or self._engine.dialects
        native = dialect in self._forwarded & spoken
        return EngineRoute(dialect, spoken, native, native and (bool(reported) or not streamed))


@dataclass(frozen=True, slots=True)
class EngineRoute:
    """How a training call goes to the engine.

    Attributes:
        dialect: The client's dialect.
        spoken: Dialects that the engine may be asked in: those in which it reports tokens, if there are any.
        native: The client's dialect is one of them and needs no conversion.
        forwarded: The request goes there as it is. Not so a stream from an engine that reports no tokens: only a
            complete answer can carry tokens by itself, and only from there can they be taken out for a client that did
            not ask for them.
    """

    dialect: str
    spoken: frozenset[str]
    native: bool
    forwarded: bool


class TokenCall:
    """One training call under way; exactly one of its endings is awaited, or none when it is cancelled.

    Args:
        called: Its identity.
        capture: Keeps its tokens.
        scope: The ASGI scope.
        body: The parsed request.
        size_bytes: Its length.
        route: How it goes to the engine.
    """

    def __init__(
        self,
        called: TrainingCall,
        capture: CallCapture,
        scope: MutableMapping[str, Any],
        body: Mapping[str, Any],
        size_bytes: int,
        route: EngineRoute,
    ) -> None:
        self._called, self._capture, self._scope = called, capture, scope
        self._body, self._size_bytes = body, size_bytes
        self.route = route

    @property
    def client_wants_ids(self) -> bool:
        """Whether the client itself asked for token ids."""
        return asks_for_ids(self.route.dialect, self._body)

    async def open(self) -> TokenRequest:
        """Look the parent up and note the call durably; return what an engine needs for its tokens (B79-B83).

        Raises:
            CallFailedError: The call could not be noted; nothing was generated, and the client may try again (503), but
                not under an id that can name no rollout (400).
        """
        await self._capture.resolve(await off_loop(self._size_bytes, self._items))
        try:
            await self._capture.intend()
        except Exception as error:
            called = self._called
            _log.exception("%s: training call %s could not be noted", called.rollout_id, called.model_call_id)
            publish_execution_facts(self._scope, ExecutionFacts(False, "local", None, _NOT_NOTED))
            refused = isinstance(error, RolloutIdError)
            why = str(error) if refused else type(error).__name__
            message = f"the call could not be noted for token capture ({why}); nothing was generated"
            status = 400 if refused else 503
            raise CallFailedError(status, message, error_response(self.route.dialect, status, message)) from error
        return TokenRequest(self._capture.parent)

    def _items(self) -> list[object] | None:
        try:
            return items_of(self.route.dialect, self._body)
        except Exception as error:  # noqa: BLE001 - boundary: a history that cannot be read must not fail the call (B80)
            called = self._called
            _log.warning("%s: the turns of call %s: %r", called.rollout_id, called.model_call_id, error)
            return None

    @asynccontextmanager
    async def withdrawn_on_failure(self) -> AsyncIterator[None]:
        """Withdraw the call if the block raises (W23); for a block in which its client is served no content.

        A call that is cancelled may have generated tokens: it is abandoned, and its note stays.
        """
        try:
            yield
        except asyncio.CancelledError:
            self._capture.abandon()
            raise
        except Exception as error:
            await self._capture.withdraw(f"{type(error).__name__}: {error}")
            raise

    def abandon(self) -> None:
        """Stop working on a call whose client went away, or whose server ends. Its note stays."""
        self._capture.abandon()

    async def refused(self, status: int) -> None:
        """End a call whose client gets the engine's refusal."""
        await self._capture.withdraw(f"the engine answered {status}")

    async def failed(self, detail: str, *, served: bool) -> None:
        """End a call whose answer ended in an error or broke off.

        Args:
            detail: What happened.
            served: Whether the client may have been served content before; without any, the call is withdrawn.
        """
        if served:
            await self._capture.untrainable(Untrainable(IDS_MISSING, detail))
        else:
            await self._capture.withdraw(detail)

    async def unreadable(self, detail: str) -> None:
        """End a call whose answer was served and cannot be read."""
        await self._capture.untrainable(Untrainable(MALFORMED_TOKENS, detail))

    def outcome(
        self, answer: Mapping[str, Any], reply: EngineAnswer, carried: Mapping[str, Any] | None = None
    ) -> TokenOutcome | None:
        """Return what is known about the tokens of a complete answer; None if only the answer itself may carry them.

        Args:
            answer: The answer in the client's dialect, before tokens are taken out of it.
            reply: What the engine answered; its body has ended.
            carried: The engine's own answer, where the client's was made from it.
        """
        if reply.local_reason is not None:
            return Untrainable(ENGINE_REPORTS_NO_TOKENS, f"the server made this answer itself: {reply.local_reason}")
        if asks_for_several(self._body) or has_several_choices(answer):
            return Untrainable(SEVERAL_CHOICES, f"n is {self._body.get('n', 1)}")
        if reply.tokens is None:
            return None if carried is None else tokens_in(carried)
        try:
            return reply.tokens()
        except Exception as error:  # noqa: BLE001 - boundary: whatever an engine's report holds, its answer is served
            called = self._called
            _log.exception("%s: the tokens of call %s cannot be read", called.rollout_id, called.model_call_id)
            return Untrainable(MALFORMED_TOKENS, f"{type(error).__name__}: {error}")

    def check_prefix(self, outcome: TokenOutcome | None) -> None:
        """Refuse an answer of which nothing was served, if the server is to fail calls without a proved prefix (W35).

        Raises:
            EngineError: The engine did not prove that it continued the parent's tokens; status 502.
        """
        refusal = self._capture.refusal(outcome)
        if refusal is not None:
            raise EngineError(f"the call is not served, because its prompt does not continue its parent: {refusal}")

    async def complete(self, answer: Mapping[str, Any], outcome: TokenOutcome | None) -> None:
        """Keep the record of a complete answer; durable, or its rollout is marked, when this returns.

        Args:
            answer: The answer in the client's dialect, before tokens are taken out of it.
            outcome: What :meth:`outcome` returned.
        """
        if isinstance(outcome, ExactTokens) and not isinstance(answer.get("usage"), Mapping):
            publish_usage(self._scope, _usage_of(outcome))  # known here, and not shown to this client (W13)
        await self._capture.commit(answer, outcome)


def _usage_of(tokens: ExactTokens) -> dict[str, int]:
    prompt, generated = tokens.prompt_token_ids.size, tokens.generation_token_ids.size
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}
