"""Jobs on a real cluster with its job server: one head for all tests of this file."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gym_ray.cli.app import app
from gym_ray.errors import ClusterError
from gym_ray.submission.job_files import read_job
from gym_ray.testing.job_desk import Desk
from gym_ray.testing.job_head import JobHead, free_port, job_head
from gym_ray.testing.numbered_upstream import numbered_upstream
from gym_ray.testing.serving import served

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

METHODS = ["GET", "POST", "PUT"]
PYTHON = sys.executable
AGENT = Path(__file__).parent / "agents" / "asking_agent.py"
ROOT = Path(__file__).parents[2]
DEAF = """
import signal, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(600)
"""


def wait_for(what: Callable[[], Any], timeout_s: float = 120.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := what()):
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module")
def head(ray_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobHead]:
    with job_head(tmp_path_factory.mktemp("head"), Path(os.environ["RAY_AUTH_TOKEN_PATH"])) as head:
        yield head


@pytest.fixture(scope="module")
def jobs(head: JobHead) -> Any:
    from gym_ray.actors.jobs import RayJobs

    return RayJobs(head.url)


def new_id() -> str:
    return f"gym-ray-test-{secrets.token_hex(4)}"


def job_of(submission_id: str, entrypoint: str, **more: Any) -> Any:
    from gym_ray.actors.jobs import JobRequest

    return JobRequest(submission_id, entrypoint, **more)


def test_what_becomes_of_jobs(jobs: Any, tmp_path: Path) -> None:
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "kept").touch()
    once = job_of(new_id(), f"echo ran >> {tmp_path}/ran", metadata={"gym_ray_job": "test"})
    bad = job_of(new_id(), "echo the $((6 * 7)) reasons; exit 7")
    long = job_of(new_id(), f"touch {tmp_path}/runs; sleep 600")
    up = job_of(new_id(), f"ls > {tmp_path}/seen", working_dir=tmp_path / "up")
    assert jobs.word(once.submission_id) is None
    assert [jobs.submit(job) for job in (once, bad, long, up)] == [True] * 4
    assert jobs.submit(once) is False, "it is there"

    wait_for((tmp_path / "runs").exists)
    assert jobs.stop(long.submission_id) is True
    for job, status in ((once, "SUCCEEDED"), (bad, "FAILED"), (long, "STOPPED"), (up, "SUCCEEDED")):
        wait_for(lambda job=job: jobs.word(job.submission_id).ended)
        assert jobs.word(job.submission_id).status == status
        assert jobs.stop(job.submission_id) is False, "nothing is left to end"
    assert jobs.stop("gym-ray-never-submitted") is False
    assert jobs.submit(once) is False, "also when it is over"
    assert (tmp_path / "ran").read_text() == "ran\n"
    assert (tmp_path / "seen").read_text().split() == ["kept"]
    word = jobs.word(bad.submission_id)
    assert "exit code 7" in word.message
    assert "the 42 reasons" in word.message.splitlines()


class Proxy:
    """Passes everything on to the head, and loses replies to submissions."""

    def __init__(self, head: JobHead, lost: int) -> None:
        self.head, self.lost, self.submissions = head, lost, 0

    async def forward(self, request: Request) -> Response:
        body = await request.body()
        async with httpx.AsyncClient(timeout=60) as client:
            headers = self.head.headers() | {"Content-Type": request.headers.get("content-type", "")}
            url = f"{self.head.url}{request.url.path}"
            answer = await client.request(request.method, url, content=body, headers=headers)
        if request.method == "POST" and request.url.path == "/api/jobs/":
            self.submissions += 1
            if self.submissions <= self.lost:
                return StreamingResponse(_half(answer.content), headers={"Content-Length": str(len(answer.content))})
        return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/{path:path}", self.forward, methods=METHODS)])


async def _half(content: bytes) -> Any:
    yield content[: len(content) // 2]
    raise ConnectionError("the reply gets lost here")


def test_lost_replies_make_no_second_job(head: JobHead, jobs: Any, tmp_path: Path) -> None:
    from gym_ray.actors.jobs import RayJobs

    asked = []
    for lost in (1, 2):
        asked.append(job_of(new_id(), f"echo ran >> {tmp_path}/ran-{lost}"))
        proxy = Proxy(head, lost)
        with served(proxy.app()) as url:
            assert RayJobs(url).submit(asked[-1]) is False, "found when it was asked again"
        assert proxy.submissions == lost + 1
    unsure = job_of(new_id(), "true")
    with served(Proxy(head, 99).app()) as url, pytest.raises(ClusterError, match="may run all the same"):
        RayJobs(url).submit(unsure)
    assert jobs.submit(unsure) is False
    for job in asked:
        wait_for(lambda job=job: jobs.word(job.submission_id).ended)
    assert [(tmp_path / f"ran-{lost}").read_text() for lost in (1, 2)] == ["ran\n"] * 2


def test_addresses_at_which_nobody_answers_as_a_job_server_should(head: JobHead) -> None:
    from gym_ray.actors.jobs import RayJobs

    for url in (f"http://{head.gcs}", f"http://127.0.0.1:{free_port()}"):
        with pytest.raises(ClusterError, match=r"nothing there answers in HTTP; .*http://HEAD:8265.*ray://HEAD:10001"):
            RayJobs(url)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ClusterError, match="no answer in time"):
            RayJobs(url, answer_s=0.2)


@pytest.fixture
def desk(tmp_path: Path, head: JobHead, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", head.url)  # the commands set it
    with closing(Desk(tmp_path, head, AGENT, app)) as desk:
        yield desk


def read_status(job_dir: str | Path, name: str) -> Any:
    return json.loads((Path(job_dir) / name / "status.json").read_text())


def records(directory: str | Path) -> list[Any]:
    path = Path(directory) / "artifacts" / "rollouts.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def captures(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.capture.jsonl"))


def test_benchmarks_are_submitted_followed_and_stopped(desk: Desk, head: JobHead, tmp_path: Path) -> None:
    with served(numbered_upstream(0.5)) as upstream:
        benchmarks = {"plain": desk.run(2), "stopped": desk.run(60, num_samples_in_parallel=1)}
        job = desk.submit(benchmarks, upstream=upstream)
        directory = Path(job["job_dir"])
        followed = desk.start("eval", "logs", directory, "-f")
        by_hand = plain_ray_job(desk, upstream)
        assert desk.states(directory, code=2).keys() == benchmarks.keys(), "not over: 2"
        wait_for(lambda: records(directory / "stopped"))
        desk.here("eval", "stop", directory, "stopped")
        out, err = followed.communicate(timeout=120)
        by_hand_said = by_hand.communicate(timeout=120)
        assert followed.returncode == 130, err
        assert by_hand.returncode == 0, by_hand_said
    assert {line.split("]")[0] for line in out.splitlines()} == {"[plain", "[stopped"}
    assert "[plain] [driver] complete" in out.splitlines()
    assert len(records(directory / "plain")) == len((tmp_path / "by-hand.jsonl").read_text().splitlines()) == 2
    both = ["0-0.capture.jsonl", "1-0.capture.jsonl"]
    assert captures(directory / "plain" / "model-calls") == captures(tmp_path / "by-hand") == both, "at the same time"
    assert {name: one["state"] for name, one in desk.states(directory, code=130).items()} == {
        "plain": "complete",
        "stopped": "stopped",
    }
    assert 1 <= len(records(directory / "stopped")) < 60, "what has ended is kept"
    known = httpx.get(f"{head.url}/api/jobs/", headers=head.headers()).text
    assert job["job_id"] in known
    holding = {
        path.name for path in directory.rglob("*") if path.is_file() and desk.secret in path.read_text("latin-1")
    }
    assert desk.secret not in known + out + err + json.dumps(job)
    assert holding == {"arguments.json"}, "readable by their owner only"
    assert {path.stat().st_mode & 0o777 for path in directory.rglob("arguments.json")} == {0o600}


def plain_ray_job(desk: Desk, upstream: str) -> subprocess.Popen[str]:
    """Start an evaluation as a Ray job without `eval submit`; it ends when that does."""
    here = desk.directory
    words = ["eval", "run", "-c", "agent.yaml", "--model-type", "openai_model", "-i", desk.rows(2), "-o"]
    words += [f"{here}/by-hand.jsonl", f"++policy_base_url={upstream}/v1", "++policy_api_key=k"]
    words += [
        "++policy_model_name=numbered",
        "++observability_enabled=true",
        f"++model_call_capture_dir={here}/by-hand",
    ]
    command = [Path(PYTHON).parent / "ray", "job", "submit", "--address", desk.head.url, "--working-dir", here]
    return desk.run_program(*command, "--", PYTHON, "-m", "gym_ray", *words)


def test_failures_stops_and_silence_are_told_apart(desk: Desk) -> None:
    sleeps = {"command": "echo sleeping; exec sleep 600"}
    deaf = {"command": [PYTHON, "-c", DEAF]}
    benchmarks = {"good": {"command": "true"}, "bad": {"command": "exit 3"}, "long": sleeps, "killed": sleeps}
    job = desk.submit(benchmarks | {"deaf": deaf})
    directory = Path(job["job_dir"])
    wait_for(lambda: all(read_status(directory, name)["state"] == "running" for name in ("long", "killed", "deaf")))
    os.kill(read_status(directory, "killed")["pid"], signal.SIGKILL)
    expected = {"good": "complete", "bad": "failed", "long": "running", "killed": "failed", "deaf": "running"}

    def found() -> dict[str, Any]:
        return desk.states(directory, code=1)

    wait_for(lambda: {name: one["state"] for name, one in found().items()} == expected)
    assert read_status(directory, "killed")["state"] == "running", "what a killed driver leaves"
    assert "its driver ended without a word, Ray says FAILED" in found()["killed"]["message"]
    assert "exit code 3" in found()["bad"]["message"]
    assert desk.here("eval", "logs", directory, "long").splitlines()[-1] == "sleeping"
    wait_for(lambda: "deaf" in desk.here("eval", "logs", directory, "deaf").splitlines())
    desk.here("eval", "stop", directory, "deaf", "--now")
    assert found()["deaf"]["state"] == "stopped", "although it does not listen"
    desk.here("eval", "stop", directory, "long")
    assert found()["long"]["state"] == "stopped"
    assert read_status(directory, "long")["exit_code"] == 130
    before = read_status(directory, "long")
    desk.here("eval", "stop", directory)
    assert read_status(directory, "long") == before, "a second time does no harm"
    assert read_status(directory, "killed")["state"] == "failed", "what Ray said is kept"


def test_an_uploaded_checkout_wins_over_the_installed_package(desk: Desk, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    for name in ("gym_ray", "actors"):
        shutil.copytree(ROOT / name, checkout / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    where = {"where": {"command": f"{PYTHON} -c 'import gym_ray.actors.calls as c; print(c.__file__)'"}}
    job = desk.submit(where, "--wait", f"--working-dir={checkout}")
    (line,) = [line for line in desk.here("eval", "logs", job["job_dir"]).splitlines() if line.endswith("calls.py")]
    assert not Path(line).is_relative_to(ROOT)
    assert Path(line).parts[-3:] == ("gym_ray", "actors", "calls.py")


def test_a_token_that_is_not_taken_is_never_shown(desk: Desk, tmp_path: Path) -> None:
    document = desk.document({"one": {"command": "true"}})
    (tmp_path / "other").write_text("0123456789abcdef" * 4)
    cases = [
        ({"RAY_AUTH_TOKEN_PATH": str(tmp_path / "other")}, "does not take this token"),
        ({"RAY_AUTH_MODE": "disabled"}, "wants a token, and this command sends none"),
        ({"RAY_AUTH_TOKEN_PATH": str(tmp_path / "none")}, "cannot be read: No such file or directory"),
    ]
    started = [desk.start("eval", "submit", document, **environ) for environ, _ in cases]
    for process, (_, message) in zip(started, cases, strict=True):
        out, err = process.communicate(timeout=120)
        assert process.returncode == 1
        assert message in err
        assert "0123456789abcdef" not in out + err
    assert not desk.output.exists()


def stalling(app: Starlette, after: int) -> ASGIApp:
    """Answer so many requests for a response, and none after them."""
    numbers = itertools.count(1)

    async def stalls(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].endswith("/responses") and next(numbers) > after:
            await asyncio.Event().wait()
        await app(scope, receive, send)

    return stalls


def test_an_evaluation_outlives_its_cluster(desk: Desk, head: JobHead, tmp_path: Path) -> None:
    """The last one: it takes the head of all with it."""
    shared = {"model_call_capture_dir": str(tmp_path / "shared")}
    with served(stalling(numbered_upstream(0.0), 3)) as upstream, served(numbered_upstream(0.0)) as fast:
        slow = desk.run(8, num_samples_in_parallel=1, **shared)
        job = desk.submit({"slow": slow, "done": {"command": "true"}}, upstream=upstream)
        directory, files = Path(job["job_dir"]) / "slow", read_job(job["job_dir"])
        wait_for(lambda: len(records(directory)) == 3)
        others = {"second": desk.run(2, **shared), "without": desk.run(1, observability_enabled=False)}
        second = desk.submit(others, "--wait", upstream=fast, code=1)
        refused_in_a_shared_directory(second, directory)

        assert desk.states(job["job_dir"], code=2)["slow"]["ray"] == "RUNNING"
        head.kill()
        wait_for(lambda: not alive(read_status(job["job_dir"], "slow")["pid"]))
        assert len(records(directory)) == 3
        refused = desk.refused("eval", "submit", "--resume", job["job_dir"])
        assert "slow: is running; stop it first" in refused, "its driver was silent for too short a time"
        long_ago = replace(files.status("slow"), heartbeat_at=time.time() - 3600)
        files.record_status("slow", long_ago)
        found = desk.states(job["job_dir"], code=1)["slow"]
        assert (found["state"], found["counted"]) == ("running", "failed")
        assert "no word since" in found["message"]
        assert "nothing there answers in HTTP" in found["ray_trouble"]

        arguments = directory / "arguments.json"  # the model moved meanwhile; its address is in the arguments
        arguments.write_text(arguments.read_text().replace(upstream, fast))
        (tmp_path / "second").mkdir()
        with job_head(tmp_path / "second", head.token) as other:
            goes_on_in_another_cluster(desk, other, job, directory)


def refused_in_a_shared_directory(second: Any, owner: Path) -> None:
    found = {one["name"]: one for one in second["benchmarks"]}
    assert (found["second"]["state"], found["without"]["state"]) == ("failed", "complete")
    assert str(owner / "artifacts" / "rollouts.jsonl") in found["second"]["message"]
    assert "0-0" in found["second"]["message"]
    assert [len(records(Path(second["job_dir"]) / name)) for name in found] == [0, 1]
    assert not list(Path(second["job_dir"]).glob("*/model-calls")), "one is elsewhere, one is off"


def goes_on_in_another_cluster(desk: Desk, other: JobHead, job: Any, directory: Path) -> None:
    first = records(directory)
    resume = ("eval", "submit", "--resume", job["job_dir"], "--address", other.url, "--json")
    again = json.loads(desk.here(*resume, "--wait"))
    found = {one["name"]: one for one in again["benchmarks"]}
    assert {one["state"] for one in found.values()} == {"complete"}
    assert (found["slow"]["submission_id"], found["slow"]["address"]) == (f"{job['job_id']}-slow-2", other.url)
    assert found["done"]["submission_id"] == f"{job['job_id']}-done-1", "what is complete is left alone"
    whole = records(directory)
    assert whole[: len(first)] == first
    assert sorted(record["_ng_task_index"] for record in whole) == list(range(8))
    assert json.loads(desk.here(*resume)) == again, "nothing is left to do"


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
