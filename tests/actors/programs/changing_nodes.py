"""Runs on a Ray cluster of a program of its own, whose nodes come and go; prints ``ok NAME`` for each that is right."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import ray
from ray.cluster_utils import Cluster

from gym_ray.actors.calls import get
from gym_ray.actors.cluster import close_actors, local_node, pick_ports, start_actor, working_nodes
from gym_ray.actors.collecting import RunningCollection, collecting
from gym_ray.actors.collector import CollectionPlan
from gym_ray.actors.crew import Crew
from gym_ray.actors.health import Watched
from gym_ray.actors.membership import Membership
from gym_ray.actors.servers import RunningServers, start_servers
from gym_ray.rollouts.collection import CollectionSettings
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.rollouts.session import RunPlan
from gym_ray.server_directory import ServerDirectory
from gym_ray.settings import RunSettings, load_settings
from gym_ray.testing.numbered_upstream import numbered_upstream
from gym_ray.testing.run_judge import RunJudge
from gym_ray.testing.serving import served

AGENT = Path(__file__).parents[1] / "agents" / "gated_agent.py"
TOKEN = "token-of-the-run"
PATIENCE_S = 60.0
ROWS, OPEN_AT_FIRST = 60, 12
AT_ONCE = 6
FAST = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 300,
    "health_check_failure_threshold": 2,
}
SETTINGS = f"""
num_rollout_workers: 2
policy_model:
  responses_api_models:
    openai_model: {{openai_base_url: "UPSTREAM/v1", openai_api_key: k, openai_model: numbered, replicas: per_node}}
spare_model:
  responses_api_models:
    openai_model: {{openai_base_url: "UPSTREAM/v1", openai_api_key: k, openai_model: numbered, replicas: 2}}
gated_agent:
  responses_api_agents:
    callable_agent: {{callable: "{AGENT}:agent"}}
"""


def eventually(check: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := check()):
        if time.monotonic() >= deadline:
            raise AssertionError(f"not in {PATIENCE_S} s: {what}")
        time.sleep(0.05)
    return found


class Nodes:
    """The cluster, and how its nodes die."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._added: list[Any] = []

    def add(self) -> Any:
        """Add a node, and return it once Ray knows it."""
        node = self._cluster.add_node(num_cpus=1)
        self._added.append(node)
        eventually(lambda: node.node_id in alive(), "Ray knows the new node")
        return node

    def kill(self, *nodes: Any) -> None:
        """Kill the raylets of some nodes, by their ids, all at one moment."""
        for node in nodes:
            os.kill(raylet_of(node), signal.SIGKILL)
            self._added.remove(node)
        for node in nodes:
            node.all_processes["raylet"][0].process.wait()  # its workers end once it is gone, not merely dead

    def kill_all(self) -> None:
        """Leave nothing but the head."""
        self.kill(*self._added)
        eventually(lambda: len(alive()) == 1, "Ray knows that the nodes are gone")


def alive() -> set[str]:
    return {node.node_id for node in working_nodes()}


