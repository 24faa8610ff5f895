"""Runs whose processes are killed again and again, each time taken up where they were left (D49, D55, D58, D168)."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gym_ray.rollouts.collection import CollectionSettings
from gym_ray.rollouts.control.client import read_status
from gym_ray.rollouts.control.control_files import ControlPlaces
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.rollouts.session import RunPlan
from gym_ray.testing.numbered_upstream import numbered_upstream
from gym_ray.testing.run_judge import RunJudge

pytestmark = [pytest.mark.ray]
AGENT = Path(__file__).parent / "agents" / "surviving_agent.py"
log = logging.getLogger(__name__)
log.setLevel(logging.INFO)
TOKEN = "token-of-the-run"
PATIENCE_S = 120.0

SETTINGS = f"""
num_rollout_workers: 2
policy_model:
  responses_api_models:
    openai_model: {{openai_base_url: "UPSTREAM/v1", openai_api_key: k, openai_model: numbered, replicas: 2}}
surviving_agent:
  responses_api_agents:
    callable_agent: {{callable: "{AGENT}:agent"}}
"""


def eventually(check: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    assert comes_true(check, patience_s), what


def comes_true(check: Callable[[], bool], patience_s: float) -> bool:
    """Wait for a condition; whether it held in time."""
    deadline = time.monotonic() + patience_s
    while not check():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.005)
    return True


def is_there(pid: int) -> bool:
    """Whether a process runs, or may run again."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Run:
    """A run of many rows, some of which always fail, with its judge."""

    def __init__(self, directory: Path, settings: Any, asked: dict[str, str], rows: int) -> None:
        self.paths, self.rows, self.settings = RunPaths.of(directory / "out" / "records.jsonl"), rows, settings
        self.diary, self.source = directory / "diary.jsonl", directory / "rows.jsonl"
        row = {"agent_ref": {"name": "surviving_agent"}, "diary": str(self.diary)}
        self.source.write_text(
            "".join(
                json.dumps(row | {"fails": n % 9 == 4, "responses_create_params": {"input": f"row {n}"}}) + "\n"
                for n in range(rows)
            )
        )
        limits = CollectionSettings(num_samples_in_parallel=6, run_timeout_s=120)
        self.plan = RunPlan(self.paths, self.source, RowOptions(), limits, settings.capture_location, resume=True)
        self.judge = RunJudge(self.paths, settings.capture_dir, self.diary, rows=rows, asked=asked)

    @contextmanager
    def taken_up(self, servers: Any) -> Iterator[Any]:
        """Hold a collector that took up the run; its processes are gone when this has ended, so that nobody writes."""
        from gym_ray.actors.collecting import collecting
        from gym_ray.actors.collector import CollectionPlan

        plan = CollectionPlan(self.plan, 16)
        with collecting(self.settings, plan, servers.directory, run_token=TOKEN) as running:
            pids = {name: pid_of(handle) for name, handle in {**running.seats, "collector": running.collector}.items()}
            try:
                yield running
            finally:
                pids |= {f"{name} again": pid_of(handle) for name, handle in running.seats.items()}
        for pid in filter(None, pids.values()):
            eventually(lambda pid=pid: not is_there(pid), f"process {pid} does not end")

    def entries(self) -> int:
        """How many entries the diary has."""
        return self.diary.read_bytes().count(b"\n") if self.diary.exists() else 0


def pid_of(handle: Any) -> int | None:
    """Return the process of an actor, None while it has none."""
    import ray

    try:
        return int(ray.get(handle.health.remote(), timeout=10).pid)
    except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
        return None


