"""The driver with real programs: what it says of each way to end, and what it leaves when it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gym_ray
from gym_ray.errors import StorageError
from gym_ray.settings.yaml_files import dump_yaml
from gym_ray.submission.documents import read_submission
from gym_ray.submission.job_files import JobFiles, write_job
from gym_ray.submission.planning import plan_submit
from gym_ray.submission.statuses import BenchmarkStatus, read_status

_DEADLINE_S = 30.0


def until(told: Callable[[], Any]) -> Any:
    """Return the first true value of ``told``; fail when there is none in time."""
    deadline = time.monotonic() + _DEADLINE_S
    while time.monotonic() < deadline:
        value = told()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError("it did not come about in time")


def gone(pid: int) -> bool:
    """Return whether a process runs no more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] in "ZX"
    except FileNotFoundError:
        return True


def job_of(tmp_path: Path, benchmark: dict[str, Any], **driver: Any) -> JobFiles:
    """Write a job with one benchmark, ``b``."""
    document = {
        "compute": {"c": {"type": "ray"}},
        "driver": {"benchmarks": {"b": benchmark}, **driver},
        "job": {"output_path": str(tmp_path / "jobs")},
    }
    path = tmp_path / "submit.yaml"
    path.write_text(dump_yaml(document))
    submission = read_submission(path)
    return write_job(plan_submit(submission, tmp_path / "jobs" / "gym-job-X"), created_at=1.0)


def program(code: str) -> list[str]:
    """Return the words of a small program."""
    return [sys.executable, "-c", code]


class Run:
    """A driver process."""

    def __init__(self, job: JobFiles, **environ: str) -> None:
        self.directory = job.benchmark("b")
        command = [sys.executable, "-m", "gym_ray.submission.driver", str(self.directory)]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environ},
            cwd=job.directory.parent,
        )

    def status(self) -> BenchmarkStatus:
        return read_status(self.directory)

    def log(self) -> str:
        path = self.directory / "logs/driver.log"
        return path.read_text() if path.exists() else ""

    def end(self) -> tuple[int, BenchmarkStatus]:
        """Wait for the end, and return the exit code and the last status."""
        self.out, self.err = self.process.communicate(timeout=_DEADLINE_S)
        return self.process.returncode, self.status()


@pytest.fixture
def start() -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def begin(job: JobFiles, **environ: str) -> Run:
        runs.append(Run(job, **environ))
        return runs[-1]

    yield begin
    for run in runs:
        run.process.kill()
        run.process.communicate()


@pytest.mark.parametrize(
    ("code", "state", "exit_code", "told"),
    [
        ("print('done')", "complete", 0, ""),
        ("raise SystemExit(2)", "incomplete", 2, "not every sample"),
        ("raise SystemExit(1)", "failed", 1, "exit code 1"),
        ("raise SystemExit(7)", "failed", 1, "exit code 7"),
        ("raise SystemExit(130)", "stopped", 130, "interrupted"),
        ("import os; os.kill(os.getpid(), 9)", "failed", 1, "killed by SIGKILL, as the kernel does"),
        ("import os; os.kill(os.getpid(), 11)", "failed", 1, "killed by SIGSEGV"),
    ],
)
def test_every_end_of_the_program_is_told(
    tmp_path: Path, start: Callable[..., Run], code: str, state: str, exit_code: int, told: str
) -> None:
    run = start(job_of(tmp_path, {"command": program(code)}))
    code_found, status = run.end()
    assert (code_found, status.state, status.exit_code) == (exit_code, state, exit_code)
    assert told in status.message
    assert status.ended
    assert status.ended_at is not None
    assert f"[driver] {state}" in run.log()


def test_output_goes_to_the_log_and_on_without_secrets(tmp_path: Path, start: Callable[..., Run]) -> None:
    code = "import os, sys; print('key', os.environ['MY_TOKEN'], os.environ['THERE'], os.environ['PLAIN']); " + (
        "sys.stderr.write('on stderr\\nno end of line')"
    )
    env = {"MY_TOKEN": "lit:hidden-hidden", "THERE": "runtime:FOUND_THERE", "PLAIN": "lit:shown-shown"}
    run = start(job_of(tmp_path, {"command": program(code)}, env=env), FOUND_THERE="looked-up-there")
    assert run.end()[0] == 0
    for text in (run.log(), run.out):
        assert "key ********** ********** shown-shown\n" in text
        assert "on stderr\nno end of line\n" in text
        assert "hidden-hidden" not in text
        assert "looked-up-there" not in text


