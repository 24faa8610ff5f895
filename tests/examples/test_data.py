"""Every row under ``examples/`` can be read and scored: full marks for the right answer, none for a wrong one."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gym_ray.dialects import RESPONSES
from gym_ray.dialects.synthesis import read_request
from gym_ray.environments.base import Session
from gym_ray.environments.mcqa import McqaEnvironment
from gym_ray.environments.order_desk import OrderDeskEnvironment
from gym_ray.testing.agent_servers import message_item

EXAMPLES = Path(__file__).parents[2] / "examples"
S = Session("s")


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (EXAMPLES / name).read_text("utf-8").splitlines()]


MCQA, ORDERS, MIXED = rows("mcqa/questions.jsonl"), rows("order_desk/tasks.jsonl"), rows("mixed.jsonl")


def test_there_are_enough_rows_and_no_two_are_the_same() -> None:
    assert len(MCQA) >= 24
    assert len(ORDERS) >= 12
    for group in (MCQA, ORDERS):
        assert len({row["uuid"] for row in group}) == len({json.dumps(row["responses_create_params"]) for row in group})
        assert len({row["uuid"] for row in group}) == len(group)
        assert all("agent_ref" not in row for row in group)


def test_both_boxed_modes_are_used() -> None:
    assert {row["grading_mode"] for row in MCQA} == {"strict_single_letter_boxed", "lenient_boxed"}


def test_no_letter_can_be_guessed() -> None:
    letters = Counter(row["expected_answer"] for row in MCQA)
    assert set(letters) == set("ABCD")
    assert max(letters.values()) - min(letters.values()) <= 1


@pytest.mark.parametrize("row", [*MCQA, *ORDERS], ids=lambda row: row["uuid"])
def test_the_embedded_model_can_read_the_request(row: dict[str, Any]) -> None:
    prompt = read_request(RESPONSES, row["responses_create_params"])
    assert prompt.turns[-1].role == "user"
    assert prompt.sampling.max_tokens is not None


async def graded(row: dict[str, Any], text: str) -> dict[str, Any]:
    response = {"output": [message_item(text)]}
    return await McqaEnvironment().verify(S, {**row, "response": response})


@pytest.mark.parametrize("row", MCQA, ids=lambda row: row["uuid"])
async def test_a_question_is_scored(row: dict[str, Any]) -> None:
    options = {letter: text for option in row["options"] for letter, text in option.items()}
    question = row["responses_create_params"]["input"][-1]["content"]
    assert all(f"{letter}: {text}" in question for letter, text in options.items())
    assert len(set(options.values())) == len(options) == 4
    for letter in options:
        reward = 1.0 if letter == row["expected_answer"] else 0.0
        assert (await graded(row, f"\\boxed{{{letter}}}"))["reward"] == reward
        if row["grading_mode"] == "lenient_boxed":
            assert (await graded(row, f"\\boxed{{{options[letter]}}}"))["reward"] == reward


@pytest.mark.parametrize("row", MCQA, ids=lambda row: row["uuid"])
async def test_the_worked_answers_of_a_question_are_in_the_form_that_is_scored(row: dict[str, Any]) -> None:
    items = row["responses_create_params"]["input"]
    worked = [pair for pair in itertools.pairwise(items) if pair[1]["role"] == "assistant"]
    assert len(worked) >= 3
    for question, answer in worked:
        lines = [line.partition(": ") for line in question["content"].splitlines()[1:]]
        options = [{letter: text} for letter, _, text in lines]
        assert (await graded({**row, "options": options}, answer["content"]))["extracted_answer"] in "ABCD"


@pytest.mark.parametrize("row", ORDERS, ids=lambda row: row["uuid"])
async def test_an_order_task_is_scored(row: dict[str, Any]) -> None:
    desk = OrderDeskEnvironment()
    await desk.seed_session(S, row)
    assert row["order_id"] in row["responses_create_params"]["input"][-1]["content"]
    (tool,) = row["responses_create_params"]["tools"]
    order = await desk.tools[tool["name"]](S, {"order_id": row["order_id"]})
    assert order["status"] == row["expected_status"]
    for text, reward in ((f"Order {row['order_id']} is {order['status']}.", 1.0), ("No idea.", 0.0)):
        response = {"output": [message_item(text)]}
        assert (await desk.verify(S, {**row, "response": response}))["reward"] == reward


@pytest.mark.parametrize("row", ORDERS, ids=lambda row: row["uuid"])
def test_the_worked_answers_of_a_task_do_not_give_it_away(row: dict[str, Any]) -> None:
    items = row["responses_create_params"]["input"]
    assert [item.get("type") for item in items].count("function_call_output") == 2
    assert row["order_id"] not in json.dumps(items[:-1])


def test_the_mixed_rows_are_the_same_rows_with_their_agents() -> None:
    known = {row["uuid"]: row for row in (*MCQA, *ORDERS)}
    agents = Counter()
    for row in MIXED:
        ref = row.pop("agent_ref")
        assert row == known[row["uuid"]]
        assert ref == {"name": "mcqa_simple_agent" if row["uuid"].startswith("mcqa") else "order_desk_simple_agent"}
        agents[ref["name"]] += 1
    assert len(agents) == 2
