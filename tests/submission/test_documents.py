"""Documents: every mistake names its file, its key and what would be right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gym_ray.errors import SettingsError
from gym_ray.settings.yaml_files import dump_yaml, parse_yaml
from gym_ray.submission.documents import Submission, check_submittable, read_submission

_KEY = "a-very-secret-key"


def document(**changes: Any) -> dict[str, Any]:
    return {
        "services": {"policy": {"type": "external", "base_url": "http://10.0.0.1:8000/v1", "model": "m"}},
        "compute": {"c": {"type": "ray"}},
        "driver": {"policy_model": "policy", "benchmarks": {"mcqa": {"run": {"limit": 2}}}},
        "job": {"output_path": "/shared/jobs"},
        **changes,
    }


def read(tmp_path: Path, tree: dict[str, Any], *overrides: str, environ: dict[str, str] | None = None) -> Submission:
    path = tmp_path / "submit.yaml"
    path.write_text(dump_yaml(tree))
    return read_submission(path, overrides, environ=environ or {})


def driver(**benchmarks: Any) -> dict[str, Any]:
    return document(driver={"benchmarks": benchmarks})


@pytest.mark.parametrize(
    ("tree", "told"),
    [
        (document(jobb={}), ["submit.yaml:", "jobb: unknown key", "did you mean 'job'?"]),
        (driver(a={"runn": {}}), ["driver.benchmarks.a.runn: unknown key", "did you mean 'run'?"]),
        (document(job={"output_pth": "/x"}), ["job.output_path: required", "did you mean 'output_path'?"]),
        (document(services={"policy": 3}), ["services.policy: 3 is not accepted; should be a map"]),
        (document(job={"output_path": "jobs"}), ["job.output_path: is not an absolute path"]),
        (document(compute={"c": {"type": "rai"}}), ["compute.c.type: 'rai' is not known", "did you mean 'ray'?"]),
        (document(compute={"c": {}}), ["compute.c.type: required", "ray, slurm"]),
        (document(compute={}), ["compute: names no compute"]),
        (document(compute={"c": {"type": "ray", "adress": "x"}}), ["compute.c.adress", "did you mean 'address'?"]),
        (
            document(compute={"c": {"type": "slurm", "account": "a", "node_pools": {"p": {"partitoin": "g"}}}}),
            ["compute.c.node_pools.p.partitoin: unknown key", "did you mean 'partition'?"],
        ),
        (document(compute={"c": {"type": "ray", "max_upload_mb": True}}), ["max_upload_mb", "should be a number"]),
        (document(services={"policy": {"type": "external", "model": "m"}}), ["services.policy.base_url: required"]),
        (document(services={"polcy": {"type": "local_model"}}), ["driver.policy_model", "did you mean 'polcy'?"]),
        (driver(), ["driver.benchmarks: names no benchmark"]),
        (driver(**{"a/b": {}}), ["driver.benchmarks.a/b: cannot be the name"]),
        (driver(**{"..": {}}), ["is no name for a folder"]),
        (driver(**{"x" * 201: {}}), ["has more than 200 characters"]),
        (driver(**{"gym-job.json": {}}), ["is the name of one of the job's own files"]),
        (driver(Mcqa={}, mcqa={}), ["driver.benchmarks.mcqa: differs from 'Mcqa' in case only"]),
        (driver(a={"command": "x", "resumable": True}), ["driver.benchmarks.a.command: excludes run and resumable"]),
        (driver(a={"run": {"output_jsonl_fpath": "/x"}}), ["output_jsonl_fpath: cannot be moved"]),
        (driver(a={"run": {"observability_enabled": "no"}}), ["observability_enabled", "should be true or false"]),
        (
            driver(a={"command": 3}),
            ["driver.benchmarks.a.command: 3 is not accepted; should be text, or should be a list"],
        ),
        (
            document(driver={"benchmarks": {"a": {}}, "env": {"KEY": _KEY}}),
            ["driver.env.KEY", "should begin with lit:, host: or runtime:"],
        ),
        (
            document(driver={"benchmarks": {"a": {}}, "env": {"PLAIN": _KEY}}),
            ["driver.env.PLAIN: the value (not shown) is not accepted; should begin with lit:"],
        ),
        (driver(a={"command": ["x", "y\0"]}), ["driver.benchmarks.a.command.1: holds a NUL character"]),
        (document(job={"output_path": "/a\0b"}), ["job.output_path: holds a NUL character"]),
        (document(driver={"benchmarks": {"a": {}}, "env": {"A": "lit:\0"}}), ["driver.env.A: holds a NUL character"]),
        (document(driver={"benchmarks": {"a": {}}, "env": {"A-B": "lit:x"}}), ["driver.env.A-B: cannot be a variable"]),
        (document(job={"output_path": "/${nope}"}), ["job.output_path", "${nope} is not set"]),
        (document(job={"output_path": "???"}), ["job.output_path: is ??? (not set)"]),
    ],
)
def test_a_mistake_names_file_key_and_remedy(tmp_path: Path, tree: dict[str, Any], told: list[str]) -> None:
    with pytest.raises(SettingsError) as raised:
        read(tmp_path, tree)
    text = str(raised.value)
    assert str(tmp_path / "submit.yaml") in text
    for part in told:
        assert part in text
    assert _KEY not in text


def test_a_run_may_have_any_text(tmp_path: Path) -> None:
    stop = {"responses_create_params": {"stop": ["\0"]}}
    assert read(tmp_path, driver(a={"run": stop})).driver.benchmarks["a"].run == stop


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    tree = document(compute={"c": {"type": "ray", "adress": "x"}}, job={"output_path": 3})
    with pytest.raises(SettingsError) as raised:
        read(tmp_path, tree)
    assert len(str(raised.value).splitlines()) == 2


def test_overrides_and_scratch_keys(tmp_path: Path) -> None:
    tree = document(_root="/a", job={"output_path": "${_root}/jobs"})
    assert read(tmp_path, tree).job.output_path == "/a/jobs"
    assert read(tmp_path, tree, "++_root=/b").job.output_path == "/b/jobs"
    found = read(tmp_path, tree, "++driver.benchmarks.mcqa.run.limit=5")
    assert found.driver.benchmarks["mcqa"].run["limit"] == 5
    for token in ("++_rot=/b", "+_rot=/b"):
        with pytest.raises(SettingsError, match="scratch keys can be changed, not added; did you mean '_root'"):
            read(tmp_path, tree, token)
    with pytest.raises(SettingsError, match=r"command line: compute\.c\.adress: unknown key"):
        read(tmp_path, tree, "++compute.c.adress=x")


def test_the_resolved_document_loads_to_itself_and_can_hide_secrets(tmp_path: Path) -> None:
    tree = document(_scratch=1)
    tree["services"]["policy"]["api_key"] = "${oc.env:POLICY_KEY}"
    tree["driver"]["benchmarks"]["mcqa"]["run"]["text"] = "\\${later}"
    found = read(tmp_path, tree, environ={"POLICY_KEY": _KEY})
    text = found.resolved(redact=False)
    assert _KEY in text
    assert "_scratch" not in parse_yaml(text, "x").tree
    again = tmp_path / "again.yaml"
    again.write_text(text)
    assert read_submission(again).document.tree == {k: v for k, v in found.document.tree.items() if k != "_scratch"}
    assert _KEY not in found.resolved(redact=True)
    assert _KEY not in repr(found)


def test_what_ray_cannot_run_is_refused_with_reasons(tmp_path: Path) -> None:
    check_submittable(read(tmp_path, document()))
    tree = document(
        services={"policy": {"type": "vllm", "container": "i", "model": "m"}},
        compute={"c": {"type": "slurm", "account": "a"}},
        otel={"enabled": True},
    )
    tree["driver"] |= {"container": "image", "benchmarks": {"a": {"prepare": {"split": "test"}}}}
    with pytest.raises(SettingsError) as raised:
        check_submittable(read(tmp_path, tree))
    text = str(raised.value)
    for key in ("compute.c.type", "services.policy.type", "driver.container", "benchmarks.a.prepare", "otel.enabled"):
        assert key in text


def test_a_working_directory_is_relative_to_the_document(tmp_path: Path) -> None:
    found = read(tmp_path, document(compute={"c": {"type": "ray", "working_dir": "code"}}))
    assert found.working_directory == tmp_path / "code"
    assert read(tmp_path, document()).working_directory is None
