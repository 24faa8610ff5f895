from __future__ import annotations

from pathlib import Path

import pytest

from gym_ray.errors import SettingsError
from gym_ray.settings import (
    ASSETS_ROOT,
    AnthropicModelOptions,
    CompactingVllmModelOptions,
    LocalModelOptions,
    OpenAIModelOptions,
    VllmModelOptions,
    find_asset,
    load_settings,
    server_config_paths,
)

ENDPOINT = ["++policy_base_url=http://127.0.0.1:9/v1", "++policy_api_key=sk-abcdef", "++policy_model_name=m"]


@pytest.fixture(autouse=True)
def empty_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("environment", ["mcqa", "order_desk"])
@pytest.mark.parametrize(
    ("model_type", "options"),
    [
        ("openai_model", OpenAIModelOptions),
        ("vllm_model", VllmModelOptions),
        ("vllm_model_with_compaction", CompactingVllmModelOptions),
        ("anthropic_model", AnthropicModelOptions),
        ("local_model", LocalModelOptions),
    ],
)
def test_what_ships_loads(environment: str, model_type: str, options: type) -> None:
    paths = server_config_paths(resources_servers=[environment], model_type=model_type)
    settings = load_settings(paths, ENDPOINT, environ={})
    assert set(settings.servers) == {environment, f"{environment}_simple_agent", "policy_model"}
    assert isinstance(settings.servers["policy_model"].options, options)
    agent = settings.server(f"{environment}_simple_agent", "responses_api_agents")
    references = {field: (ref.type, ref.name) for field, ref in agent.options.references().items()}
    assert references == {
        "resources_server": ("resources_servers", environment),
        "model_server": ("responses_api_models", "policy_model"),
    }


def test_the_endpoint_goes_into_the_model_server() -> None:
    options = (
        load_settings(server_config_paths(model_type="openai_model"), ENDPOINT, environ={})
        .servers["policy_model"]
        .options
    )
    assert isinstance(options, OpenAIModelOptions)
    assert options.openai_base_url == "http://127.0.0.1:9/v1"
    assert options.openai_api_key.get_secret_value() == "sk-abcdef"
    assert options.openai_model == "m"


def write(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}", encoding="utf-8")
    return path


def test_extra_roots_come_before_the_working_directory_and_that_before_the_package(tmp_path: Path) -> None:
    relative = Path("resources_servers/mcqa/configs/mcqa.yaml")
    assert find_asset("resources_servers", "mcqa") == ASSETS_ROOT / relative
    write(tmp_path / relative)
    assert find_asset("resources_servers", "mcqa") == relative
    extra = write(tmp_path / "extra" / relative)
    assert find_asset("resources_servers", "mcqa", extra_roots=[tmp_path / "extra"]) == extra


def test_flavours_and_files_without_configs_directory(tmp_path: Path) -> None:
    strict = write(tmp_path / "resources_servers/mcqa/configs/strict.yaml")
    plain = write(tmp_path / "resources_servers/maze/maze.yaml")
    assert find_asset("resources_servers", "mcqa/strict").absolute() == strict
    assert find_asset("resources_servers", "maze").absolute() == plain
    assert find_asset("resources_servers", "mcqa/mcqa") == find_asset("resources_servers", "mcqa")


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("resources_servers", "mqca", "command line: --resources-server: there is no 'mqca'; did you mean 'mcqa'?"),
        (
            "responses_api_models",
            "x",
            "command line: --model-type: there is no 'x'; known: anthropic_model, local_model, openai_model, "
            "vllm_model, vllm_model_with_compaction",
        ),
        ("responses_api_agents", "x", "command line: --agent-type: there is no 'x'; pass a file with --config"),
        (
            "resources_servers",
            "../mcqa",
            "command line: --resources-server: there is no '../mcqa'; did you mean 'mcqa'?",
        ),
        ("resources_servers", "/etc", "command line: --resources-server: there is no '/etc'; known: mcqa, order_desk"),
        ("resources_servers", "", "command line: --resources-server: there is no ''; known: mcqa, order_desk"),
    ],
)
def test_unknown_names(kind: str, name: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        find_asset(kind, name)
    assert str(caught.value) == message


def test_order_of_the_flags() -> None:
    paths = server_config_paths(
        configs=["b.yaml", "a.yaml"], resources_servers=["order_desk", "mcqa"], model_type="local_model"
    )
    assert [path.name for path in paths] == ["b.yaml", "a.yaml", "order_desk.yaml", "mcqa.yaml", "local_model.yaml"]


def test_an_environment_without_a_model_server_says_how_to_add_one() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(server_config_paths(resources_servers=["mcqa"]), environ={})
    key = "mcqa_simple_agent.responses_api_agents.simple_agent.model_server.name"
    assert str(caught.value) == (
        f"{ASSETS_ROOT}/resources_servers/mcqa/configs/mcqa.yaml:17: {key}: there is no server 'policy_model' of type "
        "responses_api_models; add one, for example with --model-type, or with --config and a file that defines it"
    )
