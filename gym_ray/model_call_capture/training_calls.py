"""Training-capture calls on paths that nobody captures: each may have generated tokens that no record holds (A19).

A rollout with such a call must not count as whole. What cannot have generated anything marks nothing: a path that does
not exist, a method that is not allowed, a redirect (W5), and what a server declared.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["NON_GENERATING", "UnobservedTrainingCalls"]

_log = logging.getLogger(__name__)

NON_GENERATING = frozenset({("GET", "/v1/models"), ("GET", "/health"), ("POST", "/v1/messages/count_tokens")})
"""Methods and paths of every model server that generate nothing."""

_NOTHING_THERE = frozenset({404, 405})


class UnobservedTrainingCalls:
    """Serves such calls, and marks their rollouts where tokens may have been generated.

    Args:
        mark: Given the rollout id and an empty call id, marks the rollout's token capture incomplete. Called at most
            once a call, on the event loop, before anything of the answer is sent: so it must not wait for a disk, only
            take the mark over. What it raises is logged.
        non_generating: (method, path) pairs that generate nothing, matched exactly, besides ``NON_GENERATING``.
        settled: Given the rollout id, waits until its marks are durable, or as long as that may take; the answer waits
            for it, so that who has the answer finds the mark. What it raises is logged. None waits for nothing.
    """

    def __init__(
        self,
        mark: Callable[[str, str], None],
        non_generating: Iterable[tuple[str, str]] = (),
        settled: Callable[[str], Awaitable[object]] | None = None,
    ) -> None:
        self._mark, self._settled = mark, settled
        self._non_generating = NON_GENERATING | frozenset(non_generating)

    async def serve(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send, rollout_id: str) -> None:
        """Serve one call whose prefix is removed; what the client gets, or ``app`` raises, is never changed."""
        if (scope["method"], scope["path"]) in self._non_generating:
            await app(scope, receive, send)
            return
        call = _Call(self._mark, self._settled, send, rollout_id)
        try:
            await app(scope, receive, call.send)
        except BaseException:  # a cancelled call may have generated as well; re-raised as it is
            call.mark()
            raise
        if not call.started:
            call.mark()


class _Call:
    """One call under way."""

    def __init__(
        self,
        mark: Callable[[str, str], None],
        settled: Callable[[str], Awaitable[object]] | None,
        send: Send,
        rollout_id: str,
    ) -> None:
        self._mark, self._settled, self._outer_send, self._rollout_id = mark, settled, send, rollout_id
        self._marked = False
        self.started = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            status = message["status"]
            if status not in _NOTHING_THERE and not 300 <= status <= 399:
                self.mark()
                await self._settle()
        await self._outer_send(message)

    async def _settle(self) -> None:
        if self._settled is None:
            return
        try:
            await self._settled(self._rollout_id)
        except Exception:  # noqa: BLE001 - boundary: a mark that fails must not fail the call
            _log.exception("%s: nobody knows whether its mark is durable", self._rollout_id)

    def mark(self) -> None:
        if self._marked:
            return
        self._marked = True
        try:
            self._mark(self._rollout_id, "")
        except Exception:  # noqa: BLE001 - boundary: a mark that fails must not fail the call
            _log.exception("%s: token capture could not be marked incomplete", self._rollout_id)
