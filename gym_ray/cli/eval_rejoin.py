"""``gym-ray eval rejoin``: join the records of a finished run again with what their captures hold now."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Annotated

import httpx
import typer
from rich.console import Console
from rich.markup import escape

from gym_ray.cli.capture_places import StorageOptions, opened_captures
from gym_ray.cli.run_outputs import find_run
from gym_ray.errors import CaptureError, SettingsError, StorageError
from gym_ray.evidence.build import JoinOptions
from gym_ray.model_call_capture.captures import Captures
from gym_ray.model_call_capture.quiesce import WrittenCalls
from gym_ray.rollouts.rejoining.rejoin import RejoinReport, rejoin
from gym_ray.rollouts.run_manifest import read_manifest
from gym_ray.rollouts.run_paths import RunPaths

__all__ = ["rejoin_run"]

_KEPT = 3
"""Exit code when a record stays as it is although its capture differs."""

_log = logging.getLogger(__name__)


def rejoin_run(
    place: Annotated[Path, typer.Argument(help="Records of a run, or its directory.", metavar="OUTPUT|DIR")],
    capture_dir: Annotated[
        str | None,
        typer.Option("--capture-dir", help="Where its model calls are; the run itself says so.", metavar="DIR|URL"),
    ] = None,
    storage_options: StorageOptions = None,
    rollout: Annotated[
        list[str] | None, typer.Option("--rollout", help="Only this attempt, such as 0-0 or 3-1-a1; repeatable.")
    ] = None,
    derive_turns: Annotated[
        bool, typer.Option("--derive-turns/--no-derive-turns", help="As the run was set: derive turns from calls.")
    ] = True,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0.0, help="Seconds that servers may wait for open calls to end.")
    ] = 10.0,
) -> None:
    """Read captures again and replace the attachments that differ: calls and marks that came after the join.

    A record is joined again only when its capture still holds every call that was attached, and new calls began while
    its run was under way; exit code 3 when a capture differs otherwise. No run may be writing the output.
    """
    paths = find_run(place)
    with opened_captures(capture_dir or _captures_of(paths), storage_options) as captures:
        report = rejoin(
            paths,
            captures,
            rollout_ids=rollout,
            options=JoinOptions(derive_turns=derive_turns),
            written_calls=_Servers(captures, timeout_s).written_calls,
        )
    _print(Console(highlight=False, soft_wrap=True), paths, report)
    if report.kept_count or report.unknown:
        raise typer.Exit(_KEPT)


def _captures_of(paths: RunPaths) -> str:
    manifest = read_manifest(paths)
    if manifest is None or not manifest.capture_dir:
        problem = f"{paths.manifest} does not say where its model calls are"
        raise SettingsError("command line", "--capture-dir", problem, "name the run's model_call_capture_dir")
    return manifest.capture_dir


class _Servers:
    """Asks the servers of a place of captures; what they cannot say becomes a gap."""

    def __init__(self, captures: Captures, timeout_s: float) -> None:
        self._captures, self._timeout_s = captures, timeout_s

    def written_calls(self, rollout_id: str) -> WrittenCalls:
        """Return what the servers say of one rollout."""
        try:
            return asyncio.run(self._ask(rollout_id))
        except (CaptureError, StorageError) as error:
            _log.error("%s: the writers of its calls cannot be listed: %s", rollout_id, error)
            return WrittenCalls(unreachable_writers=("unknown",))

    async def _ask(self, rollout_id: str) -> WrittenCalls:
        # Servers are asked directly: a proxy of the environment is for the internet, not for the own nodes.
        async with httpx.AsyncClient(trust_env=False) as client:
            listed = await self._captures.written_calls([rollout_id], client=client, timeout_s=self._timeout_s)
        return listed[rollout_id]


def _print(console: Console, paths: RunPaths, report: RejoinReport) -> None:
    if report.index_problem is not None:
        console.print(f"[yellow]index[/] not used: {escape(report.index_problem)}; the next resume builds it again")
    for kept in report.kept:
        console.print(f"[yellow]kept[/] {kept.rollout_id} ({escape(kept.place)}): {escape(kept.reason)}")
    if report.kept_count > len(report.kept):
        console.print(f"and {report.kept_count - len(report.kept):,} more that are kept")
    for rollout_id in report.unknown:
        console.print(f"[yellow]unknown[/] {escape(rollout_id)}: no record of {escape(str(paths.output))} has this id")
    console.print(
        f"{report.records:,} records: {report.rejoined:,} joined again, {report.unchanged:,} unchanged, "
        f"{report.kept_count:,} kept, {report.uncaptured:,} without a capture of their own"
    )
    if report.from_record:
        console.print(
            f"of {report.from_record:,} nobody had kept what the reply brought; the earlier join was the start, "
            "and their records say so"
        )
    if report.rejoined:
        console.print("metrics and health are of before: run `gym-ray eval aggregate` and `gym-ray eval health` again")
