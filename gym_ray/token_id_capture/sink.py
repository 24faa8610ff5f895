"""The contract's functions of token capture: the current call in a context variable, and the parts of a process.

They are for code that was written for the contract, and for engines that commit their own tokens. A model server of
this project holds a :class:`~gym_ray.token_id_capture.call_capture.TokenCapture` instead. Both follow the same rules,
those of :mod:`gym_ray.token_id_capture.capturing.call_recorder`.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Final, TypeVar

from gym_ray.token_id_capture.bounded_calls import BoundedCalls
from gym_ray.token_id_capture.capturing.call_recorder import CallRecorder, CaptureServices
from gym_ray.token_id_capture.capturing.capture_context import (
    CaptureContext,
    current_capture_context,
    reset_token_sink,
    set_token_sink,
)
from gym_ray.token_id_capture.capturing.capture_health import CaptureHealth, PrefixCounts
from gym_ray.token_id_capture.capturing.prefix_supply import prefix_problem, put_prefix
from gym_ray.token_id_capture.fingerprint import BegunHashing
from gym_ray.token_id_capture.lineage import LineageResolution, LineageResolver
from gym_ray.token_id_capture.plug_ins import LINEAGE_METHODS, SINK_METHODS, SOURCE_METHODS, missing_methods
from gym_ray.token_id_capture.protocols import TokenSink, TokenSource
from gym_ray.token_id_capture.records import TokenEntry
from gym_ray.token_id_capture.request_items import text_input_of
from gym_ray.token_id_capture.resolution.call_index import hashed_items

__all__ = [
    "NG_CAPTURE_FIELD",
    "NG_COMMIT_COORDS_FIELD",
    "CaptureContext",
    "apply_required_prefix",
    "capture_health_snapshot",
    "capture_tokens",
    "commit_entry",
    "current_capture_context",
    "install_lineage_store",
    "install_token_sink",
    "install_token_source",
    "installed_lineage_store",
    "installed_token_sink",
    "installed_token_source",
    "prefix_supply_counts",
    "process_health",
    "prove_required_prefix",
    "register_call_intent",
    "reset_token_sink",
    "resolve_parent",
    "set_token_sink",
    "withdraw_call_intent",
]

NG_CAPTURE_FIELD: Final = "ng_capture"
NG_COMMIT_COORDS_FIELD: Final = "ng_commit_coords"

_T = TypeVar("_T")


class _Process:
    """What the contract demands once for each process: installed parts and counters (B58, B81)."""

    def __init__(self) -> None:
        self.sink: TokenSink | None = None
        self.source: TokenSource | None = None
        self.lineage_store: LineageResolver | None = None
        self.health = CaptureHealth()
        self.services = CaptureServices(
            self.health,
            BoundedCalls(None),
            lambda _rollout_id, items: BegunHashing(0, lambda: hashed_items(items)),
            asyncio.to_thread,
        )


_process = _Process()


def install_token_sink(sink: TokenSink | None) -> None:
    """Make ``sink`` the one of this process where settings name none; None takes it away (B58).

    Raises:
        TypeError: It lacks a callable ``put``, ``mark_incomplete`` or ``close``.
    """
    _process.sink = _checked(sink, SINK_METHODS, "token sink")


def install_token_source(source: TokenSource | None) -> None:
    """Make ``source`` the one of this process; it is never closed here (B58).

    Raises:
        TypeError: It lacks a callable ``freeze``, ``drop`` or ``close``.
    """
    _process.source = _checked(source, SOURCE_METHODS, "token source")


def install_lineage_store(store: LineageResolver | None) -> None:
    """Make ``store`` the one of this process where settings name none; None takes it away (B58).

    Raises:
        TypeError: It lacks a callable ``resolve``, ``is_process_shared`` or ``close``.
    """
    _process.lineage_store = _checked(store, LINEAGE_METHODS, "lineage store")


def installed_token_sink() -> TokenSink | None:
    """Return the installed sink."""
    return _process.sink


def installed_token_source() -> TokenSource | None:
    """Return the installed source."""
    return _process.source


def installed_lineage_store() -> LineageResolver | None:
    """Return the installed lineage store."""
    return _process.lineage_store


def capture_health_snapshot() -> dict[str, Any]:
    """Return ``{"resolutions": {"root", "resolved", "unresolved"}, "capture_failures"}`` of this process (B81)."""
    return _process.health.snapshot()


def prefix_supply_counts() -> PrefixCounts:
    """Return how often a parent's tokens went in, of this process (B95)."""
    return _process.health.prefix_counts()


