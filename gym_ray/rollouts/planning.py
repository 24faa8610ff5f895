"""What a run is told, taken from its settings: its rows and who runs them (D7 to D17), its limits, its evidence."""

from __future__ import annotations

from pathlib import Path

from gym_ray.evidence.build import JoinOptions
from gym_ray.rollouts.collection_settings import CollectionSettings
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.rows.prompts import read_prompt_config
from gym_ray.rollouts.rows.skills import describe_skills
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.rollouts.session import RunPlan
from gym_ray.rollouts.tokens.token_delivery import TokenPlan
from gym_ray.settings import RunSettings

__all__ = ["row_options", "run_plan"]


def run_plan(
    settings: RunSettings, paths: RunPaths, source: Path, *, ignored_checks: frozenset[str] = frozenset()
) -> RunPlan:
    """Return the run that the settings ask for.

    Args:
        settings: The settings.
        paths: Where the run writes.
        source: The input file.
        ignored_checks: Ids of checks of health that do not count.

    Raises:
        SettingsError: The prompt's file or the directory of skills cannot be used.
    """
    return RunPlan(
        paths=paths,
        source=source.absolute(),
        options=row_options(settings),
        settings=_limits_of(settings),
        captures=settings.capture_location,
        tokens=TokenPlan.of(settings),
        join=JoinOptions(
            derive_turns=settings.derive_turns, compact=settings.compact_evidence, ignored_checks=ignored_checks
        ),
        resume=settings.resume_from_cache,
        salvage=settings.salvage,
        retry_invalid_judge_responses=settings.retry_invalid_judge_responses,
        dispatch_longest_first=settings.dispatch_longest_first,
    )


def _limits_of(settings: RunSettings) -> CollectionSettings:
    """Return how the settings want a run driven."""
    return CollectionSettings(
        num_samples_in_parallel=settings.num_samples_in_parallel,
        max_resident_rollout_tasks=settings.max_resident_rollout_tasks,
        run_timeout_s=settings.run_timeout_s,
        dispatch_budget_s=settings.dispatch_budget_s,
        drain_margin_s=settings.drain_margin_s,
        max_attempts=settings.max_rollout_attempts,
        retry_terminal_timeouts=settings.retry_terminal_timeouts,
    )


def row_options(settings: RunSettings) -> RowOptions:
    """Return how the input becomes rows; files that the settings name are read.

    Raises:
        SettingsError: The prompt's file or the directory of skills cannot be used.
    """
    skills, candidates = settings.skills_ref, _candidates(settings)
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
        task_sources={source: names[0] for source, names in candidates.items() if len(names) == 1},
        undecided_sources={source: names for source, names in candidates.items() if len(names) > 1},
    )


def _candidates(settings: RunSettings) -> dict[str, list[str]]:
    """Return, by what may declare data, the agents that may run it (D16).

    An agent runs its own data. A scorer's goes to the agent that its datasets name, else to one that is scored there.
    """
    agents = settings.servers_of("responses_api_agents")
    users: dict[str, list[str]] = {}
    for name, agent in agents.items():
        for reference in agent.options.references().values():
            if reference.type == "resources_servers":
                users.setdefault(reference.name, []).append(name)
    found: dict[str, list[str]] = {}
    for name, server in settings.servers.items():
        named = [str(dataset["agent"]) for dataset in server.options.datasets if dataset.get("agent")]
        found[name] = [name] if name in agents else list(dict.fromkeys(named)) or users.get(name, [])
    return found
