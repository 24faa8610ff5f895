"""Kills a process that writes segments to a real S3 protocol, and judges by what its clients were told."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gym_ray.capture_location import CaptureLocation
from gym_ray.model_call_capture.segments.backend import SegmentBackend
from gym_ray.model_call_capture.segments.layout import decode_segment
from gym_ray.model_call_capture.writer import CaptureWriter
from gym_ray.storage.opening import open_store
from gym_ray.testing.faulty_http import Fault, faulty_http
from gym_ray.testing.killed_process import lines_until_killed
from gym_ray.testing.s3_server import S3Server, s3_server

ROLLOUTS = 12

WRITER = """
import asyncio, json, os, sys
from pathlib import Path
from gym_ray.capture_location import CaptureLocation
from gym_ray.model_call_capture.segments.backend import SegmentBackend
from gym_ray.model_call_capture.writer import CaptureWriter

where, options, local_dir, rollouts, calls = json.loads(sys.argv[1])
backend = SegmentBackend.at(CaptureLocation(where, options), local_dir=Path(local_dir))
writer = CaptureWriter(backend, server_name="crash")
writer.start()

async def client(number):
    for _ in range(calls):
        exchange = writer.begin(f"{number}-0", "chat")
        os.write(1, f"begun {exchange.rollout_id} {exchange.call_id}\\n".encode())
        exchange.status, exchange.complete = 200, True
        exchange.request = [b'{"text": "' + b"x" * 7000 + b'"}']
        exchange.response = [b'{"choices": [{"index": 0}]}']
        await asyncio.sleep(0)
        await writer.commit(exchange)
        os.write(1, f"acknowledged {exchange.rollout_id} {exchange.call_id}\\n".encode())

async def main():
    await asyncio.gather(*(client(number) for number in range(rollouts)))

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


def kill_one(where: str, options: dict[str, object], local_dir: Path, after_lines: int) -> tuple[set[str], set[str]]:
    """Return what the clients saw begin and what was acknowledged, each ``rollout call``."""
    arguments = json.dumps([where, options, str(local_dir), ROLLOUTS, 10**6])
    begun, acknowledged = set(), set()
    for line in lines_until_killed([sys.executable, "-c", WRITER, arguments], after_lines):
        what, _, call = line.decode().rstrip().partition(" ")
        (begun if what == "begun" else acknowledged).add(call)
    return begun, acknowledged


def recorded_in(where: str, options: dict[str, object]) -> set[str]:
    store = open_store(where, storage_options=options)
    found = set()
    for name in store.list("segments/"):
        index, lines = decode_segment(store.read(name), name=name)
        assert None not in lines
        found |= {f"{record.rollout_id} {record.call_id}" for record in index.records}
    store.close()
    return found


def check(where: str, options: dict[str, object], local_dir: Path, begun: set[str], acknowledged: set[str]) -> None:
    recorded = recorded_in(where, options)
    assert acknowledged <= recorded
    assert recorded <= begun
    backend = SegmentBackend.at(CaptureLocation(where, options), local_dir=local_dir)
    successor = CaptureWriter(backend, server_name="crash")
    successor.start()
    successor.close()
    lost = {call.partition(" ")[0] for call in begun - recorded}
    store = open_store(where, storage_options=options)
    marked = {name.removeprefix("marks/").removesuffix(".json") for name in store.list("marks/")}
    store.close()
    late = {call.partition(" ")[0] for call in recorded_in(where, options) - recorded}  # ended in the server later
    assert lost - late <= marked <= lost


def kill_often(server: S3Server, root: Path, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    hit = 0
    for number in range(kills):
        where, options = server.new_url(), server.options()
        begun, acknowledged = kill_one(where, options, root / str(number), chance.randrange(20, 150))
        hit += len(begun - acknowledged) > 0
        check(where, options, root / str(number), begun, acknowledged)
    assert hit >= kills / 2  # otherwise the kills proved nothing


def test_what_was_acknowledged_survives_kill_9_and_the_rest_is_marked(server: S3Server, tmp_path: Path) -> None:
    kill_often(server, tmp_path, kills=3, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_kills(server: S3Server, tmp_path: Path) -> None:
    kill_often(server, tmp_path, kills=40, seed=2)


def test_kills_over_a_network_that_loses_answers(server: S3Server, tmp_path: Path) -> None:
    with faulty_http((server.host, server.port)) as proxy:
        where, through = server.new_url(), server.options(proxy.url)

        def is_segment(method: str, path: str) -> bool:
            return method == "PUT" and "/segments/" in path

        for fault in (Fault.LOST_ANSWER, Fault.STATUS_503, Fault.CUT_REQUEST, Fault.LOST_ANSWER):
            proxy.fail(fault, is_segment)
        begun, acknowledged = kill_one(where, through, tmp_path, 120)
        assert acknowledged
        proxy.calm()
        check(where, server.options(), tmp_path, begun, acknowledged)
