"""Named servers: ``<name>: {<server type>: {<implementation>: {…}}}`` (D128).

One options model for each implementation that exists. Options say what a server needs, not where it runs or who calls
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gym_ray.settings.agent_options import (
    CallableAgentOptions,
    CommandAgentOptions,
    HttpAgentOptions,
    SimpleAgentOptions,
)
from gym_ray.settings.model_options import (
    AnthropicModelOptions,
    CompactingVllmModelOptions,
    LocalModelOptions,
    OpenAIModelOptions,
    VllmModelOptions,
)
from gym_ray.settings.server_options import HostedOptions, ServerOptions, ServerType

__all__ = [
    "IMPLEMENTATIONS",
    "McqaOptions",
    "OrderDeskOptions",
    "ServerSettings",
]


class McqaOptions(HostedOptions):
    """``mcqa``: multiple-choice questions (D150).

    Attributes:
        grading_mode: Overrides the mode that a row asks for.
    """

    grading_mode: (
        Literal["strict_single_letter_boxed", "lenient_boxed", "lenient_answer_colon", "lenient_answer_colon_md"] | None
    ) = None


class OrderDeskOptions(HostedOptions):
    """``order_desk``: tasks that need real tool calls."""


IMPLEMENTATIONS: Mapping[ServerType, Mapping[str, type[ServerOptions]]] = {
    "responses_api_models": {
        "openai_model": OpenAIModelOptions,
        "vllm_model": VllmModelOptions,
        "vllm_model_with_compaction": CompactingVllmModelOptions,
        "anthropic_model": AnthropicModelOptions,
        "local_model": LocalModelOptions,
    },
    "responses_api_agents": {
        "simple_agent": SimpleAgentOptions,
        "http_agent": HttpAgentOptions,
        "callable_agent": CallableAgentOptions,
        "command_agent": CommandAgentOptions,
    },
    "resources_servers": {"mcqa": McqaOptions, "order_desk": OrderDeskOptions},
}
"""Options model by server type and implementation."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """One named server.

    Args:
        name: The name that references, agents and URLs use.
        type: What kind of server it is.
        implementation: Which program of that kind.
        options: The options model of that implementation.
    """

    name: str
    type: ServerType
    implementation: str
    options: ServerOptions
