"""pass@k and majority@k over the repeats of tasks, in percent (D158).

For k of the n repeats of a task: ``pass@k`` is the chance that one of k solves it, by the unbiased estimator
1 - C(n-c, k) / C(n, k) where every score is 0 or 1 and c of them are 1, and otherwise the best of the first k;
only tasks with at least k repeats count. ``pass@1[avg-of-k]`` is the mean of the first k, ``majority@k`` what the most
frequent answer of the first k scores, ties shared; a task with fewer repeats counts with those it has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gym_ray import exact_json
from gym_ray.evidence.scores.numbers import finite, sample_std

__all__ = ["ANSWER_FIELD", "PassMajority", "key_metrics", "pass_majority"]

ANSWER_FIELD = "extracted_answer"
_SAMPLES = "per_sample_aggregate"


class _ByK:
    """Sums over tasks of one value for each k; a task with n repeats goes on with its value for n where k > n."""

    def __init__(self) -> None:
        self._sums: list[float] = []
        self._tasks: list[int] = []
        self._last: list[float] = []
        self._ended: list[int] = []

    def add(self, values: Sequence[float]) -> None:
        more = len(values) - len(self._sums)
        if more > 0:
            self._sums += [0.0] * more
            self._last += [0.0] * more
            self._tasks += [0] * more
            self._ended += [0] * more
        for index, value in enumerate(values):
            self._sums[index] += value
            self._tasks[index] += 1
        self._last[len(values) - 1] += values[-1]
        self._ended[len(values) - 1] += 1

    def means(self) -> list[tuple[float, int]]:
        """Return, for k from 1 on, the mean over the tasks with at least k repeats and their number."""
        return [(total / tasks, tasks) for total, tasks in zip(self._sums, self._tasks, strict=True)]

    def means_of_all(self) -> list[float]:
        """Return, for k from 1 on, the mean over all tasks."""
        every = sum(self._ended)
        before, found = 0.0, []
        for total, last in zip(self._sums, self._last, strict=True):
            found.append((total + before) / every)
            before += last
        return found


class _Scores:
    """pass@k and averages of one kind of score."""

    def __init__(self) -> None:
        self.passed, self.averaged, self.samples = _ByK(), _ByK(), _ByK()

    def add(self, scores: Sequence[float], *, whole: bool) -> None:
        self.passed.add(_pass_values(scores))
        if not whole:
            return
        total, averages = 0.0, []
        for count, score in enumerate(scores, 1):
            total += score
            averages.append(total / count)
        self.averaged.add(averages)
        self.samples.add(scores)


def _pass_values(scores: Sequence[float]) -> list[float]:
    n = len(scores)
    if any(score not in (0.0, 1.0) for score in scores):
        best, values = -math.inf, []
        for score in scores:
            best = max(best, score)
            values.append(best)
        return values
    failing, none_passes, values = n - int(sum(scores)), 1.0, []
    for k in range(n):
        none_passes *= max(0, failing - k) / (n - k)
        values.append(1.0 - none_passes)
    return values


class PassMajority:
    """Collects tasks one after the other; memory depends on the number of repeats, not of tasks.

    Args:
        whole: Collect what :meth:`metrics` needs; without it there are :meth:`pass_at_k` and :meth:`majority_at_k`.
    """

    def __init__(self, *, whole: bool = True) -> None:
        self.tasks = 0
        self._whole = whole
        self._accuracy, self._no_answer = _Scores(), _Scores()
        self._majority, self._majority_silent = _ByK(), _ByK()
        self._answers = False

    def add_task(self, replies: Sequence[Mapping[str, Any]]) -> None:
        """Take the replies of one task in, in the order of their repeats.

        A reply without a finite reward was not measured and does not count. Answers are compared as JSON values; they
        count where at least one reply of the task has the field ``extracted_answer``.
        """
        scored = [(score, reply) for reply in replies if (score := finite(reply.get("reward"))) is not None]
        if not scored:
            return
        self.tasks += 1
        scores = [score for score, _ in scored]
        self._accuracy.add(scores, whole=self._whole)
        if any(ANSWER_FIELD in reply for _, reply in scored):
            self._answers = True
            answers = [_comparable(reply.get(ANSWER_FIELD)) for _, reply in scored]
            majority, silent = _majority_values(scores, answers)
            self._majority.add(majority)
            if self._whole:
                self._no_answer.add([float(answer is None) for answer in answers], whole=True)
                self._majority_silent.add(silent)

    def metrics(self) -> dict[str, Any]:
        """Return the metrics by their names of D158.

        Raises:
            ValueError: Not all that they need was collected.
        """
        if not self._whole:
            raise ValueError("only pass@k and majority@k were collected")
        if not self.tasks:
            return {}
        found = _named("accuracy", self._accuracy)
        samples = {"accuracy": _percent(mean for mean, _ in self._accuracy.samples.means())}
        if self._answers:
            found |= _named("no_answer", self._no_answer)
            samples["no_answer"] = _percent(mean for mean, _ in self._no_answer.samples.means())
            for name, values in (("accuracy", self._majority), ("no_answer", self._majority_silent)):
                for k, mean in enumerate(_percent(values.means_of_all()), 1):
                    found[f"majority@{k}/{name}"] = mean
        return {**found, _SAMPLES: samples}

    def pass_at_k(self) -> list[dict[str, Any]]:
        """Return pass@k for some k (all to 8, then powers of two, and the last), each with the tasks that count."""
        rows = [{"k": k, "percent": 100.0 * mean, "tasks": n} for k, (mean, n) in enumerate(self._passed(), 1)]
        return _some(rows)

    def majority_at_k(self) -> list[dict[str, Any]]:
        """Return majority@k for some k; empty when no task has answers."""
        return _some(
            [{"k": k, "percent": percent} for k, percent in enumerate(_percent(self._majority.means_of_all()), 1)]
        )

    def _passed(self) -> list[tuple[float, int]]:
        return self._accuracy.passed.means()


def pass_majority(tasks: Iterable[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the metrics of D158 over tasks, each the replies of its repeats in order."""
    collected = PassMajority()
    for replies in tasks:
        collected.add_task(replies)
    return collected.metrics()


