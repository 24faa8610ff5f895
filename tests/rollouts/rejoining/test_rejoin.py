"""A later join equals a first one, changes nothing where nothing changed, and never links a stranger's calls."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gym_ray import exact_json
from gym_ray.errors import InputError, StorageError
from gym_ray.evidence.join import JoinOptions
from gym_ray.evidence.run_result import RunFailure
from gym_ray.model_call_capture.attachment import CALLS_MISSING, INCOMPLETE, OPEN_CALLS, WRITER_UNREACHABLE
from gym_ray.model_call_capture.call_index import RecordedCall
from gym_ray.model_call_capture.captures import FileCaptures
from gym_ray.model_call_capture.quiesce import WrittenCalls
from gym_ray.rollouts.rejoining.rejoin import RejoinReport, rejoin
from gym_ray.rollouts.reports.facts_reading import read_facts
from gym_ray.rollouts.run_files.parts_files import read_inline
from gym_ray.rollouts.run_files.run_start import RunLock
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.testing.joined_runs import JoinedRun, captured_call
from gym_ray.testing.written_runs import UnsyncedCalls, resumed

_EVIDENCE = ("ng_model_call_capture", "ng_agent_observations", "ng_trajectory", "ng_perf")


def _nobody(rollout_id: str) -> WrittenCalls:
    raise AssertionError(f"the servers were asked about {rollout_id}")


def _rejoin(run: JoinedRun, **options: Any) -> RejoinReport:
    run.close()
    options.setdefault("written_calls", _nobody)
    options.setdefault("options", JoinOptions())
    options.setdefault("calls", UnsyncedCalls())
    return rejoin(run.paths, FileCaptures(run.captures.root), **options)


def _records(paths: RunPaths, file: str = "output") -> list[dict[str, Any]]:
    return [read_inline(paths, line) for line in getattr(paths, file).read_bytes().splitlines()]


def _files(paths: RunPaths) -> dict[str, bytes]:
    """Everything of a run, but for the lock, whose text names its holder."""
    whole = [path for path in paths.output.parent.rglob("*") if path.is_file() and path != paths.lock]
    return {str(path): path.read_bytes() for path in whole}


def _reply(*call_ids: str) -> dict[str, Any]:
    """Return a reply whose agent observed these calls."""
    invocation = {
        "kind": "agent_invocation",
        "invocation_id": "root",
        "status": "completed",
        "model_calls": [{"model_call_id": call_id} for call_id in call_ids],
        "conversation": [{"type": "message", "role": "user", "content": "a long question " * 20}],
    }
    bundle = {"source": "test", "records": [invocation], "gaps": []}
    return {"reward": 0.5, "response": {"output": []}, "ng_agent_observations": bundle}


@pytest.fixture(params=[False, True], ids=["inline", "compact"])
def options(request: pytest.FixtureRequest) -> JoinOptions:
    return JoinOptions(compact=request.param)


@pytest.fixture
def run(tmp_path: Path, options: JoinOptions) -> Iterator[JoinedRun]:
    """Three rows: a reply, a failure, and a reply without observations."""
    with JoinedRun(tmp_path, 3, options=options, calls=UnsyncedCalls()) as run:
        now = time.time()
        run.capture(0, [captured_call("a0", now)])
        run.capture(1, [captured_call("b0", now)])
        run.capture(2, [captured_call("c0", now)])
        run.finish_joined(0, _reply("a0", "a1"))
        run.finish_joined(1, RunFailure("agent_timeout", "TimeoutError", "too slow"))
        run.finish_joined(2, {"reward": 1.0, "response": {"output": []}})
        yield run


def test_unchanged_captures_change_not_one_byte(run: JoinedRun) -> None:
    run.close()
    before = _files(run.paths)
    report = _rejoin(run)
    assert (report.records, report.unchanged, report.rejoined, report.kept_count) == (3, 3, 0, 0)
    assert _files(run.paths) == before


def test_a_late_call_gives_what_a_first_join_would_have_given(run: JoinedRun) -> None:
    attached = [json.dumps(record["ng_model_call_capture"]) for record in _records(run.paths)]
    before = run.paths.output.read_bytes().splitlines()
    run.capture(0, [captured_call("a1", time.time())])
    run.capture(1, [captured_call("b1", time.time())])
    wanted = run.joined(0, _reply("a0", "a1"))
    wanted_failure = run.joined(1, RunFailure("agent_timeout", "TimeoutError", "too slow"))
    report = _rejoin(run)
    assert (report.records, report.unchanged, report.rejoined, report.from_record) == (3, 1, 2, 0)
    after = run.paths.output.read_bytes().splitlines()
    assert after[1] == before[1], "a record whose capture is unchanged stays byte for byte"
    record = _records(run.paths)[0]
    note = record.pop("_ng_rejoined")
    assert note["from"] == "source"
    digest = hashlib.sha256(exact_json.dumps(json.loads(attached[0]))).hexdigest()
    assert note["previous_sha256"] == digest
    if wanted.parts is None:
        assert record == json.loads(wanted.line)
    (failure,) = _records(run.paths, "failures")
    failure.pop("_ng_rejoined")
    assert failure == json.loads(wanted_failure.line)
    assert [call["model_call_id"] for call in record["ng_model_call_capture"]["calls"]] == ["a0", "a1"]
    assert len(record["ng_trajectory"]["turns"]) == 2
    assert record["ng_perf"]["total_latency_ms"] == 1234.5
    assert "model_call_reference_unmatched" not in json.dumps(record)


def test_joining_again_twice_is_joining_again_once(run: JoinedRun) -> None:
    run.capture(0, [captured_call("a1", time.time())])
    _rejoin(run)
    before = _files(run.paths)
    assert _rejoin(run).rejoined == 0
    assert _files(run.paths) == before


def test_a_mark_that_came_late_is_attached(run: JoinedRun) -> None:
    run.captures.mark_incomplete(run.rollout_id(2))
    assert _rejoin(run).rejoined == 1
    gaps = _records(run.paths)[1]["ng_model_call_capture"]["gaps"]
    assert [gap["code"] for gap in gaps] == [INCOMPLETE]


def test_only_the_rollouts_that_are_asked_for_are_joined_again(run: JoinedRun) -> None:
    for ordinal, call in ((0, "a1"), (2, "c1")):
        run.capture(ordinal, [captured_call(call, time.time())])
    report = _rejoin(run, rollout_ids=[run.rollout_id(2), "99-0"])
    assert report.rejoined == 1
    assert report.unknown == ("99-0",)
    assert ["_ng_rejoined" in record for record in _records(run.paths)] == [False, True]


def test_facts_and_index_follow_the_new_records(run: JoinedRun) -> None:
    run.capture(0, [captured_call("a1", time.time())])
    _rejoin(run)
    lines = run.paths.output.read_bytes().splitlines(keepends=True)
    facts = list(read_facts(run.paths, verdict_of=_never))
    assert [(written.offset, written.length) for written, _ in facts] == [
        (sum(map(len, lines[:number])), len(line)) for number, line in enumerate(lines)
    ]
    assert [fact.summary["num_calls"] for _, fact in facts] == [2, 1]
    assert [fact.summary["latency_ms"] for _, fact in facts] == [1234.5, 1234.5]
    found = resumed(run.paths)
    assert found.warnings == ()
    assert list(found.state.done) == [1, 0, 1]
    assert list(found.state.failures) == [0, 1, 0]


@pytest.mark.parametrize(("trains", "reasons"), [(True, ["invented"]), (False, None)])
def test_what_a_reply_says_about_tokens_counts_only_where_its_agent_trains(
    tmp_path: Path, trains: bool, reasons: list[str] | None
) -> None:
    with JoinedRun(tmp_path, 1, calls=UnsyncedCalls()) as run:
        run.capture(0, [captured_call("a0", time.time())])
        run.finish_joined(0, {"reward": 1.0, "_ng_token_capture": {"mask_reasons": ["invented"]}}, trains=trains)
        run.capture(0, [captured_call("a1", time.time())])
        assert _rejoin(run).rejoined == 1
        ((_, facts),) = read_facts(run.paths, verdict_of=_never)
        assert facts.summary["token_mask_reasons"] == reasons


def _never(_record: dict[str, Any]) -> dict[str, Any]:
    raise AssertionError("the facts of a record are not cached")


def test_without_an_index_the_next_resume_builds_it(run: JoinedRun) -> None:
    run.close()
    run.paths.index.unlink()
    run.captures.mark_incomplete("0-0")
    assert _rejoin(run).rejoined == 1
    assert not run.paths.index.exists()
    assert list(resumed(run.paths).state.done) == [1, 0, 1]


@pytest.mark.parametrize("damage", [b"never", b""])
def test_a_manifest_that_does_not_say_when_the_run_began_is_named(run: JoinedRun, damage: bytes) -> None:
    run.capture(0, [captured_call("a1", time.time())])
    begun_at = str(exact_json.loads(run.paths.manifest.read_bytes())["begun_at"]).encode()
    run.paths.manifest.write_bytes(run.paths.manifest.read_bytes().replace(begun_at, damage))
    run.close()
    before = _files(run.paths)
    with pytest.raises(InputError, match=r"begun_at.*is no time of ISO 8601") as refused:
        _rejoin(run)
    assert str(run.paths.manifest) in str(refused.value)
    assert _files(run.paths) == before


def test_a_damaged_index_is_reported(run: JoinedRun) -> None:
    assert _rejoin(run).index_problem is None
    damaged = bytearray(run.paths.index.read_bytes())
    damaged[3] ^= 0xFF
    run.paths.index.write_bytes(damaged)
    report = _rejoin(run)
    assert report.index_problem is not None
    assert str(run.paths.index) in report.index_problem
    run.paths.index.unlink()
    assert _rejoin(run).index_problem is None, "a missing one is none that is damaged"


# What the servers said, and nobody can say again.


def _listed(*call_ids: str) -> tuple[RecordedCall, ...]:
    return tuple(RecordedCall(call_id, "0-0.capture.jsonl", 0, 1) for call_id in call_ids)


@pytest.mark.parametrize(
    "said",
    [
        WrittenCalls(open_call_ids=("x", "y")),
        WrittenCalls(unreachable_writers=("policy-1", "policy-2")),
        WrittenCalls(recorded=_listed("a0", "gone")),
        WrittenCalls(lost_call_ids=("gone",)),
        WrittenCalls(marked_incomplete=True),
        WrittenCalls(open_call_ids=("x",), recorded=_listed("g", "h"), unreachable_writers=("p",)),
    ],
)
def test_a_gap_stays_when_nobody_can_be_asked(tmp_path: Path, said: WrittenCalls) -> None:
    with JoinedRun(tmp_path, 1, calls=UnsyncedCalls()) as run:
        run.capture(0, [captured_call("a0", time.time())])
        run.finish_joined(0, _reply("a0"), written=said)
        before = run.paths.output.read_bytes()
        assert b"gaps" in before
        assert _rejoin(run, written_calls=lambda _: WrittenCalls()).unchanged == 1
        assert run.paths.output.read_bytes() == before


@pytest.mark.parametrize(
    ("said", "now", "left"),
    [
        (WrittenCalls(open_call_ids=("a1",)), WrittenCalls(), {}),
        (WrittenCalls(open_call_ids=("a1", "a2")), WrittenCalls(), {OPEN_CALLS: "count=1"}),
        (WrittenCalls(recorded=_listed("a0", "a1")), WrittenCalls(), {}),
        (WrittenCalls(recorded=_listed("a0", "a1", "a2")), WrittenCalls(), {CALLS_MISSING: "count=1"}),
        (WrittenCalls(open_call_ids=("a1",)), WrittenCalls(recorded=_listed("a2")), {CALLS_MISSING: "count=1"}),
        (WrittenCalls(open_call_ids=("a1",)), WrittenCalls(open_call_ids=("a2", "a3")), {OPEN_CALLS: "count=2"}),
        (WrittenCalls(unreachable_writers=("p",)), WrittenCalls(), {WRITER_UNREACHABLE: "writers=p"}),
        (
            WrittenCalls(open_call_ids=("a1",)),
            WrittenCalls(lost_call_ids=("a2",)),
            {INCOMPLETE: "", CALLS_MISSING: "count=1"},
        ),
    ],
)
def test_a_gap_goes_when_its_call_turned_up(
    tmp_path: Path, said: WrittenCalls, now: WrittenCalls, left: dict[str, str]
) -> None:
    with JoinedRun(tmp_path, 1, calls=UnsyncedCalls()) as run:
        run.capture(0, [captured_call("a0", time.time())])
        run.finish_joined(0, _reply("a0"), written=said)
        run.capture(0, [captured_call("a1", time.time())])
        assert _rejoin(run, written_calls=lambda _: now).rejoined == 1
        gaps = _records(run.paths)[0]["ng_model_call_capture"].get("gaps", [])
        assert {gap["code"]: gap.get("detail", "") for gap in gaps} == left


def test_calls_without_an_id_are_counted_in_their_order(tmp_path: Path) -> None:
    nameless = captured_call("a0", time.time()) | {"model_call_id": None}
    with JoinedRun(tmp_path, 1, calls=UnsyncedCalls()) as run:
        run.capture(0, [nameless])
        run.finish_joined(0, _reply("a0"), written=WrittenCalls(open_call_ids=("x", "y")))
        assert _rejoin(run, written_calls=lambda _: WrittenCalls()).unchanged == 1
        run.captures.record("0-0", nameless)
        assert _rejoin(run, written_calls=lambda _: WrittenCalls()).rejoined == 1
        attachment = _records(run.paths)[0]["ng_model_call_capture"]
        assert (len(attachment["calls"]), attachment["gaps"]) == (2, [{"code": OPEN_CALLS, "detail": "count=1"}])
        run.captures.clear("0-0")
        run.captures.record("0-0", nameless)
        report = _rejoin(run)
        assert "lacks 1 of the calls that were attached, number 2 without an id" in report.kept[0].reason


# A wrong link is worse than a lost sample.


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda run: run.captures.clear("0-0"), "lacks 1 of the calls that were attached, a0"),
        (lambda run: run.captures.path_for("0-0").unlink(), "lacks 1 of the calls"),
        (lambda run: _replace(run, [captured_call("z0", time.time())]), "lacks 1 of the calls"),
        (lambda run: run.capture(0, [captured_call("z0", time.time() + 3600)]), "z0 of its capture did not begin"),
        (lambda run: run.capture(0, [captured_call("z0", time.time() - 3600)]), "z0 of its capture did not begin"),
        (
            lambda run: run.capture(0, [captured_call("z0", 0.0) | {"started_at": None}]),
            "z0 of its capture did not begin",
        ),
        (lambda run: run.captures.path_for("0-0").write_bytes(b"{damaged\n"), "lacks 1 of the calls"),
    ],
)
def test_a_capture_that_may_be_another_runs_is_not_attached(
    run: JoinedRun, spoil: Callable[[JoinedRun], None], reason: str
) -> None:
    spoil(run)
    before = run.paths.output.read_bytes()
    report = _rejoin(run)
    assert (report.kept_count, report.rejoined, report.unchanged) == (1, 0, 2)
    assert report.kept[0].rollout_id == "0-0"
    assert report.kept[0].place == f"{run.paths.output}, byte 0"
    assert reason in report.kept[0].reason
    assert run.paths.output.read_bytes() == before


def _replace(run: JoinedRun, exchanges: list[dict[str, Any]]) -> None:
    run.captures.clear("0-0")
    run.capture(0, exchanges)


def test_a_record_without_an_attachment_gets_none(tmp_path: Path) -> None:
    with JoinedRun(tmp_path, 2, calls=UnsyncedCalls()) as run:
        run.finish(0, 0, reward=1.0)
        run.finish(1, 0, reward=1.0, ng_model_call_capture={"rollout_id": "another-1", "calls": []})
        run.capture(0, [captured_call("a0", time.time())])
        run.capture(1, [captured_call("b0", time.time())])
        before = run.paths.output.read_bytes()
        report = _rejoin(run)
        assert (report.uncaptured, report.rejoined) == (2, 0)
        assert run.paths.output.read_bytes() == before


# Outputs of elsewhere, which kept no sources.


def test_without_sources_the_earlier_join_is_the_start(tmp_path: Path) -> None:
    with JoinedRun(tmp_path, 1, keep_sources=False, calls=UnsyncedCalls()) as run:
        run.paths.sources.unlink(missing_ok=True)
        run.capture(0, [captured_call("a0", time.time())])
        run.finish_joined(0, _reply("a0", "a1"))
        run.capture(0, [captured_call("a1", time.time())])
        wanted = json.loads(run.joined(0, _reply("a0", "a1")).line)
        report = _rejoin(run)
        assert report.from_record == 1
        (record,) = _records(run.paths)
        assert record.pop("_ng_rejoined")["from"] == "record"
        assert record == wanted


def test_without_sources_what_only_an_agent_can_know_is_kept(tmp_path: Path) -> None:
    turn = {
        "invocation_id": "own",
        "task_id": "0",
        "rollout_id": "0-0",
        "turn_no": 1,
        "timestamp": 5.0,
        "step_count": 0,
        "question": "what only the agent knows",
    }
    trajectory = {"schema_version": "1.0", "task_id": "0", "rollout_id": "0-0", "turns": [turn]}
    with JoinedRun(tmp_path, 1, keep_sources=False, calls=UnsyncedCalls()) as run:
        run.paths.sources.unlink(missing_ok=True)
        run.capture(0, [captured_call("a0", time.time())])
        run.finish_joined(0, {"reward": 1.0, "ng_trajectory": trajectory})
        run.capture(0, [captured_call("a1", time.time())])
        _rejoin(run)
        (record,) = _records(run.paths)
        assert record["ng_trajectory"]["turns"][0]["question"] == "what only the agent knows"
        assert [call["model_call_id"] for call in record["ng_trajectory"]["model_calls"]] == ["a0", "a1"]


def test_a_damaged_line_of_the_sources_costs_only_itself(run: JoinedRun) -> None:
    run.capture(0, [captured_call("a1", time.time())])
    run.capture(2, [captured_call("c1", time.time())])
    run.close()
    run.paths.sources.write_bytes(b"{damaged\n" + run.paths.sources.read_bytes())
    assert _rejoin(run).from_record == 1
    assert [record["_ng_rejoined"]["from"] for record in _records(run.paths)] == ["source", "record"]


# Bad input.


def test_a_run_that_is_under_way_is_left_alone(run: JoinedRun) -> None:
    run.close()
    with RunLock(run.paths), pytest.raises(StorageError, match="another collector"):
        _rejoin(run)


@pytest.mark.parametrize("indexed", [True, False])
def test_a_damaged_line_is_named_and_nothing_changes(run: JoinedRun, indexed: bool) -> None:
    run.captures.mark_incomplete("0-0")
    run.close()
    lines = run.paths.output.read_bytes().splitlines(keepends=True)
    run.paths.output.write_bytes(lines[0] + b"}" + lines[1][1:])
    if not indexed:
        run.paths.index.unlink()
        for path in run.paths.facts.iterdir():
            path.unlink()
    before = _files(run.paths)
    with pytest.raises(InputError, match=r"out\.jsonl:2: "):
        _rejoin(run)
    assert _files(run.paths) == before


def test_a_torn_tail_is_for_the_resume_to_repair(run: JoinedRun) -> None:
    run.close()
    with run.paths.output.open("ab") as file:
        file.write(b'{"half')
    with pytest.raises(InputError, match="resume the run first"):
        _rejoin(run)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    paths = RunPaths.of(tmp_path / "out.jsonl")
    with pytest.raises(InputError, match="no such output"):
        rejoin(paths, FileCaptures(tmp_path), options=JoinOptions(), written_calls=_nobody)
    paths.output.touch()
    assert rejoin(paths, FileCaptures(tmp_path), options=JoinOptions(), written_calls=_nobody).records == 0
