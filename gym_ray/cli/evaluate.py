"""``gym-ray eval``: collect rollouts."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from gym_ray import exact_json
from gym_ray.cli.env import require_servers
from gym_ray.cli.found_servers import FoundServers, Head
from gym_ray.cli.head import HeadWatch
from gym_ray.cli.options import Config, ModelType, ResourcesServer, Verbose, read_settings
from gym_ray.cli.report import RunBar, Waiting, first_failures, print_report
from gym_ray.cli.runtime import INTERRUPTED, Interrupts, new_run_token, ray_session, user_cache_dir
from gym_ray.cli.token_remarks import check_places, check_source, collection_remarks, control_token, print_warnings
from gym_ray.errors import GymRayError, SettingsError
from gym_ray.rollouts.collection import CollectionSettings
from gym_ray.rollouts.collection import Progress as RunProgress
from gym_ray.rollouts.metrics import RunMetrics
from gym_ray.rollouts.rows import RowOptions, read_rows
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.rollouts.run_start import RunLock, RunStart
from gym_ray.rollouts.token_delivery import TokenPlan
from gym_ray.settings import RunSettings, ServerSettings
from gym_ray.storage.posix import PosixStore

__all__ = ["eval_app"]

eval_app = typer.Typer(help="Collect rollouts.", no_args_is_help=True)

_LANES = 64


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
    plan = _Plan.of(settings)
    plan.check()
    check_source(settings)
    check_places(settings)
    raise typer.Exit(_collect(settings, plan, head, verbose=verbose or settings.verbose))


def _literal(value: object) -> str:
    """Quote a flag's value for the override grammar."""
    if isinstance(value, int):
        return str(value)
    text = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is run and where it goes, checked before Ray starts."""

    source: Path
    paths: RunPaths
    options: RowOptions
    limits: CollectionSettings

    @classmethod
    def of(cls, settings: RunSettings) -> _Plan:
        source, output = settings.input_jsonl_fpath, settings.output_jsonl_fpath
        if source is None:
            raise SettingsError("command line", "input_jsonl_fpath", "is required", "pass --input ROWS.jsonl")
        if output is None:
            raise SettingsError("command line", "output_jsonl_fpath", "is required", "pass --output RECORDS.jsonl")
        options = RowOptions(
            agent_name=settings.agent_name,
            num_repeats=settings.num_repeats,
            interleave_repeats=settings.interleave_repeats,
            limit=settings.limit,
            responses_create_params=settings.responses_create_params,
            agents=sorted(settings.servers_of("responses_api_agents")),
            task_sources=_task_sources(settings),
        )
        limits = CollectionSettings(
            num_samples_in_parallel=settings.num_samples_in_parallel, run_timeout_s=settings.run_timeout_s
        )
        return cls(source.absolute(), RunPaths.of(output), options, limits)

    def check(self) -> None:
        """Read every row and try the output's lock, so that a mistake costs a moment and touches nothing.

        Raises:
            InputError: A row cannot be used.
            StorageError: The output cannot be written, or another collector writes it.
        """
        for _ in read_rows(self.source, self.options):
            pass
        RunLock(self.paths).close()


def _task_sources(settings: RunSettings) -> dict[str, str]:
    """Map what may declare data to the agent that runs it: an agent to itself, a scorer to its only agent (D16)."""
    agents = settings.servers_of("responses_api_agents")
    users: dict[str, list[str]] = {}
    for name, agent in agents.items():
        for reference in agent.options.references().values():
            if reference.type == "resources_servers":
                users.setdefault(reference.name, []).append(name)
    only = {source: names[0] for source, names in users.items() if len(names) == 1}
    return {**only, **{name: name for name in agents}}


def _collect(settings: RunSettings, plan: _Plan, head: Head | None, *, verbose: bool) -> int:
    """Start what is needed, collect, report; return the exit code."""
    console = Console(stderr=True, highlight=False)
    secret = control_token(settings) if head is None else None
    print_warnings(console, collection_remarks(settings))
    console.print("[dim]starting Ray")
    with ray_session(f"gym-ray/{secrets.token_hex(4)}", verbose=verbose) as interrupts:
        from gym_ray.actors.collecting import collecting
        from gym_ray.actors.collector import CollectionPlan
        from gym_ray.actors.servers import start_servers

        servers, watch = None, None
        if head is None:
            token = new_run_token()
            with Waiting(console, "starting servers", interrupts) as waiting:
                servers = start_servers(
                    settings,
                    run_token=token,
                    control_token=secret,
                    cache_dir=user_cache_dir(),
                    on_wait=waiting.show,
                )
            head = Head(servers.directory, token)
        else:
            watch = HeadWatch(settings.head_server.host, settings.head_server.port)
        collection = CollectionPlan(
            plan.paths,
            plan.source,
            plan.options,
            plan.limits,
            settings.capture_dir,
            lanes=_LANES,
            tokens=TokenPlan.of(settings),
        )
        try:
            with collecting(
                settings, collection, head.directory, run_token=head.run_token, on_wait=interrupts.check
            ) as running:
                _print_start(console, running.start)
                end = _follow(running.collector, console, interrupts, watch)
                progress, metrics = _results(running.collector, end)
        finally:
            if servers is not None:
                servers.stop()
    try:
        return _finish(settings, plan.paths, metrics, progress, end.stopped or int(end.failure is not None))
    finally:
        if end.failure is not None:  # behind the report, and before anything that went wrong with it
            raise end.failure


def _print_start(console: Console, start: RunStart) -> None:
    print_warnings(console, list(start.materialisation.warnings))
    if start.set_aside is not None:
        console.print(f"[dim]earlier results are in[/] {escape(str(start.set_aside))}", soft_wrap=True)


@dataclass(frozen=True, slots=True)
class _End:
    """How a run ended: 0 or the exit code of what stopped it early, and what ended it, None for nothing."""

    stopped: int
    failure: GymRayError | None


def _follow(collector: Any, console: Console, interrupts: Interrupts, watch: HeadWatch | None) -> _End:
    """Draw progress until the run is over; an error of the run is returned, so that it does not hide what was done."""
    from gym_ray.actors.calls import MOMENT_S, get, wait

    stopped = 0
    interrupts.tolerated = 1  # the first one lets what has ended be stored
    ended = collector.run.remote()
    with RunBar(console) as bar:
        while not wait(ended, MOMENT_S):
            interrupts.check()
            if interrupts.presses and not stopped:
                stopped = INTERRUPTED
                console.print("stopping: what has ended is stored; Ctrl-C again leaves at once")
                collector.stop.remote()
            if watch is not None and not stopped and watch.gone():
                stopped = 1
                console.print(f"[bold red]stopping:[/] the servers of {watch.place} are gone; what has ended is stored")
                collector.stop.remote()
            bar.show(get(collector.progress.remote(), None))
    try:
        get(ended, None)
    except GymRayError as error:
        return _End(stopped, error)
    return _End(stopped, None)


def _results(collector: Any, end: _End) -> tuple[RunProgress, RunMetrics]:
    """Return what the collector counted.

    Raises:
        GymRayError: The collector's process is gone, and nobody else counted; what ended the run, if that is known.
    """
    from gym_ray.actors.calls import get

    try:
        progress, metrics = get([collector.progress.remote(), collector.metrics.remote()], None)
    except GymRayError as error:
        raise end.failure or error from None
    return progress, metrics


def _finish(settings: RunSettings, paths: RunPaths, metrics: RunMetrics, progress: RunProgress, stopped: int) -> int:
    figures = exact_json.dumps(metrics.to_dict()) + b"\n"
    PosixStore(paths.aggregate_metrics.parent).publish(paths.aggregate_metrics.name, figures)
    files: Sequence[tuple[str, Path | None]] = (
        ("records", paths.output),
        ("failures", paths.failures if progress.failed or progress.retries else None),
        ("metrics", paths.aggregate_metrics),
        ("captures", settings.capture_dir),
        ("tokens", settings.token_dir),
    )
    console = Console(highlight=False)
    if not console.is_terminal:  # a file or a pipe has no width of its own; nothing is folded for it
        console = Console(highlight=False, width=max(console.width, 160))
    present = [(label, path) for label, path in files if path is not None]
    print_report(console, metrics, present, progress, first_failures(paths.failures))
    if stopped:
        return stopped
    if not progress.done and not progress.unstored:
        place = escape(str(paths.failures))
        message = f"[bold red]error:[/] none of the {progress.rows} rollouts produced a result; see {place}"
        Console(stderr=True, highlight=False).print(message, soft_wrap=True)
        return 1
    return 0
