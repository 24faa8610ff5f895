from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gym_ray.errors import InputError, StorageError
from gym_ray.evidence.facts import facts_of_record
from gym_ray.rollouts.metrics import Aggregation, AggregationOptions, aggregate
from gym_ray.rollouts.metrics.agent_entries import PostMetrics
from gym_ray.rollouts.reports.facts_files import FactsWriter
from gym_ray.rollouts.rows.materialised_rows import MaterialisedRows
from gym_ray.rollouts.run_paths import OutputFile, RunPaths, Written


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths.of(tmp_path / "out.jsonl")


def record(task: Any, repeat: Any, reward: Any = 1.0, agent: str = "a", **fields: Any) -> dict[str, Any]:
    key = {"_ng_task_index": task, "_ng_rollout_index": repeat, "agent_ref": {"name": agent}}
    return {**fields, "reward": reward, **key}


def failure(task: Any, repeat: Any, failure_class: str = "agent_timeout", **fields: Any) -> dict[str, Any]:
    found = record(task, repeat, _ng_failure_class=failure_class, _ng_failure_message="late", **fields)
    if "reward" not in fields:
        del found["reward"]
    return found


def write(path: Path, objects: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(value) + "\n" for value in objects))


def entries(paths: RunPaths) -> dict[str, Any]:
    return {entry["agent_ref"]["name"]: entry for entry in json.loads(paths.aggregate_metrics.read_bytes())}


def run(
    paths: RunPaths,
    records: list[dict[str, Any]],
    failures: list[dict[str, Any]] | None = None,
    rows: list[dict[str, Any]] | None = None,
    *,
    post: PostMetrics | None = None,
    **options: Any,
) -> Aggregation:
    write(paths.output, records)
    write(paths.failures, failures or [])
    chosen = AggregationOptions(**options)
    if rows is None:
        found = aggregate(paths, None, options=chosen, post=post)
    else:
        write(paths.materialised, rows)
        with MaterialisedRows(paths.materialised) as opened:
            found = aggregate(paths, opened, options=chosen, post=post)
    assert json.loads(paths.metrics.read_bytes()) == json.loads(json.dumps(found.metrics))
    return found


def test_every_end_of_a_rollout_is_counted_and_only_measured_rewards_are_averaged(paths: RunPaths) -> None:
    rows = [record(task, repeat) for task in range(3) for repeat in range(3)]
    records = [
        record(0, 0, 1.0),
        record(0, 1, 0.0),
        record(1, 0, 1.0, mask_sample=True),
        record(1, 1, None),
        record(2, 0, 0.5),
    ]
    failures = [failure(0, 1), failure(2, 1, "judge_failed"), failure(2, 1)]
    found = run(paths, records, failures, rows)
    overall = found.metrics["overall"]
    assert overall["rollouts"] == {
        "done": 5,
        "failed": 1,
        "missing": 3,
        "masked": 1,
        "unmeasured": 1,
        "counted_as_zero": 0,
        "retried": 2,
        "replaced_records": 0,
    }
    assert overall["failures"] == {"agent_timeout": 1}
    assert overall["tasks"] == 3
    assert overall["reward"]["measured"] == 3
    assert overall["reward"]["mean"] == pytest.approx(0.5)
    # Two tasks were measured: sums of residuals 0 and 0.
    assert overall["reward"]["standard_error"] == pytest.approx(0.0)
    assert overall["reward"]["tasks"] == 2
    (row,) = found.rows()
    assert (row.agent, row.done, row.failed, row.masked, row.unmeasured) == ("a", 5, 1, 1, 1)
    assert row.reward == pytest.approx(0.5)
    assert row.half_width == pytest.approx(0.0)
    assert row.pass_at_1 == pytest.approx(25.0)
    assert overall["solved"]["mean"] == pytest.approx(1 / 3)
    assert overall["pass_at_k"] == [
        {"k": 1, "percent": pytest.approx(25.0), "tasks": 2},
        {"k": 2, "percent": pytest.approx(100.0), "tasks": 1},
    ]
    task = {group["_ng_task_index"]: group for group in entries(paths)["a"]["group_level_metrics"]}
    assert (task[2]["num_rollouts"], task[2]["missing_num_rollouts"]) == (1, 2)
    assert found.warnings == ()


