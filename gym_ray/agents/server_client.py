"""How an agent server finds the servers of a run and calls them, so that its calls stay with their rollout (A28, A33).

Whether calls are correlated is read by the same parser as everywhere else: a flag that two places read differently
gives calls that nobody captures (W19).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit
from zlib import crc32

import httpx
from pydantic import ValidationError

from gym_ray import exact_json
from gym_ray.agents.delivery import RUN_TOKEN_HEADER, build_client, post_once
from gym_ray.correlation import (
    ROLLOUT_PREFIX,
    current_rollout_id,
    derive_rollout_id,
    restore_prefix_in_location,
    rollout_path_prefix,
    split_rollout_prefix,
)
from gym_ray.dialects import DIALECT_BY_PATH
from gym_ray.errors import RunNotFoundError, SettingsError
from gym_ray.server_directory import ServerDirectory
from gym_ray.settings import CaptureSettings, HttpAgentOptions, ServerType, settings_from_yaml

__all__ = ["RunServers", "ServerClient", "current_run_token"]

_MODELS: ServerType = "responses_api_models"
_RESOURCES: ServerType = "resources_servers"
_AGENTS: ServerType = "responses_api_agents"
_REPEATING_REDIRECTS = frozenset({307, 308})
_MAX_REDIRECTS = 5

current_run_token: ContextVar[str | None] = ContextVar("current_run_token", default=None)
"""Token of the run whose request is being handled, None outside of one."""


@dataclass(frozen=True, slots=True)
class RunServers:
    """What an agent server must know of a run.

    Attributes:
        urls: Root URLs of each server, by type and name; several are replicas of one server.
        observability_enabled: Evaluation capture is on.
        token_capture: Training capture is on for agents that ask for it.
        token_capture_of_all: Training capture is on for every agent.
        trained: Agents for which the run's settings ask for it (B129).
    """

    urls: Mapping[ServerType, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    observability_enabled: bool = False
    token_capture: bool = False
    token_capture_of_all: bool = False
    trained: frozenset[str] = frozenset()

    @classmethod
    def from_config(cls, config: object) -> RunServers:
        """Read a global config: servers with ``host`` and ``port`` or ``base_url``, and the switches (A28).

        What is not a mapping knows no server and turns correlation off. A server without a port is not known.

        Raises:
            SettingsError: A switch is neither true nor false.
        """
        if not isinstance(config, Mapping):
            return cls()
        found: dict[ServerType, dict[str, tuple[str, ...]]] = {_MODELS: {}, _RESOURCES: {}, _AGENTS: {}}
        for name, server in config.items():
            for kind, servers in found.items():
                url = _url_in(server.get(kind)) if isinstance(server, Mapping) else None
                if url is not None:
                    servers[str(name)] = (url,)
        tokens = config.get("token_id_capture")
        tokens = tokens if isinstance(tokens, Mapping) else {}
        enabled = _flag(tokens, "enabled")
        trained = frozenset(str(name) for name, server in config.items() if enabled and _asks_for_tokens(server))
        of_all = enabled and _flag(tokens, "all_agents")
        return cls(found, _flag(config, "observability_enabled"), enabled, of_all, trained)

    @classmethod
    def from_head(cls, url: str, timeout_s: float = 10.0) -> RunServers:
        """Ask the head of running servers (``gym-ray env start``) what runs, and where; blocks.

        Raises:
            RunNotFoundError: Nothing answers there, or what answers is not a head.
        """
        root = url.rstrip("/")
        try:
            with httpx.Client(timeout=timeout_s, trust_env=False) as client:
                document = client.get(f"{root}/servers").raise_for_status().json()
                config = client.get(f"{root}/global_config_dict_yaml").raise_for_status().json()
            directory = ServerDirectory.from_json(document["servers"])
            settings = settings_from_yaml(config, root)
            flag = _flag(document["capture"], "observability_enabled")
        except httpx.ConnectError as error:
            raise RunNotFoundError(f"no servers at {root}: {error}; start them with `gym-ray env start`") from error
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            raise RunNotFoundError(f"{root} answers, but not as a gym-ray head: {error!r}") from error
        urls: dict[ServerType, Mapping[str, tuple[str, ...]]] = {
            _MODELS: {name: tuple(item.url for item in replicas) for name, replicas in directory.models.items()},
            _RESOURCES: {name: tuple(item.url for item in replicas) for name, replicas in directory.resources.items()},
            _AGENTS: {
                name: (server.options.base_url,)
                for name, server in settings.servers_of(_AGENTS).items()
                if isinstance(server.options, HttpAgentOptions)
            },
        }
        block = settings.token_id_capture
        trained = frozenset(name for name in settings.servers if settings.trains(name))
        return cls(urls, flag, block.enabled, block.enabled and block.all_agents, trained)

    def trains(self, agent_name: str, asks: bool) -> bool:
        """Return whether an agent's model calls are for training (A28, B129).

        Args:
            agent_name: Its name in the run's settings.
            asks: Whether its own settings ask for it; those of the run may ask as well.
        """
        return self.token_capture and (self.token_capture_of_all or asks or agent_name in self.trained)

    def type_of(self, name: str) -> ServerType:
        """Return what kind of server has this name.

        Raises:
            KeyError: None has.
        """
        for kind, servers in self.urls.items():
            if name in servers:
                return kind
        known = ", ".join(sorted(name for servers in self.urls.values() for name in servers)) or "none"
        raise KeyError(f"no server is named {name!r}; known: {known}")

    def models(self, rollout_id: str | None) -> dict[str, str]:
        """Return the root URL of each model server; all calls of a rollout meet the same replica."""
        return {name: _choose(urls, rollout_id) for name, urls in self.urls.get(_MODELS, {}).items()}


class ServerClient:
    """Calls the servers of a run by name.

    What is sent while a run is handled carries its rollout id by itself (A33), and the run's token: to model servers as
    the bearer token that they ask for, to agents in the header ``x-gym-ray-run-token``, never in a URL, and to nobody
    else. A redirect that repeats the request is followed on the same server, with its prefix (A17, A18).

    Args:
        servers: The servers of the run.
        run_token: The run's token outside of a handled request, None when the model servers ask for none.
        http: Client to use instead of an own one; it stays the caller's.
        connect_patience_s: How long to go on trying while a server accepts no connection.
    """

    def __init__(
        self,
        servers: RunServers,
        *,
        run_token: str | None = None,
        http: httpx.AsyncClient | None = None,
        connect_patience_s: float = 30.0,
    ) -> None:
        self.servers = servers
        self._run_token = run_token
        self._http, self._owns_http = (build_client(), True) if http is None else (http, False)
        self._connect_patience_s = connect_patience_s

    @property
    def run_token(self) -> str | None:
        """Token of the run that is handled now, else the one given, else None."""
        return current_run_token.get() or self._run_token

    async def post(
        self,
        server_name: str,
        url_path: str,
        *,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
        cookies: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Post a JSON body to a server and return its whole answer, whatever its status; it is delivered at most once.

        Args:
            server_name: Name of the server in the settings.
            url_path: Path, query included; a prefix in it is left as it is.
            json: The body.
            headers: Further headers.
            cookies: Cookies to send.

        Raises:
            KeyError: No server has that name.
            httpx.TransportError: No connection within the time, or the exchange broke after it began.
        """
        kind = self.servers.type_of(server_name)
        rollout_id = current_rollout_id.get()
        root = _choose(self.servers.urls[kind][server_name], rollout_id).rstrip("/")
        sent = {**self._token_headers(kind), **(headers or {})}
        if cookies:
            sent["cookie"] = "; ".join(f"{name}={value}" for name, value in cookies.items())
        url, body = root + self._prefixed(kind, url_path, json), exact_json.dumps(json)
        for _ in range(_MAX_REDIRECTS):
            answer = await post_once(self._http, url, body, headers=sent, connect_patience_s=self._connect_patience_s)
            target = _redirected(url, answer)
            if target is None:
                break
            url = target
        return answer

    async def aclose(self) -> None:
        """Close the connections, if they are our own."""
        if self._owns_http:
            await self._http.aclose()

    def _token_headers(self, kind: ServerType) -> dict[str, str]:
        token = self.run_token
        if token is None or kind == _RESOURCES:
            return {}
        return {"authorization": f"Bearer {token}"} if kind == _MODELS else {RUN_TOKEN_HEADER: token}

    def _prefixed(self, kind: ServerType, url_path: str, body: Any) -> str:
        if not self.servers.observability_enabled or url_path.startswith(f"{ROLLOUT_PREFIX}/"):
            return url_path
        path, rollout_id = url_path.partition("?")[0], current_rollout_id.get()
        if kind == _RESOURCES and rollout_id is None and path == "/verify":
            rollout_id = derive_rollout_id(body)
        if kind == _AGENTS or (kind == _MODELS and path not in DIALECT_BY_PATH):
            return url_path
        return rollout_path_prefix(rollout_id) + url_path


