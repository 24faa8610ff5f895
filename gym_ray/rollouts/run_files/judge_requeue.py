"""Takes results whose judge gave no valid verdict out of the main output, so that a resume runs their rows again (D57).

Each becomes a failure of class ``judge_invalid`` first, durably, and only then leaves the main output, which is
replaced whole. Done twice, or again after a crash, it is as if done once.
"""

from __future__ import annotations

from collections.abc import Iterator

from gym_ray import exact_json
from gym_ray.rollouts.run_files.lock_wait import LOCK_TIMEOUT_S
from gym_ray.rollouts.run_files.record_file import RecordFile
from gym_ray.rollouts.run_files.record_reading import lines_between
from gym_ray.rollouts.run_files.run_log import line_digest
from gym_ray.rollouts.run_files.salvage import replace_lines
from gym_ray.rollouts.run_paths import OutputFile, RunPaths
from gym_ray.storage.calls import FileCalls

__all__ = ["REQUEUED_FROM", "requeue_invalid_judge"]

REQUEUED_FROM = "_ng_requeued_from"
"""Field of such a failure: the blake2b-128 of the main output's line that it was, hexadecimal."""

_VERDICT = "invalid_judge_response"


def requeue_invalid_judge(paths: RunPaths, *, calls: FileCalls | None = None) -> int:
    """Move every main record with a truthy ``invalid_judge_response`` to the sidecar, and return how many were moved.

    Call it before the run is resumed, under the run's lock. The index is dropped when the main output changes; the
    resume builds it again. This is the only rewriting of whole files that a resume does without damage.

    Args:
        paths: The run's files; both outputs exist.
        calls: How the operating system is called.

    Raises:
        StorageError: A file cannot be read or written, or a process keeps its lock; no record is lost.
    """
    calls = calls or FileCalls()
    sidecar, main = (RecordFile(path, calls, lock_timeout_s=LOCK_TIMEOUT_S) for path in (paths.failures, paths.output))
    try:
        sidecar.repair()
        main.repair()
        moved = _moved_before(paths, calls)
        gone: set[int] = set()
        for offset, line in _lines(paths, "main", calls):
            failure = _as_failure(line)
            if failure is None:
                continue
            gone.add(offset)
            digest = line_digest(line).hex()
            if digest not in moved:
                sidecar.append(failure)
                moved.add(digest)
    finally:
        sidecar.close()
        main.close()
    if gone:
        kept = (line for offset, line in _lines(paths, "main", calls) if offset not in gone)
        replace_lines(paths, "main", kept, calls=calls)
    return len(gone)


def _lines(paths: RunPaths, file: OutputFile, calls: FileCalls) -> Iterator[tuple[int, bytes]]:
    path = paths.output_of(file)
    return lines_between(path, 0, calls.stat(str(path)).st_size, calls=calls)


def _as_failure(line: bytes) -> bytes | None:
    """Return the failure that a main record becomes, None when its verdict is good."""
    if _VERDICT.encode() not in line:
        return None
    record = exact_json.loads_object(line)
    if record is None or not record.get(_VERDICT):
        return None
    marks = {"_ng_failure_class": "judge_invalid", REQUEUED_FROM: line_digest(line).hex()}
    return exact_json.dumps({**record, **marks})


def _moved_before(paths: RunPaths, calls: FileCalls) -> set[str]:
    found = set()
    for _, line in _lines(paths, "failures", calls):
        record = exact_json.loads_object(line) if REQUEUED_FROM.encode() in line else None
        if record is not None and isinstance(record.get(REQUEUED_FROM), str):
            found.add(record[REQUEUED_FROM])
    return found
