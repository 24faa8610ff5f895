"""A run over a head and two nodes whose actors and nodes are killed again and again; says on stdout what came of it.

``cluster_faults.py DIRECTORY ROUNDS WRITER...`` prints ``ok WRITER ROUNDS`` for each way in which captures are written:
``direct``, or ``hosted`` by an actor of their own.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from gym_ray.actors.calls import get, wait
from gym_ray.actors.cluster import working_nodes
from gym_ray.actors.collecting import RunningCollection, collecting
from gym_ray.actors.collector import CollectionPlan
from gym_ray.actors.servers import RunningServers, start_servers
from gym_ray.model_call_capture.heard_writers import DEAD_AFTER_S, GRACE_S
from gym_ray.rollouts.collection import CollectionSettings
from gym_ray.rollouts.control.client import send
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.rollouts.session import RunPlan
from gym_ray.settings import RunSettings, load_settings
from gym_ray.testing.numbered_upstream import numbered_upstream
from gym_ray.testing.run_judge import RunJudge
from gym_ray.testing.serving import served

AGENT = Path(__file__).parents[1] / "agents" / "judged_agent.py"
TOKEN = "token-of-the-run"
PATIENCE_S = 90.0
AT_ONCE, ROWS_OF_A_ROUND, LATENCY_S = 6, 30, 0.08
FAST = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}
SETTINGS = f"""
num_rollout_workers: 3
policy_model:
  responses_api_models:
    openai_model: {{openai_base_url: "UPSTREAM/v1", openai_api_key: k, openai_model: numbered, replicas: per_node}}
mcqa:
  resources_servers:
    mcqa: {{}}
judged_agent:
  responses_api_agents:
    callable_agent: {{callable: "{AGENT}:agent"}}
"""
VICTIMS = {
    "direct": ["node", "worker", "joiner", "model", "environment"],
    "hosted": ["capture-writer", "node", "worker", "model", "joiner"],
}
# What may end an attempt when such a victim dies; agents that lose a server fail by themselves.
BROKEN = frozenset({"agent_run_error", "engine_unavailable", "agent_request_failed"})
FAILURES = {
    "node": frozenset({"node_lost", "worker_lost"}) | BROKEN,
    "worker": frozenset({"worker_lost"}),
    "joiner": frozenset[str](),
    "model": BROKEN,
    "environment": BROKEN,
    "capture-writer": BROKEN,
}
DOUBTS_LAST_S = {"direct": 0.0, "hosted": 2 * DEAD_AFTER_S + GRACE_S}


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def comes_true(check: Callable[[], Any], patience_s: float) -> Any:
    deadline = time.monotonic() + patience_s
    while not (found := check()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def eventually(check: Callable[[], Any], what: str) -> Any:
    found = comes_true(check, PATIENCE_S)
    assert found, f"not in {PATIENCE_S} s: {what}"
    return found


def children_of(pid: int) -> set[int]:
    found = set()
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            if int(place.read_text().rsplit(")", 1)[1].split()[1]) == pid:
                found.add(int(place.parent.name))
    return found


class Fleet:
    """The nodes beside the head, and how they die."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self.nodes = cluster, list[Any]()

    def add(self) -> Any:
        node = self._cluster.add_node(num_cpus=1)
        eventually(lambda: any(there.node_id == node.node_id for there in working_nodes()), "Ray knows a new node")
        self.nodes.append(node)
        return node

    def kill(self, node: Any) -> set[int]:
        """Kill a node's raylet and all of its workers at one moment; return the pids of what died."""
        raylet = node.all_processes["raylet"][0].process
        there = children_of(raylet.pid)
        os.kill(raylet.pid, signal.SIGKILL)
        for pid in there:  # or an agent would go on for a moment behind everybody's back
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        raylet.wait()
        self.nodes.remove(node)
        return there


