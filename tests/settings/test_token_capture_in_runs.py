from __future__ import annotations

from pathlib import Path

import pytest

from gym_ray.errors import SettingsError
from gym_ray.settings import RunSettings, load_settings, settings_from_yaml

YAML = """
token_id_capture: {enabled: true, dir: /tokens}
policy_model: {responses_api_models: {local_model: {}}}
plain: {responses_api_agents: {callable_agent: {callable: "agents:run"}}}
trained: {responses_api_agents: {callable_agent: {callable: "agents:run", token_id_capture: true}}}
"""


def load(tmp_path: Path, text: str, *overrides: str) -> RunSettings:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    return load_settings([file], overrides, environ={})


def test_agents_take_part_that_say_so_or_all(tmp_path: Path) -> None:
    settings = load(tmp_path, YAML)
    assert [settings.trains(name) for name in ("plain", "trained", "policy_model", "nobody")] == [False, True] + [
        False
    ] * 2
    settings = load(tmp_path, YAML, "++token_id_capture.all_agents=true")
    assert settings.trains("plain")
    assert not settings.trains("policy_model")
    settings = load(tmp_path, YAML, "++token_id_capture.enabled=false")
    assert not settings.trains("trained")
    assert settings.token_dir is None


def test_the_directory_is_the_blocks_own_or_that_of_model_calls(tmp_path: Path) -> None:
    assert load(tmp_path, YAML, "++model_call_capture_dir=/calls").token_dir == Path("/tokens")
    without = ("++token_id_capture.dir=null", "++model_call_capture_dir=/calls")
    assert load(tmp_path, YAML, *without).token_dir == Path("/calls")
    with_sink = ("++token_id_capture.sink=m:S", "++token_id_capture.lineage_store=m:L")
    assert load(tmp_path, YAML, *with_sink).token_dir is None


def test_the_block_travels(tmp_path: Path) -> None:
    settings = load(tmp_path, YAML, "++token_id_capture.max_mask_fraction=0.5")
    assert settings_from_yaml(settings.to_yaml(), "head") == settings


def test_what_a_sink_is_made_with_shows_to_nobody(tmp_path: Path) -> None:
    url = "++token_id_capture.sink_kwargs.url='redis://:hidden@h'"
    with_sink = ("++token_id_capture.sink='m:S'", "++token_id_capture.lineage_store='m:L'", url)
    settings = load(tmp_path, YAML, *with_sink, "++token_id_capture.source_kwargs.region=hidden")
    shown = settings.to_yaml(redact=True)
    assert "hidden" not in shown + repr(settings)
    assert list(settings_from_yaml(shown, "head").token_id_capture.sink_kwargs) == ["url"]
    assert settings_from_yaml(settings.to_yaml(), "head") == settings


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "++token_id_capture.dir=null",
            r"token_id_capture\.dir: token capture has nowhere to go; set token_id_capture",
        ),
        ("++token_id_capture.dir=here", r"token_id_capture\.dir: 'here' is not absolute"),
        ("++token_id_capture.sink='m:S'", r"token_id_capture\.lineage_store: is not set"),
        (
            "++token_id_capture.delta_record=true",
            r"token_id_capture\.delta_record: unknown key; did you mean 'delta_records'",
        ),
        ("++token_id_capture.max_mask_fraction=2", r"token_id_capture\.max_mask_fraction: 2 is not accepted"),
        ("++token_id_capture.external_staging_backend=megatron_worker", r"token_id_capture: external_staging_backend"),
    ],
)
def test_what_cannot_work_is_named_with_its_place(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(tmp_path, YAML, override)


def test_a_model_server_names_what_generates_nothing(tmp_path: Path) -> None:
    key = "++policy_model.responses_api_models.local_model.token_id_capture_non_generating_requests"
    settings = load(tmp_path, YAML, f"{key}=[{{method: get, path: /metrics}}]")
    (request,) = settings.servers["policy_model"].options.token_id_capture_non_generating_requests  # type: ignore[attr-defined]
    assert (request.method, request.path) == ("GET", "/metrics")
    with pytest.raises(SettingsError, match=r"path: .* should be one exact path"):
        load(tmp_path, YAML, f"{key}=[{{method: get, path: '/metrics?x'}}]")
