"""A compact record gives back exactly what was compacted, whatever its payloads are."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_ray import exact_json
from gym_ray.errors import DamagedRecordError
from gym_ray.evidence.compact import (
    COMPACT_FIELD,
    Parts,
    compacted,
    inline,
    is_compact,
    without_payloads,
)
from gym_ray.evidence.observations import TrajectoryRecord
from gym_ray.evidence.observations.gaps import PAYLOADS_BY_REFERENCE

_VECTORS = Path(__file__).parents[2] / "vectors" / "D_pipeline.json"
_CASES = json.loads(_VECTORS.read_text("utf-8"))["cases"] if _VECTORS.exists() else []
_LONG = "a long text " * 20


def _stored(record: dict[str, Any]) -> bytes:
    return exact_json.dumps(record)


def _read_back(record: dict[str, Any]) -> dict[str, Any]:
    """Compact a record, store both files, and read them as another process would."""
    before = _stored(record)
    compact, parts = compacted(record)
    assert _stored(record) == before, "the given record was modified"
    stored = exact_json.loads(_stored(compact))
    return inline(stored, Parts.parse(parts))


def _assert_same(record: dict[str, Any]) -> None:
    assert _stored(_read_back(record)) == _stored(exact_json.loads(_stored(record)))


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case["name"])
def test_gives_back_every_record_of_the_pipeline(case: dict[str, Any]) -> None:
    _assert_same(case["expected"])
    if "exact_variant" in case:
        _assert_same({**case["expected"], **case["exact_variant"]})


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case["name"])
def test_a_compact_trajectory_is_a_valid_one(case: dict[str, Any]) -> None:
    record = case["expected"]
    compact, parts = compacted(record)
    if not parts:
        assert compact is record
    elif "schema_version" in record.get("ng_trajectory", ()):
        trajectory = TrajectoryRecord.model_validate(exact_json.loads(_stored(compact["ng_trajectory"])))
        assert trajectory.gaps[-1].code == PAYLOADS_BY_REFERENCE
        assert len(trajectory.model_calls) == len(record["ng_trajectory"]["model_calls"])
        for field in ("response", "reward", "responses_create_params"):
            assert compact.get(field) == record.get(field)


def _call(number: int, request: Any, response: Any) -> dict[str, Any]:
    return {"model_call_id": f"c{number}", "request": request, "response": response}


def _record(calls: list[tuple[Any, Any]], **members: Any) -> dict[str, Any]:
    trajectory = {
        "schema_version": "1.0",
        "task_id": "0",
        "rollout_id": "0-0",
        "invocations": [],
        "turns": [],
        "model_calls": [_call(number, *call) for number, call in enumerate(calls)],
        "tool_calls": [],
        "gaps": [],
    }
    return {"reward": 1.0, "ng_trajectory": trajectory, **members}


_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from([_LONG, _LONG + "é𝄞", "\ud800" * 100, "$part", 0.0, -0.0, 1, True, 1.0, 2**64])
)
_KEYS = st.text(max_size=4) | st.sampled_from(["$part", "$list", "$more", "$like", "$raw", "role", "content", "type"])
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=12,
)
_ITEMS = st.lists(st.dictionaries(_KEYS, _VALUES, max_size=3), max_size=5)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(_VALUES, _VALUES), max_size=4), _VALUES, _ITEMS, _VALUES)
def test_gives_back_any_payloads(
    calls: list[tuple[Any, Any]], output: Any, conversation: list[Any], response: Any
) -> None:
    record = _record(calls, response=response)
    record["ng_trajectory"]["tool_calls"] = [{"tool_call_id": "t", "output": output}]
    record["ng_trajectory"]["invocations"] = [{"invocation_id": "a", "conversation": conversation}]
    record["ng_agent_observations"] = {"source": "s", "records": [{"conversation": conversation}], "gaps": []}
    _assert_same(record)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_gives_back_histories_that_grow_shrink_and_branch(data: st.DataObject) -> None:
    pool = data.draw(st.lists(st.dictionaries(st.sampled_from("ab"), _SCALARS, max_size=2), min_size=1, max_size=6))
    histories: list[list[Any]] = [[]]
    for _ in range(data.draw(st.integers(1, 8))):
        base = data.draw(st.sampled_from(histories))
        kept = base[: data.draw(st.integers(0, len(base)))]
        histories.append(kept + data.draw(st.lists(st.sampled_from(pool), max_size=4)))
    calls = [({"messages": copy.deepcopy(history), "tools": copy.deepcopy(pool)}, history) for history in histories]
    _assert_same(_record(calls))


@pytest.mark.parametrize("field", ["input", "messages"])
def test_each_distinct_item_is_stored_once(field: str) -> None:
    """Instructions and tools in every request, and a history that grows by an answer and a result."""
    tools = [{"type": "function", "name": f"tool{number}", "description": _LONG * 3} for number in range(5)]
    history = [{"role": "user", "content": f"task {_LONG}"}]
    calls = []
    for number in range(50):
        answer = {"role": "assistant", "content": f"{number} {_LONG * 8}"}
        request = {"model": "m", "instructions": _LONG * 5, "tools": tools, field: history, "temperature": 0.5}
        calls.append((copy.deepcopy(request), {"id": f"r{number}", "output": [copy.deepcopy(answer)]}))
        history = [*history, answer, {"role": "user", "content": f"result {number} {_LONG * 8}"}]
    distinct = len(exact_json.dumps([history, tools, _LONG * 5]))
    compact, parts = compacted(_record(calls))
    assert parts.count(f"result 7 {_LONG}".encode()) == 1
    assert len(parts) + len(_stored(compact)) < 1.2 * distinct
    _assert_same(_record(calls))


def test_text_of_the_reply_is_not_stored_again() -> None:
    record = _record([({"input": "q"}, {"output": [{"text": _LONG}]})], response={"output": [{"text": _LONG}]})
    compact, parts = compacted(record)
    assert compact["response"] == record["response"]
    assert _LONG.encode() not in parts
    _assert_same(record)


def test_a_record_without_payloads_stays_as_it_is() -> None:
    record = {"_ng_failure_class": "agent_run_error", "ng_model_call_capture": {"calls": [], "metrics": {}}}
    compact, parts = compacted(record)
    assert compact is record
    assert parts == b""
    assert not is_compact(record)
    assert inline(record, Parts()) is record


def test_payloads_of_a_failed_projection_are_taken_out_of_the_attachment() -> None:
    call = {"model_call_id": "c0", "request": {"input": [{"content": _LONG}, {"content": _LONG}]}, "response": None}
    record = {"reward": 0.0, "ng_model_call_capture": {"calls": [call, dict(call)], "metrics": {}, "gaps": []}}
    compact, parts = compacted(record)
    assert _LONG.encode() not in _stored(compact)
    assert parts.count(_LONG.encode()) == 1
    _assert_same(record)


@pytest.mark.parametrize("value", [3, "text", [], [1, "x", None], {"calls": 3}, {"calls": [3, "x", [{}]]}])
def test_sections_of_another_shape_stay_as_they_are(value: Any) -> None:
    record = _record([({"input": _LONG}, None)], ng_model_call_capture=value, ng_agent_observations=value)
    _assert_same(record)
    _assert_same({"reward": 1.0, "ng_trajectory": value})


def test_payloads_nested_beyond_what_is_looked_into_are_kept() -> None:
    deep: Any = _LONG
    for _ in range(120):
        deep = [{"next": deep}]
    _assert_same(_record([({"input": deep}, deep)]))


def test_a_compact_record_is_not_compacted_again() -> None:
    compact, _ = compacted(_record([({"input": _LONG}, None)]))
    with pytest.raises(ValueError, match=COMPACT_FIELD):
        compacted(compact)


def test_a_missing_part_is_named() -> None:
    compact, _ = compacted(_record([({"input": _LONG}, None)]))
    with pytest.raises(DamagedRecordError, match=r"the file: part \S{8} is missing: .*join the rollout again"):
        inline(compact, Parts(place="the file"))


@pytest.mark.parametrize(
    "header", [None, {}, {"format": 2, "conversations": [], "slimmed": []}, {"format": 1, "conversations": 3}]
)
def test_a_damaged_description_is_refused(header: Any) -> None:
    compact, parts = compacted(_record([({"input": _LONG}, None)]))
    with pytest.raises(DamagedRecordError, match="the file"):
        inline({**compact, COMPACT_FIELD: header}, Parts.parse(parts, "the file"))


def test_conversations_that_the_description_lacks_are_refused() -> None:
    record = _record([({"input": _LONG}, None)])
    record["ng_trajectory"]["invocations"] = [{"invocation_id": "a", "conversation": [{"content": _LONG}]}]
    compact, parts = compacted(record)
    compact[COMPACT_FIELD] = {**compact[COMPACT_FIELD], "conversations": []}
    with pytest.raises(DamagedRecordError, match="more conversations"):
        inline(compact, Parts.parse(parts))


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case["name"])
def test_everything_but_payloads_can_be_read_without_parts(case: dict[str, Any]) -> None:
    compact, parts = compacted(case["expected"])
    read = without_payloads(exact_json.loads(_stored(compact)))
    if not parts:
        assert read == compact
        return
    whole = inline(exact_json.loads(_stored(compact)), Parts.parse(parts))
    assert list(read) == list(whole)
    for call in whole["ng_model_call_capture"]["calls"]:
        payloads = ("request", "response", "tool_calls", "reasoning_content")
        call.update(dict.fromkeys([name for name in payloads if name in call]))
    assert read["ng_model_call_capture"] == whole["ng_model_call_capture"]
    if "ng_trajectory" in whole:
        for field in ("invocations", "turns", "model_calls", "tool_calls"):
            assert len(read["ng_trajectory"].get(field, [])) == len(whole["ng_trajectory"].get(field, []))
        for call in whole["ng_trajectory"].get("model_calls", []):
            call.update(request=None, response=None)
        assert read["ng_trajectory"].get("model_calls") == whole["ng_trajectory"].get("model_calls")
        TrajectoryRecord.model_validate(read["ng_trajectory"])


def _record_with_a_conversation() -> dict[str, Any]:
    items = [{"type": "message", "role": "user", "content": f"{_LONG} {n}"} for n in range(6)]
    calls = [(items[:n], {"output": items[n]}) for n in range(1, 6)]
    bundle = {"source": "test", "records": [{"kind": "agent_invocation", "invocation_id": "r", "conversation": items}]}
    return _record(calls, ng_agent_observations=bundle)


def _compact_with_a_conversation() -> tuple[dict[str, Any], Parts]:
    compact, parts = compacted(_record_with_a_conversation())
    return exact_json.loads(_stored(compact)), Parts.parse(parts)


@pytest.mark.parametrize("trajectory", [None, 3, [], {}, {"gaps": None}, {"gaps": []}, {"gaps": [{"code": "other"}]}])
def test_a_trajectory_that_lost_the_gap_of_its_payloads_is_refused(trajectory: Any) -> None:
    compact, parts = _compact_with_a_conversation()
    compact[COMPACT_FIELD]["slimmed"] = []
    with pytest.raises(DamagedRecordError, match="lacks its last gap"):
        inline({**compact, "ng_trajectory": trajectory}, parts)
    del compact["ng_trajectory"]
    with pytest.raises(DamagedRecordError, match="lacks its last gap"):
        inline(compact, parts)


def test_conversations_that_the_record_lacks_are_refused() -> None:
    compact, parts = _compact_with_a_conversation()
    compact[COMPACT_FIELD]["conversations"].append([])
    with pytest.raises(DamagedRecordError, match="fewer conversations"):
        inline(compact, parts)


def _places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place, *(inner for key, item in items for inner in _places(item, (*place, key)))]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_spoiled_compact_record_is_refused_or_differs_where_it_was_spoiled(data: st.DataObject) -> None:
    compact, parts = _compact_with_a_conversation()
    original, intact = _record_with_a_conversation(), copy.deepcopy(compact)
    slim = without_payloads(intact)
    place = *holders, key = data.draw(st.sampled_from(_places(compact)[1:]))
    names = [name for line in compact["ng_trajectory"]["model_calls"] for name in _names_in(line)]
    spellings = st.builds(
        lambda spelling, name, rest: {spelling: rest if name is None else [name, *rest]},
        st.sampled_from(["$part", "$list", "$more", "$like", "$raw"]),
        st.sampled_from([None, *names]),
        st.sampled_from([None, [], [1, []], [{}], [2, ["x"]], "text"]).map(lambda rest: rest or []),
    )
    holder: Any = compact
    for step in holders:
        holder = holder[step]
    holder[key] = data.draw(st.one_of(_VALUES, spellings))
    may_differ = {place[0]}
    if place[0] == COMPACT_FIELD or place[0] in _EVIDENCE:  # what is taken out of one is spelled in another
        may_differ |= _EVIDENCE
    if compact == intact:
        may_differ = set()
    for expected, read in ((original, lambda: inline(compact, parts)), (slim, lambda: without_payloads(compact))):
        with suppress(DamagedRecordError):
            assert _members_that_differ(expected, read()) <= may_differ


_EVIDENCE = {"ng_trajectory", "ng_agent_observations", "ng_model_call_capture"}


def _members_that_differ(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    missing = object()
    return {name for name in one.keys() | other.keys() if one.get(name, missing) != other.get(name, missing)}


def _names_in(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$part"]] if isinstance(value.get("$part"), str) else []
        return own + [name for item in value.values() for name in _names_in(item)]
    return [name for item in value for name in _names_in(item)] if isinstance(value, list) else []
