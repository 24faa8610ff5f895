"""Which training-capture calls on unobserved paths mark their rollout, and that the client never notices."""

from __future__ import annotations

from typing import Any

import pytest

from gym_ray.correlation import current_rollout_id
from gym_ray.model_call_capture.middleware import CaptureMiddleware
from gym_ray.model_call_capture.training_calls import UnobservedTrainingCalls
from gym_ray.model_call_capture.writer import CaptureWriter

PREFIX = "/ng-rollout/r-0/training-token-capture"


class Site:
    """An app that answers with one status, the layer around it, and one log of marks and messages."""

    def __init__(
        self, status: int = 200, *, raises: bool = False, location: str = "", mark_fails: bool = False
    ) -> None:
        self.status, self.raises, self.location, self.mark_fails = status, raises, location, mark_fails
        self.log: list[Any] = []
        self.ids: list[str | None] = []

    def mark(self, rollout_id: str, call_id: str) -> None:
        self.log.append((rollout_id, call_id))
        if self.mark_fails:
            raise OSError("no space left")

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        self.ids.append(current_rollout_id.get())
        headers = [(b"location", self.location.encode())] if self.location else []
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        if self.raises:
            raise RuntimeError("broke off")
        await send({"type": "http.response.body", "body": b"answer", "more_body": False})

    async def call(self, path: str, method: str = "POST", writer: CaptureWriter | None = None, **options: Any) -> None:
        async def receive() -> Any:
            return {"type": "http.request", "body": b"{}", "more_body": False}

        async def send(message: Any) -> None:
            self.log.append(message.get("status") or message["body"])
            for name, value in message.get("headers", []):
                self.log.append((name, value))

        training = UnobservedTrainingCalls(self.mark, **options)
        scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": [(b"host", b"h")]}
        await CaptureMiddleware(self.app, writer, training)(scope, receive, send)


async def test_the_mark_comes_before_the_answer() -> None:
    site = Site()
    await site.call(f"{PREFIX}/v1/completions")
    assert site.log == [("r-0", ""), 200, b"answer"]
    assert site.ids == ["r-0"]
    assert current_rollout_id.get() is None


@pytest.mark.parametrize("status", [404, 405, 301, 307, 399])
async def test_what_generated_nothing_marks_nothing(status: int) -> None:
    site = Site(status)
    await site.call(f"{PREFIX}/v1/completions/")
    assert site.log == [status, b"answer"]


@pytest.mark.parametrize("status", [200, 204, 400, 422, 500])
async def test_what_may_have_generated_marks_once(status: int) -> None:
    site = Site(status, raises=True)
    with pytest.raises(RuntimeError, match="broke off"):
        await site.call(f"{PREFIX}/v1/completions")
    assert site.log == [("r-0", ""), status]


async def test_a_handler_that_breaks_off_marks_whatever_it_began_with() -> None:
    site = Site(404, raises=True)
    with pytest.raises(RuntimeError, match="broke off"):
        await site.call(f"{PREFIX}/v1/completions")
    assert site.log == [404, ("r-0", "")]


async def test_a_mark_that_fails_is_logged_and_the_answer_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    site = Site(mark_fails=True)
    await site.call(f"{PREFIX}/v1/completions")
    assert site.log == [("r-0", ""), 200, b"answer"]
    assert caplog.messages == ["r-0: token capture could not be marked incomplete"]


async def test_a_redirect_keeps_the_prefix() -> None:
    site = Site(307, location="/v1/completions")
    await site.call(f"{PREFIX}/v1/completions/")
    assert site.log == [307, (b"location", f"{PREFIX}/v1/completions".encode()), b"answer"]


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/models"), ("GET", "/health"), ("POST", "/v1/messages/count_tokens"), ("PUT", "/mine")],
)
async def test_what_generates_nothing_is_told_by_method_and_path(method: str, path: str) -> None:
    declared = {"non_generating": [("PUT", "/mine")]}
    for other_method, other_path in (("PATCH", path), (method, path + "/")):
        site = Site()
        await site.call(PREFIX + other_path, other_method, **declared)
        assert site.log[0] == ("r-0", "")
    site = Site()
    await site.call(PREFIX + path, method, **declared)
    assert site.log == [200, b"answer"]


@pytest.mark.parametrize("path", [f"{PREFIX}/v1/chat/completions", "/ng-rollout/r-0/v1/completions", "/v1/completions"])
async def test_other_calls_are_none_of_its_business(path: str, writer: CaptureWriter) -> None:
    site = Site()
    await site.call(path, writer=writer)
    assert site.log == [200, b"answer"]
    assert len(writer.store.read("r-0")) == path.endswith("chat/completions")


async def test_the_answer_waits_for_the_mark_to_be_durable() -> None:
    site = Site()

    async def settled(rollout_id: str) -> None:
        site.log.append(("durable", rollout_id))

    await site.call(f"{PREFIX}/v1/completions", settled=settled)
    assert site.log == [("r-0", ""), ("durable", "r-0"), 200, b"answer"]


async def test_a_mark_that_cannot_settle_changes_no_answer() -> None:
    site = Site()

    async def settled(rollout_id: str) -> None:
        raise OSError(rollout_id)

    await site.call(f"{PREFIX}/v1/completions", settled=settled)
    assert site.log == [("r-0", ""), 200, b"answer"]
