from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_ray import exact_json
from gym_ray.evidence.build import JoinOptions, build_evidence, has_no_reply
from gym_ray.evidence.observations import validated_trajectory
from gym_ray.evidence.perf import rollout_perf
from gym_ray.model_call_capture.lines import CaptureSnapshot
from gym_ray.model_call_capture.quiesce import WrittenCalls

SERVER = {"type": "responses_api_models", "name": "policy_model"}
ROW = {"_ng_task_index": 3, "_ng_rollout_index": 1}
PAYLOADS = {"request", "response", "request_raw", "response_raw"}


def exchange(number: int, **changed: Any) -> dict[str, Any]:
    return {
        "model_call_id": f"c{number}",
        "dialect": "responses",
        "model_ref": SERVER,
        "started_at": 1000.0 + number,
        "completed_at": 1001.5 + number,
        "latency_ms": 1500.0,
        "latency_ttft_ms": None,
        "status_code": 200,
        "error_category": None,
        "request": {"model": "toy", "input": [{"role": "user", "content": f"q{number}"}]},
        "response": {
            "id": f"r{number}",
            "status": "completed",
            "output": [{"type": "function_call", "call_id": f"t{number}", "name": "look", "arguments": "{}"}],
            "usage": {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7},
        },
        **changed,
    }


def invocation(name: str, *references: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"kind": "agent_invocation", "invocation_id": name, "model_calls": list(references), **more}


def bundle(*records: dict[str, Any], gaps: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"source": "toy", "records": list(records), "gaps": gaps or []}


def built(
    reply: dict[str, Any], *exchanges: dict[str, Any], options: JoinOptions | None = None, capture: bool = True
) -> dict[str, Any]:
    data = b"".join(exact_json.dumps(each) + b"\n" for each in exchanges)
    snapshot = CaptureSnapshot(data, incomplete=False) if capture else None
    written = WrittenCalls() if capture else None
    before = copy.deepcopy(reply)
    record = build_evidence(reply, ROW, "3-1", snapshot, written, 12.5, options or JoinOptions())
    assert repr(reply) == repr(before)
    return record


def codes(holder: dict[str, Any]) -> list[tuple[str, str | None]]:
    return [(gap["code"], gap.get("detail")) for gap in holder.get("gaps", [])]


def turns(record: dict[str, Any]) -> list[tuple[str, int, int]]:
    return [(turn["invocation_id"], turn["turn_no"], turn["step_count"]) for turn in record["ng_trajectory"]["turns"]]


def test_owned_calls_become_turns_numbered_by_invocation() -> None:
    observed = bundle(
        invocation("root", {"model_call_id": "c0"}, {"model_call_id": "c2"}),
        invocation("child", {"model_ref": SERVER, "response_id": "r1"}),
    )
    record = built({"ng_agent_observations": observed, "resolved": False}, exchange(0), exchange(1), exchange(2))
    assert turns(record) == [("root", 1, 0), ("child", 1, 0), ("root", 2, 1)]
    last = record["ng_trajectory"]["turns"][-1]
    assert last["resolved"] is False
    assert last["question"] == [{"type": "message", "role": "user", "content": "q2"}]
    assert last["model_calls"] == [{"model_call_id": "c2", "model_ref": SERVER, "response_id": "r2"}]
    assert record["ng_perf"]["num_turns"] == 3
    assert record["ng_perf"]["total_latency_ms"] == 12.5


def test_turns_are_not_derived_where_that_is_switched_off() -> None:
    reply = {"ng_agent_observations": bundle(invocation("root", {"model_call_id": "c0"}))}
    record = built(reply, exchange(0), options=JoinOptions(derive_turns=False))
    assert turns(record) == []
    assert ("turns_unavailable", None) in codes(record["ng_trajectory"])


