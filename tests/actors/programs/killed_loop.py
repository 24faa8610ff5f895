"""A training loop that is killed: one line of JSON for each thing that it learns, then it waits to be ended.

Arguments: where Ray is (``own`` for nowhere, ``init:ADDRESS`` to begin it as trainers do), settings, directory of the
steps, and the rows of its only step as JSON.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

import ray

from gym_ray.actors import RolloutCollector


def say(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main(where: str, settings: str, directory: str, rows: str) -> None:
    begun = where.startswith("init:")
    if begun:
        ray.init(where.removeprefix("init:"), namespace="a-trainer")
    address = None if begun or where == "own" else where
    loop = RolloutCollector.start(settings, output_dir=directory, address=address, cache_dir=directory, environ={})
    last = loop.status()["weight_version"]
    say(interrupted=loop.interrupted_steps, last=last)
    loop.set_weight_version(0 if last is None else last + 1)
    for item in loop.collect(json.loads(rows)):
        oldest = item.tokens.column("oldest_weight_version").to_pylist()
        calls = [call["model_call_id"] for call in item.record["ng_model_call_capture"]["calls"]] if item.record else []
        say(id=item.rollout_id, reward=item.reward, reasons=item.reasons, versions=oldest, calls=calls)
    say(over=True)
    if where == "own":
        loop.close()
        say(ray=ray.is_initialized())
        return
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
