"""The rules of capturing one call, for a model server's calls and for calls in a context variable alike (B79-B92).

Every fault of a sink, a resolver or an answer is caught here and becomes a mark on the rollout. Only the note before
generation may raise.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from gym_ray.errors import CaptureError, UnusableTokensError
from gym_ray.token_id_capture.bounded_calls import BoundedCalls
from gym_ray.token_id_capture.capturing.capture_context import CaptureContext
from gym_ray.token_id_capture.capturing.capture_health import CaptureHealth
from gym_ray.token_id_capture.capturing.inline_work import (
    can_be_compared_inline,
    can_be_hashed_inline,
    can_be_recorded_inline,
)
from gym_ray.token_id_capture.capturing.record_building import (
    BuiltRecord,
    ServedAnswer,
    build_record,
    stamped,
    tokens_of_fields,
)
from gym_ray.token_id_capture.capturing.sink_calls import SinkCalls
from gym_ray.token_id_capture.exact_tokens import ExactTokens, TokenOutcome, Untrainable
from gym_ray.token_id_capture.extras import Version
from gym_ray.token_id_capture.fingerprint import BegunHashing, HashedItems, assistant_fingerprint
from gym_ray.token_id_capture.lineage import (
    LOOKUP_ERROR_REASON,
    RESOLVER_UNAVAILABLE_REASON,
    LineageResolution,
)
from gym_ray.token_id_capture.reasons import CAPTURE_FAILED, IDS_MISSING, PREFIX_NOT_SUPPLIED
from gym_ray.token_id_capture.records import ParentResolutionStatus, TokenEntry
from gym_ray.token_id_capture.request_items import RequestItems
from gym_ray.token_id_capture.token_arrays import starts_with

__all__ = ["CallRecorder", "CaptureServices", "OnThread"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


_ROOT: Final = LineageResolution(ParentResolutionStatus.ROOT)
_UNAVAILABLE: Final = LineageResolution(ParentResolutionStatus.UNRESOLVED, reason=RESOLVER_UNAVAILABLE_REASON)
_LOOKUP_ERROR: Final = LineageResolution(ParentResolutionStatus.UNRESOLVED, reason=LOOKUP_ERROR_REASON)

_FROM_BEFORE: Final = "a record of a call from before the rollout began anew may be among its records"
_PATIENCE_S: Final = 1.0


class OnThread(Protocol):
    """Runs work that would hold an event loop up."""

    def __call__(self, work: Callable[[], _T], /) -> Awaitable[_T]:
        """Return what ``work`` returns."""


@dataclass(frozen=True, slots=True)
class CaptureServices:
    """What all calls of one server share.

    Attributes:
        health: Counters.
        bounded: How long a sink or a resolver may take.
        begun: Begins to hash a rollout's request items.
        on_thread: Runs heavy work.
        mark_later: Takes over a mark that a sink refused; None gives up with a warning.
        weight_version: Version of the weights now.
    """

    health: CaptureHealth
    bounded: BoundedCalls
    begun: Callable[[str, Sequence[object]], BegunHashing]
    on_thread: OnThread
    mark_later: Callable[[str, str, str], None] | None = None
    weight_version: Callable[[], Version | None] = lambda: None


class CallRecorder:
    """Applies the rules to one call's context.

    Args:
        context: The call.
        services: What it shares with others.
    """

    def __init__(self, context: CaptureContext, services: CaptureServices) -> None:
        self._context, self._services = context, services
        self._calls = SinkCalls(context.token_sink, services.bounded)
        self._sink_is_slow = False

    async def resolve(self, items: Sequence[object] | None) -> None:
        """Decide about the parent; never raises (B79-B81)."""
        context = self._context
        if items is None:
            return
        context.request_items = RequestItems(items)
        try:
            hashed = await self._hashed(context.request_items)
            context.request_items = hashed
            context.parent_resolution = await self._look_up(hashed)
        except Exception as error:  # noqa: BLE001 - boundary: a look-up that fails must not fail the call (B80)
            _log.warning("%s: the parent of call %s: %s", context.rollout_id, context.model_call_id, _described(error))
            context.parent_resolution = _LOOKUP_ERROR
        self._services.health.resolved(context.parent_resolution.status)

    async def intend(self) -> None:
        """Note the call; raises what the sink raises (B83), and if its rollout began anew meanwhile."""
        context = self._context
        if context.token_sink is not None and not context.external_staging:
            self._check_current()
            await self._calls.begin(context.rollout_id, context.model_call_id)
            self._check_current()

    def proves_prefix(self, tokens: ExactTokens) -> bool:
        """Whether a prompt begins with the proven parent's tokens."""
        parent = self._context.parent
        return tokens.prefix_supplied and parent is not None and starts_with(tokens.prompt_token_ids, parent.token_ids)

    async def commit(self, response: object, outcome: TokenOutcome | None, items: Sequence[object] | None) -> None:
        """Keep the record of an answer, or mark its rollout; never raises (B84-B88)."""
        context = self._context
        if context.is_settled:  # the engine's own record stands (W24)
            self._tell_if_superseded()
            return
        if isinstance(outcome, Untrainable):
            await self.untrainable(outcome)
            return
        try:
            answer = _answer_of(response, extract=outcome is None)
            if answer is None or (outcome is None and answer.token_fields is None):
                await self._without_tokens(answer)
                return
            if items is not None and context.parent_resolution is None:
                await self.resolve(items)
                items = context.request_items
            built = await self._built(answer, outcome, items)
            await self._keep(built)
        except asyncio.CancelledError:
            self.abandon()
            raise
        except Exception as error:  # noqa: BLE001 - boundary: the answer is served whatever is wrong here (B87)
            await self._failed(error)

    async def commit_entry(
        self, entry: TokenEntry, decision: LineageResolution | None, items: Sequence[object] | None
    ) -> None:
        """Keep a record that an engine made, or mark its rollout; never raises (B89, B90)."""
        context = self._context
        theirs, ours = (entry.rollout_id, entry.model_call_id), (context.rollout_id, context.model_call_id)
        if theirs != ours:
            _log.warning("a record of %s came to call %s; it is not kept", "/".join(theirs), "/".join(ours))
            await self._mark(CAPTURE_FAILED, f"a record of call {theirs[1]!r} of rollout {theirs[0]!r} came instead")
            return
        if context.token_sink is None:
            context.committed = True
            return
        try:
            await self._keep(stamped(context, entry, decision, items))
        except asyncio.CancelledError:
            self.abandon()
            raise
        except Exception as error:  # noqa: BLE001 - boundary: as in commit
            await self._failed(error)

    async def untrainable(self, outcome: Untrainable) -> None:
        """Mark the rollout of a call that was answered without usable tokens; never raises."""
        context = self._context
        if context.is_settled:
            self._tell_if_superseded()
            return
        self._services.health.untrainable(outcome.reason)
        await self._mark(outcome.reason, outcome.detail)

    async def withdraw(self, reason: str) -> None:
        """Clear the note of a call of which nothing was served; never raises (W23)."""
        context = self._context
        if context.is_settled or context.token_sink is None:
            return
        try:
            taken = await self._calls.end(context.rollout_id, context.model_call_id, "withdrawn", reason)
        except Exception as error:  # noqa: BLE001 - boundary: the note stays, so the rollout reads as incomplete
            _log.warning(
                "%s: call %s was not withdrawn: %s", context.rollout_id, context.model_call_id, _described(error)
            )
            return
        if not taken and self._calls.notes_calls:
            _log.warning(
                "%s: call %s served nothing, but %s takes no withdrawals: the rollout reads as incomplete",
                context.rollout_id,
                context.model_call_id,
                type(context.token_sink).__name__,
            )

    def abandon(self) -> None:
        """End a cancelled call: its note stays; if the sink keeps no notes, the rollout is marked in the background."""
        context, later = self._context, self._services.mark_later
        if context.is_settled or context.token_sink is None or self._calls.notes_calls or later is None:
            return
        later(context.rollout_id, context.model_call_id, "")

    def _check_current(self) -> None:
        if self._context.superseded:
            raise CaptureError(f"{self._context.rollout_id}: the rollout began anew before the call was dispatched")

    def _tell_if_superseded(self) -> None:
        context = self._context
        if context.superseded and not context.committed:
            told = "%s: call %s ended after its rollout began anew; its tokens are not kept"
            _log.warning(told, context.rollout_id, context.model_call_id)

    async def _hashed(self, items: Sequence[object]) -> HashedItems:
        rollout_id, services = self._context.rollout_id, self._services
        if not can_be_compared_inline(items):
            return await services.on_thread(lambda: services.begun(rollout_id, items).finish())
        begun = services.begun(rollout_id, items)
        if can_be_hashed_inline(items, known=begun.known):
            return begun.finish()
        return await services.on_thread(begun.finish)

    async def _look_up(self, items: HashedItems) -> LineageResolution:
        if not assistant_fingerprint(items):
            return _ROOT
        resolver = self._context.lineage_store
        if resolver is None:
            if self._services.health.first_time(RESOLVER_UNAVAILABLE_REASON):
                _log.warning("token capture has no lineage store: no call will find its parent")
            return _UNAVAILABLE
        asked = resolver.resolve(self._context.rollout_id, items)
        decision = await self._services.bounded.run(asked, "resolve of the lineage store")
        if not isinstance(decision, LineageResolution):
            raise TypeError(f"{type(resolver).__name__}.resolve returned {type(decision).__name__}")
        return decision

    async def _built(
        self,
        answer: ServedAnswer,
        tokens: ExactTokens | None,
        items: Sequence[object] | None,
    ) -> BuiltRecord:
        fields = answer.token_fields or {}
        if tokens is not None:
            self._take_prefix(tokens)
        now, version = time.time(), self._services.weight_version()

        def work() -> BuiltRecord:
            exact = tokens_of_fields(fields) if tokens is None else tokens
            return build_record(self._context, answer, exact, items, created_at=now, version_end=version)

        delta = self._context.delta_records and self._context.match is not None
        if can_be_recorded_inline(fields if tokens is None else tokens, delta=delta):
            return work()
        return await self._services.on_thread(work)

    def _take_prefix(self, tokens: ExactTokens) -> None:
        """Note what an engine says about the prefix, as far as its prompt proves it."""
        context = self._context
        context.prefix_requested = tokens.prefix_requested or tokens.prefix_supplied
        context.prefix_supplied = self.proves_prefix(tokens)
        counts = self._services.health.prefix
        counts(total=1, eligible=context.parent is not None, supplied=context.prefix_supplied)

    async def _keep(self, built: BuiltRecord) -> None:
        context = self._context
        if context.token_sink is None:
            context.committed = True
            return
        if context.superseded:
            self._tell_if_superseded()
            return
        await self._put(built.entry)
        context.committed = True
        self._tell_resolver(built)
        if context.prefix_requested and not context.prefix_supplied:  # kept as evidence, and never trained on (W35)
            self._services.health.untrainable(PREFIX_NOT_SUPPLIED)
            await self._mark(PREFIX_NOT_SUPPLIED, "the engine did not prove that it continued its parent's tokens")

    async def _put(self, entry: TokenEntry) -> None:
        began = time.monotonic()
        try:
            await self._calls.put(entry)
        except Exception as error:
            self._sink_is_slow = isinstance(error, TimeoutError) or time.monotonic() - began > _PATIENCE_S
            raise
        finally:
            context, later = self._context, self._services.mark_later
            if context.superseded and later is not None:  # it began anew just now: the record may be among the new ones
                later(context.rollout_id, context.model_call_id, f"{CAPTURE_FAILED}: {_FROM_BEFORE}")

    def _tell_resolver(self, built: BuiltRecord) -> None:
        observe = getattr(self._context.lineage_store, "observe", None)
        if not callable(observe):
            return
        try:
            observe(built.entry, built.cumulative)
        except Exception as error:  # noqa: BLE001 - boundary: the record is kept; its continuations stay unresolved
            _log.warning("%s: the lineage store: %s", self._context.rollout_id, _described(error))

    async def _without_tokens(self, answer: ServedAnswer | None) -> None:
        """Mark the rollout of an answer in which there is nothing to capture; no fault of capture (B86)."""
        if self._context.token_sink is not None:
            detail = "the answer carries no token ids" if answer else "the answer is no JSON object"
            await self.untrainable(Untrainable(IDS_MISSING, detail))

    async def _failed(self, error: Exception) -> None:
        context = self._context
        told = (
            error if isinstance(error, UnusableTokensError) else UnusableTokensError(CAPTURE_FAILED, _described(error))
        )
        self._services.health.failed()
        _log.warning("%s: call %s is not captured: %s", context.rollout_id, context.model_call_id, told)
        await self._mark(told.reason, told.detail)

    async def _mark(self, reason: str, detail: str) -> None:
        """Mark the rollout now, or later where the sink refuses; never raises (B92)."""
        context, later = self._context, self._services.mark_later
        if context.token_sink is None:
            return
        told = f"{reason}: {detail}" if detail else reason
        if self._sink_is_slow and later is not None:  # the answer has waited long enough
            later(context.rollout_id, context.model_call_id, told)
            return
        try:
            await self._calls.mark(context.rollout_id, context.model_call_id, told)
        except Exception as error:  # noqa: BLE001 - boundary: a mark that fails must not fail the call
            _log.warning("%s: call %s is not marked: %s", context.rollout_id, context.model_call_id, _described(error))
            if later is not None:
                later(context.rollout_id, context.model_call_id, told)
        except BaseException:  # cancelled while the sink was marking: the mark must not be lost with the client
            if later is not None:
                later(context.rollout_id, context.model_call_id, told)
            raise


def _answer_of(response: object, *, extract: bool) -> ServedAnswer | None:
    """Read a served answer, a mapping or a model; None for anything else (B84, B86)."""
    if not isinstance(response, Mapping):
        dump = getattr(response, "model_dump", None)
        response = dump() if callable(dump) else None
    return ServedAnswer.of(response, extract=extract) if isinstance(response, Mapping) else None


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
