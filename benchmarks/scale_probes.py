"""What the benchmark ``scale`` measures, each in a process that holds one Ray cluster of its own."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.measuring import memory_bytes
from benchmarks.processes import cpu_by_process, spent
from benchmarks.scale_agents import CALLS
from benchmarks.scale_captures import puts_per_call
from benchmarks.scale_handoff import handoff
from gym_ray.cli.run_plan import plan_of
from gym_ray.cli.runtime import new_run_token, ray_session
from gym_ray.settings import RunSettings, load_settings

ROOT = Path(__file__).parents[1]
_SETTINGS = f"""
model_endpoint_timeout_s: 0
policy_model:
  responses_api_models:
    openai_model: {{openai_base_url: "http://127.0.0.1:9/v1", openai_api_key: k, openai_model: instant}}
AGENT:
  responses_api_agents:
    callable_agent:
      callable: {ROOT / "benchmarks" / "scale_agents.py"}:AGENT
"""


def settings_for(directory: Path, agent: str, rows: int, calls: int, **chosen: object) -> RunSettings:
    """Return the settings of a run, and write its rows."""
    directory.mkdir(parents=True, exist_ok=True)
    row = {"agent_ref": {"name": agent}, "responses_create_params": {"input": "go"}, "calls": calls}
    (directory / "rows.jsonl").write_text("".join(json.dumps(row | {"number": n}) + "\n" for n in range(rows)))
    (directory / "settings.yaml").write_text(_SETTINGS.replace("AGENT", agent))
    (directory / "env.yaml").write_text("{}\n")
    given = {
        "observability_enabled": "true",
        "model_call_capture_dir": directory / "model-calls",
        "input_jsonl_fpath": directory / "rows.jsonl",
        "output_jsonl_fpath": directory / "records.jsonl",
        **chosen,
    }
    tokens = [f"++{key}={value}" for key, value in given.items()]
    return load_settings([directory / "settings.yaml"], tokens, env_file=directory / "env.yaml", environ={})


@contextmanager
def cluster() -> Iterator[None]:
    """Hold a local cluster with the benchmark's own collector and model server in the product's place."""
    os.environ["PYTHONPATH"] = str(ROOT)
    with ray_session(f"gym-ray/{secrets.token_hex(4)}", num_cpus=2):
        from benchmarks import scale_hosts

        with (
            mock.patch("gym_ray.actors.collecting.CollectorHost", scale_hosts.MeasuredCollector),
            mock.patch("gym_ray.actors.server_starter.ModelServerHost", scale_hosts.InstantModelServer),
        ):
            yield


def collect(settings: RunSettings, directory: Path, *, look: Callable[[Any], dict[str, float]] | None = None) -> Any:
    """Collect a run and return what the collector's process used, and what ``look`` finds beside it."""
    from gym_ray.actors.calls import get
    from gym_ray.actors.collecting import collecting
    from gym_ray.actors.collector import CollectionPlan
    from gym_ray.actors.servers import start_servers

    token = new_run_token()
    servers = start_servers(settings, run_token=token, cache_dir=directory)
    try:
        plan = CollectionPlan(plan_of(settings), 1024)
        with collecting(settings, plan, servers.directory, run_token=token) as running:
            before = cpu_by_process(os.getpid())
            found: dict[str, float] = get(running.collector.collect.remote(), None)
            used = spent(before, cpu_by_process(os.getpid()))
            found |= {f"cpu_s of {name}": seconds for name, seconds in used.items()}
            found["done"] = get(running.collector.progress.remote(), None).done
            return found | (look(running) if look is not None else {})
    finally:
        servers.stop()


def whole(directory: Path, rows: int, at_once: int) -> dict[str, float]:
    """Collect many short rollouts, many at once; and make calls that do nothing, as many at once."""

    def look(running: Any) -> dict[str, float]:
        from gym_ray.actors.calls import get
        from gym_ray.actors.cluster import local_node, start_actor

        actor = start_actor(scale_hosts.Nothing, local_node(), "nothing", max_concurrency=2 * at_once)
        get(running.collector.call_nothing.remote(actor, 500, at_once), None)  # what is made once is made now
        a_call_s = get(running.collector.call_nothing.remote(actor, 5_000, at_once), None)
        one_s = get(running.collector.call_nothing.remote(actor, 2_000, 1), None)
        idle = get(running.collector.idle.remote(2.0), None)
        return {
            "noop_cpu_s": a_call_s,
            "one_noop_cpu_s": one_s,
            "idle_stall_ms": idle["stall_ms"],
            "idle_cpu_share": idle["cpu_s"] / 2.0,
            "command_rss": memory_bytes("VmRSS"),
        }

    settings = settings_for(directory, "quick", rows, 2, num_samples_in_parallel=at_once)
    with cluster():
        from benchmarks import scale_hosts

        return collect(settings, directory, look=look) | {"calls": 2.0 * rows}


def workers(directory: Path, rows: int, rounds: int) -> dict[str, float]:
    """Run busy agents on one worker and on two, and in one bare process and in two, in turns on the same servers."""
    with cluster():
        from gym_ray.actors.servers import start_servers

        found: dict[str, float] = {}
        for turn in range(rounds):
            for count in (1, 2):
                where = directory / f"collected-{turn}-{count}"
                chosen = {"num_rollout_workers": count, "num_samples_in_parallel": 8 * count}
                settings = settings_for(where, "busy", count * rows, CALLS, **chosen)
                taken = collect(settings, where)
                assert taken["done"] == count * rows
                found[f"collected_{count}_{turn}"] = taken["finished"] / taken["seconds"]
                token = new_run_token()
                servers = start_servers(settings, run_token=token, cache_dir=where)
                try:
                    url = next(iter(servers.directory.models["policy_model"])).url
                    found[f"bare_{count}_{turn}"] = bare_rate(url, token, rows, count, f"b{turn}x{count}")
                finally:
                    servers.stop()
        return found


def bare_rate(url: str, token: str, rows: int, count: int, name: str) -> float:
    """Return rollouts a second of ``count`` processes that run the same agent with nothing around it."""
    command = [sys.executable, "-m", "benchmarks.scale_bare", url, str(rows)]
    environ = os.environ | {"GYM_RAY_BENCH_TOKEN": token, "PYTHONPATH": str(ROOT)}
    with ExitStack() as stack:
        started = []
        for number in range(count):
            words = [*command, f"{name}-{number}"]
            process = subprocess.Popen(words, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            started.append(process)
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "READY\n"
        begun = time.monotonic()
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in started:
            assert process.wait() == 0
        return count * rows / (time.monotonic() - begun)


def captures(_: Path, calls: int, at_once: int) -> dict[str, float]:
    """Write captures to a local S3 server and count the PUTs that reach it."""
    found = puts_per_call(calls, at_once)
    return {"calls": found.calls, "puts": found.puts, "calls_per_s": found.calls / found.seconds}


PROBES = {"whole": whole, "workers": workers, "handoff": handoff, "captures": captures}
