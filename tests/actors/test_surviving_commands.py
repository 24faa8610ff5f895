"""Commands that are killed with the cluster that they started, and taken up by the same command with ``--resume``."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.testing.numbered_upstream import numbered_upstream
from gym_ray.testing.run_judge import RunJudge

pytestmark = [pytest.mark.ray]
ROOT = Path(__file__).parents[2]
AGENT = Path(__file__).parent / "agents" / "surviving_agent.py"
MARK = "GYM_RAY_TESTED_COMMAND"
PATIENCE_S = 180.0
log = logging.getLogger(__name__)
log.setLevel(logging.INFO)

SETTINGS = f"""
num_rollout_workers: 2
policy_model:
  responses_api_models:
    openai_model: {{openai_base_url: "UPSTREAM/v1", openai_api_key: k, openai_model: numbered}}
surviving_agent:
  responses_api_agents:
    callable_agent: {{callable: "{AGENT}:agent"}}
"""


class Commands:
    """Starts the command again and again, and knows every process that came of it by a mark in its environment."""

    def __init__(self, directory: Path, upstream: str, rows: int) -> None:
        self.directory, self.paths, self.diary = directory, RunPaths.of(directory / "out.jsonl"), directory / "diary"
        self._mark, self._started = uuid.uuid4().hex, list[subprocess.Popen[bytes]]()
        (directory / "settings.yaml").write_text(SETTINGS.replace("UPSTREAM", upstream))
        row = {"agent_ref": {"name": "surviving_agent"}, "diary": str(self.diary)}
        (directory / "rows.jsonl").write_text(
            "".join(
                json.dumps(row | {"fails": n % 9 == 4, "responses_create_params": {"input": f"row {n}"}}) + "\n"
                for n in range(rows)
            )
        )

    def start(self) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        mark = f"{self._mark}-{len(self._started)}"
        with (self.directory / "stderr").open("wb") as stderr:  # no pipe: what a killed command leaves holds it open
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "gym_ray", "eval", "run", "--resume", "--config", "settings.yaml"),
                    *("--concurrency", "6", "--input", "rows.jsonl", "--output", "out.jsonl"),
                    *("++max_rollout_attempts=2", "++observability_enabled=true"),
                    f"++model_call_capture_dir={self.directory}/model-calls",
                ],
                cwd=self.directory,
                env=environment | {"PYTHONPATH": str(ROOT), "COLUMNS": "200", MARK: mark},
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def end(self) -> None:
        """End whatever is left of all commands."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._started:
            process.wait(30)

    def stderr(self) -> str:
        return (self.directory / "stderr").read_text()

    def processes(self, *, of_last: bool = False) -> dict[int, str]:
        """Return the titles of all living processes that came of the commands, or of the last of them, by pid."""
        found, mark = {}, f"{MARK}={self._mark}-{len(self._started) - 1 if of_last else ''}"
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it ended meanwhile
                marks = [
                    text for text in (place / "environ").read_bytes().decode().split("\0") if text.startswith(mark)
                ]
                if marks and (not of_last or marks == [mark]):
                    found[int(place.name)] = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def collector(self) -> int | None:
        """Return the collector's process of the last command, None while there is none."""
        found = [pid for pid, title in self.processes(of_last=True).items() if "ray::CollectorHost" in title]
        return found[0] if found else None

    def entries(self) -> int:
        return self.diary.read_bytes().count(b"\n") if self.diary.exists() else 0


def eventually(check: Callable[[], object], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not check():
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)


@pytest.fixture
def commands(tmp_path: Path, serve: Callable[[Any], str]) -> Iterator[Callable[..., tuple[Commands, RunJudge]]]:
    made: list[Commands] = []

    def make(rows: int) -> tuple[Commands, RunJudge]:
        asked: dict[str, str] = {}
        made.append(Commands(tmp_path, serve(numbered_upstream(0.05, answered=asked)), rows))
        judge = RunJudge(made[0].paths, tmp_path / "model-calls", made[0].diary, rows=rows, asked=asked, max_attempts=2)
        return made[0], judge

    yield make
    for each in made:
        each.end()


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(2, marks=pytest.mark.timeout(600)),
        pytest.param(20, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
def test_killed_commands_are_taken_up_by_the_same_command(
    rounds: int, commands: Callable[..., tuple[Commands, RunJudge]]
) -> None:
    run, judge = commands(rows=30 + 12 * rounds)
    luck, kills, refusals = random.Random(rounds), Counter[str](), 0
    before = judge.look()
    while kills.total() < rounds:
        process = run.start()
        eventually(lambda: run.collector() or process.poll() is not None, run.stderr)  # noqa: B023 - called here
        if process.poll() is not None:  # the collector of the command before lived a moment longer than its command
            assert "another collector" in run.stderr(), run.stderr()
            refusals += 1
            continue
        until = run.entries() + luck.randrange(5, 60)
        eventually(lambda: run.entries() >= until or process.poll() is not None, run.stderr)  # noqa: B023 - the same
        time.sleep(luck.random() * 0.05)
        victim = ("command", "collector")[kills.total() % 2]
        pid = process.pid if victim == "command" else run.collector()
        assert pid is not None, run.stderr()
        os.kill(pid, signal.SIGKILL)
        kills[victim] += 1
        code = process.wait(PATIENCE_S)
        if victim == "collector":
            assert code == 1, run.stderr()
            assert "collector" in run.stderr()
            assert "Traceback" not in run.stderr()
        if luck.random() < 0.5:
            continue  # and start again at once, as a restarting script would
        eventually(lambda: not run.processes(), lambda: f"what a killed command leaves: {run.processes()}")
        standing = judge.look()
        assert standing.done >= before.done
        assert standing.pending, "the run was over before its chaos was"
        log.info("after %s: %s", kills, standing)
        before = standing
    eventually(lambda: not run.processes(), lambda: f"what a killed command leaves: {run.processes()}")
    cut_off = len(judge.look().unrecorded)
    assert cut_off >= rounds, f"{kills} cut off {cut_off} attempts"
    for _ in range(2):  # a row that fails is tried again by the next resume, and given up
        assert run.start().wait(600) == 0, run.stderr()
    eventually(lambda: not run.processes(), lambda: f"what a command leaves: {run.processes()}")
    last = judge.look(whole=True)
    assert last.gated >= {n for n in range(30 + 12 * rounds) if n % 9 == 4}
    log.info("after %d rounds: %s, %d refused; %s", rounds, kills, refusals, last)
    files = {path: path.read_bytes() for path in (run.paths.output, run.paths.failures, run.paths.ledger)}
    assert run.start().wait(300) == 0, run.stderr()
    assert {path: path.read_bytes() for path in files} == files, "a run that is over is left alone"
