"""``gym-ray eval health`` reports on a run, however it is named, and gates on what it finds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gym_ray.cli.app import app
from gym_ray.cli.run_outputs import find_run
from gym_ray.errors import InputError, SettingsError


def record(task: int, *, answer: str = "a", turns: bool = True) -> dict[str, Any]:
    turn = {
        "invocation_id": "root",
        "task_id": str(task),
        "rollout_id": f"{task}-0",
        "turn_no": 1,
        "timestamp": 0.0,
        "step_count": 0,
        "answer": answer,
        "model_calls": [{"model_call_id": "c0"}],
    }
    trajectory = {
        "task_id": str(task),
        "rollout_id": f"{task}-0",
        "turns": [turn] if turns else [],
        "gaps": [{"code": "model_calls_unavailable"}],
    }
    return {"_ng_task_index": task, "_ng_rollout_index": 0, "ng_trajectory": trajectory}


@pytest.fixture
def output(tmp_path: Path) -> Path:
    path = tmp_path / "out.jsonl"
    (tmp_path / "out.run").mkdir()
    (tmp_path / "out.run" / "manifest.json").write_text("{}")
    (tmp_path / "out_failures.jsonl").write_text("not looked at\n")
    write(path, record(0))
    return path


def write(path: Path, *records: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(one) + "\n" for one in records))


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["eval", "health", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_a_run_without_errors_is_reported_and_passes(output: Path) -> None:
    code, text = run(str(output))
    assert code == 0
    assert "1 rollouts: 0 healthy, 0 unhealthy, 1 unobserved" in text
    assert str(output.with_name("quality_summary.json")) in text
    assert json.loads(output.with_name("quality_summary.json").read_text())["run"]["artifacts"]["records"] == 1


@pytest.mark.parametrize(
    ("records", "fail_on", "code"),
    [
        ([record(0, answer=" ")], "error", 0),
        ([record(0, answer=" ")], "warning", 3),
        ([record(0, turns=False)], "error", 3),
        ([record(0, turns=False)], "warning", 3),
        ([record(0, turns=False)], "never", 0),
        ([record(0), record(0)], "error", 3),
    ],
)
def test_the_exit_code_follows_the_worst_finding(
    output: Path, records: list[dict[str, Any]], fail_on: str, code: int
) -> None:
    write(output, *records)
    assert run(str(output), "--fail-on", fail_on)[0] == code


def test_ignored_checks_do_not_fail_it_and_unknown_ones_are_named(output: Path) -> None:
    write(output, record(0, turns=False))
    code, text = run(str(output), "--ignore", "rollout_missing_agent_turns, agent_turn_hollow")
    assert code == 0
    assert "ignored: agent_turn_hollow, rollout_missing_agent_turns" in text
    with pytest.raises(SettingsError, match="--ignore: no such check: hollow; choose from check_execution_error"):
        run(str(output), "--ignore", "hollow")


def test_an_output_without_records_says_that_nothing_was_checked(output: Path) -> None:
    write(output)
    code, text = run(str(output))
    assert (code, "nothing was checked" in text) == (0, True)


def test_the_table_names_check_severity_counts_and_the_first_rollout(output: Path) -> None:
    write(output, record(4, turns=False), record(7, turns=False))
    lines = [line.split() for line in run(str(output))[1].splitlines()]
    assert ["rollout_missing_agent_turns", "error", "2", "4-0"] in lines
    assert ["model_call_failed", "error", "2"] in lines  # unobserved in both


def test_a_run_is_found_by_its_output_its_directory_and_the_directory_of_both(output: Path) -> None:
    (output.parent / "rows.jsonl").write_text("{}\n")
    (output.parent / "rollout_verdicts.jsonl").write_text("{}\n")
    (output.parent / "out.run" / "sources.jsonl").write_text("{}\n")
    for place in (output, output.parent, output.parent / "out.run"):
        assert find_run(place).output == output


def test_a_peers_run_is_found_by_its_materialised_inputs(tmp_path: Path) -> None:
    for name in ("rows.jsonl", "r.jsonl", "r_materialized_inputs.jsonl", "r_failures.jsonl"):
        (tmp_path / name).touch()
    assert find_run(tmp_path).output == tmp_path / "r.jsonl"


def test_several_runs_none_and_nothing_are_refused(output: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or directory"):
        find_run(tmp_path / "nowhere")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InputError, match="no records of a run"):
        find_run(empty)
    (tmp_path / "second.jsonl").touch()
    (tmp_path / "second.run").mkdir()
    (tmp_path / "second.run" / "manifest.json").touch()
    with pytest.raises(InputError, match=r"several runs \(out\.jsonl, second\.jsonl\)"):
        find_run(tmp_path)
