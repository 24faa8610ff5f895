"""Chooses what of a rollout record goes into a table of an experiment tracker (D118).

A tracker gets figures and outcomes. What went over the wire between agent and model stays in the capture store,
whatever shape a damaged record has: what cannot be told apart from a payload is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_ray.evidence.trajectory import TRAJECTORY_FIELD
from gym_ray.model_call_capture.attachment import ATTACHMENT_FIELD, OBSERVATIONS_FIELD
from gym_ray.model_call_capture.records import PAYLOAD_FIELDS

__all__ = ["exported_record"]


def exported_record(record: Mapping[str, Any], *, export_conversations: bool = True) -> dict[str, Any]:
    """Return a record as a tracker's rollout table shows it; the given record is not changed (D118).

    Args:
        record: A finished rollout record; a compact one is read through ``rollouts.parts_files.read_inline`` first, so
            that its conversations are what was said and not where it lies.
        export_conversations: Whether the conversations of ``ng_agent_observations`` stay in.

    Returns:
        The record without its trajectory and without the payloads of its captured calls. A capture that is no object,
        a ``calls`` that is no list and calls that are no objects are left out. Everything else is there.
    """
    exported = {key: value for key, value in record.items() if key != TRAJECTORY_FIELD}
    if ATTACHMENT_FIELD in exported:
        _replace(exported, ATTACHMENT_FIELD, _without(exported[ATTACHMENT_FIELD], "calls", PAYLOAD_FIELDS))
    if not export_conversations and OBSERVATIONS_FIELD in exported:
        _replace(exported, OBSERVATIONS_FIELD, _without(exported[OBSERVATIONS_FIELD], "records", ("conversation",)))
    return exported


def _replace(record: dict[str, Any], key: str, value: dict[str, Any] | None) -> None:
    if value is None:
        del record[key]
    else:
        record[key] = value


def _without(holder: Any, entries_key: str, fields: tuple[str, ...]) -> dict[str, Any] | None:
    """Return an object whose listed entries lack some fields, None if it is no object."""
    if not isinstance(holder, dict):
        return None
    kept = dict(holder)
    entries = kept.get(entries_key)
    if isinstance(entries, list):
        kept[entries_key] = [
            {key: value for key, value in entry.items() if key not in fields}
            for entry in entries
            if isinstance(entry, dict)
        ]
    else:
        kept.pop(entries_key, None)
    return kept