def _choose(urls: tuple[str, ...], rollout_id: str | None) -> str:
    return urls[crc32((rollout_id or "").encode("utf-8", "surrogatepass")) % len(urls)]


def _redirected(url: str, answer: httpx.Response) -> str | None:
    """Return where a request must be repeated, None when this answer is the last; another server gets no token."""
    location = answer.headers.get("location")
    if answer.status_code not in _REPEATING_REDIRECTS or not location:
        return None
    asked = urlsplit(url)
    split = split_rollout_prefix(unquote(asked.path))
    if split is not None:
        location = restore_prefix_in_location(location, answer.status_code, asked.netloc, split.prefix)
    target = urljoin(url, location)
    return target if urlsplit(target)[:2] == asked[:2] else None


def _url_in(implementations: object) -> str | None:
    if not isinstance(implementations, Mapping) or len(implementations) != 1:
        return None
    (options,) = implementations.values()
    if not isinstance(options, Mapping):
        return None
    if options.get("base_url"):
        return str(options["base_url"])
    return f"http://{options.get('host') or '127.0.0.1'}:{options['port']}" if options.get("port") else None


def _asks_for_tokens(server: object) -> bool:
    """Whether an entry of a global config is an agent that takes part in training capture (B129)."""
    agents = server.get(_AGENTS) if isinstance(server, Mapping) else None
    options = agents.values() if isinstance(agents, Mapping) else ()
    return any(isinstance(option, Mapping) and option.get("token_id_capture") is True for option in options)


def _flag(config: Mapping[str, Any], key: str) -> bool:
    """Read a switch as the run's settings read ``observability_enabled``; null and absence are off (W19, A129)."""
    value = config.get(key)
    if value is None:
        return False
    try:
        # The directory only satisfies the other rule of that model: agents need none.
        read = CaptureSettings.model_validate({"observability_enabled": value, "model_call_capture_dir": "/"})
    except ValidationError:
        raise SettingsError("global config", key, f"{value!r} is not accepted", "write true or false") from None
    return read.observability_enabled
