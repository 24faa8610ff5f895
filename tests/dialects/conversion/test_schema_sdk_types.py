"""Every body that the official SDK's request types allow passes; so does what its answer types hold when replayed."""

from __future__ import annotations

import collections.abc
import logging
import typing
from typing import Any

import pytest
import typing_extensions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessage
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from openai.types.responses import ResponseOutputItem
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming
from openai.types.responses.response_input_param import ResponseInputItemParam
from openai.types.responses.tool_param import ToolParam
from pydantic import BaseModel

from gym_ray.dialects import CHAT, RESPONSES
from gym_ray.dialects.conversion import sanitising
from gym_ray.dialects.conversion.schema import SCHEMAS, body_problems
from gym_ray.dialects.conversion.schema.shapes import problems

TEXTS = st.text(max_size=4)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=3,
)
LEAVES: dict[object, st.SearchStrategy[Any]] = {
    str: TEXTS,
    int: st.integers(),
    float: st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9),
    bool: st.booleans(),
    type(None): st.none(),
    object: JSON,
    Any: JSON,
}
REQUIRED = (typing_extensions.Required, typing.Required)
WRAPPERS = (*REQUIRED, typing_extensions.NotRequired, typing.NotRequired)
LISTS = (list, collections.abc.Iterable, collections.abc.Sequence)
OPTIONS = settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def arguments_of(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint)


def generated(hint: Any) -> st.SearchStrategy[Any]:
    """Return the strategy for values of one of the SDK's types."""
    if hint in LEAVES:
        return LEAVES[hint]
    origin = typing.get_origin(hint)
    if origin in WRAPPERS or origin is typing.Annotated:
        return generated(arguments_of(hint)[0])
    if origin is typing.Literal:
        return st.sampled_from(arguments_of(hint))
    if origin is typing.Union:
        return st.one_of([generated(option) for option in arguments_of(hint)])
    if origin in LISTS:
        return st.lists(later(arguments_of(hint)[0]), max_size=2)
    if origin is dict:
        return st.dictionaries(TEXTS, later(arguments_of(hint)[1]), max_size=2)
    assert typing_extensions.is_typeddict(hint), f"a new sort of type in the SDK: {hint!r}"
    members = typing.get_type_hints(hint, include_extras=True)
    strategies = {name: later(of) for name, of in members.items()}
    # The class's own list of required keys is wrong where its annotations are strings, as the SDK's are.
    needed = {name: strategies[name] for name, of in members.items() if typing.get_origin(of) in REQUIRED}
    assert needed or not hint.__total__
    return st.fixed_dictionaries(
        needed, optional={name: strategy for name, strategy in strategies.items() if name not in needed}
    )


def later(hint: Any) -> st.SearchStrategy[Any]:
    return st.deferred(lambda: generated(hint))


def kinds(union: Any) -> list[Any]:
    options = arguments_of(union)
    return [kind for option in options for kind in kinds(option)] if options else [union]


@pytest.mark.parametrize("kind", kinds(ResponseInputItemParam), ids=lambda kind: kind.__name__)
def test_every_kind_of_input_item_passes(kind: Any) -> None:
    @OPTIONS
    @given(generated(kind))
    def run(item: dict[str, Any]) -> None:
        assert problems(SCHEMAS[RESPONSES].element, item) == []

    run()


@pytest.mark.parametrize("kind", kinds(ToolParam), ids=lambda kind: kind.__name__)
def test_every_kind_of_tool_passes(kind: Any) -> None:
    @OPTIONS
    @given(generated(kind))
    def run(tool: dict[str, Any]) -> None:
        assert problems(SCHEMAS[RESPONSES].tool, tool) == []

    run()


BODIES = [(RESPONSES, ResponseCreateParamsNonStreaming), (CHAT, CompletionCreateParamsNonStreaming)]
FIELDS = [
    pytest.param(dialect, name, hint, id=f"{dialect}-{name}")
    for dialect, kind in BODIES
    for name, hint in typing.get_type_hints(kind, include_extras=True).items()
    if name != "stream"
]


@pytest.mark.parametrize(("dialect", "name", "hint"), FIELDS)
def test_every_field_of_a_body_passes(dialect: str, name: str, hint: Any) -> None:
    base: dict[str, Any] = {"input": "hi"} if dialect == RESPONSES else {"messages": []}

    @OPTIONS
    @given(generated(hint))
    def run(value: Any) -> None:
        assert body_problems(SCHEMAS[dialect].whole, base | {name: value}, frozenset()) == []

    run()


@pytest.mark.parametrize(("dialect", "kind"), BODIES)
def test_a_streamed_body_loses_nothing(dialect: str, kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=sanitising.__name__)
    fields = ["input", "tools"] if dialect == RESPONSES else ["messages", "tools"]
    hints = typing.get_type_hints(kind, include_extras=True)
    carriers = ("additional_tools",)  # these lose all but their function tools (A151)

    @OPTIONS
    @given(st.fixed_dictionaries({name: generated(hints[name]) for name in fields}))
    def run(body: dict[str, Any]) -> None:
        for item in body[fields[0]]:
            if isinstance(item, dict) and item.get("type") in carriers:
                item["tools"] = []
        caplog.clear()
        assert sanitising.sanitised(SCHEMAS[dialect], body | {"stream": True}, frozenset()) == body
        assert caplog.text == ""

    run()


OUTPUT_ITEMS = [kind for kind in kinds(ResponseOutputItem) if isinstance(kind, type)]  # beside the union's metadata


@pytest.mark.parametrize("kind", OUTPUT_ITEMS, ids=lambda kind: kind.__name__)
def test_an_item_of_an_answer_may_come_back(kind: type[BaseModel]) -> None:
    """A client that dumps an answer's item sends all its members, null where they were unset."""
    members = {field.alias or name for name, field in kind.model_fields.items()}
    tag = arguments_of(kind.model_fields["type"].annotation)[0]
    role = {"role": "assistant"} if "role" in members else {}
    item = dict.fromkeys(members) | {"type": tag} | role
    assert [one for one in problems(SCHEMAS[RESPONSES].element, item) if one["type"] == "extra_forbidden"] == []


def test_a_chat_message_may_come_back() -> None:
    message = ChatCompletionMessage(role="assistant", content="hi").model_dump()
    assert problems(SCHEMAS[CHAT].element, message) == []
    assert message.keys() >= {"annotations", "refusal", "tool_calls"}
