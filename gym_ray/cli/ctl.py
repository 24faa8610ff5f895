"""``gym-ray ctl``: ask a live run to pause, resume, drain, cancel or requeue; it never asks a cluster."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from gym_ray import exact_json
from gym_ray.cli.live_runs import steerable_runs
from gym_ray.cli.report import report_console
from gym_ray.errors import RunNotFoundError, SettingsError
from gym_ray.rollouts.control.client import send

__all__ = ["REFUSED", "ctl"]

REFUSED = 2
"""Exit code when a run did not do what was asked, or not for every rollout."""


class Action(StrEnum):
    """What can be asked."""

    pause = "pause"
    resume = "resume"
    drain = "drain"
    cancel = "cancel"
    requeue = "requeue"


def ctl(
    action: Annotated[Action, typer.Argument(help="What to ask.")],
    place: Annotated[Path, typer.Argument(help="Records of a run, or the directory of a job.", metavar="PATH")],
    rollout: Annotated[
        list[str] | None, typer.Option("--rollout", help="Only this rollout; may be repeated.", metavar="ID")
    ] = None,
    timeout_s: Annotated[float, typer.Option("--timeout", min=1.0, help="Seconds to wait for the answer.")] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a run.")] = False,
) -> None:
    """Ask a live run for something and say what became of it; exit with 2 when it was refused.

    Of a job, each benchmark that is under way is asked, whatever the others answer.
    """
    if rollout and action not in (Action.cancel, Action.requeue):
        raise SettingsError("command line", "--rollout", f"{action} is about the whole run", "leave it out")
    console, refused = report_console(), False
    runs = steerable_runs(place)
    for name, paths in runs:
        try:
            answer = send(paths, action, rollout or None, timeout_s=timeout_s)
        except RunNotFoundError as error:
            if len(runs) == 1:
                raise
            answer = {"error": str(error)}
        refused |= answer["error"] is not None or bool(answer.get("refused_count"))
        if as_json:
            console.out(exact_json.dumps({"name": name, **answer}).decode(), highlight=False)
        else:
            _show(console, name, action, answer)
    if refused:
        raise typer.Exit(REFUSED)


def _show(console: Console, name: str, action: Action, answer: dict[str, Any]) -> None:
    if answer["error"] is not None:
        console.print(f"{escape(name)}: [red]{escape(answer['error'])}[/]", soft_wrap=True)
        return
    count = f", {answer['done_count']} rollouts" if "done_count" in answer else ""
    console.print(f"{escape(name)}: {action} done{count}", soft_wrap=True)
    for rollout_id, reason in answer.get("refused", {}).items():
        console.print(f"  [yellow]{escape(rollout_id)}[/]: {escape(reason)}", soft_wrap=True)
