"""``gym-ray eval``: collect rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from gym_ray.cli.env import require_servers
from gym_ray.cli.found_servers import FoundServers
from gym_ray.cli.options import Config, ModelType, ResourcesServer, Verbose, read_settings
from gym_ray.cli.run_collection import collect
from gym_ray.cli.run_plan import check_plan, plan_of
from gym_ray.cli.token_remarks import check_places, check_source
from gym_ray.settings import RunSettings, ServerSettings

__all__ = ["eval_app"]

eval_app = typer.Typer(help="Collect rollouts.", no_args_is_help=True)


@eval_app.callback()
def _group() -> None:
    """Keep ``run`` a named command even while it is the only one."""


@eval_app.command("run", context_settings={"allow_extra_args": True})
def run(
    ctx: typer.Context,
    no_serve: Annotated[bool, typer.Option("--no-serve", help="Use the servers of `gym-ray env start`.")] = False,
    agent: Annotated[str | None, typer.Option("--agent", "-a", help="Agent of every row.")] = None,
    input_path: Annotated[Path | None, typer.Option("--input", "-i", help="Rows (JSONL).")] = None,
    output_path: Annotated[Path | None, typer.Option("--output", "-o", help="Records (JSONL).")] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="Take only the first rows.")] = None,
    num_repeats: Annotated[int | None, typer.Option("--num-repeats", help="Rollouts of each row.")] = None,
    concurrency: Annotated[int | None, typer.Option("--concurrency", help="Rollouts at once.")] = None,
    config: Config = None,
    resources_server: ResourcesServer = None,
    model_type: ModelType = None,
    verbose: Verbose = False,
) -> None:
    """Run every row, keep every model call, write one record a rollout. Settings may follow as ++key=value."""
    flags = {
        "agent_name": agent,
        "input_jsonl_fpath": input_path,
        "output_jsonl_fpath": output_path,
        "limit": limit,
        "num_repeats": num_repeats,
        "num_samples_in_parallel": concurrency,
    }
    tokens = [f"++{key}={_literal(value)}" for key, value in flags.items() if value is not None]
    found: list[FoundServers] = []

    def running(settings: RunSettings) -> Mapping[str, ServerSettings]:
        found.append(FoundServers.at(settings))
        return found[0].settings.servers

    elsewhere = running if no_serve else None
    settings = read_settings(config, resources_server, model_type, [*tokens, *ctx.args], elsewhere)
    head = None
    if found:
        settings, head = found[0].joined(settings)
    else:
        require_servers(settings)
    plan = plan_of(settings)
    check_plan(plan)
    check_source(settings)
    check_places(settings)
    raise typer.Exit(collect(settings, plan, head, verbose=verbose or settings.verbose))


def _literal(value: object) -> str:
    """Quote a flag's value for the override grammar."""
    if isinstance(value, int):
        return str(value)
    text = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"
