"""Builds the agents that the settings name."""

from __future__ import annotations

import sys

from gym_ray.agents.base import Agent
from gym_ray.agents.callable_agent import CallableAgent
from gym_ray.agents.callable_loading import load_callable
from gym_ray.agents.command_agent import CommandAgent
from gym_ray.agents.context import ServerUrls
from gym_ray.agents.http_agent import HttpAgent
from gym_ray.agents.simple_agent import SimpleAgent
from gym_ray.errors import SettingsError
from gym_ray.settings import (
    CallableAgentOptions,
    CommandAgentOptions,
    HttpAgentOptions,
    RunSettings,
    ServerSettings,
    SimpleAgentOptions,
)

__all__ = ["build_agent", "build_agents"]


def build_agents(settings: RunSettings, urls: ServerUrls) -> dict[str, Agent]:
    """Build every agent of the settings, by name.

    Raises:
        SettingsError: An agent refers to a server that has no URL, or its function cannot be loaded.
    """
    agents = {}
    for name, server in settings.servers_of("responses_api_agents").items():
        _check_references(server, urls)
        agents[name] = build_agent(server)
    return agents


def build_agent(server: ServerSettings) -> Agent:
    """Build one agent.

    Raises:
        SettingsError: No such implementation, or its function cannot be loaded.
    """
    options = server.options
    if isinstance(options, SimpleAgentOptions):
        return SimpleAgent(
            options.model_server.name,
            options.resources_server.name,
            max_steps=options.max_steps,
            skip_verification=options.skip_verification,
        )
    if isinstance(options, HttpAgentOptions):
        return HttpAgent(server.name, options.base_url)
    if isinstance(options, CallableAgentOptions):
        function = load_callable(options.callable, key=f"{_key(server)}.callable")
        resources = options.resources_server
        return CallableAgent(server.name, function, resources_server=resources.name if resources else None)
    if isinstance(options, CommandAgentOptions):
        return _command_agent(server, options)
    problem = f"{server.implementation!r} is not an agent"
    remedy = "use simple_agent, http_agent, callable_agent or command_agent"
    raise SettingsError("settings", _key(server), problem, remedy)


def _command_agent(server: ServerSettings, options: CommandAgentOptions) -> CommandAgent:
    if sys.platform != "linux":  # nowhere else can everything that a program leaves behind be found
        raise SettingsError("settings", _key(server), "commands run on Linux only", "use callable_agent here")
    return CommandAgent(server.name, options)


def _check_references(server: ServerSettings, urls: ServerUrls) -> None:
    for field, ref in server.options.references().items():
        known = urls.models if ref.type == "responses_api_models" else urls.resources
        if ref.name not in known:
            remedy = f"running: {', '.join(sorted(known)) or 'none'}"
            raise SettingsError("settings", f"{_key(server)}.{field}", f"no server named {ref.name!r} runs", remedy)


def _key(server: ServerSettings) -> str:
    return f"{server.name}.{server.type}.{server.implementation}"
