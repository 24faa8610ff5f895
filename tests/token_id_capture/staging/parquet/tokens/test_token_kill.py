"""A process that writes is killed: what it acknowledged is there, and what it began and did not end is named."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from gym_ray.storage.opening import open_store
from gym_ray.testing.killed_process import lines_until_killed
from gym_ray.token_id_capture.staging.parquet import ParquetTokenSink, ParquetTokenSource

WRITER = """
import asyncio, sys
from gym_ray.testing.token_source import call_entry
from gym_ray.token_id_capture.staging.parquet import ParquetTokenSink

def say(*words):
    sys.stdout.write(" ".join(words) + "\\n")
    sys.stdout.flush()

async def one(sink, rollout, call):
    await sink.begin_call(rollout, call)
    say("begun", rollout, call)
    await sink.put(call_entry(call, range(40), range(200, 260), rollout_id=rollout))
    say("put", rollout, call)

async def write(where):
    sink, number = ParquetTokenSink(where), 0
    while True:
        await asyncio.gather(*[one(sink, f"r{lane}", f"c{number}-{lane}") for lane in range(12)])
        number += 1

asyncio.run(write(sys.argv[1]))
"""


async def test_kills(tmp_path: Path) -> None:
    named = [await named_behind_a_kill(tmp_path / str(seed), random.Random(seed).randint(1, 150)) for seed in range(3)]
    assert sum(named) >= 3  # so that the kills met calls on their way


async def named_behind_a_kill(where: Path, after_lines: int) -> int:
    """Kill a writer, hold what is there against what it said, and return how many calls were named as lost."""
    said = lines_until_killed([sys.executable, "-c", WRITER, str(where)], after_lines)
    words = [line.decode().split() for line in said if line.endswith(b"\n")]
    source, sink = ParquetTokenSource(where), ParquetTokenSink(where)
    unended = 0
    for rollout_id in sorted({rollout for _, rollout, _ in words}):
        put = {call for what, rollout, call in words if (what, rollout) == ("put", rollout_id)}
        begun = {call for what, rollout, call in words if (what, rollout) == ("begun", rollout_id)}
        snapshot = await source.freeze(rollout_id)
        kept = {entry.model_call_id for entry in snapshot.entries}
        assert put <= kept
        named = {problem.model_call_id for problem in snapshot.problems}
        assert begun - kept <= named
        assert snapshot.incomplete == bool(named)
        assert {problem.reason for problem in snapshot.problems} <= {"call_without_record"}
        unended += len(named)
    assert all(name.startswith(("default/", "frozen/", "store.json")) for name in open_store(where).list())
    assert not await sink.has_evidence("r99")
    await source.close()
    await sink.close()
    return unended
