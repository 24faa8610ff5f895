"""What runs a row."""

from gym_ray.agents.context import RunContext
from gym_ray.agents.resources_session import ResourcesSession
from gym_ray.agents.runner import AgentRunner, ServerUrls

__all__ = ["AgentRunner", "ResourcesSession", "RunContext", "ServerUrls"]
