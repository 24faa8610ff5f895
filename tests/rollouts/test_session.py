from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gym_ray import exact_json
from gym_ray.capture_location import CaptureLocation
from gym_ray.errors import InputError, StorageError
from gym_ray.rollouts.collection_settings import CollectionSettings
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.run_files.run_log import RunOutputs
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.rollouts.session import RunPlan, RunSession, SessionStart
from gym_ray.testing.fake_rollouts import FakePort, answer, failing

ROW = {"responses_create_params": {"input": "q"}, "agent_ref": {"name": "a"}}


def plan(tmp_path: Path, rows: int = 4, **options: Any) -> RunPlan:
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({**ROW, "n": n}) + "\n" for n in range(rows)))
    settings = CollectionSettings(num_samples_in_parallel=1, join_backoff_s=0.001)
    return RunPlan(
        RunPaths.of(tmp_path / "out.jsonl"),
        source,
        RowOptions(),
        settings,
        CaptureLocation.of(tmp_path / "captures"),
        **options,
    )


async def run(wanted: RunPlan, script: Any = answer) -> tuple[SessionStart, list[str]]:
    """Run a session to its end; returns how it began and the ids that ran, in order."""
    session = RunSession(wanted)
    try:
        start = session.begin()
        with RunOutputs(wanted.paths) as outputs:
            port = FakePort(outputs, script)
            await session.collection(port).run()
    finally:
        session.close()
    return start, [rollout_id for what, rollout_id in port.events if what == "run"]


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


async def some_fail(job: Any) -> Any:
    return await (failing("agent_run_error") if job.ordinal % 2 else answer)(job)


async def test_a_session_without_an_earlier_run_begins_afresh(tmp_path: Path) -> None:
    start, ran = await run(plan(tmp_path, resume=True))
    assert (start.rows, start.resumed, start.done, start.given_up, start.set_aside) == (4, False, 0, 0, None)
    assert ran == ["0-0", "1-0", "2-0", "3-0"]


async def test_a_resumed_session_runs_only_what_failed(tmp_path: Path) -> None:
    await run(plan(tmp_path), some_fail)
    start, ran = await run(plan(tmp_path, resume=True))
    assert (start.resumed, start.done, start.given_up) == (True, 2, 0)
    assert ran == ["1-0-a1", "3-0-a1"]
    start, ran = await run(plan(tmp_path, resume=True))
    assert (start.done, start.given_up, ran) == (4, 0, [])


async def test_a_resume_adds_lines_and_changes_none(tmp_path: Path) -> None:
    """D56: also the failures of rows that succeed in the end stay."""
    wanted = plan(tmp_path)
    await run(wanted, some_fail)
    outputs = (wanted.paths.output, wanted.paths.failures, wanted.paths.materialised)
    before = [path.read_bytes() for path in outputs]
    await run(plan(tmp_path, resume=True))
    after = [path.read_bytes() for path in outputs]
    assert [new[: len(old)] for old, new in zip(before, after, strict=True)] == before
    assert [new.count(b"\n") - old.count(b"\n") for old, new in zip(before, after, strict=True)] == [2, 0, 0]


async def test_rows_that_a_spent_budget_left_run_in_the_next_run(tmp_path: Path) -> None:
    """D43: they were written nowhere, are no failures, and cost no attempt."""
    wanted = plan(tmp_path)
    spent = replace(wanted, settings=replace(wanted.settings, dispatch_budget_s=60.0, drain_margin_s=61.0))
    _, ran = await run(spent)
    assert ran == []
    assert (wanted.paths.output.read_bytes(), wanted.paths.failures.read_bytes()) == (b"", b"")
    start, ran = await run(plan(tmp_path, resume=True))
    assert (start.resumed, start.done, start.given_up) == (True, 0, 0)
    assert ran == ["0-0", "1-0", "2-0", "3-0"]


async def test_rows_that_failed_too_often_are_given_up_and_counted(tmp_path: Path) -> None:
    for _ in range(3):
        await run(plan(tmp_path, resume=True), some_fail)
    start, ran = await run(plan(tmp_path, resume=True))
    assert (start.done, start.given_up, ran) == (2, 2, [])


async def test_a_session_that_is_not_told_to_resume_sets_results_aside(tmp_path: Path) -> None:
    await run(plan(tmp_path))
    start, ran = await run(plan(tmp_path))
    assert not start.resumed
    assert start.set_aside is not None
    assert (start.set_aside / "out.jsonl").exists()
    assert len(ran) == 4


async def test_a_row_that_is_damaged_on_disk_costs_itself_alone(tmp_path: Path) -> None:
    wanted = plan(tmp_path, resume=True)
    await run(wanted, failing("agent_run_error"))
    data = wanted.paths.materialised.read_bytes()
    wanted.paths.materialised.write_bytes(data.replace(b'"n":1', b'"n":9'))
    start, ran = await run(wanted)
    assert start.resumed
    assert ran == ["0-0-a1", "2-0-a1", "3-0-a1"]
    classes = Counter(json.loads(line)["_ng_failure_class"] for line in wanted.paths.failures.read_text().splitlines())
    assert classes == {"agent_run_error": 4, "invalid_row": 1}
    start, ran = await run(wanted)
    assert (start.done, start.given_up, ran) == (3, 1, []), "a damaged row is not tried again"


