"""``gym-ray eval aggregate`` scores a run or its shards again, once, from their records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gym_ray.cli.app import app
from gym_ray.cli.eval_aggregate import find_shards
from gym_ray.errors import InputError, SettingsError


def record(task: int, repeat: int, reward: float, **fields: Any) -> dict[str, Any]:
    key = {"_ng_task_index": task, "_ng_rollout_index": repeat, "agent_ref": {"name": "solver"}}
    return {**key, "reward": reward, **fields}


def write(path: Path, *records: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(one) + "\n" for one in records))


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)  # the settings of the working directory are read, so it must be an empty one
    for number in range(2):
        stem = tmp_path / f"r{number}"
        write(stem.with_name(f"r{number}.jsonl"), record(1, number, 1.0), record(0, number, float(number)))
        write(stem.with_name(f"r{number}_failures.jsonl"), record(2, number, 0.0, _ng_failure_class="judge_failed"))
        rows = [{**record(task, number, 0.0), "level": "ab"[task % 2]} for task in range(4)]
        write(stem.with_name(f"r{number}_materialized_inputs.jsonl"), *rows)
    (tmp_path / "rollout_verdicts.jsonl").write_text("{}\n")
    return tmp_path


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["eval", "aggregate", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def metrics(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_bytes())
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("pattern", [["r*.jsonl"], ["r0.jsonl,r1.jsonl"], ["-i", "r*.jsonl"]])
def test_shards_are_scored_as_one_run(shards: Path, pattern: list[str]) -> None:
    code, text = run(*pattern, "-o", "all.jsonl", "--no-health-check")
    assert code == 0
    overall = metrics(shards / "all_metrics.json")["overall"]
    assert overall["tasks"] == 4
    assert overall["rollouts"]["done"] == 4
    assert overall["rollouts"]["failed"] == 2
    assert overall["rollouts"]["missing"] == 2
    assert overall["reward"]["mean"] == 0.75
    (entry,) = json.loads((shards / "all_aggregate_metrics.json").read_bytes())
    order = [info["rollout_id"] for group in entry["group_level_metrics"] for info in group["rollout_infos"]]
    assert order == ["0:0", "0:1", "1:0", "1:1"]
    assert "0.750±" in text
    assert "failure judge_failed: 2" in text
    assert not (shards / "quality_summary.json").exists()


def test_flags_and_settings_choose_what_counts(shards: Path) -> None:
    flags = ["--group-by", "level", "--count-as-zero", "judge_failed", "--count-missing-as-zero"]
    code, text = run("r*.jsonl", "-o", "all.jsonl", "--no-health-check", "--json", *flags)
    assert code == 0
    found = json.loads(text)
    assert found == metrics(shards / "all_metrics.json")
    assert found["overall"]["reward"]["mean"] == pytest.approx(3 / 8)
    assert sorted(found["groups"]["values"]) == ["a", "b"]
    settings = ["++metrics_group_by=level", "++count_failure_classes_as_zero=[judge_failed]"]
    settings += [
        "++count_missing_rollouts_as_zero=true",
        "++disable_health_check=true",
        "++output_jsonl_fpath=all.jsonl",
    ]
    assert run("r*.jsonl", "--json", *settings) == (0, text)


def test_the_records_are_judged_unless_somebody_says_not_to(shards: Path) -> None:
    code, text = run("r*.jsonl", "-o", "all.jsonl")
    assert code == 0
    assert "4 rollouts" in text
    assert json.loads((shards / "quality_summary.json").read_bytes())["run"]["artifacts"]["records"] == 4


def test_one_run_needs_no_other_name(shards: Path) -> None:
    assert run("r0.jsonl", "--no-health-check")[0] == 0
    assert metrics(shards / "r0_metrics.json")["overall"]["rollouts"]["missing"] == 1
    (shards / "r1_materialized_inputs.jsonl").unlink()
    assert run("r*.jsonl", "-o", "all.jsonl", "--no-health-check")[0] == 0
    found = metrics(shards / "all_metrics.json")["overall"]
    assert found["rollouts"]["missing"] is None, "the rows of one shard are unknown"


def test_what_cannot_be_aggregated_is_refused_with_a_remedy(shards: Path) -> None:
    with pytest.raises(SettingsError, match="required for 2 shards"):
        run("r*.jsonl")
    with pytest.raises(SettingsError, match="name the records"):
        run()
    with pytest.raises(InputError, match="no records match"):
        run("nothing*.jsonl", "-o", "all.jsonl")
    with pytest.raises(InputError, match="no records match"):
        run("r0_failures.jsonl")
    with pytest.raises(SettingsError, match="no such check"):
        run("r0.jsonl", "++health_check_ignored_checks=[nonsense]")
    assert not (shards / "all_metrics.json").exists()


def test_records_are_found_once_and_sorted_and_what_accompanies_them_is_not(shards: Path) -> None:
    found = find_shards([f"{shards}/*.jsonl", f"{shards}/r1.jsonl, {shards}/r0.jsonl"])
    assert [paths.output.name for paths in found] == ["r0.jsonl", "r1.jsonl"]
    nested = shards / "deep" / "er"
    nested.mkdir(parents=True)
    write(nested / "r2.jsonl", record(9, 0, 1.0))
    assert len(find_shards([f"{shards}/**/*.jsonl"])) == 3


def test_the_run_directory_and_captures_are_no_records(shards: Path) -> None:
    directory = shards / "r0.run"
    (directory / "facts").mkdir(parents=True)
    (directory / "manifest.json").write_text("{}")
    accompanying = [
        directory / "sources.jsonl",
        directory / "facts" / "0a.jsonl",
        shards / "0-0.capture.jsonl",
        shards / "0-0.tokens.1.jsonl",
    ]
    for path in accompanying:
        write(path, {"rollout_id": "0-0"})
        with pytest.raises(InputError, match="no records match"):
            find_shards([str(path)])
    named = shards / "other.run"  # a directory that merely has such a name
    named.mkdir()
    write(named / "r3.jsonl", record(8, 0, 1.0))
    found = [paths.output.name for paths in find_shards([f"{shards}/**/*.jsonl"])]
    assert found == ["r3.jsonl", "r0.jsonl", "r1.jsonl"]


def test_a_name_with_the_characters_of_a_pattern_is_a_name(shards: Path) -> None:
    write(shards / "r[0].jsonl", record(7, 0, 1.0))
    assert [paths.output.name for paths in find_shards([f"{shards}/r[0].jsonl"])] == ["r[0].jsonl"]
    assert [paths.output.name for paths in find_shards([f"{shards}/r[1].jsonl"])] == ["r1.jsonl"]


def test_lines_that_name_no_rollout_are_told(shards: Path) -> None:
    write(shards / "r9.jsonl", record(0, 0, 1.0), {"prompt": "q"}, {"_ng_task_index": 1, "reward": 1.0})
    code, text = run("r9.jsonl", "--no-health-check")
    assert code == 0
    assert "2 records or rows name no task or no repeat" in text
    code, text = run("r0.jsonl", "--no-health-check")
    assert "name no task" not in text
