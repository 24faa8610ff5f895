from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.evidence.join import Joined, join
from gym_ray.evidence.run_result import RunFailure, RunResult
from gym_ray.model_call_capture.call_index import RecordedCall
from gym_ray.model_call_capture.lines import CaptureSnapshot
from gym_ray.model_call_capture.quiesce import WrittenCalls

ROW = {
    "responses_create_params": {"input": "q"},
    "agent_ref": {"name": "toy", "type": "responses_api_agents"},
    "_ng_task_index": 3,
    "_ng_rollout_index": 1,
    "secret_of_the_row": "not copied",
}
EMPTY = CaptureSnapshot(None, incomplete=False)


def exchange(call_id: str, **usage: int) -> bytes:
    record = {
        "model_call_id": call_id,
        "dialect": "responses",
        "model_ref": {"type": "responses_api_models", "name": "policy_model"},
        "started_at": 1000.0,
        "completed_at": 1001.5,
        "latency_ms": 1500.0,
        "latency_ttft_ms": None,
        "status_code": 200,
        "error_category": None,
        "request": {"model": "toy", "input": "q"},
        "response": {"id": f"resp_{call_id}", "status": "completed", "output": [], "usage": usage or None},
    }
    return json.dumps(record).encode() + b"\n"


def recorded(*call_ids: str) -> tuple[RecordedCall, ...]:
    return tuple(RecordedCall(call_id, "3-1.capture.jsonl", 0, 1) for call_id in call_ids)


def run(reply: object, row: dict[str, Any] | None = None, **kwargs: Any) -> tuple[dict[str, Any], Joined]:
    data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
    return joined(RunResult(data, None, 12.5), row, **kwargs)


def joined(result: RunResult, row: dict[str, Any] | None = None, **kwargs: Any) -> tuple[dict[str, Any], Joined]:
    kwargs.setdefault("snapshot", None)
    kwargs.setdefault("written", None)
    found = join(json.dumps(row or ROW).encode(), "3-1", result, **kwargs)
    return json.loads(found.line), found


def gaps(record: dict[str, Any]) -> list[tuple[str, str | None]]:
    return [(gap["code"], gap.get("detail")) for gap in record["ng_model_call_capture"].get("gaps", [])]


def test_a_reply_becomes_the_record_with_the_rows_identity() -> None:
    reply = {"reward": 0.5, "response": {"id": "r"}, "_ng_task_index": 99, "agent_ref": {"name": "evil"}, "extra": [1]}
    record, found = run(reply)
    assert record == {
        "reward": 0.5,
        "response": {"id": "r"},
        "_ng_task_index": 3,
        "agent_ref": ROW["agent_ref"],
        "extra": [1],
        "_ng_rollout_index": 1,
    }
    assert found.destination == "main"
    assert (found.summary.reward, found.summary.agent, found.summary.task) == (0.5, "toy", "3")


def test_a_reply_cannot_name_another_rollouts_capture() -> None:
    reply = {"_ng_rollout_id": "other", "_ng_attempt_index": 7, "capture_rollout_id": "other"}
    record, _ = run(reply)
    assert not {"_ng_rollout_id", "_ng_attempt_index", "capture_rollout_id"} & set(record)
    row = {**ROW, "_ng_rollout_id": "job", "_ng_attempt_index": 2, "task_source": "s", "skills_ref": {"a": 1}}
    record, _ = run(reply, row)
    assert (record["_ng_rollout_id"], record["_ng_attempt_index"]) == ("job", 2)
    assert (record["task_source"], record["skills_ref"]) == ("s", {"a": 1})


@pytest.mark.parametrize(
    ("reply", "destination", "failure_class"),
    [
        ({}, "main", None),
        ({"_ng_failure_class": None}, "main", None),
        ({"_ng_failure_class": "judge_failed", "reward": 1.0}, "failures", "judge_failed"),
        ({"_ng_no_persist": True}, "nowhere", None),
        ({"_ng_no_persist": True, "_ng_failure_class": "x"}, "nowhere", "x"),
        ({"_ng_no_persist": False}, "main", None),
        (b"[1]", "failures", "agent_run_error"),
        (b"null", "failures", "agent_run_error"),
        (b"not json", "failures", "agent_run_error"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "failures", "agent_run_error"),
    ],
)
def test_where_a_record_belongs(reply: object, destination: str, failure_class: str | None) -> None:
    record, found = run(reply)
    assert (found.destination, found.summary.failure_class) == (destination, failure_class)
    assert (record["_ng_task_index"], record["_ng_rollout_index"]) == (3, 1)
    if failure_class is not None:
        assert found.summary.reward is None