def test_a_full_disk_under_the_log_ends_nothing_and_is_told(tmp_path: Path, start: Callable[..., Run]) -> None:
    job = job_of(tmp_path, {"command": program("print('x' * 100)")})
    (job.benchmark("b") / "logs/driver.log").symlink_to("/dev/full")
    run = start(job)
    code, status = run.end()
    assert (code, status.state) == (0, "complete")
    assert "bytes of output are not in" in status.message
    assert "x" * 100 in run.out


def test_a_variable_that_the_node_lacks_is_named(tmp_path: Path, start: Callable[..., Run]) -> None:
    run = start(job_of(tmp_path, {"command": "true"}, env={"KEY": "runtime:NOT_SET_ANYWHERE"}))
    code, status = run.end()
    assert (code, status.state) == (1, "failed")
    assert "NOT_SET_ANYWHERE" in status.message


@pytest.mark.parametrize("prepare", ["exit 3", ["/nonexistent/program"]])
def test_an_evaluation_does_not_begin_when_prepare_fails(
    tmp_path: Path, start: Callable[..., Run], prepare: Any
) -> None:
    mark = tmp_path / "began"
    run = start(job_of(tmp_path, {"prepare": prepare, "command": ["touch", str(mark)]}))
    code, status = run.end()
    assert (code, status.state) == (1, "failed")
    assert "prepare" in status.message
    assert not mark.exists()


def test_prepare_runs_first_and_both_know_the_directory(tmp_path: Path, start: Callable[..., Run]) -> None:
    mark = '"$GYM_RAY_BENCHMARK_DIR/artifacts/prepared"'
    run = start(job_of(tmp_path, {"prepare": f"touch {mark}", "command": f"test -e {mark}"}))
    assert run.end()[0] == 0
    assert (run.directory / "artifacts/prepared").exists()


class Stand:
    """A package of the command's name that stands in for it: it does what its environment says."""

    def __init__(self, tmp_path: Path) -> None:
        package = tmp_path / "stand/gym_ray"
        package.mkdir(parents=True)
        real = Path(gym_ray.__file__).parent
        (package / "__init__.py").write_text(f"__path__ = [{str(package)!r}, {str(real)!r}]; __version__ = '0'")
        (package / "__main__.py").write_text(_STAND)
        self.path = str(package.parent)


_STAND = """
import os, pathlib, sys
words = dict(word[1:].split('=', 1) for word in sys.argv if word.startswith('+'))
print('told', sys.argv[1:3], 'on the line', pathlib.Path('/proc/self/cmdline').read_bytes())
if os.environ['WRITES'] == 'yes':
    pathlib.Path(words['output_jsonl_fpath']).write_text('{}')
sys.exit(int(os.environ['CODE']))
"""


@pytest.mark.parametrize(
    ("code", "writes", "run", "state", "exit_code", "told"),
    [
        ("0", "yes", {}, "complete", 0, ""),
        ("0", "yes", {"require_complete": False}, "complete", 0, "samples may be missing"),
        ("0", "no", {}, "failed", 1, "its records are not there"),
        ("2", "yes", {}, "incomplete", 2, "not every sample"),
        ("2", "no", {}, "failed", 1, "exit code 2"),
    ],
)
def test_an_evaluation_is_judged_by_what_it_left(
    tmp_path: Path,
    start: Callable[..., Run],
    code: str,
    writes: str,
    run: dict[str, Any],
    state: str,
    exit_code: int,
    told: str,
) -> None:
    secret = "never-on-a-command-line"
    job = job_of(tmp_path, {"run": {**run, "policy_api_key": secret}})
    found = start(job, CODE=code, WRITES=writes, PYTHONPATH=Stand(tmp_path).path)
    code_found, status = found.end()
    assert (code_found, status.state) == (exit_code, state), found.log()
    assert told in status.message
    line = next(line for line in found.log().splitlines() if line.startswith("told"))
    assert "['eval', 'run']" in line
    assert "gym_ray.submission.evaluation" in line
    assert secret not in line
    assert "*" * 10 not in line


