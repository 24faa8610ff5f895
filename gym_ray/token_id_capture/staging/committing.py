"""From what a worker answered to the row of its call in the ledger, or to the reason why it has none (C253-C255).

Pure functions. Nothing here recomputes a hash of tokens: this server has none, and a worker that lies is found out when
the rollout is verified (C255).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from gym_ray.errors import CaptureError
from gym_ray.token_id_capture.fingerprint import (
    FINGERPRINT_VERSION,
    ConversationHasher,
    HashedItems,
    assistant_fingerprint,
)
from gym_ray.token_id_capture.request_items import text_input_of, text_turn
from gym_ray.token_id_capture.response_shapes import response_to_output_items
from gym_ray.token_id_capture.staging.constants import (
    INVALID_COMMIT_COORDS_REASON,
    WORKER_CAPTURE_FAILED_REASON,
    WORKER_MISSING_COMMIT_COORDS_REASON,
)
from gym_ray.token_id_capture.staging.ledger_records import CallRecord, CaptureLedgerCommit
from gym_ray.token_id_capture.staging.records import CaptureAdmission, CommitCoords

__all__ = ["NotStagedError", "checked_coordinates", "ledger_commit"]

_AS_THE_WORKER_SAID: Final = (
    "model_call_id",
    "parent_call_id",
    "prev_len",
    "delta_len",
    "cum_len",
    "weight_version",
    "digest",
    "extras_digest",
    "staging_key",
    "chain_hash",
    "cumulative_hash",
)
"""Columns of a row that are the worker's own."""


class NotStagedError(CaptureError):
    """A call that was served and has no usable tokens in its worker's storage.

    Args:
        reason: One of the reasons of C16.
        detail: What was found.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"


def checked_coordinates(parked: Any, admission: CaptureAdmission) -> CommitCoords:
    """Return the coordinates that a worker answered, if they are those of the admitted call.

    Args:
        parked: What stood in its answer, unchecked; None when nothing did.
        admission: What the call was admitted as.

    Raises:
        NotStagedError: They are missing, malformed or another call's, or its capture failed.
    """
    if parked is None:
        raise NotStagedError(WORKER_MISSING_COMMIT_COORDS_REASON, "the worker answered without any")
    try:
        coordinates = CommitCoords.model_validate(parked)
    except ValidationError as error:
        what = error.errors(include_url=False, include_input=False)[0]["msg"]
        raise _invalid(f"they are malformed: {what}") from error
    _agree(coordinates, admission, "rollout_id", "model_call_id")
    if coordinates.disposition == "capture_failed":
        raise NotStagedError(WORKER_CAPTURE_FAILED_REASON, "the worker could not stage the tokens of the call")
    _agree(coordinates, admission, "parent_call_id", "prev_len")
    return coordinates


def ledger_commit(
    coordinates: CommitCoords,
    admission: CaptureAdmission,
    *,
    served: Mapping[str, Any],
    response_id: str | None,
    request_items: Sequence[object],
    admitted_at: float,
) -> CaptureLedgerCommit:
    """Return what the ledger is to keep of a staged call (C254).

    Args:
        coordinates: Where its tokens are.
        admission: What it was admitted as.
        served: The answer as its client gets it.
        response_id: The id of that answer, None when the worker gave it none.
        request_items: The turns of its request, as :func:`~gym_ray.token_id_capture.request_items` gives them.
        admitted_at: When it was admitted, UNIX seconds.

    Raises:
        NotStagedError: The answer has no id.
        ValueError: The parts contradict each other.
    """
    if response_id is None:
        raise _invalid("the worker's answer has no id")
    response_items = response_to_output_items(served)
    output, continuation = _fingerprints(request_items, response_items)
    record = CallRecord(
        **{name: getattr(coordinates, name) for name in _AS_THE_WORKER_SAID},
        mode=admission.mode,
        response_id=response_id,
        admitted_at=admitted_at,
        output_fingerprint=output,
        continuation_fingerprint=continuation,
        fingerprint_version=0 if output is None and continuation is None else FINGERPRINT_VERSION,
    )
    return CaptureLedgerCommit(
        rollout_id=admission.rollout_id,
        record=record,
        staging_chain=[*admission.staging_chain, record.staging_key],
        request_items=_turns(request_items),
        response_items=response_items,
    )


def _turns(request_items: Sequence[object]) -> list[object]:
    """Return the turns as the next request will have them: a text ``input`` has become the user's turn by then."""
    text = text_input_of(request_items)
    return [*request_items, *([] if text is None else [text_turn(text)])]


def _fingerprints(request_items: Sequence[object], response_items: Sequence[object]) -> tuple[str | None, str | None]:
    """Return the fingerprints of the answer alone and of the whole conversation; none where one cannot be made."""
    hashed = request_items.hasher.copy() if isinstance(request_items, HashedItems) else ConversationHasher()
    try:
        if not isinstance(request_items, HashedItems):
            hashed.feed(request_items)
        hashed.feed(response_items)
        output, continuation = assistant_fingerprint(response_items), hashed.fingerprint()
    except ValueError:
        return None, None  # content that cannot be hashed exactly abstains (C320)
    return output or None, continuation or None


def _agree(coordinates: CommitCoords, admission: CaptureAdmission, *names: str) -> None:
    for name in names:
        said, granted = getattr(coordinates, name), getattr(admission, name)
        if said != granted:
            raise _invalid(f"{name} is {said!r}, and the call was admitted with {granted!r}")


def _invalid(detail: str) -> NotStagedError:
    return NotStagedError(INVALID_COMMIT_COORDS_REASON, detail)
