"""The ``gym-ray`` command."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper

import typer
from rich.console import Console
from rich.markup import escape

from gym_ray import __version__
from gym_ray.cli.captures import captures_app
from gym_ray.cli.captures_tokens import tokens
from gym_ray.cli.captures_verify import verify
from gym_ray.cli.ctl import ctl
from gym_ray.cli.doctor import doctor
from gym_ray.cli.env import env_app
from gym_ray.cli.eval_aggregate import aggregate_runs
from gym_ray.cli.eval_health import health
from gym_ray.cli.eval_rejoin import rejoin_run
from gym_ray.cli.evaluate import eval_app
from gym_ray.cli.jobs.logs import job_logs
from gym_ray.cli.jobs.status import job_status
from gym_ray.cli.jobs.stop import stop_job
from gym_ray.cli.jobs.submit import submit_job
from gym_ray.cli.staging import staging_app
from gym_ray.cli.status import status
from gym_ray.errors import GymRayError

__all__ = ["app", "main"]

_BROKEN_PIPE = 141
"""What a shell reports for a command that a closed pipe ended."""

app = typer.Typer(
    name="gym-ray",
    help="Collect LLM-agent rollouts on Ray and keep every model call.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("doctor")(doctor)
app.add_typer(env_app, name="env")
eval_app.command("aggregate")(aggregate_runs)
eval_app.command("health")(health)
eval_app.command("rejoin")(rejoin_run)
eval_app.command("submit", context_settings={"allow_extra_args": True})(submit_job)
eval_app.command("status")(job_status)
eval_app.command("logs")(job_logs)
eval_app.command("stop")(stop_job)
app.add_typer(eval_app, name="eval")
captures_app.command("tokens")(tokens)
captures_app.command("verify")(verify)
app.add_typer(captures_app, name="captures")
app.add_typer(staging_app, name="staging")
app.command("status")(status)
app.command("ctl")(ctl)


@app.command()
def version() -> None:
    """Print the version."""
    Console().print(__version__)


def main() -> None:
    """Run the command; an error of ours ends it with one message on standard error and exit code 1.

    A character that the terminal's encoding has not, which may stand in any evidence, is shown as its escape sequence.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except GymRayError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]error:[/] {escape(str(error))}")
        sys.exit(1)
    except BrokenPipeError:
        # Whoever read the output has left; nothing more can be said there, also not while the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_BROKEN_PIPE)