def test_a_program_that_cannot_be_started_is_an_infrastructure_failure(
    tmp_path: Path, start: Callable[..., Run]
) -> None:
    job = job_of(tmp_path, {"command": ["/nonexistent/program"]})
    arguments = job.benchmark("b") / "arguments.json"
    for words in ("/nonexistent/program", "/nonexistent/pro\\u0000gram"):
        arguments.write_text(arguments.read_text().replace("/nonexistent/program", words))
        code, status = start(job).end()
        assert (code, status.state) == (1, "failed")
        assert "cannot be started" in status.message


def test_an_evaluation_that_cannot_be_run_is_told(tmp_path: Path, start: Callable[..., Run]) -> None:
    secret = "never-on-a-command-line"
    run = start(job_of(tmp_path, {"run": {"agent_name": "x", "policy_api_key": secret, "limitt": 3}}))
    code, status = run.end()
    assert (code, status.state) == (1, "failed"), run.log()
    assert "limitt" in run.log()
    assert secret not in run.log()


_ORDERLY = """
import pathlib, signal, sys, time
def stop(*_):
    pathlib.Path(sys.argv[1]).write_text('stored')
    sys.exit(130)
signal.signal(signal.SIGINT, stop)
print('ready', flush=True)
time.sleep(60)
"""


def test_a_stop_request_lets_the_program_store_what_it_has(tmp_path: Path, start: Callable[..., Run]) -> None:
    stored = tmp_path / "stored"
    job = job_of(tmp_path, {"command": [*program(_ORDERLY), str(stored)]})
    run = start(job)
    until(lambda: "ready" in run.log())
    assert run.status().state == "running"
    job.request_stop("b")
    code, status = run.end()
    assert (code, status.state) == (130, "stopped")
    assert "on request" in status.message
    assert stored.read_text() == "stored"


def test_a_stop_request_before_the_driver_begins_nothing(tmp_path: Path, start: Callable[..., Run]) -> None:
    job = job_of(tmp_path, {"command": ["touch", str(tmp_path / "began")]})
    job.request_stop("b")
    code, status = start(job).end()
    assert (code, status.state) == (130, "stopped")
    assert not (tmp_path / "began").exists()
    job.queue_again("b")
    assert start(job).end()[0] == 0
    assert (tmp_path / "began").exists()


def test_sigterm_is_told_at_once_and_passed_on(tmp_path: Path, start: Callable[..., Run]) -> None:
    stored = tmp_path / "stored"
    run = start(job_of(tmp_path, {"command": [*program(_ORDERLY), str(stored)]}))
    until(lambda: "ready" in run.log())
    run.process.send_signal(signal.SIGTERM)
    until(lambda: run.status().state == "stopped")
    code, status = run.end()
    assert (code, status.state) == (130, "stopped")
    assert "SIGTERM" in status.message
    assert stored.read_text() == "stored"


_TERMINABLE = """
import os, pathlib, signal, sys, time
def stop(*_):
    time.sleep(0.3)
    pathlib.Path(sys.argv[1]).write_text('stored')
    os._exit(130)
signal.signal(signal.SIGTERM, stop)
print('pids', os.getpid(), flush=True)
time.sleep(60)
"""


def test_a_program_that_was_told_as_well_is_left_to_store(tmp_path: Path, start: Callable[..., Run]) -> None:
    """Ray's job server signals every process of a job."""
    stored = tmp_path / "stored"
    run = start(job_of(tmp_path, {"command": [*program(_TERMINABLE), str(stored)]}))
    (pid,) = until(lambda: _pids(run.log()))
    run.process.send_signal(signal.SIGTERM)
    os.kill(int(pid), signal.SIGTERM)
    code, status = run.end()
    assert (code, status.state) == (130, "stopped")
    assert stored.read_text() == "stored"


def test_a_driver_that_is_killed_while_it_stops_has_said_so(tmp_path: Path, start: Callable[..., Run]) -> None:
    stubborn = "import signal, time; signal.signal(2, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    run = start(job_of(tmp_path, {"command": program(stubborn)}))
    until(lambda: "ready" in run.log())
    run.process.send_signal(signal.SIGTERM)
    until(lambda: run.status().state == "stopped")
    run.process.kill()
    code, status = run.end()
    assert code == -signal.SIGKILL
    assert (status.state, status.exit_code) == ("stopped", 130)
    assert "what runs is given up" in status.message


