"""What loads, and every mistake with the exact line it gives."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.errors import SettingsError
from gym_ray.settings import (
    CallableAgentOptions,
    HttpAgentOptions,
    McqaOptions,
    OpenAIModelOptions,
    RunSettings,
    load_settings,
    settings_from_yaml,
)

SECRET = "sk-very-secret-1234"

WHOLE = """\
observability_enabled: true
model_call_capture_dir: /shared/model-calls
policy_model:
  responses_api_models:
    openai_model:
      openai_base_url: http://127.0.0.1:8000/v1
      openai_api_key: ${oc.env:MY_KEY}
      openai_model: m
      port: 10500
      replicas: per_node
scorer:
  resources_servers:
    mcqa: {grading_mode: lenient_boxed}
loop:
  responses_api_agents:
    simple_agent:
      resources_server: {type: resources_servers, name: scorer}
      model_server: {type: responses_api_models, name: policy_model}
remote:
  responses_api_agents:
    http_agent: {base_url: "http://127.0.0.1:7000"}
function:
  responses_api_agents:
    callable_agent: {callable: "my.agents:run"}
"""


@pytest.fixture(autouse=True)
def empty_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(text: str, *overrides: str, environ: dict[str, str] | None = None) -> RunSettings:
    Path("f.yaml").write_text(text, encoding="utf-8")
    return load_settings(["f.yaml"], overrides, environ=environ or {})


def mistake(text: str, *overrides: str, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        load(text, *overrides, environ=environ)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)
    return str(caught.value)


def whole() -> RunSettings:
    return load(WHOLE, "++limit=3", "++num_repeats={loop: 2, _default: 1}", environ={"MY_KEY": SECRET})


def test_a_whole_document() -> None:
    settings = whole()
    assert settings.capture_dir == Path("/shared/model-calls")
    assert (settings.limit, settings.num_repeats) == (3, {"loop": 2, "_default": 1})
    model = settings.servers["policy_model"]
    assert (model.name, model.type, model.implementation) == ("policy_model", "responses_api_models", "openai_model")
    assert isinstance(model.options, OpenAIModelOptions)
    assert (model.options.port, model.options.replicas, model.options.host) == (10500, "per_node", None)
    assert model.options.openai_api_key.get_secret_value() == SECRET
    scorer, remote, function = (settings.servers[name].options for name in ("scorer", "remote", "function"))
    assert isinstance(scorer, McqaOptions)
    assert scorer.grading_mode == "lenient_boxed"
    assert isinstance(remote, HttpAgentOptions)
    assert remote.base_url == "http://127.0.0.1:7000"
    assert isinstance(function, CallableAgentOptions)
    assert function.callable == "my.agents:run"
    assert set(settings.servers_of("responses_api_agents")) == {"loop", "remote", "function"}


def test_defaults() -> None:
    settings = load_settings([], environ={})
    assert settings.capture_dir is None
    assert (settings.num_repeats, settings.limit, settings.run_timeout_s) == (1, None, 600.0)
    assert (settings.head_server.host, settings.head_server.port) == ("127.0.0.1", 11000)
    assert dict(settings.servers) == {}


@pytest.mark.parametrize(
    ("token", "field", "value"),
    [
        ("++observability_enabled=false", "observability_enabled", False),
        ("++verbose='yes'", "verbose", True),
        ("++verbose=1", "verbose", True),
        ("++limit=0", "limit", None),
        ("++limit=null", "limit", None),
        ("++num_repeats=null", "num_repeats", 1),
        ("++run_timeout_s=null", "run_timeout_s", None),
        ("++run_timeout_s=2.5", "run_timeout_s", 2.5),
        ("++start_timeout_s=0", "start_timeout_s", 0.0),
        (
            "++responses_create_params={reasoning: {effort: low}}",
            "responses_create_params",
            {"reasoning": {"effort": "low"}},
        ),
        ("++input_jsonl_fpath=in/rows.jsonl", "input_jsonl_fpath", Path("in/rows.jsonl")),
        ("++model_call_capture_dir=relative", "model_call_capture_dir", Path("relative")),
    ],
)
def test_values(token: str, field: str, value: object) -> None:
    assert getattr(load_settings([], [token], environ={}), field) == value


def test_numbers_from_the_environment() -> None:
    settings = load("limit: ${oc.env:N}\nnum_repeats: ${oc.env:N}\n", environ={"N": "4"})
    assert (settings.limit, settings.num_repeats) == (4, 4)


def test_settings_pickle_and_survive_yaml() -> None:
    settings = whole()
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert settings_from_yaml(settings.to_yaml(), "head server") == settings


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        whole().limit = 9  # type: ignore[misc]


def test_secrets_are_hidden_but_travel() -> None:
    settings = load(WHOLE, "++responses_create_params.user=the ${oc.env:MY_KEY} itself", environ={"MY_KEY": SECRET})
    assert SECRET in settings.to_yaml()
    redacted = settings.to_yaml(redact=True)
    assert SECRET not in redacted + repr(settings) + str(settings)
    assert settings_from_yaml(redacted, "file").servers.keys() == settings.servers.keys()


def test_headers_in_free_form_parameters_are_redacted() -> None:
    settings = load(f"responses_create_params:\n  extra_headers: {{Authorization: Bearer {SECRET}}}\n")
    assert SECRET not in settings.to_yaml(redact=True) + repr(settings)


def test_servers_of_a_running_head_replace_ours() -> None:
    ours = load_settings([], ["++agent_name=loop", "++limit=1"], environ={})
    joined = ours.with_servers(settings_from_yaml(whole().to_yaml(), "head server").servers)
    assert joined.limit == 1
    assert joined.server("loop", "responses_api_agents").implementation == "simple_agent"
    with pytest.raises(SettingsError) as caught:
        joined.server("lop", "responses_api_agents")
    assert str(caught.value) == "settings: there is no server 'lop' of type responses_api_agents; did you mean 'loop'?"


_PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text().filter(lambda t: t != "???"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), _PLAIN, max_size=3))
def test_any_parameters_survive_yaml(parameters: dict[str, Any]) -> None:
    settings = RunSettings(responses_create_params=parameters)
    assert settings_from_yaml(settings.to_yaml(), "head server") == settings


@given(st.text(alphabet="\\${}a'\"1e3-: ", max_size=12).filter(lambda t: t != "???"))
def test_text_that_looks_like_something_else_survives_yaml(text: str) -> None:
    settings = RunSettings(responses_create_params={"t": text})
    assert settings_from_yaml(settings.to_yaml(), "head server").responses_create_params == {"t": text}


MODEL = "policy_model:\n  responses_api_models:\n    openai_model:\n      openai_base_url: http://h/v1\n"
KEY = "policy_model.responses_api_models.openai_model"

MISTAKES = {
    "top-level key": (
        "observabilty_enabled: true\n",
        "f.yaml:1: observabilty_enabled: unknown key; did you mean 'observability_enabled'?",
    ),
    "server type": (
        "policy_model:\n  response_api_models: {}\n",
        "f.yaml:2: policy_model.response_api_models: unknown server type; did you mean 'responses_api_models'?",
    ),
    "section that is none": (
        "head_sever:\n  port: 1\n",
        "f.yaml:2: head_sever.port: unknown server type; servers: known: resources_servers, responses_api_agents, "
        "responses_api_models; settings: did you mean 'head_server'?",
    ),
    "implementation": (
        "policy_model:\n  responses_api_models:\n    openai: {}\n",
        "f.yaml:3: policy_model.responses_api_models.openai: unknown implementation; did you mean 'openai_model'?",
    ),
    "two implementations": (
        "m:\n  responses_api_models:\n    local_model: {}\n    openai_model: {}\n",
        "f.yaml:2: m.responses_api_models: has more than one implementation: local_model (f.yaml:3), openai_model "
        "(f.yaml:4); keep one, and give the other its own name",
    ),
    "two types": (
        "m:\n  responses_api_models: {local_model: {}}\n  resources_servers: {mcqa: {}}\n",
        "f.yaml:1: m: has more than one server type: responses_api_models (f.yaml:2), resources_servers (f.yaml:3); "
        "keep one, and give the other its own name",
    ),
    "no implementation": (
        "m:\n  resources_servers:\n",
        "f.yaml:2: m.resources_servers: names no implementation; write <name>: {<server type>: {<implementation>: "
        "{…}}}; known: mcqa, order_desk",
    ),
    "server name": (
        "a/b:\n  resources_servers: {mcqa: {}}\n",
        "f.yaml:1: a/b: cannot be the name of a server; use A-Z a-z 0-9 . _ - and begin with a letter or digit",
    ),
    "options that are no map": (
        "m:\n  resources_servers:\n    mcqa: 3\n",
        "f.yaml:3: m.resources_servers.mcqa: 3 is not a map; write key: value lines below it",
    ),
    "option": (
        "m:\n  resources_servers:\n    mcqa:\n      gradingmode: x\n",
        "f.yaml:4: m.resources_servers.mcqa.gradingmode: unknown key; did you mean 'grading_mode'?",
    ),
    "key of a reference": (
        "a:\n  responses_api_agents:\n    callable_agent:\n      callable: m:f\n"
        "      resources_server: {nam: x, name: y}\n",
        "f.yaml:5: a.responses_api_agents.callable_agent.resources_server.nam: unknown key; did you mean 'name'?",
    ),
    "required option": (
        MODEL + "      openai_model: m\n",
        f"f.yaml:3: {KEY}.openai_api_key: required, but not set; give a value: ++{KEY}.openai_api_key=…",
    ),
    "option out of a few": (
        "m:\n  resources_servers:\n    mcqa: {grading_mode: kind}\n",
        "f.yaml:3: m.resources_servers.mcqa.grading_mode: 'kind' is not accepted; should be "
        "'strict_single_letter_boxed', 'lenient_boxed', 'lenient_answer_colon' or 'lenient_answer_colon_md'",
    ),
    "port range": (
        "m:\n  resources_servers:\n    mcqa:\n      port: 70000\n",
        "f.yaml:4: m.resources_servers.mcqa.port: 70000 is not accepted; should be less than or equal to 65535",
    ),
    "port text": (
        "head_server: {port: http}\n",
        "f.yaml:1: head_server.port: 'http' is not accepted; should be a whole number",
    ),
    "port boolean": (
        "head_server: {port: true}\n",
        "f.yaml:1: head_server.port: True is not accepted; should be a number, not true or false",
    ),
    "fraction": ("limit: 2.5\n", "f.yaml:1: limit: 2.5 is not accepted; should be a whole number"),
    "time": ("run_timeout_s: 10m\n", "f.yaml:1: run_timeout_s: '10m' is not accepted; should be a number"),
    "no time": ("run_timeout_s: 0\n", "f.yaml:1: run_timeout_s: 0 is not accepted; should be greater than 0"),
    "endless time": (
        "run_timeout_s: .inf\n",
        "f.yaml:1: run_timeout_s: inf is not accepted; should be a finite number",
    ),
    "path": ("input_jsonl_fpath: 3\n", "f.yaml:1: input_jsonl_fpath: 3 is not accepted; should be a path"),
    "map": (
        "responses_create_params: [1]\n",
        "f.yaml:1: responses_create_params: [1] is not accepted; should be a map of keys and values",
    ),
    "section": (
        "head_server: 127.0.0.1\n",
        "f.yaml:1: head_server: '127.0.0.1' is not accepted; should be a map of keys and values",
    ),
    "boolean": ("verbose: maybe\n", "f.yaml:1: verbose: 'maybe' is not accepted; should be true or false"),
    "choice": ("log_format: xml\n", "f.yaml:1: log_format: 'xml' is not accepted; should be 'text' or 'json'"),
    "null boolean": ("verbose:\n", "f.yaml:1: verbose: None is not accepted; should be true or false"),
    "negative limit": ("limit: -1\n", "f.yaml:1: limit: -1 is not accepted; should be greater than or equal to 0"),
    "repeats": (
        "num_repeats: 0\n",
        "f.yaml:1: num_repeats: 0 is not accepted; should be a whole number from 1 up, or a map from agent name to "
        "such a number",
    ),
    "repeats of one agent": (
        "num_repeats: {a: 2, b: 1.5}\n",
        "f.yaml:1: num_repeats: {'a': 2, 'b': 1.5} is not accepted; should be a whole number from 1 up, or a map from "
        "agent name to such a number",
    ),
    "replicas": (
        "m:\n  responses_api_models:\n    local_model:\n      replicas: per_gpu\n",
        "f.yaml:4: m.responses_api_models.local_model.replicas: 'per_gpu' is not accepted; should be a whole number "
        "from 1 up, or per_node",
    ),
    "number for text": (
        "agent_name: 70\n",
        "f.yaml:1: agent_name: 70 is not accepted; should be text; quote it: '…' in YAML, \"'…'\" on the command line",
    ),
    "URL": (
        "policy_base_url: localhost:8000\n",
        "f.yaml:1: policy_base_url: 'localhost:8000' is not accepted; should be a URL such as http://127.0.0.1:8000/v1",
    ),
    "URL with a password": (
        f"policy_base_url: http://me:{SECRET}@h/v1\n",
        "f.yaml:1: policy_base_url: 'http://…@h/v1' is not accepted; should hold no user or password, for URLs are "
        "logged",
    ),
    "callable": (
        "a:\n  responses_api_agents:\n    callable_agent: {callable: my.agents.run}\n",
        "f.yaml:3: a.responses_api_agents.callable_agent.callable: 'my.agents.run' is not accepted; should be "
        "module:function or path/to/file.py:function",
    ),
    "capture without directory": (
        "observability_enabled: true\n",
        "f.yaml:1: observability_enabled: model_call_capture_dir is required when observability_enabled is true; set "
        "model_call_capture_dir to an absolute path or a URL, or observability_enabled to false",
    ),
    "relative capture directory": (
        "observability_enabled: true\nmodel_call_capture_dir: results/calls\n",
        "f.yaml:2: model_call_capture_dir: must be an absolute path when observability_enabled "
        "is true; set model_call_capture_dir to an absolute path or a URL, or observability_enabled to false",
    ),
    "unknown reference": (
        "a:\n  responses_api_agents:\n    callable_agent:\n      callable: m:f\n      resources_server: {name: scorr}\n"
        "scorer: {resources_servers: {mcqa: {}}}\n",
        "f.yaml:5: a.responses_api_agents.callable_agent.resources_server.name: there is no server 'scorr' of type "
        "resources_servers; did you mean 'scorer'?",
    ),
    "reference of another type": (
        "a:\n  responses_api_agents:\n    callable_agent:\n      callable: m:f\n      resources_server: {name: m}\n"
        "m: {responses_api_models: {local_model: {}}}\n",
        "f.yaml:5: a.responses_api_agents.callable_agent.resources_server.name: 'm' is one of responses_api_models, "
        "not of resources_servers; add one of resources_servers",
    ),
    "type of a reference": (
        "a:\n  responses_api_agents:\n    callable_agent:\n      callable: m:f\n"
        "      resources_server: {type: responses_api_models, name: m}\n",
        "f.yaml:5: a.responses_api_agents.callable_agent.resources_server.type: 'responses_api_models' is not "
        "accepted; should be 'resources_servers'",
    ),
    "agent name": (
        "agent_name: fn\nfnc:\n  responses_api_agents: {callable_agent: {callable: m:f}}\n",
        "f.yaml:1: agent_name: no agent is called 'fn'; did you mean 'fnc'?",
    ),
    "secret of the wrong type": (
        MODEL + "      openai_api_key: 12345678\n      openai_model: m\n",
        f"f.yaml:5: {KEY}.openai_api_key: the value (secret, not shown) is not accepted; should be text; quote it: '…' "
        "in YAML, \"'…'\" on the command line",
    ),
}


@pytest.mark.parametrize(("text", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistake(text: str, message: str) -> None:
    assert mistake(text) == message


def test_a_mistake_on_the_command_line_says_so() -> None:
    assert mistake("limit: 3\n", "++limit=x").startswith("command line: limit: 'x' is not accepted")


def test_all_mistakes_are_listed_one_a_line() -> None:
    lines = mistake("verbse: true\nlimit: x\nm:\n  resources_servers:\n    mcqa: {prt: 1, hst: x}\n").splitlines()
    assert [line.split(" ")[:2] for line in lines] == [
        ["f.yaml:1:", "verbse:"],
        ["f.yaml:5:", "m.resources_servers.mcqa.prt:"],
        ["f.yaml:5:", "m.resources_servers.mcqa.hst:"],
        ["f.yaml:2:", "limit:"],
    ]


def test_a_secret_that_stands_elsewhere_is_not_shown() -> None:
    shown = mistake("policy_base_url: ${oc.env:MY_KEY}\n", environ={"MY_KEY": SECRET})
    assert "policy_base_url: the value (secret, not shown) is not accepted" in shown
    copied = mistake(f"policy_api_key: {SECRET}\nlimit: ${{policy_api_key}}\n")
    assert "limit: the value (secret, not shown) is not accepted" in copied


def test_scratch_space_is_for_interpolation_only() -> None:
    assert load("_root: /data\ninput_jsonl_fpath: ${_root}/in.jsonl\n").input_jsonl_fpath == Path("/data/in.jsonl")


def test_servers_that_run_elsewhere_may_be_referred_to(tmp_path: Path) -> None:
    agent = tmp_path / "agent.yaml"
    agent.write_text(
        "mine:\n  responses_api_agents:\n    command_agent:\n      command: [x]\n"
        "      model_server: {type: responses_api_models, name: policy_model}\n"
    )
    models = tmp_path / "models.yaml"
    models.write_text("policy_model:\n  responses_api_models:\n    local_model: {}\n")
    theirs = load_settings([models], environ={}).servers
    assert set(load_settings([agent], environ={}, elsewhere=lambda settings: theirs).servers) == {"mine"}
    with pytest.raises(SettingsError, match=r"agent\.yaml:5: mine\..*there is no server 'policy_model'"):
        load_settings([agent], environ={}, elsewhere=lambda settings: {})
    with pytest.raises(SettingsError, match="no agent is called 'other'"):
        load_settings([agent], ["++agent_name=other"], environ={}, elsewhere=lambda settings: theirs)
