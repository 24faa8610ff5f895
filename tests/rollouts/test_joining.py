from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from gym_ray.capture_location import CaptureLocation
from gym_ray.errors import CaptureError, ClusterError, StorageError
from gym_ray.evidence.run_result import RunFailure, RunResult
from gym_ray.model_call_capture.exchanges.exchange import Exchange
from gym_ray.model_call_capture.quiesce import QUIESCE_PATH, forget, quiesce_endpoint
from gym_ray.model_call_capture.store import CaptureStore
from gym_ray.model_call_capture.writer import CaptureWriter
from gym_ray.rollouts.collection import Collection, CollectionSettings
from gym_ray.rollouts.joining import Joiner
from gym_ray.rollouts.ports import AttemptJob, JoinRequest, Lost
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.rows.materialised_rows import MaterialisedRows
from gym_ray.rollouts.run_files.ledger_log import LedgerLog
from gym_ray.rollouts.run_files.run_log import RunOutputs, read_record
from gym_ray.rollouts.run_files.run_start import RunLock, begin_run
from gym_ray.rollouts.run_paths import OutputMark, RunPaths
from gym_ray.rollouts.tokens.token_delivery import TokenDelivery
from gym_ray.testing.fake_rollouts import FakePort
from gym_ray.testing.token_sinks import PlainTokenSink
from gym_ray.testing.token_source import FakeTokenSource, call_entry
from gym_ray.token_id_capture.call_capture import TokenCapture

ROW = {
    "responses_create_params": {"input": "q"},
    "agent_ref": {"name": "a"},
    "_ng_task_index": 0,
    "_ng_rollout_index": 0,
}
JOB = AttemptJob(0, 0, "0-0", "a", json.dumps(ROW).encode())
REPLY = RunResult(b'{"reward": 1.0}', None, 7.0)
START = JoinRequest(OutputMark(0, 0))
AGAIN = JoinRequest(OutputMark(0, 0), retry=True)


class Setting:
    """A run, a capture directory, and one live writer that answers over ASGI."""

    def __init__(self, tmp_path: Path) -> None:
        source = tmp_path / "in.jsonl"
        source.write_text(json.dumps({k: v for k, v in ROW.items() if not k.startswith("_")}) + "\n")
        self.paths = RunPaths.of(tmp_path / "out.jsonl")
        with RunLock(self.paths) as lock:
            begin_run(lock, source, RowOptions())
        self.captures = tmp_path / "captures"
        self.captures.mkdir()
        self.writer = CaptureWriter(self.captures, server_name="policy_model", url="http://model", run_token="t")
        self.writer.start()
        self.asked: list[dict[str, Any]] = []
        sink = PlainTokenSink()
        sink.failures["mark_incomplete"] = OSError("no space left")
        self.tokens = TokenCapture(sink, None, retry_interval_s=60.0)
        answer = quiesce_endpoint(self.writer, "t", self.tokens)

        async def route(request: Any) -> Any:
            self.asked.append(await request.json())
            return await answer(request)

        app = Starlette(routes=[Route(QUIESCE_PATH, route, methods=["POST"])])
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app))
        self.joiner = self.make_joiner()

    def make_joiner(self, **kwargs: Any) -> Joiner:
        kwargs.setdefault("client", self.client)
        return Joiner(self.paths, CaptureLocation.of(self.captures), quiesce_timeout_s=0.05, **kwargs)

    def begin_call(self, rollout_id: str = "0-0") -> Exchange:
        exchange = self.writer.begin(rollout_id, "responses")
        assert exchange is not None
        return exchange

    async def call(self, rollout_id: str = "0-0") -> str:
        exchange = self.begin_call(rollout_id)
        exchange.status, exchange.complete = 200, True
        await self.writer.commit(exchange)
        return exchange.call_id

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.paths.output.read_text().splitlines()]


@pytest.fixture
async def setting(tmp_path: Path) -> AsyncIterator[Setting]:
    found = Setting(tmp_path)
    yield found
    await found.joiner.aclose()
    await found.client.aclose()
    found.tokens.forget("0-0")
    await found.tokens.aclose()
    await asyncio.to_thread(found.writer.close)


def codes(record: dict[str, Any]) -> list[str]:
    return [gap["code"] for gap in record["ng_model_call_capture"].get("gaps", [])]


