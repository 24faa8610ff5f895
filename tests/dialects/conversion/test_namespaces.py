from __future__ import annotations

import copy
from typing import Any

import pytest

from gym_ray.dialects.conversion.namespaces import NamespaceMap, flatten, restore_names
from gym_ray.errors import InvalidRequestError


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": {"type": "object"}, **more}


def namespace(name: str, *tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "description": "d", "tools": list(tools)}


def flat(body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, tuple[str, str]]]:
    before = copy.deepcopy(body)
    made, names = flatten(body)
    assert body == before
    return made, dict(names.names)


def test_tools_stand_where_their_namespace_stood() -> None:
    body = {"input": "x", "tools": [tool("a"), namespace("n", tool("b"), tool("c")), {"type": "web_search"}]}
    made, names = flat(body)
    assert made["tools"] == [tool("a"), tool("n__b"), tool("n__c"), {"type": "web_search"}]
    assert names == {"n__b": ("n", "b"), "n__c": ("n", "c")}


def test_a_custom_tool_stays_custom() -> None:
    custom = {"type": "custom", "name": "exec"}
    made, _ = flat({"input": "x", "tools": [namespace("n", custom)]})
    assert made["tools"] == [{"type": "custom", "name": "n__exec"}]


def test_nothing_to_flatten_leaves_the_values_themselves() -> None:
    body = {"input": [{"role": "user", "content": "x"}], "tools": [tool("a")], "tool_choice": "auto"}
    made, names = flat(body)
    assert names == {}
    assert made["tools"] is body["tools"]
    assert made["input"] is body["input"]


def test_history_takes_the_flat_names() -> None:
    items = [
        {"type": "function_call", "namespace": "n", "name": "b", "arguments": "{}", "call_id": "1"},
        {"type": "custom_tool_call", "namespace": "n", "name": "c", "input": "", "call_id": "2"},
        {"type": "function_call_output", "namespace": "n", "name": "b", "call_id": "1", "output": ""},
        {"type": "function_call_output", "namespace": "n", "name": None, "call_id": "2", "output": ""},
        {"type": "function_call", "namespace": None, "name": "b", "arguments": "{}", "call_id": "3"},
    ]
    made, names = flat({"input": items})
    assert [item.get("name") for item in made["input"]] == ["n__b", "n__c", "n__b", None, "b"]
    assert all(not item.get("namespace") for item in made["input"])
    assert names == {}


def test_carriers_give_their_tools_up() -> None:
    carrier = {"type": "additional_tools", "role": "developer", "tools": [tool("z"), namespace("n", tool("b"))]}
    made, names = flat({"input": [carrier, {"role": "user", "content": "x"}], "tools": [tool("a")]})
    assert made["tools"] == [tool("a"), tool("z"), tool("n__b")]
    assert made["input"] == [{"role": "user", "content": "x"}]
    assert names == {"n__b": ("n", "b")}


def test_a_tool_said_anew_replaces_what_was_said() -> None:
    newer = tool("b", description="newer")
    carrier = {"type": "additional_tools", "tools": [namespace("n", newer), tool("a", description="newer")]}
    made, _ = flat({"input": [carrier], "tools": [namespace("n", tool("b")), tool("a")]})
    assert made["tools"] == [tool("n__b", description="newer"), tool("a", description="newer")]


@pytest.mark.parametrize(
    "tools",
    [
        [namespace("a__b", tool("c")), namespace("a", tool("b__c"))],
        [tool("n__b"), namespace("n", tool("b"))],
        [namespace("n", tool("b")), tool("n__b")],
    ],
)
def test_two_tools_of_one_flat_name_are_refused(tools: list[dict[str, Any]]) -> None:
    """W23: the answer's call could not be given back to the right one."""
    with pytest.raises(InvalidRequestError, match="would both be called") as caught:
        flatten({"input": "x", "tools": tools})
    assert caught.value.problems[0]["loc"] == ["body", "tools"]
    assert caught.value.problems[0]["type"] == "value_error"


def test_a_collision_names_both() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        flatten({"input": "x", "tools": [namespace("a__b", tool("c")), namespace("a", tool("b__c"))]})
    assert str(caught.value) == (
        "body.tools: Value error, tool 'c' of namespace 'a__b' and tool 'b__c' of namespace 'a' would both be called "
        "'a__b__c'; rename one"
    )


