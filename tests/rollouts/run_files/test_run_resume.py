from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gym_ray.errors import InputError, StorageError
from gym_ray.rollouts.row_states.failure_classes import TERMINAL, class_code
from gym_ray.rollouts.row_states.run_state import RunState
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.rows.materialised_rows import MaterialisedRows
from gym_ray.rollouts.run_files.record_reading import iterate_records
from gym_ray.rollouts.run_files.run_index import read_index, written_of
from gym_ray.rollouts.run_files.run_log import read_record
from gym_ray.rollouts.run_files.run_resume import RunResume, can_resume, resume_run
from gym_ray.rollouts.run_files.run_start import RunLock, begin_run
from gym_ray.rollouts.run_manifest import read_manifest
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.storage.calls import FileCalls
from gym_ray.testing.dying_calls import DiedError, DiesAfter
from gym_ray.testing.written_runs import STORY, UnsyncedCalls, WrittenRun, facts, resumed, story

FAST = UnsyncedCalls()


def test_a_resume_finds_what_is_done_failed_and_pending(tmp_path: Path) -> None:
    paths = story(tmp_path)
    manifest = read_manifest(paths)
    found = resumed(paths)
    assert facts(found.state) == STORY
    assert list(found.state.pending(3)) == [3, 5]
    assert found.state.count(3) == (3, 1, 2)
    assert (found.rows, found.warnings) == (6, ())
    assert manifest is not None
    assert found.run_id == manifest.run_id
    assert facts(resumed(paths).state) == STORY


def test_a_record_without_a_frame_gets_one(tmp_path: Path) -> None:
    paths = story(tmp_path)
    before = {written_of(frame) for frame in read_index(paths.index)}
    resumed(paths)
    frames = list(read_index(paths.index))
    (new,) = {written_of(frame) for frame in frames} - before
    assert json.loads(read_record(paths, new))["reward"] == 0.5
    assert new.digest == hashlib.blake2b(read_record(paths, new), digest_size=16).digest()
    assert (frames[-1].ordinal, frames[-1].attempt) == (4, 0)


# Whatever byte a file ends at, exactly what it still says is known, nothing is torn, and the run goes on.


def cut_states(paths: RunPaths, path: Path, check: Callable[[int, bytes, RunResume], None]) -> None:
    keep = paths.output.parent.with_name("keep")
    shutil.copytree(paths.output.parent, keep)
    whole = path.read_bytes()
    for cut in range(len(whole)):
        for file in (paths.output, paths.failures, paths.index, paths.ledger, paths.sources, paths.manifest):
            shutil.copyfile(keep / file.relative_to(paths.output.parent), file)
        path.write_bytes(whole[:cut])
        found = resumed(paths, calls=FAST)
        check(cut, whole, found)
        if cut % 4 == 0:
            again = resumed(paths, calls=FAST)
            assert not again.warnings, (cut, again.warnings)
            assert facts(again.state) == facts(found.state)


def lines_of(whole: bytes, cut: int) -> list[dict[str, Any]]:
    """The records that a file holds when it is cut: the whole ones, and one that lacks only its line feed."""
    *lines, rest = whole[:cut].split(b"\n")
    return [json.loads(line) for line in ([*lines, rest] if rest.endswith(b"}") else lines)]


