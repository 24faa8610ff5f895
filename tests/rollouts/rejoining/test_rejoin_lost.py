"""Joining again when something of before is gone: calls that were replaced, parts that were lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gym_ray import exact_json
from gym_ray.errors import InputError
from gym_ray.evidence.join import JoinOptions
from gym_ray.model_call_capture.attachment import CALLS_MISSING
from gym_ray.model_call_capture.call_index import RecordedCall
from gym_ray.model_call_capture.captures import FileCaptures
from gym_ray.model_call_capture.quiesce import WrittenCalls
from gym_ray.rollouts.rejoining.rejoin import RejoinReport, rejoin
from gym_ray.rollouts.run_files.parts_files import read_inline
from gym_ray.testing.joined_runs import JoinedRun, captured_call
from gym_ray.testing.written_runs import UnsyncedCalls

_LONG = "a long question " * 20


def _nothing(_: str) -> WrittenCalls:
    return WrittenCalls()


def _rejoin(run: JoinedRun, written_calls: Callable[[str], WrittenCalls] = _nothing) -> RejoinReport:
    run.close()
    options: dict[str, Any] = {"options": JoinOptions(), "calls": UnsyncedCalls()}
    return rejoin(run.paths, FileCaptures(run.captures.root), written_calls=written_calls, **options)


def _reply(*call_ids: str) -> dict[str, Any]:
    conversation = [{"type": "message", "role": "user", "content": _LONG}]
    refs = [{"model_call_id": call_id} for call_id in call_ids]
    invocation = {
        "kind": "agent_invocation",
        "invocation_id": "root",
        "model_calls": refs,
        "conversation": conversation,
    }
    bundle = {"source": "test", "records": [invocation], "gaps": []}
    return {"reward": 0.5, "response": {"output": []}, "ng_agent_observations": bundle}


@pytest.mark.parametrize("call_id", ["a0", None])
@pytest.mark.parametrize("other", [{"started_at": 5.0}, {"response": {"id": "another", "output": []}}])
def test_another_call_in_the_place_of_an_attached_one_is_not_attached(
    tmp_path: Path, call_id: str | None, other: dict[str, Any]
) -> None:
    call = captured_call("a0", time.time()) | {"model_call_id": call_id}
    with JoinedRun(tmp_path, 1, calls=UnsyncedCalls()) as run:
        run.capture(0, [call])
        run.finish_joined(0, _reply("a0"))
        run.captures.clear("0-0")
        run.capture(0, [call | {"request": {"input": "of another run"}} | other])
        before = run.paths.output.read_bytes()
        report = _rejoin(run)
        assert (report.kept_count, report.rejoined) == (1, 0)
        assert "is another one than was attached" in report.kept[0].reason
        assert run.paths.output.read_bytes() == before


def test_a_line_that_repeats_an_id_is_a_call_of_its_own(tmp_path: Path) -> None:
    now = time.time()
    with JoinedRun(tmp_path, 2, calls=UnsyncedCalls()) as run:
        for ordinal in range(2):
            run.capture(ordinal, [captured_call("a0", now)])
            run.finish_joined(ordinal, _reply("a0"))
        run.capture(0, [captured_call("a0", now + 1)])
        run.capture(1, [captured_call("a0", now + 7200)])
        report = _rejoin(run)
        assert (report.rejoined, report.kept_count) == (1, 1)
        assert "call number 2 a0 of its capture did not begin while the rollout ran" in report.kept[0].reason
        first, second = (exact_json.loads(line) for line in run.paths.output.read_bytes().splitlines())
        assert [len(one["ng_model_call_capture"]["calls"]) for one in (first, second)] == [2, 1]


def _damage(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"answer", b"amswer"))


@pytest.mark.parametrize("spoil", [Path.unlink, _damage], ids=["missing", "damaged"])
def test_lost_parts_are_made_again_from_the_capture_and_the_reply(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    with JoinedRun(tmp_path, 2, options=JoinOptions(compact=True), calls=UnsyncedCalls()) as run:
        for ordinal in range(2):
            run.capture(ordinal, [captured_call(f"a{ordinal}", time.time())])
            run.finish_joined(ordinal, _reply(f"a{ordinal}"))
        lines = run.paths.output.read_bytes().splitlines()
        before = [read_inline(run.paths, line) for line in lines]
        spoil(run.paths.parts / "1-0.parts.jsonl")
        report = _rejoin(run)
        assert (report.rejoined, report.unchanged, report.kept_count) == (1, 1, 0)
        after = run.paths.output.read_bytes().splitlines()
        assert after[0] == lines[0]
        found = [read_inline(run.paths, line) for line in after]
        assert found[1].pop("_ng_rejoined")["from"] == "source"
        assert found == before


@pytest.mark.parametrize("member", ["parts", "ng_payloads"])
def test_what_cannot_be_made_again_is_kept_and_costs_no_other(tmp_path: Path, member: str) -> None:
    with JoinedRun(tmp_path, 2, options=JoinOptions(compact=True), keep_sources=False, calls=UnsyncedCalls()) as run:
        for ordinal in range(2):
            run.capture(ordinal, [captured_call(f"a{ordinal}", time.time())])
            run.finish_joined(ordinal, _reply(f"a{ordinal}"))
        run.paths.sources.unlink(missing_ok=True)
        if member == "parts":
            (run.paths.parts / "0-0.parts.jsonl").unlink()
        else:
            output = run.paths.output
            output.write_bytes(
                output.read_bytes().replace(b'"ng_payloads":{"format":1', b'"ng_payloads":{"format":7', 1)
            )
            run.paths.index.unlink()  # it tells that the record was changed; without it, no new call has a time either
        run.capture(1, [captured_call("late", time.time())])
        first = run.paths.output.read_bytes().splitlines()[0]
        report = _rejoin(run)
        assert (report.rejoined, report.kept_count) == ((1, 1) if member == "parts" else (0, 2))
        assert report.kept[0].rollout_id == "0-0"
        assert ("are not there" if member == "parts" else "none of format 1") in report.kept[0].reason
        assert run.paths.output.read_bytes().splitlines()[0] == first


@pytest.mark.parametrize("compact", [False, True])
def test_a_line_that_nests_too_deeply_is_unreadable_as_in_a_first_join(tmp_path: Path, compact: bool) -> None:
    now, deep = time.time(), "[" * 700 + "]" * 700
    line = exact_json.dumps(captured_call("b0", now) | {"request": {"input": "deep"}}).replace(b'"deep"', deep.encode())
    with JoinedRun(tmp_path, 1, options=JoinOptions(compact=compact), calls=UnsyncedCalls()) as run:
        run.capture(0, [captured_call("a0", now)])
        run.captures.path_for("0-0").write_bytes(run.captures.path_for("0-0").read_bytes() + line + b"\n")
        run.finish_joined(0, _reply("a0", "late"))
        assert _rejoin(run).unchanged == 1
        run.captures.record("0-0", captured_call("late", now))
        assert _rejoin(run).rejoined == 1
        attachment = exact_json.loads(run.paths.output.read_bytes())["ng_model_call_capture"]
        assert attachment["gaps"] == [{"code": "model_call_capture_records_unreadable", "detail": "count=1"}]
        assert [call["model_call_id"] for call in attachment["calls"]] == ["a0", "late"]


def test_a_record_that_was_changed_since_is_refused(tmp_path: Path) -> None:
    with JoinedRun(tmp_path, 2, calls=UnsyncedCalls()) as run:
        for ordinal in range(2):
            run.capture(ordinal, [captured_call(f"a{ordinal}", time.time())])
            run.finish_joined(ordinal, _reply(f"a{ordinal}"))
        changed = run.paths.output.read_bytes().replace(b'"reward":0.5', b'"reward":0.9', 1)
        run.paths.output.write_bytes(changed)
        run.captures.mark_incomplete("1-0")
        with pytest.raises(InputError, match=r"out.jsonl:1.*it was changed since it was written"):
            _rejoin(run)
        assert run.paths.output.read_bytes() == changed


def test_a_capture_that_cannot_be_read_any_more_takes_nothing_away(tmp_path: Path) -> None:
    with JoinedRun(tmp_path, 2, calls=UnsyncedCalls()) as run:
        run.captures.path_for("1-0").write_bytes(b"{damaged\n")
        for ordinal in range(2):
            run.finish_joined(ordinal, {"reward": 0.5})
        run.captures.path_for("0-0").mkdir()
        run.captures.clear("1-0")
        before = run.paths.output.read_bytes()
        report = _rejoin(run)
        reasons = [kept.reason for kept in report.kept]
        assert ["cannot be read now" in reasons[0], reasons[1]] == [True, "its capture is empty now"]
        assert run.paths.output.read_bytes() == before


def test_what_the_servers_still_say_is_not_counted_twice(tmp_path: Path) -> None:
    said = WrittenCalls(recorded=(RecordedCall("gone", "0-0", 1, 1),))
    with JoinedRun(tmp_path, 1, calls=UnsyncedCalls()) as run:
        run.capture(0, [captured_call("a0", time.time())])
        run.finish_joined(0, _reply("a0"), written=said)
        gaps = exact_json.loads(run.paths.output.read_bytes())["ng_model_call_capture"]["gaps"]
        assert gaps == [{"code": CALLS_MISSING, "detail": "count=1"}]
        assert _rejoin(run, lambda _: said).unchanged == 1
