"""Runs one attempt at a time of any configured agent, and turns every outcome into a result.

An agent is somebody else's code: it may raise anything, call ``sys.exit``, hang, or ignore being cancelled. None of
that may end the process, hold the caller beyond its time, or pass as success.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any

import httpx

from gym_ray import exact_json
from gym_ray.agents.base import Agent
from gym_ray.agents.build import build_agents
from gym_ray.agents.context import NO_API_KEY, RunContext, ServerUrls
from gym_ray.agents.delivery import build_client
from gym_ray.agents.failures import AGENT_RUN_ERROR, failure_from
from gym_ray.agents.hiding import hide
from gym_ray.correlation import current_rollout_id
from gym_ray.errors import AgentError, AgentTimeoutError
from gym_ray.evidence.run_result import RunResult
from gym_ray.settings import RunSettings

__all__ = ["AgentRunner", "ServerUrls"]

_CANCEL_GRACE_S = 5.0
_log = logging.getLogger(__name__)


class AgentRunner:
    """Owns the configured agents and the HTTP client they share.

    Args:
        settings: The run's settings; every agent in them is built here, once.
        urls: Root URLs of the servers, as this node should use them.
        run_token: Token the model servers ask for, None when they ask for none.
        http: Client to use instead of an own one; it stays the caller's.
        connect_patience_s: How long an attempt goes on trying while a server accepts no connection.
        cancel_grace_s: How long an agent may take to stop once cancelled; then it is left behind.

    Raises:
        SettingsError: An agent's settings name a server, file or function that is not there.
    """

    def __init__(
        self,
        settings: RunSettings,
        urls: ServerUrls,
        *,
        run_token: str | None,
        http: httpx.AsyncClient | None = None,
        connect_patience_s: float = 30.0,
        cancel_grace_s: float = _CANCEL_GRACE_S,
    ) -> None:
        self._agents: dict[str, Agent] = build_agents(settings, urls)
        self._urls, self._run_token = urls, run_token
        self._trained = frozenset(name for name in self._agents if settings.trains(name))
        self._observability_enabled = settings.observability_enabled
        self._http, self._owns_http = (build_client(), True) if http is None else (http, False)
        self._connect_patience_s, self._cancel_grace_s = connect_patience_s, cancel_grace_s
        self._left_behind: set[asyncio.Task[Any]] = set()

    @property
    def agent_names(self) -> list[str]:
        """Names of the agents that can run rows, sorted."""
        return sorted(self._agents)

    async def run(
        self,
        row: bytes,
        rollout_id: str,
        agent_name: str,
        timeout_s: float | None,
        urls: ServerUrls | None = None,
    ) -> RunResult:
        """Run one attempt and return how it ended.

        Args:
            row: The row, a JSON object as bytes.
            rollout_id: Id of the attempt (D20).
            agent_name: Agent to run it.
            timeout_s: Time for the whole attempt, None for no bound.
            urls: Root URLs of the servers for this attempt; None for those of the runner. A server that is not among
                them is where the runner knows it.

        Raises:
            asyncio.CancelledError: The caller was cancelled; the agent was cancelled with it. Nothing else is raised.
        """
        started = time.monotonic()
        reply: bytes | None = None
        failure = None
        try:
            attempt = self._attempt(
                row, rollout_id, agent_name, self._urls if urls is None else self._urls.with_newer(urls)
            )
            reply = hide(await self._within(attempt, rollout_id, agent_name, timeout_s), [self._run_token])
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - the boundary to foreign code; all of it is recorded
            failure = failure_from(error, [self._run_token])
        return RunResult(reply, failure, (time.monotonic() - started) * 1000.0)

    async def aclose(self) -> None:
        """Cancel what was left behind, close every agent and, if it is our own, the client."""
        for task in self._left_behind:
            task.cancel()
        if self._left_behind:
            await asyncio.wait(self._left_behind, timeout=self._cancel_grace_s)
        for agent in self._agents.values():
            await agent.aclose()
        if self._owns_http:
            await self._http.aclose()

    async def _attempt(self, row: bytes, rollout_id: str, agent_name: str, urls: ServerUrls) -> bytes:
        agent = self._agents.get(agent_name)
        if agent is None:
            known = ", ".join(self.agent_names) or "none"
            raise AgentError(AGENT_RUN_ERROR, f"no agent is named {agent_name!r}; known: {known}")
        parsed = exact_json.loads_object(row)
        if parsed is None:
            raise AgentError(AGENT_RUN_ERROR, "the row is not a JSON object")
        current_rollout_id.set(rollout_id)
        api_key = self._run_token or NO_API_KEY
        ctx = RunContext(
            rollout_id,
            self._http,
            api_key,
            urls,
            self._connect_patience_s,
            token_capture=agent_name in self._trained,
            observability_enabled=self._observability_enabled,
        )
        return exact_json.dumps(await agent.run(parsed, ctx))

    async def _within(
        self, attempt: Coroutine[Any, Any, bytes], rollout_id: str, agent_name: str, timeout_s: float | None
    ) -> bytes:
        """Await the attempt in a task of its own, so that neither a hang nor ``sys.exit`` reaches the event loop."""
        task: asyncio.Task[bytes | BaseException] = asyncio.create_task(_contained(attempt), name=f"agent {rollout_id}")
        agent = self._agents.get(agent_name)
        grace_s = self._cancel_grace_s + (agent.stop_s if agent is not None else 0.0)
        try:
            done, _ = await asyncio.wait({task}, timeout=timeout_s)
        except asyncio.CancelledError:
            await self._stop(task, rollout_id, grace_s)
            raise
        if not done:
            stopped = await self._stop(task, rollout_id, grace_s)
            note = "" if stopped else "; it did not stop when cancelled and was left behind"
            raise AgentTimeoutError(f"the agent did not end within {timeout_s:g} s{note}")
        if task.cancelled():
            raise AgentError(AGENT_RUN_ERROR, "the agent cancelled itself")
        outcome = task.result()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def _stop(self, task: asyncio.Task[Any], rollout_id: str, grace_s: float) -> bool:
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=grace_s)
        if done:
            return True
        _log.warning("the agent of rollout %s ignores being cancelled", rollout_id)
        self._left_behind.add(task)
        task.add_done_callback(self._left_behind.discard)
        return False


async def _contained(attempt: Any) -> bytes | BaseException:
    """Return what the attempt raised instead of raising it.

    A ``SystemExit`` or ``KeyboardInterrupt`` that leaves a task stops the event loop, and every other attempt with it.
    """
    try:
        result: bytes = await attempt
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - handed to the awaiting side, which records it
        return error
    return result
