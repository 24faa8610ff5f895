"""One rollout's session at a resources server: seed, tools, verify, close (D140-D143).

The session cookie lives here and nowhere else, so two rollouts cannot share a session and a model server never sees it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from gym_ray import exact_json
from gym_ray.agents.delivery import RolloutCookies, post_once
from gym_ray.agents.failures import AGENT_RUN_ERROR
from gym_ray.errors import AgentError

__all__ = ["UNKNOWN_TOOL", "ResourcesSession", "ToolReply"]

UNKNOWN_TOOL = "unknown_tool"
"""Error type of a call of something that is no tool."""
_RESERVED_ROUTES = frozenset({"seed_session", "close_session", "verify", "aggregate_metrics", "health", "", ".", ".."})
_CLOSE_TIMEOUT_S = 2.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ToolReply:
    """What a tool answered.

    Attributes:
        text: Its answer, whatever its status.
        error_type: None for a success, ``http_<status>`` for any status outside 200 to 399 (D145).
    """

    text: str
    error_type: str | None


class ResourcesSession:
    """A session of one rollout at one resources server.

    Args:
        client: Shared client that keeps no cookies.
        name: Name of the resources server, for messages.
        url: Its URL behind the rollout prefix.
        connect_patience_s: How long to go on trying while no connection can be made.
    """

    def __init__(self, client: httpx.AsyncClient, name: str, url: str, *, connect_patience_s: float = 30.0) -> None:
        self._client, self._name, self._url = client, name, url.rstrip("/")
        self._connect_patience_s = connect_patience_s
        self._cookies = RolloutCookies()

    @property
    def cookies(self) -> dict[str, str]:
        """The cookies that the server set so far."""
        return self._cookies.as_dict()

    async def seed(self, row: Mapping[str, Any]) -> None:
        """Open the session with the row (D140, step 1).

        Raises:
            AgentError: The server could not be reached or refused.
        """
        self._checked("seed_session", await self._post("seed_session", _downstream(row)))

    async def call_tool(self, name: str, arguments: Any) -> str:
        """Call a tool and return the text of its answer, whatever its status (D143).

        Raises:
            AgentError: The server could not be reached, or the exchange broke.
        """
        return (await self.run_tool(name, arguments)).text

    async def run_tool(self, name: str, arguments: Any) -> ToolReply:
        """Call a tool and return its answer, whatever its status (D143).

        A name that is no tool's (the server's own routes) is answered here with an error text.

        Raises:
            AgentError: The server could not be reached, or the exchange broke.
        """
        if name in _RESERVED_ROUTES:
            return ToolReply(exact_json.dumps({"error": f"Unknown tool: {name}"}).decode(), UNKNOWN_TOOL)
        answer = await self._post(quote(name, safe=""), arguments)
        ok = 200 <= answer.status_code < 400
        return ToolReply(answer.text, None if ok else f"http_{answer.status_code}")

    async def verify(self, row: Mapping[str, Any], response: Mapping[str, Any] | None) -> dict[str, Any]:
        """Score a response and return the server's whole reply; an absent reward is null (D140, step 3; D148).

        Raises:
            AgentError: The server could not be reached or refused, or its reply is not an object with a usable reward.
        """
        answer = self._checked("verify", await self._post("verify", {**_downstream(row), "response": response}))
        reply = exact_json.loads_object(answer.content)
        if reply is None:
            raise self._error("verify", "replied with something that is not a JSON object", answer)
        reward = reply.setdefault("reward", None)
        if reward is not None and (
            isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward)
        ):
            raise self._error("verify", f"replied with reward {reward!r}; it must be a finite number or null", answer)
        return reply

    async def close(self) -> None:
        """Tell the server that the session has ended; a server that cannot be told frees it by its own bound."""
        try:
            # Bounded on its own: this runs while an attempt is being cancelled, and must not outlive that.
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._post("close_session", {}, patient=False)
        except (AgentError, TimeoutError) as error:
            _log.debug("session at %s was not closed: %s", self._name, error)

    async def _post(self, route: str, body: Any, *, patient: bool = True) -> httpx.Response:
        try:
            return await post_once(
                self._client,
                f"{self._url}/{route}",
                exact_json.dumps(body),
                cookies=self._cookies,
                connect_patience_s=self._connect_patience_s if patient else 0.0,
            )
        except httpx.TransportError as error:
            what = f"resources server {self._name}: POST /{route}: {type(error).__name__}: {error}"
            raise AgentError(AGENT_RUN_ERROR, what) from error

    def _checked(self, route: str, answer: httpx.Response) -> httpx.Response:
        if not answer.is_success:
            raise self._error(route, f"answered {answer.status_code}: {answer.text[:300]}", answer)
        return answer

    def _error(self, route: str, problem: str, answer: httpx.Response) -> AgentError:
        what = f"resources server {self._name}: POST /{route} {problem}"
        return AgentError(AGENT_RUN_ERROR, what, answer.status_code, answer.text)


def _downstream(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row as seed and verify bodies carry it: without the explicit id (D21)."""
    return {key: value for key, value in row.items() if key != "_ng_rollout_id"}
