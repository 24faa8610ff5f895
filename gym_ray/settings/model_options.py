"""Options of the model servers, one model an implementation."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import SecretStr

from gym_ray.settings.fields import HttpUrl, Name, PositiveCount, PositiveSeconds, Replicas
from gym_ray.settings.server_options import HostedOptions

__all__ = ["LocalModelOptions", "ModelOptions", "OpenAIModelOptions"]


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
