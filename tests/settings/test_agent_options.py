from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from gym_ray.errors import SettingsError
from gym_ray.settings import CommandAgentOptions, RunSettings, load_settings, settings_from_yaml

SECRET = "sk-very-secret-1234"


def load(tmp_path: Path, options: str) -> RunSettings:
    path = tmp_path / "f.yaml"
    path.write_text(
        "policy_model:\n  responses_api_models:\n    local_model: {}\n"
        "scorer:\n  resources_servers:\n    mcqa: {}\n"
        "cli:\n  responses_api_agents:\n    command_agent:\n"
        "      model_server: {type: responses_api_models, name: policy_model}\n"
        f"{options}"
    )
    return load_settings([path], environ={"TOOL_KEY": SECRET})


def options_of(settings: RunSettings) -> CommandAgentOptions:
    options = settings.servers["cli"].options
    assert isinstance(options, CommandAgentOptions)
    return options


def test_a_command_is_split_like_a_shell_would_and_nothing_else_is_set(tmp_path: Path) -> None:
    options = options_of(load(tmp_path, "      command: my-agent --file {input_file} 'two words'\n"))
    assert options.command == ("my-agent", "--file", "{input_file}", "two words")
    assert (options.timeout_s, options.kill_grace_s, options.working_directory) == (None, 2.0, None)
    assert (options.answer_from, options.input_format, options.resources_server) == ("stdout", "json", None)


def test_all_options_survive_pickling_and_yaml(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        "      command: [my-agent, '{model}', '$x']\n"
        "      resources_server: {type: resources_servers, name: scorer}\n"
        "      timeout_s: 30\n      kill_grace_s: 0.5\n      working_directory: /srv/project\n"
        "      environment: {MY_MODE: quick, MY_API_KEY: '${oc.env:TOOL_KEY}'}\n"
        "      input_format: text\n      answer_from: output_file\n      max_output_bytes: 100\n",
    )
    options = options_of(settings)
    assert options.environment == {"MY_MODE": "quick", "MY_API_KEY": SECRET}
    assert options.command == ("my-agent", "{model}", "$x")
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert settings_from_yaml(settings.to_yaml(), "head server") == settings
    redacted = settings.to_yaml(redact=True)
    assert SECRET not in redacted
    assert "quick" in redacted
    assert SECRET not in repr(settings)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("command: ''", "command: '' is not accepted; should name a program"),
        ("command: []", "command: [] is not accepted; should name a program"),
        ('command: "my \'agent"', "should be a command line: No closing quotation"),
        ("command: x\n      environment: {OPENAI_BASE_URL: 'http://h'}", "should leave OPENAI_BASE_URL to gym-ray"),
        ("command: x\n      environment: {'A=B': c}", "should map names of environment variables"),
        ("command: x\n      working_directory: here", "should be an absolute path"),
        ("command: x\n      kill_grace_s: 11", "kill_grace_s"),
        ("command: x\n      max_output_bytes: 0", "max_output_bytes"),
        ("command: x\n      answer_from: stderr", "answer_from"),
        ("command: x\n      timeout: 3", "timeout_s"),
        ("timeout_s: 3", "command"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, line: str, problem: str) -> None:
    with pytest.raises(SettingsError) as error:
        load(tmp_path, f"      {line}\n")
    assert "command_agent" in str(error.value)
    assert problem in str(error.value)


def test_a_command_needs_a_model_server_that_exists(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    reference = "{type: responses_api_models, name: absent}"
    path.write_text(f"cli:\n  responses_api_agents:\n    command_agent: {{command: x, model_server: {reference}}}\n")
    with pytest.raises(SettingsError, match="absent"):
        load_settings([path], environ={})


def test_a_wrong_variable_shows_no_value(tmp_path: Path) -> None:
    secret: Any = f"      command: x\n      environment: {{OPENAI_API_KEY: {SECRET}}}\n"
    with pytest.raises(SettingsError) as error:
        load(tmp_path, secret)
    assert SECRET not in str(error.value)
