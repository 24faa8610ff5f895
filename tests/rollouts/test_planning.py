from __future__ import annotations

from pathlib import Path

import pytest

from gym_ray.errors import SettingsError
from gym_ray.rollouts.planning import row_options
from gym_ray.rollouts.rows.prompts import PromptTemplate
from gym_ray.settings import RunSettings, load_settings, server_config_paths

MCQA = server_config_paths(resources_servers=["mcqa"], model_type="openai_model")


def settings_of(*overrides: str, mcqa: bool = False) -> RunSettings:
    needed = ["++policy_base_url=http://127.0.0.1:1/v1", "++policy_api_key=k-123456", "++policy_model_name=m"]
    return load_settings(MCQA if mcqa else [], [*(needed if mcqa else []), *overrides], environ={})


def test_everything_that_settings_say_of_rows_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("user: '{q}'\n")
    (tmp_path / "skills").mkdir()
    (tmp_path / "skills" / "one.md").write_text("1")
    options = row_options(
        settings_of(
            "++agent_map={a: b}",
            "++fan_out={b: [b, c]}",
            "++num_repeats={b: 2, _default: 1}",
            "++num_repeats_add_seed=true",
            "++interleave_repeats=true",
            "++limit=3",
            "++responses_create_params={temperature: 0}",
            f"++prompt_config='{tmp_path}/p.yaml'",
            f"++skills_ref='{tmp_path}/skills'",
            "++unique_rollout_ids=true",
        )
    )
    assert (options.agent_map, options.fan_out) == ({"a": "b"}, {"b": ["b", "c"]})
    assert (options.num_repeats, options.limit) == ({"b": 2, "_default": 1}, 3)
    assert (options.num_repeats_add_seed, options.interleave_repeats, options.unique_rollout_ids) == (True, True, True)
    assert options.responses_create_params == {"temperature": 0}
    assert options.prompt == PromptTemplate("{q}")
    assert options.skills_ref is not None
    assert (options.skills_ref["name"], options.skills_ref["files"]) == ("skills", 1)


def test_skills_may_be_said_as_they_are() -> None:
    assert row_options(settings_of("++skills_ref={name: s}")).skills_ref == {"name": "s"}


def test_a_scorer_stands_for_its_only_agent() -> None:
    options = row_options(settings_of(mcqa=True))
    assert options.agents == ["mcqa_simple_agent"]
    assert options.task_sources == {"mcqa": "mcqa_simple_agent", "mcqa_simple_agent": "mcqa_simple_agent"}


SHARED = """
one: {responses_api_agents: {http_agent: {base_url: "http://127.0.0.1:1"}}}
policy_model:
  responses_api_models:
    openai_model: {openai_base_url: "http://127.0.0.1:3/v1", openai_api_key: k, openai_model: m}
three:
  responses_api_agents:
    simple_agent: &scored_at_the_desk
      resources_server: {type: resources_servers, name: desk}
      model_server: {type: responses_api_models, name: policy_model}
four: {responses_api_agents: {simple_agent: *scored_at_the_desk}}
"""


@pytest.mark.parametrize(
    ("datasets", "source", "candidates"),
    [
        ("[]", None, ["three", "four"]),
        ("[{name: d, agent: four}]", "four", None),
        ("[{name: d, agent: four}, {name: e, agent: four}, {name: f}]", "four", None),
        ("[{name: d, agent: four}, {name: e, agent: one}]", None, ["four", "one"]),
        ("[{name: d, agent: nobody}]", "nobody", None),
    ],
)
def test_a_dataset_may_name_its_agent(
    tmp_path: Path, datasets: str, source: str | None, candidates: list[str] | None
) -> None:
    (tmp_path / "run.yaml").write_text(f"{SHARED}desk: {{resources_servers: {{mcqa: {{datasets: {datasets}}}}}}}\n")
    options = row_options(load_settings([tmp_path / "run.yaml"], [], environ={}))
    assert options.task_sources.get("desk") == source
    assert options.undecided_sources.get("desk") == candidates
    assert options.task_sources["one"] == "one"


@pytest.mark.parametrize("override", ["++prompt_config=absent.yaml", "++skills_ref=absent"])
def test_what_is_not_there_is_refused(override: str) -> None:
    with pytest.raises(SettingsError, match="absent"):
        row_options(settings_of(override))