class Chaos:
    """Takes a run up, kills some of its processes at a moment of chance, and judges what is left; again and again."""

    def __init__(self, run: Run, servers: Any, seed: int) -> None:
        self._run, self._servers, self._luck = run, servers, random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.hits: Counter[str] = Counter()
        self.standing = run.judge.look()

    def round(self) -> None:
        """Take the run up once, kill a worker, a joiner, a server or none of them, then its collector, and judge it."""
        from gym_ray.actors.calls import wait

        if self._luck.random() < 0.25:
            self._kill_at_the_start()
        before, victim = self.standing, self._luck.choice(["joiner", "worker", "model", "none"])
        resumes = self._run.paths.materialised.is_file() and self._run.paths.output.is_file()
        with self._run.taken_up(self._servers) as running:
            # What the resume says must be what the judge found by itself.
            start = running.start
            assert (start.resumed, start.done, start.given_up) == (resumes, len(before.done), len(before.gated)), start
            ended = running.collector.run.remote()
            if victim != "none":
                self._wait_for_progress(ended)
                self._kill(victim, running)
            self._wait_for_progress(ended)
            pid = pid_of(running.collector)
            if not wait(ended, 0):
                os.kill(pid, signal.SIGKILL)
                self.kills["collector"] += 1
                assert wait(ended, PATIENCE_S)
        self.standing = self._run.judge.look()
        assert self.standing.done >= before.done
        assert self.standing.gated >= before.gated
        self.hits["collector"] += bool(self.standing.unrecorded - before.unrecorded)
        if self._luck.random() < 0.25:
            self._leave_halves()

    def _kill_at_the_start(self) -> None:
        """Kill a collector while it takes the run up."""
        import ray

        from gym_ray.actors.cluster import local_node, start_actor
        from gym_ray.actors.collector import CollectionPlan, CollectorHost

        plan = CollectionPlan(self._run.plan, 16)
        collector = start_actor(CollectorHost, local_node(), "starting", plan, max_restarts=0)
        pid = pid_of(collector)
        begun = collector.begin.remote()
        time.sleep(self._luck.random() * 0.02)
        os.kill(pid, signal.SIGKILL)
        self.kills["starting"] += 1
        try:
            ray.get(begun, timeout=PATIENCE_S)
        except ray.exceptions.RayActorError:
            self.hits["starting"] += 1
        eventually(lambda: not is_there(pid), "a killed collector does not end")
        assert self._run.judge.look().done == self.standing.done

    def _leave_halves(self) -> None:
        """Leave behind what writers leave that die in the middle of a write; a kill hits that moment too seldom."""
        paths = self._run.paths
        line = json.dumps({"_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 1.0, "half": "x" * 5000}).encode()
        for path in (paths.output, paths.failures, paths.sources):
            with path.open("ab") as file:
                file.write(line[: self._luck.randrange(len(line))])
        for path in (paths.ledger, paths.index):
            with path.open("ab") as file:
                file.write(self._luck.randbytes(self._luck.randrange(64)))

    def _wait_for_progress(self, ended: Any) -> None:
        from gym_ray.actors.calls import wait

        until = self._run.entries() + self._luck.randrange(1, 60)
        eventually(lambda: self._run.entries() >= until or wait(ended, 0), "the run stands still")
        time.sleep(self._luck.random() * 0.05)  # so that a kill meets every moment, not only those behind an entry

    def _kill(self, victim: str, running: Any) -> None:
        handles = {**running.seats, **self._servers.hosts}
        name = self._luck.choice(sorted(name for name in handles if name.startswith(victim)))
        pid = pid_of(handles[name])
        if pid is None:  # a server that was killed a moment ago
            return
        if victim == "joiner":
            os.kill(pid, signal.SIGSTOP)  # wherever it stands; the kill comes when it has work in hand
            self.hits["joiner"] += comes_true(lambda: bool(self._unjoined()), patience_s=2.0)
        entries = self._run.judge.diary()
        os.kill(pid, signal.SIGKILL)
        self.kills[victim] += 1
        if victim == "worker":
            inside = {entry["rollout"] for entry in entries if entry["what"] == "began" and entry["pid"] == pid}
            eventually(lambda: not is_there(pid), "a killed worker does not end")
            self.hits["worker"] += bool(inside - self._ended())
        if victim == "model":
            broke = self._broke()
            self.hits["model"] += comes_true(lambda: self._broke() > broke, patience_s=2.0)

    def _ended(self) -> set[str]:
        return {entry["rollout"] for entry in self._run.judge.diary() if entry["what"] in ("ended", "broke")}

    def _broke(self) -> int:
        return sum(entry["what"] == "broke" for entry in self._run.judge.diary())

    def _unjoined(self) -> set[str]:
        """Rollouts that ended and have no record."""
        ended = self._ended()
        for path in (self._run.paths.output, self._run.paths.failures):
            for line in path.read_bytes().split(b"\n")[:-1]:
                ended.discard(json.loads(line)["ng_model_call_capture"]["rollout_id"])
        return ended - self.standing.unrecorded


@pytest.fixture
def servers_of(ray_cluster: None, tmp_path: Path) -> Callable[[Any], Any]:
    """Hold the servers of some settings for a block."""
    from gym_ray.actors.servers import start_servers

    @contextmanager
    def hold(settings: Any) -> Iterator[Any]:
        servers = start_servers(settings, run_token=TOKEN, cache_dir=tmp_path)
        try:
            yield servers
        finally:
            servers.stop()

    return hold


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(8, marks=pytest.mark.timeout(500)),
        pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(7200)]),
    ],
)
def test_runs_survive_the_death_of_any_process(
    rounds: int,
    servers_of: Callable[[Any], Any],
    tmp_path: Path,
    write_settings: Callable[..., Any],
    serve: Callable[[Any], str],
) -> None:
    from gym_ray.actors.calls import get

    asked: dict[str, str] = {}
    settings = write_settings(SETTINGS.replace("UPSTREAM", serve(numbered_upstream(0.05, answered=asked))))
    run = Run(tmp_path, settings, asked, rows=40 + 8 * rounds)
    with servers_of(settings) as servers:
        chaos = Chaos(run, servers, seed=rounds)
        for number in range(rounds):
            chaos.round()
            standing = chaos.standing
            log.info("round %d: %s; kills %s, in mid-flight %s", number, standing, chaos.kills, chaos.hits)
            assert standing.pending, "the run was over before its chaos was"
        for _ in range(3):  # a row that fails is tried again by each resume, until it is given up
            with run.taken_up(servers) as running:
                get(running.collector.run.remote(), 900)
                assert get(running.collector.progress.remote(), 60).complete
        last = run.judge.look(whole=True)
    assert last.gated >= {n for n in range(run.rows) if n % 9 == 4}
    log.info("after %d rounds: %s; kills %s, in mid-flight %s", rounds, last, chaos.kills, chaos.hits)
    assert len(last.doubted) <= 3 * chaos.kills["model"], f"{last.doubted} doubt their captures"
    assert chaos.hits.total() >= chaos.kills.total() / 2, f"{chaos.kills}, of which in mid-flight {chaos.hits}"
    for victim, kills in chaos.kills.items():
        if kills >= 10:  # fewer may all have been unlucky
            assert chaos.hits[victim] >= kills / 3, f"{kills} kills of a {victim}, {chaos.hits[victim]} in mid-flight"
    assert chaos.kills.total() > rounds


