"""How the input becomes the rows of a run: what a run is told about its rows (D7 to D17)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gym_ray.rollouts.rows.prompts import PromptTemplate

__all__ = ["RowOptions"]


@dataclass(frozen=True, slots=True)
class RowOptions:
    """How the input becomes the rows of a run.

    Attributes:
        agent_name: Agent for every row that ``agent_map`` does not name (D13); overrides the data.
        agent_map: Agent by the row's own agent name or task source, ``_default`` for the rest.
        fan_out: Agents by agent name: the row is copied once for each (D14).
        num_repeats: Rollouts of each row, or a map by agent name with optional ``_default`` (D9).
        num_repeats_add_seed: Give each repeat its index as ``seed`` in ``metadata.extra_body`` (D12).
        interleave_repeats: Order ``abcabc`` instead of ``aabbcc`` (D11).
        limit: Number of lines to take, None or 0 for all (D7); blank lines do not count.
        responses_create_params: Values that replace top-level keys of every row's body (D12).
        prompt: Builds the input of every row; rows with an input of their own are refused (D12).
        skills_ref: Put on every row, over what it says itself (D12).
        unique_rollout_ids: Put twelve digits of the run in front of the id of each row that brings none.
        agents: Names of the agents that run; None leaves routes unchecked.
        task_sources: Agent by name of the config instance that declared the data (D16).
        undecided_sources: Such instances that several agents could run, with these agents.
    """

    agent_name: str | None = None
    agent_map: Mapping[str, str] = field(default_factory=dict)
    fan_out: Mapping[str, Sequence[str]] = field(default_factory=dict)
    num_repeats: int | Mapping[str, int] | None = None
    num_repeats_add_seed: bool = False
    interleave_repeats: bool = False
    limit: int | None = None
    responses_create_params: Mapping[str, Any] = field(default_factory=dict)
    prompt: PromptTemplate | None = None
    skills_ref: Mapping[str, Any] | None = None
    unique_rollout_ids: bool = False
    agents: Collection[str] | None = None
    task_sources: Mapping[str, str] = field(default_factory=dict)
    undecided_sources: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        default = self.agent_map.get("_default")
        if self.agent_name is not None and default not in (None, self.agent_name):
            raise ValueError(f"agent_name {self.agent_name!r} and agent_map._default {default!r} disagree; give one")
        for name, copies in self.fan_out.items():
            if not copies or len(set(copies)) != len(copies):
                raise ValueError(f"fan_out.{name}: {list(copies)!r}; list at least one agent, each once")
        if self.limit is not None and self.limit < 0:
            raise ValueError(f"limit: {self.limit}; give a number of rows, or 0 for all")
        counts = self.num_repeats if isinstance(self.num_repeats, Mapping) else {"": self.num_repeats}
        for name, count in counts.items():
            if count is not None and (isinstance(count, bool) or count < 1):
                raise ValueError(f"num_repeats{'.' * bool(name)}{name}: {count!r}; give a whole number of at least 1")

    def repeats(self, agent: str | None, routed: str | None) -> int | None:
        """Return how often a row runs; None when a map of repeats names neither its agent nor its route (D9)."""
        if not isinstance(self.num_repeats, Mapping):
            return self.num_repeats or 1
        for name in (agent, routed, "_default"):
            if name is not None and name in self.num_repeats:
                return self.num_repeats[name]
        return None
