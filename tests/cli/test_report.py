from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from gym_ray.cli.report import RunBar, first_failures, print_report, report_console
from gym_ray.evidence.summary import RolloutSummary
from gym_ray.rollouts.collection import Progress
from gym_ray.rollouts.metrics import Aggregation, RunMetrics, aggregate
from gym_ray.rollouts.run_paths import RunPaths


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


def test_what_goes_to_a_file_is_not_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", io.StringIO())
    monkeypatch.setenv("COLUMNS", "40")
    assert report_console().width == 160
    monkeypatch.setenv("COLUMNS", "300")
    assert report_console().width == 300


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


@pytest.mark.parametrize(
    ("tokens", "shown"),
    [(99_999, "99999"), (100_000, "100k"), (5_400_000, "5.4M"), (999_999_999_999_999, "1000T"), (10**400, "huge")],
)
def test_any_number_of_tokens_fits(tokens: int, shown: str) -> None:
    metrics = RunMetrics()
    metrics.add(summary("a", tokens_in=tokens))
    assert printed(80, metrics, progress(done=1), {}).splitlines()[1].split()[6] == shown


def aggregated(tmp_path: Path, rewards: list[list[object]]) -> Aggregation:
    paths = RunPaths.of(tmp_path / "out.jsonl")
    key = {"agent_ref": {"name": "an_agent_with_a_name"}}
    records = [
        {"_ng_task_index": task, "_ng_rollout_index": repeat, "reward": reward, **key}
        for task, repeats in enumerate(rewards)
        for repeat, reward in enumerate(repeats)
    ]
    paths.output.write_text("".join(json.dumps(record) + "\n" for record in records))
    return aggregate(paths, None)


@pytest.mark.parametrize("width", [80, 120])
def test_an_aggregation_takes_the_place_of_what_one_collector_counted(tmp_path: Path, width: int) -> None:
    found = aggregated(tmp_path, [[1, 1], [0, None], [1]])
    metrics = RunMetrics()
    metrics.add(summary("only_the_last_part_of_the_run"))
    out = io.StringIO()
    print_report(Console(file=out, width=width), metrics, [], progress(done=3), {}, found)
    text = out.getvalue()
    assert "only_the_last_part" not in text
    assert "…" not in text
    row = next(line for line in text.splitlines() if "±" in line)
    mean, half = row.split()[3].split("±")
    assert mean == "0.750"
    # Tasks have sums of residuals 0.5, -0.75, 0.25; t(0.975, 2) = 4.30265.
    assert float(half) == pytest.approx(4.30265 * (3 / 2 * (0.25 + 0.5625 + 0.0625)) ** 0.5 / 4, abs=6e-4)
    assert "95 % interval over tasks" in " ".join(text.split())
    assert "reward an_agent_with_a_name: 0 masked, 1 without a number" in text


def test_one_task_has_no_interval_and_none_is_shown(tmp_path: Path) -> None:
    out = io.StringIO()
    found = aggregated(tmp_path, [[1, 0]])
    print_report(Console(file=out, width=120), RunMetrics(), [], progress(done=2), {}, found)
    assert "±" not in out.getvalue()
    assert "0.500" in out.getvalue()


def test_warnings_of_an_aggregation_are_shown_and_the_rest_counted(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text("[1]\n" * 25)
    found = aggregate(RunPaths.of(tmp_path / "out.jsonl"), None)
    out = io.StringIO()
    print_report(Console(file=out, width=200), RunMetrics(), [], progress(), {}, found)
    assert out.getvalue().count("not a JSON object") == 20
    assert "and 5 more like these" in out.getvalue()


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


def test_a_run_that_waits_for_its_joiners_says_so() -> None:
    """D167: otherwise it looks like a run with slow agents."""
    for oldest_s, shown in ((None, False), (1.0, False), (61.4, True)):
        out = io.StringIO()
        with RunBar(Console(file=out, force_terminal=True, width=120)) as bar:
            bar.show(replace(progress(joining=2, running=1), oldest_unjoined_s=oldest_s))
        assert ("storing 2, the oldest for 61 s" in out.getvalue()) is shown
        assert "in hand 3" in out.getvalue()


def test_the_first_message_of_each_class_is_found(tmp_path: Path) -> None:
    path = tmp_path / "failures.jsonl"
    records = [("a", "one"), ("b", "x" * 400), ("a", "two"), (None, "no class")]
    lines = [json.dumps({"_ng_failure_class": name, "_ng_failure_message": text}) for name, text in records]
    path.write_text("\n".join([*lines, '{"torn']))
    assert first_failures(path) == {"a": "one", "b": "x" * 300 + "…"}
    assert first_failures(tmp_path / "missing") == {}
