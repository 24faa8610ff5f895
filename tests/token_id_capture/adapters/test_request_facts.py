"""What a request says about the reading of its answer."""

from __future__ import annotations

from typing import Any

import pytest

from gym_ray.token_id_capture.adapters.request_facts import RequestFacts


@pytest.mark.parametrize(
    ("body", "constrained"),
    [
        ({}, False),
        ({"response_format": {"type": "text"}, "tool_choice": "auto", "structured_outputs": None}, False),
        ({"tool_choice": "none", "tools": [{}]}, False),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, True),
        ({"response_format": {"type": "json_object"}}, True),
        ({"tool_choice": "required"}, True),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, True),
        ({"structured_outputs": {"regex": "a+"}}, True),
        ({"guided_json": {"type": "object"}}, True),
        ({"allowed_token_ids": [1, 2]}, True),
        ({"regex": "a+"}, True),
    ],
)
def test_a_grammar_is_seen(body: dict[str, Any], constrained: bool) -> None:
    assert RequestFacts.of(body).constrained is constrained


def test_the_clients_own_stop_tokens_are_known() -> None:
    assert RequestFacts.of({"stop_token_ids": [5, True, "6", 7]}).stop_token_ids == {5, 7}
    assert RequestFacts.of({"stop_token_ids": 5}).stop_token_ids == frozenset()


@pytest.mark.parametrize(("said", "start"), [(35, 35), (0, 0), (-1, 0), ("3", 0), (None, 0), (True, 0)])
def test_where_the_routing_starts(said: Any, start: int) -> None:
    assert RequestFacts.of({"routed_experts_prompt_start": said}).experts_start == start
