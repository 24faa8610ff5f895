"""PUTs that captures cost on an object store: a capture writer in one process, a local S3 protocol in another.

    .venv/bin/python benchmarks/scale_captures.py --calls 2048 --in-flight 64 --engine-s 0.05

Every PUT is counted where the server sees it: segments, the registration and the probe at the start. Calls take a
random time around ``engine-s``, so that records arrive unevenly, as those of real engines do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gym_ray.capture_location import CaptureLocation
from gym_ray.model_call_capture.segments.backend import SegmentBackend
from gym_ray.model_call_capture.segments.layout import decode_segment
from gym_ray.model_call_capture.writer import CaptureWriter
from gym_ray.storage.opening import open_store
from gym_ray.testing.faulty_http import faulty_http
from gym_ray.testing.s3_server import s3_server

_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class PutsPerCall:
    """What was counted.

    Attributes:
        calls: Acknowledged calls, every one of which was found in a segment afterwards.
        puts: PUT requests that the server saw.
        segments: Segments among them.
        in_flight: Calls at the same time.
        engine_s: Mean time of a call without its record.
        seconds: From the first call to the last acknowledgement.
    """

    calls: int
    puts: int
    segments: int
    in_flight: int
    engine_s: float
    seconds: float

    @property
    def ratio(self) -> float:
        """PUTs per call."""
        return self.puts / self.calls


def puts_per_call(calls: int, in_flight: int, *, engine_s: float = 0.05) -> PutsPerCall:
    """Make calls, and return how many PUTs their records cost."""
    me = [sys.executable, __file__]
    with subprocess.Popen(
        [*me, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            place = json.loads(server.stdout.readline())
            task = {**place, "calls": calls, "in_flight": in_flight, "engine_s": engine_s}
            written = subprocess.run(
                [*me, "--write", json.dumps(task)], stdout=subprocess.PIPE, check=True, timeout=_TIMEOUT_S
            )
            server.stdin.close()
            counted = json.loads(server.stdout.readline())
        finally:
            server.kill()
    told = json.loads(written.stdout)
    if counted["records"] != told["acknowledged"] or told["acknowledged"] != calls:
        raise RuntimeError(f"{calls} calls, {told} and {counted}")
    return PutsPerCall(calls, counted["puts"], counted["segments"], in_flight, engine_s, told["seconds"])


def _serve() -> None:
    with s3_server() as server, faulty_http((server.host, server.port)) as proxy:
        where = server.new_url()
        print(json.dumps({"where": where, "options": server.options(proxy.url)}), flush=True)
        sys.stdin.read()  # until the other side closes it
        puts = [request for request in proxy.requests if request.method == "PUT"]
        store = open_store(where, storage_options=server.options())
        names = store.list("segments/")
        records = sum(len(decode_segment(store.read(name), name=name)[0].records) for name in names)
        store.close()
        print(json.dumps({"puts": len(puts), "segments": len(names), "records": records}), flush=True)


def _write(task: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as local_dir:
        location = CaptureLocation(task["where"], task["options"])
        writer = CaptureWriter(SegmentBackend.at(location, local_dir=Path(local_dir)), server_name="bench")
        writer.start()
        seconds = asyncio.run(_calls(writer, task["calls"], task["in_flight"], task["engine_s"]))
        writer.close()
        print(json.dumps({"acknowledged": writer.counts.recorded, "seconds": seconds}))


async def _calls(writer: CaptureWriter, calls: int, in_flight: int, engine_s: float) -> float:
    numbers, chance = iter(range(calls)), random.Random(1)

    async def client() -> None:
        for number in numbers:
            exchange = writer.begin(f"{number % 512}-0", "chat")
            assert exchange is not None
            await asyncio.sleep(chance.uniform(0.5, 1.5) * engine_s)
            exchange.status, exchange.complete = 200, True
            exchange.request = [b'{"messages":[{"role":"user","content":"' + b"x" * 4000 + b'"}]}']
            exchange.response = [b'{"choices":[{"index":0,"message":{"content":"' + b"y" * 2000 + b'"}}]}']
            await writer.commit(exchange)

    begun = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(in_flight)))
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2048)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--engine-s", type=float, default=0.05)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--write", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        _serve()
    elif options.write:
        _write(json.loads(options.write))
    else:
        found = puts_per_call(options.calls, options.in_flight, engine_s=options.engine_s)
        print(json.dumps({**asdict(found), "puts_per_call": found.ratio}))


if __name__ == "__main__":
    main()
