"""The settings of a run: YAML files, ``env.yaml`` and command-line overrides, merged, checked, frozen (A §17, D §16).

Every mistake is one line with its file, its key, what is wrong and what would be right. Nothing here reads the
process's environment, and no secret gets into a message.
"""

from __future__ import annotations

from gym_ray.settings.agent_options import (
    AgentOptions,
    CallableAgentOptions,
    CommandAgentOptions,
    HttpAgentOptions,
    SimpleAgentOptions,
)
from gym_ray.settings.assets import ASSETS_ROOT, find_asset, server_config_paths
from gym_ray.settings.capture_redaction import CaptureRedaction
from gym_ray.settings.loading import load_settings, settings_from_yaml
from gym_ray.settings.model_options import (
    AnthropicModelOptions,
    CompactingVllmModelOptions,
    LocalModelOptions,
    ModelOptions,
    OpenAIModelOptions,
    UpstreamOptions,
    VllmModelOptions,
)
from gym_ray.settings.own_secrets import own_secrets
from gym_ray.settings.run import CaptureSettings, HeadServer, RunSettings
from gym_ray.settings.server_options import (
    HostedOptions,
    ModelServerRef,
    ResourcesServerRef,
    ServerOptions,
    ServerRef,
    ServerType,
)
from gym_ray.settings.servers import McqaOptions, OrderDeskOptions, ServerSettings
from gym_ray.settings.token_capture import NonGeneratingRequest, StagingSettings, TokenIdCaptureConfig

__all__ = [
    "ASSETS_ROOT",
    "AgentOptions",
    "AnthropicModelOptions",
    "CallableAgentOptions",
    "CaptureRedaction",
    "CaptureSettings",
    "CommandAgentOptions",
    "CompactingVllmModelOptions",
    "HeadServer",
    "HostedOptions",
    "HttpAgentOptions",
    "LocalModelOptions",
    "McqaOptions",
    "ModelOptions",
    "ModelServerRef",
    "NonGeneratingRequest",
    "OpenAIModelOptions",
    "OrderDeskOptions",
    "ResourcesServerRef",
    "RunSettings",
    "ServerOptions",
    "ServerRef",
    "ServerSettings",
    "ServerType",
    "SimpleAgentOptions",
    "StagingSettings",
    "TokenIdCaptureConfig",
    "UpstreamOptions",
    "VllmModelOptions",
    "find_asset",
    "load_settings",
    "own_secrets",
    "server_config_paths",
    "settings_from_yaml",
]