def test_every_cut_of_the_main_output_keeps_exactly_the_whole_records(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    paths = story(tmp_path / "run")

    def check(cut: int, whole: bytes, found: RunResume) -> None:
        left = lines_of(whole, cut)
        done = {record["_ng_task_index"] for record in left}
        assert [bool(x) for x in found.state.done] == [row in done for row in range(6)], cut
        assert list(found.state.attempts) == STORY["attempts"], cut
        assert list(found.state.failures) == STORY["failures"]
        assert [json.loads(line) for line in paths.output.read_bytes().splitlines()] == left
        lost = len({0, 1} - done)
        gone = f"{paths.output}: results that were stored and are gone: {lost}; their rows run again"
        assert (gone in found.warnings) == (lost > 0), (cut, found.warnings)

    cut_states(paths, paths.output, check)


def test_every_cut_of_the_sidecar_keeps_exactly_the_whole_failures(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    paths = story(tmp_path / "run")

    def check(cut: int, whole: bytes, found: RunResume) -> None:
        failed = [record["_ng_task_index"] for record in lines_of(whole, cut)]
        assert list(found.state.failures) == [failed.count(row) for row in range(6)]
        assert list(found.state.terminal) == [3 * (row == 2 and 2 in failed) for row in range(6)]
        assert list(found.state.done) == STORY["done"]
        assert list(found.state.attempts) == STORY["attempts"], "no attempt number comes back with a lost failure"

    cut_states(paths, paths.failures, check)


def test_every_cut_of_the_index_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    paths = story(tmp_path / "run")

    def check(cut: int, whole: bytes, found: RunResume) -> None:
        assert facts(found.state) == STORY, cut

    cut_states(paths, paths.index, check)


def test_every_cut_of_the_ledger_forgets_only_the_starts_behind_it(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    paths = story(tmp_path / "run")

    def check(cut: int, whole: bytes, found: RunResume) -> None:
        assert facts(found.state) == {**STORY, "attempts": [1, 2, 1, 0, 1, 0]}, cut  # the last frame is row 3's start
        assert paths.ledger.stat().st_size == cut - cut % 64

    cut_states(paths, paths.ledger, check)


def test_every_cut_of_the_sources_leaves_whole_lines(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    paths = story(tmp_path / "run")

    def check(cut: int, whole: bytes, found: RunResume) -> None:
        assert facts(found.state) == STORY
        assert paths.sources.read_bytes() in ((b"", whole) if cut == len(whole) - 1 else (b"",))

    cut_states(paths, paths.sources, check)


def test_every_cut_of_the_row_index_is_healed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    paths = story(tmp_path / "run")
    whole = paths.rows_index.read_bytes()

    def check(cut: int, _: bytes, found: RunResume) -> None:
        assert facts(found.state) == STORY
        assert paths.rows_index.read_bytes() == whole

    cut_states(paths, paths.rows_index, check)


@pytest.mark.parametrize("name", ["materialised", "manifest"])
def test_every_cut_of_what_a_run_rests_on_is_refused_and_changes_no_record(tmp_path: Path, name: str) -> None:
    paths = story(tmp_path)
    path: Path = getattr(paths, name)
    whole, outputs = path.read_bytes(), (paths.output.read_bytes(), paths.failures.read_bytes())
    for cut in range(len(whole) - (name == "manifest")):  # a manifest without its line feed says all it must
        path.write_bytes(whole[:cut])
        with pytest.raises(InputError) as caught:
            resumed(paths, calls=FAST)
        assert str(path) in str(caught.value)
        assert (paths.output.read_bytes(), paths.failures.read_bytes()) == outputs
    path.write_bytes(whole)
    assert facts(resumed(paths, calls=FAST).state) == STORY


def test_cuts_of_several_files_at_once_lose_no_more_than_each(tmp_path: Path) -> None:
    """A hole, a lost index and a torn tail of both outputs: the union of what each alone costs."""
    paths = story(tmp_path)
    os.truncate(paths.output, paths.output.stat().st_size - 5)  # the result of row 1
    os.truncate(paths.failures, paths.failures.stat().st_size - 5)  # the failure of row 2
    paths.index.unlink()
    os.truncate(paths.ledger, 64 * 3 + 11)
    found = resumed(paths)
    expected = {"done": [1, 0, 0, 0, 1, 0], "attempts": [1, 1, 0, 0, 1, 0], "failures": [0, 1, 0, 0, 0, 0]}
    assert {name: values for name, values in facts(found.state).items() if name in expected} == expected


# What a resume refuses, by name.


def test_nothing_to_resume_is_said(tmp_path: Path) -> None:
    paths = RunPaths.of(tmp_path / "out.jsonl")
    assert not can_resume(paths)
    with pytest.raises(InputError, match=r"out_materialized_inputs\.jsonl: there is no run to resume here"):
        resumed(paths)
    paths.materialised.write_bytes(b"{}\n")
    with pytest.raises(InputError, match=r"out\.jsonl: there is no run to resume here"):
        resumed(paths)


def test_rows_of_another_run_are_refused(tmp_path: Path) -> None:
    paths = story(tmp_path)
    data = paths.materialised.read_bytes()
    paths.materialised.write_bytes(data.replace(b'"n":3', b'"n":4'))
    paths.rows_index.unlink()
    with pytest.raises(InputError, match=r"not the rows that .*manifest\.json names"):
        resumed(paths)
    paths.materialised.write_bytes(data + b"{}\n")
    for _ in range(2):
        with pytest.raises(InputError, match="materialized_inputs"):
            resumed(paths)
    paths.materialised.write_bytes(data)
    assert facts(resumed(paths).state) == STORY


def test_a_ledger_of_other_rows_is_refused(tmp_path: Path) -> None:
    paths = story(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    with WrittenRun(other, 9) as run:
        run.start(8, 0)
        foreign = run.paths
    shutil.copyfile(foreign.ledger, paths.ledger)
    with pytest.raises(StorageError, match="a frame for row 8 is not one of this run"):
        resumed(paths)
    with WrittenRun(other, 9) as run:
        run.start(8, 0)
        frame = bytearray(run.paths.ledger.read_bytes())
    source = tmp_path / "named.jsonl"
    row = {"responses_create_params": {"input": "q"}, "agent_ref": {"name": "a"}}
    source.write_text("".join(json.dumps({**row, "_ng_rollout_id": f"x{n}"}) + "\n" for n in range(9)))
    with RunLock(paths) as lock:
        begin_run(lock, source, RowOptions())
    paths.ledger.write_bytes(frame)
    with pytest.raises(StorageError, match="a start in it is not one of row 9"):
        resumed(paths)


def test_a_run_that_somebody_writes_is_not_resumed(tmp_path: Path) -> None:
    with WrittenRun(tmp_path, 2) as run, pytest.raises(StorageError, match="another collector"):
        resumed(run.paths)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{broken", "is no JSON object"),
        (b"[1]", "is no JSON object"),
        (b'{"reward": 1}', "has no _ng_task_index"),
        (b'{"_ng_task_index": 7, "_ng_rollout_index": 7}', "belongs to no row"),
    ],
)
def test_a_line_of_the_main_output_that_is_no_record_is_named_and_salvaged(
    tmp_path: Path, line: bytes, problem: str
) -> None:
    paths = story(tmp_path)
    data = paths.output.read_bytes().splitlines(keepends=True)
    bad = b"".join([data[0], line + b"\n", *data[1:]])
    paths.output.write_bytes(bad)
    for _ in range(2):
        with pytest.raises(InputError) as caught:
            resumed(paths)
        assert (caught.value.path, caught.value.line) == (str(paths.output), 2)
        assert problem in str(caught.value)
        assert "--salvage" in str(caught.value)
        assert paths.output.read_bytes() == bad
    found = resumed(paths, salvage=True)
    assert facts(found.state) == STORY
    assert paths.output.read_bytes() == b"".join(data)
    (kept,) = paths.damaged.iterdir()
    assert kept.read_bytes() == line
    assert any(problem in warning and str(kept) in warning for warning in found.warnings)
    assert resumed(paths).warnings == ()


def test_a_salvage_finds_damage_that_the_index_covers(tmp_path: Path) -> None:
    paths = story(tmp_path)
    resumed(paths)
    data = paths.output.read_bytes()
    paths.output.write_bytes(b"#" + data[1:])
    assert facts(resumed(paths).state) == STORY, "nothing of what the index names is read"
    with pytest.raises(InputError, match=r"out\.jsonl:1: .*--salvage"):
        list(iterate_records(paths))
    found = resumed(paths, salvage=True)
    assert list(found.state.done) == [0, 1, 0, 0, 1, 0]
    assert list(found.state.attempts) == STORY["attempts"]
    assert len(list(iterate_records(paths, validated=True))) == 2


@pytest.mark.parametrize("line", [b"{broken", b"\xff"])
def test_a_line_of_the_sidecar_that_is_no_json_is_named_and_salvaged(tmp_path: Path, line: bytes) -> None:
    paths = story(tmp_path)
    data = paths.failures.read_bytes()
    paths.failures.write_bytes(data + line + b"\n")
    with pytest.raises(InputError, match=r"out_failures\.jsonl:3: the line is no JSON object"):
        resumed(paths)
    assert facts(resumed(paths, salvage=True).state) == STORY
    assert paths.failures.read_bytes() == data
    assert [path.read_bytes() for path in paths.damaged.iterdir()] == [line]


def test_a_salvage_writes_where_a_link_leads_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    paths = story(tmp_path)
    elsewhere = tmp_path / "big disk" / "records"
    elsewhere.parent.mkdir()
    records = paths.output.read_bytes()
    elsewhere.write_bytes(b"{broken\n" + records)
    elsewhere.chmod(0o640)
    paths.output.unlink()
    paths.output.symlink_to(elsewhere)
    (elsewhere.parent / ".records.anew.tmp").write_bytes(b"of a salvage that died")
    assert facts(resumed(paths, salvage=True).state) == STORY
    assert paths.output.is_symlink()
    assert elsewhere.read_bytes() == records
    assert elsewhere.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in elsewhere.parent.iterdir()] == ["records"]


def test_lines_of_the_sidecar_that_name_no_row_are_left_out_of_account(tmp_path: Path) -> None:
    paths = story(tmp_path)
    with paths.failures.open("ab") as file:
        file.write(b'\n{"no": "indices"}\n{"_ng_task_index": 9, "_ng_rollout_index": 0}\n')
    found = resumed(paths)
    assert facts(found.state) == STORY
    assert len(found.warnings) == 1
    assert "belong to no row: 2" in found.warnings[0]


def test_a_salvage_that_dies_anywhere_has_lost_nothing(tmp_path: Path) -> None:
    for step in range(40):
        root = tmp_path / str(step)
        root.mkdir()
        paths = story(root)
        records = paths.output.read_bytes()
        paths.output.write_bytes(b"{broken\n" + records)
        dying = DiesAfter(step)
        try:
            resumed(paths, salvage=True, calls=dying)
        except DiedError:
            pass
        else:
            assert step > 10
            return
        kept = [path.read_bytes() for path in paths.damaged.glob("[!.]*")]
        assert paths.output.read_bytes() in (records, b"{broken\n" + records)
        if paths.output.read_bytes() == records:
            assert kept == [b"{broken"]
        found = resumed(paths, salvage=True)
        assert facts(found.state) == STORY
        assert [path.read_bytes() for path in paths.damaged.glob("[!.]*")] == [b"{broken"]
        assert paths.output.read_bytes() == records
    pytest.fail("a salvage never came to its end")


def test_a_damaged_start_is_refused_and_a_salvage_never_gives_its_number_again(tmp_path: Path) -> None:
    paths = story(tmp_path)
    data = bytearray(paths.ledger.read_bytes())
    data[64 * 2 + 9] ^= 1
    paths.ledger.write_bytes(data)
    with pytest.raises(StorageError, match=r"ledger\.log: the frame at byte 128 is damaged.*--salvage"):
        resumed(paths)
    for salvage in (True, False, True):
        found = resumed(paths, salvage=salvage)
        assert [n for n, done in zip(found.state.attempts, found.state.done, strict=True) if not done] == [2, 2, 1]
    assert [path.read_bytes() for path in paths.damaged.iterdir()] == [bytes(data)]
    assert paths.ledger.stat().st_size == len(data) - 64


def test_a_run_that_has_neither_index_nor_sources_is_resumed_as_well(tmp_path: Path) -> None:
    paths = story(tmp_path)
    for path in (paths.index, paths.rows_index, paths.sources):
        path.unlink()
    assert facts(resumed(paths).state) == STORY
    assert facts(resumed(paths).state) == STORY


def test_a_missing_ledger_is_said(tmp_path: Path) -> None:
    paths = story(tmp_path)
    paths.ledger.unlink()
    found = resumed(paths)
    assert found.warnings == (f"{paths.ledger}: is missing; attempts that were killed without a record may run again",)
    assert facts(found.state) == {**STORY, "attempts": [1, 2, 1, 0, 1, 0]}


# The index is believed only as far as the outputs bear it out.


def test_outputs_that_were_replaced_are_read_anew(tmp_path: Path) -> None:
    paths = story(tmp_path)
    resumed(paths)
    lines = paths.output.read_bytes().splitlines(keepends=True)
    paths.output.write_bytes(b"".join([lines[2], lines[1].replace(b"0.5", b"0.7"), lines[0]]))
    found = resumed(paths)
    assert facts(found.state) == STORY
    assert "disagrees with the outputs" in found.warnings[0]
    assert {
        read_record(paths, written_of(frame)) + b"\n" for frame in read_index(paths.index) if not frame.file
    } == set(paths.output.read_bytes().splitlines(keepends=True))


def test_a_damaged_frame_of_the_index_costs_a_scan_and_no_more(tmp_path: Path) -> None:
    paths = story(tmp_path)
    data = bytearray(paths.index.read_bytes())
    data[70] ^= 1
    paths.index.write_bytes(data)
    found = resumed(paths)
    assert facts(found.state) == STORY
    assert "is damaged" in found.warnings[0]


def test_two_results_of_a_row_are_counted_once_and_said(tmp_path: Path) -> None:
    paths = story(tmp_path)
    with WrittenRun(tmp_path, None) as run:
        run.record(0, 1, reward=0.0)
    for _ in range(2):
        found = resumed(paths)
        assert list(found.state.done) == STORY["done"]
        assert [w for w in found.warnings if "more than one result" in w]


def test_more_records_without_frames_than_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gym_ray.rollouts.run_files.recovery._HELD_LINES", 3)
    with WrittenRun(tmp_path, 20, calls=FAST) as run:
        for ordinal in range(0, 20, 2):
            run.start(ordinal, 1)
            run.record(ordinal, 1, reward=ordinal)
    found = resumed(run.paths)
    assert list(found.state.done) == [1, 0] * 10
    assert list(found.state.attempts) == [2, 0] * 10
    logged = [(frame.ordinal, frame.attempt) for frame in read_index(run.paths.index)]
    assert logged == [(row, 1) for row in range(0, 20, 2)]


def test_the_claim_sees_rows_and_state_and_can_end_the_start(tmp_path: Path) -> None:
    paths = story(tmp_path)
    seen = []

    def claim(rows: MaterialisedRows, state: RunState) -> None:
        seen.extend(rows.attempt(row, state.attempts[row]).rollout_id for row in state.pending(3))
        raise StorageError("taken")

    with RunLock(paths) as lock, pytest.raises(StorageError, match="taken"):
        resume_run(lock, claim=claim)
    assert seen == ["3-0-a1", "5-0"]


# Files of the peer have no run directory; the row's own attempt index counts on.


def test_a_run_without_a_directory_is_taken_up_by_reading_it(tmp_path: Path) -> None:
    row = {"responses_create_params": {"input": "q"}, "agent_ref": {"name": "a"}}
    rows = [{**row, "_ng_task_index": task, "_ng_rollout_index": 0} for task in (0, 1, "x", 3)]
    rows.append({**row, "_ng_task_index": 4, "_ng_rollout_index": 0, "_ng_attempt_index": 5, "_ng_rollout_id": "job"})
    paths = RunPaths.of(tmp_path / "out.jsonl")
    paths.materialised.write_text("".join(json.dumps(value) + "\n" for value in rows))
    paths.output.write_text('{"_ng_task_index": "0", "_ng_rollout_index": 0}')
    failures: list[dict[str, Any]] = [
        {"_ng_task_index": 1, "_ng_rollout_index": 0, "_ng_failure_class": "judge_failed"},
        {"_ng_task_index": 1, "_ng_rollout_index": 0, "_ng_failure_class": "made_up", "_ng_attempt_index": 1},
        {"_ng_task_index": "x", "_ng_rollout_index": 0, "_ng_failure_class": "skipped", "_ng_failure_terminal": True},
        {"_ng_task_index": 4, "_ng_rollout_index": 0, "_ng_failure_class": "node_lost", "_ng_attempt_index": 6},
    ]
    paths.failures.write_text("".join(json.dumps(value) + "\n" for value in failures) + '{"_ng_task_')
    found = resumed(paths)
    assert list(found.state.done) == [1, 0, 0, 0, 0]
    assert list(found.state.attempts) == [1, 2, 1, 0, 2]
    assert list(found.state.last_class) == [0, 255, class_code("skipped"), 0, class_code("node_lost")]
    assert found.state.terminal[2] & TERMINAL
    again = resumed(paths)
    assert (again.run_id, again.warnings) == (found.run_id, ())
    assert facts(again.state) == facts(found.state)


def test_two_rows_with_one_key_are_refused_when_a_record_needs_one(tmp_path: Path) -> None:
    paths = RunPaths.of(tmp_path / "out.jsonl")
    row = json.dumps({"agent_ref": {"name": "a"}, "_ng_task_index": 0, "_ng_rollout_index": 0})
    paths.materialised.write_text(f"{row}\n{row}\n")
    paths.output.write_text('{"_ng_task_index": 0, "_ng_rollout_index": 0}\n')
    with pytest.raises(InputError, match="same _ng_task_index and _ng_rollout_index as row 1"):
        resumed(paths)


def test_a_damaged_row_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    paths = RunPaths.of(tmp_path / "out.jsonl")
    paths.materialised.write_text('{broken\n{"_ng_task_index": 1, "_ng_rollout_index": 0}\n')
    paths.output.write_text('{"_ng_task_index": 1, "_ng_rollout_index": 0}\n')
    found = resumed(paths)
    assert list(found.state.done) == [0, 1]
    assert any(f"{paths.materialised}:1: the row is damaged" in warning for warning in found.warnings)


def test_a_manifest_of_another_version_or_kind_is_refused(tmp_path: Path) -> None:
    paths = story(tmp_path)
    manifest = json.loads(paths.manifest.read_bytes())
    for change, problem in (
        ({"format": 2}, "format: 2 is not known"),
        ({"run_id": 3}, "run_id: is missing"),
        ({"rows": 7}, "rows: the run has 7 rows"),
    ):
        paths.manifest.write_text(json.dumps({**manifest, **change}))
        with pytest.raises(InputError, match=problem):
            resumed(paths)


class Counting(FileCalls):
    """Counts the bytes that were read."""

    def __init__(self) -> None:
        self.read_bytes = 0

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        data = super().pread(fd, size, offset)
        self.read_bytes += len(data)
        return data


def read_by_this_process() -> int:
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def test_a_resume_reads_128_bytes_a_finished_rollout(tmp_path: Path) -> None:
    finished = 12_000
    with WrittenRun(tmp_path, finished + 10, calls=FAST) as run:
        pad = "x" * 300
        for ordinal in range(finished):
            run.finish(ordinal, 0, reward=1.0, pad=pad)
    calls = Counting()
    before = read_by_this_process()
    found = resumed(run.paths, calls=calls)
    read = read_by_this_process() - before
    assert sum(found.state.done) == finished
    assert 128 * finished <= calls.read_bytes <= read < 128 * finished + (1 << 20)
    assert run.paths.output.stat().st_size > 2 * read, "the outputs were not read as a whole"
    assert run.paths.materialised.stat().st_size + 128 * finished > 128 * finished + (1 << 20), "nor were the rows"
