"""Expands the input into the rows of a run: written once, in dispatch order (D8-D18).

:mod:`gym_ray.rollouts.rows.materialised_rows` reads them one by one when they are dispatched.
"""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from gym_ray import exact_json
from gym_ray.correlation import derive_rollout_id
from gym_ray.errors import InputError
from gym_ray.rollouts.rows.freed_memory import give_memory_back
from gym_ray.rollouts.rows.input_rows import InputRow, RowOptions, explicit_id, read_rows

__all__ = ["Materialisation", "materialise_rows"]

_CHUNK = 1 << 20
_RUN_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Materialisation:
    """What an expansion wrote.

    Attributes:
        rows: Expanded rows.
        tasks: Distinct tasks.
        sha256: Digest of the file, hexadecimal.
        warnings: What is legal but surprising, one sentence each.
    """

    rows: int
    tasks: int
    sha256: str
    warnings: tuple[str, ...]


def materialise_rows(source: Path, destination: Path, options: RowOptions, *, run_id: str = "") -> Materialisation:
    """Validate every row of ``source``, expand them, and write them to ``destination``, synced.

    The input is read twice: once to validate all of it and to learn which indices and ids callers use, once to write.
    Memory while this runs: the digest of each distinct task; after it: nothing.

    Args:
        source: The input.
        destination: Where the rows go; replaced if it exists.
        options: How the input becomes rows.
        run_id: Names the run where its ids are to be unique; at least twelve characters then.

    Raises:
        InputError: A row cannot be used, or two rollouts would share an id (D23). ``destination`` is then removed.
        OSError: ``destination`` cannot be written.
        ValueError: Ids are to be unique, and ``run_id`` is too short for that.
    """
    prefix = run_id[:_RUN_DIGITS] if options.unique_rollout_ids else ""
    if options.unique_rollout_ids and len(prefix) < _RUN_DIGITS:
        raise ValueError(f"run_id: {run_id!r} has fewer than {_RUN_DIGITS} characters, so that ids might repeat")
    warnings: set[str] = set()
    taken = _taken_by_callers(source, options, warnings)
    try:
        with destination.open("w+b") as out:
            indices = _expand(source, out, options, taken, prefix)
            if options.interleave_repeats:
                _interleave(out, indices)
            out.flush()
            os.fsync(out.fileno())
            out.seek(0)
            digest = hashlib.file_digest(out, "sha256").hexdigest()
    except BaseException:
        destination.unlink(missing_ok=True)
        raise
    rows, tasks = len(indices.repeat), indices.task_count
    del indices, taken
    give_memory_back()
    return Materialisation(rows, tasks, digest, tuple(sorted(warnings)))


@dataclass(slots=True)
class _Taken:
    tasks: set[str]
    ids: set[str]


def _taken_by_callers(source: Path, options: RowOptions, warnings: set[str]) -> _Taken:
    taken = _Taken(set(), set())
    agents: set[str] = set()
    for row in read_rows(source, options, warnings=warnings):
        agents.update(name for name in (row.agent, row.routed) if name)
        if row.value.get("_ng_task_index") is not None:
            taken.tasks.add(str(row.value["_ng_task_index"]))
        explicit = explicit_id(row.value)
        if explicit is None:
            continue
        if explicit in taken.ids or row.repeats > 1:
            problem = (
                f"{explicit!r} would name several rollouts, whose calls would mix; give each row and repeat its own"
            )
            raise InputError(source, row.line, "_ng_rollout_id", problem)
        taken.ids.add(explicit)
    if isinstance(options.num_repeats, Mapping):
        idle = sorted(set(options.num_repeats) - agents - {"_default"})
        warnings.update(f"num_repeats.{name} matches no row" for name in idle)
    return taken


