"""What a command says about token capture before it starts: what cannot work, and what is likely not meant."""

from __future__ import annotations

import os

from rich.console import Console
from rich.markup import escape

from gym_ray.errors import SettingsError
from gym_ray.settings import RunSettings
from gym_ray.settings.token_capture import check_token_capture
from gym_ray.token_id_capture.config import control_auth_token

__all__ = ["check_source", "collection_remarks", "control_token", "print_warnings", "server_remarks"]


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
