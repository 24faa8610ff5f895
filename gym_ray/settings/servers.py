"""Named servers: ``<name>: {<server type>: {<implementation>: {…}}}`` (D128).

One options model for each implementation that exists. Options say what a server needs, not where it runs or who calls
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator

from gym_ray.settings.fields import HttpUrl, PositiveCount
from gym_ray.settings.model_options import (
    AnthropicModelOptions,
    CompactingVllmModelOptions,
    LocalModelOptions,
    OpenAIModelOptions,
    VllmModelOptions,
)
from gym_ray.settings.server_options import (
    HostedOptions,
    ModelServerRef,
    ResourcesServerRef,
    ServerOptions,
    ServerType,
)

__all__ = [
    "IMPLEMENTATIONS",
    "CallableAgentOptions",
    "HttpAgentOptions",
    "McqaOptions",
    "OrderDeskOptions",
    "ServerSettings",
    "SimpleAgentOptions",
]


class SimpleAgentOptions(ServerOptions):
    """``simple_agent``: a Responses loop that runs the environment's tools (D140 to D145).

    Attributes:
        max_steps: Model calls at most; None has no bound.
        skip_verification: Do not ask the resources server for a reward.
    """

    resources_server: ResourcesServerRef
    model_server: ModelServerRef
    max_steps: PositiveCount | None = None
    skip_verification: bool = False


class HttpAgentOptions(ServerOptions):
    """``http_agent``: an agent that serves ``POST /run``.

    Attributes:
        base_url: The agent's root URL.
    """

    base_url: HttpUrl


def _callable_path(value: str) -> str:
    module, _, function = value.rpartition(":")
    if not module or not function.isidentifier():
        raise ValueError("should be module:function or path/to/file.py:function")
    return value


class CallableAgentOptions(ServerOptions):
    """``callable_agent``: an async Python function.

    Attributes:
        callable: ``module:function`` or ``path/to/file.py:function``.
        resources_server: What scores its rollouts; None lets the function return the reward itself.
    """

    callable: Annotated[str, AfterValidator(_callable_path)]
    resources_server: ResourcesServerRef | None = None


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
