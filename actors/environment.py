"""Host a resources server: what gives a rollout its tools and scores it."""

from __future__ import annotations

from starlette.types import ASGIApp

from gym_ray.actors.http_host import HttpHost
from gym_ray.environments import build_environment, build_environment_app
from gym_ray.settings import ServerSettings

__all__ = ["EnvironmentHost"]


class EnvironmentHost(HttpHost):
    """One resources server. Sessions live in its memory: rollouts that a lost process served fail and say so."""

    def __init__(self, server: ServerSettings, host: str, port: int) -> None:
        self._settings = server
        super().__init__(server.name, host, port)

    async def _open(self) -> ASGIApp:
        return build_environment_app(build_environment(self._settings), self._settings.name)
