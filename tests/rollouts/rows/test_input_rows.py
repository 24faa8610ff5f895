from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gym_ray.errors import InputError
from gym_ray.rollouts.rows.input_rows import RowOptions, read_rows


def row(**more: Any) -> dict[str, Any]:
    return {"responses_create_params": {"input": "q"}, "agent_ref": {"name": "a"}, **more}


def write(tmp_path: Path, *lines: object) -> Path:
    path = tmp_path / "in.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(text + "\n" for text in texts))
    return path


def error_of(path: Path, options: RowOptions | None = None) -> InputError:
    with pytest.raises(InputError) as caught:
        list(read_rows(path, options or RowOptions()))
    return caught.value


@pytest.mark.parametrize(
    ("line", "field", "says"),
    [
        ('{"a": ', "", "not JSON"),
        ("[1]", "", "an array"),
        ("3", "", "a number"),
        (row(responses_create_params=None), "responses_create_params", "missing"),
        (row(responses_create_params=[1]), "responses_create_params", "an array"),
        (row(responses_create_params={}), "responses_create_params.input", "missing"),
        (row(responses_create_params={"input": 5}), "responses_create_params.input", "a text or a list"),
        (row(agent_ref={}), "agent_ref.name", "missing"),
        (row(agent_ref="a"), "agent_ref.name", "missing"),
        ({"responses_create_params": {"input": "q"}}, "agent_ref", "names no agent"),
        (row(task_source=4), "task_source", "a number"),
        (row(_ng_rollout_id="a/b"), "_ng_rollout_id", "cannot be a rollout id"),
        (row(_ng_rollout_id="x\n"), "_ng_rollout_id", "cannot be a rollout id"),
        (row(_ng_rollout_id=5), "_ng_rollout_id", "cannot be a rollout id"),
        (row(_ng_rollout_id="x-a1"), "_ng_rollout_id", "like a retry"),
        (row(_ng_task_index="a/b"), "_ng_task_index", "cannot be a rollout id"),
        (row(_ng_rollout_id="x" * 201), "_ng_rollout_id", "longer than 200"),
        (row(_ng_task_index="7" * 201), "_ng_task_index", "longer than 200"),
        (row(_ng_task_index=[1]), "_ng_task_index", "an array"),
        (row(_ng_attempt_index="two"), "_ng_attempt_index", "whole number"),
    ],
)
def test_a_bad_line_is_named_with_file_line_and_field(tmp_path: Path, line: object, field: str, says: str) -> None:
    path = write(tmp_path, row(), "", line, row())
    error = error_of(path)
    assert (error.path, error.line, error.field) == (str(path), 3, field)
    assert says in error.problem


def test_missing_and_empty_inputs_are_named(tmp_path: Path) -> None:
    assert "cannot read" in str(error_of(tmp_path / "none.jsonl"))
    assert "no rows" in str(error_of(write(tmp_path, "", "  ")))


def test_all_rows_without_a_route_are_listed_with_their_real_lines(tmp_path: Path) -> None:
    bare = {"responses_create_params": {"input": "q"}}
    error = error_of(write(tmp_path, row(), bare, "", row(), bare))
    assert error.line == 2
    assert "lines 2, 5" in str(error)


def test_unknown_agents_are_listed_together_with_a_hint(tmp_path: Path) -> None:
    options = RowOptions(agents=["mcqa_simple_agent", "tool_agent"])
    lines = [row(agent_ref={"name": n}) for n in ("tool_agent", "mcqa_simple_agnt", "other", "other")]
    error = error_of(write(tmp_path, *lines), options)
    assert "did you mean 'mcqa_simple_agent'?" in str(error)
    assert "'other'" in str(error)
    assert "lines 3, 4" in str(error)


def test_a_broken_line_behind_a_bad_route_is_still_found_first(tmp_path: Path) -> None:
    path = write(tmp_path, {"responses_create_params": {"input": "q"}}, "{")
    assert error_of(path).line == 2


@pytest.mark.parametrize(
    ("options", "agent"),
    [
        (RowOptions(), "a"),
        (RowOptions(agent_name="x"), "x"),
        (RowOptions(agent_map={"a": "m", "s": "n"}), "m"),
        (RowOptions(agent_map={"s": "n"}, agent_name="x"), "n"),
        (RowOptions(agent_map={"_default": "d"}), "d"),
    ],
)
def test_routing_precedence(tmp_path: Path, options: RowOptions, agent: str) -> None:
    (found,) = read_rows(write(tmp_path, row(task_source="s")), options)
    assert found.agent == agent
    assert found.value["agent_ref"] == {"name": agent}


def test_replacing_the_agent_of_the_data_warns(tmp_path: Path) -> None:
    warnings: set[str] = set()
    list(read_rows(write(tmp_path, row(), row()), RowOptions(agent_name="x"), warnings=warnings))
    assert warnings == {"agent 'a' of the data is replaced by 'x'"}


def test_a_task_source_resolves_to_its_agent_or_is_refused(tmp_path: Path) -> None:
    line = {"responses_create_params": {"input": "q"}, "task_source": "mcqa"}
    options = RowOptions(agents=["a"], task_sources={"mcqa": "a"})
    (found,) = read_rows(write(tmp_path, line), options)
    assert found.value["agent_ref"] == {"name": "a"}
    error = error_of(write(tmp_path, {**line, "task_source": "mcq"}), options)
    assert "did you mean 'mcqa'?" in str(error)


def test_a_task_source_of_several_agents_is_refused_with_their_names(tmp_path: Path) -> None:
    lines = [{"responses_create_params": {"input": "q"}, "task_source": source} for source in ("desk", "dask")]
    options = RowOptions(agents=["a", "b"], task_sources={"mcqa": "a"}, undecided_sources={"desk": ["b", "a"]})
    error = error_of(write(tmp_path, *lines), options)
    assert (error.line, error.field) == (1, "task_source")
    assert "'desk' names no one agent but a, b" in str(error)
    assert "no data source 'dask'" in str(error), "one error names both"


def test_overrides_replace_top_level_keys_of_the_body(tmp_path: Path) -> None:
    body = {"input": "q", "reasoning": {"effort": "low", "summary": "auto"}, "temperature": 1}
    options = RowOptions(responses_create_params={"reasoning": {"effort": "high"}})
    (found,) = read_rows(write(tmp_path, row(responses_create_params=body)), options)
    assert found.value["responses_create_params"] == {"input": "q", "reasoning": {"effort": "high"}, "temperature": 1}


def test_limit_counts_rows_and_stops_reading(tmp_path: Path) -> None:
    path = write(tmp_path, row(n=0), "", row(n=1), "{broken")
    assert [r.value["n"] for r in read_rows(path, RowOptions(limit=2))] == [0, 1]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"agent_name": "x", "agent_map": {"_default": "y"}}, "disagree"),
        ({"limit": -1}, "limit"),
        ({"num_repeats": 0}, "num_repeats"),
        ({"num_repeats": {"a": 0}}, "num_repeats.a"),
        ({"num_repeats": True}, "num_repeats"),
        ({"fan_out": {"a": []}}, "fan_out.a"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        RowOptions(**options)