def tree(*roots: Path, changing: Path) -> dict[Path, bytes]:
    """Return every file below some directories with its content, but for the one that a live run writes each second."""
    files = {path for root in roots for path in root.rglob("*") if path.is_file()}
    return {path: path.read_bytes() for path in sorted(files - {changing})}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("resume", [True, False], ids=["resume", "afresh"])
def test_a_second_collector_of_an_output_is_refused_and_changes_nothing(
    resume: bool,
    servers_of: Callable[[Any], Any],
    tmp_path: Path,
    write_settings: Callable[..., Any],
    serve: Callable[[Any], str],
) -> None:
    from gym_ray.actors.calls import get
    from gym_ray.actors.cluster import close_actors, local_node, start_actor
    from gym_ray.actors.collector import CollectionPlan, CollectorHost
    from gym_ray.errors import StorageError

    asked: dict[str, str] = {}
    settings = write_settings(SETTINGS.replace("UPSTREAM", serve(numbered_upstream(0.0, answered=asked))))
    run = Run(tmp_path, settings, asked, rows=18)
    places = (run.paths.output.parent, settings.capture_dir)
    plan = CollectionPlan(replace(run.plan, resume=resume), 16)

    def refused() -> None:
        second = start_actor(CollectorHost, local_node(), "second", plan, max_restarts=0)
        try:
            with pytest.raises(StorageError, match="another collector") as refusal:
                get(second.begin.remote(), 120)
        finally:
            close_actors([second], 5)
        assert str(run.paths.output) in str(refusal.value)

    with servers_of(settings) as servers:
        with run.taken_up(servers) as running:
            status = ControlPlaces.of(run.paths).status
            before, desk = tree(*places, changing=status), read_status(run.paths).value["desk"]
            refused()
            assert tree(*places, changing=status) == before, "a collector that is refused changes nothing"
            assert read_status(run.paths).value["desk"] == desk, "nor does it speak for the run"
            ended = running.collector.run.remote()
            eventually(lambda: run.entries() > 10, "the run stands still")
            refused()
            get(ended, 120)
        assert run.judge.look().done == {n for n in range(run.rows) if n % 9 != 4}
        for _ in range(2):
            with run.taken_up(servers) as running:
                get(running.collector.run.remote(), 120)
    assert run.judge.look(whole=True).gated == {n for n in range(run.rows) if n % 9 == 4}
