"""Options of the model servers, one model an implementation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SecretStr, ValidationInfo, field_validator

from gym_ray.settings.fields import HttpUrl, Name, PositiveCount, PositiveSeconds, Replicas
from gym_ray.settings.server_options import HostedOptions
from gym_ray.settings.token_capture import NonGeneratingRequest

__all__ = [
    "AnthropicModelOptions",
    "CompactingVllmModelOptions",
    "LocalModelOptions",
    "ModelOptions",
    "OpenAIModelOptions",
    "UpstreamOptions",
    "VllmModelOptions",
]


def _dialects(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value or not set(value) <= {"responses", "chat", "messages"}:
        raise ValueError("should be a list of one or more of responses, chat, messages")
    return value


Dialects = Annotated[tuple[str, ...], AfterValidator(_dialects)]


class ModelOptions(HostedOptions):
    """Options of every model server.

    Attributes:
        replicas: How many servers share the name, or ``per_node``.
        max_body_bytes: Largest request body; a larger one is a 413.
        keep_alive_s: A replayed stream that has nothing to say yet sends a comment this often (A139).
        token_id_capture_non_generating_requests: Requests to further paths that generate nothing, so that one of them
            behind the training prefix loses no tokens (B78).
        replay_incomplete_event: A replayed Responses stream whose answer is incomplete ends with
            ``response.incomplete``; false ends it with ``response.completed``, for clients that retry otherwise (W10).
    """

    replicas: Replicas = 1
    max_body_bytes: PositiveCount = 64 * 1024**2
    keep_alive_s: PositiveSeconds = 15.0
    replay_incomplete_event: bool = True
    token_id_capture_non_generating_requests: tuple[NonGeneratingRequest, ...] = ()


class UpstreamOptions(ModelOptions):
    """Options of every model server whose engine is reached over HTTP.

    Attributes:
        request_timeout_s: Longest wait for an answer, or between two chunks of a streamed one.
        connect_timeout_s: Longest wait for a connection.
        max_connections: Bound on open connections to the endpoint, per replica.
    """

    request_timeout_s: PositiveSeconds = 600.0
    connect_timeout_s: PositiveSeconds = 10.0
    max_connections: PositiveCount = 256


class OpenAIModelOptions(UpstreamOptions):
    """``openai_model``: any OpenAI-compatible endpoint.

    Attributes:
        openai_base_url: The endpoint's URL, its ``/v1`` included.
        openai_api_key: Sent as the bearer token.
        openai_model: Model name that the endpoint knows.
        dialects: Dialects that the endpoint speaks; requests of the others are converted.
    """

    openai_base_url: HttpUrl
    openai_api_key: SecretStr
    openai_model: Name
    dialects: Dialects = ("responses", "chat")


class AnthropicModelOptions(UpstreamOptions):
    """``anthropic_model``: the Anthropic API, or whatever speaks its Messages dialect.

    Attributes:
        anthropic_base_url: The endpoint's URL, its ``/v1`` included.
        anthropic_api_key: Sent as ``x-api-key``.
        anthropic_model: Model name that the endpoint knows.
        anthropic_version: Sent where the client names none.
        max_output_tokens: Bound for requests of other dialects that name none; this dialect demands one.
    """

    anthropic_base_url: HttpUrl = "https://api.anthropic.com/v1"
    anthropic_api_key: SecretStr
    anthropic_model: Name
    anthropic_version: Name = "2023-06-01"
    max_output_tokens: PositiveCount = 4096


class VllmModelOptions(UpstreamOptions):
    """``vllm_model``: a vLLM server, stock or older.

    Attributes:
        base_url: The server's URL, its ``/v1`` included.
        api_key: Sent as the bearer token; "" sends none.
        model: Model name that the server knows.
        dialects: Dialects that the server speaks. Stock 0.32 speaks all three; give ``[chat]`` for older ones, and
            requests of the others are converted.
        uses_reasoning_parser: Reasoning in ``<think>`` tags of a converted answer becomes a reasoning item.
        replace_developer_role_with_system: For chat templates that know no developer role.
        chat_template_kwargs: Laid under the request's own.
        extra_body: Members that every request gets unless it has them itself.
        propagate_context_overflow_errors: Pass on the server's 400 for a prompt that is too long; false answers it here
            with an empty completion (A171).
        sequential_reasoning_allowed: False answers a request that ends in an empty assistant turn here (A171).
        scale_out: The server was started with ``--enable-scale-out``: a training call continues the exact tokens of its
            parent through the server's token routes. A stock server can.
        supply_prefix_token_ids: The server is a patched one: a training call continues the exact tokens of its parent
            as ``required_prefix_token_ids`` (B94).
    """

    base_url: HttpUrl
    api_key: SecretStr = SecretStr("")
    model: Name
    dialects: Dialects = ("responses", "chat", "messages")
    uses_reasoning_parser: bool = True
    replace_developer_role_with_system: bool = False
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    extra_body: dict[str, Any] = Field(default_factory=dict)
    propagate_context_overflow_errors: bool = False
    sequential_reasoning_allowed: bool = True
    scale_out: bool = False
    supply_prefix_token_ids: bool = False

    @field_validator("scale_out", "supply_prefix_token_ids")
    @classmethod
    def _tokens_go_in_one_way(cls, value: bool, info: ValidationInfo) -> bool:
        if value and "chat" not in info.data.get("dialects", ("chat",)):
            raise ValueError("should be false where dialects has no chat: no other route of the server takes tokens")
        if value and info.field_name == "supply_prefix_token_ids" and info.data.get("scale_out"):
            raise ValueError("should be false with scale_out: tokens go in one way or the other")
        return value

    @field_validator("extra_body")
    @classmethod
    def _must_not_stream(cls, value: dict[str, Any]) -> dict[str, Any]:
        for key in ("stream", "stream_options"):
            if key in value:
                raise ValueError(f"must not hold {key}: the client decides whether an answer is streamed")
        return value


class CompactingVllmModelOptions(VllmModelOptions):
    """``vllm_model_with_compaction``: a patched vLLM server that takes ``required_prefix_token_ids`` (A172-A175)."""

    dialects: Dialects = ("chat",)

    @field_validator("dialects")
    @classmethod
    def _must_be_chat(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if value != ("chat",):
            raise ValueError("should be [chat]: the exact prefix goes in through the server's chat route")
        return value


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
