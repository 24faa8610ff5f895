"""Where a run stands, as Ray's metrics are told; the endpoint itself is the matter of ``test_logs_and_metrics``."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import ClassVar

import pytest

from gym_ray.rollouts.run_standing import RunStanding
from gym_ray.testing.begun_run import BegunRun
from gym_ray.testing.fake_rollouts import FakePort, answer, by_task, failing, hang
from gym_ray.testing.waiting import until


class Told:
    """Stands for any of Ray's metrics; keeps the sum of a counter and the last value of a gauge."""

    values: ClassVar[Counter[tuple[str, ...]]] = Counter()

    def __init__(self, name: str, _description: str, tags: tuple[str, ...]) -> None:
        self._name, self._tags = name.removeprefix("gym_ray_run_"), tags

    def set_default_tags(self, tags: dict[str, str]) -> None:
        assert tags == {"run": "out"}

    def inc(self, count: float, tags: dict[str, str]) -> None:
        assert {"run", *tags} == set(self._tags)
        self.values[(self._name, *tags.values())] += count

    def set(self, value: float) -> None:
        self.values[self._name,] = value


async def test_a_run_is_published_without_ids_and_each_event_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gym_ray.actors import publisher as publishing
    from gym_ray.actors import run_metrics

    told: Counter[tuple[str, ...]] = Counter()
    monkeypatch.setattr(Told, "values", told)
    monkeypatch.setattr(publishing, "Counter", Told)
    monkeypatch.setattr(publishing, "Gauge", Told)
    run = BegunRun(tmp_path, 6)
    script = by_task({"0": failing("judge_failed"), "1": failing("a text of a reply"), "2": hang, "3": hang})
    collection = run.collection(FakePort(run.outputs, script, capacity=6))
    publisher = run_metrics.RunMetricsPublisher(lambda: RunStanding.of(collection), run.paths.output.stem)
    task = asyncio.create_task(collection.run())
    await until(lambda: collection.progress().done == 2 and collection.progress().failed == 2)
    collection.pause()
    for _ in range(2):
        publisher.publish(publisher.take())
    assert told.pop(("join_lag_p90_seconds",)) > 0
    assert told == {
        ("rows_pending",): 0,
        ("rows_in_flight",): 2,
        ("rows_joining",): 0,
        ("oldest_unjoined_seconds",): 0,
        ("paused",): 1,
        ("rollouts_done_total",): 2,
        ("attempts_failed_total", "judge_failed"): 1,
        ("attempts_failed_total", "other"): 1,
    }
    collection.cancel(["2-0"])
    await until(lambda: collection.progress().cancelled == 1)
    monkeypatch.setattr(collection._port, "_script", answer)
    collection.requeue([0, 2])
    assert collection.progress().cancelled == 0
    collection.resume()
    await until(lambda: collection.progress().done == 4)
    publisher.start()
    await publisher.close()
    found = {name: told[name,] for name in ("retries_total", "attempts_cancelled_total", "rollouts_done_total")}
    assert found == {"retries_total": 2, "attempts_cancelled_total": 1, "rollouts_done_total": 4}
    assert told["paused",] == 0
    collection.stop()
    await task
    run.close()
