from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.cli.run_flags import flag_tokens, run_remarks, with_attempt_budget
from gym_ray.cli.run_plan import plan_of
from gym_ray.errors import SettingsError
from gym_ray.settings import load_settings
from gym_ray.settings.overrides import parse_override

NAME = "NEMO_GYM_MAX_ROLLOUT_ATTEMPTS"


def read(value: Any, flag: str = "agent") -> Any:
    (token,) = flag_tokens({flag: value})
    return parse_override(token).value


@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1))
def test_any_text_reaches_its_setting_as_it_is(text: str) -> None:
    assert read(text) == text


@pytest.mark.parametrize(
    "text", ["true", "NULL", "007", "1_000", "1e5", "inf", "-3", "a\\", "a\\'b", "\\\\'", "a b", ":"]
)
def test_texts_that_look_like_something_else_stay_texts(text: str) -> None:
    assert read(text) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_stay_numbers(number: float) -> None:
    assert read(number, "temperature") == number


def test_flags_come_in_one_order_and_only_when_they_were_given() -> None:
    given = {
        "resume": True,
        "agent": "a",
        "verbose": True,
        "limit": 0,
        "salvage": False,
        "ctx": object(),
        "model": None,
    }
    assert flag_tokens(given) == ["+verbose=true", "+agent_name=a", "+limit=0", "+resume_from_cache=true"]


def test_checks_are_listed_without_blanks() -> None:
    assert flag_tokens({"health_check_ignore": "a, b,,"}) == ['+health_check_ignored_checks=["a","b"]']


def test_every_flag_is_a_setting() -> None:
    values: dict[str, Any] = {
        "resume": True,
        "salvage": True,
        "interleave_repeats": True,
        "prompt_config": "p.yaml",
        "temperature": 0.5,
        "top_p": 1.0,
        "max_output_tokens": 16,
        "model": "m",
        "model_url": "http://127.0.0.1:1/v1",
        "model_api_key": "k e'y",
        "compact": True,
        "require_complete": True,
        "disable_aggregation": True,
        "no_health_check": True,
        "health_check_workers": 2,
        "health_check_ignore": "a,b",
        "verbose": True,
        "agent": "a",
        "input_path": "i",
        "output_path": "o",
        "limit": 1,
        "num_repeats": 2,
        "concurrency": 3,
    }
    settings = load_settings([], flag_tokens(values), environ={})
    assert (settings.resume_from_cache, settings.salvage, settings.compact_evidence) == (True, True, True)
    assert settings.responses_create_params == {"temperature": 0.5, "top_p": 1.0, "max_output_tokens": 16}
    assert settings.policy_api_key is not None
    assert settings.policy_api_key.get_secret_value() == "k e'y"
    assert settings.health_check_ignored_checks == ("a", "b")
    assert len(settings.model_fields_set - {"servers"}) == len(values) - 2


def test_the_environment_may_set_the_budget_unless_a_setting_does() -> None:
    plain = load_settings([], [], environ={})
    assert with_attempt_budget(plain, {}) == (plain, [])
    found, remarks = with_attempt_budget(plain, {NAME: "7"})
    assert (found.max_rollout_attempts, remarks) == (7, [])
    given = load_settings([], ["++max_rollout_attempts=2"], environ={})
    assert with_attempt_budget(given, {NAME: "7"}) == (given, [])


def test_an_unusable_budget_is_named_and_means_the_default() -> None:
    found, remarks = with_attempt_budget(load_settings([], [], environ={}), {NAME: "zero"})
    assert found.max_rollout_attempts == 3
    assert remarks == [f"{NAME}: 'zero' is not a whole number from 1 up, so that each row has 3 attempts"]


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("++route_failures_to_sidecar=false", "route_failures_to_sidecar"),
        ("++retain_results_in_memory=true", "retain_results_in_memory"),
    ],
)
def test_settings_that_change_nothing_are_named(override: str, key: str) -> None:
    (remark,) = run_remarks(load_settings([], [override], environ={}))
    assert remark.startswith(key)
    assert run_remarks(load_settings([], [], environ={})) == []


def test_salvage_without_a_resume_is_refused_since_a_fresh_run_would_begin() -> None:
    overrides = ["++output_jsonl_fpath=out.jsonl", "++input_jsonl_fpath=in.jsonl", "++salvage=true"]
    with pytest.raises(SettingsError, match="salvage: goes with a run that is taken up again; add --resume"):
        plan_of(load_settings([], overrides, environ={}))
    assert plan_of(load_settings([], [*overrides, "++resume_from_cache=true"], environ={})).salvage
