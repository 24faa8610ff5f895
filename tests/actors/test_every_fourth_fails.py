"""A run in which every fourth rollout fails in a way of its own: each is named, nothing else is harmed (D33 to D37).

Resumed runs then try again what the rules say, once each, and nothing else (D53, D54).
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gym_ray.rollouts.collection import CollectionSettings
from gym_ray.rollouts.ending import EndPlan, end_run
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.rollouts.session import RunPlan
from gym_ray.testing.numbered_upstream import numbered_upstream

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
AGENT = Path(__file__).parent / "agents" / "faulty_agent.py"
TOKEN = "token-of-the-run"
TIMEOUT_S = 15.0

SETTINGS = f"""
num_rollout_workers: 2
policy_model:
  responses_api_models:
    openai_model: {{openai_base_url: "UPSTREAM/v1", openai_api_key: k, openai_model: numbered}}
faulty_agent:
  responses_api_agents:
    callable_agent: {{callable: "{AGENT}:agent"}}
remote_agent:
  responses_api_agents:
    http_agent: {{base_url: "REMOTE"}}
"""

IN_MAIN, NOWHERE = "in the main output", "nowhere"
REMOTE_FAULTS = {
    "status 500": ("agent_run_error", "answered 500"),
    "status 503": ("agent_request_failed", "answered 503"),
    "no object": ("agent_run_error", "not a JSON object"),
    "invalid JSON": ("agent_run_error", "not a JSON object"),
    "cut": ("agent_request_failed", "RemoteProtocolError"),
}
FAULTS = {
    **REMOTE_FAULTS,
    "raises": ("agent_run_error", "told to fail"),
    "exits": ("agent_run_error", "5"),
    "hangs": ("agent_timeout", f"within {TIMEOUT_S:g} s"),
    "judge failed": ("judge_failed", "the judge said nothing"),
    "asks to be stored nowhere": (NOWHERE, ""),
    "invalid observations": (IN_MAIN, ""),
    "contradicting trajectory": (IN_MAIN, ""),
    "kills its worker": ("worker_lost", "its process ended"),
    "damaged row": ("invalid_row", "damaged"),
}
ORDER = [*FAULTS, *[name for name in FAULTS if name not in ("kills its worker", "damaged row", "hangs")]]
ROWS = 4 * len(ORDER)
ANSWERS = {
    "status 500": (500, b"broken"),
    "status 503": (503, b""),
    "no object": (200, b"[1]"),
    "invalid JSON": (200, b"{"),
}


def fault_of(row: int) -> str | None:
    return ORDER[row // 4] if row % 4 == 3 else None


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


class RemoteAgent(BaseHTTPRequestHandler):
    """An agent server that notes what it is asked to run, and answers as the row tells it."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        row = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with Path(row["diary"]).open("a") as diary:
            diary.write(json.dumps({"rollout": self.headers["idempotency-key"]}) + "\n")
        status, body = 200, json.dumps({"response": {"object": "response", "output": []}, "reward": 1.0}).encode()
        if not Path(row["healed"]).exists():
            if row["fault"] == "cut":
                self.close_connection = True
                return
            status, body = ANSWERS[row["fault"]]
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""


@pytest.fixture
def remote_agent() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), RemoteAgent)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join(30)
    server.server_close()


class Run:
    """The run, and what its agents say of it."""

    def __init__(self, directory: Path, settings: Any) -> None:
        self.settings, self.paths = settings, RunPaths.of(directory / "out" / "records.jsonl")
        self.diary, self.healed, source = directory / "diary.jsonl", directory / "healed", directory / "rows.jsonl"
        with source.open("w") as file:
            for number in range(ROWS):
                fault = fault_of(number)
                row = {
                    "agent_ref": {"name": "remote_agent" if fault in REMOTE_FAULTS else "faulty_agent"},
                    "responses_create_params": {"input": f"row {number}"},
                    "fault": fault,
                    "diary": str(self.diary),
                    "healed": str(self.healed),
                }
                file.write(json.dumps(row) + "\n")
        limits = CollectionSettings(num_samples_in_parallel=8, run_timeout_s=TIMEOUT_S)
        self.plan = RunPlan(self.paths, source, RowOptions(), limits, settings.capture_location)

    @contextmanager
    def begun(self, servers: Any, *, resume: bool) -> Iterator[Any]:
        from gym_ray.actors.collecting import collecting
        from gym_ray.actors.collector import CollectionPlan

        plan = CollectionPlan(replace(self.plan, resume=resume), 16)
        with collecting(self.settings, plan, servers.directory, run_token=TOKEN) as running:
            yield running

    def ran(self, since: int = 0) -> Counter[str]:
        """Return the attempts that the agents say they ran, beyond the first ``since`` of them."""
        return Counter(entry["rollout"] for entry in records(self.diary)[since:])

    def to_be_retried(self) -> set[int]:
        """Return the rows that a resumed run must try again, by what the files say."""
        failures: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for record in records(self.paths.failures):
            failures[row_of(record)].append(record)
        done = {row_of(record) for record in records(self.paths.output)}
        return {
            row
            for row in set(range(ROWS)) - done
            if len(failures[row]) < 3 and not any(each.get("_ng_failure_terminal") for each in failures[row])
        }

    def files(self) -> dict[str, bytes]:
        """Return the outputs, the rows, the ledger and the index."""
        paths = self.paths
        kept = (paths.output, paths.failures, paths.materialised, paths.ledger, paths.index, paths.sources)
        return {path.name: path.read_bytes() for path in kept}


def row_of(record: dict[str, Any]) -> int:
    return int(record["_ng_row_ordinal"] if "_ng_row_ordinal" in record else record["_ng_task_index"])


