"""What is said about a job server that cannot be used, told by servers that answer as such ones do."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gym_ray.errors import ClusterError
from gym_ray.testing.serving import served

pytestmark = [pytest.mark.ray]


def answering(**routes: Any) -> Starlette:
    """A server that gives each path, with - for /, its answer: a JSON document or a status."""

    def endpoint(answer: Any) -> Any:
        async def answered(_: Request) -> Response:
            return Response("Unauthorized", answer) if isinstance(answer, int) else JSONResponse(answer)

        return answered

    paths = {f"/api/{name.replace('__', '/')}": endpoint(answer) for name, answer in routes.items()}
    return Starlette(routes=[Route(path, answer, methods=["GET", "POST", "PUT"]) for path, answer in paths.items()])


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
def test_a_cluster_that_cannot_be_used_is_named_with_a_remedy(app: Starlette, message: str) -> None:
    from gym_ray.actors.jobs import RayJobs

    with served(app) as url, pytest.raises(ClusterError, match=message) as caught:
        RayJobs(url)
    assert str(caught.value).startswith(url)
    assert "\n" not in str(caught.value)


def test_an_older_cluster_that_tells_nothing_about_itself_is_used() -> None:
    from gym_ray.actors.jobs import RayJobs

    with served(answering(version=VERSION)) as url:
        assert RayJobs(url).address == url
