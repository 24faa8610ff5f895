"""Builds the environment that a resources server's settings name."""

from __future__ import annotations

from gym_ray.environments.base import Environment
from gym_ray.environments.mcqa import McqaEnvironment
from gym_ray.environments.order_desk import OrderDeskEnvironment
from gym_ray.errors import SettingsError
from gym_ray.settings import McqaOptions, OrderDeskOptions, ServerSettings

__all__ = ["build_environment"]


def build_environment(server: ServerSettings) -> Environment:
    """Build the environment of one resources server.

    Raises:
        SettingsError: No such implementation.
    """
    options = server.options
    if isinstance(options, McqaOptions):
        return McqaEnvironment(options.grading_mode)
    if isinstance(options, OrderDeskOptions):
        return OrderDeskEnvironment()
    key = f"{server.name}.{server.type}.{server.implementation}"
    problem = f"{server.implementation!r} is not an environment"
    raise SettingsError("settings", key, problem, "use mcqa or order_desk")
