from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from gym_ray.dialects.conversion.messages_to_responses import request_to_responses
from gym_ray.dialects.conversion.responses_to_messages import answer_to_messages, request_to_messages
from gym_ray.errors import UnsupportedRequestError

_MADE_ID = re.compile("^([a-z]+_)[0-9a-f]{32}$")


def _shown(value: Any) -> Any:
    """The rendering of the cases: ``<hex32>`` for ids that are made anew."""
    if isinstance(value, dict):
        return {key: _shown(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shown(item) for item in value]
    return _MADE_ID.sub(r"\1<hex32>", value) if isinstance(value, str) else value


def _request(case: dict[str, Any], rules: dict[str, Any]) -> None:
    incoming = case["kind"] == "messages_request_to_responses"
    body = case["body"] if incoming else {"model": "claude-x", **case["body"]}
    before = copy.deepcopy(body)
    convert = request_to_responses if incoming else request_to_messages
    kept = rules["redacted_thinking_is_kept"]
    if case["id"] in kept["ids"]:
        assert _shown(convert(body))["input"] == [kept["expected"]]
    elif "error" in case["expected"]:
        with pytest.raises(UnsupportedRequestError) as caught:
            convert(body)
        assert caught.value.status in (400, 422)
        assert re.match(r"(messages|input|tool_choice)\b", caught.value.message)
    else:
        assert _shown(convert(body)) == case["expected"]["params" if incoming else "body"]
    assert body == before


def _usage(usage: dict[str, Any] | None, rule: dict[str, Any]) -> dict[str, int]:
    """What the rule says of a usage block: cached tokens apart from the input (W13)."""
    cached = ((usage or {}).get("input_tokens_details") or {}).get("cached_tokens")
    told = {key: (usage or {}).get(key) or 0 for key in ("input_tokens", "output_tokens")}
    return told if cached is None else {**told, "input_tokens": told["input_tokens"] - cached, rule["member"]: cached}


def _degraded(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the rule says of calls with bad arguments: the text under ``_raw`` (W16)."""
    calls = [item for item in output if item["type"] == "function_call"]
    return [
        {"type": "tool_use", "id": call["call_id"], "name": call["name"], "input": {"_raw": call["arguments"]}}
        for call in calls
    ]


def _answer(case: dict[str, Any], rules: dict[str, Any]) -> None:
    response = case["response"]
    before = copy.deepcopy(response)
    message = answer_to_messages(response, model=case["model"])
    assert response == before
    assert message["usage"] == _usage(response["usage"], rules["messages_usage_tells_the_cache"]["expected"])
    assert message["stop_sequence"] is None
    if "error" in case["expected"]:
        assert rules["answers_degrade"]["predicate"] == "the peer cannot convert the answer"
        assert message["content"] == _degraded(response["output"])
        aside = [item for item in response["output"] if item["type"] != "function_call"]
        assert message.get("gym_ray", {}).get("unconverted", []) == aside
        assert message["content"] or aside
        return
    told = {key: value for key, value in message.items() if key not in ("usage", "stop_sequence")}
    expected = {key: value for key, value in case["expected"]["message"].items() if key != "usage"}
    assert told == expected


def test_vector(case: dict[str, Any], departures: dict[str, Any]) -> None:
    if case["kind"] == "responses_to_message":
        _answer(case, departures)
    else:
        _request(case, departures)
