from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_ray import exact_json
from gym_ray.dialects import CHAT, MESSAGES, RESPONSES
from gym_ray.dialects.conversion.preparation import prepare
from gym_ray.dialects.conversion.schema import SCHEMAS
from gym_ray.errors import InvalidRequestError

DIALECTS = [CHAT, RESPONSES, MESSAGES]
BASE: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    RESPONSES: {"input": "hi"},
    MESSAGES: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "newest": 1},
}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("given", "streams"), [({}, False), ({"stream": False}, False), ({"stream": None}, False)])
def test_what_does_not_stream(dialect: str, given: dict[str, Any], streams: bool) -> None:
    request = prepare(dialect, BASE[dialect] | given)
    assert (request.body, request.stream, request.include_usage) == (BASE[dialect], streams, False)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_only_true_streams(dialect: str) -> None:
    request = prepare(dialect, BASE[dialect] | {"stream": True})
    assert (request.body, request.stream) == (BASE[dialect], True)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("value", ["true", "false", 1, 0, 1.0, [], {}, ""])
def test_anything_else_is_a_422(dialect: str, value: Any) -> None:
    """A133, W16."""
    with pytest.raises(InvalidRequestError) as caught:
        prepare(dialect, BASE[dialect] | {"stream": value})
    assert [dict(one) for one in caught.value.problems] == [
        {
            "type": "literal_error",
            "loc": ["body", "stream"],
            "msg": "Input should be False",
            "input": value,
            "ctx": {"expected": "False"},
        }
    ]


def test_a_wrong_stream_is_told_with_the_rest() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        prepare(RESPONSES, {"stream": "yes"})
    assert [one["loc"][1] for one in caught.value.problems] == ["stream", "input"]


@pytest.mark.parametrize("dialect", [CHAT, RESPONSES])
def test_problems_have_no_documentation_link(dialect: str) -> None:
    """A185."""
    for stream in (False, True):
        with pytest.raises(InvalidRequestError) as caught:
            prepare(dialect, {"stream": stream})
        [one] = caught.value.problems
        elements = SCHEMAS[dialect].elements
        assert one == {"type": "missing", "loc": ["body", elements], "msg": "Field required", "input": {}}


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"include_usage": True}, True), ({"include_usage": 1}, True), ({"include_usage": False}, False), ([1], False)],
)
def test_a_usage_chunk_is_remembered(options: Any, expected: bool) -> None:
    request = prepare(CHAT, BASE[CHAT] | {"stream": True, "stream_options": options})
    assert request.include_usage is expected
    assert "stream_options" not in request.body


def test_a_plain_request_checks_its_stream_options_and_leaves_them_out() -> None:
    request = prepare(CHAT, BASE[CHAT] | {"stream_options": {"include_usage": True}})
    assert (request.body, request.include_usage) == (BASE[CHAT], False)
    with pytest.raises(InvalidRequestError):
        prepare(CHAT, BASE[CHAT] | {"stream_options": [1]})


def test_a_plain_chat_request_keeps_its_provider_fields() -> None:
    given = BASE[CHAT] | {"chat_template_kwargs": {"a": 1}, "thinking": {"type": "enabled"}, "output_config": {}}
    assert prepare(CHAT, given).body == given


SPACE = {"type": "namespace", "name": "wx", "tools": [{"type": "function", "name": "get"}]}
CALL = {"type": "function_call", "call_id": "c", "name": "get", "namespace": "wx", "arguments": "{}"}


@pytest.mark.parametrize("stream", [False, True])
def test_namespaces_are_flattened_streamed_or_not(stream: bool) -> None:
    request = prepare(RESPONSES, {"input": [CALL], "tools": [SPACE], "stream": stream})
    assert request.body["tools"] == [{"type": "function", "name": "wx__get"}]
    assert request.body["input"][0]["name"] == "wx__get"
    assert request.namespaces.names == {"wx__get": ("wx", "get")}