class Run:
    """A run of many rows, with its judge."""

    def __init__(self, directory: Path, settings: RunSettings, asked: dict[str, str], rows: int) -> None:
        self.settings, self.rows = settings, rows
        self.paths, self.diary = RunPaths.of(directory / "out" / "records.jsonl"), directory / "diary.jsonl"
        source = directory / "rows.jsonl"
        row = {"agent_ref": {"name": "judged_agent"}, "diary": str(self.diary), "expected_answer": "A"}
        row |= {"options": [{"A": "yes"}]}
        source.write_text(
            "".join(json.dumps(row | {"responses_create_params": {"input": f"row {n}"}}) + "\n" for n in range(rows))
        )
        limits = CollectionSettings(num_samples_in_parallel=AT_ONCE, run_timeout_s=120)
        self.plan = RunPlan(self.paths, source, RowOptions(), limits, settings.capture_location, resume=True)
        assert settings.capture_dir is not None
        self.judge = RunJudge(self.paths, settings.capture_dir, self.diary, rows=rows, asked=asked)

    @contextmanager
    def taken_up(self, servers: RunningServers) -> Iterator[RunningCollection]:
        plan = CollectionPlan(self.plan, 16)
        with collecting(self.settings, plan, servers.directory, run_token=TOKEN, servers=servers) as running:
            yield running

    def entries(self) -> int:
        return self.diary.read_bytes().count(b"\n") if self.diary.exists() else 0

    def inside(self, pids: set[int] | None = None) -> set[str]:
        """Attempts that began, in these processes or anywhere, and have not ended."""
        diary = self.judge.diary()
        began = [entry for entry in diary if entry["what"] == "began" and (pids is None or entry["pid"] in pids)]
        over = {entry["rollout"] for entry in diary if entry["what"] in ("ended", "broke")}
        return {entry["rollout"] for entry in began} - over

    def recorded(self) -> dict[str, str]:
        """Class of each recorded attempt by rollout id, "" for a result."""
        found = {}
        for path in (self.paths.output, self.paths.failures):
            for line in path.read_bytes().split(b"\n")[:-1]:
                record = json.loads(line)
                found[record["ng_model_call_capture"]["rollout_id"]] = record.get("_ng_failure_class", "")
        return found

    def broke(self) -> set[str]:
        return {entry["rollout"] for entry in self.judge.diary() if entry["what"] == "broke"}

    def unjoined(self) -> set[str]:
        over = {entry["rollout"] for entry in self.judge.diary() if entry["what"] in ("ended", "broke")}
        return over - set(self.recorded())


class Chaos:
    """Kills something in a run that goes on, waits until all that was in hand has its record, and judges it."""

    def __init__(self, run: Run, fleet: Fleet, servers: RunningServers, running: RunningCollection, seed: int) -> None:
        self._run, self._fleet, self._servers, self._running = run, fleet, servers, running
        self._luck = random.Random(seed)
        self._deck: list[str] = []
        self.kills: Counter[str] = Counter()
        self.hits: Counter[str] = Counter()
        self.classes: Counter[str] = Counter()
        self._doubts_end_at = 0.0
        self.ended = running.collector.run.remote()
        self.standing = run.judge.look()

    def round(self, victims: list[str]) -> str:
        """Kill one of the victims; each is killed as often as the others. Return a line about it."""
        if not self._deck:
            self._deck = self._luck.sample(victims, len(victims))
        victim, before, recorded = self._deck.pop(), self.standing, self._run.recorded()
        begun_at = time.monotonic()
        self._wait_for_progress()
        in_hand = self._in_hand()
        lost = self._kill(victim)
        self.kills[victim] += 1
        in_hand |= self._in_hand()
        self._wait_for_progress()
        self._settle()
        self.standing = self._run.judge.look()
        assert not self.standing.unrecorded, f"attempts that began and have no record: {self.standing.unrecorded}"
        assert self.standing.done > before.done, "nothing was done"
        failed = {key: cls for key, cls in self._run.recorded().items() if cls and key not in recorded}
        self._check_failures(victim, failed, lost)
        doubted = self.standing.doubted - before.doubted
        self._check_doubts(victim, doubted, in_hand)
        self.classes.update(failed.values())
        if victim == "node":
            self._replace()
        send(self._run.paths, "resume")
        return f"{victim}: {sorted(failed.items())}, {self.standing}, {time.monotonic() - begun_at:.1f} s"

    def _check_failures(self, victim: str, failed: dict[str, str], lost: set[str]) -> None:
        assert set(failed.values()) <= FAILURES[victim], f"a {victim} was killed, and {failed}"
        by_themselves = {key for key, cls in failed.items() if cls in BROKEN}
        assert by_themselves <= self._run.broke(), f"{by_themselves} failed, and their agents know nothing of it"
        assert lost <= set(failed), f"lost with a {victim} and not recorded so: {lost - set(failed)}"

    def _check_doubts(self, victim: str, doubted: frozenset[str], in_hand: set[str]) -> None:
        """A result with a gap was in hand when a server died, or nobody can know that it had no call with a dead one.

        The log of a server that hands its records over is on its own machine, so silence is all that others see.
        """
        if victim in ("node", "model"):
            self._doubts_end_at = time.monotonic() + DOUBTS_LAST_S[self._run.settings.model_call_capture_writer]
            assert doubted <= in_hand or time.monotonic() < self._doubts_end_at, f"gaps of {doubted - in_hand}"
            return
        assert not doubted or time.monotonic() < self._doubts_end_at, f"gaps of {doubted}"

    def _in_hand(self) -> set[str]:
        began = {entry["rollout"] for entry in self._run.judge.diary() if entry["what"] == "began"}
        return began - set(self._run.recorded())

    def _wait_for_progress(self) -> None:
        until = self._run.entries() + self._luck.randrange(1, 60)
        eventually(lambda: self._run.entries() >= until or wait(self.ended, 0), "the run goes on")
        assert not wait(self.ended, 0), "the run was over before its chaos was"
        time.sleep(self._luck.random() * 0.1)  # so that a kill meets every moment, not only those behind an entry

    def _settle(self) -> None:
        answer = send(self._run.paths, "pause")
        assert answer["error"] is None, answer

        def idle() -> bool:
            now = get(self._running.collector.progress.remote(), 60)
            return bool(now.paused and not now.running and not now.joining)

        eventually(idle, "what was in hand when the run was paused has its record")

    def _kill(self, victim: str) -> set[str]:
        """Return the attempts that were inside of what died."""
        if victim == "node":
            node = self._luck.choice(self._fleet.nodes)
            there = self._fleet.kill(node)
            lost = self._run.inside(there)
            self.hits["node"] += bool(lost)
            return lost
        handles = {**self._running.seats, **self._servers.hosts, **self._servers.engines}
        name = self._luck.choice(sorted(name for name in handles if name.startswith(victim)))
        pid = get(handles[name].health.remote(), 60).pid
        os.kill(pid, signal.SIGSTOP)  # wherever it stands; the kill comes when it has work in hand
        if victim == "joiner":
            self.hits[victim] += bool(comes_true(self._run.unjoined, 2.0))
        elif victim != "worker":
            time.sleep(self._luck.random() * 0.5)  # so that some who ask it wait for its answer
        broke = self._run.broke()
        os.kill(pid, signal.SIGKILL)
        if victim == "worker":
            lost = self._run.inside({pid})
            self.hits[victim] += bool(lost)
            return lost
        if victim in ("model", "environment"):
            self.hits[victim] += bool(comes_true(lambda: self._run.broke() - broke, 2.0))
        if victim == "capture-writer":
            self.hits[victim] += bool(self._run.inside())
        return set()

    def _replace(self) -> None:
        seats = set(self._running.seats)
        node = self._fleet.add()
        eventually(lambda: node.node_id in self._servers.nodes, "the new node has its servers")
        eventually(lambda: set(self._running.seats) - seats, "the new node has seats")


