"""Runs over nodes and actors that die, over a cluster that dies as a whole, and into a store that loses answers (D168).

What goes wrong without a death is elsewhere: agents that sleep for ever and rows that kill their worker in
``test_every_fourth_fails``, an engine that hangs in ``test_engine_failures``, leaks in ``test_lethal_agents``.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.testing.faulty_http import Fault, FaultyHttp, faulty_http
from gym_ray.testing.numbered_upstream import numbered_upstream
from gym_ray.testing.run_judge import RunJudge
from gym_ray.testing.s3_server import s3_server

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]
HERE = Path(__file__).parent
AGENTS, ROOT = HERE / "agents", HERE.parents[1]
MARK = "GYM_RAY_TESTED_CLUSTER"
PATIENCE_S = 180.0
log = logging.getLogger(__name__)
log.setLevel(logging.INFO)

SETTINGS = """
policy_model:
  responses_api_models:
    openai_model: {openai_base_url: "UPSTREAM/v1", openai_api_key: k, openai_model: numbered, replicas: REPLICAS}
AGENT:
  responses_api_agents:
    callable_agent: {callable: "FILE:agent"}
"""


def settings_text(upstream: str, agent: str, replicas: str) -> str:
    wanted = {"UPSTREAM": upstream, "REPLICAS": replicas, "AGENT": agent, "FILE": str(AGENTS / f"{agent}.py")}
    text = SETTINGS
    for name, value in wanted.items():
        text = text.replace(name, value)
    return text


def write_rows(path: Path, agent: str, diary: Path, rows: list[dict[str, Any]]) -> None:
    common = {"agent_ref": {"name": agent}, "diary": str(diary)}
    lines = (
        json.dumps(common | row | {"responses_create_params": {"input": f"row {n}"}}) for n, row in enumerate(rows)
    )
    path.write_text("".join(f"{line}\n" for line in lines))


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


# Whatever dies.


@pytest.mark.parametrize(
    ("rounds", "writers"),
    [
        pytest.param(5, ["direct"], marks=pytest.mark.timeout(500)),
        pytest.param(25, ["direct", "hosted"], marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
def test_actors_and_nodes_die_in_a_run_that_loses_nothing(
    rounds: int, writers: list[str], tmp_path: Path, ray_environment: None
) -> None:
    done = subprocess.run(
        [sys.executable, HERE / "programs" / "cluster_faults.py", tmp_path, str(rounds), *writers],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=3500,
        check=False,
    )
    log.info("%s", done.stdout)
    for writer in writers:
        assert f"ok {writer} {rounds}" in done.stdout.splitlines(), done.stdout + done.stderr


# A cluster that is gone as a whole.


class Clusters:
    """Starts the same command in one cluster of two nodes after the other, and knows all of their processes."""

    def __init__(self, directory: Path, upstream: str) -> None:
        self._directory, self._mark = directory, uuid.uuid4().hex
        self._started: list[subprocess.Popen[bytes]] = []
        (directory / "settings.yaml").write_text(settings_text(upstream, "surviving_agent", "per_node"))

    def start(self) -> subprocess.Popen[bytes]:
        with (self._directory / "stderr").open("wb") as stderr:  # no pipe: what is killed leaves holders of it behind
            process = subprocess.Popen(
                [
                    *(sys.executable, HERE / "two_nodes.py", "--", sys.executable, "-m", "gym_ray", "eval", "run"),
                    *("--resume", "--config", "settings.yaml", "--input", "rows.jsonl", "--output", "records.jsonl"),
                    *("--concurrency", "4", "++num_rollout_workers=2", "++observability_enabled=true"),
                    f"++model_call_capture_dir={self._directory}/model-calls",
                ],
                cwd=self._directory,
                env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200", MARK: self._mark},
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def processes(self) -> set[int]:
        """Return every living process that came of the commands."""
        found = set()
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it ended meanwhile
                if f"{MARK}={self._mark}".encode() in (place / "environ").read_bytes().split(b"\0"):
                    found.add(int(place.name))
        return found

    def kill(self) -> int:
        """Kill head, nodes, driver and actors, and see that nothing of them is left; return how many there were."""
        killed = set()
        while left := self.processes():
            killed |= left
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self._started:
                process.wait(30)
        return len(killed)

    def stderr(self) -> str:
        return (self._directory / "stderr").read_text()


@pytest.fixture
def clusters(tmp_path: Path, serve: Callable[[Any], str], ray_environment: None) -> Iterator[Any]:
    asked: dict[str, str] = {}
    made = Clusters(tmp_path, serve(numbered_upstream(0.05, answered=asked)))
    yield made, asked
    made.kill()


def test_a_run_whose_driver_and_cluster_die_is_taken_up_on_a_new_cluster(
    clusters: tuple[Clusters, dict[str, str]], tmp_path: Path
) -> None:
    cluster, asked = clusters
    rows, diary, paths = 32, tmp_path / "diary.jsonl", RunPaths.of(tmp_path / "records.jsonl")
    write_rows(tmp_path / "rows.jsonl", "surviving_agent", diary, [{}] * rows)
    judge = RunJudge(paths, tmp_path / "model-calls", diary, rows=rows, asked=asked)
    process = cluster.start()
    deadline = time.monotonic() + PATIENCE_S
    while len(judge.diary()) < 24:
        assert process.poll() is None, cluster.stderr()
        assert time.monotonic() < deadline, cluster.stderr()
        time.sleep(0.02)
    assert cluster.kill() > 8, "a head, a node and their actors are more processes than these"
    standing = judge.look()
    assert standing.pending, "the run was over before its cluster was"
    assert standing.unrecorded, "the kill met nothing in mid-flight"
    assert cluster.start().wait(PATIENCE_S) == 0, cluster.stderr()
    last = judge.look(whole=True)
    assert last.done == set(range(rows)), last
    assert last.unrecorded == standing.unrecorded, "what the new cluster ran has its records"


# A store that loses answers and takes its time.


def spoil(proxy: FaultyHttp) -> None:
    """Let segments be stored whose answers are lost, others be refused, and what is read come slowly."""

    def segment(method: str, path: str) -> bool:
        return method == "PUT" and "/segments/" in path

    for _ in range(3):
        proxy.fail(Fault.LOST_ANSWER, segment)
        proxy.fail(Fault.STATUS_503, segment, times=2)
        proxy.fail(Fault.CUT_REQUEST, segment)
        proxy.fail(Fault.SLOW_ANSWER, lambda method, path: method == "GET" and "/segments/" in path)
        proxy.fail(Fault.LOST_ANSWER, lambda method, path: method == "PUT" and "/segments/" not in path)


def test_a_store_that_loses_answers_loses_no_call_of_a_run_on_two_nodes(
    tmp_path: Path, serve: Callable[[Any], str], ray_environment: None
) -> None:
    rows, diary = 16, tmp_path / "diary.jsonl"
    write_rows(tmp_path / "rows.jsonl", "surviving_agent", diary, [{}] * rows)
    with s3_server() as server, faulty_http((server.host, server.port)) as proxy:
        captures = {
            "observability_enabled": True,
            "num_rollout_workers": 2,
            "model_call_capture_dir": server.new_url(),
            "model_call_capture_storage_options": server.options(proxy.url),
        }
        text = settings_text(serve(numbered_upstream(0.05)), "surviving_agent", "per_node")
        (tmp_path / "settings.yaml").write_text(text + "".join(f"{k}: {json.dumps(v)}\n" for k, v in captures.items()))
        spoil(proxy)
        done = subprocess.run(
            [
                *(sys.executable, HERE / "two_nodes.py", "--", sys.executable, "-m", "gym_ray", "eval", "run"),
                *("--config", "settings.yaml", "--input", "rows.jsonl", "--output", "records.jsonl"),
                *("--concurrency", "4"),
            ],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert proxy.left() <= 3, f"{proxy.left()} faults met nothing"
        segments = {item.path.split("?")[0] for item in proxy.requests if item.method == "PUT" and "/segm" in item.path}
    assert len({path.split("/segments/")[1].split("/")[0] for path in segments}) == 2, "both nodes wrote"
    made = records(tmp_path / "records.jsonl")
    assert sorted(record["_ng_task_index"] for record in made) == list(range(rows))
    for record in made:
        capture = record["ng_model_call_capture"]
        calls = [call["response_id"] for call in capture["calls"]]
        assert len(calls) == len(set(calls)), f"{capture['rollout_id']} holds a call twice: {calls}"
        assert calls == record["answers"] or capture.get("gaps"), f"{calls} of {record['answers']}, and no gap"
    whole = [record for record in made if not record["ng_model_call_capture"].get("gaps")]
    assert len(whole) >= rows // 2, "a store that answers in the end costs no evidence"
