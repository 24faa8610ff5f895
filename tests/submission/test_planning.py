"""Plans: captures on by default, moved, or off; what a run is told; what stays secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.errors import SettingsError
from gym_ray.settings.overrides import apply_overrides, parse_override
from gym_ray.settings.yaml_files import dump_yaml
from gym_ray.submission.documents import read_submission
from gym_ray.submission.planning import BenchmarkPlan, SubmitPlan, job_name, plan_submit, run_tokens

_KEY = "a-very-secret-key"
_TEXTS = [
    "None",
    "null",
    "True",
    "1e3",
    "a,b",
    "a=b",
    "{a}",
    "'",
    "\\",
    "\\'",
    "a\\",
    " a ",
    "",
    "~",
    "007",
    "${x}",
    "a:",
]
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.sampled_from(_TEXTS),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b_c", "d-e"]), inner, max_size=3)
    ),
    max_leaves=5,
)


def planned(tmp_path: Path, *, environ: dict[str, str] | None = None, **driver: Any) -> SubmitPlan:
    services = driver.pop("services", {})
    tree = {"services": services, "compute": {"c": {"type": "ray", "env": driver.pop("compute_env", {})}}}
    path = tmp_path / "submit.yaml"
    path.write_text(dump_yaml({**tree, "driver": driver, "job": {"output_path": "/jobs"}}))
    return plan_submit(read_submission(path), "/jobs/gym-job-X", environ=environ or {})


def one(tmp_path: Path, run: dict[str, Any], **more: Any) -> BenchmarkPlan:
    return planned(tmp_path, benchmarks={"b": {"run": run}}, **more).benchmarks[0]


@given(_VALUES)
def test_a_token_reads_back_as_what_was_written(value: Any) -> None:
    tokens = [parse_override(token) for token in run_tokens({"key": value})]
    assert apply_overrides({}, tokens)[0] == {"key": value}


@pytest.mark.parametrize("run", [{"a b": 1}, {"a": {"X.y z": 1}}, {"a": [{"b c": 1}]}, {"a.b": 1, "a": {"b": 2}}])
def test_what_the_grammar_cannot_say_is_refused(run: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=r"cannot be written as an override|is given twice"):
        run_tokens(run)


def test_captures_are_on_by_default_moved_or_off(tmp_path: Path) -> None:
    assert one(tmp_path, {}).captures == "/jobs/gym-job-X/b/model-calls"
    assert one(tmp_path, {"model_call_capture_dir": "/mine"}).captures == "/mine"
    assert one(tmp_path, {"model_call_capture_dir": "s3://bucket/prefix"}).captures == "s3://bucket/prefix"
    off = one(tmp_path, {"observability_enabled": False, "model_call_capture_dir": "ignored"})
    assert off.captures is None
    assert "+observability_enabled=false" in off.arguments


@pytest.mark.parametrize("where", ["relative/dir", "ftp://host/x", ["/a"]])
def test_captures_cannot_be_moved_just_anywhere(tmp_path: Path, where: Any) -> None:
    with pytest.raises(SettingsError, match=r"driver\.benchmarks\.b\.run\.model_call_capture_dir"):
        one(tmp_path, {"model_call_capture_dir": where})


def test_benchmarks_do_not_share_a_capture_directory(tmp_path: Path) -> None:
    moved = {"run": {"model_call_capture_dir": "/mine/"}}
    also = {"run": {"model_call_capture_dir": "file:///mine"}}
    with pytest.raises(SettingsError, match="is that of 'a' too"):
        planned(tmp_path, benchmarks={"a": moved, "b": also})
    into_a = {"run": {"model_call_capture_dir": "/jobs/gym-job-X/a/model-calls"}}
    with pytest.raises(SettingsError, match="is that of 'a' too"):
        planned(tmp_path, benchmarks={"a": {}, "b": into_a})
    unique = {"run": {"model_call_capture_dir": "/mine", "unique_rollout_ids": True}}
    assert len(planned(tmp_path, benchmarks={"a": moved, "b": unique}).benchmarks) == 2


def test_settings_files_become_flags_and_inputs(tmp_path: Path) -> None:
    plan = one(tmp_path, {"config_paths": ["a.yaml", "/b.yaml"], "input_jsonl_fpath": "rows.jsonl"})
    words = list(plan.arguments)
    assert words[1:5] == ["--config", "a.yaml", "--config", "/b.yaml"]
    assert not any("config_paths" in word for word in words)
    assert plan.inputs == ("a.yaml", "/b.yaml", "rows.jsonl")


@pytest.mark.parametrize(
    ("given_key", "told", "secret"),
    [
        (_KEY, _KEY, {_KEY}),
        ("host:THE_KEY", "key-of-this-host", {"key-of-this-host"}),
        ("runtime:THE_KEY", "${oc.env:THE_KEY}", set()),
    ],
)
def test_the_policys_key_comes_from_where_it_says(tmp_path: Path, given_key: str, told: str, secret: set[str]) -> None:
    service = {"type": "external", "base_url": "http://h/v1", "model": "m", "api_key": given_key}
    plan = one(tmp_path, {}, services={"p": service}, policy_model="p", environ={"THE_KEY": "key-of-this-host"})
    values = {token.path: token.value for token in map(parse_override, (w for w in plan.arguments if w[0] == "+"))}
    assert values[("policy_api_key",)] == told
    assert plan.secrets == secret
    assert _KEY not in repr(plan)
    assert "key-of-this-host" not in repr(plan)


def test_the_embedded_model_is_in_the_run(tmp_path: Path) -> None:
    service = {"type": "local_model", "n_ctx": 2048, "model_path": "m.gguf", "options": {"turn_end": "line"}}
    plan = one(tmp_path, {}, services={"p": service}, policy_model="p")
    assert plan.arguments[1:3] == ("--model-type", "local_model")
    assert "+policy_model.responses_api_models.local_model.n_ctx=2048" in plan.arguments
    assert not any("policy_base_url" in word for word in plan.arguments)
    assert plan.inputs == ("m.gguf",)


def test_the_environment_is_looked_up_here_or_there(tmp_path: Path) -> None:
    env = {"A": "lit:plain", "B": "host:HERE", "C": "runtime:THERE", "TOKEN": "lit:secret-text"}
    plan = one(tmp_path, {}, env=env, compute_env={"A": "runtime:OTHER"}, environ={"HERE": "from-here"})
    assert plan.environ.literal == {"B": "from-here", "TOKEN": "secret-text"}
    assert plan.environ.runtime == {"C": "THERE", "A": "OTHER"}
    assert plan.environ.secrets == {"from-here", "secret-text"}
    there = {"PATH": "/bin", "THERE": "t", "OTHER": "o"}
    assert plan.environ.applied(there, "x") == {**there, "B": "from-here", "TOKEN": "secret-text", "C": "t", "A": "o"}
    with pytest.raises(SettingsError, match=r"driver\.env\.B: the environment variable HERE is not set here"):
        one(tmp_path, {}, env=env)


def test_a_command_gets_neither_settings_nor_captures(tmp_path: Path) -> None:
    plan = planned(tmp_path, benchmarks={"b": {"command": "make eval"}}).benchmarks[0]
    assert (plan.command, plan.arguments, plan.captures) == ("make eval", (), None)


def test_a_job_needs_an_absolute_directory(tmp_path: Path) -> None:
    submission = planned(tmp_path, benchmarks={"b": {}}).submission
    with pytest.raises(SettingsError, match="is not an absolute path"):
        plan_submit(submission, "jobs")
    assert job_name(0.0, "abcdef") == "gym-job-19700101T000000Z-abcdef"