class _Indices:
    """Hands out task and rollout indices (D8, D10); arrays where there is one entry for each task or row."""

    def __init__(self, taken: _Taken) -> None:
        self._taken = taken
        self._next_task = 0
        self._place_of_content: dict[bytes, int] = {}
        self._tasks = array("q")
        self._repeats = array("L")
        self._repeats_of_callers: dict[str, int] = {}
        self.repeat = array("L")

    @property
    def task_count(self) -> int:
        return len(self._tasks) + len(self._repeats_of_callers)

    def of(self, row: InputRow) -> Iterator[tuple[Any, int]]:
        """Yield the task and rollout index of each repeat of a row."""
        given = row.value.get("_ng_task_index")
        place = self._place(row) if given is None else -1
        for _ in range(row.repeats):
            if given is None:
                task, rollout = self._tasks[place], self._repeats[place]
                self._repeats[place] += 1
            else:
                task, rollout = given, self._repeats_of_callers.get(str(given), 0)
                self._repeats_of_callers[str(given)] = rollout + 1
            self.repeat.append(rollout)
            yield task, rollout

    def _place(self, row: InputRow) -> int:
        place = self._place_of_content.setdefault(_content_digest(row.content), len(self._tasks))
        if place == len(self._tasks):
            while str(self._next_task) in self._taken.tasks:
                self._next_task += 1
            self._tasks.append(self._next_task)
            self._repeats.append(0)
            self._next_task += 1
        return place


def _content_digest(content: Mapping[str, Any]) -> bytes:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode("ascii"), digest_size=16).digest()


def _expand(source: Path, out: BinaryIO, options: RowOptions, taken: _Taken, prefix: str) -> _Indices:
    indices = _Indices(taken)
    for row in read_rows(source, options):
        for task, rollout in indices.of(row):
            value = dict(row.value)
            value["_ng_task_index"] = task
            value["_ng_rollout_index"] = rollout
            if options.num_repeats_add_seed:
                _add_seed(source, row.line, value)
            _check_derived_id(source, row.line, value, taken)
            if prefix and explicit_id(value) is None:
                value["_ng_rollout_id"] = f"{prefix}-{task}-{rollout}"
            out.write(exact_json.dumps(value) + b"\n")
    return indices


def _check_derived_id(source: Path, line: int, value: Mapping[str, Any], taken: _Taken) -> None:
    if explicit_id(value) is None:
        rollout_id = derive_rollout_id(value)
        if rollout_id in taken.ids:
            raise InputError(
                source, line, "_ng_task_index", f"derived id {rollout_id!r} is another row's _ng_rollout_id"
            )


def _add_seed(source: Path, line: int, value: dict[str, Any]) -> None:
    body = dict(value["responses_create_params"])
    metadata = body.get("metadata") or {}
    if not isinstance(metadata, dict):
        name = "responses_create_params.metadata"
        raise InputError(source, line, name, "must be an object, so that a seed can be added")
    metadata = dict(metadata)
    extra = exact_json.loads_object(str(metadata.get("extra_body") or "{}").encode("utf-8", "surrogatepass"))
    if extra is None:
        name = "responses_create_params.metadata.extra_body"
        raise InputError(source, line, name, "must be a text that holds a JSON object, so that a seed can be added")
    extra["seed"] = value["_ng_rollout_index"]
    metadata["extra_body"] = json.dumps(extra)
    body["metadata"] = metadata
    value["responses_create_params"] = body


def _interleave(out: BinaryIO, indices: _Indices) -> None:
    """Reorder the written lines by rollout index, stably (D11): a counting sort over offsets, then one copy."""
    out.flush()
    offsets = _line_offsets(out)
    starts = array("Q", bytes(8 * (max(indices.repeat) + 2)))
    for repeat in indices.repeat:
        starts[repeat + 1] += 1
    for repeat in range(1, len(starts)):
        starts[repeat] += starts[repeat - 1]
    order = array("Q", bytes(8 * len(indices.repeat)))
    for ordinal, repeat in enumerate(indices.repeat):
        order[starts[repeat]] = ordinal
        starts[repeat] += 1
    end = offsets[-1]
    out.seek(end)
    for ordinal in order:
        out.write(os.pread(out.fileno(), offsets[ordinal + 1] - offsets[ordinal], offsets[ordinal]))
    out.flush()
    _drop_front(out, end)


def _drop_front(out: BinaryIO, length: int) -> None:
    position = 0
    while chunk := os.pread(out.fileno(), _CHUNK, length + position):
        os.pwrite(out.fileno(), chunk, position)
        position += len(chunk)
    os.ftruncate(out.fileno(), position)


def _line_offsets(file: BinaryIO) -> array[int]:
    """Return the offset of each line and of the end; the last line must end with a line feed."""
    offsets, base = array("Q", [0]), 0
    file.seek(0)
    while chunk := file.read(_CHUNK):
        at = chunk.find(b"\n")
        while at >= 0:
            offsets.append(base + at + 1)
            at = chunk.find(b"\n", at + 1)
        base += len(chunk)
    if offsets[-1] != base:
        offsets.append(base)
    return offsets
