from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.evidence.scores.pass_at_k import PassMajority, key_metrics, pass_majority


def replies(scores: list[float], answers: list[Any] | None = None) -> list[dict[str, Any]]:
    if answers is None:
        return [{"reward": score} for score in scores]
    return [{"reward": s, "extracted_answer": a} for s, a in zip(scores, answers, strict=True)]


def chance(scores: list[float], k: int) -> float:
    """pass@k by trying every choice of k repeats."""
    chosen = list(combinations(scores, k))
    return sum(any(score == 1 for score in some) for some in chosen) / len(chosen)


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=6), min_size=1, max_size=5))
def test_pass_at_k_is_the_share_of_all_choices_that_solve_the_task(tasks: list[list[float]]) -> None:
    found = pass_majority([replies(scores) for scores in tasks])
    most = max(map(len, tasks))
    for k in range(1, most + 1):
        fit = [scores for scores in tasks if len(scores) >= k]
        expected = 100 * sum(chance(scores, k) for scores in fit) / len(fit)
        assert found[f"pass@{k}/accuracy"] == pytest.approx(expected)
        averages = [sum(scores[:k]) / len(scores[:k]) for scores in tasks]
        assert found[f"pass@1[avg-of-{k}]/accuracy"] == pytest.approx(100 * sum(averages) / len(tasks))
    assert f"pass@{most + 1}/accuracy" not in found
    assert not any("majority" in name for name in found)


def plurality(scores: list[float], answers: list[str | None], k: int) -> float:
    counted = [answer for answer in answers[:k] if answer is not None]
    if not counted:
        return 0.0
    most = max(counted.count(answer) for answer in counted)
    ahead = {answer for answer in counted if counted.count(answer) == most}
    means = []
    for answer in ahead:
        own = [score for score, given_ in zip(scores[:k], answers[:k], strict=True) if given_ == answer]
        means.append(sum(own) / len(own))
    return sum(means) / len(means)


pairs = st.lists(st.tuples(st.sampled_from([0.0, 1.0]), st.sampled_from(["A", "B", "C", None])), min_size=1, max_size=7)


@given(st.lists(pairs, min_size=1, max_size=4))
def test_majority_shares_ties_and_skips_silence(tasks: list[list[tuple[float, str | None]]]) -> None:
    split = [([score for score, _ in task], [answer for _, answer in task]) for task in tasks]
    found = pass_majority([replies(*task) for task in split])
    for k in range(1, max(map(len, tasks)) + 1):
        expected = sum(plurality(*task, k) for task in split) / len(split)
        assert found[f"majority@{k}/accuracy"] == pytest.approx(100 * expected)
        silent = sum(all(answer is None for answer in answers[:k]) for _, answers in split) / len(split)
        assert found[f"majority@{k}/no_answer"] == pytest.approx(100 * silent)


def test_scores_between_0_and_1_take_the_best_of_the_first_k() -> None:
    found = pass_majority([replies([0.5, 0.25, 0.75]), replies([1.0, 0.0, 0.0])])
    assert found["pass@1/accuracy"] == pytest.approx(100 * (0.5 + 1 / 3) / 2)
    assert found["pass@2/accuracy"] == pytest.approx(100 * (0.5 + 2 / 3) / 2)
    assert found["pass@3/accuracy"] == pytest.approx(100 * (0.75 + 1.0) / 2)


def test_what_was_not_measured_is_no_failure() -> None:
    unmeasured: list[dict[str, Any]] = [{"reward": None}, {}, {"reward": "high"}, {"reward": 10**400}]
    assert pass_majority([unmeasured]) == {}
    found = pass_majority([[*unmeasured, {"reward": 1.0}], unmeasured])
    assert found["pass@1/accuracy"] == 100.0
    assert PassMajority().pass_at_k() == PassMajority().majority_at_k() == []


def test_answers_of_any_kind_are_compared_as_json() -> None:
    answers: list[Any] = [["a"], {"x": 1}, ["a"], None]
    assert pass_majority([replies([1.0, 0.0, 1.0, 0.0], answers)])["majority@4/accuracy"] == 100.0


def test_a_collection_for_the_table_alone_gives_the_same_and_refuses_the_rest() -> None:
    part, whole = PassMajority(whole=False), PassMajority()
    for task in (replies([1.0, 0.0, 0.0], ["A", None, "B"]), replies([0.0, 1.0], ["C", "C"])):
        part.add_task(task)
        whole.add_task(task)
    assert part.pass_at_k() == whole.pass_at_k() != []
    assert part.majority_at_k() == whole.majority_at_k() != []
    with pytest.raises(ValueError, match="only pass@k"):
        part.metrics()


def test_many_repeats_show_a_few_ks_with_the_tasks_that_have_so_many() -> None:
    collected = PassMajority()
    collected.add_task(replies([0.0] * 99 + [1.0], ["A"] * 100))
    collected.add_task(replies([1.0] * 3, ["B"] * 3))
    shown = {row["k"]: row for row in collected.pass_at_k()}
    assert list(shown) == [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 100]
    assert shown[3]["tasks"] == 2
    assert shown[64] == {"k": 64, "percent": pytest.approx(64.0), "tasks": 1}
    assert [row["k"] for row in collected.majority_at_k()] == list(shown)


def test_a_run_is_known_by_the_highest_k_that_each_measure_has() -> None:
    tasks = [replies([1.0, 0.0, 0.0]), replies([1.0, 0.0], ["A", "B"])]
    metrics = pass_majority(tasks)
    names = {
        "pass@1/accuracy",
        "pass@3/accuracy",
        "pass@1[avg-of-3]/accuracy",
        "pass@2/no_answer",
        "pass@1[avg-of-2]/no_answer",
        "majority@2/accuracy",
    }
    assert key_metrics(metrics) == {name: metrics[name] for name in names}
    assert sorted(key_metrics(pass_majority(tasks[:1]))) == sorted(
        name for name in names if "3" in name or "@1/" in name
    )
    assert key_metrics({}) == {}
