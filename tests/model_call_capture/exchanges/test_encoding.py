"""Large exchanges become the same lines as small ones, whoever encodes them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gym_ray.model_call_capture.exchanges.encoding import RecordEncoder, encode_with_outcome
from gym_ray.model_call_capture.exchanges.exchange import Exchange
from gym_ray.model_call_capture.exchanges.redaction import Redactor
from gym_ray.model_call_capture.store import CaptureStore
from gym_ray.model_call_capture.writer import CaptureWriter

REDACTOR = Redactor(["sk-secret-1"], digest_key=b"key")


def exchange_of(size: int, error: BaseException | None = None, rollout_id: str = "0-0") -> Exchange:
    exchange = Exchange("c" * 32, rollout_id, "chat", "m", 1.0)
    message = {"role": "user", "content": "x" * size + " sk-secret-1"}
    exchange.request.append(json.dumps({"seed": 2**70, "messages": [message]}).encode())
    exchange.response.append(b'{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":3}}')
    exchange.status, exchange.complete, exchange.error = 200, True, error
    return exchange


@pytest.fixture
def encoder() -> Iterator[RecordEncoder]:
    found = RecordEncoder(REDACTOR)
    yield found
    found.close()


@pytest.mark.parametrize("size", [10, 3 * 1024**2])
def test_the_line_is_the_same_wherever_it_is_made(encoder: RecordEncoder, size: int) -> None:
    line, outcome = encoder.encode(exchange_of(size))
    assert (line, outcome) == encode_with_outcome(exchange_of(size), REDACTOR)
    assert b"sk-secret-1" not in line
    assert json.loads(line)["request"]["seed"] == 2**70
    assert (encoder._child.pid is not None) == (size > 10)


def test_an_exchange_that_no_child_can_take_is_encoded_here(encoder: RecordEncoder) -> None:
    class LocalError(Exception):
        """Cannot be pickled: its class has no importable name."""

    line, _ = encoder.encode(exchange_of(3 * 1024**2, LocalError()))
    assert json.loads(line)["error_category"] == "exception"


def test_a_killed_child_costs_no_record(encoder: RecordEncoder) -> None:
    encoder.encode(exchange_of(2 * 1024**2))
    assert encoder._child.pid is not None
    os.kill(encoder._child.pid, signal.SIGKILL)
    assert encoder.encode(exchange_of(2 * 1024**2))[0] == encode_with_outcome(exchange_of(2 * 1024**2), REDACTOR)[0]
    encoder.close()
    assert encoder.encode(exchange_of(2 * 1024**2))[0]


async def test_a_writer_records_large_exchanges_and_ends_its_child(tmp_path: Path) -> None:
    writer = CaptureWriter(tmp_path, server_name="m", redactor=REDACTOR)
    writer.start()
    for number in range(3):
        exchange = writer.begin("0-0", "chat", None)
        assert exchange is not None
        large = exchange_of(2 * 1024**2 + number)
        exchange.request, exchange.response = large.request, large.response
        exchange.status, exchange.complete = 200, True
        await writer.commit(exchange)
    pid = writer._encoder._child.pid
    writer.close()
    records = CaptureStore(tmp_path).read("0-0")
    lengths = [len(record["request"]["messages"][0]["content"]) for record in records]
    assert [length - lengths[0] for length in lengths] == [0, 1, 2]
    assert pid is not None
    assert not os.path.exists(f"/proc/{pid}")  # noqa: ASYNC240 - nothing else runs on this loop
