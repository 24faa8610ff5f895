"""Named servers: ``<name>: {<server type>: {<implementation>: {…}}}`` (D128).

One options model for each implementation that exists. Options say what a server needs, not where it runs or who calls
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, SecretStr

from gym_ray.settings.fields import (
    FrozenModel,
    HttpUrl,
    Name,
    Port,
    PositiveCount,
    PositiveSeconds,
    Replicas,
)

__all__ = [
    "IMPLEMENTATIONS",
    "CallableAgentOptions",
    "HostedOptions",
    "HttpAgentOptions",
    "LocalModelOptions",
    "McqaOptions",
    "ModelServerRef",
    "OpenAIModelOptions",
    "OrderDeskOptions",
    "ResourcesServerRef",
    "ServerOptions",
    "ServerRef",
    "ServerSettings",
    "ServerType",
    "SimpleAgentOptions",
]

ServerType = Literal["responses_api_models", "responses_api_agents", "resources_servers"]


class ServerRef(FrozenModel):
    """A reference to another server: ``{type: resources_servers, name: mcqa}``."""

    type: ServerType
    name: Name


class ModelServerRef(ServerRef):
    """A reference that must lead to a model server."""

    type: Literal["responses_api_models"] = "responses_api_models"


class ResourcesServerRef(ServerRef):
    """A reference that must lead to a resources server."""

    type: Literal["resources_servers"] = "resources_servers"


class ServerOptions(FrozenModel):
    """What every server may say. These keys describe it and change nothing; they are kept for who reads them."""

    entrypoint: str | None = None
    domain: str | None = None
    description: str | None = None
    value: str | None = None
    verified: bool | None = None
    datasets: tuple[dict[str, Any], ...] = ()

    def references(self) -> dict[str, ServerRef]:
        """Return the servers that this one calls, by field."""
        return {name: ref for name, ref in self if isinstance(ref, ServerRef)}


class HostedOptions(ServerOptions):
    """Options of a server that listens.

    Attributes:
        host: Address to listen on; None lets the cluster choose (loopback on one node, the node's own on several).
        port: None takes a free one in 10001 to 20000.
    """

    host: Name | None = None
    port: Port | None = None


class ModelOptions(HostedOptions):
    """Options of every model server.

    Attributes:
        replicas: How many servers share the name, or ``per_node``.
    """

    replicas: Replicas = 1


class OpenAIModelOptions(ModelOptions):
    """``openai_model``: any OpenAI-compatible endpoint.

    Attributes:
        openai_base_url: The endpoint's URL, its ``/v1`` included.
        openai_api_key: Sent as the bearer token.
        openai_model: Model name that the endpoint knows.
        request_timeout_s: Longest wait for an answer, or between two chunks of a streamed one.
        connect_timeout_s: Longest wait for a connection.
        max_connections: Bound on open connections to the endpoint, per replica.
    """

    openai_base_url: HttpUrl
    openai_api_key: SecretStr
    openai_model: Name
    request_timeout_s: PositiveSeconds = 600.0
    connect_timeout_s: PositiveSeconds = 10.0
    max_connections: PositiveCount = 256


class LocalModelOptions(ModelOptions):
    """``local_model``: the embedded model.

    Attributes:
        model_path: A GGUF file; None takes the weights that come with the extra ``local``.
        n_ctx: Tokens of context for one request.
        n_parallel: Requests that run at the same time.
        n_threads: Threads of the engine; None takes the cores of the node.
        max_output_tokens: Bound where a request names none.
        model_name: The name that answers carry.
        turn_end: How the model ends its turn: a base model by a ``line`` feed that its grammar enforces, one tuned for
            chat by its end ``marker``.
    """

    model_path: Path | None = None
    n_ctx: PositiveCount = 8192
    n_parallel: PositiveCount = 4
    n_threads: PositiveCount | None = None
    max_output_tokens: PositiveCount = 256
    model_name: Name = "gemma-3-270m"
    turn_end: Literal["line", "marker"] = "line"


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
    "responses_api_models": {"openai_model": OpenAIModelOptions, "local_model": LocalModelOptions},
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
