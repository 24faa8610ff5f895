"""Decides, before a call is sent to its worker, whether it is captured, and as whose continuation (C210-C213).

A call that goes on with a conversation of which no parent is proved is not captured, and is never made a root: the
tokens that were generated earlier would be trained as a prompt.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from gym_ray.errors import RolloutRetiredError
from gym_ray.token_id_capture.lineage import LOOKUP_ERROR_REASON, LineageMatch, LineageResolution, hashed_items
from gym_ray.token_id_capture.records import ParentResolutionStatus
from gym_ray.token_id_capture.staging.constants import UNRESOLVED_PARENT_REASON
from gym_ray.token_id_capture.staging.ledger.protocol import CaptureLedger
from gym_ray.token_id_capture.staging.records import CaptureAdmission

__all__ = ["admit"]

_log = logging.getLogger(__name__)


async def admit(
    ledger: CaptureLedger, *, rollout_id: str, model_call_id: str, items: Sequence[Any]
) -> CaptureAdmission | None:
    """Return the admission of a call, or None for one that is served and not captured.

    Why a call is not admitted is in the ledger when this returns. A retired rollout admits no call and records nothing.

    Args:
        ledger: The rollout's ledger.
        rollout_id: The rollout: at most 230 letters, digits, ``.``, ``_`` and ``-``, the first a letter or digit (A25).
        model_call_id: The call, any text that is not empty.
        items: The items of the request as it was received, with the pseudo-turn of its instructions and tools.

    Raises:
        RolloutIdError: No ledger can have the rollout's id; a ValueError.
        ValueError: The call's id is empty.
        CaptureError: The ledger could not be asked; the call must not be sent as a captured one (C213).
    """
    try:
        hashed = hashed_items(items)
    except ValueError as error:
        _log.warning("%s: call %r is not captured, its request cannot be hashed: %s", rollout_id, model_call_id, error)
        resolution = LineageResolution(ParentResolutionStatus.UNRESOLVED, reason=LOOKUP_ERROR_REASON)
    else:
        resolution = await ledger.resolve(rollout_id, hashed)
    try:
        has_rows = await ledger.has_rows(rollout_id)
    except RolloutRetiredError:
        _log.warning("%s: call %r is not captured, the rollout is retired", rollout_id, model_call_id)
        return None
    if resolution.match is not None:
        admission = _continuation(rollout_id, model_call_id, resolution.match)
    elif not _continues_something(resolution, items, has_rows):
        admission = CaptureAdmission(rollout_id=rollout_id, model_call_id=model_call_id, mode="text")
    else:
        admission = None
    if admission is None:
        await ledger.record_failure(rollout_id, model_call_id, UNRESOLVED_PARENT_REASON)
    return admission


def _continues_something(resolution: LineageResolution, items: Sequence[Any], has_rows: bool) -> bool:
    """Whether a request without a proved parent may go on with a call of its rollout; examples do not (C210, C212)."""
    if resolution.reason == LOOKUP_ERROR_REASON:
        return True
    is_root = resolution.status is ParentResolutionStatus.ROOT
    return has_rows and not (is_root and not any(map(_is_wordless_turn, items)))


def _is_wordless_turn(item: object) -> bool:
    """Whether the model made this item and no fingerprint says so: its reasoning, or its call of a custom tool."""
    kind = item.get("type") if isinstance(item, Mapping) and not item.get("role") else None
    return isinstance(kind, str) and (kind == "reasoning" or kind.endswith("_call"))


def _continuation(rollout_id: str, model_call_id: str, parent: LineageMatch) -> CaptureAdmission | None:
    """Return the admission behind a parent; None when its row lacks what a worker needs."""
    if not parent.chain_hash or not parent.prev_len or not parent.staging_chain:
        return None
    return CaptureAdmission(
        rollout_id=rollout_id,
        model_call_id=model_call_id,
        parent_call_id=parent.model_call_id,
        prev_len=parent.prev_len,
        mode="token_in",
        staging_chain=list(parent.staging_chain),
        parent_chain_hash=parent.chain_hash,
    )
