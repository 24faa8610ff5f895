"""What goes wrong around a captured call: the ledger knows it first, and a good answer is served all the same."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from gym_ray.dialects import CHAT, DIALECT_BY_PATH, MESSAGES, RESPONSES
from gym_ray.errors import CaptureError
from gym_ray.model_server.app import build_app
from gym_ray.testing.fake_engine import FakeEngine
from gym_ray.testing.script import ScriptedAnswer
from gym_ray.testing.staged_site import staged_site
from gym_ray.testing.staging_worker import ScriptedWorker
from gym_ray.testing.storage_faults import FaultyCalls
from gym_ray.testing.waiting import until
from gym_ray.token_id_capture.external_staging import ExternalStaging
from gym_ray.token_id_capture.kept_failures import FailureKeepingLedger
from gym_ray.token_id_capture.lineage import LineageResolution
from gym_ray.token_id_capture.staging import CaptureLedgerCommit
from gym_ray.token_id_capture.staging.ledger.file_ledger import FileCaptureLedger
from gym_ray.token_id_capture.staging.ledger.memory_ledger import MemoryCaptureLedger

PATH_OF = {dialect: path for path, dialect in DIALECT_BY_PATH.items()}
DIALECTS = [CHAT, RESPONSES, MESSAGES]
TURNS = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "m", "messages": TURNS},
    RESPONSES: {"model": "m", "input": TURNS},
    MESSAGES: {"model": "m", "max_tokens": 9, "messages": TURNS},
}
GENERAL = "request_finished_without_staged_coordinates"
INVALID = "invalid_worker_commit_coordinates"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_client_that_hangs_up_ends_the_workers_call_and_leaves_a_failure(
    tmp_path: Path, dialect: str, stream: bool
) -> None:
    worker = ScriptedWorker()
    worker.gate = asyncio.Event()
    async with staged_site(tmp_path, worker, observability=True, keep_alive_s=0.02) as site:
        path = f"/ng-rollout/r1/training-token-capture{PATH_OF[dialect]}"
        body = {**BODIES[dialect], "stream": stream}
        call = asyncio.create_task(site.http.post(path, json=body))
        await until(lambda: site.upstream.open_answers == 1)
        call.cancel()
        await asyncio.wait([call])
        await until(lambda: site.upstream.aborted == 1)
        async with asyncio.timeout(10):
            while await site.reasons() != [GENERAL]:  # noqa: ASYNC110 - nothing tells when a server is done
                await asyncio.sleep(0.005)
        assert (await site.manifest()).records == []
        assert len(site.worker.staging) == 1, "what it staged is an orphan"


class SlowLedger(MemoryCaptureLedger):
    """Keeps rows when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.gate = asyncio.Event(), asyncio.Event()

    async def record(self, commit: CaptureLedgerCommit) -> None:
        self.asked.set()
        await self.gate.wait()
        await super().record(commit)


async def test_a_row_that_is_being_written_is_written_to_its_end(tmp_path: Path) -> None:
    ledger = SlowLedger()
    async with staged_site(tmp_path, ledger=ledger) as site:
        call = asyncio.create_task(site.post(PATH_OF[CHAT], BODIES[CHAT]))
        await ledger.asked.wait()
        call.cancel()
        await asyncio.wait([call])
        ledger.gate.set()
        async with asyncio.timeout(10):
            while not (await site.manifest()).records:  # noqa: ASYNC110 - nothing tells when a server is done
                await asyncio.sleep(0.005)
        assert await site.reasons() == []


async def test_nothing_is_served_before_its_row_is_durable(tmp_path: Path) -> None:
    ledger = SlowLedger()
    async with staged_site(tmp_path, ledger=ledger, keep_alive_s=0.01) as site:
        path = f"/ng-rollout/r1/training-token-capture{PATH_OF[CHAT]}"
        async with site.http.stream("POST", path, json={**BODIES[CHAT], "stream": True}) as reply:
            lines = reply.aiter_lines()
            await ledger.asked.wait()  # the worker has answered, and all of it is written
            heard = [await anext(lines) for _ in range(6)]
            assert set(heard) == {": keep-alive", ""}
            ledger.gate.set()
            rest = [line async for line in lines]
        assert rest[-2:] == ["data: [DONE]", ""]
        assert len((await site.manifest()).records) == 1


