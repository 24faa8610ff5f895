"""From a server's settings to its engine: the one place that knows which implementation is which class."""

from __future__ import annotations

from collections.abc import Collection

from gym_ray.dialects import CHAT, MESSAGES
from gym_ray.dialects.conversion.schema import REQUIRED_PREFIX
from gym_ray.errors import SettingsError
from gym_ray.model_server.app import AppOptions
from gym_ray.model_server.bridged import BridgeOptions
from gym_ray.model_server.engine import Engine
from gym_ray.model_server.llama_cpp.engine import LlamaCppEngine
from gym_ray.model_server.upstream import UpstreamEngine, UpstreamLimits
from gym_ray.model_server.vllm.engine import TokenBehaviour, VllmBehaviour, VllmEngine
from gym_ray.settings import (
    AnthropicModelOptions,
    CompactingVllmModelOptions,
    LocalModelOptions,
    ModelOptions,
    OpenAIModelOptions,
    ServerSettings,
    UpstreamOptions,
    VllmModelOptions,
)

__all__ = ["app_options", "build_engine", "build_worker_client"]


def build_engine(server: ServerSettings, *, local_engine_url: str | None, fail_unproven_prefix: bool = False) -> Engine:
    """Build the engine of a model server; nothing is opened yet.

    Args:
        server: Settings of a server of type ``responses_api_models``.
        local_engine_url: Root URL of this node's llama.cpp server; needed by ``local_model`` only.
        fail_unproven_prefix: Fail a training call whose answer does not prove that its parent's tokens went in (W35);
            false serves it and does not use its tokens.

    Raises:
        SettingsError: The server is not a model server that has an engine, its key cannot be sent, or the embedded
            model's URL is missing.
    """
    match server.options:
        case OpenAIModelOptions() as options:
            key, dialects = options.openai_api_key.get_secret_value(), options.dialects
            return _upstream(server, options, options.openai_base_url, key, options.openai_model, dialects)
        case VllmModelOptions() as options:
            return _vllm_engine(server, options, fail_unproven_prefix=fail_unproven_prefix)
        case AnthropicModelOptions() as options:
            return _anthropic_engine(server, options)
        case LocalModelOptions() as options:
            return _local_engine(server, options, local_engine_url)
    raise SettingsError(
        "settings",
        f"{server.name}.{server.type}.{server.implementation}",
        "has no engine",
        "a model server is an openai_model, a vllm_model, an anthropic_model or a local_model",
    )


def build_worker_client(server: ServerSettings, worker_url: str, api_key: str) -> UpstreamEngine:
    """Build the engine of a model server whose own engine is behind a worker that stages tokens.

    Args:
        server: Settings of the model server, a ``local_model``.
        worker_url: Root URL of the worker.
        api_key: What the worker wants to be sent.

    Raises:
        SettingsError: The server is no ``local_model``.
    """
    options = server.options
    if not isinstance(options, LocalModelOptions):
        raise SettingsError("settings", f"{server.name}.{server.type}", "has no worker of its own", "name its URL")
    return UpstreamEngine(f"{worker_url}/v1", api_key=api_key, model_name=options.model_name, dialects=(CHAT,))


def app_options(server: ServerSettings, engine: Engine) -> AppOptions:
    """Return how the application of a model server is to behave.

    Args:
        server: Settings of the model server.
        engine: What :func:`build_engine` made of them.

    Raises:
        SettingsError: The server is not a model server.
    """
    options = server.options
    if not isinstance(options, ModelOptions):
        raise SettingsError("settings", f"{server.name}.{server.type}", "is no model server")
    compacting = isinstance(options, CompactingVllmModelOptions)
    bridge = BridgeOptions(
        default_max_tokens=options.max_output_tokens if isinstance(options, AnthropicModelOptions) else 4096,
        split_think=options.uses_reasoning_parser if isinstance(options, VllmModelOptions) else True,
        unsigned_thinking=not isinstance(options, AnthropicModelOptions),
        keep_alive_s=options.keep_alive_s,
        incomplete_event=options.replay_incomplete_event,
        extensions=frozenset({REQUIRED_PREFIX}) if compacting else frozenset(),
    )
    tokenize = engine.tokenize if compacting and isinstance(engine, VllmEngine) else None
    return AppOptions(
        max_body_bytes=options.max_body_bytes,
        bridge=bridge,
        tokenize=tokenize,
        non_generating=frozenset((each.method, each.path) for each in options.token_id_capture_non_generating_requests),
    )


def _upstream(
    server: ServerSettings,
    options: UpstreamOptions,
    base_url: str,
    key: str,
    model: str,
    dialects: Collection[str],
    default_headers: dict[str, str] | None = None,
) -> UpstreamEngine:
    prefix = {"openai_model": "openai_", "anthropic_model": "anthropic_"}.get(server.implementation, "")
    return UpstreamEngine(
        base_url,
        api_key=key,
        model_name=model,
        dialects=dialects,
        limits=UpstreamLimits(
            max_connections=options.max_connections,
            connect_timeout_s=options.connect_timeout_s,
            read_timeout_s=options.request_timeout_s,
        ),
        key_setting=f"{server.name}.{server.type}.{server.implementation}.{prefix}api_key",
        default_headers=default_headers,
    )


def _vllm_engine(server: ServerSettings, options: VllmModelOptions, *, fail_unproven_prefix: bool) -> VllmEngine:
    key = options.api_key.get_secret_value()
    return VllmEngine(
        _upstream(server, options, options.base_url, key, options.model, options.dialects),
        served_model=options.model,
        behaviour=VllmBehaviour(
            chat_template_kwargs=options.chat_template_kwargs,
            extra_body=options.extra_body,
            replace_developer_role_with_system=options.replace_developer_role_with_system,
            propagate_context_overflow_errors=options.propagate_context_overflow_errors,
            sequential_reasoning_allowed=options.sequential_reasoning_allowed,
        ),
        tokens=TokenBehaviour(
            scale_out=options.scale_out,
            supply_prefix_token_ids=options.supply_prefix_token_ids,
            fail_unproven_prefix=fail_unproven_prefix,
        ),
    )


def _anthropic_engine(server: ServerSettings, options: AnthropicModelOptions) -> UpstreamEngine:
    return _upstream(
        server,
        options,
        options.anthropic_base_url,
        options.anthropic_api_key.get_secret_value(),
        options.anthropic_model,
        (MESSAGES,),
        {"anthropic-version": options.anthropic_version},
    )


def _local_engine(server: ServerSettings, options: LocalModelOptions, local_engine_url: str | None) -> LlamaCppEngine:
    if local_engine_url is None:
        raise SettingsError(
            "settings",
            f"{server.name}.{server.type}.{server.implementation}",
            "no llama.cpp server runs on this node",
            "start one and pass its root URL",
        )
    return LlamaCppEngine(
        local_engine_url,
        model_name=options.model_name,
        default_max_tokens=options.max_output_tokens,
        turn_end=options.turn_end,
    )