def key_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the few metrics by which a run is known: ``pass@1/accuracy``, and the highest k of each family (D158).

    Majorities stand for their accuracy alone; deviations stay with the rest.

    Args:
        metrics: What :meth:`PassMajority.metrics` returned.
    """
    samples: Mapping[str, Sequence[float]] = metrics.get(_SAMPLES, {})
    names = ["pass@1/accuracy"] if samples else []
    for measure, values in samples.items():
        names += [f"pass@{len(values)}/{measure}", f"pass@1[avg-of-{len(values)}]/{measure}"]
    if "no_answer" in samples:  # measured where there are answers, as majorities are
        names.append(f"majority@{len(samples['no_answer'])}/accuracy")
    return {name: metrics[name] for name in names}


def _named(name: str, scores: _Scores) -> dict[str, float]:
    found: dict[str, float] = {}
    samples = _percent(mean for mean, _ in scores.samples.means())
    averages = _percent(scores.averaged.means_of_all())
    for k, (passed, average) in enumerate(zip(scores.passed.means(), averages, strict=True), 1):
        found[f"pass@{k}/{name}"] = 100.0 * passed[0]
        found[f"pass@1[avg-of-{k}]/{name}"] = average
        if k > 1:
            deviation = sample_std(samples[:k])
            found[f"pass@1[avg-of-{k}]/{name}/std_dev_across_runs"] = deviation
            found[f"pass@1[avg-of-{k}]/{name}/std_err_across_runs"] = deviation / math.sqrt(k)
    return found


def _comparable(answer: object) -> object:
    return answer if answer is None or isinstance(answer, str) else exact_json.dumps(answer)


def _majority_values(scores: Sequence[float], answers: Sequence[object]) -> tuple[list[float], list[float]]:
    """Return, for each k, what the most frequent answer scores, and whether there is none at all."""
    totals: dict[object, tuple[int, float]] = {}
    scored, silent = [], []
    for score, answer in zip(scores, answers, strict=True):
        if answer is not None:
            count, total = totals.get(answer, (0, 0.0))
            totals[answer] = (count + 1, total + score)
        most = max((count for count, _ in totals.values()), default=0)
        leading = [total / count for count, total in totals.values() if count == most]
        scored.append(sum(leading) / len(leading) if leading else 0.0)
        silent.append(float(not totals))
    return scored, silent


def _percent(values: Iterable[float]) -> list[float]:
    return [100.0 * value for value in values]


def _some(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["k"] <= 8 or row["k"] & (row["k"] - 1) == 0 or row["k"] == len(rows)]
