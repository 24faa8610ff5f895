"""Attributes what went wrong in an attempt to one boundary, as one row of D35 each."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

import httpx

from gym_ray.agents.hiding import hide_in_text
from gym_ray.errors import AgentError
from gym_ray.evidence.run_result import RunFailure

__all__ = ["AGENT_REQUEST_FAILED", "AGENT_RUN_ERROR", "ENGINE_UNAVAILABLE", "failure_from", "model_call_class"]

AGENT_RUN_ERROR = "agent_run_error"
AGENT_REQUEST_FAILED = "agent_request_failed"
ENGINE_UNAVAILABLE = "engine_unavailable"

TRANSIENT_STATUSES = frozenset({429, 502, 503, 504})
"""Statuses that say "not now" rather than "this broke" (D35)."""

_MAX_BODY_CHARS = 2000
_MAX_MESSAGE_CHARS = 1000
_MAX_CAUSES = 8
_MAX_FRAMES = 8
_MAX_TRACEBACK_CHARS = 4000


def model_call_class(status: int | None) -> str:
    """Return the failure class of a model call that ended with ``status``, None when no answer came."""
    if status is None or status in TRANSIENT_STATUSES:
        return ENGINE_UNAVAILABLE
    return AGENT_RUN_ERROR


def failure_from(error: BaseException, secrets: Sequence[str | None] = ()) -> RunFailure:
    """Return the failure that ``error`` stands for.

    An :class:`AgentError` names its own class. In an agent's own code the errors of HTTP clients and of the model SDKs
    are told apart by the status they carry, or by the broken transport behind them. An error whose own code fails when
    it is looked at is a failure like any other.

    Args:
        error: What was raised.
        secrets: Texts that must not be in the failure, whatever the error says.
    """
    try:
        return _classed(error, secrets)
    except BaseException as broken:  # noqa: BLE001 - an error's text and status may be foreign code, too
        message = f"the error cannot be read: looking at it raised {type(broken).__name__}"
        return RunFailure(AGENT_RUN_ERROR, type(error).__name__, message)


def _classed(error: BaseException, secrets: Sequence[str | None]) -> RunFailure:
    if isinstance(error, AgentError):
        return _failure(error, secrets, error.failure_class, error.status, error.body or None)
    status, body = _status_and_body(error)
    if status is not None:
        return _failure(error, secrets, model_call_class(status), status, body)
    failure_class = ENGINE_UNAVAILABLE if _transport_broke(error) else AGENT_RUN_ERROR
    return _failure(error, secrets, failure_class, None, None)


def _failure(
    error: BaseException, secrets: Sequence[str | None], failure_class: str, status: int | None, body: str | None
) -> RunFailure:
    # Hidden before anything is cut, or half a secret would be left at the cut.
    message = " ".join(hide_in_text(str(error), secrets).split()) or type(error).__name__
    body = None if body is None else hide_in_text(body, secrets)
    if body is not None and len(body) > _MAX_BODY_CHARS:
        body = body[:_MAX_BODY_CHARS] + "…"
    # Ours name their cause; foreign code is searched.
    place = None if isinstance(error, AgentError) else _traceback(error, secrets)
    return RunFailure(failure_class, type(error).__name__, message[:_MAX_MESSAGE_CHARS], status, body, place)


def _traceback(error: BaseException, secrets: Sequence[str | None]) -> str:
    text = hide_in_text("".join(traceback.format_exception(error, limit=-_MAX_FRAMES, chain=False)), secrets)
    return text if len(text) <= _MAX_TRACEBACK_CHARS else "…" + text[-_MAX_TRACEBACK_CHARS:]


def _status_and_body(error: BaseException) -> tuple[int | None, str | None]:
    """Read the status that httpx's and the SDKs' status errors carry."""
    response = getattr(error, "response", None)
    status = getattr(error, "status_code", None)
    if not isinstance(status, int):
        status = getattr(response, "status_code", None)
    if not isinstance(status, int):
        return None, None
    if not isinstance(response, httpx.Response):
        return status, None
    try:
        return status, response.text
    except httpx.ResponseNotRead:  # a streamed answer that its owner did not read
        return status, None


def _transport_broke(error: BaseException) -> bool:
    current: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if current is None:
            return False
        if isinstance(current, httpx.TransportError):
            return True
        current = current.__cause__
    return False
