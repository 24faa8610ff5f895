"""An agent that leaves its process behind: a child of it goes on to ask after it is dead, or it leaks until it ends."""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from gym_ray.agents import RunContext

_SPEC = importlib.util.spec_from_file_location("surviving_agent", Path(__file__).with_name("surviving_agent.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
surviving = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(surviving)

LATE_CALLS = 3
PATIENCE_S = 60.0
ROOM, STEP = 256 << 20, 8 << 20


async def agent(row: dict[str, Any], ctx: RunContext) -> dict[str, Any]:
    match row["fate"]:
        case "leaves a child" if ctx.rollout_id.endswith("-0"):
            await one_call(row, ctx)
            leave_child(row, ctx)
            os.kill(os.getpid(), signal.SIGKILL)
        case "leaves a child":
            wake_child(row)
        case "is refused memory":
            surviving.note(row["diary"], what="began", rollout=ctx.rollout_id, pid=os.getpid())
            leak()
        case "dies of its leak":
            surviving.note(row["diary"], what="began", rollout=ctx.rollout_id, pid=os.getpid())
            try:
                leak()
            except MemoryError:
                os.abort()  # as a library does that cannot go on without memory
    reply: dict[str, Any] = await surviving.agent(row, ctx)
    return reply


async def one_call(row: dict[str, Any], ctx: RunContext) -> None:
    surviving.note(row["diary"], what="began", rollout=ctx.rollout_id, pid=os.getpid())
    reply = await ctx.http.post(
        f"{ctx.base_url('policy_model')}/responses",
        json={"input": f"{ctx.rollout_id} call 0"},
        headers={"authorization": f"Bearer {ctx.api_key}"},
    )
    reply.raise_for_status()
    name = surviving.answer_id(reply.text)
    surviving.note(row["diary"], what="answer", rollout=ctx.rollout_id, call=0, id=name)


def leave_child(row: dict[str, Any], ctx: RunContext) -> None:
    """Start a process in a session of its own that asks under this attempt's id, once it is woken."""
    told = {"url": f"{ctx.base_url('policy_model')}/responses", "key": ctx.api_key, "rollout": ctx.rollout_id}
    subprocess.Popen(
        [sys.executable, __file__, json.dumps(told | {name: row[name] for name in ("gate", "late")})],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def wake_child(row: dict[str, Any]) -> None:
    """Let the child ask, and go on when it has: its calls come while the next attempt runs."""
    Path(row["gate"]).touch()
    wait_for(lambda: Path(row["late"]).exists() and Path(row["late"]).read_bytes().count(b"\n") == LATE_CALLS)


def leak() -> None:
    """Take memory until there is none left for this process; what the others have is no less by it.

    Raises:
        MemoryError: In any case; the process may have as much as ever again.
    """
    limits = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, limits[1]))
    kept = []
    try:
        while True:
            kept.append(bytearray(STEP))
    finally:
        kept.clear()
        resource.setrlimit(resource.RLIMIT_AS, limits)


def wait_for(check: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not check():
        if time.monotonic() > deadline:
            raise TimeoutError("the other process does not come")
        time.sleep(0.02)


def go_on(told: dict[str, str]) -> None:
    """Ask under the id of an attempt whose process is dead, and note what came of it."""
    wait_for(Path(told["gate"]).exists)
    for number in range(LATE_CALLS):
        question = {"input": f"{told['rollout']} late call {number}"}
        reply = httpx.post(told["url"], json=question, headers={"authorization": f"Bearer {told['key']}"}, timeout=60)
        name = surviving.answer_id(reply.text) if reply.is_success else None
        surviving.note(told["late"], status=reply.status_code, id=name)


if __name__ == "__main__":
    go_on(json.loads(sys.argv[1]))
