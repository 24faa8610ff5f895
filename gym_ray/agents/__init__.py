"""What runs a row."""

from gym_ray.agents.context import RunContext
from gym_ray.agents.resources_session import ResourcesSession
from gym_ray.agents.responses_api_agent import ResponsesAPIAgentConfig, SimpleResponsesAPIAgent
from gym_ray.agents.runner import AgentRunner, ServerUrls
from gym_ray.agents.server_client import RunServers, ServerClient

__all__ = [
    "AgentRunner",
    "ResourcesSession",
    "ResponsesAPIAgentConfig",
    "RunContext",
    "RunServers",
    "ServerClient",
    "ServerUrls",
    "SimpleResponsesAPIAgent",
]