class Run:
    """A run each of whose rows waits behind a gate of its own; they are opened in order."""

    def __init__(self, directory: Path, settings: RunSettings, asked: dict[str, str]) -> None:
        self.directory, self.settings = directory, settings
        self.paths, self.diary = RunPaths.of(directory / "out" / "records.jsonl"), directory / "diary.jsonl"
        (directory / "rows.jsonl").write_text("".join(self._row(number) for number in range(ROWS)))
        limits = CollectionSettings(num_samples_in_parallel=AT_ONCE, run_timeout_s=300)
        self.plan = RunPlan(self.paths, directory / "rows.jsonl", RowOptions(), limits, settings.capture_location)
        assert settings.capture_dir is not None
        self.judge = RunJudge(self.paths, settings.capture_dir, self.diary, rows=ROWS, asked=asked)

    def _row(self, number: int) -> str:
        row = {"agent_ref": {"name": "gated_agent"}, "diary": str(self.diary), "gate": str(self._gate(number))}
        return json.dumps(row | {"responses_create_params": {"input": f"row {number}"}}) + "\n"

    def _gate(self, number: int) -> Path:
        return self.directory / f"gate-{number}"

    def open(self, *rows: int) -> None:
        """Open some gates, and wait until what is behind them has ended."""
        before = len(self.said("ended"))
        for number in rows:
            self._gate(number).touch()
        eventually(lambda: len(self.said("ended")) >= before + len(rows), f"rows {rows} end")

    def open_until(self, check: Callable[[], bool], what: str) -> None:
        """Open the gate of one waiting row after the other until something is so; each lets another row start."""
        while not check():
            eventually(lambda: len(self.inside()) == AT_ONCE, f"{AT_ONCE} rows wait at their gates")
            assert len(self.said("ended")) < ROWS - AT_ONCE, f"almost all has ended, and not {what}"
            self.open(min(int(rollout.split("-")[0]) for rollout in self.inside()))

    def open_all(self) -> None:
        for number in range(ROWS):
            self._gate(number).touch()

    def said(self, what: str) -> list[dict[str, Any]]:
        return [entry for entry in self.judge.diary() if entry["what"] == what]

    def inside(self, raylet: int | None = None) -> set[str]:
        """Rollouts that wait at their gates, everywhere or in the workers of one raylet."""
        ended = {entry["rollout"] for entry in self.said("ended")} | set(self.failures())
        parents = {pid: parent_of(pid) for pid in {entry["pid"] for entry in self.said("came")}}
        came = {entry["rollout"]: parents[entry["pid"]] for entry in self.said("came")}
        return {name for name, parent in came.items() if raylet in (None, parent)} - ended

    def failures(self) -> dict[str, str]:
        """Class of each failure by rollout."""
        records = [json.loads(line) for line in self.paths.failures.read_bytes().splitlines()]
        return {record["ng_model_call_capture"]["rollout_id"]: record["_ng_failure_class"] for record in records}


def parent_of(pid: int) -> int:
    """Return the parent of a process, 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def raylet_of(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


def nodes_come_and_go(nodes: Nodes, directory: Path, url: str, asked: dict[str, str]) -> None:
    """Two nodes to begin with; a third joins; all but the head die together; a fourth joins."""
    first, head = nodes.add(), local_node().node_id
    run = Run(directory, settings_of(directory, SETTINGS.replace("UPSTREAM", url)), asked)
    servers = start_servers(run.settings, run_token=TOKEN, cache_dir=directory)
    try:
        assert {item.node for item in servers.directory.models["spare_model"]} == {head, first.node_id}
        plan = CollectionPlan(run.plan, 16)
        with collecting(run.settings, plan, servers.directory, run_token=TOKEN, servers=servers) as running:
            ended = running.collector.run.remote()
            run.open(*range(OPEN_AT_FIRST))
            second = nodes.add()
            _is_used(run, running, servers, second)
            run.open_until(lambda: bool(run.inside(raylet_of(first))), "a row on the first node")
            eventually(lambda: len(run.inside()) == AT_ONCE, "nothing moves any more")
            lost = run.inside(raylet_of(first)) | run.inside(raylet_of(second))
            nodes.kill(first, second)
            eventually(lambda: lost <= set(run.failures()), "what was lost is recorded")
            eventually(lambda: len(servers.directory.models["spare_model"]) == 2, "a lost replica is replaced")
            _check_directory(servers.directory, {head})
            third = nodes.add()
            _is_used(run, running, servers, third)
            _check_directory(servers.directory, {head, third.node_id})
            run.open_all()
            get(ended, 240)
            assert get(running.collector.progress.remote(), 60).complete
    finally:
        servers.stop()
    _judge(run, lost)


def _is_used(run: Run, running: RunningCollection, servers: RunningServers, node: Any) -> None:
    """Wait until a node that joined can work, and see that it does, with its own server."""
    eventually(lambda: node.node_id in servers.nodes, "the new node has its servers")
    before = len(running.seats)
    eventually(lambda: any(parent_of(pid) == raylet_of(node) for pid in pids_of(running)), f"a seat beside {before}")
    run.open_until(lambda: bool(run.inside(raylet_of(node))), f"a row on {node.node_id}")
    (endpoint,) = [item for item in servers.directory.models["policy_model"] if item.node == node.node_id]
    there = run.inside(raylet_of(node))
    urls = {entry["url"] for entry in run.said("came") if entry["rollout"] in there}
    assert all(url.startswith(f"{endpoint.url}/") for url in urls), f"{urls}: an agent uses the server of its node"


def pids_of(running: RunningCollection) -> list[int]:
    """Return the processes of all workers that can work."""
    workers = [seat for name, seat in dict(running.seats).items() if name.startswith("worker")]
    get([seat.ready.remote() for seat in workers], 60)
    return [health.pid for health in get([seat.health.remote() for seat in workers], 60)]


def _check_directory(directory: ServerDirectory, nodes: set[str]) -> None:
    for name, replicas in directory.models.items():
        assert {item.node for item in replicas} <= nodes, f"{name}: {replicas}"
        for item in replicas:
            assert httpx.get(f"{item.url}/health", timeout=30).status_code == 200, item


def _judge(run: Run, lost: set[str]) -> None:
    standing = run.judge.look(whole=True)
    assert standing.done == set(range(ROWS)), standing
    failed = run.failures()
    assert failed == dict.fromkeys(lost, "node_lost"), f"{failed}, lost were {lost}"
    came = [entry["rollout"] for entry in run.said("came")]
    assert len(came) == len(set(came)), "an attempt ran twice"


class Recorder(Watched):
    """Stands where the collector does, and says what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self._told: list[str] = []

    async def admit(self, workers: Any, joiners: Any) -> None:
        self._told.append(f"admit {len(workers)} {len(joiners)}")

    async def part(self, nodes: list[str]) -> None:
        self._told.append(f"part {len(nodes)}")

    async def use(self, urls: dict[str, Any]) -> None:
        self._told.append(f"use {len(urls)}")

    async def told(self) -> list[str]:
        return self._told

    async def close(self) -> None:
        return None