@pytest.mark.parametrize(
    ("calls", "error"),
    [
        ([exchange(0), exchange(0)], "ValidationError"),
        ([exchange(0, latency_ms=-1.0)], "ValidationError"),
        ([exchange(0, latency_ttft_ms=-0.5)], "ValidationError"),
    ],
)
def test_calls_that_make_no_trajectory_keep_their_payloads_and_a_gap_says_so(
    calls: list[dict[str, Any]], error: str
) -> None:
    record = built({"reward": 1.0}, *calls)
    assert "ng_trajectory" not in record
    assert "ng_perf" not in record
    attachment = record["ng_model_call_capture"]
    assert codes(attachment) == [("trajectory_projection_failed", error)]
    assert [call["request"] for call in attachment["calls"]] == [call["request"] for call in calls]


def test_a_latency_that_is_no_number_makes_no_trajectory() -> None:
    line = exact_json.dumps(exchange(0, latency_ms=7.25)).replace(b"7.25", b"NaN")
    snapshot = CaptureSnapshot(line, incomplete=False)
    record = build_evidence({}, ROW, "3-1", snapshot, WrittenCalls(), 1.0, JoinOptions())
    assert codes(record["ng_model_call_capture"]) == [("trajectory_projection_failed", "ValidationError")]
    assert math.isnan(record["ng_model_call_capture"]["calls"][0]["latency_total_ms"])


def test_tool_records_that_end_before_they_begin_make_no_trajectory() -> None:
    tool = {"kind": "tool_call", "invocation_id": "root", "tool_call_id": "t"}
    observed = bundle(tool | {"started_at": 5.0}, tool | {"completed_at": 3.0})
    record = built({"ng_agent_observations": observed}, exchange(0))
    assert codes(record["ng_model_call_capture"]) == [("trajectory_projection_failed", "ValidationError")]
    record = built({"ng_agent_observations": observed}, capture=False)
    assert codes(record["ng_agent_observations"]) == [("trajectory_projection_failed", "ValidationError")]
    assert "ng_trajectory" not in record


def test_redacted_rollouts_have_no_payload_anywhere_even_when_the_projection_fails() -> None:
    produced = {
        "task_id": "3",
        "rollout_id": "3-1",
        "model_calls": [{"model_call_id": "c0", "request": {"image": "secret"}}],
        "gaps": [{"code": "multimodal_history_redacted"}],
    }
    record = built({"ng_trajectory": produced}, exchange(0))
    (call,) = record["ng_trajectory"]["model_calls"]
    assert (call["request"], call["response"]) == (None, None)
    assert call["token_stats"]["prompt_tokens"] == 5
    record = built({"ng_trajectory": produced}, exchange(0), exchange(0))
    assert codes(record["ng_model_call_capture"]) == [("trajectory_projection_failed", "ValidationError")]
    assert not PAYLOADS & set(record["ng_model_call_capture"]["calls"][0])


def test_a_producers_call_is_found_by_server_and_answer_too() -> None:
    known = {"response_metadata": {"model_ref": SERVER, "response_id": "r0"}, "token_stats": {"reasoning_tokens": 9}}
    produced = {"task_id": "3", "rollout_id": "3-1", "model_calls": [known]}
    record = built({"ng_trajectory": produced}, exchange(0), exchange(1))
    first, second = record["ng_trajectory"]["model_calls"]
    assert (first["model_call_id"], second["model_call_id"]) == ("c0", "c1")
    assert first["token_stats"]["reasoning_tokens"] == 9
    assert first["token_stats"]["prompt_tokens"] == 5


def test_a_pair_that_names_two_calls_names_none() -> None:
    known = {"response_metadata": {"model_ref": SERVER, "response_id": "r0"}}
    produced = {"task_id": "3", "rollout_id": "3-1", "model_calls": [known, known]}
    record = built({"ng_trajectory": produced}, exchange(0))
    assert [call["model_call_id"] for call in record["ng_trajectory"]["model_calls"]] == [None, None, "c0"]


