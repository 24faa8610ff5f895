"""``gym-ray captures tokens``: look at the exact tokens of one rollout, without changing anything."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gym_ray.cli.capture_places import capture_location
from gym_ray.cli.token_report import print_json, read_tokens
from gym_ray.cli.token_view import print_tokens
from gym_ray.errors import SettingsError

__all__ = ["tokens"]


def tokens(
    place: Annotated[str, typer.Argument(help="Directory of token captures.", metavar="DIR")],
    rollout_id: Annotated[str, typer.Argument(help="Rollout id, such as 0-0 or 3-1-a1.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document of rows.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Show every token, with its log probability.")] = False,
    terminal: Annotated[
        str | None, typer.Option("--terminal", help="The call that ended the rollout, where several could have.")
    ] = None,
) -> None:
    """Show the chains of one rollout: calls and parents, prompt, tool text and policy tokens, masks and reasons."""
    if capture_location(place).directory is None:
        remedy = "name the run's token_id_capture.dir"
        raise SettingsError("command line", place, "is an object store; token captures are in directories", remedy)
    report = read_tokens(Path(place), rollout_id, terminal)
    if as_json:
        print_json(report)
    else:
        print_tokens(report, full=full)
