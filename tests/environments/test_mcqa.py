from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gym_ray.environments.base import Session
from gym_ray.environments.mcqa import McqaEnvironment
from gym_ray.testing.agent_servers import message_item

OPTIONS = [{"A": "Red apple"}, {"B": "Green pear"}, {"C": "Plum"}, {"D": "Sweet cherry"}]


async def grade(text: str, *, server_mode: str | None = None, **row: Any) -> dict[str, Any]:
    body = {
        "responses_create_params": {"input": []},
        "response": {"output": [message_item(text)]},
        "options": OPTIONS,
        "expected_answer": "B",
        **row,
    }
    return await McqaEnvironment(server_mode).verify(Session("s"), body)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("\\boxed {B}", None),
        ("\\boxed{B", None),
        ("\\boxed{A} and \\boxed{B", None),
        ("\\boxed{{B}}", "B"),
        ("\\boxed{\\text{A} or \\text{B}}", None),
        ("\\boxed{B.}", "B"),
        ("\\boxed{B. pear}", "B"),
    ],
)
async def test_strict_box(text: str, found: str | None) -> None:
    assert (await grade(text))["extracted_answer"] == found


async def test_a_pattern_with_two_groups_takes_the_first_that_is_not_empty() -> None:
    template = {"output_regex": r"pick (?:(x)|([A-D]))"}
    assert (await grade("pick C, pick B", template_metadata=template))["extracted_answer"] == "B"


async def test_a_pattern_that_is_no_text_yields_nothing() -> None:
    reply = await grade("\\boxed{B}", template_metadata={"output_regex": [3, "(["]})
    assert reply["extracted_answer"] == "B"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Answer:\nB", "B"),
        ("the answer: green PEAR", "B"),
        ("Answer: A\nAnswer: B", "A"),
        ("answer\nB", None),
    ],
)
async def test_colon(text: str, found: str | None) -> None:
    assert (await grade(text, grading_mode="lenient_answer_colon"))["extracted_answer"] == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Answer: A or B", None),
        ("Answer: A or A", "A"),
        ("Answer: B because of C", "B"),
        ("Answer: the pear, so B", "B"),
        ("Answer: খ", "B"),
        ("**Final Answer:** **C**", "C"),
        ("Answer: nothing fits", None),
    ],
)
async def test_colon_markdown(text: str, found: str | None) -> None:
    assert (await grade(text, server_mode="lenient_answer_colon_md"))["extracted_answer"] == found


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"expected_answer": None}, "expected_answer"),
        ({"options": "AB"}, "options"),
        ({"grading_mode": "lenient_answer_colon_md"}, "grading_mode"),
        ({"response": None}, "response"),
    ],
)
async def test_a_wrong_field_is_named(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as error:
        await grade("x", **change)
    assert [item["loc"][0] for item in error.value.errors()] == [field]


def test_an_unknown_server_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="'boxed' is not one of strict_single_letter_boxed"):
        McqaEnvironment("boxed")


def test_metrics_weigh_tasks_the_same_and_leave_unmeasured_out() -> None:
    replies = [
        {"_ng_task_index": 0, "reward": 1.0, "extracted_answer": "B"},
        {"_ng_task_index": 1, "reward": 0.0, "extracted_answer": "A"},
        {"_ng_task_index": 0, "reward": 0.0, "extracted_answer": None},
        {"_ng_task_index": 1, "reward": 1.0, "extracted_answer": "B", "mask_sample": True},
        {"_ng_task_index": 2, "reward": None, "extracted_answer": None},
    ]
    environment = McqaEnvironment()
    metrics = environment.aggregate_metrics(replies)
    assert metrics["mean/reward"] == pytest.approx(1 / 3)
    assert metrics["pass@1/accuracy"] == metrics["pass@1/no_answer"] == 25.0
    assert metrics["pass@2/accuracy"] == 100.0
    assert metrics["majority@2/accuracy"] == 50.0
    assert environment.key_metrics(metrics) == {
        "mean/reward": metrics["mean/reward"],
        "pass@1/accuracy": 25.0,
        "pass@2/accuracy": 100.0,
        "pass@1[avg-of-2]/accuracy": 25.0,
        "pass@2/no_answer": 100.0,
        "pass@1[avg-of-2]/no_answer": 25.0,
        "majority@2/accuracy": 50.0,
    }


@pytest.mark.parametrize("replies", [[], [{"reward": None}], [{"reward": 1.0, "mask_sample": True}]])
def test_nothing_measured_has_no_metrics(replies: list[dict[str, Any]]) -> None:
    environment = McqaEnvironment()
    assert environment.aggregate_metrics(replies) == environment.key_metrics({}) == {}


@pytest.mark.parametrize(
    ("indices", "tasks"),
    [([None, None], 2), ([0, 0], 1), ([1, True], 2), (["0", 0], 2), ([[0], [0]], 1), ([{"a": 1}, {"a": 2}], 2)],
)
def test_a_task_is_what_has_the_same_index(indices: list[Any], tasks: int) -> None:
    replies = [{"_ng_task_index": index, "reward": 1.0} for index in indices]
    metrics = McqaEnvironment().aggregate_metrics(replies)
    assert len(metrics["per_sample_aggregate"]["accuracy"]) == 3 - tasks