def test_a_producers_call_that_contradicts_the_capture_gives_way_and_is_named() -> None:
    wrong = {"model_call_id": "c0", "response_metadata": {"response_id": "r9"}, "token_stats": {"reasoning_tokens": 9}}
    produced = {"task_id": "3", "rollout_id": "3-1", "model_calls": [wrong]}
    record = built({"ng_trajectory": produced}, exchange(0))
    (call,) = record["ng_trajectory"]["model_calls"]
    assert call["response_metadata"]["response_id"] == "r0"
    assert call["token_stats"]["reasoning_tokens"] is None
    assert ("producer_model_call_contradicts_capture", "c0") in codes(record["ng_trajectory"])


@pytest.mark.parametrize("produced", [5, "text", [], None])
def test_a_trajectory_that_is_no_object_is_none(produced: object) -> None:
    record = built({"ng_trajectory": produced}, exchange(0))
    assert [call["model_call_id"] for call in record["ng_trajectory"]["model_calls"]] == ["c0"]
    assert ("producer_trajectory_invalid", "ValidationError") not in codes(record["ng_trajectory"])


@pytest.mark.parametrize("observed", [5, [], {"source": 1}, {"source": "t", "records": [{"kind": "mystery"}]}])
def test_observations_that_are_none_stay_as_they_came(observed: object) -> None:
    record = built({"ng_agent_observations": observed}, exchange(0))
    assert record["ng_agent_observations"] == observed
    assert codes(record["ng_model_call_capture"]) == [("agent_observation_join_failed", None)]
    assert codes(record["ng_trajectory"])[0] == ("agent_observations_invalid", "ValidationError")


def test_without_capture_observations_alone_make_a_trajectory_without_links() -> None:
    observed = bundle(invocation("root", {"model_call_id": "c0"}))
    record = built({"ng_agent_observations": observed}, capture=False)
    assert record["ng_agent_observations"] == observed
    wanted = [("model_calls_unavailable", None), ("turns_unavailable", None), ("conversation_unavailable", None)]
    assert codes(record["ng_trajectory"]) == wanted
    assert "ng_perf" not in record
    assert built({"reward": 1.0}, capture=False) == {"reward": 1.0}


def test_figures_that_a_reply_claims_give_way_to_those_of_the_capture() -> None:
    assert "ng_perf" not in built({"ng_perf": {"num_turns": 99}}, exchange(0))
    observed = bundle(invocation("root", {"model_call_id": "c0"}))
    record = built({"ng_perf": {"num_turns": 99}, "ng_agent_observations": observed}, exchange(0))
    assert record["ng_perf"]["num_turns"] == 1


def test_a_foreign_attachment_is_checked_and_loses_its_payloads() -> None:
    foreign = {
        "calls": ["junk", {"model_call_id": "k", "tokens_in": -5, "tokens_out": True, "response": {"status": "done"}}],
        "gaps": [{"nope": 1}, "text", {"code": "own", "detail": "d"}],
    }
    record = built({"ng_model_call_capture": foreign}, capture=False)
    (call,) = record["ng_trajectory"]["model_calls"]
    assert call["response"] == {"status": "done"}
    assert call["response_metadata"]["response_status"] == "done"
    assert set(call["token_stats"].values()) == {None}
    assert codes(record["ng_trajectory"])[:2] == [("model_call_capture_gap_invalid", None), ("own", "d")]
    assert not PAYLOADS & set(record["ng_model_call_capture"]["calls"][1])
    assert record["ng_model_call_capture"]["calls"][0] == "junk"


@pytest.mark.parametrize("call", [{"model_call_id": 5}, {"latency_total_ms": -1}, {"model_ref": {"type": "x"}}])
def test_a_foreign_attachment_that_makes_no_trajectory_says_so_itself(call: dict[str, Any]) -> None:
    record = built({"ng_model_call_capture": {"calls": [call], "gaps": 4}}, capture=False)
    assert codes(record["ng_model_call_capture"]) == [("trajectory_projection_failed", "ValidationError")]
    assert record["ng_model_call_capture"]["calls"] == [call]


