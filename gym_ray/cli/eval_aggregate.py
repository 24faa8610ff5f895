"""``gym-ray eval aggregate``: score a run, or the shards of one, again from its records (D117)."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from gym_ray import exact_json
from gym_ray.cli.eval_health import check_ids, print_health
from gym_ray.cli.options import read_settings
from gym_ray.cli.report import print_figures, print_warnings, print_written, report_console
from gym_ray.cli.run_outputs import OUTPUT_SUFFIX, is_derived
from gym_ray.errors import GymRayError, InputError, SettingsError
from gym_ray.rollouts.metrics import Aggregation, AggregationOptions, aggregate
from gym_ray.rollouts.reports.health_files import HealthOutcome, write_health
from gym_ray.rollouts.reports.health_reading import HealthRules, checked_rows
from gym_ray.rollouts.rows.materialised_rows import MaterialisedRows
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.settings import RunSettings

__all__ = ["aggregate_runs", "aggregation_options", "find_shards"]

_CAPTURED = frozenset((".capture", ".tokens"))
"""What stands in the names of a capture directory behind the rollout."""

InputGlob = Annotated[
    list[str] | None, typer.Option("--input", "-i", help="Records, the same as GLOB.", metavar="GLOB[,GLOB]")
]


def aggregate_runs(
    globs: Annotated[
        list[str] | None, typer.Argument(help="Records of a run or of its shards.", metavar="GLOB[,GLOB]")
    ] = None,
    input_glob: InputGlob = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Whose metrics these are; files are named after it.")
    ] = None,
    group_by: Annotated[
        str | None, typer.Option("--group-by", help="Field of a row by which tasks are grouped; dots go inside.")
    ] = None,
    zero: Annotated[
        str | None, typer.Option("--count-as-zero", help="Failure classes that count as reward 0.", metavar="A[,B]")
    ] = None,
    zero_missing: Annotated[
        bool, typer.Option("--count-missing-as-zero", help="Rows that left no record count as reward 0.")
    ] = False,
    no_health_check: Annotated[bool, typer.Option("--no-health-check", help="Do not judge the records.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
) -> None:
    """Score the records of a run, or of all its shards at once. Settings may follow as ++key=value."""
    named = [*(globs or []), *(input_glob or [])]
    overrides = [token for token in named if token.startswith(("+", "~"))]
    settings = read_settings(None, None, None, overrides)
    options = aggregation_options(settings)
    options = AggregationOptions(
        options.count_failure_classes_as_zero | frozenset(_split(zero or "")),
        options.count_missing_rollouts_as_zero or zero_missing,
        group_by or options.group_by,
    )
    ignored = check_ids(settings.health_check_ignored_checks, "health_check_ignored_checks")
    shards = find_shards([token for token in named if token not in overrides])
    target = _target(output or settings.output_jsonl_fpath, shards)
    found = _aggregated(shards, target, options)
    health = None if no_health_check or settings.disable_health_check else _judged(shards, target, ignored)
    if as_json:
        typer.echo(exact_json.dumps(found.metrics))
    else:
        _show(found, health, [target.metrics, target.aggregate_metrics])


def _show(found: Aggregation, health: HealthOutcome | None, written: Sequence[Path]) -> None:
    console = report_console()
    print_figures(console, found.rows(), found.metrics["overall"], {})
    print_warnings(console, found)
    if health is not None:
        print_health(console, health)
    print_written(console, (*written, *(health.files if health is not None else ())))


def aggregation_options(settings: RunSettings) -> AggregationOptions:
    """Return how the settings of a run want it aggregated."""
    return AggregationOptions(
        frozenset(settings.count_failure_classes_as_zero),
        settings.count_missing_rollouts_as_zero,
        settings.metrics_group_by,
    )


def find_shards(patterns: Sequence[str]) -> list[RunPaths]:
    """Return the runs whose records match, sorted by path and each once.

    Files that only accompany records are left out: failures, materialised inputs, reports, captures, and whatever is in
    a run directory (D117). A pattern that is the name of a file means that file.

    Raises:
        InputError: A pattern matches no records.
        SettingsError: There is no pattern.
    """
    listed = [part for pattern in patterns for part in _split(pattern)]
    if not listed:
        raise SettingsError("command line", "input_glob", "is required", "name the records, such as 'results/*.jsonl'")
    found: dict[Path, None] = {}
    for pattern in listed:
        names = [pattern] if Path(pattern).is_file() else sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern
        paths = [Path(name) for name in names]
        records = [path for path in paths if _are_records(path)]
        if not records:
            problem = "no records match; failures, materialised inputs, reports and captures are not records"
            raise InputError(pattern, 0, "", problem)
        found.update(dict.fromkeys(path.absolute() for path in records))
    return [RunPaths.of(path) for path in sorted(found)]


def _are_records(path: Path) -> bool:
    if not path.is_file() or path.suffix != OUTPUT_SUFFIX or is_derived(path):
        return False
    if not _CAPTURED.isdisjoint(path.suffixes):
        return False
    return not any(map(_is_run_directory, path.absolute().parents))


def _is_run_directory(directory: Path) -> bool:
    return directory.suffix == ".run" and (directory / "manifest.json").is_file()


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _target(output: Path | None, shards: Sequence[RunPaths]) -> RunPaths:
    if output is not None:
        target = RunPaths.of(output)
        target.output.parent.mkdir(parents=True, exist_ok=True)
        return target
    if len(shards) == 1:
        return shards[0]
    remedy = "pass --output ALL.jsonl; the metrics are named after it"
    raise SettingsError("command line", "output_jsonl_fpath", f"is required for {len(shards)} shards", remedy)


def _aggregated(shards: Sequence[RunPaths], target: RunPaths, options: AggregationOptions) -> Aggregation:
    # Where one shard's rows are unknown, nobody can say what is missing from the whole.
    known = all(shard.materialised.is_file() for shard in shards)
    with ExitStack() as opened:
        rows = [opened.enter_context(MaterialisedRows(shard.materialised)) for shard in shards if known]
        return aggregate(shards, rows if known else None, options=options, output=target)


def _judged(shards: Sequence[RunPaths], target: RunPaths, ignored: frozenset[str]) -> HealthOutcome | None:
    """Write the health of all shards; a failure here costs a warning, never the metrics (D106)."""
    try:
        rows = (row for shard in shards for row in checked_rows(shard, HealthRules(ignored)))
        return write_health(target, rows, ignored=ignored)
    except GymRayError as error:
        Console(stderr=True, highlight=False).print(f"[yellow]warning[/] health: {escape(str(error))}", soft_wrap=True)
        return None
