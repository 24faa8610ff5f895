"""A job's directory: what is in it, who may read it, and how damage is told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gym_ray.errors import StorageError, StorageExistsError
from gym_ray.settings.yaml_files import dump_yaml
from gym_ray.submission.documents import read_submission
from gym_ray.submission.job_files import BenchmarkJob, JobFiles, read_job, write_job
from gym_ray.submission.planning import SubmitPlan, plan_submit
from gym_ray.submission.statuses import BenchmarkStatus, read_status, write_status

_KEY = "a-very-secret-key"
_ONE = '{"name": "a", "submission_id": null, "address": null, "state": "planned", "message": ""}'


@pytest.fixture
def plan(tmp_path: Path) -> SubmitPlan:
    document = {
        "services": {"p": {"type": "external", "base_url": "http://h/v1", "model": "m", "api_key": _KEY}},
        "compute": {"c": {"type": "ray"}},
        "driver": {
            "policy_model": "p",
            "env": {"MY_TOKEN": "lit:another-secret"},
            "benchmarks": {"a": {"resumable": True}, "b": {"run": {"observability_enabled": False}}},
        },
        "job": {"output_path": str(tmp_path)},
    }
    path = tmp_path / "submit.yaml"
    path.write_text(dump_yaml(document))
    return plan_submit(read_submission(path), tmp_path / "gym-job-X")


@pytest.fixture
def job(plan: SubmitPlan) -> JobFiles:
    return write_job(plan, created_at=5.0)


def test_the_layout_is_whole_and_secrets_are_their_owners(job: JobFiles) -> None:
    files = {str(path.relative_to(job.directory)): path for path in job.directory.rglob("*") if path.is_file()}
    own = {"job.json", "arguments.json", "status.json"}
    expected = {"gym-job.json", "resolved-config.yaml", *(f"{name}/{file}" for name in "ab" for file in own)}
    assert set(files) == expected
    assert {path.name for path in (job.directory / "a").iterdir() if path.is_dir()} == {
        "logs",
        "artifacts",
        "model-calls",
    }
    assert not (job.directory / "b" / "model-calls").exists()
    for name, path in files.items():
        private = name == "resolved-config.yaml" or name.endswith("arguments.json")
        assert bool(path.stat().st_mode & 0o077) != private, name
        holds = _KEY in path.read_text() or "another-secret" in path.read_text()
        assert holds == private, name


def test_a_job_is_read_back(job: JobFiles, plan: SubmitPlan) -> None:
    job.record_submission(BenchmarkJob("a", "gym-job-X-a", "http://127.0.0.1:8265", "submitted"))
    found = read_job(job.directory)
    assert found.record == job.record
    assert found.record.benchmarks[0].submission_id == "gym-job-X-a"
    assert found.arguments("a").eval_run == plan.benchmarks[0].arguments
    assert found.arguments("a").environ == plan.benchmarks[0].environ
    assert _KEY not in repr(found.arguments("a"))
    assert found.status("a") == BenchmarkStatus()
    with pytest.raises(StorageError, match="has no benchmark 'c'; it has a, b"):
        found.status("c")


def test_a_job_never_takes_over_a_directory(plan: SubmitPlan, job: JobFiles) -> None:
    with pytest.raises(StorageExistsError, match="exists already"):
        write_job(plan, created_at=6.0)
    assert read_job(job.directory).record.created_at == 5.0


def test_a_place_that_is_no_directory_is_not_taken_for_a_job(plan: SubmitPlan, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"gym-job-Y: the job directory cannot be written: .*File exists: .*/file'"):
        write_job(replace(plan, job_dir=tmp_path / "file" / "gym-job-Y"), created_at=1.0)


def test_a_benchmark_that_is_queued_again_goes_on(job: JobFiles) -> None:
    job.request_stop("b")
    job.record_status("b", BenchmarkStatus("stopped", 130))
    for _ in range(2):
        job.queue_again("b")
        assert job.arguments("b").eval_run.count("+resume_from_cache=true") == 1
    assert not (job.directory / "b/stop-requested").exists()
    assert job.status("b").state == "queued"
    assert (job.directory / "b/arguments.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "no JSON object"),
        ("[]", "no JSON object"),
        ("{}", "'benchmarks'"),
        ('{"id": "x", "created_at": 1, "version": "1", "benchmarks": []}', "names no benchmark"),
        ('{"id": "x", "created_at": 1, "version": "1", "benchmarks": [{"name": "../x"}]}', "is damaged"),
        ('{"id": "x", "created_at": "soon", "version": "1", "benchmarks": []}', "is damaged"),
        ('{"id": "x", "created_at": 1, "version": "1", "benchmarks": [3]}', "is damaged"),
        (f'{{"id": "x", "created_at": 1, "version": "1", "benchmarks": [{_ONE}, {_ONE}]}}', "or one twice"),
        (f'{{"id": "x", "created_at": 1e300, "version": "1", "benchmarks": [{_ONE}]}}', "created_at is no time"),
        (f'{{"id": "x", "created_at": NaN, "version": "1", "benchmarks": [{_ONE}]}}', "created_at is no time"),
        (f'{{"id": 1, "created_at": 1, "version": "1", "benchmarks": [{_ONE}]}}', "id is no text"),
        (f'{{"id": "x", "created_at": 1, "version": null, "benchmarks": [{_ONE}]}}', "version is no text"),
        (
            f'{{"id": "x", "created_at": 1, "version": "1", "benchmarks": [{_ONE}]}}'.replace("planned", "fine"),
            "'fine'",
        ),
    ],
)
def test_a_damaged_record_is_told(job: JobFiles, text: str, told: str) -> None:
    (job.directory / "gym-job.json").write_text(text)
    with pytest.raises(StorageError, match=r"gym-job\.json: is damaged") as raised:
        read_job(job.directory)
    assert told in str(raised.value)


def test_no_job_is_told(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"is no job directory: there is no gym-job\.json"):
        read_job(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [("state", "fine"), ("exit_code", "0"), ("heartbeat_at", True), ("pid", None)]
    + [("heartbeat_at", value) for value in (-1, 1e300, float("inf"), float("nan"))],
)
def test_a_damaged_status_is_told(job: JobFiles, field: str, value: object) -> None:
    path = job.directory / "a/status.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(StorageError, match=rf"status\.json: is damaged: {field}"):
        job.status("a")


def test_a_status_is_replaced_whole(tmp_path: Path) -> None:
    status = BenchmarkStatus("running", started_at=1.0, heartbeat_at=2.0, host="h", pid=7)
    write_status(tmp_path, status)
    assert read_status(tmp_path) == status
    assert status.silent_for_s(31.0) is None
    assert status.silent_for_s(33.0) == 31.0
    ended = replace(status, state="complete", exit_code=0, ended_at=3.0)
    assert ended.silent_for_s(10_000.0) is None
    assert BenchmarkStatus().silent_for_s(10_000.0) is None