def nodes_that_are_of_no_use(nodes: Nodes, directory: Path, url: str, _: dict[str, str]) -> None:
    """A node whose server cannot start, since another one has its port; one that dies as it joins."""
    node = local_node()
    text = SETTINGS.replace("UPSTREAM", url).replace("per_node", f"per_node, port: {pick_ports(node, node.ip, 1)[0]}")
    settings = settings_of(directory, text, "++num_rollout_workers=1")
    run = Run(directory, settings, {})
    said: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = said.append  # type: ignore[method-assign]
    logging.getLogger("gym_ray.actors.membership").addHandler(handler)
    recorder = start_actor(Recorder, node, "recorder")
    servers = start_servers(settings, run_token=TOKEN, cache_dir=directory)
    crew = Crew(settings, run.plan, calls_at_once=100, run_token=TOKEN, namespace=None)
    membership = Membership(crew, servers, servers.directory, recorder, rest_s=0.0)
    run.paths.output.parent.mkdir(parents=True)
    for path in (run.paths.output, run.paths.failures):
        path.touch()
    try:
        crew.start([node], servers.directory)
        crew.wait(list(crew.handles), None)
        bad = nodes.add()
        membership.look()
        membership.look()
        errors = [record.getMessage() for record in said if record.levelno >= logging.ERROR]
        assert len(errors) == 1, errors
        assert bad.node_id in errors[0]
        assert "in use" in errors[0]
        nodes.kill(bad)  # Ray still lists it for a moment
        membership.look()
        eventually(lambda: bad.node_id not in alive(), "Ray knows that the node is gone")
        membership.look()
        assert get(recorder.told.remote(), 60) == []
        assert crew.nodes == servers.nodes == {node.node_id}
        assert set(crew.handles) == {"worker-0", "joiner-0"}
    finally:
        crew.close(5)
        servers.stop()
        close_actors([recorder], 5)


SCENARIOS: dict[str, Callable[[Nodes, Path, str, dict[str, str]], None]] = {
    "come and go": nodes_come_and_go,
    "of no use": nodes_that_are_of_no_use,
}


def main(directory: Path) -> None:
    with cluster_of_one() as nodes:
        for name, scenario in SCENARIOS.items():
            asked: dict[str, str] = {}
            place = directory / name.replace(" ", "-")
            place.mkdir()
            with served(numbered_upstream(0.0, answered=asked)) as url:
                scenario(nodes, place, url, asked)
            nodes.kill_all()
            sys.stdout.write(f"ok {name}\n")
            sys.stdout.flush()


@contextmanager
def cluster_of_one() -> Iterator[Nodes]:
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": FAST}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        ray.init(address=cluster.address, namespace="gym-ray/nodes", logging_level=logging.WARNING)
        yield Nodes(cluster)
    finally:
        ray.shutdown()
        cluster.shutdown()


def settings_of(directory: Path, text: str, *more: str) -> RunSettings:
    path, empty = directory / "settings.yaml", directory / "env.yaml"
    path.write_text(text)
    empty.write_text("{}\n")
    tokens = [f"++model_call_capture_dir={directory / 'model-calls'}", "++observability_enabled=true", *more]
    return load_settings([path], tokens, env_file=empty, environ={})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