async def test_a_ledger_that_hangs_delays_an_answer_for_a_bounded_time(tmp_path: Path) -> None:
    async with staged_site(tmp_path, ledger=SlowLedger(), ledger_timeout_s=0.05) as site:
        reply = await site.post(PATH_OF[CHAT], BODIES[CHAT])
        assert reply.json()["choices"][0]["message"]["content"] == "hello"
        assert await site.reasons() == [INVALID, GENERAL]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_on_a_full_disk_the_answer_is_served_and_the_rollout_is_no_success(
    tmp_path: Path, dialect: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    calls = FaultyCalls(only=lambda path: path.endswith(".lineage.jsonl"))
    ledger = FileCaptureLedger(tmp_path / "ledger", calls=calls)
    async with staged_site(tmp_path, ledger=ledger) as site:
        calls.write_error = OSError(errno.ENOSPC, "no space left on device")
        with caplog.at_level(logging.ERROR):
            reply = await site.post(PATH_OF[dialect], {**BODIES[dialect], "stream": stream})
        assert reply.status_code == 200
        assert "hello" in reply.text
        manifest = await site.manifest()
        assert (manifest.records, [failure.reason for failure in manifest.failures]) == ([], [INVALID, GENERAL])
        assert f"the ledger cannot keep the failure {INVALID}" in caplog.text
        # The next turn must not become a root: what was generated would be trained as a prompt.
        calls.write_error = None
        async with asyncio.timeout(20):
            while not (await ledger.manifest("r1")).failures:  # noqa: ASYNC110 - nothing tells when it is written
                await asyncio.sleep(0.01)
    assert '"failure_reason":"invalid_worker_commit_coordinates"' in (tmp_path / "ledger/r1.lineage.jsonl").read_text()


async def test_the_turn_behind_a_lost_row_is_not_made_a_root(tmp_path: Path) -> None:
    calls = FaultyCalls(only=lambda path: path.endswith(".lineage.jsonl"))
    async with staged_site(tmp_path, ledger=FileCaptureLedger(tmp_path / "ledger", calls=calls)) as site:
        calls.write_error = OSError(errno.ENOSPC, "no space left on device")
        await site.post(PATH_OF[CHAT], BODIES[CHAT])
        turns = [*TURNS, {"role": "assistant", "content": "hello"}, {"role": "user", "content": "more"}]
        assert (await site.post(PATH_OF[CHAT], {**BODIES[CHAT], "messages": turns})).status_code == 200
        assert "ng_capture" not in site.worker.bodies[-1]
        assert await site.reasons() == [INVALID, GENERAL, "unresolved_parent"]
        calls.write_error = None


class BrokenLedger(MemoryCaptureLedger):
    """Cannot be read."""

    async def resolve(self, rollout_id: str, items: Sequence[Any]) -> LineageResolution:
        del rollout_id, items
        raise CaptureError("a text for the log")


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_ledger_that_cannot_be_asked_fails_the_call_before_the_worker_hears_of_it(
    tmp_path: Path, dialect: str
) -> None:
    async with staged_site(tmp_path, ledger=BrokenLedger()) as site:
        for stream in (False, True):
            reply = await site.post(PATH_OF[dialect], {**BODIES[dialect], "stream": stream})
            if stream and dialect == RESPONSES:
                assert (reply.status_code, reply.text.count("event: ")) == (200, 2)
                assert "event: response.failed" in reply.text
            else:
                assert reply.status_code == 503
            assert "nothing was generated" in reply.text
            assert "a text for the log" not in reply.text
        assert site.worker.bodies == []
        assert await site.reasons() == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", [RESPONSES, MESSAGES])
async def test_an_answer_that_cannot_be_converted_has_no_row(tmp_path: Path, dialect: str, stream: bool) -> None:
    async with staged_site(tmp_path, ScriptedWorker(changes=lambda answer: {**answer, "choices": []})) as site:
        reply = await site.post(PATH_OF[dialect], {**BODIES[dialect], "stream": stream})
        if stream and dialect == RESPONSES:
            assert reply.status_code == 200
            assert [line for line in reply.text.splitlines() if line.startswith("event")] == [
                "event: response.created",
                "event: response.failed",
            ]
        else:
            assert reply.status_code == 502
        assert len(site.worker.staging) == 1
        assert (await site.manifest()).records == []
        assert await site.reasons() == [GENERAL]


@pytest.mark.parametrize("bad", ["", None, 7])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_answer_without_an_id_is_served_and_not_committed(tmp_path: Path, dialect: str, bad: object) -> None:
    async with staged_site(tmp_path, ScriptedWorker(changes=lambda answer: {**answer, "id": bad})) as site:
        reply = await site.post(PATH_OF[dialect], BODIES[dialect])
        assert reply.status_code == 200
        assert await site.reasons() == [INVALID, GENERAL]
        assert (await site.manifest()).records == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ng_commit_coords": {"hello": 1}}, INVALID),
        ({"ng_commit_coords": []}, INVALID),
        ({"ng_commit_coords": "text"}, INVALID),
        ({"ng_commit_coords": None}, "worker_response_missing_commit_coordinates"),
    ],
)
async def test_coordinates_of_any_kind_harm_nothing(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    async with staged_site(tmp_path, ScriptedWorker(changes=lambda answer: {**answer, **changes})) as site:
        assert (await site.post(PATH_OF[CHAT], BODIES[CHAT])).status_code == 200
        assert await site.reasons() == [reason, GENERAL]


async def test_a_worker_that_says_no_json_or_an_error_with_200(tmp_path: Path) -> None:
    for said in (b"no json", b'{"error": {"message": "broke"}}'):
        directory = tmp_path / str(len(said))
        async with staged_site(directory, ScriptedWorker(refusal=ScriptedAnswer([said]))) as site:
            assert (await site.post(PATH_OF[CHAT], BODIES[CHAT])).status_code == 502
            assert await site.reasons() == [GENERAL]


async def test_a_worker_that_dies_in_its_answer(tmp_path: Path) -> None:
    dying = ScriptedWorker(refusal=ScriptedAnswer([b'{"id": "half'], cut=True))
    async with staged_site(tmp_path, dying) as site:
        assert (await site.post(PATH_OF[CHAT], BODIES[CHAT])).status_code == 502
        assert await site.reasons() == [GENERAL]


async def test_history_that_cannot_be_hashed_is_served_and_not_captured(tmp_path: Path) -> None:
    turns = [{"role": "assistant", "content": 5}, *TURNS]
    async with staged_site(tmp_path) as site:
        reply = await site.post(PATH_OF[CHAT], {**BODIES[CHAT], "messages": turns})
        assert reply.status_code == 200
        assert "ng_capture" not in site.worker.bodies[-1]
        assert await site.reasons() == ["unresolved_parent"]


async def test_a_server_whose_engine_speaks_no_chat_refuses_captured_calls() -> None:
    ledger = MemoryCaptureLedger()
    external = ExternalStaging(FailureKeepingLedger(ledger, timeout_s=5.0), "vllm_worker", "secret")
    engine = FakeEngine(dialects=[RESPONSES])
    app = build_app(engine, server_name="judge", capture=None, external=external)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
        captured = await client.post("/ng-rollout/r1/training-token-capture/v1/responses", json=BODIES[RESPONSES])
        plain = await client.post("/v1/responses", json=BODIES[RESPONSES])
    assert (captured.status_code, plain.status_code) == (501, 200)
    assert "'judge' has no worker that stages tokens" in captured.json()["error"]["message"]
    assert len(engine.requests) == 1
    await external.aclose()


async def test_many_calls_at_once_have_one_row_each(tmp_path: Path) -> None:
    async with staged_site(tmp_path) as site:
        bodies = [{**BODIES[CHAT], "messages": [{"role": "user", "content": f"q{index}"}]} for index in range(40)]
        replies = await asyncio.gather(*(site.post(PATH_OF[CHAT], body) for body in bodies))
        manifest = await site.manifest()
        assert {record.response_id for record in manifest.records} == {json.loads(r.text)["id"] for r in replies}
        assert (len(manifest.records), manifest.failures) == (40, [])
