"""Parts are durable before their record, and a record can always be read with what is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gym_ray import exact_json
from gym_ray.errors import DamagedRecordError, RolloutIdError, StorageError, StorageMissingError
from gym_ray.evidence.compact import compacted
from gym_ray.rollouts.run_files.parts_files import (
    PARTS_SUFFIX,
    publish_parts,
    read_inline,
    read_inline_line,
    read_parts,
)
from gym_ray.rollouts.run_files.run_log import RunOutputs
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.testing.storage_faults import ForgetfulCalls

_TEXT = "what went over the wire " * 20


def _record(text: str = _TEXT, attempt: int | None = None) -> dict[str, Any]:
    call = {"model_call_id": "c0", "request": {"input": [{"role": "user", "content": text}]}, "response": None}
    identity = {
        "_ng_task_index": 3,
        "_ng_rollout_index": 1,
        **({} if attempt is None else {"_ng_attempt_index": attempt}),
    }
    return {**identity, "reward": 1.0, "ng_trajectory": {"schema_version": "1.0", "model_calls": [call], "gaps": []}}


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths.of(tmp_path / "out.jsonl")


@pytest.mark.parametrize(("attempt", "rollout_id"), [(None, "3-1"), (2, "3-1-a2")])
def test_a_compact_record_is_read_from_its_place_and_from_its_line(
    paths: RunPaths, attempt: int | None, rollout_id: str
) -> None:
    record = _record(attempt=attempt)
    compact, data = compacted(record)
    publish_parts(paths, rollout_id, data)
    assert (paths.parts / f"{rollout_id}{PARTS_SUFFIX}").read_bytes() == data
    paths.output.touch()
    paths.failures.touch()
    with RunOutputs(paths) as outputs:
        written = outputs.append("main", exact_json.dumps(compact))
    assert read_inline(paths, written) == record
    assert read_inline(paths, exact_json.dumps(compact)) == record


def test_whoever_reads_lines_gets_them_inline(paths: RunPaths) -> None:
    """D163: a trainer that iterates over a compact run sees what it would see of any other."""
    record = {**_record(), "ng_text": 'about "ng_payloads"'}
    compact, data = compacted(record)
    publish_parts(paths, "3-1", data)
    paths.output.touch()
    paths.failures.touch()
    with RunOutputs(paths) as outputs:
        stored = [outputs.append("main", exact_json.dumps(one)) for one in (compact, record, _record())]
    lines = [read_inline_line(paths, written) for written in stored]
    assert [exact_json.loads(line) for line in lines] == [record, record, _record()]
    assert lines[2] == exact_json.dumps(_record()), "byte for byte"


def test_an_inline_record_needs_no_parts(paths: RunPaths) -> None:
    assert read_inline(paths, exact_json.dumps(_record())) == _record()


def test_parts_of_several_joins_of_one_attempt_all_stay(paths: RunPaths) -> None:
    records = [_record(), _record(f"another {_TEXT}")]
    lines = []
    for record in records:
        compact, data = compacted(record)
        publish_parts(paths, "3-1", data)
        publish_parts(paths, "3-1", data)
        lines.append(exact_json.dumps(compact))
    assert [read_inline(paths, line) for line in lines] == records


def test_parts_survive_a_power_cut_once_they_are_published(paths: RunPaths) -> None:
    calls = ForgetfulCalls()
    _, first = compacted(_record())
    _, second = compacted(_record(f"another {_TEXT}"))
    publish_parts(paths, "3-1", first, calls=calls)
    assert calls.after_power_cut(paths.parts) == {f"3-1{PARTS_SUFFIX}": first}
    publish_parts(paths, "3-1", second, calls=calls)
    after = calls.after_power_cut(paths.parts)[f"3-1{PARTS_SUFFIX}"]
    assert set(after.splitlines()) == set(first.splitlines()) | set(second.splitlines())


def test_a_place_that_cannot_be_written_is_an_error(paths: RunPaths) -> None:
    paths.directory.mkdir()
    paths.parts.write_bytes(b"a file where the directory should be")
    with pytest.raises(StorageError, match=r"\.run/parts"):
        publish_parts(paths, "3-1", b"{}")


def test_a_missing_file_is_named(paths: RunPaths) -> None:
    compact, _ = compacted(_record())
    with pytest.raises(StorageMissingError, match=r"3-1\.parts\.jsonl: .*restore the file, or join"):
        read_inline(paths, exact_json.dumps(compact))


def test_a_damaged_part_is_missed_by_name(paths: RunPaths) -> None:
    compact, data = compacted(_record())
    publish_parts(paths, "3-1", data.replace(b"wire", b"WIRE", 1))
    with pytest.raises(DamagedRecordError, match=r"3-1\.parts\.jsonl: part \S+ is missing: its line was changed"):
        read_inline(paths, exact_json.dumps(compact))


@pytest.mark.parametrize("line", [b"[]", b"{", b""])
def test_a_line_that_is_no_record_is_refused(paths: RunPaths, line: bytes) -> None:
    with pytest.raises(DamagedRecordError, match="no JSON object"):
        read_inline(paths, line)


def test_a_compact_record_without_a_rollout_is_refused(paths: RunPaths) -> None:
    compact, _ = compacted({key: value for key, value in _record().items() if not key.startswith("_ng_")})
    with pytest.raises(DamagedRecordError, match="names no rollout"):
        read_inline(paths, exact_json.dumps(compact))


def test_an_id_that_is_no_file_name_is_refused(paths: RunPaths) -> None:
    with pytest.raises(RolloutIdError):
        publish_parts(paths, "../3-1", b"")
    with pytest.raises(RolloutIdError):
        read_parts(paths, "../3-1")