def process_health() -> CaptureHealth:
    """Return the counters of this process, for a server that is to count in them."""
    return _process.health


async def resolve_parent(request_items: Sequence[object] | None) -> None:
    """Decide about the parent of the call that runs here; never raises (B79-B82)."""
    recorder = _recorder()
    if recorder is not None:
        await recorder.resolve(request_items)


async def register_call_intent() -> None:
    """Note the call that runs here before it is dispatched (B83).

    Raises:
        Exception: What the sink raises: the call must be refused.
    """
    recorder = _recorder()
    if recorder is not None:
        await recorder.intend()


async def withdraw_call_intent(reason: str = "") -> None:
    """Clear the note of the call that runs here, of which nothing was served (W23); never raises."""
    recorder = _recorder()
    if recorder is not None:
        await recorder.withdraw(reason)


async def capture_tokens(response: object, request_items: Sequence[object] | None = None) -> None:
    """Keep the tokens that a complete answer carries, or mark the rollout; never raises (B84-B88).

    Args:
        response: The answer, a mapping or something with ``model_dump()``.
        request_items: The items of its request; without them no later call finds this one.
    """
    context, recorder = current_capture_context(), _recorder()
    if context is None or recorder is None:
        return
    await recorder.commit(response, None, _known(request_items, context.request_items))


async def commit_entry(
    entry: TokenEntry,
    parent_resolution: LineageResolution | None = None,
    *,
    request_items: Sequence[object] | None = None,
) -> None:
    """Keep a record that an engine in this process made for the call that runs here; never raises (B89-B91).

    Args:
        entry: The record, whole or a delta; it is left as it is.
        parent_resolution: The decision about its parent; None takes the call's own.
        request_items: The items of its request, unless ``entry`` is stamped with them already.
    """
    context, recorder = current_capture_context(), _recorder()
    if context is None or recorder is None:
        return
    await recorder.commit_entry(entry, parent_resolution, _known(request_items, context.request_items))


def apply_required_prefix(body: MutableMapping[str, Any]) -> bool:
    """Put the tokens of the proven parent into a request as ``required_prefix_token_ids`` (B94).

    Returns:
        Whether there were any; without them, outside of a call or under external staging ``body`` stays as it is.
    """
    context = current_capture_context()
    if context is None or context.external_staging:
        return False
    eligible = put_prefix(context, body)
    _process.health.prefix(total=1, eligible=eligible)
    return eligible


def prove_required_prefix(body: Mapping[str, Any], response: Mapping[str, Any]) -> bool:
    """Note whether an answer proves the prefix that its request asked for (B95, W35).

    Returns:
        Whether it does; true where none was asked for. If not, the call is served, and :func:`capture_tokens` marks its
        rollout.

    Raises:
        RequiredPrefixError: It does not, and the call's context wants it to fail then; a RuntimeError.
    """
    context = current_capture_context()
    if context is None or not context.prefix_requested:
        return True
    problem = prefix_problem(context, body, response)
    context.prefix_supplied = problem is None
    if problem is None:
        _process.health.prefix(supplied=1)
    elif context.fail_unproven_prefix:
        raise problem
    return problem is None


def _recorder() -> CallRecorder | None:
    context = current_capture_context()
    return None if context is None else CallRecorder(context, _process.services)


def _known(given: Sequence[object] | None, hashed: Sequence[object] | None) -> Sequence[object] | None:
    """Return the items with the hashes they have from the look-up, where they are the same objects."""
    if given is None or hashed is None or len(given) != len(hashed):
        return given
    if text_input_of(given) not in (None, text_input_of(hashed)):
        return given
    return hashed if all(map(operator.is_, given, hashed)) else given


def _checked(part: _T | None, methods: Iterable[str], what: str) -> _T | None:
    missing = [] if part is None else missing_methods(part, methods)
    if missing:
        raise TypeError(f"{type(part).__name__} is no {what}: it lacks {', '.join(missing)}")
    return part
