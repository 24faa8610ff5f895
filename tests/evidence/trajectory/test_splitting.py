from __future__ import annotations

from typing import Any

import pytest

from gym_ray.evidence.trajectory.splitting import answer_of, question_of

CALL = {"type": "function_call", "call_id": "t", "name": "f", "arguments": "{}"}
TEXT = {"type": "message", "role": "assistant", "content": []}
THOUGHT = {"type": "reasoning", "summary": []}


@pytest.mark.parametrize(
    ("request_body", "question"),
    [
        ({"input": "text"}, "text"),
        ({"input": [{"role": "user", "content": "x"}, THOUGHT, "odd"]}, "typed"),
        ({"messages": [{"role": "user"}]}, [{"role": "user"}]),
        ({"input": None, "messages": []}, []),
        ({"model": "m"}, None),
        ("raw text", "raw text"),
        (None, None),
    ],
)
def test_what_was_asked(request_body: Any, question: Any) -> None:
    if question == "typed":
        question = [{"type": "message", "role": "user", "content": "x"}, THOUGHT, "odd"]
    assert question_of(request_body) == question


@pytest.mark.parametrize(
    ("response", "answer", "reasoning", "tool_calls"),
    [
        ({"output": [THOUGHT, TEXT, CALL, CALL, "odd"]}, [TEXT, CALL, CALL, "odd"], [THOUGHT], 2),
        ({"output": []}, [], None, 0),
        (
            {"choices": [{"message": {"role": "assistant", "reasoning": "hm", "tool_calls": [1, 2]}}]},
            {"role": "assistant", "tool_calls": [1, 2]},
            "hm",
            2,
        ),
        ({"choices": [{"message": {"content": "x", "reasoning_content": ""}}]}, {"content": "x"}, None, 0),
        ({"choices": []}, None, None, 0),
        ({"choices": ["odd"]}, None, None, 0),
        (
            {"content": [{"type": "thinking"}, {"type": "redacted_thinking"}, {"type": "text"}, {"type": "tool_use"}]},
            [{"type": "text"}, {"type": "tool_use"}],
            [{"type": "thinking"}, {"type": "redacted_thinking"}],
            1,
        ),
        ({"error": "x"}, None, None, 0),
        ("raw", None, None, 0),
    ],
)
def test_what_was_answered_and_thought(response: Any, answer: Any, reasoning: Any, tool_calls: int) -> None:
    assert answer_of(response) == (answer, reasoning, tool_calls)
