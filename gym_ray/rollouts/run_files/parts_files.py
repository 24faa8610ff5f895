"""The parts files of a run: ``<stem>.run/parts/<rollout id>.parts.jsonl``, one for each compact record (D163).

A parts file is durable before the record that refers to it is appended, and it only ever gains parts: whichever of
several joins of one attempt stored its record, that record can be read.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from gym_ray import exact_json
from gym_ray.correlation import check_rollout_id, derive_rollout_id
from gym_ray.errors import DamagedRecordError, StorageExistsError, StorageMissingError
from gym_ray.evidence.compact import COMPACT_FIELD, Parts, inline, is_compact, merged_parts
from gym_ray.rollouts.run_files.run_log import read_record
from gym_ray.rollouts.run_paths import RunPaths, Written
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.posix import PosixStore

__all__ = ["PARTS_SUFFIX", "publish_parts", "read_inline", "read_inline_line", "read_parts", "with_payloads"]

PARTS_SUFFIX = ".parts.jsonl"

_MARK = exact_json.dumps(COMPACT_FIELD)


def publish_parts(
    paths: RunPaths,
    rollout_id: str,
    data: bytes,
    *,
    calls: FileCalls | None = None,
    alone: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Store the parts of one record; durable when this returns.

    Args:
        paths: The run's files.
        rollout_id: Capture key of the attempt.
        data: What :func:`gym_ray.evidence.compact.compacted` returned. Parts that are there already stay.
        calls: How the operating system is called.
        alone: Entered while parts are put to those that are there; it keeps others out that would do so as well.

    Raises:
        RolloutIdError: The id cannot be a file name.
        StorageError: They cannot be stored; the record must not be appended then.
    """
    store, name = PosixStore(paths.parts, calls=calls), check_rollout_id(rollout_id) + PARTS_SUFFIX
    try:
        store.create(name, data)
    except StorageExistsError:
        with alone():
            before = store.read(name)
            whole = merged_parts(before, data)
            if whole != before:
                store.publish(name, whole)
            else:  # whoever wrote it may have died before its name was durable
                store.sync_dir()


def read_parts(paths: RunPaths, rollout_id: str) -> Parts:
    """Return the parts of one rollout attempt.

    Raises:
        RolloutIdError: The id cannot be a file name.
        StorageMissingError: There is no parts file.
        StorageError: It cannot be read.
    """
    name = check_rollout_id(rollout_id) + PARTS_SUFFIX
    path = paths.parts / name
    try:
        data = PosixStore(paths.parts).read(name)
    except StorageMissingError as error:
        raise StorageMissingError(
            f"{path}: the payloads of a compact record are not there; restore the file, or join the rollout again "
            "from its capture (`gym-ray eval rejoin`)"
        ) from error
    return Parts.parse(data, str(path))


def with_payloads(paths: RunPaths, record: dict[str, Any]) -> dict[str, Any]:
    """Return a record of the run in the contract's inline shape; one that is inline comes back as it is.

    Raises:
        StorageError: Its parts file is missing or cannot be read.
        DamagedRecordError: Its parts, or what it says of them, are damaged.
        RolloutIdError: It names no attempt, or one that cannot be.
    """
    if not is_compact(record):
        return record
    rollout_id = derive_rollout_id(record)
    if rollout_id is None:
        raise DamagedRecordError(f"{paths.output}: a compact record names no rollout, so its parts cannot be found")
    return inline(record, read_parts(paths, rollout_id))


def read_inline(paths: RunPaths, record: Written | bytes) -> dict[str, Any]:
    """Return one stored record, as an object in the contract's inline shape.

    Args:
        paths: The run's files.
        record: Where the record lies, or its line.

    Raises:
        StorageError: The record or its parts cannot be read.
        DamagedRecordError: The line is no JSON object, or its parts are damaged.
        RolloutIdError: It names an attempt that cannot be.
    """
    line = read_record(paths, record) if isinstance(record, Written) else record
    value = exact_json.loads_object(line)
    if value is None:
        place = f"{paths.output_of(record.file)}, byte {record.offset}" if isinstance(record, Written) else "the line"
        raise DamagedRecordError(f"{place}: no JSON object")
    return with_payloads(paths, value)


def read_inline_line(paths: RunPaths, written: Written) -> bytes:
    """Return one stored record as its line of JSON, in the contract's inline shape; an inline one is not parsed.

    Raises:
        StorageError: The record or its parts cannot be read.
        DamagedRecordError: The record is compact, and it or its parts are damaged.
        RolloutIdError: The record is compact and names an attempt that cannot be.
    """
    line = read_record(paths, written)
    return exact_json.dumps(read_inline(paths, line)) if _MARK in line else line
