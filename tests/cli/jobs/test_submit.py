"""The commands about jobs, as far as they go without a cluster."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gym_ray.cli.app import app
from gym_ray.cli.jobs.submission import Submitter, unfinished
from gym_ray.errors import ClusterError
from gym_ray.submission.computes import RayCompute
from gym_ray.submission.documents import read_submission
from gym_ray.submission.job_files import BenchmarkJob, JobFiles, read_job, write_job
from gym_ray.submission.planning import plan_submit
from gym_ray.submission.statuses import BenchmarkStatus

SECRET = "sk-0123456789abcdef"
SLURM = {"type": "slurm", "account": "a"}


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Write a submit document of benchmarks that run a command, and return its path."""

    def written(*names: str, compute: Any = None, run: Any = None, **extra: Any) -> str:
        benchmarks = {name: {"run": run} if run else {"command": "true"} for name in names}
        whole = {
            "compute": {"here": compute or {"type": "ray"}},
            "driver": {"benchmarks": benchmarks, "env": {"KEY": f"lit:{SECRET}"}},
            "job": {"output_path": str(tmp_path / "jobs")},
        }
        path = tmp_path / "submit.yaml"
        path.write_text(json.dumps(whole | extra))
        return str(path)

    return written


@pytest.fixture
def free_address(monkeypatch: pytest.MonkeyPatch) -> str:
    """An address at which nobody listens; what the commands set in the environment is put back."""
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{sock.getsockname()[1]}"


def run(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == code, (done.output, done.exception)
    return f"{done.output}{done.exception if code else ''}"


def job_of(tmp_path: Path, document: str) -> JobFiles:
    return write_job(plan_submit(read_submission(document), tmp_path / "jobs" / "gym-job-x"), created_at=1.0)


def test_a_dry_run_shows_everything_but_secrets_and_writes_nothing(write: Any, tmp_path: Path) -> None:
    run_of = {"input_jsonl_fpath": "/shared/rows.jsonl", "policy_api_key": SECRET}
    document = write("one", "two", run=run_of)
    shown = run("eval", "submit", document, "--dry-run")
    assert "gym-ray eval run +output_jsonl_fpath=" in shown
    assert "upload nothing; nodes run the package that they have" in shown
    printed = run("eval", "submit", document, "--dry-run", "--json", "++driver.benchmarks.two.run.limit=3")
    plan = json.loads(printed[: printed.rindex("}") + 1])
    assert [benchmark["name"] for benchmark in plan["benchmarks"]] == ["one", "two"]
    assert plan["benchmarks"][0]["captures"] == f"{plan['job_dir']}/one/model-calls"
    assert "+limit=3" in plan["benchmarks"][1]["runs"]
    assert "+limit" not in plan["benchmarks"][0]["runs"]
    resolved = run("eval", "submit", document, "--resolve-only", "++driver.benchmarks.two.run.limit=3")
    assert "limit: 3" in resolved
    assert SECRET not in shown + printed + resolved
    assert not (tmp_path / "jobs").exists()


@pytest.mark.parametrize(
    ("names", "more", "message"),
    [
        (["a/b"], {}, "cannot be the name of a benchmark"),
        ([".."], {}, "is no name for a folder"),
        (["one"], {"compute": SLURM}, "nothing is submitted to Slurm from here"),
        (
            ["one"],
            {"run": {"input_jsonl_fpath": "data/rows.jsonl"}},
            "data/rows.jsonl (a relative path, and no working",
        ),
        (["one"], {"compute": {"type": "ray", "address": "ray://head:10001"}}, "is no HTTP address, but one of Ray"),
        (["one"], {"compute": {"type": "ray", "working_dir": "none"}}, "is no directory"),
    ],
)
def test_what_cannot_be_submitted_is_refused_before_anything_is_written(
    write: Any, tmp_path: Path, free_address: str, names: list[str], more: Any, message: str
) -> None:
    assert message in run("eval", "submit", write(*names, **more), code=1)
    assert not (tmp_path / "jobs").exists()


def test_slurm_is_planned(write: Any) -> None:
    assert "runs      true" in run("eval", "submit", write("one", compute=SLURM), "--dry-run")


def test_an_upload_is_shown_and_surprises_are_refused(write: Any, tmp_path: Path, free_address: str) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "agent.py").write_text("x" * 3000)
    (tmp_path / "code" / "id_rsa").touch()
    document = write("one", compute={"type": "ray", "working_dir": "code"})
    shown = run("eval", "submit", document, "--dry-run", code=1)
    assert f"2 files, 3.0 kB, from {tmp_path}/code" in shown
    assert "looks like credentials, and every user of the cluster could read it: id_rsa" in shown
    (tmp_path / "code" / "id_rsa").unlink()
    assert "1 files, 3.0 kB" in run("eval", "submit", document, "--dry-run")
    assert "nothing there answers in HTTP" in run("eval", "submit", document, "--address", free_address, code=1)
    assert not (tmp_path / "jobs").exists()


