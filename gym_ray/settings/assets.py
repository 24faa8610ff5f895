"""Finds configuration files by name (D125).

``--resources-server mcqa`` is ``resources_servers/mcqa/configs/mcqa.yaml`` under the first root that has it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gym_ray.errors import SettingsError
from gym_ray.settings.problems import did_you_mean

__all__ = ["ASSETS_ROOT", "find_asset", "server_config_paths"]

ASSETS_ROOT = Path(__file__).resolve().parent.parent / "assets"
"""The configuration files that ship with the package."""

_FLAGS = {
    "resources_servers": "--resources-server",
    "responses_api_models": "--model-type",
    "responses_api_agents": "--agent-type",
}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)?")


def find_asset(kind: str, name: str, *, extra_roots: Sequence[Path] = ()) -> Path:
    """Return the configuration file of a named server.

    Args:
        kind: ``resources_servers``, ``responses_api_models`` or ``responses_api_agents``.
        name: ``mcqa``, or ``mcqa/strict`` for another file beside it.
        extra_roots: Directories to search before the working directory and the files that ship.

    Raises:
        SettingsError: There is no such file; the message names the nearest known name.
    """
    roots = [*extra_roots, Path(), ASSETS_ROOT]
    if _NAME.fullmatch(name):
        server, _, flavour = name.partition("/")
        file_name = f"{flavour or server}.yaml"
        for root in roots:
            for directory in (root / kind / server / "configs", root / kind / server):
                if (directory / file_name).is_file():
                    return directory / file_name
    hint = did_you_mean(name, _known(kind, roots)) or "pass a file with --config"
    raise SettingsError("command line", _FLAGS.get(kind, kind), f"there is no {name!r}", hint)


def _known(kind: str, roots: Sequence[Path]) -> list[str]:
    names = []
    for root in roots:
        for path in sorted((root / kind).glob("*/*.yaml")) + sorted((root / kind).glob("*/configs/*.yaml")):
            server = path.relative_to(root / kind).parts[0]
            names.append(server if path.stem == server else f"{server}/{path.stem}")
    return names


def server_config_paths(
    *,
    resources_servers: Sequence[str] = (),
    model_type: str | None = None,
    configs: Sequence[str | Path] = (),
    extra_roots: Sequence[Path] = (),
) -> list[Path]:
    """Return the files that the command line's flags name, in the order in which they are merged (D124, D125).

    Args:
        resources_servers: Values of ``--resources-server``.
        model_type: Value of ``--model-type``.
        configs: Values of ``--config``; whether they exist is checked when they are read.
        extra_roots: Directories to search first.

    Raises:
        SettingsError: A name is not known.
    """
    paths = [Path(config) for config in configs]
    paths += [find_asset("resources_servers", name, extra_roots=extra_roots) for name in resources_servers]
    if model_type is not None:
        paths.append(find_asset("responses_api_models", model_type, extra_roots=extra_roots))
    return paths
