"""Writes the health of a run beside it: a verdict for each rollout and a summary (D2, D106, D109).

Rows are spooled to a file as they come and written out in order, so that memory does not grow with what they say.
Readers see the old reports or the new ones, never half of one.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from gym_ray import exact_json
from gym_ray.errors import InputError, StorageError
from gym_ray.evidence.health import RULES_VERSION, STATS, HealthReport, finished_row, rules_of
from gym_ray.rollouts.reports.facts_files import read_facts
from gym_ray.rollouts.reports.health_reading import HealthRules, check_stored_line, checked_rows
from gym_ray.rollouts.run_files.run_log import read_record
from gym_ray.rollouts.run_paths import RunPaths, Written
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.replacing import replacing

__all__ = ["HealthOutcome", "health_of_records", "health_of_run", "write_health"]


@dataclass(frozen=True, slots=True)
class HealthOutcome:
    """What was found and where it stands.

    Attributes:
        run: The ``run`` part of ``quality_summary.json``.
        first_findings: The first rollout or task with a finding of each check that has any.
        errors: Findings of severity ``error`` (D170).
        warnings: Findings of severity ``warning``.
        files: The files that were written, those of D2 last.
    """

    run: Mapping[str, Any]
    first_findings: Mapping[str, str]
    errors: int
    warnings: int
    files: tuple[Path, ...]


def health_of_run(
    paths: RunPaths, *, ignored: frozenset[str] = frozenset(), workers: int | None = None
) -> HealthOutcome:
    """Report on a run from the verdicts that its joiners made, which saves reading the records' contents.

    A record without one, or with one by other rules, is checked here. Where a line is no record, every line is checked
    anew.

    Args:
        paths: The run.
        ignored: Checks that do not run.
        workers: Processes for checking anew, None for as many as help.

    Raises:
        InputError: There is no output.
        StorageError: The output cannot be read, or a report not be written.
    """
    try:
        return write_health(paths, _kept_rows(paths, ignored), ignored=ignored)
    except InputError:
        return health_of_records(paths, ignored=ignored, workers=workers)


def health_of_records(
    paths: RunPaths,
    *,
    ignored: frozenset[str] = frozenset(),
    workers: int | None = None,
    rules_version: int = RULES_VERSION,
) -> HealthOutcome:
    """Report on a run, or on the output of another collector, by checking every line anew.

    Args:
        paths: The run; only its main output is read, and the parts of compact records.
        ignored: Checks that do not run.
        workers: Processes, None for as many as help.
        rules_version: The rules to check by.

    Raises:
        InputError: There is no output.
        StorageError: The output cannot be read, or a report not be written.
    """
    rows = checked_rows(paths, HealthRules(ignored, rules_version), workers=workers)
    return write_health(paths, rows, ignored=ignored, rules_version=rules_version)


def _kept_rows(paths: RunPaths, ignored: frozenset[str]) -> Iterator[tuple[Written, dict[str, Any]]]:
    if not paths.output.is_file():
        raise InputError(paths.output, 0, "", "there is no such output")
    rules = rules_of(ignored)
    for written, facts in read_facts(paths):
        row = facts.verdict
        by_these_rules = row.get(STATS, {}).get("rules") == rules  # an earlier part of a resumed run may differ
        yield written, row if by_these_rules else _checked_here(paths, written, ignored)


def _checked_here(paths: RunPaths, written: Written, ignored: frozenset[str]) -> dict[str, Any]:
    try:
        answer = check_stored_line(paths, read_record(paths, written), HealthRules(ignored))
    except StorageError as error:  # such as a last line without its line feed
        raise InputError(paths.output, 0, "", str(error)) from error
    if isinstance(answer, str):
        raise InputError(paths.output, 0, "", answer)
    return answer


def write_health(
    paths: RunPaths,
    rows: Iterable[tuple[Written, dict[str, Any]]],
    *,
    ignored: frozenset[str] = frozenset(),
    rules_version: int = RULES_VERSION,
) -> HealthOutcome:
    """Write ``rollout_verdicts.jsonl`` and ``quality_summary.json`` from the rows of a run's records.

    They stand in the run directory, where there is one, and under the names of D2.

    Args:
        paths: The run.
        rows: Where each record lies, and what :func:`~gym_ray.evidence.health.check_rollout` gave for it; any order.
        ignored: Checks that did not run; the same as for the rows.
        rules_version: The rules that the rows were made by.

    Raises:
        StorageError: A report could not be written; each file is whole, the earlier one or the new one.
    """
    report = HealthReport(ignored, rules_version)
    with _named(paths), tempfile.TemporaryFile(dir=paths.output.parent) as spool:
        place = 0
        for _, row in rows:
            report.add(place, row)
            place += spool.write(exact_json.dumps(row) + b"\n")
        verdicts = _publish(
            _places(paths.rollout_verdicts, paths.public_rollout_verdicts),
            lambda file: _write_verdicts(file, report, spool, ignored),
        )
        run: dict[str, Any] = {}
        summaries = _publish(
            _places(paths.quality_summary, paths.public_quality_summary),
            lambda file: run.update(_write_summary(file, report)),
        )
    severity = run["severity"]
    files = tuple(sorted({*verdicts, *summaries}, key=lambda path: (path.parent == paths.output.parent, path.name)))
    return HealthOutcome(run, report.first_findings, severity["error"], severity["warning"], files)


def _places(own: Path, public: Path) -> list[Path]:
    return [own, public] if own.parent.is_dir() else [public]  # a peer's output has no run directory


def _write_verdicts(file: BinaryIO, report: HealthReport, spool: BinaryIO, ignored: frozenset[str]) -> None:
    for place, copies in report.ordered():
        spool.seek(place)
        file.write(exact_json.dumps(finished_row(exact_json.loads(spool.readline()), copies, ignored)) + b"\n")


def _write_summary(file: BinaryIO, report: HealthReport) -> dict[str, Any]:
    """Write the tasks first, one a line, as they come; the counts over all of them are known behind the last."""
    separator = b"\n"

    def show_task(task_id: str, entry: dict[str, Any]) -> None:
        nonlocal separator
        file.write(separator + b"    " + exact_json.dumps(task_id) + b": " + exact_json.dumps(entry))
        separator = b",\n"

    file.write(b'{\n  "tasks": {')
    run = report.run_summary(show_task)
    shown = json.dumps(run, indent=2).encode("ascii").replace(b"\n", b"\n  ")  # whole numbers of any size
    file.write(b'\n  },\n  "run": ' + shown + b"\n}\n")
    return run


def _publish(places: list[Path], write: Callable[[BinaryIO], object]) -> list[Path]:
    """Write a file once and let it appear whole in every place."""
    with replacing(FileCalls(), places) as file:
        write(file)
    return places


@contextmanager
def _named(paths: RunPaths) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"{paths.output}: its health cannot be reported: {error}") from error
