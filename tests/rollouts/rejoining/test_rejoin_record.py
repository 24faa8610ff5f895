"""Whatever a first join missed, a later one ends where a first one with everything would have ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gym_ray import exact_json
from gym_ray.correlation import derive_rollout_id
from gym_ray.evidence.join import Joined, JoinOptions, join
from gym_ray.evidence.run_result import RunFailure, RunResult
from gym_ray.model_call_capture.lines import CaptureSnapshot
from gym_ray.model_call_capture.quiesce import WrittenCalls
from gym_ray.rollouts.rejoining.rejoin_record import RecordAgain, Rejoining, Window, is_captured
from gym_ray.rollouts.rejoining.rejoin_sources import Sources

_VECTORS = Path(__file__).parents[2] / "vectors" / "D_pipeline.json"
_CASES = [
    case
    for case in (json.loads(_VECTORS.read_text("utf-8"))["cases"] if _VECTORS.exists() else [])
    if case.get("observability_enabled", True)
]


def _joined(case: dict[str, Any], exchanges: list[Any]) -> Joined:
    row, failure = case["row"], None
    if case.get("no_result"):
        failure = RunFailure(case["result"]["_ng_failure_class"], "HTTPStatusError", "500")
    reply = None if failure else exact_json.dumps(case["result"])
    result = RunResult(reply, failure, case.get("rollout_latency_ms") or 5.0)
    rollout_id = derive_rollout_id(row)
    assert rollout_id is not None
    return join(exact_json.dumps(row), rollout_id, result, _snapshot(case, exchanges), WrittenCalls())


def _snapshot(case: dict[str, Any], exchanges: list[Any]) -> CaptureSnapshot:
    lines = [exact_json.dumps(exchange) for exchange in exchanges]
    lines += [line.encode() for line in case.get("raw_lines", [])]
    data = b"".join(line + b"\n" for line in lines)
    return CaptureSnapshot(data or None, bool(case.get("incomplete")))


def _joined_again(case: dict[str, Any], first: Joined, exchanges: list[Any], sources: Path) -> RecordAgain:
    record = exact_json.loads_object(first.line)
    rollout_id = derive_rollout_id(case["row"])
    assert record is not None
    assert rollout_id is not None
    assert is_captured(record, rollout_id)
    with Sources(sources) as kept:
        return Rejoining(kept, lambda _: WrittenCalls(), JoinOptions()).join_again(
            record,
            rollout_id,
            _snapshot(case, exchanges),
            task=case["row"],
            window=Window(0.0, 1e12),
            latency_ms=case.get("rollout_latency_ms") or 5.0,
        )


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case["name"])
@pytest.mark.parametrize("missed", [1, 2, 99])
def test_a_later_join_equals_a_first_one(case: dict[str, Any], missed: int, tmp_path: Path) -> None:
    exchanges = case.get("exchanges", [])
    first, whole = _joined(case, exchanges[: max(0, len(exchanges) - missed)]), _joined(case, exchanges)
    sources = tmp_path / "sources.jsonl"
    sources.write_bytes(b"" if first.source is None else first.source + b"\n")
    again = _joined_again(case, first, exchanges, sources)
    assert again.kept_because is None
    if first.line == whole.line:
        assert again.record is None
    else:
        assert again.record is not None
        assert again.record.pop("_ng_rejoined")["from"] == "source"
        assert again.record == exact_json.loads(whole.line)


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case["name"])
@pytest.mark.parametrize("kept", [True, False])
def test_an_unchanged_capture_changes_nothing(case: dict[str, Any], kept: bool, tmp_path: Path) -> None:
    """Also where nobody kept what the reply brought."""
    first, sources = _joined(case, case.get("exchanges", [])), tmp_path / "sources.jsonl"
    if kept:
        sources.write_bytes(b"" if first.source is None else first.source + b"\n")
    again = _joined_again(case, first, case.get("exchanges", []), sources)
    assert again == RecordAgain(None)
