"""Kills a writing process with SIGKILL and judges by what its client was told."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

from gym_ray.model_call_capture.store import CaptureStore
from gym_ray.model_call_capture.writer import CaptureWriter
from gym_ray.testing.killed_process import lines_until_killed

ROLLOUTS = 12

WRITER = """
import asyncio, os, sys
from pathlib import Path
from gym_ray.model_call_capture.writer import CaptureWriter

writer = CaptureWriter(Path(sys.argv[1]), server_name="crash")
writer.start()

async def client(number):
    while True:
        exchange = writer.begin(f"{number}-0", "chat")
        os.write(1, f"begun {exchange.rollout_id} {exchange.call_id}\\n".encode())
        exchange.status, exchange.complete = 200, True
        exchange.request = [b'{"text": "' + b"x" * 7000 + b'"}']
        exchange.response = [b'{"choices": [{"index": 0}]}']
        await writer.commit(exchange)
        os.write(1, f"acknowledged {exchange.rollout_id} {exchange.call_id}\\n".encode())

async def main():
    await asyncio.gather(*(client(number) for number in range(int(sys.argv[2]))))

asyncio.run(main())
"""


def run_and_kill(root: Path, after_lines: int) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """Return the calls the client saw begin and those it was told are recorded, up to the kill."""
    lines = lines_until_killed([sys.executable, "-c", WRITER, str(root), str(ROLLOUTS)], after_lines)
    begun, acknowledged = set(), set()
    for line in lines:
        what, rollout_id, call_id = line.decode().split()
        (begun if what == "begun" else acknowledged).add((rollout_id, call_id))
    return begun, acknowledged


def check(root: Path, begun: set[tuple[str, str]], acknowledged: set[tuple[str, str]]) -> None:
    store = CaptureStore(root)
    recorded: set[tuple[str, str]] = set()
    for number in range(ROLLOUTS):
        rollout_id = f"{number}-0"
        exchanges, invalid = store.read_available(rollout_id)
        assert invalid <= 1
        recorded |= {(rollout_id, exchange["model_call_id"]) for _, exchange in exchanges}
    assert acknowledged <= recorded
    successor = CaptureWriter(root, server_name="crash")
    successor.start()
    successor.close()
    for rollout_id, _ in begun - recorded:
        assert store.is_incomplete(rollout_id)


def kill_often(root: Path, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    in_flight = 0
    for number in range(kills):
        directory = root / str(number)
        begun, acknowledged = run_and_kill(directory, chance.randrange(20, 400))
        in_flight += len(begun - acknowledged) > 0
        check(directory, begun, acknowledged)
    assert in_flight >= kills / 2  # otherwise the kills proved nothing


def test_what_was_acknowledged_survives_kill_9_and_the_rest_is_marked(tmp_path: Path) -> None:
    kill_often(tmp_path, kills=4, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_kills(tmp_path: Path) -> None:
    kill_often(tmp_path, kills=100, seed=2)


def test_a_killed_writers_line_is_followed_by_a_whole_one(tmp_path: Path) -> None:
    _, acknowledged = run_and_kill(tmp_path, 100)
    store = CaptureStore(tmp_path)
    rollout_id, _ = next(iter(acknowledged))
    with store.path_for(rollout_id).open("ab") as torn:
        torn.write(b'{"model_call_id":"half')
    before, _ = store.read_available(rollout_id)
    store.record(rollout_id, {"model_call_id": "next"})
    after, invalid = store.read_available(rollout_id)
    assert [exchange for _, exchange in after] == [*[e for _, e in before], {"model_call_id": "next"}]
    assert invalid == 1
    assert json.loads(store.path_for(rollout_id).read_bytes().splitlines()[-1]) == {"model_call_id": "next"}
