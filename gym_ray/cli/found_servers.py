"""Servers that another terminal runs, as a collection finds them (D60, D130)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gym_ray.cli.capture_settings import capture_differences, capture_settings
from gym_ray.cli.head import read_head, read_token
from gym_ray.cli.runtime import user_cache_dir
from gym_ray.errors import RunNotFoundError
from gym_ray.server_directory import ServerDirectory
from gym_ray.settings import RunSettings, settings_from_yaml
from gym_ray.settings.problems import combine

__all__ = ["FoundServers", "Head"]


@dataclass(frozen=True, slots=True)
class Head:
    """Where the servers of a run are, and the token that they ask for."""

    directory: ServerDirectory
    run_token: str


@dataclass(frozen=True, slots=True)
class FoundServers:
    """What the head server of a running run says.

    Attributes:
        where: Its address.
        settings: Settings of that run, secrets left out.
        head: Its servers.
        capture: Its capture settings.
    """

    where: str
    settings: RunSettings
    head: Head
    capture: Mapping[str, Any]

    @classmethod
    def at(cls, settings: RunSettings) -> FoundServers:
        """Ask the head server that ``settings`` name.

        Raises:
            RunNotFoundError: None answers there, or its run has no servers.
        """
        host, port = settings.head_server.host, settings.head_server.port
        document, directory, capture = read_head(host, port)
        theirs = settings_from_yaml(document, f"http://{host}:{port}")
        if not directory.models and not directory.resources:
            raise RunNotFoundError(f"http://{host}:{port}: its run has no servers")
        return cls(f"{host}:{port}", theirs, Head(directory, read_token(user_cache_dir(), host, port)), capture)

    def joined(self, settings: RunSettings) -> tuple[RunSettings, Head]:
        """Take servers and agents from there; the capture settings of both sides must agree.

        Raises:
            SettingsError: They do not; one line for each difference.
        """
        differences = capture_differences(capture_settings(settings), self.capture, self.where)
        if differences:
            raise combine(differences)
        return settings.with_servers({**self.settings.servers, **settings.servers}), self.head