def test_a_call_of_another_tool_by_that_name_is_refused() -> None:
    call = {"type": "function_call", "namespace": "a", "name": "b__c", "arguments": "{}", "call_id": "1"}
    with pytest.raises(InvalidRequestError, match="would both be called") as caught:
        flatten({"input": [call], "tools": [namespace("a__b", tool("c"))]})
    assert caught.value.problems[0]["loc"] == ["body", "input"]


TOOLS = [tool("plain"), namespace("n", tool("b"), tool("same")), namespace("m", tool("same"), tool("plain"))]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", "auto"),
        (None, None),
        ({"type": "function", "name": "b"}, {"type": "function", "name": "n__b"}),
        ({"type": "function", "name": "n__b"}, {"type": "function", "name": "n__b"}),
        ({"type": "function", "name": "same", "namespace": "m"}, {"type": "function", "name": "m__same"}),
        ({"type": "function", "name": "plain"}, {"type": "function", "name": "plain"}),
        ({"type": "function", "name": "unheard"}, {"type": "function", "name": "unheard"}),
        ({"type": "web_search_preview"}, {"type": "web_search_preview"}),
        (
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "b"}, {"type": "mcp"}, {}],
            },
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "n__b"}, {"type": "mcp"}, {}],
            },
        ),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "namespace", "name": "m"}]},
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "m__same"}, {"type": "function", "name": "m__plain"}],
            },
        ),
    ],
)
def test_a_choice_names_the_flat_tool(choice: Any, expected: Any) -> None:
    made, _ = flat({"input": "x", "tools": TOOLS, "tool_choice": choice})
    assert made["tool_choice"] == expected


def test_a_namespace_is_allowed_once_however_often_it_is_named() -> None:
    entries = [{"type": "namespace", "name": name} for name in ("n", "n", "unheard")]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": entries}
    made, _ = flat({"input": "x", "tools": TOOLS, "tool_choice": choice})
    assert [entry["name"] for entry in made["tool_choice"]["tools"]] == ["n__b", "n__same"]


def test_a_choice_that_fits_several_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="'n__same', 'm__same'") as caught:
        flatten({"input": "x", "tools": TOOLS, "tool_choice": {"type": "function", "name": "same"}})
    assert caught.value.problems[0]["loc"] == ["body", "tool_choice", "name"]


NAMES = NamespaceMap({"n__b": ("n", "b")})


def test_calls_of_an_answer_get_their_names_back() -> None:
    call = {"type": "function_call", "call_id": "1", "name": "n__b", "arguments": "{}"}
    other = {"type": "function_call", "call_id": "2", "name": "n__z", "arguments": "{}"}
    custom = {"type": "custom_tool_call", "call_id": "3", "name": "n__b", "input": ""}
    message = {"type": "message", "name": "n__b"}
    answer = {"id": "r", "output": [call, other, custom, message, 5, {"type": []}]}
    before = copy.deepcopy(answer)
    restored = restore_names(answer, NAMES)
    assert answer == before
    assert restored == {
        "id": "r",
        "output": [
            {**call, "namespace": "n", "name": "b"},
            other,
            {**custom, "namespace": "n", "name": "b"},
            message,
            5,
            {"type": []},
        ],
    }


@pytest.mark.parametrize("answer", [{"output": None}, {}, {"output": [{"type": "function_call", "name": 5}]}])
def test_an_answer_without_such_calls_is_only_copied(answer: dict[str, Any]) -> None:
    for names in (NAMES, NamespaceMap()):
        restored = restore_names(answer, names)
        assert restored == answer
        assert restored is not answer


def test_a_round_trip_gives_the_client_its_own_call() -> None:
    """What the client replays meets the tool it came from (A153)."""
    body = {"input": "x", "tools": [namespace("n", tool("b"))]}
    _, names = flatten(body)
    answer = restore_names(
        {"output": [{"type": "function_call", "name": "n__b", "call_id": "1", "arguments": ""}]}, names
    )
    made, again = flatten({**body, "input": answer["output"]})
    assert made["input"][0]["name"] == "n__b"
    assert again == names
