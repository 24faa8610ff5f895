"""Responses requests as Chat requests, and Chat completions as Responses answers."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from gym_ray.dialects.conversion.chat_to_responses import answer_to_responses
from gym_ray.dialects.conversion.responses_to_chat import request_to_chat
from gym_ray.errors import UnsupportedRequestError

_MADE_ID = re.compile(r"^((?:resp|msg|rs|call)_)[0-9a-f]{32}$")


def without_nulls(value: Any) -> Any:
    """The rendering of the cases: no null members, and ``<hex32>`` for what is made anew."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return _MADE_ID.sub(r"\1<hex32>", value) if isinstance(value, str) else value


def check_request(case: dict[str, Any]) -> None:
    body, expected = copy.deepcopy(case["body"]), case["expected"]
    if "error" in expected:
        with pytest.raises(UnsupportedRequestError) as caught:  # W16: the client's mistake is never a 500
            request_to_chat(body)
        assert 400 <= caught.value.status < 500
        assert [word for word in expected.get("mentions", ()) if word not in str(caught.value)] == []
    else:
        assert request_to_chat(body) == expected["params"]
    assert body == case["body"]


def check_answer(case: dict[str, Any]) -> None:
    completion, request = copy.deepcopy(case["completion"]), copy.deepcopy(case["params"])
    response = answer_to_responses(
        completion, request, split_think=case["uses_reasoning_parser"], keep_id=case["preserve_envelope_id"]
    )
    assert without_nulls(response) == case["expected"]["response"]
    assert (completion, request) == (case["completion"], case["params"])


def test_vector(case: dict[str, Any]) -> None:
    {"responses_request_to_chat": check_request, "chat_to_response": check_answer}[case["kind"]](case)