@pytest.mark.parametrize(
    ("reply", "reward", "masked"),
    [
        ({}, None, False),
        ({"reward": None}, None, False),
        ({"reward": "1"}, None, False),
        ({"reward": 0}, 0.0, False),
        ({"reward": True}, 1.0, False),
        ({"reward": 1.0, "mask_sample": True}, None, True),
        (b'{"reward": NaN}', None, False),
        (b'{"reward": 1' + b"0" * 400 + b"}", None, False),
    ],
)
def test_an_unmeasured_reward_is_null_and_never_zero(reply: object, reward: float | None, masked: bool) -> None:
    record, found = run(reply)
    assert (found.summary.reward, found.summary.masked) == (reward, masked)
    if isinstance(reply, dict):
        assert {k: v for k, v in record.items() if k in reply} == reply
        assert ("reward" in record) == ("reward" in reply)


def test_a_failure_row_has_the_keys_of_its_kind_and_its_capture() -> None:
    failure = RunFailure("agent_run_error", "HTTPStatusError", "500 from the agent", 500, '{"detail":"x"}')
    snapshot = CaptureSnapshot(exchange("c0", input_tokens=5, output_tokens=2, total_tokens=7), incomplete=False)
    record, found = joined(RunResult(None, failure, 3.0), snapshot=snapshot, written=WrittenCalls(recorded("c0")))
    attachment = record.pop("ng_model_call_capture")
    assert record == {
        "_ng_failure_class": "agent_run_error",
        "_ng_failure_type": "HTTPStatusError",
        "_ng_failure_message": "500 from the agent",
        "_ng_failure_http_status": 500,
        "_ng_failure_response_body": '{"detail":"x"}',
        "_ng_task_index": 3,
        "_ng_rollout_index": 1,
        "agent_ref": ROW["agent_ref"],
    }
    assert attachment["metrics"]["num_calls"] == 1
    assert found.summary.tokens_in == 5
    assert found.summary.latency_ms == 3.0


def test_a_quarantined_row_says_that_it_is_terminal() -> None:
    record, _ = joined(RunResult(None, RunFailure("worker_lost", "ProcessLost", "gone"), 1.0), terminal=True)
    assert record["_ng_failure_terminal"] is True


def test_calls_are_attached_without_payloads_and_summed() -> None:
    data = exchange("c0", input_tokens=5, output_tokens=2, total_tokens=7) + exchange("c1")
    written = WrittenCalls(recorded("c0", "c1"))
    record, found = run({"reward": 1}, snapshot=CaptureSnapshot(data, incomplete=False), written=written)
    attachment = record["ng_model_call_capture"]
    assert attachment["rollout_id"] == "3-1"
    assert [call["model_call_id"] for call in attachment["calls"]] == ["c0", "c1"]
    assert not {"request", "response", "request_raw", "response_raw"} & set(attachment["calls"][0])
    assert "gaps" not in attachment
    summary = found.summary
    assert (summary.num_calls, summary.tokens_in, summary.tokens_out, summary.tokens_reasoning) == (2, 5, 2, None)
    assert summary.call_latency_ms == 3000.0


@pytest.mark.parametrize(
    ("snapshot", "written", "expected"),
    [
        (EMPTY, WrittenCalls(), [("model_call_capture_no_records", None)]),
        (EMPTY, WrittenCalls(marked_incomplete=True), [("model_call_capture_incomplete", None)]),
        (CaptureSnapshot(exchange("c0"), incomplete=True), WrittenCalls(), [("model_call_capture_incomplete", None)]),
        (
            CaptureSnapshot(exchange("c0"), incomplete=False),
            WrittenCalls(recorded("c0"), open_call_ids=("c1", "c2")),
            [("model_call_capture_open_calls", "count=2")],
        ),
        (
            CaptureSnapshot(exchange("c0"), incomplete=False),
            WrittenCalls(recorded("c0"), lost_call_ids=("c1",)),
            [("model_call_capture_incomplete", None), ("model_call_capture_calls_missing", "count=1")],
        ),
        (
            CaptureSnapshot(exchange("c0"), incomplete=False),
            WrittenCalls(unreachable_writers=("w1", "w2")),
            [("model_call_capture_writer_unreachable", "writers=w1,w2")],
        ),
        (
            CaptureSnapshot(exchange("c0") + b"{damaged\n", incomplete=False),
            WrittenCalls(recorded("c0", "c1")),
            [("model_call_capture_records_unreadable", "count=1"), ("model_call_capture_calls_missing", "count=1")],
        ),
        (
            CaptureSnapshot(None, incomplete=False, error="Permission denied"),
            WrittenCalls(recorded("c0")),
            [("model_call_capture_unreadable", None), ("model_call_capture_calls_missing", "count=1")],
        ),
    ],
)
def test_whatever_was_not_read_is_a_gap(
    snapshot: CaptureSnapshot, written: WrittenCalls, expected: list[tuple[str, str | None]]
) -> None:
    record, found = run({"reward": 1}, snapshot=snapshot, written=written)
    assert gaps(record) == expected
    assert found.summary.gap_codes == tuple(code for code, _ in expected)


