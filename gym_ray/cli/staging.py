"""``gym-ray staging``: look into a staging store, put its segments together, retire what nobody needs any more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gym_ray.errors import CaptureError, GymRayError, StorageError

__all__ = ["staging_app"]

staging_app = typer.Typer(help="Look after a store of staged calls.", no_args_is_help=True)

Place = Annotated[str, typer.Argument(help="Directory or URL that a sink was given.", metavar="URL")]
Options = Annotated[
    str | None, typer.Option("--storage-options", help="JSON object for the client of an object store.", metavar="JSON")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@staging_app.command("show")
def show(
    where: Place,
    key: Annotated[str | None, typer.Argument(help="Staging key of one call.", metavar="[KEY]")] = None,
    calls: Annotated[bool, typer.Option("--calls", help="List every call with its key.")] = False,
    storage_options: Options = None,
    as_json: AsJson = False,
) -> None:
    """Show what a staging store holds, or one call of it: tokens, links, hashes, extras and attachments."""
    # The file libraries take longer to load than most commands to run.
    from gym_ray.cli import staging_report as report
    from gym_ray.cli import staging_view as view
    from gym_ray.token_id_capture.staging.parquet import list_calls, survey_store

    store = report.open_place(where, storage_options)
    with _named(where):
        if key is not None:
            document = report.call_document(store, key)
            view.print_json(document) if as_json else view.print_call(document)
        elif calls:
            listed = list_calls(store)
            view.print_json([asdict(call) for call in listed]) if as_json else view.print_calls(listed)
        else:
            found = survey_store(store)
            view.print_json(view.survey_document(found)) if as_json else view.print_survey(found)


@staging_app.command("compact")
def compact(
    where: Place,
    partition: Annotated[str | None, typer.Option("--partition", help="Only this one.")] = None,
    delay_s: Annotated[
        float,
        typer.Option("--delay-s", min=0.0, help="Seconds that an old segment stays, for those who read it."),
    ] = 3600.0,
    max_calls: Annotated[
        int, typer.Option("--max-calls", min=1, help="Calls, token records or events of a new segment.")
    ] = 1024,
    forget_dropped_after_s: Annotated[
        float | None,
        typer.Option(
            "--forget-dropped-after-s",
            min=0.0,
            help="Remove the markers of rollouts dropped so many seconds ago; no writer may come later than that.",
        ),
    ] = None,
    storage_options: Options = None,
    as_json: AsJson = False,
) -> None:
    """Put small segments together; drop retired calls, and token records of dropped rollouts.

    Every staging key stays valid, and every snapshot as it is. Sinks and readers may be at work.

    Old segments are removed by the first run after their delay; a run that was cut short is finished by the next.
    Exit code 1 if something had to be left as it is.
    """
    from gym_ray.cli.staging_report import open_place, require_partition
    from gym_ray.cli.staging_view import print_compaction, print_json
    from gym_ray.token_id_capture.staging.parquet import CompactionRules, compact

    rules = CompactionRules(max_calls=max_calls, delay_s=delay_s, forget_dropped_after_s=forget_dropped_after_s)
    store = open_place(where, storage_options)
    with _named(where):
        if partition is not None:
            require_partition(store, partition)
        report = compact(store, partition=partition, rules=rules)
    print_json(asdict(report)) if as_json else print_compaction(report)
    if report.problems:
        raise typer.Exit(1)


@staging_app.command("manifest")
def manifest(
    directory: Annotated[
        Path, typer.Argument(help="Directory of a ledger: token_id_capture.dir.", metavar="LEDGER_DIR")
    ],
    rollout_id: Annotated[str, typer.Argument(help="Rollout id, such as 0-0 or 3-1-a1.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File for it, replaced as a whole.", metavar="FILE")
    ] = None,
) -> None:
    """Print the manifest of a rollout as JSON: its calls with their staging keys, and those that were lost.

    `gym-ray staging retire` takes it. Nothing is changed.
    """
    from gym_ray.cli.manifests import ledger_manifest
    from gym_ray.storage.posix import OWNER_ONLY, PosixStore

    found = ledger_manifest(directory, rollout_id)
    text = found.model_dump_json(indent=2) + "\n"
    if output is None:
        typer.echo(text, nl=False)
        return
    target = output.absolute()
    if target.is_dir():
        raise StorageError(f"{output}: is a directory, not a file; name a file for the manifest")
    PosixStore(target.parent, mode=OWNER_ONLY).publish(target.name, text.encode())
    Console(stderr=True, highlight=False).print(
        f"{len(found.records)} calls and {len(found.failures)} lost ones are in {output}", soft_wrap=True, markup=False
    )


@staging_app.command("retire")
def retire(
    where: Place,
    manifest: Annotated[
        Path,
        typer.Argument(help="JSON file that `gym-ray staging manifest … --output` wrote.", metavar="MANIFEST"),
    ],
    storage_options: Options = None,
    as_json: AsJson = False,
) -> None:
    """Retire every call of a manifest: its keys lead nowhere from now on, and compaction frees the space."""
    from gym_ray.cli.manifests import read_manifest
    from gym_ray.cli.staging_report import open_place
    from gym_ray.cli.staging_view import print_json
    from gym_ray.token_id_capture.staging.parquet import ParquetStagingSource

    wanted = read_manifest(manifest)
    with _named(where), ParquetStagingSource(where, store=open_place(where, storage_options)) as source:
        retired = source.retire(wanted)
    if as_json:
        print_json({"rollout_id": wanted.rollout_id, "calls": len(wanted.records), "newly_retired": retired})
        return
    console, calls = Console(highlight=False), len(wanted.records)
    before = f"; {calls - retired} had been before" if calls > retired else ""
    console.print(f"rollout {wanted.rollout_id}: {retired} of {calls} calls were retired{before}", soft_wrap=True)


@contextmanager
def _named(where: str) -> Iterator[None]:
    """Turn what a damaged file raises into an error that ends the command with one message."""
    try:
        yield
    except GymRayError:
        raise
    except ValueError as error:
        message = str(error)
        raise CaptureError(message if where in message else f"{where}: {message}") from error
