from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gym_ray.environments import build_environment_app
from gym_ray.environments.mcqa import McqaEnvironment
from gym_ray.evidence.facts import reduced
from gym_ray.evidence.health import check_rollout
from gym_ray.evidence.join import Joined, join
from gym_ray.evidence.run_result import RunFailure, RunResult
from gym_ray.model_call_capture.lines import CaptureSnapshot
from gym_ray.model_call_capture.quiesce import WrittenCalls
from gym_ray.model_call_capture.store import CaptureStore
from gym_ray.rollouts.metrics.aggregation import aggregate
from gym_ray.rollouts.reports.health_files import health_of_run
from gym_ray.rollouts.rows.materialised_rows import MaterialisedRows
from gym_ray.rollouts.run_paths import RunPaths

ROLLOUT_MS = 1600.0
FIGURES = {
    "started_at": 1000.0,
    "completed_at": 1001.5,
    "timestamp": 1000.0,
    "latency_ms": 1500.0,
    "duration_ms": 1500.0,
    "latency_total_ms": 1500.0,
    "latency_ttft_ms": 20.0,
    "total_latency_ms": ROLLOUT_MS,
    **dict.fromkeys((f"total_latency_{name}_ms" for name in ("p50", "p90", "p99", "mean")), ROLLOUT_MS),
}
"""What the numbers are that the vector leaves open, wherever one of them stands."""
CALL_ID = "0123456789abcdef0123456789abcdef"
OF_THE_PEER_ALONE = ("_ng_environment_server", "_ng_result_type")


def concrete(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: concrete(member, name) for name, member in value.items()}
    if isinstance(value, list):
        return [concrete(member) for member in value]
    if value == "HEX32":
        return CALL_ID
    return FIGURES[key] if value == "ANY_NUMBER" and key in FIGURES else value


def ours(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in OF_THE_PEER_ALONE}


def capture_of(case: dict[str, Any], rollout_id: str) -> bytes:
    exchanges = case["captures"][f"{rollout_id}.capture.jsonl"]
    return b"".join(json.dumps(concrete(exchange)).encode() + b"\n" for exchange in exchanges)


def joined_row(case: dict[str, Any], ordinal: int) -> Joined:
    row = case["materialized"][ordinal]
    rollout_id = f"{row['_ng_task_index']}-{row['_ng_rollout_index']}"
    posted = [
        exchange
        for exchange in case["http"]
        if exchange["path"] == "/run" and exchange["request"]["_ng_task_index"] == row["_ng_task_index"]
    ]
    assert ours(posted[0]["request"]) == row
    reply, failure = posted[0]["response"], None
    if posted[0]["status"] >= 400:
        message = case["failures"][0]["_ng_failure_message"]
        failure = RunFailure("agent_run_error", "ClientResponseError", message, posted[0]["status"], reply)
    result = RunResult(None if failure else json.dumps(concrete(reply)).encode(), failure, ROLLOUT_MS)
    snapshot = CaptureSnapshot(capture_of(case, rollout_id), incomplete=False)
    return join(json.dumps(row).encode(), rollout_id, result, snapshot, WrittenCalls())


def test_a_finished_rollout_is_the_record_that_the_peer_stored(case: dict[str, Any]) -> None:
    joined = joined_row(case, 0)
    assert joined.destination == "main"
    assert json.loads(joined.line) == ours(concrete(case["output"][0]))


def test_a_failed_rollout_is_the_peers_row_and_its_capture(case: dict[str, Any], departures: dict[str, Any]) -> None:
    joined = joined_row(case, 1)
    record = json.loads(joined.line)
    added = record.pop("ng_model_call_capture")
    assert joined.destination == "failures"
    assert record == ours(case["failures"][0])
    rule = departures["failure_rows_carry_their_capture"]
    assert rule["file"] == "D_e2e.json"
    assert added["rollout_id"] == "1-0"
    assert [[call[name] for name in rule["fields"]] for call in added["calls"]] == [rule["expected"]]
    assert not {"request", "response", "request_raw", "response_raw"} & set(added["calls"][0])


