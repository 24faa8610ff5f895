"""Whatever identifiers a capture and an agent's observations hold, a finished record shows no wrong link."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gym_ray.evidence.join import join
from gym_ray.evidence.perf import rollout_perf
from gym_ray.evidence.run_result import RunResult
from gym_ray.model_call_capture.lines import CaptureSnapshot
from gym_ray.model_call_capture.quiesce import WrittenCalls

ROW = {
    "responses_create_params": {"input": "q"},
    "agent_ref": {"name": "toy"},
    "_ng_task_index": 0,
    "_ng_rollout_index": 0,
}
NAMES = ["a", "b", "c"]
SERVERS = [None, *({"type": "responses_api_models", "name": name} for name in ("policy", "judge"))]
call_ids = st.sampled_from(["c0", "c1", "c2", "c3", None])
servers = st.sampled_from(SERVERS)
response_ids = st.sampled_from(["r0", "r1", "r2", None])


def exchange(call_id: str | None, server: Any, response: str | None, session: str | None, tokens: int) -> Any:
    return {
        "model_call_id": call_id,
        "client_session_id": session,
        "dialect": "responses",
        "model_ref": server,
        "started_at": 1000.0,
        "completed_at": 1001.0,
        "latency_ms": 1000.0,
        "latency_ttft_ms": None,
        "status_code": 200,
        "error_category": None,
        "request": {"input": "q"},
        "response": {
            "id": response,
            "output": [],
            "usage": {"input_tokens": tokens, "output_tokens": 1, "total_tokens": tokens + 1},
        },
    }


captures = st.lists(
    st.builds(
        exchange, call_ids, servers, response_ids, st.sampled_from([*NAMES, "elsewhere", None]), st.integers(1, 99)
    ),
    max_size=6,
)
references = st.fixed_dictionaries(
    {"model_call_id": call_ids, "model_ref": servers, "response_id": response_ids}
).filter(lambda ref: ref["model_call_id"] or (ref["model_ref"] and ref["response_id"]))


@st.composite
def observations(draw: st.DrawFn) -> dict[str, Any]:
    records = [
        {"kind": "agent_invocation", "invocation_id": name, "model_calls": draw(st.lists(references, max_size=4))}
        for name in draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1))
    ]
    return {"source": "toy", "records": records, "gaps": []}


def joined(bundle: dict[str, Any], exchanges: list[Any]) -> dict[str, Any]:
    reply = {"reward": 1.0, "response": {"id": "x"}, "ng_agent_observations": bundle}
    data = b"".join(json.dumps(one).encode() + b"\n" for one in exchanges)
    result = RunResult(json.dumps(reply).encode(), None, 5.0)
    snapshot = CaptureSnapshot(data, incomplete=False)
    record: dict[str, Any] = json.loads(join(json.dumps(ROW).encode(), "0-0", result, snapshot, WrittenCalls()).line)
    return record


def names(ref: dict[str, Any], one: Any) -> bool:
    """Whether a reference names a call by an identifier, and contradicts it in none."""
    said = {"model_call_id": one["model_call_id"], "model_ref": one["model_ref"], "response_id": one["response"]["id"]}
    by_id = ref["model_call_id"] is not None
    by_pair = ref["model_ref"] is not None and ref["response_id"] is not None
    return (by_id or by_pair) and all(value is None or value == said[key] for key, value in ref.items())


def entitled(record: dict[str, Any], exchanges: list[Any], place: int) -> set[str]:
    """The invocations of the stored observations that hold a reference to this call and to no other."""
    return {
        invocation["invocation_id"]
        for invocation in record["ng_agent_observations"]["records"]
        for ref in invocation["model_calls"]
        if [other for other, one in enumerate(exchanges) if names(ref, one)] == [place]
    }


@given(observations(), captures)
def test_each_turn_is_of_a_call_that_its_invocation_alone_names(bundle: dict[str, Any], exchanges: list[Any]) -> None:
    record = joined(bundle, exchanges)
    trajectory = record.get("ng_trajectory")
    if trajectory is None:
        ids = [one["model_call_id"] for one in exchanges if one["model_call_id"]]
        assert len(ids) > len(set(ids))
        assert "trajectory_projection_failed" in [gap["code"] for gap in record["ng_model_call_capture"]["gaps"]]
        return
    of_turns: list[int] = []
    for turn in trajectory["turns"]:
        (ref,) = turn["model_calls"]
        (place,) = [place for place, one in enumerate(exchanges) if names(ref, one)]
        assert turn["invocation_id"] in entitled(record, exchanges, place)
        of_turns.append(place)
    assert len(of_turns) == len(set(of_turns))
    assert set(of_turns) == {place for place in range(len(exchanges)) if entitled(record, exchanges, place)}


@given(observations(), captures)
def test_figures_count_the_calls_of_the_turns_once_each(bundle: dict[str, Any], exchanges: list[Any]) -> None:
    record = joined(bundle, exchanges)
    if "ng_trajectory" not in record:
        assert "ng_perf" not in record
        return
    owned = [place for place in range(len(exchanges)) if entitled(record, exchanges, place)]
    tokens = [exchanges[place]["response"]["usage"]["input_tokens"] for place in owned]
    assert record["ng_perf"].get("prompt_tokens") == (sum(tokens) if tokens else None)


@given(observations(), captures)
def test_every_call_is_a_turn_or_has_a_gap(bundle: dict[str, Any], exchanges: list[Any]) -> None:
    record = joined(bundle, exchanges)
    gaps = [gap["detail"] or "" for gap in record["ng_agent_observations"]["gaps"]]
    for place in range(len(exchanges)):
        is_named = any(detail.endswith(f":call_index={place}") for detail in gaps)
        assert is_named == (not entitled(record, exchanges, place))


@given(observations(), captures)
def test_figures_of_a_stored_trajectory_are_those_of_its_record(bundle: dict[str, Any], exchanges: list[Any]) -> None:
    record = joined(bundle, exchanges)
    if "ng_trajectory" in record:
        assert rollout_perf(record["ng_trajectory"], 5.0) == record["ng_perf"]
