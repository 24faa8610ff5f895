from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from gym_ray.errors import InputError, StorageError
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.run_files.run_log import RunOutputs, read_record
from gym_ray.rollouts.run_files.run_resume import resume_run
from gym_ray.rollouts.run_files.run_start import RunLock, RunStart, begin_run
from gym_ray.rollouts.run_manifest import read_manifest
from gym_ray.rollouts.run_paths import OutputMark, RunPaths, Written
from gym_ray.testing.storage_faults import ForgetfulCalls, RecordingCalls

ROW = {"responses_create_params": {"input": "q"}, "agent_ref": {"name": "a"}}


def source(tmp_path: Path, *rows: object) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows or (ROW,)))
    return path


def begin(tmp_path: Path, input_path: Path) -> tuple[RunPaths, RunStart]:
    paths = RunPaths.of(tmp_path / "results" / "r.jsonl")
    with RunLock(paths) as lock:
        return paths, begin_run(lock, input_path, RowOptions())


def tree(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def test_names_follow_from_the_output() -> None:
    paths = RunPaths.of("/results/r.x.jsonl")
    assert [str(path) for path in (paths.materialised, paths.failures, paths.aggregate_metrics, paths.directory)] == [
        "/results/r.x_materialized_inputs.jsonl",
        "/results/r.x_failures.jsonl",
        "/results/r.x_aggregate_metrics.json",
        "/results/r.x.run",
    ]
    assert paths.run_name == "r.x"
    assert RunPaths.of("/jobs/gym-job-1/mcqa/artifacts/rollouts.jsonl").run_name == "mcqa"
    assert RunPaths.of("/artifacts/rollouts.jsonl").run_name == "rollouts"


def test_a_run_begins_with_its_rows_empty_outputs_and_a_manifest(tmp_path: Path) -> None:
    paths, started = begin(tmp_path, source(tmp_path))
    assert paths.output.read_bytes() == paths.failures.read_bytes() == b""
    manifest = json.loads(paths.manifest.read_bytes())
    assert manifest["run_id"] == started.run_id
    assert manifest["materialized_sha256"] == hashlib.sha256(paths.materialised.read_bytes()).hexdigest()
    assert (manifest["rows"], started.materialisation.rows, started.set_aside) == (1, 1, None)


def test_a_run_that_began_is_there_after_a_power_cut(tmp_path: Path) -> None:
    for again in (False, True):
        paths, calls = RunPaths.of(tmp_path / "results" / "deep" / "r.jsonl"), ForgetfulCalls()
        with RunLock(paths) as lock:
            begun = begin_run(lock, source(tmp_path), RowOptions(), calls=calls)
        outputs = calls.after_power_cut(paths.output.parent)
        own = calls.after_power_cut(paths.directory)
        assert set(outputs) == {"r.jsonl", "r_failures.jsonl", "r_materialized_inputs.jsonl"}
        assert set(own) == {"lock", "manifest.json", "rows.index", "sources.jsonl"}
        assert json.loads(own["manifest.json"])["run_id"] == begun.run_id
        if again:
            assert begun.set_aside is not None
            assert {"r.jsonl", "manifest.json"} <= set(calls.after_power_cut(begun.set_aside))


def test_new_directories_are_synced_from_the_first_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr("gym_ray.rollouts.run_files.run_start.sync_directory", lambda _, path: synced.append(path))
    paths = RunPaths.of(tmp_path / "a" / "b" / "r.jsonl")
    RunLock(paths).close()
    assert set(synced) == {str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")}
    synced.clear()
    RunLock(paths).close()
    assert synced == []


def test_results_of_an_earlier_run_are_set_aside_and_never_deleted(tmp_path: Path) -> None:
    paths, _ = begin(tmp_path, source(tmp_path))
    paths.output.write_bytes(b'{"old": 1}\n')
    paths.failures.write_bytes(b'{"old": 2}\n')
    paths.aggregate_metrics.write_bytes(b"{}")
    paths.ledger.write_bytes(b"frames")
    old_manifest = paths.manifest.read_bytes()
    _, started = begin(tmp_path, source(tmp_path, ROW, {**ROW, "n": 1}))
    assert started.set_aside is not None
    kept = tree(started.set_aside)
    assert kept["r.jsonl"] == b'{"old": 1}\n'
    assert kept["r_failures.jsonl"] == b'{"old": 2}\n'
    assert kept["r_aggregate_metrics.json"] == b"{}"
    assert kept["ledger.log"] == b"frames"
    assert kept["manifest.json"] == old_manifest
    assert "r_materialized_inputs.jsonl" in kept
    assert paths.output.read_bytes() == b""
    assert not paths.ledger.exists()


def test_all_that_belongs_to_an_earlier_run_goes_with_it(tmp_path: Path) -> None:
    paths, _ = begin(tmp_path, source(tmp_path))
    own = (paths.metrics, paths.index, paths.sources, paths.quality_summary, paths.rollout_verdicts)
    for path in own:
        path.write_bytes(path.name.encode())
    for directory in (paths.facts, paths.parts, paths.damaged):
        directory.mkdir()
        (directory / "file").write_bytes(directory.name.encode())
    old_rows_index = paths.rows_index.read_bytes()
    _, started = begin(tmp_path, source(tmp_path, ROW, {**ROW, "n": 1}))
    assert started.set_aside is not None
    kept = tree(started.set_aside)
    assert kept["rows.index"] == old_rows_index
    for name in (*(path.name for path in own), "facts/file", "parts/file", "damaged/file"):
        assert kept[name] == name.removesuffix("/file").encode()
    there = {path.name for path in paths.directory.iterdir()}
    assert there == {"lock", "manifest.json", "rows.index", "sources.jsonl", "previous"}
    assert paths.sources.read_bytes() == b""
    assert not paths.metrics.exists()


def test_a_public_copy_of_health_goes_only_when_it_is_this_runs(tmp_path: Path) -> None:
    paths, _ = begin(tmp_path, source(tmp_path))
    for path in (paths.quality_summary, paths.rollout_verdicts, paths.public_quality_summary):
        path.write_bytes(b"mine")
    paths.public_rollout_verdicts.write_bytes(b"another run's")
    begin(tmp_path, source(tmp_path))
    assert not paths.public_quality_summary.exists()
    assert paths.public_rollout_verdicts.read_bytes() == b"another run's"


@pytest.mark.parametrize("bad", [{"agent_ref": {"name": "a"}}, {**ROW, "_ng_rollout_id": "a/b"}, 3])
def test_a_bad_row_leaves_an_earlier_run_untouched(tmp_path: Path, bad: object) -> None:
    paths, _ = begin(tmp_path, source(tmp_path))
    paths.output.write_bytes(b'{"old": 1}\n')
    before = tree(tmp_path / "results")
    with pytest.raises(InputError):
        begin(tmp_path, source(tmp_path, ROW, bad))
    assert tree(tmp_path / "results") == before


def test_a_run_does_not_take_the_files_of_an_output_with_the_same_stem(tmp_path: Path) -> None:
    paths, _ = begin(tmp_path, source(tmp_path))
    twin = RunPaths(paths.output.with_suffix(".7"))
    before = tree(tmp_path)
    with RunLock(twin) as lock:
        with pytest.raises(InputError, match=r"r\.7: its files would bear the names of those of .*r\.jsonl; choose"):
            begin_run(lock, tmp_path / "in.jsonl", RowOptions())
        assert tree(tmp_path) == before
        twin.output.touch()
        with pytest.raises(InputError, match=r"r\.7: its files would bear the names"):
            resume_run(lock)
        paths.output.unlink()
        assert resume_run(lock).rows == 1, "an output that was renamed is the run's own"
        paths.manifest.write_bytes(b"{")
        assert begin_run(lock, tmp_path / "in.jsonl", RowOptions()).set_aside is not None
    manifest = read_manifest(twin)
    assert manifest is not None
    assert manifest.output == "r.7"


def test_left_overs_of_a_start_that_died_are_removed(tmp_path: Path) -> None:
    paths, _ = begin(tmp_path, source(tmp_path))
    (paths.directory / "materialised-dead.tmp").write_text("x")
    begin(tmp_path, source(tmp_path))
    assert not list(paths.directory.glob("*.tmp"))


class DiesAtError(Exception):
    """Stands for the process's death."""


def test_a_start_that_dies_at_any_step_loses_nothing_and_mixes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever rename was the last: the old results are whole somewhere, and a manifest never names other inputs."""
    old_record, real_rename = b'{"old": 1}\n', Path.rename
    for step in range(20):
        root = tmp_path / str(step)
        root.mkdir()
        paths, _ = begin(root, source(root))
        paths.output.write_bytes(old_record)
        new_source = source(root, ROW, {**ROW, "n": 1})
        renames = 0

        def rename(self: Path, target: Path, limit: int = step) -> Path:
            nonlocal renames
            if renames == limit:
                raise DiesAtError
            renames += 1
            return real_rename(self, target)

        monkeypatch.setattr(Path, "rename", rename)
        try:
            begin(root, new_source)
            finished = True
        except DiesAtError:
            finished = False
        monkeypatch.setattr(Path, "rename", real_rename)
        assert old_record in tree(root / "results").values()
        if paths.manifest.exists():
            digest = hashlib.sha256(paths.materialised.read_bytes()).hexdigest()
            assert json.loads(paths.manifest.read_bytes())["materialized_sha256"] == digest
        begin(root, new_source)  # the next start works whatever was left
        assert old_record in tree(root / "results").values()
        if finished:
            assert step >= 5
            return
    pytest.fail("a start never came to its end")


HOLDER = """
import sys
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.rollouts.run_files.run_start import RunLock
with RunLock(RunPaths.of(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_collector_is_refused_until_the_first_is_dead(tmp_path: Path) -> None:
    paths = RunPaths.of(tmp_path / "r.jsonl")
    command = [sys.executable, "-c", HOLDER, str(paths.output)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StorageError, match=rf"another collector \(pid {holder.pid} on .*choose another"):
            RunLock(paths)
        holder.kill()
    RunLock(paths).close()


def test_an_output_below_a_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be written"):
        RunLock(RunPaths.of(tmp_path / "file" / "r.jsonl"))


def test_records_are_found_by_their_attempt(tmp_path: Path) -> None:
    paths, _ = begin(tmp_path, source(tmp_path))
    first, retry = {"_ng_task_index": 0, "_ng_rollout_index": 0}, {"_ng_attempt_index": 1}
    with RunOutputs(paths) as outputs:
        start = outputs.mark()
        failed = outputs.append("failures", json.dumps({**first, "_ng_failure_class": "node_lost"}).encode())
        done = outputs.append("main", json.dumps({**first, **retry, "reward": 1}).encode())
        odd = outputs.append("main", b'{"_ng_rollout_id": "a/b"}')
        assert outputs.find("0-0", start) == failed
        assert outputs.find("0-0-a1", start) == done
        assert outputs.find("0-0-a2", start) is None
        assert outputs.find("0-0-a1", outputs.mark()) is None
        assert start == OutputMark(0, 0)
    assert json.loads(read_record(paths, done))["reward"] == 1
    assert odd.offset == done.length


def test_what_was_written_says_digest_and_flags_also_when_it_is_found(tmp_path: Path) -> None:
    paths, _ = begin(tmp_path, source(tmp_path))
    failure = {"_ng_task_index": 0, "_ng_rollout_index": 0, "_ng_failure_class": "node_lost"}
    line = json.dumps({**failure, "_ng_failure_terminal": True}).encode()
    with RunOutputs(paths) as outputs:
        written = outputs.append("failures", line)
        assert written.digest == hashlib.blake2b(line, digest_size=16).digest()
        assert written.flags == 7 << 8 | 3
        assert outputs.find("0-0", OutputMark(0, 0)) == written
        assert outputs.append("failures", line, flags=0).flags == 0
        assert outputs.append("main", b'{"_ng_failure_terminal": true}').flags == 0


def test_sources_are_appended_durably_in_whole_lines(tmp_path: Path) -> None:
    paths, _ = begin(tmp_path, source(tmp_path))
    paths.sources.write_bytes(b'{"torn')
    calls = RecordingCalls()
    with RunOutputs(paths, calls=calls) as outputs:
        outputs.append_source(b'{"rollout_id": "0-0"}')
        assert calls.log[-3:] == [
            ("write", "sources.jsonl"),
            ("sync_data", "sources.jsonl"),
            ("unlock", "sources.jsonl"),
        ]
    assert paths.sources.read_bytes() == b'{"rollout_id": "0-0"}\n'
    paths.sources.unlink()
    with RunOutputs(paths) as outputs:
        outputs.append_source(b"{}")
        outputs.append_source(b"{}")
    assert paths.sources.read_bytes() == b"{}\n{}\n"


@pytest.mark.parametrize("written", [Written("main", 0, 99), Written("main", 1, 5), Written("failures", 0, 3)])
def test_a_place_that_holds_no_whole_record_is_refused(tmp_path: Path, written: Written) -> None:
    paths, _ = begin(tmp_path, source(tmp_path))
    with RunOutputs(paths) as outputs:
        outputs.append("main", b'{"a": 1}')
    with pytest.raises(StorageError, match="no whole record"):
        read_record(paths, written)


def test_ids_that_are_to_be_unique_begin_with_the_run(tmp_path: Path) -> None:
    paths = RunPaths.of(tmp_path / "r.jsonl")
    with RunLock(paths) as lock:
        started = begin_run(lock, source(tmp_path), RowOptions(unique_rollout_ids=True))
    (row,) = map(json.loads, paths.materialised.read_text().splitlines())
    assert row["_ng_rollout_id"] == f"{started.run_id[:12]}-0-0"