def survive(writer: str, rounds: int, fleet: Fleet, directory: Path) -> None:
    """Run with captures written in one way, and with one kill in each round; resume it until nothing is left."""
    asked: dict[str, str] = {}
    with served(numbered_upstream(LATENCY_S, answered=asked)) as url:
        settings = settings_of(directory, SETTINGS.replace("UPSTREAM", url), writer)
        run = Run(directory, settings, asked, ROWS_OF_A_ROUND * rounds)
        servers = start_servers(settings, run_token=TOKEN, cache_dir=directory)
        try:
            with run.taken_up(servers) as running:
                chaos = Chaos(run, fleet, servers, running, seed=rounds)
                for number in range(rounds):
                    say(f"round {number} {writer} {chaos.round(VICTIMS[writer])}")
                get(chaos.ended, 600)
            for _ in range(2):  # what failed by itself is tried again by a resume, until it is given up
                if run.judge.look().pending:
                    with run.taken_up(servers) as running:
                        get(running.collector.run.remote(), 600)
        finally:
            servers.stop()
        standing = run.judge.look(whole=True)
    counts = {"kills": chaos.kills, "in mid-flight": chaos.hits, "failures": chaos.classes}
    say(f"whole {writer}: {standing}; " + "; ".join(f"{name} {dict(count)}" for name, count in counts.items()))
    assert standing.done == set(range(run.rows)), standing
    assert chaos.hits.total() >= chaos.kills.total() / 2, "too few kills met anything in mid-flight"
    say(f"ok {writer} {rounds}")


def settings_of(directory: Path, text: str, writer: str) -> RunSettings:
    path, empty = directory / "settings.yaml", directory / "env.yaml"
    path.write_text(text)
    empty.write_text("{}\n")
    tokens = [f"++model_call_capture_dir={directory / 'model-calls'}", "++observability_enabled=true"]
    return load_settings([path], [*tokens, f"++model_call_capture_writer={writer}"], env_file=empty, environ={})


def main(directory: Path, rounds: int, writers: list[str]) -> None:
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": FAST}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        ray.init(cluster.address, namespace="gym-ray/faults", log_to_driver=False, logging_level=logging.ERROR)
        fleet = Fleet(cluster)
        fleet.add()
        fleet.add()
        for writer in writers:
            place = directory / writer
            place.mkdir()
            survive(writer, rounds, fleet, place)
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
