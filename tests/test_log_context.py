from __future__ import annotations

import asyncio
import io
import logging

import pytest

from gym_ray.log_context import bound, name_attempts


@pytest.fixture
def lines() -> tuple[logging.Logger, io.StringIO]:
    # Of a registry of its own: test runners give the loggers of the process handlers.
    return logging.Manager(logging.RootLogger(logging.WARNING)).getLogger("tested"), io.StringIO()


class Fields(logging.Formatter):
    """Shows what a structured formatter would find on a record."""

    def format(self, record: logging.LogRecord) -> str:
        return repr((record.getMessage(), getattr(record, "rollout_id", None), getattr(record, "attempt", None)))


def with_fields(log: logging.Logger, stream: io.StringIO) -> None:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Fields())
    log.addHandler(handler)
    for _ in range(2):
        name_attempts(log)
    assert len(log.handlers) == len(handler.filters) == 1


async def test_lines_of_attempts_side_by_side_name_their_own(lines: tuple[logging.Logger, io.StringIO]) -> None:
    log, stream = lines
    with_fields(log, stream)

    async def attempt(number: int) -> None:
        with bound(rollout_id=f"{number}-0", attempt=number):
            await asyncio.sleep(0)
            await asyncio.to_thread(log.warning, "from %d", number)

    await asyncio.gather(*(attempt(number) for number in range(3)))
    log.warning("outside")
    *inside, outside = stream.getvalue().splitlines()
    assert set(inside) == {repr((f"from {n}", f"{n}-0", n)) for n in range(3)}
    assert outside == repr(("outside", None, None))


def test_a_caller_may_have_fields_of_these_names(lines: tuple[logging.Logger, io.StringIO]) -> None:
    log, stream = lines
    with_fields(log, stream)
    with bound(rollout_id="0-0", attempt=1):
        log.warning("hello", extra={"attempt": "mine"})
    assert stream.getvalue() == repr(("hello", "0-0", "mine")) + "\n"


def test_a_process_without_a_handler_gets_one_that_names_the_attempt(
    lines: tuple[logging.Logger, io.StringIO], capsys: pytest.CaptureFixture[str]
) -> None:
    log, _ = lines
    name_attempts(log)
    with bound(rollout_id="0-0-a1", attempt=1):
        log.warning("hello")
    log.warning("outside")
    inside, outside = capsys.readouterr().err.splitlines()
    assert inside.startswith("[rollout_id=0-0-a1 attempt=1] ")
    assert inside.endswith("WARNING tested: hello")
    assert not outside.startswith("[")