async def test_every_recorded_call_is_attached_and_the_servers_forget_it(setting: Setting) -> None:
    ids = [await setting.call() for _ in range(3)]
    await setting.call("1-0")
    outcome = await setting.joiner.join(JOB, REPLY, START)
    assert outcome.written is not None
    record = json.loads(read_record(setting.paths, outcome.written))
    assert [call["model_call_id"] for call in record["ng_model_call_capture"]["calls"]] == ids
    assert "model_call_capture_calls_missing" not in codes(record)
    assert outcome.summary.num_calls == 3
    assert setting.asked[-1]["forget"] == ["0-0"]
    assert setting.asked[-1]["withdraw_open"] is False, "a call that is still open will have its line all the same"


async def test_a_call_that_stays_open_is_a_gap(setting: Setting) -> None:
    exchange = setting.begin_call()
    await setting.joiner.join(JOB, REPLY, START)
    assert "model_call_capture_open_calls" in codes(setting.records()[0])
    await setting.writer.commit(exchange)


async def test_a_live_writer_that_does_not_answer_is_a_gap(setting: Setting) -> None:
    await setting.call()

    async def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    async with httpx.AsyncClient(transport=httpx.MockTransport(refuse)) as client:
        joiner = setting.make_joiner(client=client)
        await joiner.join(JOB, REPLY, START)
        await joiner.aclose()
    assert codes(setting.records()[0]) == ["model_call_capture_writer_unreachable"]