def test_nothing_measured_is_null_everywhere(paths: RunPaths) -> None:
    found = run(paths, [record(0, 0, None), record(1, 0, 1.0, mask_sample=True)])
    overall = found.metrics["overall"]
    assert overall["reward"]["mean"] is overall["reward"]["low_95"] is overall["solved"]["mean"] is None
    assert overall["rollouts"]["unmeasured"] == overall["rollouts"]["masked"] == 1
    assert overall["rollouts"]["missing"] is None, "without rows nobody knows"
    assert overall["pass_at_k"] == overall["majority_at_k"] == []
    assert overall["tokens"]["tokens_in"] == {"total": None, "reported": 0}
    assert overall["latency_ms"]["p50"] is None
    assert "mean/reward" not in entries(paths)["a"]["agent_metrics"]


def test_an_empty_run_has_metrics_too(paths: RunPaths) -> None:
    found = run(paths, [])
    assert found.metrics["overall"]["rollouts"]["done"] == 0
    assert json.loads(paths.aggregate_metrics.read_bytes()) == []
    (row,) = found.rows()
    assert (row.agent, row.reward, row.half_width, row.calls) == ("all", None, None, None)


def test_listed_failures_and_missing_rollouts_count_as_zero_when_asked_for(paths: RunPaths) -> None:
    rows = [record(0, repeat) for repeat in range(5)]
    records = [record(0, 0, 1.0)]
    failures = [
        failure(0, 0),
        failure(0, 1, "agent_run_error"),
        failure(0, 1),  # the latest counts, and it is listed
        failure(0, 2, reward=0.5),
        failure(0, 3, "judge_failed"),
    ]
    bodies: list[bytes] = []

    def post(_agent: str, chunks: Iterator[bytes]) -> None:
        bodies.append(b"".join(chunks))

    chosen = {"count_failure_classes_as_zero": frozenset({"agent_timeout"}), "count_missing_rollouts_as_zero": True}
    found = run(paths, records, failures, rows, post=post, **chosen)
    overall = found.metrics["overall"]
    assert overall["rollouts"]["counted_as_zero"] == 3
    assert overall["reward"]["measured"] == 4
    assert overall["reward"]["mean"] == pytest.approx((1.0 + 0.0 + 0.5 + 0.0) / 4)
    assert overall["failures"] == {"agent_timeout": 2, "judge_failed": 1}, "they failed all the same"
    key = {"_ng_task_index": 0, "agent_ref": {"name": "a"}}
    assert json.loads(bodies[0])["verify_responses"] == [
        {"reward": 1.0, **key, "_ng_rollout_index": 0},
        {"reward": 0.0, **key, "_ng_rollout_index": 1, "mask_sample": False},
        {"reward": 0.5, **key, "_ng_rollout_index": 2, "mask_sample": False},
        {"reward": 0.0, **key, "_ng_rollout_index": 4, "mask_sample": False},
    ]


