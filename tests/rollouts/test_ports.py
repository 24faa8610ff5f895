"""What crosses process borders must come back equal."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from gym_ray.evidence.run_result import RunFailure, RunResult
from gym_ray.evidence.summary import summarise
from gym_ray.rollouts.collection import CollectionSettings, Finished, Progress
from gym_ray.rollouts.metrics import RunMetrics
from gym_ray.rollouts.ports import AttemptJob, JoinOutcome, JoinRequest, Lost, ReplyHandle
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.rows.materialised import Materialisation
from gym_ray.rollouts.run_files.run_start import RunStart
from gym_ray.rollouts.run_paths import OutputMark, RunPaths, Written

SUMMARY = summarise({"_ng_task_index": 0, "reward": 1}, None, "0-0", 1.0)
WRITTEN = Written("main", 0, 10)


@pytest.mark.parametrize(
    "value",
    [
        AttemptJob(0, 1, "0-0-a1", "a", b"{}", 5.0),
        JoinRequest(OutputMark(1, 2), retry=True, terminal=True, attach_capture=False),
        JoinOutcome(WRITTEN, SUMMARY),
        Finished(WRITTEN, SUMMARY, retried=False, ordinal=3, attempt=1),
        Lost("node_lost", "gone"),
        ReplyHandle(b"opaque"),
        RunResult(None, RunFailure("agent_timeout", "E", "m"), 1.0),
        CollectionSettings(num_samples_in_parallel=3),
        Progress(1, 0, 0, 0, 1, 0, 0, 0, 0, 0),
        RowOptions(agent_map={"a": "b"}, num_repeats={"_default": 2}),
        RunPaths.of("r.jsonl"),
        RunStart("f" * 32, Materialisation(1, 1, "0" * 64, ("w",)), Path("/old")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_it_survives_pickling(value: object) -> None:
    assert pickle.loads(pickle.dumps(value)) == value


def test_metrics_survive_pickling() -> None:
    metrics = RunMetrics()
    metrics.add(SUMMARY)
    metrics.add(SUMMARY, stored=False)
    copy = pickle.loads(pickle.dumps(metrics))
    assert copy.to_dict() == metrics.to_dict()
    copy.add(SUMMARY)
    assert copy.rows()[0].done == 2
