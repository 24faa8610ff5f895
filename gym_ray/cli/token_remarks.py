"""What a command says about token capture before it starts: what cannot work, and what is likely not meant."""

from __future__ import annotations

import os
from typing import Final

from rich.console import Console
from rich.markup import escape

from gym_ray.errors import SettingsError
from gym_ray.settings import RunSettings
from gym_ray.settings.token_capture import check_token_capture
from gym_ray.token_id_capture.config import control_auth_token

__all__ = ["check_places", "check_source", "collection_remarks", "control_token", "print_warnings", "server_remarks"]

_CLASSES: Final = ("sink", "source", "lineage_store")
_OURS: Final = "gym_ray."
_IN_STORES: Final = "gym_ray.token_id_capture.staging.parquet:"
"""Classes that keep tokens in a staging store, at the place ``where``."""


def server_remarks(settings: RunSettings) -> list[str]:
    """Return what is odd about the token capture of servers, one sentence each."""
    return check_token_capture(settings.token_id_capture, settings.model_call_capture_dir)


def collection_remarks(settings: RunSettings) -> list[str]:
    """Return what is odd about the token capture of a collection, one sentence each."""
    remarks = server_remarks(settings)
    agents = [settings.agent_name] if settings.agent_name else sorted(settings.servers_of("responses_api_agents"))
    if settings.token_id_capture.enabled and not any(map(settings.trains, agents)):
        who = f"the agent {agents[0]} takes" if len(agents) == 1 else "its agents take"
        remarks.append(
            f"token_id_capture is enabled and no tokens are captured: {who} no part; "
            "set token_id_capture: true for an agent, or ++token_id_capture.all_agents=true"
        )
    return remarks


def check_source(settings: RunSettings) -> None:
    """Refuse a collection whose records could not be given their tokens; what this process installed reaches no actor.

    Raises:
        SettingsError: A sink keeps the tokens, and no source is named that gives them back (B125, B136).
    """
    block = settings.token_id_capture
    if block.enabled and block.rebuild_response and block.sink is not None and block.source is None:
        problem = f"is required: records get the tokens that {block.sink} keeps from it"
        remedy = "name a class, or set token_id_capture.rebuild_response to false"
        raise SettingsError("settings", "token_id_capture.source", problem, remedy)


def check_places(settings: RunSettings) -> None:
    """Refuse places for tokens that no process could open, before any is started; nothing is connected or made.

    Looks at the staging store of the run's own workers, and at what classes of this project are to be made with. A
    foreign class may be there on other machines alone.

    Raises:
        SettingsError: A directory is a file here, a client knows no such option, or an argument is missing or unknown.
    """
    block = settings.token_id_capture
    named = [(name, getattr(block, name), getattr(block, f"{name}_kwargs")) for name in _CLASSES]
    ours = [(name, target, kwargs) for name, target, kwargs in named if target and target.startswith(_OURS)]
    if not block.enabled or (block.staging is None and not ours):
        return
    # the file libraries take longer to load than most commands to run
    from gym_ray.token_id_capture.plug_ins import check_plug_in
    from gym_ray.token_id_capture.staging.parquet import open_staging_store

    if block.staging is not None:
        open_staging_store(block.staging.where, block.staging.storage_options)
    for name, target, kwargs in ours:
        check_plug_in(f"token_id_capture.{name}", target, kwargs)
        if target.startswith(_IN_STORES) and "where" in kwargs:
            open_staging_store(kwargs["where"], kwargs.get("storage_options"))


def control_token(settings: RunSettings) -> str | None:
    """Return the bearer of the control routes, from the environment; None where the servers have no such routes.

    Raises:
        SettingsError: Workers keep the tokens, and the variable is not set (C220).
    """
    block = settings.token_id_capture
    return control_auth_token(block, os.environ) if block.enabled and block.external_staging else None


def print_warnings(console: Console, remarks: list[str]) -> None:
    """Print each remark as a warning."""
    for remark in remarks:
        console.print(f"[yellow]warning[/] {escape(remark)}", soft_wrap=True)
