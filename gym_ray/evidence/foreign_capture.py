"""Reads an attachment that a reply itself brought, where no capture of ours stands in its place (D69, D92).

It may hold anything, so every part of it is checked; what is no call is left out, what is no gap is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_ray.evidence.observations import ObservationGap, TrajectoryModelCall
from gym_ray.evidence.observations.gaps import CAPTURE_GAP_INVALID, gap
from gym_ray.evidence.trajectory.model_calls import projected_call
from gym_ray.evidence.trajectory.projection import Captured
from gym_ray.model_call_capture.attachment import ATTACHMENT_FIELD
from gym_ray.model_call_capture.call_views import CallView
from gym_ray.model_call_capture.records import PAYLOAD_FIELDS, ModelCallRecord

__all__ = ["captured_elsewhere", "without_its_payloads"]

_NOTHING = dict.fromkeys(ModelCallRecord.model_fields)
_COUNTS = ("tokens_in", "tokens_out", "tokens_reasoning", "tokens_total", "cached_tokens")


def captured_elsewhere(attachment: Any) -> Captured:
    """Return what an attachment of unknown origin says was captured; nobody owns its calls.

    Raises:
        pydantic.ValidationError: A call in it has a value that no trajectory can hold.
    """
    if not isinstance(attachment, dict):
        return Captured()
    calls, gaps = attachment.get("calls"), attachment.get("gaps")
    return Captured(
        [_call(call) for call in calls if isinstance(call, dict)] if isinstance(calls, list) else [],
        [_gap(each) for each in gaps] if isinstance(gaps, list) else [],
    )


def without_its_payloads(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record's attachment without the payloads of its calls, as the member that takes its place (D99)."""
    attachment = record.get(ATTACHMENT_FIELD)
    calls = attachment.get("calls") if isinstance(attachment, dict) else None
    if not isinstance(attachment, dict) or not isinstance(calls, list):
        return {}
    bare = [
        {name: value for name, value in call.items() if name not in PAYLOAD_FIELDS} if isinstance(call, dict) else call
        for call in calls
    ]
    return {ATTACHMENT_FIELD: attachment | {"calls": bare}}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {**_NOTHING, **call}
    if fields["response_status"] is None and isinstance(fields["response"], dict):
        fields["response_status"] = fields["response"].get("status")
    for name in _COUNTS:
        if type(fields[name]) is not int or fields[name] < 0:
            fields[name] = None
    view = CallView(fields, *(fields[name] for name in PAYLOAD_FIELDS))
    return TrajectoryModelCall.model_validate(projected_call(view, redacted=False)).plain()


def _gap(value: Any) -> dict[str, Any]:
    try:
        return ObservationGap.model_validate(value).plain()
    except ValueError:
        return gap(CAPTURE_GAP_INVALID)