def test_a_capture_without_the_servers_list_is_refused() -> None:
    with pytest.raises(ValueError, match="without the servers' list"):
        run({}, snapshot=EMPTY)


def test_an_attachment_that_the_reply_brought_is_replaced_and_never_counted() -> None:
    reply = {"ng_model_call_capture": {"metrics": {"num_calls": 9}, "calls": [], "gaps": 4}}
    record, found = run(reply, snapshot=EMPTY, written=WrittenCalls())
    assert record["ng_model_call_capture"]["metrics"]["num_calls"] == 0
    record, found = run(reply)
    assert record["ng_model_call_capture"] == reply["ng_model_call_capture"]
    assert found.summary.num_calls is None


def test_a_row_that_is_no_object_is_refused() -> None:
    with pytest.raises(ValueError, match="not a JSON object"):
        join(b"[]", "3-1", RunResult(b"{}", None, 1.0), None, None)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(response=JSON, reward=JSON, extra=st.dictionaries(st.text(min_size=1), JSON, max_size=4))
def test_response_reward_and_everything_else_of_a_reply_come_back_as_they_were(
    response: Any, reward: Any, extra: dict[str, Any]
) -> None:
    reply = {**{k: v for k, v in extra.items() if not k.startswith(("_ng", "agent_ref"))}, "response": response}
    reply["reward"] = reward
    record, _ = run(reply, snapshot=EMPTY, written=WrittenCalls())
    assert {key: record[key] for key in reply} == reply


@given(
    in_file=st.sets(st.integers(0, 5)),
    listed=st.sets(st.integers(0, 5)),
    opened=st.sets(st.integers(6, 8)),
    order=st.randoms(),
)
def test_no_gap_means_that_every_listed_call_is_attached_once_in_any_order(
    in_file: set[int], listed: set[int], opened: set[int], order: Any
) -> None:
    shuffled = sorted(in_file)
    order.shuffle(shuffled)
    data = b"".join(exchange(f"c{n}") for n in shuffled)
    written = WrittenCalls(recorded(*(f"c{n}" for n in listed)), open_call_ids=tuple(f"c{n}" for n in opened))
    record, _ = run({}, snapshot=CaptureSnapshot(data, incomplete=False), written=written)
    calls = [call["model_call_id"] for call in record["ng_model_call_capture"]["calls"]]
    assert sorted(calls) == [f"c{n}" for n in sorted(in_file)]
    codes = {code for code, _ in gaps(record)}
    assert ("model_call_capture_calls_missing" in codes) == bool(listed - in_file)
    assert ("model_call_capture_open_calls" in codes) == bool(opened)
    assert bool(codes) == bool(listed - in_file or opened or not in_file)


@pytest.mark.parametrize(
    ("given_class", "named"),
    [
        ("x" * 1_000_000, "x" * 80 + "…"),
        ("\ud800bad", "'\\ud800bad'"),
        ("\x1b[2J", "'\\x1b[2J'"),
        ({"a": ["x" * 1000]}, "unnamed (dict)"),
        (False, "unnamed (bool)"),
    ],
)
def test_a_replys_own_failure_class_is_kept_as_it_came_and_counted_under_a_short_printable_name(
    given_class: object, named: str
) -> None:
    record, found = run({"_ng_failure_class": given_class})
    assert record["_ng_failure_class"] == given_class
    assert found.summary.failure_class == named
    assert found.destination == "failures"
