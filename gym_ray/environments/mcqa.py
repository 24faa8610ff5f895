"""Multiple-choice questions: the answer is a letter, the reward is 1 or 0 (D150, D151, D158)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from gym_ray import exact_json
from gym_ray.environments.base import Environment, Session, VerifyBody, VerifyReply
from gym_ray.environments.mcqa_grading import GRADING_MODES, SERVER_ONLY_MODES, allowed_options, extract_answer
from gym_ray.environments.response_text import message_texts
from gym_ray.evidence.scores.numbers import finite, mean
from gym_ray.evidence.scores.pass_at_k import key_metrics, pass_majority

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

    def aggregate_metrics(self, replies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return ``mean/reward``, and in percent ``pass@k``, ``pass@1[avg-of-k]`` and ``majority@k`` (D158).

        Masked replies and rewards that were not measured do not count; a task's replies are taken in their order.
        """
        tasks: dict[object, list[Mapping[str, Any]]] = {}
        for number, reply in enumerate(replies):
            if not reply.get("mask_sample") and finite(reply.get("reward")) is not None:
                tasks.setdefault(_task_key(reply, number), []).append(reply)
        rewards = [float(reply["reward"]) for task in tasks.values() for reply in task]
        return {"mean/reward": mean(rewards), **pass_majority(tasks.values())} if rewards else {}

    def key_metrics(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Return the mean reward, ``pass@1/accuracy`` and the highest k of each family (D158)."""
        return {"mean/reward": metrics["mean/reward"], **key_metrics(metrics)} if metrics else {}


def _task_key(reply: Mapping[str, Any], number: int) -> object:
    """Return what the replies of one task have in common; a reply without an index is a task of its own."""
    index = reply.get("_ng_task_index")
    return number if index is None else exact_json.dumps(index)
