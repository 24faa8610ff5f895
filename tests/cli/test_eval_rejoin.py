"""``gym-ray eval rejoin`` replaces what differs, says what it kept, and tells both by its exit code."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from gym_ray.cli.app import app
from gym_ray.model_call_capture.open_log import OpenLog, log_name
from gym_ray.model_call_capture.quiesce import WrittenCalls
from gym_ray.model_call_capture.registry import RegisteredWriter, WriterRegistry
from gym_ray.testing.joined_runs import JoinedRun, captured_call
from gym_ray.testing.written_runs import UnsyncedCalls


@pytest.fixture
def run(tmp_path: Path) -> Iterator[JoinedRun]:
    with JoinedRun(tmp_path, 2, calls=UnsyncedCalls()) as run:
        for ordinal in range(2):
            run.capture(ordinal, [captured_call(f"c{ordinal}", time.time())])
            run.finish_joined(ordinal, {"reward": 1.0})
        yield run


def _run(run: JoinedRun, *arguments: str) -> Result:
    run.close()
    command = ["eval", "rejoin", str(run.paths.output), "--capture-dir", str(run.captures.root), *arguments]
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, command, catch_exceptions=False)


def _calls(run: JoinedRun) -> list[list[str]]:
    records = [json.loads(line) for line in run.paths.output.read_bytes().splitlines()]
    return [[call["model_call_id"] for call in record["ng_model_call_capture"]["calls"]] for record in records]


def test_nothing_to_do_ends_with_0(run: JoinedRun) -> None:
    result = _run(run)
    assert result.exit_code == 0
    assert result.output == "2 records: 0 joined again, 2 unchanged, 0 kept, 0 without a capture of their own\n"


def test_late_calls_are_attached(run: JoinedRun) -> None:
    for ordinal in range(2):
        run.capture(ordinal, [captured_call(f"late{ordinal}", time.time())])
    result = _run(run, "--rollout", "1-0")
    assert result.exit_code == 0
    assert "1 joined again" in result.output
    assert "gym-ray eval health" in result.output
    assert _calls(run) == [["c0"], ["c1", "late1"]]
    assert _run(run).exit_code == 0
    assert _calls(run) == [["c0", "late0"], ["c1", "late1"]]


def test_an_index_that_cannot_be_used_is_named(run: JoinedRun) -> None:
    run.close()
    run.paths.index.write_bytes(b"\xff" + run.paths.index.read_bytes()[1:])
    output = _run(run).output
    assert "index not used: " in output
    assert str(run.paths.index) in output


def test_what_is_kept_is_named_and_ends_with_3(run: JoinedRun) -> None:
    run.captures.clear("0-0")
    result = _run(run)
    assert result.exit_code == 3
    assert "kept 0-0 (" in result.output
    assert "lacks 1 of the calls that were attached" in result.output
    assert _calls(run) == [["c0"], ["c1"]]


def test_an_id_that_no_record_has_is_named(run: JoinedRun) -> None:
    result = _run(run, "--rollout", "7-7")
    assert result.exit_code == 3
    assert "unknown 7-7" in result.output


def test_servers_are_asked_where_they_could_know_more(tmp_path: Path) -> None:
    """A living server that does not answer stays a gap; so does a call that a dead one lost."""
    with JoinedRun(tmp_path, 1, calls=UnsyncedCalls()) as run:
        run.capture(0, [captured_call("c0", time.time())])
        run.finish_joined(0, {"reward": 1.0}, written=WrittenCalls(open_call_ids=("c1",)))
        log = OpenLog(run.captures.root, log_name("policy", "e1"))
        writer = RegisteredWriter("policy-e1", "policy", log.path.name, "http://127.0.0.1:9", None, "here", 1)
        WriterRegistry(run.captures.root).add(writer)
        try:
            assert _run(run, "--timeout", "0").exit_code == 0
        finally:
            log.close()
    record = json.loads(run.paths.output.read_bytes())
    gaps = {gap["code"]: gap["detail"] for gap in record["ng_model_call_capture"]["gaps"]}
    assert gaps == {
        "model_call_capture_open_calls": "count=1",
        "model_call_capture_writer_unreachable": "writers=policy-e1",
    }
