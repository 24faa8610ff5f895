"""Jobs on a real cluster with its job server: one head for all tests of this file."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gym_ray.errors import ClusterError
from gym_ray.testing.serving import served

pytestmark = [pytest.mark.ray, pytest.mark.timeout(150)]

METHODS = ["GET", "POST", "PUT"]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@dataclass(frozen=True)
class Head:
    """A cluster of one node with a job server.

    Attributes:
        url: Of the job server.
        gcs: ``host:port`` of Ray itself.
        token: The file with its token.
    """

    url: str
    gcs: str
    token: Path

    def authorised(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token.read_text()}"}


def wait_for(what: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := what()):
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module")
def head(ray_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    """A head of our own, with a directory of its own; its path must be short, since sockets lie in it."""
    log = tmp_path_factory.mktemp("head") / "log"
    scratch = Path("/tmp") / f"gr{secrets.token_hex(3)}"
    gcs, dashboard, agent = free_port(), free_port(), free_port()
    command = [Path(sys.executable).parent / "ray", "start", "--head", "--block", f"--port={gcs}", "--num-cpus=2"]
    command += ["--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}"]
    command += ["--include-dashboard=true", "--disable-usage-stats", f"--dashboard-agent-listen-port={agent}"]
    command += ["--min-worker-port=0", "--max-worker-port=0", f"--temp-dir={scratch}"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    found = Head(f"http://127.0.0.1:{dashboard}", f"127.0.0.1:{gcs}", Path(os.environ["RAY_AUTH_TOKEN_PATH"]))

    def up() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return httpx.get(f"{found.url}/api/version", headers=found.authorised()).status_code == 200
        except httpx.TransportError:
            return False

    try:
        wait_for(up)
        yield found
    finally:
        process.send_signal(signal.SIGTERM)  # with --block this ends all that `ray start` started, and nothing else
        process.wait(60)


@pytest.fixture(scope="module")
def jobs(head: Head) -> Any:
    from gym_ray.actors.jobs import RayJobs

    return RayJobs(head.url)


def new_id() -> str:
    return f"gym-ray-test-{secrets.token_hex(4)}"


def job_of(submission_id: str, entrypoint: str, **more: Any) -> Any:
    from gym_ray.actors.jobs import JobRequest

    return JobRequest(submission_id, entrypoint, **more)


def test_a_job_runs_once_however_often_it_is_submitted(head: Head, jobs: Any, tmp_path: Path) -> None:
    job = job_of(new_id(), f"echo ran >> {tmp_path}/ran", metadata={"gym_ray_job": "test"})
    assert jobs.word(job.submission_id) is None
    assert [jobs.submit(job), jobs.submit(job)] == [True, False]
    wait_for(lambda: jobs.word(job.submission_id).ended)
    assert jobs.submit(job) is False, "also when it is over"
    assert jobs.word(job.submission_id).status == "SUCCEEDED"
    assert (tmp_path / "ran").read_text() == "ran\n"
    assert jobs.stop(job.submission_id) is False, "nothing is left to end"
    assert jobs.stop("gym-ray-never-submitted") is False


def test_a_failed_job_says_what_it_printed(jobs: Any) -> None:
    job = job_of(new_id(), "echo the $((6 * 7)) reasons; exit 7")
    jobs.submit(job)
    word = wait_for(lambda: (found := jobs.word(job.submission_id)).ended and found)
    assert word.status == "FAILED"
    assert "exit code 7" in word.message
    assert "the 42 reasons" in word.message.splitlines()


def test_a_running_job_is_stopped(jobs: Any, tmp_path: Path) -> None:
    job = job_of(new_id(), f"touch {tmp_path}/runs; sleep 600")
    jobs.submit(job)
    wait_for((tmp_path / "runs").exists)
    assert jobs.stop(job.submission_id) is True
    wait_for(lambda: jobs.word(job.submission_id).status == "STOPPED")
    assert jobs.stop(job.submission_id) is False


def test_a_working_directory_arrives_without_what_is_excluded(jobs: Any, tmp_path: Path) -> None:
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "kept").touch()
    (tmp_path / "up" / "left").touch()
    entrypoint = f"ls > {tmp_path}/seen"
    job = job_of(new_id(), entrypoint, working_dir=tmp_path / "up", excludes=["left"])
    jobs.submit(job)
    wait_for(lambda: jobs.word(job.submission_id).ended)
    assert (tmp_path / "seen").read_text().split() == ["kept"]


class Proxy:
    """Passes everything on to the head, and loses replies to submissions."""

    def __init__(self, head: Head, lost: int) -> None:
        self.head, self.lost, self.submissions = head, lost, 0

    async def forward(self, request: Request) -> Response:
        body = await request.body()
        async with httpx.AsyncClient(timeout=60) as client:
            headers = self.head.authorised() | {"Content-Type": request.headers.get("content-type", "")}
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


@pytest.mark.parametrize("lost", [1, 2])
def test_a_lost_reply_makes_no_second_job(head: Head, jobs: Any, tmp_path: Path, lost: int) -> None:
    from gym_ray.actors.jobs import RayJobs

    proxy = Proxy(head, lost)
    job = job_of(new_id(), f"echo ran >> {tmp_path}/ran")
    with served(proxy.app()) as url:
        assert RayJobs(url).submit(job) is False, "found when it was asked again"
    assert proxy.submissions == lost + 1
    wait_for(lambda: jobs.word(job.submission_id).ended)
    assert (tmp_path / "ran").read_text() == "ran\n"


def test_replies_that_never_come_are_told_as_not_known(head: Head, jobs: Any) -> None:
    from gym_ray.actors.jobs import RayJobs

    job = job_of(new_id(), "true")
    with served(Proxy(head, 99).app()) as url, pytest.raises(ClusterError, match="may run all the same"):
        RayJobs(url).submit(job)
    assert jobs.submit(job) is False


def answering(**routes: Any) -> Starlette:
    """A server that gives each path, with - for /, its answer: a JSON document or a status."""

    def endpoint(answer: Any) -> Any:
        async def answered(_: Request) -> Response:
            return Response("Unauthorized", answer) if isinstance(answer, int) else JSONResponse(answer)

        return answered

    paths = {f"/api/{name.replace('__', '/')}": endpoint(answer) for name, answer in routes.items()}
    return Starlette(routes=[Route(path, answer, methods=METHODS) for path, answer in paths.items()])


VERSION = {"version": "4", "ray_version": "2.60.0", "ray_commit": "", "session_name": ""}


def about(ray: str, python: str) -> Any:
    return {"result": True, "msg": "", "data": {"rayVersion": ray, "pythonVersion": python}}


@pytest.mark.parametrize(
    ("app", "message"),
    [
        (answering(version=VERSION, v0__cluster_metadata=about("2.59.1", "3.11.7")), "runs Ray 2.59.1, this command"),
        (answering(version=VERSION, v0__cluster_metadata=about("2.60.0", "3.9.1")), "runs Python 3.9.1, this command"),
        (answering(version=401), "wants a token, and this command sends none; set RAY_AUTH_MODE=token"),
        (answering(version=403), "does not take this token; RAY_AUTH_TOKEN_PATH must name"),
        (answering(version={"hello": "world"}), "what answers there is no job server of Ray"),
        (answering(other={}), "what answers there is no job server of Ray"),
    ],
    ids=["ray", "python", "no token", "wrong token", "another service", "no service"],
)
def test_a_cluster_that_cannot_be_used_is_named_with_a_remedy(app: Starlette, message: str, head: Head) -> None:
    from gym_ray.actors.jobs import RayJobs

    with served(app) as url, pytest.raises(ClusterError, match=message) as caught:
        RayJobs(url)
    assert str(caught.value).startswith(url)
    assert "\n" not in str(caught.value)
    assert head.token.read_text() not in str(caught.value)


def test_an_older_cluster_that_tells_nothing_about_itself_is_used(head: Head) -> None:
    from gym_ray.actors.jobs import RayJobs

    with served(answering(version=VERSION)) as url:
        assert RayJobs(url).address == url


def test_addresses_at_which_nobody_answers_as_a_job_server_should(head: Head) -> None:
    from gym_ray.actors.jobs import RayJobs

    for url in (f"http://{head.gcs}", f"http://127.0.0.1:{free_port()}"):
        with pytest.raises(ClusterError, match=r"nothing there answers in HTTP; .*http://HEAD:8265.*ray://HEAD:10001"):
            RayJobs(url)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ClusterError, match="no answer in time"):
            RayJobs(url, answer_s=0.2)