def test_what_a_benchmark_prepares_need_not_be_there(write: Any) -> None:
    run_of = {"input_jsonl_fpath": "made/rows.jsonl"}
    document = Path(write("one", "two", run=run_of))
    whole = json.loads(document.read_text())
    whole["driver"]["benchmarks"]["one"]["prepare"] = "make rows"
    document.write_text(json.dumps(whole))
    refused = run("eval", "submit", str(document), "--dry-run", code=1)
    assert "would be missing where the job runs: made/rows.jsonl" in refused, "of two"
    del whole["driver"]["benchmarks"]["two"]
    document.write_text(json.dumps(whole))
    shown = run("eval", "submit", str(document), "--dry-run")
    assert "warning prepare has to make made/rows.jsonl (a relative path, and no working directory is upl" in shown


def test_a_job_remembers_what_it_uploaded(write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("code", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "agent.py").write_text("pass")
    document = read_submission(write("one", compute={"type": "ray", "working_dir": "code"}))
    monkeypatch.chdir(tmp_path)
    for given, expected in ((None, "code"), (Path("other"), "other")):
        plan = plan_submit(document.settled(given), tmp_path / "jobs" / f"gym-job-{expected}")
        kept = read_submission(write_job(plan, created_at=1.0).directory / "resolved-config.yaml")
        assert kept.working_directory == tmp_path / expected
        assert kept.driver == document.driver
    assert read_submission(write("one")).settled().working_directory is None
    slurm = read_submission(write("one", compute=SLURM))
    assert slurm.settled(Path("other")) == slurm


def test_resuming_takes_a_job_and_nothing_else(write: Any, tmp_path: Path) -> None:
    assert "CONFIG: is missing" in run("eval", "submit", code=1)
    assert "takes no document" in run("eval", "submit", write("one"), "--resume", str(tmp_path), code=1)
    for command in ("status", "logs", "stop"):
        assert "is no job directory: there is no gym-job.json" in run("eval", command, str(tmp_path), code=1)


def test_without_a_cluster_files_tell_what_they_can(write: Any, tmp_path: Path, free_address: str) -> None:
    files = job_of(tmp_path, write("one", "two"))
    for name in ("one", "two"):
        files.record_submission(BenchmarkJob(name, f"gym-job-x-{name}-1", free_address, "submitted"))
    files.record_status("one", BenchmarkStatus("complete", 0))
    files.record_status("two", BenchmarkStatus("running", heartbeat_at=1.0, host="node7"))
    (files.driver_log("one")).write_text("from one\n")
    shown = run("eval", "status", str(files.directory), code=1)
    assert "no word since 1970-01-01 00:00:01 UTC: the driver on node7 may be dead" in shown
    assert "nothing there answers in HTTP" in shown
    assert run("eval", "logs", str(files.directory), "one") == "from one\n"
    followed = run("eval", "logs", str(files.directory), "-f", code=1)
    assert "[one] from one" in followed
    assert "no word since" in followed
    stopped = run("eval", "stop", str(files.directory), "--timeout", "0", code=1)
    assert "two: Ray cannot be asked to end it" in stopped
    assert (files.benchmark("two") / "stop-requested").exists(), "it may live"
    assert not (files.benchmark("one") / "stop-requested").exists()


class FakeJobs:
    """A cluster that refuses, or whose replies are lost."""

    address = "http://head:8265"

    def __init__(self, *, submits: str = "", known: bool | None = True) -> None:
        self.submits, self.known = submits, known
        self.ids: list[str] = []

    def submit(self, request: Any) -> bool:
        self.ids.append(request.submission_id)
        recorded = read_job(Path(request.metadata["gym_ray_directory"]).parent).record.benchmarks
        assert request.submission_id in [job.submission_id for job in recorded], "known before it is submitted"
        if self.submits:
            raise ClusterError(self.submits)
        return True

    def word(self, _: str) -> Any:
        if self.known is None:
            raise ClusterError("nobody answers")
        return "a word" if self.known else None


@pytest.mark.parametrize(
    ("jobs", "state"),
    [
        (FakeJobs(), "submitted"),
        (FakeJobs(submits="no disk", known=False), "refused"),
        (FakeJobs(submits="no reply", known=True), "submitted"),
        (FakeJobs(submits="no reply", known=None), "planned"),
    ],
)
def test_the_record_knows_an_id_before_the_cluster_does(write: Any, tmp_path: Path, jobs: Any, state: str) -> None:
    files = job_of(tmp_path, write("one-2"))
    submitter = Submitter(files, jobs, RayCompute(type="ray"), None)
    assert submitter.submit("one-2").state == state
    assert read_job(files.directory).record.benchmarks[0].state == state
    submitter.submit("one-2")
    assert jobs.ids == ["gym-job-x-one-2-1", "gym-job-x-one-2-2"]


def test_what_may_still_run_is_not_started_again(write: Any, tmp_path: Path, free_address: str) -> None:
    files = job_of(tmp_path, write("one"))
    assert unfinished(files, given=None) == ["one"], "never submitted"
    files.record_submission(BenchmarkJob("one", "gym-job-x-one-1", free_address, "submitted"))
    with pytest.raises(
        ClusterError, match=r"is queued, and its cluster cannot be asked: .*name the new one with --addr"
    ):
        unfinished(files, given=None)
    assert unfinished(files, given="http://new:8265") == ["one"]
    files.record_status("one", BenchmarkStatus("running", heartbeat_at=4e9))
    with pytest.raises(ClusterError, match=r"one: is running; stop it first with `gym-ray eval stop`"):
        unfinished(files, given="http://new:8265")
    files.record_status("one", BenchmarkStatus("complete", 0))
    assert unfinished(files, given=None) == []