def test_a_plain_request_with_a_bad_inner_tool_is_refused_at_its_own_place() -> None:
    space = {"type": "namespace", "name": "wx", "tools": [{"type": "function", "name": "a"}, {"type": "function"}]}
    with pytest.raises(InvalidRequestError, match=r"body\.tools\.1\.tools\.1\.name: Field required"):
        prepare(RESPONSES, {"input": "x", "tools": [{"type": "function", "name": "b"}, space]})


def test_a_plain_request_keeps_every_tool_of_a_carrier() -> None:
    carrier = {"type": "additional_tools", "role": "developer", "tools": [{"type": "custom", "name": "exec"}]}
    request = prepare(RESPONSES, {"input": [carrier]})
    assert request.body == {"input": [], "tools": [{"type": "custom", "name": "exec"}]}


def test_only_a_streamed_request_is_hoisted() -> None:
    body = {"input": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}
    assert prepare(RESPONSES, body).body == body
    assert prepare(RESPONSES, body | {"stream": True}).body["instructions"] == "s"


@pytest.mark.parametrize("stream", [False, True])
def test_values_are_the_clients_own(stream: bool) -> None:
    """B40, B41: no copy, no coercion."""
    schema = {"type": "object", "maximum": 2**70, "pattern": "\ud83d", "x": 0.1 + 0.2}
    item = {"type": "function_call_output", "call_id": "c", "output": "cut \ud83d"}
    tool = {"type": "function", "name": "f", "parameters": schema}
    body = {"input": [item], "tools": [tool], "max_output_tokens": 2**64, "temperature": 1, "stream": stream}
    made = prepare(RESPONSES, body).body
    assert made["input"][0] is item
    assert made["tools"][0] is tool
    assert made["max_output_tokens"] is body["max_output_tokens"]
    assert type(made["temperature"]) is int


TEXT = st.text(st.characters(codec=None, categories=["L", "N", "Cs"]), max_size=3)
LEAF = st.none() | st.booleans() | st.integers() | st.just(2**70) | st.floats() | TEXT
JSON = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=6
)
NAMES = st.sampled_from(["a", "b", "a__b", "a__a", "b__a", "\ud83d"])
FUNCTION = st.fixed_dictionaries({"type": st.sampled_from(["function", "custom"]), "name": NAMES})
SPACE_OF = st.fixed_dictionaries({"type": st.just("namespace"), "name": NAMES, "tools": st.lists(FUNCTION, max_size=2)})
TOOLS = st.lists(FUNCTION | SPACE_OF | st.just({"type": "web_search"}), max_size=3)
PART = st.sampled_from([{"type": "input_text", "text": "t"}, {"type": "input_image", "image_url": "data:,"}])
MESSAGE = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "system", "developer", "assistant"]),
        "content": TEXT | st.lists(PART, max_size=2),
    }
)
CALLED = st.fixed_dictionaries(
    {"type": st.just("function_call"), "call_id": TEXT, "name": NAMES, "arguments": TEXT},
    optional={"namespace": NAMES, "prompt_token_ids": st.none()},
)
CARRIER = st.fixed_dictionaries({"type": st.just("additional_tools"), "tools": TOOLS})
ENTRY = FUNCTION | st.fixed_dictionaries({"type": st.just("namespace"), "name": NAMES})
CHOICE = st.sampled_from(["auto", None]) | st.one_of(
    st.fixed_dictionaries({"type": st.just("function"), "name": NAMES}, optional={"namespace": NAMES}),
    st.fixed_dictionaries(
        {"type": st.just("allowed_tools"), "mode": st.just("auto"), "tools": st.lists(ENTRY, max_size=2)}
    ),
)
CHAT_MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant"]), "content": TEXT}, optional={"name": TEXT}
)
STREAMS = st.sampled_from([True, False, None])
RIGHT: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    RESPONSES: st.fixed_dictionaries(
        {"input": TEXT | st.lists(MESSAGE | CALLED | CARRIER, max_size=3), "stream": STREAMS},
        optional={"tools": TOOLS, "tool_choice": CHOICE, "instructions": TEXT, "metadata": st.just({"\ud83d": "x"})},
    ),
    CHAT: st.fixed_dictionaries(
        {"messages": st.lists(CHAT_MESSAGE, max_size=3), "stream": STREAMS},
        optional={"thinking": st.just({"a": 2**70})},
    ),
}
RIGHT[MESSAGES] = RIGHT[CHAT]
ANY_BODY: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(["input", "messages", "tools", "stream"]) | TEXT, JSON, max_size=4
)
DAMAGES = st.lists(
    st.tuples(st.integers(0, 999), st.sampled_from(["replace", "remove", "add"]), JSON, TEXT), max_size=2
)


