"""What a model server holds to capture exact tokens: one object a process, one a call (B76-B92).

Before the engine is asked, the parent is looked up and the call is noted durably; only a failed note may refuse a call.
From then on nothing raises: if the tokens of a call cannot be kept, its rollout is marked incomplete, durably and with
a reason, and the client still gets its answer. The note of a cancelled call stays, and says that tokens may be missing.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from gym_ray.errors import CaptureError
from gym_ray.token_id_capture.bounded_calls import BoundedCalls
from gym_ray.token_id_capture.capturing.call_recorder import CallRecorder, CaptureServices
from gym_ray.token_id_capture.capturing.capture_context import CaptureContext
from gym_ray.token_id_capture.capturing.capture_health import CaptureHealth
from gym_ray.token_id_capture.capturing.late_marks import LateMarks
from gym_ray.token_id_capture.capturing.sink_calls import SinkCalls
from gym_ray.token_id_capture.exact_tokens import ParentTokens, TokenOutcome, Untrainable
from gym_ray.token_id_capture.extras import Version
from gym_ray.token_id_capture.lineage import LineageResolution, LineageResolver
from gym_ray.token_id_capture.protocols import TokenSink
from gym_ray.token_id_capture.reasons import PREFIX_NOT_SUPPLIED
from gym_ray.token_id_capture.resolution.conversation_cache import ConversationCache

__all__ = ["CallCapture", "TokenCapture"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_THREADS: Final = 2


class TokenCapture:
    """Captures the training calls of one server. Belongs to one event loop.

    Args:
        sink: Where records go; None keeps none, for another process does.
        resolver: Finds parents; None leaves every continuation unresolved.
        delta_records: Store only what follows the parent (W2).
        timeout_s: Longest that a sink or a resolver may take for one call; what takes longer is counted as failed.
        fail_unproven_prefix: Whether :meth:`CallCapture.refusal` refuses calls without a proved prefix (W35).
        owns_sink: Close the sink with this.
        owns_resolver: Close the resolver with this.
        health: Counters; None counts for this server alone.
        retry_interval_s: Pause before a mark that failed is tried again.

    Attributes:
        weight_version: Version of the weights that the engine serves now, as the server was told; None when unknown.
        health: The counters.
    """

    def __init__(
        self,
        sink: TokenSink | None,
        resolver: LineageResolver | None,
        *,
        delta_records: bool = True,
        timeout_s: float = 30.0,
        fail_unproven_prefix: bool = False,
        owns_sink: bool = True,
        owns_resolver: bool = True,
        health: CaptureHealth | None = None,
        retry_interval_s: float = 1.0,
    ) -> None:
        self.weight_version: Version | None = None
        self.health = health or CaptureHealth()
        self._sink, self._resolver = sink, resolver
        self._delta_records, self._fail_unproven_prefix = delta_records, fail_unproven_prefix
        self._owned = [*([resolver] if owns_resolver else []), *([sink] if owns_sink else [])]
        self._timeout_s = timeout_s
        self._bounded = BoundedCalls(timeout_s)
        self._calls = SinkCalls(sink, self._bounded)
        self._calls_under_way: weakref.WeakSet[CallCapture] = weakref.WeakSet()
        self._marks = LateMarks(self._calls.mark, retry_interval_s=retry_interval_s)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="token-capture")
        self._services = CaptureServices(
            health=self.health,
            bounded=self._bounded,
            begun=ConversationCache().begun,
            on_thread=self._on_thread,
            mark_later=self._mark_later,
            weight_version=lambda: self.weight_version,
        )

    @property
    def sink(self) -> TokenSink | None:
        """Where records go."""
        return self._sink

    @property
    def resolver(self) -> LineageResolver | None:
        """What finds parents."""
        return self._resolver

    def begin(self, rollout_id: str, model_call_id: str, *, model: str = "") -> CallCapture:
        """Return the capture of one call; nothing is kept yet.

        Args:
            rollout_id: Its rollout.
            model_call_id: Its id, not used before.
            model: Served model name; "" takes the answer's.
        """
        context = CaptureContext(
            rollout_id,
            model_call_id,
            self._sink,
            self._resolver,
            model=model,
            delta_records=self._delta_records,
            fail_unproven_prefix=self._fail_unproven_prefix,
            version_start=self.weight_version,
        )
        call = CallCapture(context, self._services)
        self._calls_under_way.add(call)
        return call

    def mark_soon(self, rollout_id: str, model_call_id: str = "") -> None:
        """Note that a rollout may have lost tokens, without waiting for the disk (B78).

        The mark is written in the background, again and again until it is durable or :meth:`aclose` is called. Before
        the rollout is read, await :meth:`settled`. Call this on the event loop.

        Raises:
            RuntimeError: This is closed.
        """
        if self._sink is None:
            _log.warning("%s: a training call on a path that is not captured, and no sink to mark it in", rollout_id)
            return
        self._marks.add(rollout_id, model_call_id)

    def unmarked(self) -> frozenset[str]:
        """Return the rollouts that lost tokens and whose mark is not durable yet."""
        return self._marks.pending()

    def forget(self, rollout_id: str) -> None:
        """Keep what came before out of a rollout that begins anew, whose evidence is cleared after this (B71).

        Marks are dropped, and a resolver that remembers records is told. Calls under way are answered as ever, and
        nothing of theirs is kept: one that is not noted yet is refused, and only a record that is being written just
        now marks the rollout.
        """
        self._marks.drop(rollout_id)
        self._tell_resolver_to_forget(rollout_id)
        for call in self._calls_under_way:
            if call.context.rollout_id == rollout_id:
                call.context.superseded = True

    def _tell_resolver_to_forget(self, rollout_id: str) -> None:
        forget = getattr(self._resolver, "forget", None)
        if not callable(forget):
            return
        try:
            forget(rollout_id)
        except Exception as error:  # noqa: BLE001 - boundary: what it still knows proves nothing, so the worst is a mask
            _log.warning("%s: the lineage store does not forget it: %r", rollout_id, error)

    async def settled(self, rollout_id: str, timeout_s: float) -> bool:
        """Wait until every mark of a rollout is durable, ``timeout_s`` at most, and return whether all are."""
        return await self._marks.settled(rollout_id, timeout_s)

    async def aclose(self) -> None:
        """Wait for marks, then close what this owns. No call may be under way; can be called again.

        Raises:
            CaptureError: Rollouts lost tokens and could not be marked; they are named.
            Exception: What an owned sink or resolver raised, once everything is closed.
        """
        lost = await self._marks.aclose(self._timeout_s)
        await self._bounded.aclose(self._timeout_s)
        await asyncio.to_thread(self._threads.shutdown)
        owned, self._owned = self._owned, []
        results = [await _closed(each, self._bounded) for each in owned if each is not None]
        if lost:
            names = ", ".join(sorted(lost))
            raise CaptureError(f"these rollouts lost tokens and could not be marked incomplete, mask them: {names}")
        for error in filter(None, results):
            raise error

    def _mark_later(self, rollout_id: str, model_call_id: str, reason: str) -> None:
        try:
            self._marks.add(rollout_id, model_call_id, reason)
        except RuntimeError as error:  # a call outlived its server: there is nobody left to try again
            _log.error("%s: call %s could not be marked, mask its rollout: %s", rollout_id, model_call_id, error)

    async def _on_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


async def _closed(owned: TokenSink | LineageResolver, bounded: BoundedCalls) -> Exception | None:
    try:
        await bounded.run(owned.close(), f"close of {type(owned).__name__}")
    except Exception as error:  # noqa: BLE001 - boundary: the others are still to be closed, then it is raised
        _log.exception("%s could not be closed", type(owned).__name__)
        return error
    return None


class CallCapture:
    """One training call. Await :meth:`resolve` and :meth:`intend`, then exactly one of the three endings, in order.

    A cancelled call awaits no ending.
    """

    def __init__(self, context: CaptureContext, services: CaptureServices) -> None:
        self._context = context
        self._recorder = CallRecorder(context, services)

    @property
    def context(self) -> CaptureContext:
        """The call's state, for an engine in this process that commits its own tokens."""
        return self._context

    @property
    def resolution(self) -> LineageResolution | None:
        """The decision about the parent; None before :meth:`resolve`, or if it was given no items."""
        return self._context.parent_resolution

    @property
    def parent(self) -> ParentTokens | None:
        """The proven parent's tokens as a view, None unless it is resolved and has any."""
        return self._context.parent

    async def resolve(self, items: Sequence[object] | None) -> None:
        """Look the parent up (B79-B82); never raises. None, for a request without readable turns, decides nothing.

        Args:
            items: The request's items, which must not change from now on.
        """
        await self._recorder.resolve(items)

    async def intend(self) -> None:
        """Note durably that the call is about to be dispatched (B83); before anything is generated.

        Raises:
            Exception: What the sink raises, or ``TimeoutError``: the call must be refused.
        """
        await self._recorder.intend()

    def refusal(self, outcome: TokenOutcome | None) -> str | None:
        """Return why the call must fail for want of a proved prefix, None if it is served (W35).

        Ask before anything of an answer is sent; a streamed one is beyond refusal, and its rollout is marked instead.
        """
        if not self._context.fail_unproven_prefix or outcome is None or not outcome.prefix_requested:
            return None
        if isinstance(outcome, Untrainable):
            return outcome.detail or outcome.reason if outcome.reason == PREFIX_NOT_SUPPLIED else None
        return None if self._recorder.proves_prefix(outcome) else "the engine did not prove the prefix it was given"

    async def commit(self, response: Mapping[str, Any], outcome: TokenOutcome | None) -> None:
        """Keep the record of a complete answer; it is durable, or its rollout is marked, when this returns.

        Never raises. After a first commit, an engine's own included, nothing more is kept (W24).

        Args:
            response: The complete answer in the client's dialect.
            outcome: What the engine consumed and sampled; None takes what ``response`` itself carries.
        """
        await self._recorder.commit(response, outcome, self._context.request_items)

    async def untrainable(self, outcome: Untrainable) -> None:
        """Say that the call was answered and its tokens cannot be used; its rollout is marked. Never raises."""
        await self._recorder.untrainable(outcome)

    async def withdraw(self, reason: str) -> None:
        """Say that the engine failed before any content was served: the note is cleared (W23). Never raises.

        A sink that takes no withdrawals keeps the note, and the rollout reads as incomplete.
        """
        await self._recorder.withdraw(reason)

    def abandon(self) -> None:
        """Say that the call was cancelled. Its note stays; where the sink keeps no notes, its rollout is marked."""
        self._recorder.abandon()