def test_facts_are_what_the_record_says(case: dict[str, Any]) -> None:
    for ordinal in (0, 1):
        joined = joined_row(case, ordinal)
        facts, record = json.loads(joined.facts), json.loads(joined.line)
        assert facts["reduced"] == reduced(record)
        assert facts["verdict"] == check_rollout(record)


@pytest.fixture
def run(case: dict[str, Any], tmp_path: Path) -> RunPaths:
    """The files of the whole run, with the records that we join."""
    paths = RunPaths.of(tmp_path / "out.jsonl")
    paths.materialised.write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in case["materialized"]))
    for ordinal in range(len(case["materialized"])):
        joined = joined_row(case, ordinal)
        with (paths.output if joined.destination == "main" else paths.failures).open("ab") as file:
            file.write(joined.line + b"\n")
    return paths


def test_the_verdicts_of_the_run_are_the_peers(case: dict[str, Any], run: RunPaths) -> None:
    run.directory.mkdir()
    outcome = health_of_run(run)
    verdicts = [json.loads(line) for line in run.public_rollout_verdicts.read_bytes().splitlines()]
    assert verdicts == case["rollout_verdicts"]
    assert outcome.errors == 0


def test_an_agent_is_asked_for_its_metrics_with_what_the_peer_asks(case: dict[str, Any], run: RunPaths) -> None:
    asked = next(one for one in case["http"] if one["path"] == "/aggregate_metrics")
    bodies: list[tuple[str, Any]] = []

    def post(agent: str, body: Iterator[bytes]) -> bytes:
        bodies.append((agent, json.loads(b"".join(body))))
        return json.dumps(concrete(asked["response"])).encode()

    with MaterialisedRows(run.materialised) as rows:
        aggregate(run, rows, post=post)
    replies = [ours(concrete(reply)) for reply in asked["request"]["verify_responses"]]
    assert bodies == [("mcqa_simple_agent", {"verify_responses": replies})]
    assert json.loads(run.aggregate_metrics.read_bytes()) == [ours(concrete(one)) for one in case["aggregate_metrics"]]


async def environment_answer(body: bytes) -> bytes:
    transport = httpx.ASGITransport(build_environment_app(McqaEnvironment(), "mcqa"))
    async with httpx.AsyncClient(transport=transport, base_url="http://mcqa") as client:
        return (await client.post("/aggregate_metrics", content=body)).content


def test_our_environment_answers_so_that_the_metrics_are_the_peers(case: dict[str, Any], run: RunPaths) -> None:
    def post(_agent: str, body: Iterator[bytes]) -> bytes:
        return asyncio.run(environment_answer(b"".join(body)))

    with MaterialisedRows(run.materialised) as rows:
        aggregate(run, rows, post=post)
    (entry,) = json.loads(run.aggregate_metrics.read_bytes())
    (expected,) = (ours(concrete(one)) for one in case["aggregate_metrics"])
    assert entry["agent_metrics"] == expected["agent_metrics"]
    assert entry["key_metrics"] == expected["key_metrics"]


def test_metrics_of_an_agent_that_is_not_asked_are_among_the_peers(case: dict[str, Any], run: RunPaths) -> None:
    with MaterialisedRows(run.materialised) as rows:
        aggregate(run, rows)
    (entry,) = json.loads(run.aggregate_metrics.read_bytes())
    (expected,) = concrete(case["aggregate_metrics"])
    assert entry["perf_summary"] == expected["perf_summary"]
    assert len(entry["agent_metrics"]) > 20
    assert entry["agent_metrics"].items() <= expected["agent_metrics"].items()


def test_the_capture_files_read_back(case: dict[str, Any], tmp_path: Path) -> None:
    for name in case["captures"]:
        (tmp_path / name).write_bytes(capture_of(case, name.removesuffix(".capture.jsonl")))
    store = CaptureStore(tmp_path)
    for name, exchanges in case["captures"].items():
        rollout_id = name.removesuffix(".capture.jsonl")
        assert store.read(rollout_id) == [concrete(exchange) for exchange in exchanges]


@pytest.mark.parametrize("ordinal", [0, 1])
def test_joining_again_gives_the_same_bytes(case: dict[str, Any], ordinal: int) -> None:
    assert joined_row(case, ordinal) == joined_row(case, ordinal)
