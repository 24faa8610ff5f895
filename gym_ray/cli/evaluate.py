"""``gym-ray eval``: collect rollouts."""
# ruff: noqa: ARG001 - a command's parameters are its flags; most are read from the context, all in one way

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gym_ray.cli.env import require_servers
from gym_ray.cli.found_servers import FoundServers, Head
from gym_ray.cli.options import Config, ModelType, ResourcesServer, Verbose, read_settings
from gym_ray.cli.run_collection import collect
from gym_ray.cli.run_flags import (
    Compact,
    DisableAggregation,
    HealthCheckIgnore,
    HealthCheckWorkers,
    InterleaveRepeats,
    MaxOutputTokens,
    Model,
    ModelApiKey,
    ModelUrl,
    NoHealthCheck,
    PromptConfig,
    RequireComplete,
    Resume,
    Salvage,
    Temperature,
    TopP,
    flag_tokens,
    run_remarks,
    with_attempt_budget,
)
from gym_ray.cli.run_plan import check_plan, plan_of
from gym_ray.cli.token_remarks import check_places, check_source, print_warnings
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
    resume: Resume = False,
    salvage: Salvage = False,
    interleave_repeats: InterleaveRepeats = False,
    prompt_config: PromptConfig = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    max_output_tokens: MaxOutputTokens = None,
    model: Model = None,
    model_url: ModelUrl = None,
    model_api_key: ModelApiKey = None,
    compact: Compact = False,
    require_complete: RequireComplete = False,
    disable_aggregation: DisableAggregation = False,
    no_health_check: NoHealthCheck = False,
    health_check_workers: HealthCheckWorkers = None,
    health_check_ignore: HealthCheckIgnore = None,
    config: Config = None,
    resources_server: ResourcesServer = None,
    model_type: ModelType = None,
    verbose: Verbose = False,
) -> None:
    """Run every row, keep every model call, write one record a rollout. Settings may follow as ++key=value."""
    settings, head = _settings(ctx, config, resources_server, model_type, no_serve=no_serve)
    settings, remarks = with_attempt_budget(settings, os.environ)
    print_warnings(Console(stderr=True, highlight=False), [*remarks, *run_remarks(settings)])
    plan = plan_of(settings)
    check_plan(plan)
    check_source(settings)
    check_places(settings)
    raise typer.Exit(collect(settings, plan, head, verbose=settings.verbose))


def _settings(
    ctx: typer.Context,
    config: list[Path] | None,
    resources_server: list[str] | None,
    model_type: str | None,
    *,
    no_serve: bool,
) -> tuple[RunSettings, Head | None]:
    """Return the settings that files, flags and overrides add up to, and the running head where one serves them."""
    found: list[FoundServers] = []

    def running(settings: RunSettings) -> Mapping[str, ServerSettings]:
        found.append(FoundServers.at(settings))
        return found[0].settings.servers

    elsewhere = running if no_serve else None
    tokens = [*flag_tokens(ctx.params), *ctx.args]
    settings = read_settings(config, resources_server, model_type, tokens, elsewhere)
    if found:
        return found[0].joined(settings)
    require_servers(settings)
    return settings, None
