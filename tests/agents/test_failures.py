from __future__ import annotations

import httpx
import openai
import pytest

from gym_ray.agents.failures import failure_from
from gym_ray.errors import AgentError, AgentTimeoutError

REQUEST = httpx.Request("POST", "http://h/v1/responses")


def sdk_connection_error() -> Exception:
    try:
        raise openai.APIConnectionError(request=REQUEST) from httpx.ConnectError("refused", request=REQUEST)
    except openai.APIConnectionError as error:
        return error


def status_error(status: int, body: str = "why") -> Exception:
    response = httpx.Response(status, text=body, request=REQUEST)
    return httpx.HTTPStatusError("status", request=REQUEST, response=response)


@pytest.mark.parametrize(
    ("error", "failure_class", "status"),
    [
        (AgentError("judge_failed", "m", 418, "b"), "judge_failed", 418),
        (AgentTimeoutError("late"), "agent_timeout", None),
        (sdk_connection_error(), "engine_unavailable", None),
        (httpx.ReadTimeout("silent", request=REQUEST), "engine_unavailable", None),
        (status_error(429), "engine_unavailable", 429),
        (status_error(404), "agent_run_error", 404),
        (TimeoutError(), "agent_run_error", None),
        (SystemExit(2), "agent_run_error", None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_each_error_has_its_class(error: BaseException, failure_class: str, status: int | None) -> None:
    failure = failure_from(error)
    assert (failure.failure_class, failure.http_status) == (failure_class, status)
    assert failure.error_type == type(error).__name__
    assert failure.message


def test_the_message_is_one_line_and_the_body_is_cut() -> None:
    failure = failure_from(AgentError("agent_run_error", "a\n  b\r\nc " + "x" * 5000, 500, "y" * 2001))
    assert failure.message.startswith("a b c xxx")
    assert len(failure.message) == 1000
    assert failure.response_body == "y" * 2000 + "…"
    assert failure_from(status_error(500, "z" * 2000)).response_body == "z" * 2000


def test_a_streamed_answer_that_nobody_read_has_no_body() -> None:
    response = httpx.Response(503, stream=httpx.ByteStream(b"x"), request=REQUEST)
    failure = failure_from(httpx.HTTPStatusError("status", request=REQUEST, response=response))
    assert (failure.failure_class, failure.response_body) == ("engine_unavailable", None)


class HostileStatus(Exception):
    @property
    def status_code(self) -> int:
        raise SystemExit(1)


def test_an_error_that_breaks_when_it_is_looked_at_is_a_named_failure() -> None:
    failure = failure_from(HostileStatus("x"))
    assert (failure.failure_class, failure.error_type) == ("agent_run_error", "HostileStatus")
    assert failure.message == "the error cannot be read: looking at it raised SystemExit"


def test_an_error_of_foreign_code_says_where_it_was_raised() -> None:
    def deep_inside(depth: int) -> None:
        if depth == 0:
            raise KeyError("the thing I wanted")
        deep_inside(depth - 1)

    with pytest.raises(KeyError) as caught:
        deep_inside(100)
    failure = failure_from(caught.value)
    assert failure.traceback is not None
    assert "deep_inside" in failure.traceback
    assert __file__ in failure.traceback
    assert failure.traceback.count("deep_inside(depth - 1)") < 10, "the innermost frames are enough"
    assert failure_from(AgentError("agent_run_error", "clear")).traceback is None
