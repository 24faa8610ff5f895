"""The health of stored runs: every line is a row, in one process or several; both reports appear whole."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from gym_ray import exact_json
from gym_ray.errors import ChildInterpreterError, InputError, StorageError
from gym_ray.evidence.compact import compacted
from gym_ray.evidence.facts import facts_line
from gym_ray.evidence.health import check_rollout
from gym_ray.evidence.observations import validated_trajectory
from gym_ray.rollouts.reports import health_reading
from gym_ray.rollouts.reports.facts_files import FactsWriter
from gym_ray.rollouts.reports.health_files import health_of_records, health_of_run, write_health
from gym_ray.rollouts.reports.health_reading import HealthRules, checked_rows
from gym_ray.rollouts.run_files.parts_files import publish_parts
from gym_ray.rollouts.run_paths import RunPaths, Written
from gym_ray.storage.durable_files import TEMPORARY_NAME

POLICY = {"type": "responses_api_models", "name": "policy"}


def record(task: int, rollout: int = 0, *, status: int = 200, text: str = "hello") -> dict[str, Any]:
    rollout_id = f"{task}-{rollout}"
    ref = {"model_call_id": "c0"}
    answer = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}]
    trajectory = {
        "task_id": str(task),
        "rollout_id": rollout_id,
        "invocations": [{"invocation_id": "root", "model_calls": [ref]}],
        "turns": [
            {
                "invocation_id": "root",
                "task_id": str(task),
                "rollout_id": rollout_id,
                "turn_no": 1,
                "timestamp": 1.0,
                "step_count": 0,
                "answer": answer,
                "model_calls": [ref],
            }
        ],
        "model_calls": [
            {
                "model_call_id": "c0",
                "response": {"output": answer},
                "response_metadata": {"response_id": "r0", "model_ref": POLICY, "status_code": status},
                "token_stats": {"prompt_tokens": 10, "completion_tokens": 5},
            }
        ],
    }
    return {
        "_ng_task_index": task,
        "_ng_rollout_index": rollout,
        "response": {"usage": {"input_tokens": 10, "output_tokens": 5}},
        "ng_trajectory": validated_trajectory(trajectory),
    }


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    made = RunPaths.of(tmp_path / "out.jsonl")
    made.directory.mkdir()
    return made


def write(paths: RunPaths, *lines: dict[str, Any] | bytes) -> None:
    parts = [line if isinstance(line, bytes) else exact_json.dumps(line) for line in lines]
    paths.output.write_bytes(b"".join(line + b"\n" for line in parts))


def verdicts(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_both_reports_stand_in_the_run_directory_and_under_the_public_names(paths: RunPaths) -> None:
    write(paths, record(1, status=500), record(0, 1), record(0, 0))
    outcome = health_of_records(paths)
    assert set(outcome.files) == {
        paths.rollout_verdicts,
        paths.quality_summary,
        paths.public_rollout_verdicts,
        paths.public_quality_summary,
    }
    rows = verdicts(paths.public_rollout_verdicts)
    assert [(row["rollout_id"], row["verdict"]) for row in rows] == [
        ("0-0", "healthy"),
        ("0-1", "healthy"),
        ("1-0", "unhealthy"),
    ]
    assert paths.rollout_verdicts.read_bytes() == paths.public_rollout_verdicts.read_bytes()
    summary = json.loads(paths.quality_summary.read_bytes())
    assert summary == json.loads(paths.public_quality_summary.read_bytes())
    assert summary["run"] == outcome.run
    assert outcome.errors == 3  # a failed call, an ending on it, and a task without a successful call
    assert outcome.first_findings["model_call_failed"] == "1-0"
    assert {path.name for path in paths.output.parent.iterdir()} == {
        "out.jsonl",
        "out.run",
        "quality_summary.json",
        "rollout_verdicts.jsonl",
    }


def test_a_peers_output_has_only_the_public_reports(tmp_path: Path) -> None:
    paths = RunPaths.of(tmp_path / "out.jsonl")
    write(paths, record(0))
    outcome = health_of_records(paths)
    assert outcome.files == (paths.public_quality_summary, paths.public_rollout_verdicts)
    assert not paths.directory.exists()


def test_damaged_lines_are_rows_that_name_file_and_line(paths: RunPaths) -> None:
    invalid = record(1)
    invalid["ng_trajectory"]["turns"][0]["task_id"] = "other"
    write(paths, record(0), b"", b"  ", b'{"torn', b"[]", invalid)
    with paths.output.open("ab") as output:
        output.write(b'{"_ng_task_index": 2, "_ng_rol')
    rows = [row for _, row in checked_rows(paths, HealthRules())]
    located = {row["rollout_id"]: row["findings"][0] for row in rows[1:]}
    assert {key: finding["locator"] for key, finding in located.items()} == {
        "__unreadable_record__:input-0:line-4-0": {"source_file": "out.jsonl", "line": 4},
        "__unreadable_record__:input-0:line-5-0": {"source_file": "out.jsonl", "line": 5},
        "1-0": {"source_file": "out.jsonl", "line": 6},
        "__unreadable_record__:input-0:line-7-0": {"source_file": "out.jsonl", "line": 7},
    }
    assert {finding["check"] for finding in located.values()} == {"record_unreadable"}
    assert "no line feed" in located["__unreadable_record__:input-0:line-7-0"]["detail"]["error"]
    outcome = health_of_records(paths)
    assert outcome.run["issues"]["record_unreadable"] == 4
    assert health_of_records(paths, ignored=frozenset({"record_unreadable"})).run["verdicts"]["unobserved"] == 4


def test_a_whole_last_line_without_its_line_feed_counts(paths: RunPaths) -> None:
    paths.output.write_bytes(exact_json.dumps(record(0)))
    size = paths.output.stat().st_size
    [(written, row)] = checked_rows(paths, HealthRules())
    assert (written, row["verdict"]) == (Written("main", 0, size), "healthy")


def test_an_empty_output_and_a_missing_one(paths: RunPaths) -> None:
    with pytest.raises(InputError, match="no such output"):
        health_of_records(paths)
    with pytest.raises(InputError, match="no such output"):
        health_of_run(paths)
    paths.output.touch()
    assert health_of_records(paths).run["artifacts"]["records"] == 0


@pytest.mark.parametrize("range_bytes", [1, 100, 1000, 1 << 20])
def test_ranges_of_any_size_give_every_line_once_with_its_place(
    paths: RunPaths, range_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(paths, *(record(number, text="x" * (number * 37 % 500)) for number in range(9)), b"", b"no", b"", record(9))
    with paths.output.open("ab") as output:
        output.write(exact_json.dumps(record(10)))
    data = paths.output.read_bytes()
    monkeypatch.setattr(health_reading, "_RANGE_BYTES", range_bytes)
    monkeypatch.setattr(health_reading, "_SEEK_BYTES", 7)
    found = list(checked_rows(paths, HealthRules(), workers=1))
    places = [data[written.offset : written.offset + written.length] for written, _ in found]
    assert places == [line for line in data.splitlines(keepends=True) if line.strip()]
    assert [row["_ng_task_index"] for _, row in found] == [
        *range(9),
        "__unreadable_record__:input-0:line-11",
        9,
        10,
    ]


def test_several_processes_say_the_same_as_one(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_reading, "_RANGE_BYTES", 2000)
    write(paths, *(record(number, status=200 + number % 3 * 200) for number in range(20)), b"no", record(0))
    alone = list(checked_rows(paths, HealthRules(), workers=1))
    assert list(checked_rows(paths, HealthRules(), workers=2)) == alone
    begun = checked_rows(paths, HealthRules(), workers=2)
    assert next(begun) == alone[0]
    begun.close()  # type: ignore[attr-defined]


def test_a_process_that_cannot_work_is_stood_in_for(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Dead:
        def __init__(self, function: object) -> None:
            pass

        def call(self, *arguments: object) -> None:
            raise ChildInterpreterError("no processes here")

        def close(self) -> None:
            pass

    monkeypatch.setattr(health_reading, "_RANGE_BYTES", 2000)
    monkeypatch.setattr(health_reading, "ChildInterpreter", Dead)
    write(paths, *(record(number) for number in range(8)))
    assert len(list(checked_rows(paths, HealthRules(), workers=2))) == 8
    assert "no processes here" in caplog.text


def test_compact_records_are_checked_with_their_payloads(paths: RunPaths) -> None:
    text = "a long answer " * 100
    compact, parts = compacted(record(0, text=text))
    assert parts
    write(paths, compact)
    [(_, missing)] = checked_rows(paths, HealthRules())
    assert missing["verdict"] == "unhealthy"
    assert "parts" in missing["findings"][0]["detail"]["error"]
    assert missing["findings"][0]["locator"] == {"source_file": "out.jsonl", "line": 1}
    assert "agent_turn_hollow" in missing["unobserved"]
    publish_parts(paths, "0-0", parts)
    [(_, whole)] = checked_rows(paths, HealthRules())
    assert whole == check_rollout(record(0, text=text))
    assert whole["verdict"] == "healthy"


def kept(paths: RunPaths, *records: dict[str, Any], ignored: frozenset[str] = frozenset()) -> None:
    """Store records whose facts say, wrongly, that they are all unobserved, so that what was used shows."""
    write(paths, *records)
    facts, offset = FactsWriter(paths), 0
    for one in records:
        line = exact_json.dumps(one)
        written = Written("main", offset, len(line) + 1, hashlib.blake2b(line, digest_size=16).digest())
        verdict = check_rollout(one, ignored=ignored) | {"verdict": "unobserved", "unobserved": ["agent_turn_hollow"]}
        facts.append(written, facts_line(one, None, verdict))
        offset += len(line) + 1
    facts.close()


def test_a_run_is_reported_from_the_verdicts_of_its_joiners(paths: RunPaths) -> None:
    kept(paths, record(0), record(1))
    assert health_of_run(paths).run["verdicts"]["unobserved"] == 2
    with paths.output.open("ab") as output:
        output.write(exact_json.dumps(record(2)) + b"\n")
    assert health_of_run(paths).run["verdicts"] == {"healthy": 1, "unhealthy": 0, "unobserved": 2}


def test_verdicts_by_other_rules_are_made_anew(paths: RunPaths) -> None:
    kept(paths, record(0), ignored=frozenset({"model_call_failed"}))
    assert health_of_run(paths).run["verdicts"]["healthy"] == 1
    assert health_of_run(paths, ignored=frozenset({"model_call_failed"})).run["verdicts"]["unobserved"] == 1


def test_a_damaged_line_has_every_record_of_the_run_checked_anew(paths: RunPaths) -> None:
    kept(paths, record(0))
    with paths.output.open("ab") as output:
        output.write(b"no\n")
    run = health_of_run(paths).run
    assert run["verdicts"] == {"healthy": 1, "unhealthy": 1, "unobserved": 0}


def test_reports_that_cannot_be_written_leave_the_earlier_ones(paths: RunPaths) -> None:
    write(paths, record(0))
    health_of_records(paths)
    before = paths.quality_summary.read_bytes()
    paths.public_rollout_verdicts.unlink()
    paths.public_rollout_verdicts.mkdir()
    (paths.public_rollout_verdicts / "something").touch()
    with pytest.raises(StorageError, match=r"out\.jsonl"):
        health_of_records(paths)
    assert paths.quality_summary.read_bytes() == before
    assert not [path for path in paths.output.parent.rglob("*") if TEMPORARY_NAME.match(path.name)]


def test_rows_of_any_size_and_content_come_back_from_the_spool(paths: RunPaths) -> None:
    odd = check_rollout({"_ng_task_index": "cut \ud83d", "_ng_rollout_index": 0})
    big = check_rollout({"_ng_task_index": 0, "_ng_rollout_index": 0})
    big["findings"] = [{"check": "agent_turn_hollow", "detail": {"reason": "x" * 5000}}] * 50
    outcome = write_health(paths, [(Written("main", 0, 1), odd), (Written("main", 1, 1), big)])
    rows = verdicts(paths.rollout_verdicts)
    assert [row["_ng_task_index"] for row in rows] == [0, "cut \ud83d"]
    assert len(rows[0]["findings"]) == 50
    assert outcome.warnings == 50
    assert "cut \ud83d" in json.loads(paths.quality_summary.read_bytes())["tasks"]


@pytest.mark.parametrize("tokens", [1 << 64, -(1 << 64), 10**4000])
def test_a_count_that_nothing_can_have_leaves_the_sums_of_the_others(paths: RunPaths, tokens: int) -> None:
    absurd = record(1) | {"response": {"usage": {"input_tokens": tokens, "output_tokens": (1 << 63) - 1}}}
    write(paths, absurd, absurd | {"_ng_rollout_index": 1}, record(0))
    summary = json.loads(paths.public_quality_summary.read_bytes()) if health_of_records(paths) else {}
    totals = summary["run"]["stats"]["tokens"]
    assert (totals["prompt"], totals["completion"]) == (10, 5 + 2 * ((1 << 63) - 1))


@pytest.mark.parametrize("header", [None, {}, {"format": 2}, {"format": 1, "slimmed": ["calls"], "conversations": []}])
def test_a_compact_record_whose_description_is_damaged_is_a_row_like_any_other(paths: RunPaths, header: Any) -> None:
    spoiled = {**record(1), "ng_payloads": header}
    write(paths, record(0), spoiled)
    health_of_records(paths)
    healthy, row = verdicts(paths.public_rollout_verdicts)
    assert (healthy["verdict"], row["verdict"], row["rollout_id"]) == ("healthy", "unhealthy", "1-0")
    (finding,) = (one for one in row["findings"] if one["check"] == "record_unreadable")
    assert finding["locator"] == {"source_file": "out.jsonl", "line": 2}
