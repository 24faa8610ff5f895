from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import pytest

from gym_ray.log_context import LogFormatter, bound


@pytest.fixture
def lines() -> Iterator[tuple[logging.Logger, io.StringIO, logging.Handler]]:
    log, stream = logging.getLogger("gym_ray.test_log_context"), io.StringIO()
    handler = logging.StreamHandler(stream)
    log.addHandler(handler)
    log.propagate = False
    yield log, stream, handler
    log.removeHandler(handler)
    log.propagate = True


async def test_lines_of_attempts_side_by_side_name_their_own(
    lines: tuple[logging.Logger, io.StringIO, logging.Handler],
) -> None:
    log, stream, handler = lines
    handler.setFormatter(LogFormatter("json", "n1"))

    async def attempt(number: int) -> None:
        with bound(rollout_id=f"{number}-0", attempt=number):
            await asyncio.sleep(0)
            await asyncio.to_thread(log.warning, "from %d", number)

    await asyncio.gather(*(attempt(number) for number in range(3)))
    log.warning('outside "\n"')
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    named = {(line["message"], line["rollout_id"], line["attempt"], line["node"]) for line in found[:3]}
    assert named == {(f"from {n}", f"{n}-0", n, "n1") for n in range(3)}
    assert "rollout_id" not in found[3]
    assert (found[3]["level"], found[3]["logger"]) == ("WARNING", log.name)


def test_an_error_keeps_its_trace_and_stays_one_line(
    lines: tuple[logging.Logger, io.StringIO, logging.Handler],
) -> None:
    log, stream, handler = lines
    handler.setFormatter(LogFormatter("json"))
    try:
        int("x")
    except ValueError:
        log.exception("failed")
    (line,) = stream.getvalue().splitlines()
    assert "ValueError" in json.loads(line)["error"]


def test_text_names_the_attempt_in_front(lines: tuple[logging.Logger, io.StringIO, logging.Handler]) -> None:
    log, stream, handler = lines
    handler.setFormatter(LogFormatter("text"))
    with bound(rollout_id="0-0-a1", attempt=1):
        log.warning("hello")
    assert stream.getvalue().startswith("[0-0-a1 attempt 1] ")
    assert stream.getvalue().endswith("hello\n")
