"""Jobs on a real cluster with its job server: one head for all tests of this file."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from gym_ray.errors import ClusterError
from gym_ray.testing.job_head import JobHead, free_port, job_head
from gym_ray.testing.serving import served

pytestmark = [pytest.mark.ray, pytest.mark.timeout(150)]

METHODS = ["GET", "POST", "PUT"]


def wait_for(what: Callable[[], Any], timeout_s: float = 60.0) -> Any:
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


def test_a_job_runs_once_however_often_it_is_submitted(head: JobHead, jobs: Any, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("lost", [1, 2])
def test_a_lost_reply_makes_no_second_job(head: JobHead, jobs: Any, tmp_path: Path, lost: int) -> None:
    from gym_ray.actors.jobs import RayJobs

    proxy = Proxy(head, lost)
    job = job_of(new_id(), f"echo ran >> {tmp_path}/ran")
    with served(proxy.app()) as url:
        assert RayJobs(url).submit(job) is False, "found when it was asked again"
    assert proxy.submissions == lost + 1
    wait_for(lambda: jobs.word(job.submission_id).ended)
    assert (tmp_path / "ran").read_text() == "ran\n"


def test_replies_that_never_come_are_told_as_not_known(head: JobHead, jobs: Any) -> None:
    from gym_ray.actors.jobs import RayJobs

    job = job_of(new_id(), "true")
    with served(Proxy(head, 99).app()) as url, pytest.raises(ClusterError, match="may run all the same"):
        RayJobs(url).submit(job)
    assert jobs.submit(job) is False


def test_addresses_at_which_nobody_answers_as_a_job_server_should(head: JobHead) -> None:
    from gym_ray.actors.jobs import RayJobs

    for url in (f"http://{head.gcs}", f"http://127.0.0.1:{free_port()}"):
        with pytest.raises(ClusterError, match=r"nothing there answers in HTTP; .*http://HEAD:8265.*ray://HEAD:10001"):
            RayJobs(url)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ClusterError, match="no answer in time"):
            RayJobs(url, answer_s=0.2)
