from __future__ import annotations

import json
from typing import Any

from gym_ray.correlation import derive_rollout_id
from gym_ray.evidence.join import join
from gym_ray.evidence.observations import validated_trajectory
from gym_ray.evidence.run_result import RunFailure, RunResult
from gym_ray.model_call_capture.lines import CaptureSnapshot
from gym_ray.model_call_capture.quiesce import WrittenCalls
from gym_ray.model_call_capture.store import CaptureStore


def snapshot_of(case: dict[str, Any], tmp_path: Any, rollout_id: str) -> CaptureSnapshot:
    """Lay out the capture directory of the case and read the attempt's part of it."""
    store = CaptureStore(tmp_path)
    lines = [json.dumps(exchange) for exchange in case.get("exchanges", ())] + case.get("raw_lines", [])
    if lines or case.get("empty_file"):
        store.path_for(rollout_id).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    for other, exchanges in case.get("other_files", {}).items():
        store.path_for(other).write_text("".join(f"{json.dumps(exchange)}\n" for exchange in exchanges), "utf-8")
    if case.get("incomplete"):
        store.mark_incomplete(rollout_id)
    return store.snapshot(rollout_id)


def joined(case: dict[str, Any], tmp_path: Any) -> dict[str, Any]:
    row = case["row"]
    rollout_id = derive_rollout_id(row)
    assert rollout_id is not None
    latency_ms = case.get("rollout_latency_ms")
    reply, failure = json.dumps(case["result"]).encode(), None
    if case.get("no_result"):
        reply, failure = None, RunFailure(case["result"]["_ng_failure_class"], "HTTPStatusError", "500")
    snapshot = written = None
    if case.get("observability_enabled", True):
        snapshot, written = snapshot_of(case, tmp_path, rollout_id), WrittenCalls()
    found = join(json.dumps(row).encode(), rollout_id, RunResult(reply, failure, latency_ms or 0.0), snapshot, written)
    record: dict[str, Any] = json.loads(found.line)
    if latency_ms is None:  # the peer measured none
        record.get("ng_perf", {}).pop("total_latency_ms", None)
    return record


def expected(case: dict[str, Any]) -> dict[str, Any]:
    """Return the peer's record, or where it links loosely the exact one (D95)."""
    record: dict[str, Any] = case["expected"]
    exact = case.get("exact_variant")
    if exact is None:
        return record
    trajectory = record["ng_trajectory"]
    trajectory["turns"] = exact["turns"]
    if exact["turns_unavailable_gap"]:
        before = next(i for i, gap in enumerate(trajectory["gaps"]) if gap["code"] == "conversation_unavailable")
        trajectory["gaps"].insert(before, {"code": "turns_unavailable", "invocation_id": None, "detail": None})
    return record | {"ng_perf": exact["ng_perf"]}


def with_its_capture(record: dict[str, Any], wanted: dict[str, Any], exchanges: list[dict[str, Any]]) -> dict[str, Any]:
    """A rollout without a reply: what the peer says of it, what failed, and its calls without payloads (D35, D36)."""
    capture = record["ng_model_call_capture"]
    assert [call["model_call_id"] for call in capture["calls"]] == [call["model_call_id"] for call in exchanges]
    assert not any("request" in call or "response" in call for call in capture["calls"])
    assert set(record) - set(wanted) == {
        "_ng_failure_type",
        "_ng_failure_message",
        "_ng_failure_http_status",
        "_ng_failure_response_body",
        "ng_model_call_capture",
    }
    return {name: record[name] for name in set(record) - set(wanted)} | wanted


def with_split_messages(wanted: dict[str, Any], exchanges: list[dict[str, Any]]) -> dict[str, Any]:
    """The turns of calls whose content is a list of blocks, split into what was thought and what was answered (D94)."""
    contents = {call["model_call_id"]: call["response"]["content"] for call in exchanges}
    steps: dict[str, int] = {}
    for turn in wanted["ng_trajectory"]["turns"]:
        content = contents[turn["model_calls"][0]["model_call_id"]]
        thinking = [block for block in content if block["type"] == "thinking"]
        turn["answer"] = [block for block in content if block not in thinking]
        turn["reasoning_content"] = thinking or None
        turn["step_count"] = steps.get(turn["invocation_id"], 0)
        steps[turn["invocation_id"]] = turn["step_count"] + sum(block["type"] == "tool_use" for block in content)
    return wanted


def test_vector(case: dict[str, Any], tmp_path: Any, departures: dict[str, Any]) -> None:
    record, wanted = joined(case, tmp_path), expected(case)
    exchanges = case.get("exchanges", [])
    if case.get("no_result"):
        assert departures["a_failed_rollout_keeps_its_capture"]["file"] == "D_pipeline.json"
        wanted = with_its_capture(record, wanted, exchanges)
    if any(call.get("dialect") == "messages" for call in exchanges):
        assert departures["turns_of_messages_are_split"]["file"] == "D_pipeline.json"
        wanted = with_split_messages(wanted, exchanges)
    assert record == wanted
    if "ng_trajectory" in record:  # what is built without the models is what the models would give
        assert json.dumps(validated_trajectory(record["ng_trajectory"])) == json.dumps(record["ng_trajectory"])
