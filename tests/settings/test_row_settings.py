from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from gym_ray.errors import SettingsError
from gym_ray.settings import load_settings, settings_from_yaml


def test_rows_are_settled_by_flat_keys_that_travel() -> None:
    settings = load_settings(
        [],
        [
            "++agent_map={a: b, _default: c}",
            "++fan_out={b: [b, d]}",
            "++num_repeats_add_seed=true",
            "++prompt_config=prompts/p.yaml",
            "++skills_ref={name: s, version: 2}",
            "++unique_rollout_ids=true",
        ],
        environ={},
    )
    assert (settings.agent_map, settings.fan_out) == ({"a": "b", "_default": "c"}, {"b": ["b", "d"]})
    assert (settings.prompt_config, settings.skills_ref) == (Path("prompts/p.yaml"), {"name": "s", "version": 2})
    assert settings.num_repeats_add_seed
    assert settings.unique_rollout_ids
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert settings_from_yaml(settings.to_yaml(), "head server") == settings


def test_skills_may_be_a_directory() -> None:
    assert load_settings([], ["++skills_ref=my/skills"], environ={}).skills_ref == Path("my/skills")


def test_one_default_agent_may_be_said_twice() -> None:
    assert load_settings([], ["++agent_name=a", "++agent_map={_default: a}"], environ={}).agent_name == "a"


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["++agent_name=a", "++agent_map={_default: b}"], "agent_map: {'_default': 'b'} is not accepted; its _default"),
        (["++fan_out={a: []}"], "fan_out: {'a': []} is not accepted; should list at least one agent for 'a'"),
        (["++fan_out={a: [b, b]}"], "should list at least one agent for 'a', each once"),
        (["++skills_ref=7"], "skills_ref: 7 is not accepted; should be a directory, or a map"),
    ],
)
def test_mistakes_are_named(overrides: list[str], problem: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings([], overrides, environ={})
    assert problem in str(caught.value)