async def test_two_sessions_cannot_write_one_output(tmp_path: Path) -> None:
    session = RunSession(plan(tmp_path))
    session.begin()
    before = contents(tmp_path)
    other = RunSession(plan(tmp_path, resume=True))
    with pytest.raises(StorageError, match="another collector"):
        other.begin()
    other.close()
    assert contents(tmp_path) == before
    session.close()
    start, _ = await run(plan(tmp_path, resume=True))
    assert start.resumed


async def test_a_resumed_session_claims_the_ids_that_it_may_still_capture(tmp_path: Path) -> None:
    await run(plan(tmp_path), some_fail)
    session = RunSession(plan(tmp_path, resume=True))
    session.begin()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "in.jsonl").write_text(json.dumps(ROW | {"_ng_task_index": 3}) + "\n")
    other = RunPlan(
        RunPaths.of(elsewhere / "out.jsonl"),
        elsewhere / "in.jsonl",
        RowOptions(),
        CollectionSettings(),
        CaptureLocation.of(tmp_path / "captures"),
    )
    second = RunSession(other)
    with pytest.raises(StorageError, match="rollout id 3-0 belongs to the run that writes"):
        second.begin()
    second.close()
    session.close()


async def test_rows_that_took_longest_start_first(tmp_path: Path) -> None:
    async def slow_failure(job: Any) -> Any:
        result = await answer(job)
        reply = {"_ng_failure_class": "judge_failed", "elapsed_seconds": 10 * job.ordinal + 1}
        return type(result)(json.dumps(reply).encode(), None, 1.0)

    wanted = plan(tmp_path, resume=True, dispatch_longest_first=True)
    session = RunSession(wanted)
    session.begin()
    session.close()
    for ordinal in range(4):
        record = {"_ng_task_index": ordinal, "_ng_rollout_index": 0, "_ng_failure_class": "judge_failed"}
        with wanted.paths.failures.open("a") as file:
            file.write(json.dumps(record | {"elapsed_seconds": 10 * ordinal + 1}) + "\n")
    _, ran = await run(wanted)
    assert ran == ["3-0-a1", "2-0-a1", "1-0-a1", "0-0-a1"]


async def test_results_with_an_invalid_verdict_run_again_where_that_is_asked_for(tmp_path: Path) -> None:
    wanted = plan(tmp_path, resume=True)
    await run(wanted)
    lines = wanted.paths.output.read_text().splitlines()
    record = json.loads(lines[2]) | {"invalid_judge_response": True}
    wanted.paths.output.write_text("".join(line + "\n" for line in [*lines[:2], json.dumps(record), *lines[3:]]))
    wanted.paths.index.unlink()
    start, ran = await run(wanted)
    assert (start.done, ran) == (4, [])
    start, ran = await run(plan(tmp_path, resume=True, retry_invalid_judge_responses=True))
    assert (start.done, ran) == (3, ["2-0-a1"])


async def test_a_line_that_is_no_record_stops_the_start_and_is_named(tmp_path: Path) -> None:
    wanted = plan(tmp_path, resume=True)
    await run(wanted)
    wanted.paths.output.write_bytes(b"{broken\n" + wanted.paths.output.read_bytes())
    with pytest.raises(InputError, match=r"out\.jsonl:1: .*--salvage"):
        await run(wanted)
    start, ran = await run(plan(tmp_path, resume=True, salvage=True))
    assert (start.done, ran) == (4, [])
    assert any("damaged" in warning for warning in start.warnings)


async def test_rows_of_another_run_are_refused_before_invalid_verdicts_move(tmp_path: Path) -> None:
    wanted = plan(tmp_path)
    await run(wanted)
    main = b"".join(
        exact_json.dumps({**json.loads(line), "invalid_judge_response": True}) + b"\n"
        for line in wanted.paths.output.read_bytes().splitlines()
    )
    wanted.paths.output.write_bytes(main)
    wanted.paths.materialised.write_bytes(wanted.paths.materialised.read_bytes() + b"{}\n")
    session = RunSession(replace(wanted, resume=True, retry_invalid_judge_responses=True))
    with pytest.raises(InputError, match="materialized_inputs"):
        session.begin()
    session.close()
    assert (wanted.paths.output.read_bytes(), wanted.paths.failures.read_bytes()) == (main, b"")


async def test_a_row_whose_agent_is_gone_is_refused_before_it_costs_an_attempt(tmp_path: Path) -> None:
    wanted = plan(tmp_path, resume=True)
    await run(wanted, some_fail)
    before = {path: data for path, data in contents(tmp_path).items() if path.suffix == ".jsonl"}
    other = replace(wanted, options=RowOptions(agents=["b"]))
    with pytest.raises(InputError, match=r"inputs\.jsonl:2: agent_ref\.name: no agent 'a' runs here \(known are: b\)"):
        await run(other)
    assert {path: data for path, data in contents(tmp_path).items() if path.suffix == ".jsonl"} == before
    _, ran = await run(wanted)
    assert ran == ["1-0-a1", "3-0-a1"]