async def test_writers_that_cannot_be_listed_cost_a_gap_and_not_the_result(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    call_id = await setting.call()

    async def broken(*args: Any, **kwargs: Any) -> Any:
        raise CaptureError("a dead server's log is damaged")

    monkeypatch.setattr("gym_ray.model_call_capture.captures.list_written_calls", broken)
    outcome = await setting.joiner.join(JOB, REPLY, START)
    assert outcome.summary.reward == 1.0
    capture = setting.records()[0]["ng_model_call_capture"]
    assert [call["model_call_id"] for call in capture["calls"]] == [call_id]
    assert capture["gaps"] == [{"code": "model_call_capture_writer_unreachable", "detail": "writers=unknown"}]


async def test_a_listed_call_that_is_gone_from_the_file_is_a_gap(setting: Setting) -> None:
    await setting.call()
    path = CaptureStore(setting.captures).path_for("0-0")
    path.write_bytes(b"")
    await setting.joiner.join(JOB, REPLY, START)
    assert "model_call_capture_calls_missing" in codes(setting.records()[0])


async def test_asking_again_stores_nothing_twice(setting: Setting) -> None:
    await setting.call()
    first = await setting.joiner.join(JOB, REPLY, START)
    await setting.call()  # a late call does not change what was stored
    other = setting.make_joiner()
    again = await other.join(JOB, REPLY, AGAIN)
    await other.aclose()
    assert again == first
    assert len(setting.records()) == 1


async def test_asking_again_after_a_try_that_stored_nothing_stores_it(setting: Setting) -> None:
    outcome = await setting.joiner.join(JOB, REPLY, AGAIN)
    assert outcome.written is not None
    assert len(setting.records()) == 1


async def test_failures_go_to_the_sidecar_with_their_capture(setting: Setting) -> None:
    await setting.call()
    failure = RunFailure("agent_timeout", "AgentTimeoutError", "too slow")
    outcome = await setting.joiner.join(JOB, RunResult(None, failure, 9.0), START)
    assert outcome.written is not None
    assert outcome.written.file == "failures"
    assert outcome.summary.num_calls == 1
    assert setting.records() == []


async def test_an_attempt_that_never_ran_gets_no_capture(setting: Setting) -> None:
    await setting.call()  # left by an earlier attempt that could not be cleared
    failure = RunFailure("agent_request_failed", "StorageError", "not cleared")
    request = JoinRequest(OutputMark(0, 0), attach_capture=False)
    outcome = await setting.joiner.join(JOB, RunResult(None, failure, 0.0), request)
    assert outcome.summary.num_calls is None
    assert b"ng_model_call_capture" not in setting.paths.failures.read_bytes()


async def test_a_reply_that_asks_for_no_record_gets_none(setting: Setting) -> None:
    outcome = await setting.joiner.join(JOB, RunResult(b'{"_ng_no_persist": true}', None, 1.0), START)
    assert outcome.written is None
    assert setting.records() == []


async def test_without_capture_nothing_is_asked_or_attached(setting: Setting) -> None:
    joiner = Joiner(setting.paths, None)
    outcome = await joiner.join(JOB, REPLY, START)
    await joiner.aclose()
    assert setting.asked == []
    assert "ng_model_call_capture" not in setting.records()[0]
    assert outcome.summary.num_calls is None


async def test_many_joins_at_once_store_whole_lines(setting: Setting) -> None:
    jobs = [AttemptJob(n, 0, f"{n}-0", "a", json.dumps({**ROW, "_ng_task_index": n}).encode()) for n in range(40)]
    ids = {job.rollout_id: await setting.call(job.rollout_id) for job in jobs}
    outcomes = await asyncio.gather(*(setting.joiner.join(job, REPLY, START) for job in jobs))
    for job, outcome in zip(jobs, outcomes, strict=True):
        assert outcome.written is not None
        record = json.loads(read_record(setting.paths, outcome.written))
        calls = record["ng_model_call_capture"]["calls"]
        assert [call["model_call_id"] for call in calls] == [ids[job.rollout_id]]


async def test_a_whole_run_keeps_every_call_of_every_attempt(tmp_path: Path, setting: Setting) -> None:
    """Rollouts of several calls, one that fails, one whose worker dies, joins that die after they stored."""
    rows = 12
    source = tmp_path / "many.jsonl"
    row = {key: value for key, value in ROW.items() if not key.startswith("_")}
    source.write_text("".join(json.dumps({**row, "n": n}) + "\n" for n in range(rows)))
    paths = RunPaths.of(tmp_path / "many-out.jsonl")
    made: dict[str, list[str]] = {}
    store = CaptureStore(setting.captures)

    async def agent(job: AttemptJob) -> RunResult | Lost:
        made[job.rollout_id] = [await setting.call(job.rollout_id) for _ in range(1 + job.ordinal % 3)]
        if job.rollout_id == "4-0":
            return Lost("worker_lost", "killed")
        if job.rollout_id == "5-0":
            return RunResult(None, RunFailure("agent_run_error", "E", "broke"), 1.0)
        return REPLY

    class Port(FakePort):
        async def clear(self, rollout_ids: Any) -> None:
            for rollout_id in rollout_ids:
                await asyncio.to_thread(store.clear, rollout_id)

        async def join(self, job: AttemptJob, result: Any, request: JoinRequest) -> Any:
            outcome = await super().join(job, result, request)
            if job.ordinal % 4 == 0 and not request.retry:
                raise ClusterError("the joiner died before it could answer")
            return outcome

    with RunLock(paths) as lock:
        begin_run(lock, source, RowOptions())
        joiner = Joiner(paths, CaptureLocation.of(setting.captures), client=setting.client, quiesce_timeout_s=0.05)
        with (
            MaterialisedRows(paths.materialised) as opened,
            RunOutputs(paths) as outputs,
            LedgerLog(paths.ledger) as log,
        ):
            port = Port(outputs, agent, joiner=joiner)
            collection = Collection(opened, outputs, log, port, CollectionSettings(join_backoff_s=0.001))
            progress = await collection.run()
        await joiner.aclose()
    assert (progress.done, progress.failed, progress.retries) == (rows - 1, 1, 1)
    records = [json.loads(line) for p in (paths.output, paths.failures) for line in p.read_text().splitlines()]
    attached = {}
    for record in records:
        capture = record["ng_model_call_capture"]
        assert "model_call_capture_calls_missing" not in codes(record)
        attached[capture["rollout_id"]] = [call["model_call_id"] for call in capture["calls"]]
    assert len(records) == len(made) == rows + 1
    assert attached == made
    assert collection.metrics.to_dict()["overall"]["model_calls"] == sum(map(len, made.values()))


async def test_a_joiner_needs_a_run_that_has_begun(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be opened"):
        RunOutputs(RunPaths.of(tmp_path / "none.jsonl"))


@pytest.mark.parametrize("lost", [True, False])
async def test_tokens_that_a_server_lost_mask_a_record_before_the_disk_knows(setting: Setting, lost: bool) -> None:
    if lost:
        setting.tokens.mark_soon("0-0")
    source = FakeTokenSource([call_entry("a", [1], [2], rollout_id="0-0")])
    agent = JOB.agent
    joiner = setting.make_joiner(tokens=TokenDelivery(source, frozenset({agent}), retire=True, rows="main"))
    outcome = await joiner.join(JOB, REPLY, START)
    await joiner.aclose()
    assert outcome.summary.token_mask_reasons == (("capture_incomplete", "mark_pending") if lost else ())
    (record,) = setting.records()
    assert [row["mask_sample"] for row in record["_ng_training_rows"]] == [lost]
    assert source.dropped == ([] if lost else [("0-0", "snap", 7)])


async def test_marks_that_wait_are_dropped_only_where_a_rollout_begins_anew(setting: Setting) -> None:
    setting.tokens.mark_soon("0-0")
    await forget(setting.captures, ["0-0"], client=setting.client, withdraw_open=False)
    assert setting.tokens.unmarked() == {"0-0"}
    await forget(setting.captures, ["0-0"], client=setting.client)
    assert setting.tokens.unmarked() == frozenset()
