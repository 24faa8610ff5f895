"""What every agent is to the runner."""

from __future__ import annotations

from typing import Any, Protocol

from gym_ray.agents.context import RunContext

__all__ = ["Agent"]


class Agent(Protocol):
    """Runs rows, many at once. Nothing of one rollout may be kept on the agent itself."""

    @property
    def stop_s(self) -> float:
        """What ending a cancelled run may take beyond what every agent gets; 0 for most."""
        ...

    async def run(self, row: dict[str, Any], ctx: RunContext) -> dict[str, Any]:
        """Run one attempt and return its reply, which the caller owns.

        Raises:
            AgentError: The attempt failed; the class says at which boundary (D35).
        """
        ...

    async def aclose(self) -> None:
        """Free what the agent holds; safe to call twice."""
        ...