def test_agents_and_groups_of_tasks_have_figures_of_their_own(paths: RunPaths) -> None:
    rows = [record(task, 0, agent="ab"[task % 2], meta={"level": ["easy", "hard"][task // 2]}) for task in range(4)]
    records = [record(task, 0, float(task), agent="ab"[task % 2]) for task in range(4)]
    found = run(paths, records, None, rows, group_by="meta.level").metrics
    assert {name: group["reward"]["mean"] for name, group in found["agents"].items()} == {"a": 1.0, "b": 2.0}
    assert found["groups"]["by"] == "meta.level"
    means = {name: group["reward"]["mean"] for name, group in found["groups"]["values"].items()}
    assert means == {"easy": 0.5, "hard": 2.5}
    assert sorted(entries(paths)) == ["a", "b"]
    assert [row.agent for row in run(paths, records).rows()] == ["a", "b", "all"]
    # Without rows the records themselves may name their group.
    again = run(paths, [record(0, 0, 1.0, task_source="s"), record(1, 0, 0.0)]).metrics
    assert list(again["groups"]["values"]) == ["s"]


def test_what_attempts_cost_counts_also_where_they_failed(paths: RunPaths) -> None:
    def captured(tokens: int | None, **fields: Any) -> dict[str, Any]:
        metrics = {"tokens_in": tokens, "num_calls": 1, "latency_total_ms": 1.0}
        return {**fields, "ng_model_call_capture": {"rollout_id": "x", "metrics": metrics, "calls": [], "gaps": []}}

    perf = {"num_turns": 2, "token_observability_coverage": 1.0, "total_latency_ms": 50.0}
    records = [captured(5, **record(0, 0)) | {"ng_perf": perf}, captured(None, **record(0, 1))]
    records[1]["ng_model_call_capture"]["gaps"] = [{"code": "open_model_calls"}]
    overall = run(paths, records, [captured(7, **failure(0, 0))]).metrics["overall"]
    assert overall["tokens"]["tokens_in"] == {"total": 12, "reported": 2}
    assert overall["model_calls"] == {"total": 3, "reported": 3}
    assert overall["gaps"] == {"open_model_calls": 1}
    assert overall["attempts_with_gaps"] == 1
    assert overall["latency_ms"]["reported"] == 1
    assert overall["latency_ms"]["p50"] == pytest.approx(50.0, rel=0.01)
    assert entries(paths)["a"]["perf_summary"]["overall_observability_coverage"] == 0.5


def test_majority_is_over_the_answers_of_repeats(paths: RunPaths) -> None:
    answers = [("A", 1.0), ("B", 0.0), ("A", 1.0)]
    records = [record(0, n, reward, extracted_answer=answer) for n, (answer, reward) in enumerate(answers)]
    shown = run(paths, records).metrics["overall"]["majority_at_k"]
    assert [row["percent"] for row in shown] == [100.0, 50.0, 100.0]


def test_an_agent_that_aggregates_itself_is_asked_with_reduced_replies(paths: RunPaths) -> None:
    secret = {"response": {"output": ["SECRET"], "usage": {"input_tokens": 2}}, "ng_trajectory": {"turns": ["SECRET"]}}
    records = [record(1, 0, **secret), record(0, 1), record(0, 2, mask_sample=True), record(0, 0, agent="other")]
    asked: dict[str, Any] = {}
    whole = {
        "agent_metrics": {"own": 1},
        "key_metrics": {"own": 1},
        "group_level_metrics": [],
        "repeat_level_metrics": [],
        "perf_summary": None,
    }

    def post(agent: str, chunks: Iterator[bytes]) -> bytes | None:
        asked[agent] = json.loads(b"".join(chunks))["verify_responses"]
        return json.dumps(whole).encode() if agent == "a" else None

    run(paths, records, post=post)
    assert b"SECRET" not in json.dumps(asked).encode()
    assert [(reply["_ng_task_index"], reply["_ng_rollout_index"]) for reply in asked["a"]] == [(0, 1), (0, 2), (1, 0)]
    assert asked["a"][1]["mask_sample"] is True, "masked ones are included"
    assert asked["a"][2]["response"] == {"usage": {"input_tokens": 2}}
    found = entries(paths)
    assert found["a"] == {"agent_ref": {"name": "a"}, **whole}
    assert found["other"]["agent_metrics"]["mean/reward"] == 1.0


@pytest.mark.parametrize("answer", [b"[]", b"{", OSError("connection refused"), ZeroDivisionError("theirs")])
def test_an_agent_that_cannot_aggregate_costs_a_warning_and_no_metrics(
    paths: RunPaths, answer: bytes | Exception
) -> None:
    def post(_agent: str, chunks: Iterator[bytes]) -> bytes:
        next(chunks)
        if isinstance(answer, Exception):
            raise answer
        return answer

    found = run(paths, [record(0, 0, 0.5)], post=post)
    assert entries(paths)["a"]["agent_metrics"]["mean/reward"] == 0.5
    assert [warning.startswith("agent 'a'") for warning in found.warnings] == [True]
    assert found.metrics["warnings"]["count"] == 1


def test_what_an_agent_leaves_out_is_filled_from_the_defaults(paths: RunPaths) -> None:
    def post(_agent: str, _chunks: Iterator[bytes]) -> bytes:
        return json.dumps(
            {"agent_metrics": {"pass@1/accuracy": 50.0, "mean/reward": 9, "list": [1]}, "note": 1}
        ).encode()

    run(paths, [record(0, 0, 0.5)], post=post)
    entry = entries(paths)["a"]
    assert entry["agent_metrics"]["pass@1/accuracy"] == 50.0
    assert entry["agent_metrics"]["mean/reward"] == 9
    assert entry["agent_metrics"]["max/reward"] == 0.5
    assert entry["key_metrics"] == {"mean/reward": 9, "pass@1/accuracy": 50.0}
    assert len(entry["group_level_metrics"]) == 1
    assert entry["note"] == 1


@pytest.mark.parametrize(
    ("keys", "shown"),
    [
        ({"pass@1/accuracy": 50.0}, {"pass@1/accuracy"}),
        ({}, set()),
        (None, {"mean/reward", "own"}),
        ([1], {"mean/reward", "own"}),
    ],
)
def test_key_metrics_that_an_agent_chooses_stand_beside_what_was_not_measured(
    paths: RunPaths, keys: Any, shown: set[str]
) -> None:
    def post(_agent: str, _chunks: Iterator[bytes]) -> bytes:
        return json.dumps({"agent_metrics": {"own": 7}, "key_metrics": keys}).encode()

    run(paths, [record(0, 0, 0.5), record(0, 1, mask_sample=True)], post=post)
    found = entries(paths)["a"]["key_metrics"]
    assert found["coverage/masked_rollouts"] == 1
    assert {name for name in found if not name.startswith("coverage/")} == shown


def test_duplicates_and_damage_are_named_and_the_rest_counts(paths: RunPaths) -> None:
    run(paths, [])
    lines = [
        json.dumps(record(0, 0, 0.0)),
        "{torn",
        json.dumps(record(0, 0, 1.0)),
        "[1]",
        json.dumps(record(1, 0, 1.0)),
    ]
    paths.output.write_text("\n".join(lines) + "\n")
    found = aggregate(paths, None)
    assert found.metrics["overall"]["reward"]["mean"] == 1.0
    assert found.metrics["overall"]["rollouts"]["replaced_records"] == 1
    first, second, third = found.warnings
    assert first == f"{paths.output}, line 2: not a JSON object"
    assert second == f"{paths.output}, line 4: not a JSON object"
    assert third.startswith("1 records of rollouts that have a later record")


def test_records_of_any_shape_never_stop_it(paths: RunPaths) -> None:
    odd: list[dict[str, Any]] = [
        {},
        {"agent_ref": 3, "reward": {"a": 1}, "_ng_task_index": [1], "_ng_rollout_index": {"b": 2}},
        {"agent_ref": {"name": None}, "reward": "1", "_ng_task_index": 1.5, "_ng_rollout_index": True},
        {"ng_model_call_capture": {"metrics": {"tokens_in": "x", "num_calls": True}}, "reward": 10**400},
        {"response": 1, "ng_perf": [1], "mask_sample": "yes", "extracted_answer": {"z": [1]}},
        {"_ng_task_index": "\ud800", "_ng_rollout_index": 0, "reward": 1.0, "agent_ref": {"name": "\ud800"}},
    ]
    found = run(paths, odd, [{"_ng_failure_class": ["x"]}, {"_ng_failure_class": "y" * 500, "_ng_task_index": 0}])
    assert found.metrics["overall"]["rollouts"]["done"] == len(odd)
    assert found.metrics["overall"]["rollouts"]["failed"] == 2
    assert json.loads(paths.aggregate_metrics.read_bytes())


def test_an_agent_without_a_reply_is_not_asked_and_has_no_entry(paths: RunPaths) -> None:
    asked: list[str] = []
    rows = [record(0, 0), record(1, 0, agent="b"), record(2, 0, agent="c")]
    found = run(paths, [record(0, 0)], [failure(1, 0, agent="b")], rows, post=lambda agent, _: asked.append(agent))
    assert asked == ["a"]
    assert list(entries(paths)) == ["a"]
    assert list(found.metrics["agents"]) == ["a", "b", "c"]


def test_numbers_too_large_to_add_up_were_not_measured(paths: RunPaths) -> None:
    def huge(number: Any, **fields: Any) -> dict[str, Any]:
        capture = {"metrics": {"tokens_in": number, "num_calls": number}, "calls": []}
        perf = {"num_turns": number, "completion_tokens": number, "total_latency_ms": number}
        return {**fields, "ng_model_call_capture": capture, "ng_perf": perf, "score": number}

    numbers = [1e308, -1e308, 10**308, 10**400, 1e200, 0.5]
    found = run(paths, [huge(number, **record(0, n, number)) for n, number in enumerate(numbers)])
    paths.output.write_text(paths.output.read_text().replace("1e+200", "1e999") + "{}")
    assert found.metrics["overall"]["rollouts"]["unmeasured"] == 5
    assert found.metrics["overall"]["reward"]["mean"] == 0.5
    assert found.metrics["overall"]["tokens"]["tokens_in"] == {"total": 0.5, "reported": 1}
    assert aggregate(paths, None).metrics["overall"]["reward"]["mean"] == 0.5


def test_a_rollout_of_two_shards_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    shards = [RunPaths.of(tmp_path / f"s{n}.jsonl") for n in range(2)]
    for shard in shards:
        write(shard.output, [record(0, 0, 1.0)])
    merged = RunPaths.of(tmp_path / "all.jsonl")
    with pytest.raises(InputError, match=r"s1\.jsonl: _ng_task_index: rollout 0-0 is in .*s0\.jsonl as well"):
        aggregate(shards, None, output=merged)
    assert not merged.metrics.exists()


def test_shards_are_merged_by_task_and_scored_once(tmp_path: Path) -> None:
    shards = [RunPaths.of(tmp_path / f"s{n}.jsonl") for n in range(3)]
    for n, shard in enumerate(shards):
        write(shard.output, [record(task, n, float(task == n)) for task in (2, 0, 1)])
    merged = RunPaths.of(tmp_path / "merged.jsonl")
    found = aggregate(shards, None, output=merged)
    one = RunPaths.of(tmp_path / "one.jsonl")
    alone = run(one, [record(task, n, float(task == n)) for task in range(3) for n in range(3)])
    assert found.metrics == alone.metrics
    assert entries(merged) == entries(one)


def test_a_place_that_cannot_be_written_is_named_and_old_metrics_stay(paths: RunPaths) -> None:
    run(paths, [record(0, 0, 0.5)])
    old = paths.aggregate_metrics.read_bytes()
    paths.metrics.unlink()
    paths.metrics.mkdir()
    with pytest.raises(StorageError, match=r"out_metrics\.json"):
        aggregate(paths, None)
    assert paths.aggregate_metrics.read_bytes() == old
    assert not [name for name in paths.output.parent.iterdir() if name.name.startswith(".")]


def test_cached_facts_and_records_give_the_same_metrics(paths: RunPaths) -> None:
    perf = {"num_turns": 1, "token_observability_coverage": 1.0, "total_latency_ms": 9.0}
    capture = {"rollout_id": "x", "metrics": {"tokens_in": 3, "num_calls": 2}, "calls": [], "gaps": [{"code": "g"}]}
    records = [record(n // 2, n % 2, n / 10, ng_perf=perf, ng_model_call_capture=capture) for n in range(8)]
    failures = [failure(9, 0), failure(0, 0, "judge_failed")]
    from_records = run(paths, records, failures)
    answer = paths.aggregate_metrics.read_bytes()
    writer = FactsWriter(paths)
    outputs: list[tuple[OutputFile, list[dict[str, Any]]]] = [("main", records), ("failures", failures)]
    for file, objects in outputs:
        offset = 0
        for line, value in zip(paths.output_of(file).read_bytes().splitlines(), objects, strict=True):
            digest = hashlib.blake2b(line, digest_size=16).digest()
            writer.append(Written(file, offset, len(line) + 1, digest), facts_of_record(value, {}))
            offset += len(line) + 1
    writer.close()
    assert aggregate(paths, None).metrics == from_records.metrics
    assert paths.aggregate_metrics.read_bytes() == answer


ends = st.sampled_from(["done", "masked", "unmeasured", "failed", "failed twice", "failed then done", "twice", "gone"])
plans = st.lists(
    st.tuples(st.integers(0, 4), ends, st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from("ab")), max_size=20
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plans, st.randoms(use_true_random=False))
def test_it_agrees_with_counting_objects(
    paths: RunPaths, plan: list[tuple[int, str, float, str]], order: Random
) -> None:
    rows, records, failures = [], [], []
    counts, rewards = Counter[str](), dict[int, list[float]]()
    by_agent = dict[str, list[float]]()
    for repeat, (task, end, reward, agent) in enumerate(plan):
        key = {"agent": agent, "response": {"usage": {"input_tokens": repeat}}}
        rows.append(record(task, repeat, agent=agent))
        if end.startswith("failed"):
            failures += [failure(task, repeat, agent=agent)] * (2 if end == "failed twice" else 1)
        if end == "twice":
            records.append(record(task, repeat, 77.0, **key))
        if end in ("done", "twice", "failed then done"):
            records.append(record(task, repeat, reward, **key))
            rewards.setdefault(task, []).append(reward)
            by_agent.setdefault(agent, []).append(reward)
        elif end == "masked":
            records.append(record(task, repeat, reward, mask_sample=True, **key))
        elif end == "unmeasured":
            records.append(record(task, repeat, None, **key))
        state = {"failed": "failed", "failed twice": "failed", "gone": "missing"}.get(end, "done")
        counts.update([state, *([end] if end in ("masked", "unmeasured") else [])])
        counts["retried"] += end in ("failed twice", "failed then done")
        counts["replaced_records"] += end == "twice"
    order.shuffle(rows)
    found = run(paths, records, failures, rows)
    overall = found.metrics["overall"]
    for name, count in overall["rollouts"].items():
        assert count == counts[name], name
    every = [value for values in rewards.values() for value in values]
    assert overall["reward"]["measured"] == len(every)
    assert overall["reward"]["tasks"] == len(rewards)
    assert overall["reward"]["mean"] == (pytest.approx(sum(every) / len(every)) if every else None)
    for agent, values in by_agent.items():
        assert found.metrics["agents"][agent]["reward"]["mean"] == pytest.approx(sum(values) / len(values))
        assert entries(paths)[agent]["agent_metrics"]["mean/reward"] == pytest.approx(sum(values) / len(values))
    solved = [sum(value == 1 for value in values) / len(values) for values in rewards.values()]
    if solved:
        assert overall["pass_at_k"][0]["percent"] == pytest.approx(100 * sum(solved) / len(solved))


_GROWTH = """
import json, resource, sys
from pathlib import Path
from gym_ray.rollouts.metrics import aggregate
from gym_ray.rollouts.run_paths import RunPaths

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

folder = Path(sys.argv[1])
aggregate(RunPaths.of(folder / "small.jsonl"), None)
before = peak()
found = aggregate(RunPaths.of(folder / "large.jsonl"), None)
print(json.dumps([peak() - before, found.metrics["overall"]["rollouts"]["done"]]))
"""


def test_memory_holds_no_records(tmp_path: Path) -> None:
    """20,000 records of 2 KB are 40 MB as text and more than 100 MB as objects; a few numbers of each are kept."""
    text = json.dumps(
        record("TASK", 0, 0.5, text="x" * 1000, response={"usage": {"input_tokens": 3}, "output": "y" * 900})
    )
    for name, tasks in (("small", 100), ("large", 5000)):
        with (tmp_path / f"{name}.jsonl").open("w") as out:
            for number in range(tasks * 4):
                line = text.replace('"TASK"', str(number // 4))
                out.write(line.replace('"_ng_rollout_index": 0', f'"_ng_rollout_index": {number % 4}') + "\n")
    done = subprocess.run([sys.executable, "-c", _GROWTH, str(tmp_path)], check=True, capture_output=True, timeout=120)
    growth_kib, counted = json.loads(done.stdout)
    assert counted == 20_000
    assert growth_kib < 30 * 1024