def damaged(value: dict[str, Any], at: int, how: str, junk: Any, key: str) -> None:
    """Change one place of a body."""
    places: list[tuple[Any, Any]] = []
    waiting: list[Any] = [value]
    while waiting:
        holder = waiting.pop()
        keys = holder.keys() if isinstance(holder, dict) else range(len(holder))
        places += [(holder, inner) for inner in keys]
        waiting += [holder[inner] for inner in keys if isinstance(holder[inner], dict | list)]
    if not places:
        return
    holder, place = places[at % len(places)]
    if how == "remove":
        del holder[place]
    elif how == "add" and isinstance(holder, dict):
        holder[key] = junk
    else:
        holder[place] = junk


@pytest.mark.parametrize("dialect", [CHAT, RESPONSES])
@settings(max_examples=100)
@given(data=st.data())
def test_a_right_body_is_refused_only_for_its_names(dialect: str, data: st.DataObject) -> None:
    body = data.draw(RIGHT[dialect])
    try:
        prepare(dialect, body)
    except InvalidRequestError as error:
        kinds = {one["type"] for one in error.problems}
    else:
        kinds = set()
    assert kinds <= {"value_error"}


def there(body: Any, loc: list[int | str]) -> bool:
    for part in loc:
        if isinstance(body, dict):
            body = {as_told(name): value for name, value in body.items()}
            if part not in body:
                return False
        body = body[part]
    return True


def as_told(name: str) -> str:
    """Return a member's name as a location tells it: pydantic has no lone surrogates."""
    return name.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def test_a_location_tells_a_name_that_is_no_unicode_as_well_as_it_can() -> None:
    body = {"input": "", "metadata": {"\ud83d": None}}
    with pytest.raises(InvalidRequestError) as refused:
        prepare(RESPONSES, body)
    check_refusal(body, refused.value)


def judged(dialect: str, body: dict[str, Any]) -> None:
    """Prepare ``body`` and hold what comes of it against every promise."""
    before = copy.deepcopy(body)
    try:
        request = prepare(dialect, body)
    except InvalidRequestError as error:
        check_refusal(body, error)
    else:
        assert "stream" not in request.body
        assert body.get("stream") in (None, True, False)
        again = prepare(dialect, request.body | {"stream": request.stream})
        assert again.body == request.body, "what was prepared is fit to be prepared"
    assert exact_json.dumps(body) == exact_json.dumps(before), "the caller's body was changed"


def check_refusal(body: dict[str, Any], error: InvalidRequestError) -> None:
    assert error.status == 422
    exact_json.dumps([dict(one) for one in error.problems])
    for one in error.problems:
        assert one["loc"][0] == "body"
        place = one["loc"][1:-1] if one["type"] == "missing" else one["loc"][1:]
        assert body.get("stream") is True or there(body, place), one


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(max_examples=120)
@given(data=st.data())
def test_a_damaged_body_is_prepared_or_refused(dialect: str, data: st.DataObject) -> None:
    body = copy.deepcopy(data.draw(RIGHT[dialect]))
    for damage in data.draw(DAMAGES):
        damaged(body, *damage)
    judged(dialect, body)


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(max_examples=50)
@given(
    body=st.dictionaries(st.sampled_from(["input", "messages", "tools", "stream", "model"]) | TEXT, JSON, max_size=4)
)
def test_any_object_at_all_is_prepared_or_refused(dialect: str, body: dict[str, Any]) -> None:
    judged(dialect, body)
