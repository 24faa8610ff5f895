from __future__ import annotations

import pytest

from gym_ray.errors import SettingsError
from gym_ray.settings import load_settings


def test_everything_is_written_and_judged_unless_told_otherwise() -> None:
    settings = load_settings([], [], environ={})
    assert (settings.derive_turns, settings.compact_evidence, settings.require_complete) == (True, False, False)
    assert (settings.disable_aggregation, settings.disable_health_check) == (False, False)
    assert (settings.metrics_group_by, settings.health_check_ignored_checks) == ("task_source", ())
    assert settings.health_check_workers is None, "as many as help"


def test_lists_and_flags_are_taken() -> None:
    overrides = ['++health_check_ignored_checks=["a","b"]', "++count_failure_classes_as_zero=[agent_timeout]"]
    settings = load_settings([], [*overrides, "++count_missing_rollouts_as_zero=true"], environ={})
    assert settings.health_check_ignored_checks == ("a", "b")
    assert settings.count_failure_classes_as_zero == ("agent_timeout",)
    assert settings.count_missing_rollouts_as_zero


@pytest.mark.parametrize(("given", "workers"), [("3", 3), ("null", None)])
def test_the_processes_that_judge_are_a_number_or_left_open(given: str, workers: int | None) -> None:
    assert load_settings([], [f"++health_check_workers={given}"], environ={}).health_check_workers == workers


@pytest.mark.parametrize("given", ["0", "-1", "many"])
def test_no_processes_that_judge_are_refused(given: str) -> None:
    with pytest.raises(SettingsError, match="health_check_workers"):
        load_settings([], [f"++health_check_workers={given}"], environ={})


def test_a_text_is_no_list() -> None:
    with pytest.raises(SettingsError, match="health_check_ignored_checks: 'a' is not accepted; should be a list"):
        load_settings([], ["++health_check_ignored_checks=a"], environ={})
