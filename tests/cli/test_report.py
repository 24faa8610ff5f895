from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from gym_ray.cli.report import first_failures, print_report
from gym_ray.evidence.summary import RolloutSummary
from gym_ray.rollouts.collection import Progress
from gym_ray.rollouts.metrics import RunMetrics


def summary(agent: str, **changes: object) -> RolloutSummary:
    facts: dict[str, object] = {
        "rollout_id": "0-0",
        "agent": agent,
        "task": "0",
        "reward": 0.5,
        "masked": False,
        "failure_class": None,
        "num_calls": 3,
        "tokens_in": 240_000_000,
        "tokens_out": 99_999,
        "tokens_reasoning": None,
        "tokens_total": None,
        "cached_tokens": None,
        "call_latency_ms": 10.0,
        "latency_ms": 15_500.0,
        "gap_codes": (),
    }
    return RolloutSummary(**(facts | changes))  # type: ignore[arg-type]


def progress(**changes: int) -> Progress:
    names = ("pending", "running", "joining", "done", "failed", "unstored", "cancelled", "unrecorded", "retries")
    return Progress(rows=3, **(dict.fromkeys(names, 0) | changes))


def printed(width: int, metrics: RunMetrics, state: Progress, first: dict[str, str]) -> str:
    out = io.StringIO()
    print_report(Console(file=out, width=width), metrics, [("records", Path("/a/records.jsonl"))], state, first)
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_no_number_of_the_table_is_ever_cut(width: int) -> None:
    metrics = RunMetrics()
    metrics.add(summary("an_agent_with_quite_a_long_name"))
    metrics.add(summary("other", reward=None, tokens_in=None, num_calls=None))
    text = printed(width, metrics, progress(done=2), {})
    assert "…" not in text
    row = next(line for line in text.splitlines() if "0.500" in line)
    assert row.split()[1:] == ["1", "0", "0.500", "0.0%", "3", "240M", "99999", "15.6", "15.6", "0"]
    unknown = next(line for line in text.splitlines() if line.startswith("other"))
    assert unknown.split()[3:7] == ["?", "?", "?", "?"], "unknown is not zero"


def test_failures_gaps_and_unfinished_rows_are_named() -> None:
    metrics = RunMetrics()
    metrics.add(summary("a", failure_class="agent_timeout", gap_codes=("model_call_capture_incomplete",)))
    text = printed(100, metrics, progress(failed=1), {"agent_timeout": "it [did] not end"})
    assert "failure agent_timeout: 1; first: it [did] not end" in text
    assert "gap model_call_capture_incomplete: 1" in text
    assert "unfinished 2 of 3 rows" in text
    assert "/a/records.jsonl" in text


def test_tokens_that_cannot_be_used_are_counted_with_their_reasons() -> None:
    metrics = RunMetrics()
    metrics.add(summary("a"))
    assert "training" not in printed(100, metrics, progress(done=1), {}), "nobody looked at tokens"
    metrics.add(summary("a", token_mask_reasons=()))
    assert "training 1 of 1 rollouts have exact tokens\n" in printed(100, metrics, progress(done=2), {})
    metrics.add(summary("a", token_mask_reasons=("capture_incomplete", "roots [2]"), masked=True))
    text = printed(100, metrics, progress(done=3), {})
    assert "training 1 of 2 rollouts have exact tokens; 1 masked\n" in text
    assert "masked capture_incomplete: 1" in text
    assert "masked roots [2]: 1" in text


def test_the_first_message_of_each_class_is_found(tmp_path: Path) -> None:
    path = tmp_path / "failures.jsonl"
    records = [("a", "one"), ("b", "x" * 400), ("a", "two"), (None, "no class")]
    lines = [json.dumps({"_ng_failure_class": name, "_ng_failure_message": text}) for name, text in records]
    path.write_text("\n".join([*lines, '{"torn']))
    assert first_failures(path) == {"a": "one", "b": "x" * 300 + "…"}
    assert first_failures(tmp_path / "missing") == {}
