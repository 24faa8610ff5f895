"""How the settings of a run say which rows it takes and who runs them (D7 to D17)."""

from __future__ import annotations

from pathlib import Path

from gym_ray.rollouts.prompts import read_prompt_config
from gym_ray.rollouts.rows import RowOptions
from gym_ray.rollouts.skills import describe_skills
from gym_ray.settings import RunSettings

__all__ = ["row_options"]


def row_options(settings: RunSettings) -> RowOptions:
    """Return how the input becomes rows; files that the settings name are read.

    Raises:
        SettingsError: The prompt's file or the directory of skills cannot be used.
    """
    skills = settings.skills_ref
    return RowOptions(
        agent_name=settings.agent_name,
        agent_map=settings.agent_map,
        fan_out=settings.fan_out,
        num_repeats=settings.num_repeats,
        num_repeats_add_seed=settings.num_repeats_add_seed,
        interleave_repeats=settings.interleave_repeats,
        limit=settings.limit,
        responses_create_params=settings.responses_create_params,
        prompt=None if settings.prompt_config is None else read_prompt_config(settings.prompt_config),
        skills_ref=describe_skills(skills) if isinstance(skills, Path) else skills,
        unique_rollout_ids=settings.unique_rollout_ids,
        agents=sorted(settings.servers_of("responses_api_agents")),
        task_sources=_task_sources(settings),
    )


def _task_sources(settings: RunSettings) -> dict[str, str]:
    """Map what may declare data to the agent that runs it: an agent to itself, a scorer to its only agent (D16)."""
    agents = settings.servers_of("responses_api_agents")
    users: dict[str, list[str]] = {}
    for name, agent in agents.items():
        for reference in agent.options.references().values():
            if reference.type == "resources_servers":
                users.setdefault(reference.name, []).append(name)
    only = {source: names[0] for source, names in users.items() if len(names) == 1}
    return {**only, **{name: name for name in agents}}
