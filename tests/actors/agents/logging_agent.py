"""An agent that says something in its own thread, through a logger of its own."""

from __future__ import annotations

import logging
from typing import Any

from gym_ray.agents import RunContext

log = logging.getLogger("an_agent")


def agent(row: dict[str, Any], ctx: RunContext) -> str:
    log.warning("%s says hello", ctx.rollout_id)
    if row["fails"]:
        raise RuntimeError(row["fails"])
    return "hello"