def damage(path: Path, row: int) -> None:
    """Change one byte in the middle of a row, as a bad disk would."""
    lines = path.read_bytes().splitlines(keepends=True)
    at = sum(len(line) for line in lines[:row]) + len(lines[row]) // 2
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


def finish(running: Any) -> Any:
    from gym_ray.actors.calls import get

    get(running.collector.run.remote(), 400)
    return get(running.collector.progress.remote(), 60)


def test_each_failure_is_named_the_rest_is_unharmed_and_a_resume_retries_what_it_may(
    ray_cluster: None,
    tmp_path: Path,
    write_settings: Callable[..., Any],
    serve: Callable[[Any], str],
    remote_agent: str,
) -> None:
    from gym_ray.actors.servers import start_servers

    asked: dict[str, str] = {}
    text = SETTINGS.replace("UPSTREAM", serve(numbered_upstream(0.0, answered=asked))).replace("REMOTE", remote_agent)
    run = Run(tmp_path, write_settings(text))
    servers = start_servers(run.settings, run_token=TOKEN, cache_dir=tmp_path)
    try:
        with run.begun(servers, resume=False) as running:
            damage(run.paths.materialised, 4 * ORDER.index("damaged row") + 3)
            progress = finish(running)
        assert progress.complete, progress
        check_main(run, asked)
        check_failures(run)

        for healed in (False, True):
            if healed:
                run.healed.touch()
            wanted, before = run.to_be_retried(), run.ran()
            assert len(wanted) >= 15, "the faults left next to nothing to try again"
            with run.begun(servers, resume=True) as running:
                assert running.start.resumed
                assert running.start.done + running.start.given_up + len(wanted) == ROWS
                assert finish(running).complete
            again = run.ran(before.total())
            assert {int(rollout_id.split("-")[0]) for rollout_id in again} == wanted
            assert set(again.values()) == {1}
            assert not set(again) & set(before), "an attempt ran twice"
        assert not run.to_be_retried(), "what was healed has its result"

        files, before = run.files(), run.ran()
        with run.begun(servers, resume=True) as running:
            progress = finish(running)
        assert (progress.complete, progress.retries) == (True, 0)
        assert run.ran() == before
        assert run.files() == files, "a resume that has nothing to do changes nothing"
    finally:
        servers.stop()
    gated = {fault_of(row) for row in set(range(ROWS)) - {row_of(record) for record in records(run.paths.output)}}
    assert {"kills its worker", "damaged row"} <= gated
    ended = end_run(run.paths, EndPlan(check_health=True, health_workers=1))
    assert ended.problems == ()
    assert ended.health is not None


def check_main(run: Run, asked: dict[str, str]) -> None:
    """Every row without a fault has its result with its own calls; so have those whose evidence alone was bad."""
    by_row = {row_of(record): record for record in records(run.paths.output)}
    assert len(by_row) == len(records(run.paths.output))
    assert set(by_row) == {n for n in range(ROWS) if fault_of(n) is None or FAULTS[fault_of(n) or ""][0] == IN_MAIN}
    for row, record in by_row.items():
        capture, trajectory = record["ng_model_call_capture"], record["ng_trajectory"]
        (call,) = capture["calls"]
        assert asked[call["response_id"]] == f"{capture['rollout_id']} asks"
        assert record["response"]["id"] == call["response_id"]
        assert trajectory["rollout_id"] == capture["rollout_id"]
        (known,) = trajectory["model_calls"]
        assert known["token_stats"]["prompt_tokens"] == 3, "what was captured counts, not what an agent says"
        assert "forged" not in json.dumps(known)
        capture_gaps = [gap["code"] for gap in capture.get("gaps") or ()]
        gaps = {gap["code"] for gap in trajectory["gaps"]}
        match fault_of(row):
            case "invalid observations":
                assert capture_gaps == ["agent_observation_join_failed"]
                assert "agent_observations_invalid" in gaps
            case "contradicting trajectory":
                assert capture_gaps == []
                assert "producer_trajectory_identity_mismatch" in gaps
            case None:
                assert capture_gaps == []
                assert not gaps & {"agent_observations_invalid", "producer_trajectory_identity_mismatch"}


def check_failures(run: Run) -> None:
    """Each fault is recorded under its class with its message; a row that was only near a killer has its result."""
    by_row: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for record in records(run.paths.failures):
        by_row[row_of(record)].append(record)
    for row in range(ROWS):
        fault = fault_of(row)
        wanted, said = FAULTS[fault] if fault is not None else (IN_MAIN, "")
        last = by_row[row][-1] if by_row[row] else None
        for record in by_row[row] if wanted in (IN_MAIN, NOWHERE) else by_row[row][:-1]:
            assert record["_ng_failure_class"] == "worker_lost", record
        if wanted in (IN_MAIN, NOWHERE):
            continue
        assert last is not None, f"row {row} ({fault}) has no record"
        assert last["_ng_failure_class"] == wanted, last
        assert re.search(re.escape(said), last["_ng_failure_message"]), last
        gives_up = fault in ("kills its worker", "damaged row")
        assert bool(last.get("_ng_failure_terminal")) == gives_up, last
        if fault in ("raises", "exits", "hangs", "judge failed", "kills its worker"):
            assert last["ng_model_call_capture"]["metrics"]["num_calls"] == 1, last
    killer = 4 * ORDER.index("kills its worker") + 3
    assert len(by_row[killer]) >= 2, "a row is given up only when a second worker died under it"
    (damaged,) = by_row[4 * ORDER.index("damaged row") + 3]
    assert f"{run.paths.materialised}:{row_of(damaged) + 1}" in damaged["_ng_failure_message"]
    ran = run.ran()
    assert set(ran.values()) == {1}, "an attempt runs at most once"
