"""A desk and its clients over real files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gym_ray.errors import RunNotFoundError, StorageError
from gym_ray.rollouts.collection import Collection
from gym_ray.rollouts.control.client import read_status, send
from gym_ray.rollouts.control.control_files import ControlPlaces, new_request, publish_small
from gym_ray.rollouts.control.desk import ControlDesk
from gym_ray.testing.begun_run import BegunRun
from gym_ray.testing.fake_rollouts import FakePort, by_task, failing, hang
from gym_ray.testing.waiting import until


class Live:
    """A run of 6 rows, of which 0 fails and 1 hangs, with its desk."""

    def __init__(self, directory: Path) -> None:
        self.run = BegunRun(directory, 6)
        self.port = FakePort(self.run.outputs, by_task({"0": failing("agent_run_error"), "1": hang}), capacity=2)
        self.collection: Collection = self.run.collection(self.port)
        self.paths, self.places = self.run.paths, ControlPlaces.of(self.run.paths)
        self.now = 0.0
        self.desk = ControlDesk(self.paths, self.collection, interval_s=0.02, clock=lambda: self.now)

    async def begin(self) -> None:
        await self.desk.start()
        self.task = asyncio.create_task(self.collection.run())
        await until(lambda: self.collection.progress().done == 4)

    async def ask(self, action: str, ids: list[str] | None = None) -> dict[str, Any]:
        return await asyncio.to_thread(send, self.paths, action, ids, timeout_s=20.0)

    async def end(self) -> None:
        self.collection.stop()
        await self.task
        await self.desk.aclose()
        self.run.close()


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    live = Live(tmp_path)
    await live.begin()
    yield live
    await live.end()


async def test_the_status_says_what_runs_where_what_waits_and_what_failed(live: Live) -> None:
    await until(lambda: read_status(live.paths).value["progress"]["done"] == 4)
    status = read_status(live.paths)
    assert not status.over
    assert not status.silent
    value = status.value
    assert [(p["rollout_id"], p["seat"], p["node"]) for p in value["placements"]] == [("1-0", "worker", "node")]
    assert (value["queue"], value["in_flight"], value["failures"]) == (0, 1, {"agent_run_error": 1})
    assert value["oldest_s"] >= 0
    assert live.places.status.stat().st_mode & 0o077 == 0
    assert live.places.root.stat().st_mode & 0o077 == 0


async def test_what_is_asked_is_done_and_answered(live: Live) -> None:
    assert (await live.ask("pause"))["error"] is None
    assert live.collection.progress().paused
    answer = await live.ask("requeue", ["0-0", "2-0"])
    assert answer["done"] == ["0-0"]
    assert list(answer["refused"]) == ["2-0"]
    assert live.collection.progress().pending == 1
    await live.ask("resume")
    await until(lambda: "0-0-a1" in live.port.times("joined"))
    answer = await live.ask("cancel", ["1-0"])
    assert answer["done"] == ["1-0"]
    assert (await live.task).cancelled == 1
    assert not list(live.places.requests.iterdir())
    assert not list(live.places.taken.iterdir())
    assert not list(live.places.answers.iterdir())


async def test_a_drain_ends_the_run(live: Live) -> None:
    await live.ask("drain")
    assert live.collection.progress().stopped


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("0" * 48 + ".json", b"{", "not a request"),
        ("0" * 48 + ".json", b'{"gym_ray_request":1,"id":"other","run_id":"","desk":"","action":"pause"}', "id"),
        ("1" * 48 + ".json", b'{"gym_ray_request":1,"id":1,"run_id":"","desk":"","action":"pause"}', "id: not a text"),
        ("notes.txt", b"hello", "plain .json"),
    ],
)
async def test_files_that_are_no_requests_are_answered_and_set_aside(
    live: Live, name: str, data: bytes, problem: str
) -> None:
    (live.places.requests / name).write_bytes(data)
    answer = live.places.answers / f"{Path(name).stem}.json"
    await until(answer.exists)
    assert problem in json.loads(answer.read_text())["error"]
    await until(lambda: any(path.name.startswith(name) for path in live.places.refused.iterdir()))
    assert not live.collection.progress().paused


async def test_a_request_for_an_earlier_collector_is_not_done(live: Live) -> None:
    request = new_request({**read_status(live.paths).value, "desk": "f" * 32}, "pause", None)
    publish_small(live.places.requests / f"{request.id}.json", request.encode())
    answer = live.places.answers / f"{request.id}.json"
    await until(answer.exists)
    assert "earlier collector" in json.loads(answer.read_text())["error"]
    assert not live.collection.progress().paused


async def test_a_request_that_was_taken_before_a_crash_is_answered_and_never_done_again(tmp_path: Path) -> None:
    live = Live(tmp_path)
    live.places.make()
    request = new_request({"run_id": "0" * 32, "desk": "f" * 32}, "pause", None)
    publish_small(live.places.taken / f"{request.id}.json", request.encode())
    await live.begin()
    answer = json.loads((live.places.answers / f"{request.id}.json").read_text())
    assert "ended while it did this" in answer["error"]
    assert not live.collection.progress().paused
    assert not list(live.places.taken.iterdir())
    await live.end()


async def test_nobody_answers_where_the_collector_is_gone_and_the_request_is_withdrawn(live: Live) -> None:
    live.desk._closed.set_result(None)  # as if its process had died: no last word
    await asyncio.wait({live.desk._task})  # type: ignore[arg-type]
    live.desk._task = None
    with pytest.raises(RunNotFoundError, match=r"nobody answers: last word \d+ s ago; the request was withdrawn"):
        await asyncio.to_thread(send, live.paths, "pause", timeout_s=0.2)
    assert not list(live.places.requests.iterdir())


async def test_a_run_that_is_over_says_so_and_takes_nothing(tmp_path: Path) -> None:
    live = Live(tmp_path)
    await live.begin()
    await live.end()
    assert read_status(live.paths).over
    with pytest.raises(RunNotFoundError, match="the run is over"):
        send(live.paths, "pause")


def test_places_without_a_run_are_refused(tmp_path: Path) -> None:
    run = BegunRun(tmp_path, 1)
    with pytest.raises(RunNotFoundError, match="no run has said"):
        read_status(run.paths)
    ControlPlaces.of(run.paths).status.write_text("[]")
    with pytest.raises(StorageError, match="no status"):
        read_status(run.paths)
    run.close()


async def test_what_is_asked_in_one_moment_is_done_in_the_order_in_which_it_was_asked(live: Live) -> None:
    status = read_status(live.paths).value
    asked = [new_request(status, "pause" if number % 2 == 0 else "resume", None) for number in range(9)]
    for request in reversed(asked):  # as a listing may show them
        publish_small(live.places.root / request.id, request.encode())
    for request in asked:
        (live.places.root / request.id).rename(live.places.requests / f"{request.id}.json")
    await until(lambda: len(list(live.places.answers.iterdir())) == 9)
    assert [path.stem for path in sorted(live.places.answers.iterdir())] == [request.id for request in asked]
    answers = [json.loads((live.places.answers / f"{request.id}.json").read_text()) for request in asked]
    assert sorted(answers, key=lambda answer: answer["answered_at"]) == answers
    assert live.collection.progress().paused, "the last one was a pause"


async def test_answers_that_nobody_fetches_are_kept_for_an_hour_and_those_of_earlier_collectors_not(
    tmp_path: Path,
) -> None:
    live = Live(tmp_path)
    live.places.make()
    (live.places.answers / ("0" * 48 + ".json")).write_text("{}")
    await live.begin()
    assert not list(live.places.answers.iterdir())
    for hour in (0.0, 0.75):
        live.now = hour * 3600
        request = new_request(read_status(live.paths).value, "resume", None)
        publish_small(live.places.requests / f"{request.id}.json", request.encode())
        await until((live.places.answers / f"{request.id}.json").exists)
    live.now = 1.5 * 3600
    await until(lambda: len(list(live.places.answers.iterdir())) == 1)
    assert (live.places.answers / f"{request.id}.json").exists(), "it is 45 minutes old"
    await live.end()


async def test_a_status_names_the_64_oldest_attempts_and_counts_all(tmp_path: Path) -> None:
    run = BegunRun(tmp_path, 70)
    port = FakePort(run.outputs, hang, capacity=70)
    collection = run.collection(port)
    desk = ControlDesk(run.paths, collection, interval_s=0.02)
    await desk.start()
    task = asyncio.create_task(collection.run())
    await until(lambda: read_status(run.paths).value["in_flight"] == 70)
    value = read_status(run.paths).value
    assert [place["rollout_id"] for place in value["placements"]] == list(port.times("run"))[:64]
    assert value["placements"][0]["begun_at"] == port.placements()[0].begun_at
    collection.stop()
    await task
    await desk.aclose()
    run.close()
