from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.evidence.build import JoinOptions, build_evidence
from gym_ray.evidence.compact import Parts, inline
from gym_ray.evidence.facts import RecordFacts
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


def test_what_json_cannot_hold_is_null_and_keys_keep_their_order() -> None:
    """D47: readers of other languages must be able to parse every line."""
    _, found = run(b'{"z": NaN, "reward": 1.0, "b": [Infinity, {"c": -Infinity}], "a": 1}')
    assert json.loads(found.line, parse_constant=pytest.fail)["b"] == [None, {"c": None}]
    names = [name for name, _ in json.loads(found.line, object_pairs_hook=list)]
    assert names[:4] == ["z", "reward", "b", "a"]


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


OBSERVED = {
    "source": "toy",
    "records": [
        {
            "kind": "agent_invocation",
            "invocation_id": "root",
            "model_calls": [{"model_call_id": "c0"}],
            "conversation": [{"role": "user", "content": "q" * 300}],
        }
    ],
}


def test_what_the_reply_brought_is_kept_for_a_later_join() -> None:
    reply = {"reward": 1.0, "ng_agent_observations": OBSERVED, "ng_trajectory": {"odd": True}}
    snapshot, written = CaptureSnapshot(exchange("c0"), incomplete=False), WrittenCalls(recorded("c0"))
    record, found = run(reply, snapshot=snapshot, written=written)
    assert found.source is not None
    brought = {name: reply[name] for name in ("ng_agent_observations", "ng_trajectory")}
    assert json.loads(found.source) == {"rollout_id": "3-1", **brought}
    again = {name: value for name, value in record.items() if not name.startswith("ng_")} | brought
    assert build_evidence(again, ROW, "3-1", snapshot, written, 12.5, JoinOptions()) == record
    assert run({"reward": 1.0}, snapshot=snapshot, written=written)[1].source is None


def test_facts_have_figures_and_verdict_and_no_evidence() -> None:
    snapshot, written = CaptureSnapshot(exchange("c0"), incomplete=False), WrittenCalls(recorded("c0"))
    _, found = run({"reward": 1.0, "ng_agent_observations": OBSERVED}, snapshot=snapshot, written=written)
    facts = RecordFacts.parse(found.facts)
    assert facts is not None
    assert facts.reduced["reward"] == 1.0
    assert facts.summary["num_calls"] == 1
    assert facts.verdict["rollout_id"] == "3-1"
    assert not {"ng_trajectory", "ng_agent_observations", "ng_model_call_capture"} & set(facts.reduced)


def test_ignored_checks_do_not_run() -> None:
    snapshot, written = CaptureSnapshot(exchange("c0"), incomplete=False), WrittenCalls(recorded("c0"))
    options = JoinOptions(ignored_checks=frozenset({"model_call_missing_token_counts"}))
    found = []
    for each in (JoinOptions(), options):
        _, one = run({"ng_agent_observations": OBSERVED}, snapshot=snapshot, written=written, options=each)
        facts = RecordFacts.parse(one.facts)
        assert facts is not None
        found.append({finding["check"] for finding in facts.verdict["findings"]})
    assert found[0] - found[1] == {"model_call_missing_token_counts"}


def test_a_compact_record_and_its_parts_are_the_inline_record() -> None:
    snapshot, written = CaptureSnapshot(exchange("c0"), incomplete=False), WrittenCalls(recorded("c0"))
    reply = {"reward": 1.0, "ng_agent_observations": OBSERVED, "ng_payloads": "a reply's own"}
    whole, plain = run(reply, snapshot=snapshot, written=written)
    small, found = run(reply, snapshot=snapshot, written=written, options=JoinOptions(compact=True))
    assert found.parts is not None
    assert inline(small, Parts.parse(found.parts)) == whole
    assert (found.facts, found.summary, found.source) == (plain.facts, plain.summary, plain.source)
    assert plain.parts is None
    assert run({"reward": 1.0}, options=JoinOptions(compact=True))[1].parts is None


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


@pytest.mark.parametrize("levels", [260, 480, 900])
def test_a_line_that_nests_too_deeply_for_a_record_costs_only_itself(levels: int) -> None:
    deep = exchange("c1").replace(b'"input": "q"', b'"input": ' + nested(levels))
    data = exchange("c0") + deep + exchange("c2")
    written = WrittenCalls(recorded("c0", "c1", "c2"))
    record, found = run({"reward": 1.0}, snapshot=CaptureSnapshot(data, incomplete=False), written=written)
    assert (found.destination, record["reward"]) == ("main", 1.0)
    calls = [call["model_call_id"] for call in record["ng_model_call_capture"]["calls"]]
    assert calls in (["c0", "c1", "c2"], ["c0", "c2"])
    unread = [("model_call_capture_records_unreadable", "count=1"), ("model_call_capture_calls_missing", "count=1")]
    assert gaps(record) == ([] if len(calls) == 3 else unread)
    assert len(calls) == (3 if levels < 400 else 2)


def test_tool_arguments_of_a_model_that_loops_are_kept_as_text() -> None:
    text = (b'{"a":' * 700 + b"1" + b"}" * 700).decode()
    call = {"type": "function_call", "call_id": "t", "name": "f", "arguments": text}
    line = json.loads(exchange("c0"))
    line["response"]["output"] = [call]
    snapshot = CaptureSnapshot(json.dumps(line).encode(), incomplete=False)
    record, _ = run({"reward": 1.0}, snapshot=snapshot, written=WrittenCalls(recorded("c0")))
    assert record["ng_model_call_capture"]["calls"][0]["tool_calls"][0]["arguments"] == {"_raw": text}
    assert gaps(record) == []


def test_a_reply_that_nests_too_deeply_is_a_failure_that_keeps_its_calls() -> None:
    snapshot, written = CaptureSnapshot(exchange("c0"), incomplete=False), WrittenCalls(recorded("c0"))
    record, found = run(b'{"reward": 1.0, "odd": ' + nested(900) + b"}", snapshot=snapshot, written=written)
    assert found.destination == "failures"
    assert "cannot be stored" in record["_ng_failure_message"]
    assert record["ng_model_call_capture"]["metrics"]["num_calls"] == 1
    assert found.source is None
