from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from gym_ray.model_call_capture.attachment import AGENT_OBSERVATION_JOIN_FAILED, attach
from gym_ray.model_call_capture.store import CaptureStore


def write_capture(store: CaptureStore, case: dict[str, Any]) -> None:
    if case["capture_lines"] is not None:
        lines = [line if isinstance(line, str) else json.dumps(line) + "\n" for line in case["capture_lines"]]
        store.path_for(case["file_id"]).write_text("".join(lines), "utf-8")
    if case["incomplete_marker"]:
        store.mark_incomplete(case["file_id"])


def make_unreadable(store: CaptureStore, case: dict[str, Any]) -> None:
    path = store.path_for(case["file_id"])
    path.unlink()
    path.mkdir()  # a directory cannot be read as a file, whoever asks


def expected_of(case: dict[str, Any], departures: dict[str, Any]) -> dict[str, Any]:
    expected = copy.deepcopy(case["expected"])
    attached = expected.get("ng_model_call_capture", {})
    gap = {"code": AGENT_OBSERVATION_JOIN_FAILED}
    if "ng_agent_observations" in case["record"] and gap not in attached.get("gaps", []):
        assert departures["observations_join_is_given"]["file"] == "A_attachment.json"
        expected["ng_agent_observations"] = case["record"]["ng_agent_observations"]
        attached.setdefault("gaps", []).append(gap)
    assert isinstance(expected, dict)
    return expected


def test_vector(case: dict[str, Any], tmp_path: Path, departures: dict[str, Any]) -> None:
    store = CaptureStore(tmp_path)
    write_capture(store, case)
    if case["unreadable"]:
        make_unreadable(store, case)
    snapshot = store.snapshot(case["file_id"]) if case["capture_enabled"] else None
    record = copy.deepcopy(case["record"])
    result = attach(record, snapshot, include_payloads=case["include_payloads"])
    assert result == expected_of(case, departures)
    assert record == case["record"]
    if snapshot is not None and "ng_model_call_capture" in result:
        calls = case["expected"]["ng_model_call_capture"]["calls"]
        assert [list(call) for call in result["ng_model_call_capture"]["calls"]] == [list(call) for call in calls]
