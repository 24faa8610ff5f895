"""What scores a rollout: the resources-server contract and the environments that come with the package."""

from gym_ray.environments.app import build_environment_app
from gym_ray.environments.base import Environment, Session, Tool, ToolError, UnknownSessionError
from gym_ray.environments.build import build_environment

__all__ = [
    "Environment",
    "Session",
    "Tool",
    "ToolError",
    "UnknownSessionError",
    "build_environment",
    "build_environment_app",
]
