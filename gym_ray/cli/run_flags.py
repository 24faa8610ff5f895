"""The flags of ``eval run``: each becomes one override in front of the user's own, so that both say the same (D124)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gym_ray.rollouts.row_states.retry_rules import max_attempts_of
from gym_ray.settings import RunSettings
from gym_ray.submission.tokens import literal, quoted

__all__ = [
    "Compact",
    "DisableAggregation",
    "HealthCheckIgnore",
    "HealthCheckWorkers",
    "InterleaveRepeats",
    "MaxOutputTokens",
    "Model",
    "ModelApiKey",
    "ModelUrl",
    "NoHealthCheck",
    "PromptConfig",
    "RequireComplete",
    "Resume",
    "Salvage",
    "Temperature",
    "TopP",
    "flag_tokens",
    "run_remarks",
    "with_attempt_budget",
]

Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run that wrote this output.")]
Salvage = Annotated[bool, typer.Option("--salvage", help="With --resume: move damaged lines aside and go on.")]
InterleaveRepeats = Annotated[
    bool, typer.Option("--interleave-repeats", help="Run the first repeat of every row before any second one.")
]
PromptConfig = Annotated[str | None, typer.Option("--prompt-config", help="YAML file that builds each row's input.")]
Temperature = Annotated[float | None, typer.Option("--temperature", help="For every model call.")]
TopP = Annotated[float | None, typer.Option("--top-p", help="For every model call.")]
MaxOutputTokens = Annotated[int | None, typer.Option("--max-output-tokens", help="For every model call.")]
Model = Annotated[str | None, typer.Option("--model", "-m", help="Name of the policy model.")]
ModelUrl = Annotated[str | None, typer.Option("--model-url", help="Base URL of the policy model.")]
ModelApiKey = Annotated[str | None, typer.Option("--model-api-key", help="Key of the policy model.")]
DisableAggregation = Annotated[bool, typer.Option("--disable-aggregation", help="Write no metrics.")]
NoHealthCheck = Annotated[bool, typer.Option("--no-health-check", help="Do not judge the records.")]
HealthCheckWorkers = Annotated[
    int | None,
    typer.Option("--health-check-workers", help="Processes that judge records; one for each processor up to 8."),
]
HealthCheckIgnore = Annotated[
    str | None, typer.Option("--health-check-ignore", help="Checks that do not run, separated by commas.")
]
Compact = Annotated[bool, typer.Option("--compact", help="Store each distinct payload of a rollout once.")]
RequireComplete = Annotated[
    bool, typer.Option("--require-complete", help="End with an error unless every row has a result.")
]

_KEYS: Final[Mapping[str, str]] = {
    "verbose": "verbose",
    "agent": "agent_name",
    "input_path": "input_jsonl_fpath",
    "output_path": "output_jsonl_fpath",
    "limit": "limit",
    "num_repeats": "num_repeats",
    "concurrency": "num_samples_in_parallel",
    "resume": "resume_from_cache",
    "salvage": "salvage",
    "interleave_repeats": "interleave_repeats",
    "prompt_config": "prompt_config",
    "temperature": "responses_create_params.temperature",
    "top_p": "responses_create_params.top_p",
    "max_output_tokens": "responses_create_params.max_output_tokens",
    "model": "policy_model_name",
    "model_url": "policy_base_url",
    "model_api_key": "policy_api_key",
    "compact": "compact_evidence",
    "require_complete": "require_complete",
    "disable_aggregation": "disable_aggregation",
    "no_health_check": "disable_health_check",
    "health_check_workers": "health_check_workers",
    "health_check_ignore": "health_check_ignored_checks",
}
"""Setting by the name of the parameter, in the order of the tokens."""


def flag_tokens(parameters: Mapping[str, Any]) -> list[str]:
    """Return the override of each flag that was given, in the grammar of overrides.

    Args:
        parameters: The command's parameters by name; those that are no flags of a setting are left alone.
    """
    tokens = []
    for name, key in _KEYS.items():
        value = parameters.get(name)
        if value is None or value is False:
            continue
        if name == "health_check_ignore":
            written = _listed(value)
        else:
            written = literal(str(value) if isinstance(value, Path) else value)
        tokens.append(f"+{key}={written}")
    return tokens


def _listed(names: str) -> str:
    """Return names that stand between commas as the list that the peer's flag makes of them."""
    return "[" + ",".join(quoted(name.strip(), '"') for name in names.split(",") if name.strip()) + "]"


def with_attempt_budget(settings: RunSettings, environ: Mapping[str, str]) -> tuple[RunSettings, list[str]]:
    """Return the settings with the budget of ``NEMO_GYM_MAX_ROLLOUT_ATTEMPTS``, and what to warn of (D53).

    A setting that was given wins over the environment.
    """
    name = "NEMO_GYM_MAX_ROLLOUT_ATTEMPTS"
    if "max_rollout_attempts" in settings.model_fields_set or name not in environ:
        return settings, []
    budget, problem = max_attempts_of(environ[name])
    remarks = [] if problem is None else [f"{name}: {problem}"]
    return settings.model_copy(update={"max_rollout_attempts": budget}), remarks


def run_remarks(settings: RunSettings) -> list[str]:
    """Return which settings of a run do not do what their names promise elsewhere, one sentence each."""
    remarks = []
    if not settings.route_failures_to_sidecar:
        remarks.append("route_failures_to_sidecar: false changes nothing; a failed rollout never ends a run")
    if settings.retain_results_in_memory:
        remarks.append("retain_results_in_memory: true changes nothing; records are read from the output")
    return remarks
