"""The agent that comes with the package: seed the session, talk with the model and its tools, verify (D140-D145)."""

from __future__ import annotations

from typing import Any

from gym_ray.agents.context import RunContext
from gym_ray.agents.failures import AGENT_RUN_ERROR
from gym_ray.agents.loop_log import producer_trajectory, resolve
from gym_ray.agents.responses_loop import ResponsesLoop
from gym_ray.errors import AgentError
from gym_ray.evidence.trajectory import TRAJECTORY_FIELD, task_id_of

__all__ = ["SimpleAgent"]


class SimpleAgent:
    """Runs a row as a Responses conversation and lets a resources server score it.

    Args:
        model_server: Name of the model server.
        resources_server: Name of the resources server.
        max_steps: Stop after the tools of this many model calls; None means no bound but the attempt's time.
        skip_verification: Do not verify; the reply carries ``skipped_reward`` and ``verification_skipped``.
        skipped_reward: Reward to report then; None means unmeasured.
    """

    def __init__(
        self,
        model_server: str,
        resources_server: str,
        *,
        max_steps: int | None = None,
        skip_verification: bool = False,
        skipped_reward: float | None = None,
    ) -> None:
        self._model_server, self._resources_server = model_server, resources_server
        self._max_steps = max_steps
        self._skip_verification, self._skipped_reward = skip_verification, skipped_reward

    @property
    def stop_s(self) -> float:
        """Nothing but what every agent gets."""
        return 0.0

    async def run(self, row: dict[str, Any], ctx: RunContext) -> dict[str, Any]:
        """Run one attempt; the reply is the verifier's whole reply (D140).

        Where model calls are captured it carries ``ng_trajectory``, the agent's own account of the run (D145).

        Raises:
            AgentError: A model call, a tool call or a step at the resources server failed.
        """
        params = row.get("responses_create_params")
        if not isinstance(params, dict):
            raise AgentError(AGENT_RUN_ERROR, "responses_create_params: the row needs this object")
        session = ctx.open_session(self._resources_server)
        await session.seed(row)
        try:
            loop = ResponsesLoop(ctx, self._model_server, session, self._max_steps)
            response = await loop.run(params)
            if self._skip_verification:
                skipped = {"reward": self._skipped_reward, "verification_skipped": True}
                reply = {**row, "response": response, **skipped}
            else:
                reply = await session.verify(row, response)
        finally:
            await session.close()
        if ctx.observability_enabled:
            trajectory = producer_trajectory(loop.log, self._model_server, task_id_of(row), ctx.rollout_id)
            resolve(trajectory, reply)
            reply = {**reply, TRAJECTORY_FIELD: trajectory}
        return reply

    async def aclose(self) -> None:
        """Hold nothing, free nothing."""
