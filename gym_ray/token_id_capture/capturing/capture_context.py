"""One training call under way: who it is, what is known of its parent, whether its record is kept (B74).

The context stands in a context variable, so that an engine in the same process can commit its own tokens to the call
that asked for them. It belongs to one request: nothing here is shared between two.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass

from gym_ray.token_id_capture.exact_tokens import ParentTokens
from gym_ray.token_id_capture.extras import Version
from gym_ray.token_id_capture.lineage import LineageMatch, LineageResolution, LineageResolver
from gym_ray.token_id_capture.protocols import TokenSink
from gym_ray.token_id_capture.records import ParentResolutionStatus

__all__ = ["CaptureContext", "current_capture_context", "reset_token_sink", "set_token_sink"]

_current: ContextVar[CaptureContext | None] = ContextVar("token_capture_context", default=None)


@dataclass(slots=True)
class CaptureContext:
    """State of one call.

    Attributes:
        rollout_id: The training sample.
        model_call_id: The call, as the server minted it.
        token_sink: Where its record goes; None when another process keeps it.
        lineage_store: Finds its parent; None when there is none.
        model: Served model name; "" takes the answer's.
        committed: Its record is kept, here or elsewhere.
        delta_records: Store only what follows the parent, where that is proved (B91).
        prefix_requested: The engine was asked to reuse the parent's tokens.
        prefix_supplied: Its prompt proved that it did.
        parent_resolution: The decision about its parent; None before there is one.
        external_staging: A worker keeps its tokens; nothing is captured here (B84).
        fail_unproven_prefix: A prefix that was requested and is not proved fails the call; False marks it (W35).
        request_items: The items of its request, once its parent was looked for.
        version_start: Version of the weights when it began.
        superseded: Its rollout began anew meanwhile; the call belongs to an attempt whose evidence is gone (B71).
    """

    rollout_id: str
    model_call_id: str
    token_sink: TokenSink | None
    lineage_store: LineageResolver | None = None
    model: str = ""
    committed: bool = False
    delta_records: bool = True
    prefix_requested: bool = False
    prefix_supplied: bool = False
    parent_resolution: LineageResolution | None = None
    external_staging: bool = False
    fail_unproven_prefix: bool = False
    request_items: Sequence[object] | None = None
    version_start: Version | None = None
    superseded: bool = False

    @property
    def is_settled(self) -> bool:
        """Whether nothing more is to be kept or told of it here."""
        return self.committed or self.superseded or self.external_staging

    @property
    def match(self) -> LineageMatch | None:
        """The proven parent, None unless it is resolved."""
        decision = self.parent_resolution
        return decision.match if decision and decision.status is ParentResolutionStatus.RESOLVED else None

    @property
    def parent_call_id(self) -> str | None:
        """The proven parent's call, None unless it is resolved."""
        return self.match.model_call_id if self.match else None

    @property
    def parent(self) -> ParentTokens | None:
        """The proven parent's tokens as a view, None unless it is resolved and has any."""
        match = self.match
        if match is None or not match.tokens.size:
            return None
        return ParentTokens(match.model_call_id, match.tokens, match.ended_by, match.generated)

    @property
    def parent_tokens(self) -> list[int]:
        """The proven parent's tokens as a new list, empty unless it is resolved."""
        return self.match.tokens.tolist() if self.match else []


def set_token_sink(context: CaptureContext) -> Token[CaptureContext | None]:
    """Make ``context`` the call that runs here, and return what :func:`reset_token_sink` takes."""
    return _current.set(context)


def reset_token_sink(token: Token[CaptureContext | None]) -> None:
    """Make the call that ran before :func:`set_token_sink` the one that runs here again."""
    _current.reset(token)


def current_capture_context() -> CaptureContext | None:
    """Return the call that runs here, None outside of one."""
    return _current.get()
