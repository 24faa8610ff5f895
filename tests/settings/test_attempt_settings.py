from __future__ import annotations

import pytest

from gym_ray.errors import SettingsError
from gym_ray.settings import load_settings


def test_a_run_is_fresh_tries_thrice_and_keeps_failures_unless_told_otherwise() -> None:
    settings = load_settings([], [], environ={})
    assert (settings.resume_from_cache, settings.salvage, settings.max_rollout_attempts) == (False, False, 3)
    assert settings.route_failures_to_sidecar
    assert not settings.retain_results_in_memory
    assert "max_rollout_attempts" not in settings.model_fields_set


def test_what_was_given_can_be_told_from_a_default() -> None:
    settings = load_settings([], ["++max_rollout_attempts=3"], environ={})
    assert "max_rollout_attempts" in settings.model_fields_set
    assert "max_rollout_attempts" in settings.with_servers({}).model_fields_set


def test_a_budget_for_starts_has_a_bound_on_what_runs() -> None:
    settings = load_settings([], ["++dispatch_budget_s=0", "++num_samples_in_parallel=4"], environ={})
    assert (settings.dispatch_budget_s, settings.num_samples_in_parallel) == (0.0, 4)


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("++dispatch_budget_s=5", "dispatch_budget_s: 5 is not accepted; needs num_samples_in_parallel; set both"),
        ("++max_rollout_attempts=0", "max_rollout_attempts: 0 is not accepted"),
        ("++max_resident_rollout_tasks=0", "max_resident_rollout_tasks: 0 is not accepted"),
        ("++drain_margin_s=-1", "drain_margin_s: -1 is not accepted"),
    ],
)
def test_mistakes_are_named(override: str, problem: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings([], [override], environ={})
    assert problem in str(caught.value)
