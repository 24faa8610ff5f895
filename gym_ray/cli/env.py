"""``gym-ray env``: keep servers running for other terminals to collect with."""

from __future__ import annotations

import asyncio
import secrets
import socket

import typer
from rich.console import Console
from rich.table import Table

from gym_ray.cli.capture_settings import capture_settings
from gym_ray.cli.head import build_head_app, publish_token
from gym_ray.cli.options import Config, ModelType, ResourcesServer, Verbose, read_settings
from gym_ray.cli.report import Waiting
from gym_ray.cli.runtime import Interrupts, new_run_token, ray_session, user_cache_dir
from gym_ray.cli.token_remarks import check_places, control_token, print_warnings, server_remarks
from gym_ray.errors import ServerStartError, SettingsError
from gym_ray.model_server.serving import AppServer
from gym_ray.server_directory import ServerDirectory
from gym_ray.settings import RunSettings

__all__ = ["env_app", "require_servers"]

_LOOK_S = 0.1

env_app = typer.Typer(help="Start model servers and resources servers.", no_args_is_help=True)


@env_app.callback()
def _group() -> None:
    """Keep ``start`` a named command even while it is the only one."""


@env_app.command("start", context_settings={"allow_extra_args": True})
def start(
    ctx: typer.Context,
    config: Config = None,
    resources_server: ResourcesServer = None,
    model_type: ModelType = None,
    verbose: Verbose = False,
) -> None:
    """Start the servers and serve until Ctrl-C. Settings may follow as ++key=value."""
    settings = read_settings(config, resources_server, model_type, ctx.args)
    require_servers(settings)
    check_places(settings)
    secret = control_token(settings)
    _require_free(settings.head_server.host, settings.head_server.port)
    console = Console(stderr=True, highlight=False)
    print_warnings(console, server_remarks(settings))
    session = f"gym-ray/{secrets.token_hex(4)}"
    with ray_session(session, verbose=verbose or settings.verbose, log_format=settings.log_format) as interrupts:
        from gym_ray.actors.servers import start_servers

        token, head = new_run_token(), settings.head_server
        with Waiting(console, "starting servers", interrupts) as waiting:
            servers = start_servers(
                settings,
                run_token=token,
                control_token=secret,
                cache_dir=user_cache_dir(),
                on_wait=waiting.show,
            )
        try:
            with publish_token(user_cache_dir(), head.host, head.port, token):
                asyncio.run(_serve_head(settings, servers.directory, console, interrupts))
        finally:
            servers.stop()
    console.print("servers stopped")


def require_servers(settings: RunSettings) -> None:
    """Refuse settings that name no server to start.

    Raises:
        SettingsError: There is neither a model server nor a resources server.
    """
    if not any(server.type != "responses_api_agents" for server in settings.servers.values()):
        raise SettingsError(
            "command line", "", "no server to start", "pass --resources-server, --model-type or --config FILE"
        )


def _require_free(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ServerStartError(
                f"head server: cannot listen on {host}:{port}: {error.strerror}; "
                "stop what runs there or pass ++head_server.port=PORT"
            ) from error


async def _serve_head(
    settings: RunSettings, directory: ServerDirectory, console: Console, interrupts: Interrupts
) -> None:
    app = build_head_app(settings.to_yaml(redact=True), directory, capture_settings(settings))
    head = AppServer(app, settings.head_server.host, settings.head_server.port)
    port = await head.start()
    try:
        _print_servers(settings, directory, port, console)
        while not interrupts.presses:  # noqa: ASYNC110 - a signal handler may set a number, not an event of the loop
            await asyncio.sleep(_LOOK_S)
    finally:
        await head.stop(2.0)


def _print_servers(settings: RunSettings, directory: ServerDirectory, port: int, console: Console) -> None:
    table = Table("server", "kind", "url", box=None)
    for kind, servers in (("model", directory.models), ("resources", directory.resources)):
        for name, replicas in sorted(servers.items()):
            for replica in replicas:
                table.add_row(name, kind, replica.url)
    console.print(table)
    capture = capture_settings(settings)["model_call_capture_dir"]
    console.print(f"capture: {capture or 'off'}")
    block = settings.token_id_capture
    if block.enabled and block.external_staging:
        console.print(f"tokens: kept by the workers; ledger: {settings.token_dir or block.lineage_store}")
    elif block.enabled:
        console.print(f"tokens: {settings.token_dir or block.sink or 'kept nowhere'}")
    console.print(f"ready at http://{settings.head_server.host}:{port}; Ctrl-C stops all servers")
