"""A whole collection on Ray actors, also while their processes are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gym_ray.model_call_capture import CaptureStore
from gym_ray.rollouts.collection import CollectionSettings
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.rollouts.session import RunPlan

pytestmark = [pytest.mark.ray, pytest.mark.timeout(500)]
HERE = Path(__file__).parent

SETTINGS = """
policy_model:
  responses_api_models:
    openai_model:
      openai_base_url: {upstream}/v1
      openai_api_key: sk-of-the-upstream
      openai_model: numbered
diary_agent:
  responses_api_agents:
    callable_agent:
      callable: {agent}
"""


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


class Run:
    """One collection over ``rows`` rows of the diary agent."""

    def __init__(self, tmp_path: Path, settings: Any, arrived: set[Any], rows: int, at_once: int = 16) -> None:
        self._arrived = arrived
        self.diary = tmp_path / "diary.jsonl"
        self.paths = RunPaths.of(tmp_path / "out" / "records.jsonl")
        self.settings = settings
        source = tmp_path / "rows.jsonl"
        row = {"agent_ref": {"name": "diary_agent"}, "diary": str(self.diary)}
        source.write_text(
            "".join(json.dumps(row | {"responses_create_params": {"input": f"row {n}"}}) + "\n" for n in range(rows))
        )
        limits = CollectionSettings(num_samples_in_parallel=at_once, run_timeout_s=120)
        self.plan = RunPlan(self.paths, source, RowOptions(), limits, settings.capture_location)

    @contextmanager
    def started(self, cache: Path) -> Iterator[tuple[Any, Any]]:
        """Give the running collection and the servers."""
        from gym_ray.actors.collecting import collecting
        from gym_ray.actors.collector import CollectionPlan
        from gym_ray.actors.servers import start_servers

        servers = start_servers(self.settings, run_token="token-of-the-run", cache_dir=cache)
        try:
            plan = CollectionPlan(self.plan, 16)
            with collecting(self.settings, plan, servers.directory, run_token="token-of-the-run") as running:
                yield running, servers
        finally:
            servers.stop()

    def check_evidence(self) -> None:
        """Hold what the agents were given against what is on disk."""
        store = CaptureStore(self.settings.capture_dir)
        records = lines(self.paths.output) + lines(self.paths.failures)
        by_id = {record["ng_model_call_capture"]["rollout_id"]: record for record in records}
        assert len(by_id) == len(records), "an attempt has one record"
        given = Counter()
        for entry in lines(self.diary):
            if entry["what"] != "answer":
                continue
            given[entry["rollout"]] += 1
            kept = [(call["response"] or {}).get("id") for _, call in store.read_available(entry["rollout"])[0]]
            assert entry["id"] in kept, f"{entry} was given to the agent and is not captured"
        for entry in lines(self.diary):
            # The engine had the call and its server's process ended: the call is recorded all the same, or there is a
            # gap. A request that still stood in the socket when its reader was killed leaves nothing.
            if entry["what"] == "broke" and f"{entry['rollout']} call {entry['call']}" in self._arrived:
                capture = by_id[entry["rollout"]]["ng_model_call_capture"]
                assert capture["metrics"]["num_calls"] > entry["call"] or capture.get("gaps"), f"{entry} left no trace"
        began = Counter(entry["rollout"] for entry in lines(self.diary) if entry["what"] == "began")
        assert set(began.values()) <= {1}, "an attempt runs at most once"
        for rollout_id, record in by_id.items():
            capture = record["ng_model_call_capture"]
            assert capture["metrics"]["num_calls"] >= given[rollout_id]
            if "_ng_failure_class" not in record and given[rollout_id] == 4:
                assert [call["response_id"] for call in capture["calls"]] == record["answers"]

    def check_rows(self, rows: int) -> tuple[int, int]:
        """Every row ends in exactly one place; returns how many are done and how many failed attempts there are."""
        done = Counter(record["_ng_task_index"] for record in lines(self.paths.output))
        failed = Counter(record["_ng_task_index"] for record in lines(self.paths.failures))
        assert set(done.values()) <= {1}
        assert set(done) | set(failed) == set(range(rows))
        return len(done), sum(failed.values())


@pytest.fixture
def make_run(
    ray_cluster: None, tmp_path: Path, write_settings: Callable[..., Any], serve: Callable[[Any], str]
) -> Callable[..., Run]:
    from gym_ray.testing.numbered_upstream import numbered_upstream

    def make(rows: int, latency_s: float = 0.0, **options: Any) -> Run:
        agent = f"{HERE / 'agents' / 'diary_agent.py'}:agent"
        arrived: set[Any] = set()
        upstream = serve(numbered_upstream(latency_s, arrived))
        return Run(tmp_path, write_settings(SETTINGS.format(upstream=upstream, agent=agent)), arrived, rows, **options)

    return make


def test_every_row_becomes_a_record_with_all_its_calls(make_run: Callable[..., Run], tmp_path: Path) -> None:
    from gym_ray.actors.calls import get

    run = make_run(12)
    with run.started(tmp_path) as (running, _):
        get(running.collector.run.remote(), 240)
        progress, metrics = get([running.collector.progress.remote(), running.collector.metrics.remote()], 60)
    assert progress.complete
    assert run.check_rows(12) == (12, 0)
    run.check_evidence()
    overall = metrics.to_dict()["overall"]
    assert overall["model_calls"] == 48
    assert overall["tokens"]["tokens_total"] == 48 * 5
    assert overall["gaps"] == {}


async def test_records_can_be_iterated_as_they_finish(make_run: Callable[..., Run], tmp_path: Path) -> None:
    from gym_ray.actors.collector import finished_records

    run = make_run(6)
    with run.started(tmp_path) as (running, _):
        seen = [json.loads(line) async for line in finished_records(running.collector, run.paths)]
    assert len(seen) == 6
    assert sorted(seen, key=str) == sorted(lines(run.paths.output), key=str)


async def test_leaving_the_iteration_stops_the_run_and_keeps_what_ended(
    make_run: Callable[..., Run], tmp_path: Path
) -> None:
    from gym_ray.actors.collector import finished_records

    run = make_run(40, latency_s=0.2, at_once=4)
    with run.started(tmp_path) as (running, _):
        records = finished_records(running.collector, run.paths)
        await anext(records)
        await records.aclose()
    stored = lines(run.paths.output)
    assert 1 <= len(stored) < 40
    run.check_evidence()


def test_a_second_run_with_the_same_ids_is_refused_and_changes_nothing(
    make_run: Callable[..., Run], tmp_path: Path
) -> None:
    from gym_ray.actors.calls import get
    from gym_ray.actors.cluster import close_actors, local_node, start_actor
    from gym_ray.actors.collector import CollectionPlan, CollectorHost
    from gym_ray.errors import StorageError

    run = make_run(3)
    with run.started(tmp_path) as (running, _):
        get(running.collector.run.remote(), 240)
        before = {path.name: path.read_bytes() for path in run.settings.capture_dir.glob("*.jsonl")}
        other = RunPaths.of(tmp_path / "other" / "records.jsonl")
        other.output.parent.mkdir()
        other.output.write_text("an earlier result\n")
        plan = CollectionPlan(replace(run.plan, paths=other), 16)
        second = start_actor(CollectorHost, local_node(), "second", plan, max_restarts=0)
        try:
            with pytest.raises(StorageError, match="rollout id 0-0 belongs to the run that writes"):
                get(second.begin.remote(), 120)
        finally:
            close_actors([second], 5)
    assert other.output.read_text() == "an earlier result\n"
    assert {path.name: path.read_bytes() for path in run.settings.capture_dir.glob("*.jsonl")} == before


class Killer(threading.Thread):
    """Ends one process after the other, chosen by chance, until told to stop."""

    def __init__(self, handles: dict[str, Any], pause_s: float, seed: int) -> None:
        super().__init__(daemon=True)
        self._handles, self._pause_s, self._random = handles, pause_s, random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.over = threading.Event()

    def run(self) -> None:
        import ray

        while not self.over.wait(self._pause_s):
            name = self._random.choice(sorted(self._handles))
            try:
                health = ray.get(self._handles[name].health.remote(), timeout=10)
            except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
                continue  # it is being restarted
            if health.ready:
                os.kill(health.pid, signal.SIGKILL)
                self.kills[name.split("-")[0]] += 1


@pytest.mark.parametrize("kind", ["model", "worker", "joiner", "all"])
def test_killed_processes_lose_nothing_that_a_client_was_given(
    make_run: Callable[..., Run], tmp_path: Path, kind: str
) -> None:
    from gym_ray.actors.calls import get

    rows = 24
    run = make_run(rows, latency_s=0.15, at_once=6)
    with run.started(tmp_path) as (running, servers):
        handles = {
            name: handle
            for name, handle in {**running.seats, **servers.hosts}.items()
            if kind == "all" or name.startswith(kind)
        }
        killer = Killer(handles, pause_s=0.7, seed=len(kind))
        killer.start()
        ended = running.collector.run.remote()
        deadline = time.monotonic() + 200
        while killer.kills.total() < 4 and time.monotonic() < deadline:
            time.sleep(0.05)  # the chaos must really happen before the run may calm down
        killer.over.set()
        killer.join(30)
        get(ended, 200)
        progress = get(running.collector.progress.remote(), 60)
    broken = [entry for entry in lines(run.diary) if entry["what"] == "broke"]
    assert broken or kind != "model", "no kill hit a call under way"
    assert killer.kills.total() >= 4
    assert progress.complete, progress
    run.check_rows(rows)
    run.check_evidence()
    began = {entry["rollout"] for entry in lines(run.diary) if entry["what"] == "began"}
    for record in lines(run.paths.failures):
        assert record["_ng_failure_class"] in {"worker_lost", "engine_unavailable", "agent_run_error"}, record
        capture = record["ng_model_call_capture"]
        assert capture["metrics"]["num_calls"] == 0 or capture["rollout_id"] in began


def test_a_killed_collector_ends_the_run_and_leaves_whole_files(make_run: Callable[..., Run], tmp_path: Path) -> None:
    from gym_ray.actors.calls import get, wait
    from gym_ray.errors import ClusterError

    run = make_run(40, latency_s=0.2, at_once=6)
    with run.started(tmp_path) as (running, _):
        pid = get(running.collector.health.remote(), 60).pid
        ended = running.collector.run.remote()
        deadline = time.monotonic() + 120
        while len(lines(run.paths.output)) < 5:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
        assert wait(ended, 120)
        with pytest.raises(ClusterError, match="ended"):
            get(ended, 60)
    stored = lines(run.paths.output)
    assert 5 <= len(stored) < 40
    for record in stored:
        assert [call["response_id"] for call in record["ng_model_call_capture"]["calls"]] == record["answers"]