def test_an_attempt_without_a_reply_has_its_calls_and_no_trajectory() -> None:
    failure = {"_ng_failure_type": "E", "_ng_failure_message": "m", "_ng_failure_http_status": None}
    assert has_no_reply(failure)
    record = built(failure, exchange(0))
    assert "ng_trajectory" not in record
    assert not PAYLOADS & set(record["ng_model_call_capture"]["calls"][0])
    for evidence in ("ng_agent_observations", "ng_trajectory", "reward", "response"):
        assert not has_no_reply(failure | {evidence: {}})


NAMES = st.sampled_from(["c0", "c1", "c2", "c3", "", None])
ANSWERS = st.sampled_from(["r0", "r1", "r2", None])
SERVERS = st.sampled_from([SERVER, SERVER | {"name": "judge"}, None])
REFERENCES = st.fixed_dictionaries({"model_call_id": NAMES, "response_id": ANSWERS, "model_ref": SERVERS}).filter(
    lambda ref: ref["model_call_id"] or (ref["model_ref"] and ref["response_id"])
)
ROOTS = ["root", "child", "sess"]
INVOCATIONS = st.lists(st.sampled_from(ROOTS), unique=True, max_size=3).flatmap(
    lambda names: st.tuples(*(st.lists(REFERENCES, max_size=4).map(lambda refs, n=name: (n, refs)) for name in names))
)
CALLS = st.lists(
    st.builds(
        lambda number, call_id, answer, session, server: exchange(
            number,
            model_call_id=call_id,
            client_session_id=session,
            model_ref=server,
            response=None if answer is None else exchange(0)["response"] | {"id": answer},
        ),
        st.integers(0, 3),
        NAMES,
        ANSWERS,
        st.sampled_from(["sess", "other", None]),
        SERVERS,
    ),
    max_size=6,
)


@settings(max_examples=200)
@given(INVOCATIONS, CALLS, st.booleans())
def test_every_turn_is_of_a_call_that_its_invocation_names_and_nobody_else_owns(
    invocations: tuple[tuple[str, list[dict[str, Any]]], ...], calls: list[dict[str, Any]], derive: bool
) -> None:
    observed = bundle(*(invocation(name, *references) for name, references in invocations))
    reply = {"ng_agent_observations": observed, "reward": 1.0}
    record = built(reply, *calls, options=JoinOptions(derive_turns=derive))
    exact_json.dumps(record)
    trajectory = record.get("ng_trajectory")
    if trajectory is None:
        assert codes(record["ng_model_call_capture"])[-1][0] == "trajectory_projection_failed"
        known = [call["model_call_id"] for call in calls if call["model_call_id"]]
        assert len(set(known)) < len(known)
        return
    assert json.dumps(validated_trajectory(trajectory)) == json.dumps(trajectory)
    held = {
        (each["invocation_id"], json.dumps(ref)) for each in trajectory["invocations"] for ref in each["model_calls"]
    }
    seen = set()
    for turn in trajectory["turns"]:
        (ref,) = turn["model_calls"]
        assert derive
        assert (turn["invocation_id"], json.dumps(ref)) in held
        assert json.dumps(ref) not in seen
        seen.add(json.dumps(ref))
    assert record.get("ng_perf") == rollout_perf(trajectory, 12.5)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.sampled_from(["root", "c0", "unknown", "1.0"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["source", "records", "gaps", "code", "kind", "invocation_id", "model_calls", "calls", "turns"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=200)
@given(ANYTHING, ANYTHING, ANYTHING, st.booleans())
def test_nothing_in_a_reply_costs_its_record(observed: Any, produced: Any, attached: Any, capture: bool) -> None:
    reply = {"ng_agent_observations": observed, "ng_trajectory": produced, "ng_model_call_capture": attached}
    record = built(reply, exchange(0), capture=capture)
    exact_json.dumps(record)
    if capture:
        assert [call["model_call_id"] for call in record["ng_model_call_capture"]["calls"]] == ["c0"]
