"""What a run whose inference workers keep the tokens refuses before anything starts (C240, C241)."""

from __future__ import annotations

from pathlib import Path

import pytest

from gym_ray.errors import SettingsError
from gym_ray.settings import RunSettings, load_settings

YAML = """
token_id_capture: {enabled: true, external_staging: true, rebuild_response: false, all_agents: true, dir: /tokens}
policy: {responses_api_models: {vllm_model: {base_url: "http://worker:8000/v1", model: m}}}
judge:
  responses_api_models:
    openai_model: {openai_base_url: "http://judge/v1", openai_api_key: key-of-the-judge, openai_model: j}
world: {resources_servers: {mcqa: {}}}
agent:
  responses_api_agents:
    simple_agent:
      model_server: {type: responses_api_models, name: policy}
      resources_server: {type: resources_servers, name: world}
"""
POLICY = "++policy.responses_api_models.vllm_model"
MODEL_OF_AGENT = "++agent.responses_api_agents.simple_agent.model_server.name"


def load(tmp_path: Path, *overrides: str) -> RunSettings:
    file = tmp_path / "run.yaml"
    file.write_text(YAML)
    return load_settings([file], overrides, environ={})


def test_a_vllm_model_is_taken_and_a_judge_beside_it_may_be_anything(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert settings.trains("agent")
    assert settings.token_dir == Path("/tokens")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([f"{POLICY}.dialects=[responses]"], r"policy\.responses_api_models\.vllm_model\.dialects: has no chat"),
        ([f"{POLICY}.scale_out=true"], r"vllm_model\.scale_out: does not go with token_id_capture\.external_staging"),
        ([f"{POLICY}.supply_prefix_token_ids=true"], r"vllm_model\.supply_prefix_token_ids: does not go with"),
        ([f"{POLICY}.extra_body={{n: 2}}"], r"vllm_model\.extra_body: must not hold n with"),
        ([f"{POLICY}.extra_body={{return_token_ids: true}}"], r"extra_body: must not hold return_token_ids"),
        ([f"{POLICY}.extra_body={{ng_capture: {{}}}}"], r"extra_body: must not hold ng_capture"),
        ([f"{POLICY}.extra_body={{stream: true}}"], r"extra_body: .* must not hold stream"),
        (
            [f"{MODEL_OF_AGENT}=judge"],
            r"agent\.responses_api_agents\.simple_agent\.model_server: judge \(openai_model\) has no workers",
        ),
        (["++token_id_capture.dir=null"], r"token_id_capture\.dir: the ledger of staged calls has nowhere to go"),
        (["++token_id_capture.dir=here"], r"token_id_capture\.dir: 'here' is not absolute"),
        (["++token_id_capture.rebuild_response=true"], r"token_id_capture: external_staging keeps the tokens"),
    ],
)
def test_what_cannot_stage_is_named_with_its_place(tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(tmp_path, *overrides)


@pytest.mark.parametrize(
    "override",
    [
        f"{POLICY}.extra_body={{n: 1, top_k: 4, return_token_ids: false}}",
        "++token_id_capture.all_agents=false",
        "++token_id_capture.lineage_store='m:Ledger'",
    ],
)
def test_what_harms_nothing_is_taken(tmp_path: Path, override: str) -> None:
    assert load(tmp_path, override).token_id_capture.external_staging


def test_an_openai_model_that_is_asked_in_chat_alone_can_stage(tmp_path: Path) -> None:
    chat = "++judge.responses_api_models.openai_model.dialects=[chat]"
    assert load(tmp_path, f"{MODEL_OF_AGENT}=judge", chat).trains("agent")


def test_nothing_of_it_is_asked_while_it_is_off(tmp_path: Path) -> None:
    off = ("++token_id_capture.external_staging=false", f"{POLICY}.extra_body={{n: 2}}", f"{MODEL_OF_AGENT}=judge")
    assert load(tmp_path, *off).trains("agent")


def test_a_ledger_of_the_users_own_needs_no_directory(tmp_path: Path) -> None:
    own = ("++token_id_capture.lineage_store='m:Ledger'", "++token_id_capture.dir=null")
    assert load(tmp_path, *own).token_dir is None
