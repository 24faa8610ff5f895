"""From a server's settings to its engine: the one place that knows which implementation is which class."""

from __future__ import annotations

from gym_ray.errors import SettingsError
from gym_ray.model_server.engine import Engine
from gym_ray.model_server.llama_cpp.engine import LlamaCppEngine
from gym_ray.model_server.upstream import UpstreamEngine, UpstreamLimits
from gym_ray.settings import LocalModelOptions, OpenAIModelOptions, ServerSettings

__all__ = ["build_engine"]


def build_engine(server: ServerSettings, *, local_engine_url: str | None) -> Engine:
    """Build the engine of a model server; nothing is opened yet.

    Args:
        server: Settings of a server of type ``responses_api_models``.
        local_engine_url: Root URL of this node's llama.cpp server; needed by ``local_model`` only.

    Raises:
        SettingsError: The server is not a model server that has an engine, its key cannot be sent, or the embedded
            model's URL is missing.
    """
    match server.options:
        case OpenAIModelOptions() as options:
            return _openai_engine(server, options)
        case LocalModelOptions() as options:
            return _local_engine(server, options, local_engine_url)
    raise SettingsError(
        "settings",
        f"{server.name}.{server.type}.{server.implementation}",
        "has no engine",
        "a model server is an openai_model or a local_model",
    )


def _openai_engine(server: ServerSettings, options: OpenAIModelOptions) -> UpstreamEngine:
    return UpstreamEngine(
        options.openai_base_url,
        api_key=options.openai_api_key.get_secret_value(),
        model_name=options.openai_model,
        limits=UpstreamLimits(
            max_connections=options.max_connections,
            connect_timeout_s=options.connect_timeout_s,
            read_timeout_s=options.request_timeout_s,
        ),
        key_setting=f"{server.name}.{server.type}.{server.implementation}.openai_api_key",
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
