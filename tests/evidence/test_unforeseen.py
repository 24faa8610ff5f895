"""What nobody foresaw costs a record its trajectory, and is told where readers look (D102)."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from gym_ray.evidence import build
from gym_ray.evidence.build import JoinOptions, build_evidence
from gym_ray.model_call_capture.lines import CaptureSnapshot
from gym_ray.model_call_capture.quiesce import WrittenCalls

ROW = {"_ng_task_index": 3, "_ng_rollout_index": 1}
PRODUCED = {"schema_version": "1.0", "task_id": "other", "rollout_id": "other"}
OBSERVED = {"source": "s", "records": [], "gaps": [{"code": "own"}]}


@pytest.fixture(autouse=True)
def _defect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first projection fails as no test expects it to."""
    project, failed = build.project, []

    def broken(*args: Any, **kwargs: Any) -> dict[str, Any]:
        if not failed:
            failed.append(True)
            raise LookupError("nobody foresaw this")
        return project(*args, **kwargs)

    monkeypatch.setattr(build, "project", broken)


def built(reply: dict[str, Any], snapshot: CaptureSnapshot | None = None) -> dict[str, Any]:
    written = None if snapshot is None else WrittenCalls()
    return build_evidence(reply, ROW, "3-1", snapshot, written, 1.0, JoinOptions())


def codes(holder: dict[str, Any]) -> list[tuple[str, str | None]]:
    return [(gap["code"], gap.get("detail")) for gap in holder["gaps"]]


FAILED = ("trajectory_projection_failed", "LookupError")


def test_a_capture_tells_it_first() -> None:
    reply = {"reward": 1.0, "ng_trajectory": PRODUCED, "ng_agent_observations": OBSERVED}
    record = built(reply, CaptureSnapshot(None, incomplete=False))
    assert "ng_trajectory" not in record
    assert codes(record["ng_model_call_capture"]) == [("model_call_capture_no_records", None), FAILED]
    assert FAILED not in codes(record["ng_agent_observations"])


def test_the_log_has_where_it_failed(caplog: pytest.LogCaptureFixture) -> None:
    built({"reward": 1.0, "ng_trajectory": PRODUCED})
    (told,) = caplog.records
    assert (told.levelno, told.name) == (logging.WARNING, "gym_ray.evidence.build")
    assert "3-1: its trajectory cannot be built" in told.getMessage()
    assert "nobody foresaw this" in caplog.text
    assert "in broken" in caplog.text


def test_a_join_that_fails_is_logged_too(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: object) -> None:
        raise LookupError("nobody foresaw that")

    monkeypatch.setattr(build, "exact_join", broken)
    built({"ng_agent_observations": OBSERVED}, CaptureSnapshot(None, incomplete=False))
    assert "3-1: its joined observations cannot be built" in caplog.text
    assert "nobody foresaw that" in caplog.text


def test_what_a_reply_got_wrong_is_told_by_its_gap_alone(caplog: pytest.LogCaptureFixture) -> None:
    built({"ng_agent_observations": {"source": 7, "records": "none"}, "ng_trajectory": {}}, None)
    assert "observations cannot be built" not in caplog.text


def test_observations_tell_it_without_a_capture() -> None:
    record = built({"ng_trajectory": PRODUCED, "ng_agent_observations": OBSERVED})
    assert "ng_trajectory" not in record
    assert codes(record["ng_agent_observations"]) == [("own", None), FAILED]


@pytest.mark.parametrize("observations", [None, "no bundle"])
def test_a_bare_trajectory_tells_it_where_there_is_neither(observations: object) -> None:
    record = built({"reward": 1.0, "ng_trajectory": PRODUCED, "ng_agent_observations": observations})
    trajectory = record["ng_trajectory"]
    assert (trajectory["task_id"], trajectory["rollout_id"]) == ("3", "3-1")
    assert codes(trajectory)[0] == FAILED
    assert (trajectory["invocations"], trajectory["turns"], trajectory["model_calls"]) == ([], [], [])
    assert record["reward"] == 1.0
