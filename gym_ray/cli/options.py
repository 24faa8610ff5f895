"""Options that several commands share, and how they become one settings object."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from gym_ray.settings import RunSettings, ServerSettings, load_settings, server_config_paths

__all__ = ["Config", "ModelType", "ResourcesServer", "Verbose", "read_settings"]

Config = Annotated[
    list[Path] | None, typer.Option("--config", "-c", help="Settings file (YAML); later files win. Repeatable.")
]
ResourcesServer = Annotated[
    list[str] | None, typer.Option("--resources-server", help="A resources server that ships with its agent.")
]
ModelType = Annotated[
    str | None,
    typer.Option(
        "--model-type", help="openai_model, vllm_model, vllm_model_with_compaction, anthropic_model, local_model."
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show what the actors log.")]


def read_settings(
    configs: Sequence[Path] | None,
    resources_servers: Sequence[str] | None,
    model_type: str | None,
    overrides: Sequence[str],
    elsewhere: Callable[[RunSettings], Mapping[str, ServerSettings]] | None = None,
) -> RunSettings:
    """Merge the named files, ``env.yaml`` of the working directory and the overrides (D127).

    ``elsewhere`` returns the servers that run already, which the settings may refer to.

    Raises:
        SettingsError: Something is wrong; one line names file, key, fault and remedy.
    """
    paths = server_config_paths(
        resources_servers=list(resources_servers or []), model_type=model_type, configs=list(configs or [])
    )
    env_file = Path("env.yaml")
    return load_settings(
        paths,
        list(overrides),
        env_file=env_file if env_file.exists() else None,
        environ=dict(os.environ),
        elsewhere=elsewhere,
    )