def test_a_program_that_will_not_stop_is_killed_and_stopped_is_on_disk_before(
    tmp_path: Path, start: Callable[..., Run]
) -> None:
    stubborn = "import signal, time; signal.signal(2, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    run = start(job_of(tmp_path, {"command": program(stubborn)}))
    until(lambda: "ready" in run.log())
    run.process.send_signal(signal.SIGTERM)
    until(lambda: run.status().state == "stopped")
    assert run.process.poll() is None
    until(lambda: told_again(run))
    code, status = run.end()
    assert (code, status.state) == (130, "stopped")
    assert "SIGKILL" in status.message


def told_again(run: Run) -> bool:
    """Send another SIGTERM; signals that come together may count once. Return whether the driver has ended."""
    if run.process.poll() is None:
        run.process.send_signal(signal.SIGTERM)
    return run.process.poll() is not None


_PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])
print('pids', os.getpid(), child.pid, flush=True)
"""


def test_a_killed_driver_leaves_no_program_and_no_success(tmp_path: Path, start: Callable[..., Run]) -> None:
    run = start(job_of(tmp_path, {"command": program(_PARENT + "time.sleep(60)")}))
    pids = [int(pid) for pid in until(lambda: _pids(run.log()))]
    run.process.kill()
    run.process.wait()
    status = run.status()
    assert status.state == "running"
    assert status.heartbeat_at is not None
    assert status.silent_for_s(status.heartbeat_at + 10) is None
    assert status.silent_for_s(status.heartbeat_at + 60) == pytest.approx(60)
    assert "no word since" in status.told(status.heartbeat_at + 60)
    until(lambda: gone(pids[0]))
    os.kill(pids[1], signal.SIGKILL)  # a grandchild of ours, which has no driver any more to end it


def _pids(log: str) -> list[str]:
    lines = [line for line in log.splitlines() if line.startswith("pids")]
    return lines[0].split()[1:] if lines else []


def test_what_a_program_leaves_behind_ends_with_it(tmp_path: Path, start: Callable[..., Run]) -> None:
    run = start(job_of(tmp_path, {"command": program(_PARENT)}))
    assert run.end()[0] == 0
    until(lambda: gone(int(_pids(run.log())[1])))


def test_a_second_driver_changes_nothing(tmp_path: Path, start: Callable[..., Run]) -> None:
    job = job_of(tmp_path, {"command": [*program(_ORDERLY), str(tmp_path / "stored")]})
    first = start(job)
    until(lambda: "ready" in first.log())
    second = start(job)
    assert second.end()[0] == 1
    assert "another driver" in second.err
    assert first.status().state == "running"


def test_a_directory_that_is_not_there_or_another_is_named(tmp_path: Path, start: Callable[..., Run]) -> None:
    job = job_of(tmp_path, {"command": "true"})
    directory = job.benchmark("b")
    (directory / "job.json").unlink()
    run = start(job)
    assert run.end()[0] == 1
    assert "another directory on this node" in run.err
    assert run.status().state == "queued"
    directory.rename(directory.with_name("elsewhere"))
    run = start(job)
    with pytest.raises(StorageError, match="cannot be read"):
        run.end()
    assert run.process.returncode == 1
    assert "is not on this node" in run.err


def test_a_status_that_cannot_be_written_is_no_success(tmp_path: Path, start: Callable[..., Run]) -> None:
    job = job_of(
        tmp_path,
        {"command": ""}
        | {
            "command": f"rm -rf {tmp_path}/jobs/gym-job-X/b/status.json && "
            f"mkdir -p {tmp_path}/jobs/gym-job-X/b/status.json/in-the-way"
        },
    )
    run = start(job)
    with pytest.raises(StorageError, match="cannot be read"):
        run.end()
    assert run.process.returncode == 1
    assert "no longer true" in run.log()


def test_damaged_arguments_are_told_without_their_content(tmp_path: Path, start: Callable[..., Run]) -> None:
    job = job_of(tmp_path, {"command": "true"})
    (job.benchmark("b") / "arguments.json").write_text('{"secrets": "do-not-show')
    run = start(job)
    code, status = run.end()
    assert (code, status.state) == (1, "failed")
    assert "arguments.json: is damaged" in status.message
    assert "do-not-show" not in run.out + run.err + status.message
