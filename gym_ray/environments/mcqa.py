"""Multiple-choice questions: the answer is a letter, the reward is 1 or 0 (D150, D151, D158)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from gym_ray.environments.base import Environment, Session, VerifyBody, VerifyReply
from gym_ray.environments.mcqa_grading import GRADING_MODES, SERVER_ONLY_MODES, allowed_options, extract_answer
from gym_ray.environments.response_text import message_texts

__all__ = ["McqaEnvironment"]


class _McqaBody(VerifyBody):
    """A verify request with the row fields that this environment reads."""

    expected_answer: str
    options: list[dict[str, Any]] | None = None
    grading_mode: Literal["strict_single_letter_boxed", "lenient_boxed", "lenient_answer_colon"] = (
        "strict_single_letter_boxed"
    )
    template_metadata: dict[str, Any] | None = None


class McqaEnvironment(Environment):
    """Scores the letter that the response's messages choose.

    Args:
        grading_mode: Mode for all rows; None leaves it to each row.

    Raises:
        ValueError: No such mode.
    """

    def __init__(self, grading_mode: str | None = None) -> None:
        modes = (*GRADING_MODES, *SERVER_ONLY_MODES)
        if grading_mode is not None and grading_mode not in modes:
            raise ValueError(f"grading_mode: {grading_mode!r} is not one of {', '.join(modes)}")
        self._grading_mode = grading_mode

    async def verify(self, session: Session, body: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - no session state
        """Score a response; adds ``expected_answer`` (the gold letter) and ``extracted_answer``.

        Raises:
            pydantic.ValidationError: A field is missing or wrong.
        """
        request = _McqaBody.model_validate(body)
        gold = request.expected_answer.strip().upper()
        text = "".join(message_texts(request.response)).strip()
        mode = self._grading_mode or request.grading_mode
        found = extract_answer(text, allowed_options(request.options), mode, request.template_metadata)
        reward = 1.0 if found is not None and gold and found == gold else 0.0
        return VerifyReply(reward, {"expected_answer": gold, "extracted_answer": found}).as_json(request)

    def aggregate_metrics(self, replies: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Return ``mean/reward``, ``pass@1/accuracy`` and ``pass@1/no_answer`` in percent, tasks weighing the same."""
        tasks: dict[Any, list[Mapping[str, Any]]] = {}
        for index, reply in enumerate(replies):
            if isinstance(reply.get("reward"), int | float):  # an unmeasured reward is no 0
                tasks.setdefault(reply.get("_ng_task_index", f"row {index}"), []).append(reply)
        if not tasks:
            return {}
        rewards = [[float(reply["reward"]) for reply in task] for task in tasks.values()]
        silent = [[reply.get("extracted_answer") is None for reply in task] for task in tasks.values()]
        return {
            "mean/reward": sum(map(sum, rewards)) / sum(map(len, rewards)),
            "pass@1/accuracy": 100.0 * _mean_of_means(rewards),
            "pass@1/no_answer": 100.0 * _mean_of_means(silent),
        }


def _mean_of_means(groups: Sequence[Sequence[float]]) -> float:
    return sum(sum(group) / len(group) for group in groups) / len(groups)
