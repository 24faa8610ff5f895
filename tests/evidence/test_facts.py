from __future__ import annotations

import json
from typing import Any

from gym_ray import exact_json
from gym_ray.evidence.facts import RecordFacts, facts_line, facts_of_record, reduced
from gym_ray.evidence.summary import summarise

CALLS = {"tokens_in": 5, "tokens_out": 7, "tokens_reasoning": None, "tokens_total": 12, "cached_tokens": 0}
ATTACHMENT: dict[str, Any] = {
    "rollout_id": "0-1-a2",
    "metrics": {**CALLS, "latency_total_ms": 3.5, "num_calls": 2},
    "calls": [{"model_call_id": "a", "request": {"input": "SECRET"}}],
    "gaps": [{"code": "model_call_capture_incomplete"}],
}
RECORD: dict[str, Any] = {
    "reward": 0.5,
    "response": {"id": "r", "usage": {"input_tokens": 3}, "incomplete_details": None, "output": ["SECRET"]},
    "responses_create_params": {"input": "SECRET"},
    "extracted_answer": "B",
    "agent_ref": {"name": "solver"},
    "_ng_task_index": 0,
    "_ng_rollout_index": 1,
    "_ng_attempt_index": 2,
    "ng_model_call_capture": ATTACHMENT,
    "ng_agent_observations": {"records": ["SECRET"]},
    "ng_trajectory": {"turns": ["SECRET"]},
    "ng_perf": {"num_turns": 2, "total_latency_ms": 41.5},
    "_ng_training_rows": ["SECRET"],
    "_ng_token_capture": {"mask_reasons": ["no_capture"]},
}
VERDICT = {"verdict": "healthy", "findings": []}


def test_the_reduced_reply_has_no_evidence_and_only_usage_of_the_response() -> None:
    assert reduced(RECORD) == {
        "reward": 0.5,
        "extracted_answer": "B",
        "agent_ref": {"name": "solver"},
        "_ng_task_index": 0,
        "_ng_rollout_index": 1,
        "_ng_attempt_index": 2,
        "ng_perf": {"num_turns": 2, "total_latency_ms": 41.5},
        "response": {"usage": {"input_tokens": 3}},
    }
    cut = {"response": {"incomplete_details": {"reason": "max_output_tokens"}, "output": []}}
    assert reduced(cut) == {"response": {"incomplete_details": {"reason": "max_output_tokens"}}}
    assert reduced({"response": {"output": []}, "reward": 1}) == {"reward": 1}
    assert reduced({"response": "text"}) == {}
    assert reduced({"ng_payloads": {"conversations": ["SECRET"]}, "reward": 1}) == {"reward": 1}


def test_a_line_says_what_the_summary_says_and_nothing_of_the_payloads() -> None:
    summary = summarise(RECORD, ATTACHMENT, "0-1-a2", 77.0)
    line = facts_line(RECORD, ATTACHMENT, VERDICT, summary=summary)
    assert b"SECRET" not in line
    assert b"\n" not in line
    facts = RecordFacts.parse(line)
    assert facts is not None
    assert facts.reduced == reduced(RECORD)
    assert facts.verdict == VERDICT
    assert facts.summary["latency_ms"] == 77.0
    assert facts.summary["tokens_in"] == 5
    assert facts.summary["tokens_reasoning"] is None
    assert facts.summary["gap_codes"] == ["model_call_capture_incomplete"]
    assert facts.summary["token_mask_reasons"] == ["no_capture"]
    # Taken from the record later, everything but the time of the run is the same.
    again = RecordFacts.parse(facts_of_record(RECORD, VERDICT))
    assert again is not None
    assert again.summary == {**facts.summary, "latency_ms": 41.5}
    assert (again.reduced, again.verdict) == (facts.reduced, facts.verdict)


def test_records_of_elsewhere_have_facts_whatever_they_hold() -> None:
    odd: list[dict[str, Any]] = [
        {},
        {"reward": "x", "agent_ref": 3, "_ng_task_index": "a/b", "_ng_rollout_index": 0, "ng_model_call_capture": 4},
        {
            "ng_model_call_capture": {"metrics": {}, "gaps": {"code": "one_object"}},
            "ng_perf": {"total_latency_ms": True},
        },
        {"ng_model_call_capture": {"metrics": {}, "gaps": [3, {"code": 4}]}, "response": {"usage": 3}},
        {"ng_model_call_capture": {}},
        {"ng_model_call_capture": {"metrics": None, "calls": []}},
        {"ng_model_call_capture": {"metrics": [1]}},
        {"ng_model_call_capture": {"metrics": {}, "gaps": 7}, "_ng_task_index": 10**40, "_ng_rollout_index": 0},
        {"_ng_failure_class": 5, "_ng_failure_message": "SECRET", "_ng_failure_response_body": "SECRET"},
    ]
    for record in odd:
        line = facts_of_record(record, {})
        facts = RecordFacts.parse(line)
        assert facts is not None
        assert b"SECRET" not in line
        assert facts.summary["latency_ms"] is None
    first = RecordFacts.parse(facts_of_record(odd[2], {}))
    assert first is not None
    assert first.summary["gap_codes"] == ["one_object"]


def test_what_is_no_whole_line_is_not_believed() -> None:
    line = facts_line(RECORD, None, VERDICT)
    assert RecordFacts.parse(line) is not None
    for end in range(len(line)):
        assert RecordFacts.parse(line[:end]) is None
    value = json.loads(line)
    for key in ("reduced", "summary", "verdict"):
        assert RecordFacts.parse(exact_json.dumps({k: v for k, v in value.items() if k != key})) is None
        assert RecordFacts.parse(exact_json.dumps({**value, key: None})) is None
