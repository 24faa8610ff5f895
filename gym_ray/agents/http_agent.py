"""An agent behind HTTP: one ``POST <url>/run`` an attempt, never sent twice (D29, D30, D33, D35)."""

from __future__ import annotations

from typing import Any

import httpx

from gym_ray import exact_json
from gym_ray.agents.context import NO_API_KEY, RunContext
from gym_ray.agents.delivery import RUN_TOKEN_HEADER
from gym_ray.agents.failures import AGENT_REQUEST_FAILED, AGENT_RUN_ERROR, TRANSIENT_STATUSES
from gym_ray.errors import AgentError

__all__ = ["HttpAgent"]


class HttpAgent:
    """Runs rows by posting them to an agent server.

    Args:
        name: Name of the agent, for messages.
        url: Root URL of the agent server.
    """

    def __init__(self, name: str, url: str) -> None:
        self._name, self._url = name, url.rstrip("/") + "/run"

    @property
    def stop_s(self) -> float:
        """Nothing but what every agent gets."""
        return 0.0

    async def run(self, row: dict[str, Any], ctx: RunContext) -> dict[str, Any]:
        """Post the row and return the reply.

        ``Idempotency-Key`` holds the rollout id, so a duplicate can be refused. ``x-gym-ray-run-token`` holds the run's
        token, which is the API key of the model servers; it is absent when they ask for none.

        Raises:
            AgentError: ``agent_request_failed`` when the rollout may never have run (no status, or 429, 502, 503,
                504); ``agent_run_error`` for every other status and for a reply that is not a whole JSON object.
        """
        headers = {"content-type": "application/json", "idempotency-key": ctx.rollout_id}
        if ctx.api_key != NO_API_KEY:
            headers[RUN_TOKEN_HEADER] = ctx.api_key
        what = f"agent {self._name}: POST {self._url}"
        status: int | None = None
        try:
            async with ctx.http.stream("POST", self._url, content=exact_json.dumps(row), headers=headers) as answer:
                status = answer.status_code
                body = await answer.aread()
        except (httpx.TransportError, httpx.DecodingError) as error:
            failure_class = AGENT_REQUEST_FAILED if status is None else _class_of(status)
            raise AgentError(failure_class, f"{what}: {type(error).__name__}: {error}", status) from error
        text = body.decode("utf-8", "replace")
        if not answer.is_success:
            raise AgentError(_class_of(status), f"{what} answered {status}: {text[:300]}", status, text)
        reply = exact_json.loads_object(body)
        if reply is None:
            problem = f"{what} answered {status} with something that is not a JSON object"
            raise AgentError(AGENT_RUN_ERROR, problem, status, text)
        return reply

    async def aclose(self) -> None:
        """Hold nothing, free nothing; the client belongs to the runner."""


def _class_of(status: int) -> str:
    return AGENT_REQUEST_FAILED if status in TRANSIENT_STATUSES else AGENT_RUN_ERROR
