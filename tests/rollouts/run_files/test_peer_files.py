"""Files of the peer's runs, as the vectors show them, go through our own readers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gym_ray.errors import InputError
from gym_ray.evidence.build import JoinOptions
from gym_ray.evidence.health import check_rollout
from gym_ray.model_call_capture.attachment import build_attachment
from gym_ray.model_call_capture.captures import FileCaptures
from gym_ray.model_call_capture.lines import CaptureSnapshot
from gym_ray.model_call_capture.quiesce import WrittenCalls
from gym_ray.model_call_capture.store import CaptureStore
from gym_ray.model_call_capture.verification.directory import verify_captures
from gym_ray.rollouts.rejoining.rejoin import rejoin
from gym_ray.rollouts.row_states.retry_rules import max_attempts_of
from gym_ray.rollouts.rows.materialised_rows import MaterialisedRows
from gym_ray.rollouts.run_files.record_reading import iterate_records
from gym_ray.rollouts.run_files.run_resume import resume_run
from gym_ray.rollouts.run_files.run_start import RunLock
from gym_ray.rollouts.run_paths import RunPaths

VECTORS = Path(__file__).parents[2] / "vectors"
RUNS: list[dict[str, Any]] = json.loads((VECTORS / "D_run.json").read_text("utf-8"))["cases"]
STORED = [run for run in RUNS if run["expected"]["output"] and "UNPARSEABLE" not in run["expected"]["output"]]
CAPTURED = [run for run in STORED if any("ng_model_call_capture" in record for record in run["expected"]["output"])]
RESUMED = [run for run in RUNS if run["run"]["config"].get("resume_from_cache") and "error" not in run["expected"]]
NAMED_DAMAGE = {
    "resume_truncated_materialized": "out_materialized_inputs.jsonl:2",
    "resume_output_row_unknown_to_inputs": "out.jsonl:1",
    "resume_damaged_middle_line": "out.jsonl:1",
}


def named(run: dict[str, Any]) -> str:
    name: str = run["name"]
    return name


def lines(values: list[Any] | None) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values or [])


def written(run: dict[str, Any], directory: Path) -> RunPaths:
    """The files that a run of the peer leaves behind; it knows no run directory."""
    paths = RunPaths.of(directory / "out.jsonl")
    for path, values in (
        (paths.materialised, run["expected"]["materialized"]),
        (paths.output, run["expected"]["output"]),
        (paths.failures, run["expected"]["failures"]),
    ):
        if values is not None:
            path.write_bytes(lines(values))
    return paths


def test_there_is_something_to_read() -> None:
    assert len(STORED) >= 15
    assert len(CAPTURED) >= 5


@pytest.mark.parametrize("run", STORED, ids=named)
def test_outputs_read_back_record_by_record(run: dict[str, Any], tmp_path: Path) -> None:
    paths = written(run, tmp_path)
    found = [
        (place.file, json.loads(line)) for place, line in iterate_records(paths, ("main", "failures"), validated=True)
    ]
    expected = [("main", record) for record in run["expected"]["output"]]
    expected += [("failures", record) for record in run["expected"]["failures"] or []]
    assert found == expected


@pytest.mark.parametrize("run", RUNS, ids=named)
def test_rows_read_back(run: dict[str, Any], tmp_path: Path) -> None:
    paths = written(run, tmp_path)
    with MaterialisedRows(paths.materialised) as rows:
        assert [json.loads(rows.read(ordinal)) for ordinal in range(len(rows))] == run["expected"]["materialized"]


@pytest.mark.parametrize("run", CAPTURED, ids=named)
def test_captures_read_back_as_the_peer_reported_them(run: dict[str, Any], tmp_path: Path) -> None:
    store = CaptureStore(tmp_path)
    for record in run["expected"]["output"]:
        reported = record.get("ng_model_call_capture")
        if reported is None:  # stored before this run read captures
            continue
        rollout_id = reported["rollout_id"]
        exchanges = exchanges_of(run, record)
        if exchanges:
            (tmp_path / f"{rollout_id}.capture.jsonl").write_bytes(lines(exchanges))
        assert store.read(rollout_id) == exchanges
        path = store.path_for(rollout_id)
        snapshot = CaptureSnapshot(path.read_bytes() if path.exists() else None, incomplete=False)
        assert build_attachment(rollout_id, snapshot) == reported


@pytest.mark.parametrize("run", CAPTURED, ids=named)
def test_captures_of_the_peer_are_verified_and_only_repeated_ids_are_found(run: dict[str, Any], tmp_path: Path) -> None:
    directory = captures_of(run, tmp_path / "captures")
    found = verify_captures(directory)
    ids = [
        call["model_call_id"] for record in captured_records(run) for call in record["ng_model_call_capture"]["calls"]
    ]
    repeats = len(ids) - len(set(ids))  # scripts of the vectors use the same calls for several rollouts
    assert [finding.code for finding in found.findings] == ["repeated_call_id"] * repeats
    assert found.calls == len(ids)


def captured_records(run: dict[str, Any]) -> list[dict[str, Any]]:
    """Records of a run, one for each capture that they were given."""
    by_id = {
        record["ng_model_call_capture"]["rollout_id"]: record
        for record in [*run["expected"]["output"], *(run["expected"]["failures"] or [])]
        if "ng_model_call_capture" in record
    }
    return list(by_id.values())


def captures_of(run: dict[str, Any], directory: Path) -> Path:
    """Write the capture files that a run of the peer leaves behind."""
    directory.mkdir(mode=0o700)
    for record in captured_records(run):
        path = directory / f"{record['ng_model_call_capture']['rollout_id']}.capture.jsonl"
        path.touch(mode=0o600)
        path.write_bytes(lines(exchanges_of(run, record)))
    return directory


def exchanges_of(run: dict[str, Any], record: dict[str, Any]) -> list[Any]:
    """What the script of a run appended to the capture of one of its records."""
    script = run["run"].get("script", {})
    ours = f"{record['_ng_task_index']}-{record['_ng_rollout_index']}"
    explicit = record.get("_ng_rollout_id")
    found: list[Any] = []
    for key, step in script.items():
        if key == ours or (explicit and explicit_id(run, key) == explicit):
            found += step.get("exchanges", [])
    return found


def explicit_id(run: dict[str, Any], key: str) -> str | None:
    """The explicit rollout id of a scripted rollout, None when its row gives none."""
    for row in run["expected"]["materialized"]:
        if key == f"{row['_ng_task_index']}-{row['_ng_rollout_index']}":
            given: str | None = row.get("_ng_rollout_id")
            return given
    return None


@pytest.mark.parametrize("run", STORED, ids=named)
def test_records_have_a_verdict(run: dict[str, Any]) -> None:
    for record in run["expected"]["output"]:
        verdict = check_rollout(record)
        assert verdict["verdict"] in ("healthy", "unhealthy", "unobserved")
        assert "record_unreadable" not in [finding["check"] for finding in verdict["findings"]]


@pytest.mark.parametrize("run", RESUMED, ids=named)
def test_a_run_of_the_peer_is_taken_up_where_the_peer_takes_it_up(run: dict[str, Any], tmp_path: Path) -> None:
    before(run, tmp_path)
    paths = RunPaths.of(tmp_path / "out.jsonl")
    budget, _ = max_attempts_of(run["run"].get("env", {}).get("NEMO_GYM_MAX_ROLLOUT_ATTEMPTS"))
    with RunLock(paths) as lock:
        state = resume_run(lock).state
    with MaterialisedRows.of(paths) as rows:
        found = []
        for ordinal in state.pending(budget):
            row = json.loads(rows.attempt(ordinal, state.attempts[ordinal]).data)
            found.append((row["_ng_task_index"], row["_ng_rollout_index"], row.get("_ng_attempt_index")))
    posts = [(post["task"], post["rollout"], post["attempt"]) for post in run["expected"]["run_posts"]]
    longest_first = run["run"]["config"].get("dispatch_longest_first")
    assert (sorted(found), len(found)) == (sorted(posts), len(posts)) if longest_first else found == posts


@pytest.mark.parametrize("run", [run for run in STORED if run["name"] not in NAMED_DAMAGE], ids=named)
def test_what_the_peer_finished_stays_finished(run: dict[str, Any], tmp_path: Path) -> None:
    paths = written(run, tmp_path)
    stored = paths.output.read_bytes()
    with RunLock(paths) as lock:
        resumed = resume_run(lock)
    keys = {(record["_ng_task_index"], record["_ng_rollout_index"]) for record in run["expected"]["output"]}
    done = {
        (row["_ng_task_index"], row["_ng_rollout_index"])
        for row, is_done in zip(run["expected"]["materialized"], resumed.state.done, strict=True)
        if is_done
    }
    assert done == keys
    rows = {(row["_ng_task_index"], row["_ng_rollout_index"]) for row in run["expected"]["materialized"]}
    of_rows = [
        failure
        for failure in run["expected"]["failures"] or []
        if (failure.get("_ng_task_index"), failure.get("_ng_rollout_index")) in rows
    ]
    assert sum(resumed.state.failures) == len(of_rows)
    assert paths.output.read_bytes() == stored


@pytest.mark.parametrize("name", NAMED_DAMAGE)
def test_damage_in_a_run_of_the_peer_is_named_and_nothing_changes(name: str, tmp_path: Path) -> None:
    (run,) = [run for run in RUNS if run["name"] == name]
    files = before(run, tmp_path)
    with RunLock(RunPaths.of(tmp_path / "out.jsonl")) as lock, pytest.raises(InputError) as caught:
        resume_run(lock)
    assert NAMED_DAMAGE[name] in str(caught.value)
    assert {path: path.read_bytes() for path in files} == files


def before(run: dict[str, Any], directory: Path) -> dict[Path, bytes]:
    """Write the files that were there before a run, and return them."""
    files = {directory / name: text.encode() for name, text in run["run"]["pre_files"].items()}
    for path, data in files.items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    return files


@pytest.mark.parametrize("run", CAPTURED, ids=named)
def test_joining_a_run_of_the_peer_again_changes_nothing(run: dict[str, Any], tmp_path: Path) -> None:
    paths, directory = written(run, tmp_path), captures_of(run, tmp_path / "captures")
    stored = paths.output.read_bytes()
    report = rejoin(paths, FileCaptures(directory), options=JoinOptions(), written_calls=lambda _: WrittenCalls())
    assert (report.rejoined, report.kept) == (0, [])
    every = [*run["expected"]["output"], *(run["expected"]["failures"] or [])]
    assert report.unchanged == sum("ng_model_call_capture" in record for record in every)
    assert paths.output.read_bytes() == stored


@pytest.mark.parametrize("run", CAPTURED, ids=named)
def test_a_late_call_of_a_run_whose_time_nobody_knows_is_not_joined(run: dict[str, Any], tmp_path: Path) -> None:
    paths, directory = written(run, tmp_path), captures_of(run, tmp_path / "captures")
    stored = paths.output.read_bytes()
    rollout_id = captured_records(run)[0]["ng_model_call_capture"]["rollout_id"]
    with (directory / f"{rollout_id}.capture.jsonl").open("ab") as file:
        file.write(lines([{"model_call_id": "late", "started_at": 1001.0, "response": {"id": "late", "output": []}}]))
    report = rejoin(paths, FileCaptures(directory), options=JoinOptions(), written_calls=lambda _: WrittenCalls())
    assert report.rejoined == 0
    assert {kept.rollout_id for kept in report.kept} == {rollout_id}
    assert all("late" in kept.reason for kept in report.kept)
    assert paths.output.read_bytes() == stored
