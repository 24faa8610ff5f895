from __future__ import annotations

from typing import Any

import pytest

from gym_ray.dialects import RESPONSES
from gym_ray.dialects.replay import replay_frames
from gym_ray.dialects.sse import parse_objects


def told(*items: Any, incomplete_event: bool = True, **members: Any) -> list[dict[str, Any]]:
    answer = {"id": "resp_1", "object": "response", "status": "completed", "output": list(items), **members}
    frames = replay_frames(RESPONSES, answer, incomplete_event=incomplete_event)
    events = parse_objects(b"".join(frames))
    assert [frame.split(b"\n")[0] for frame in frames] == [b"event: " + event["type"].encode() for event in events]
    assert [event.pop("sequence_number") for event in events] == list(range(len(events)))
    return events


def item_events(item: dict[str, Any]) -> list[tuple[str, Any]]:
    """Events between the opening and the end, without the place that all of them must name."""
    found = []
    for event in told(item)[2:-1]:
        assert event.pop("output_index") == 0
        kind = event.pop("type").removeprefix("response.")
        if not kind.startswith("output_item"):
            assert event.pop("item_id") == item["id"]
        found.append((kind, event))
    return found


def test_an_answer_is_opened_twice_and_ended_once() -> None:
    usage = {"input_tokens": 1}
    created, progress, completed = told(usage=usage)
    opened = {"id": "resp_1", "object": "response", "status": "in_progress", "output": [], "usage": usage}
    assert created == {"type": "response.created", "response": opened}
    assert progress == {"type": "response.in_progress", "response": opened}
    assert completed == {"type": "response.completed", "response": {**opened, "status": "completed"}}


@pytest.mark.parametrize(
    ("status", "shown", "terminal"),
    [
        ("completed", "completed", "response.completed"),
        (None, "completed", "response.completed"),
        ("incomplete", "incomplete", "response.incomplete"),
        ("in_progress", "in_progress", "response.incomplete"),
        ("queued", "queued", "response.incomplete"),
        ("failed", "failed", "response.failed"),
        ("cancelled", "cancelled", "response.failed"),
        (["odd"], ["odd"], "response.incomplete"),
    ],
)
def test_only_a_whole_answer_is_completed(status: Any, shown: Any, terminal: str) -> None:
    last = told(status=status)[-1]
    assert (last["type"], last["response"]["status"]) == (terminal, shown)
    switched = told(status=status, incomplete_event=False)[-1]
    expected = "response.completed" if terminal == "response.incomplete" else terminal
    assert (switched["type"], switched["response"]["status"]) == (expected, shown)


def test_a_missing_status_becomes_completed() -> None:
    frames = replay_frames(RESPONSES, {"id": "r", "output": []})
    assert parse_objects(frames[-1])[0]["response"] == {"id": "r", "status": "completed", "output": []}


def test_message_parts_are_opened_told_and_closed() -> None:
    scores = [{"token": "a", "logprob": -0.5}]
    text = {"type": "output_text", "text": "a", "annotations": [{"type": "url_citation"}], "logprobs": scores}
    parts = [text, {"type": "refusal", "refusal": "no"}, {"type": "output_audio", "data": "D"}]
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": parts}
    first, second, third = ({"content_index": index} for index in range(3))
    about = {"annotation_index": 0, "annotation": {"type": "url_citation"}}
    assert item_events(item) == [
        ("output_item.added", {"item": {**item, "status": "in_progress", "content": []}}),
        ("content_part.added", {**first, "part": {**text, "text": "", "annotations": [], "logprobs": []}}),
        ("output_text.delta", {**first, "delta": "a", "logprobs": scores}),
        ("output_text.annotation.added", {**first, **about}),
        ("output_text.done", {**first, "text": "a", "logprobs": scores}),
        ("content_part.done", {**first, "part": text}),
        ("content_part.added", {**second, "part": {"type": "refusal", "refusal": ""}}),
        ("refusal.delta", {**second, "delta": "no"}),
        ("refusal.done", {**second, "refusal": "no"}),
        ("content_part.done", {**second, "part": parts[1]}),
        ("content_part.added", {**third, "part": parts[2]}),
        ("content_part.done", {**third, "part": parts[2]}),
        ("output_item.done", {"item": item}),
    ]


def test_reasoning_is_told_by_summary_and_content() -> None:
    summary, content = {"type": "summary_text", "text": "s"}, {"type": "reasoning_text", "text": "c"}
    item = {"id": "rs_1", "type": "reasoning", "summary": [summary], "content": [content], "encrypted_content": "E"}
    one, two = {"summary_index": 0}, {"content_index": 0}
    assert item_events(item) == [
        ("output_item.added", {"item": {**item, "summary": [], "content": []}}),
        ("reasoning_summary_part.added", {**one, "part": {**summary, "text": ""}}),
        ("reasoning_summary_text.delta", {**one, "delta": "s"}),
        ("reasoning_summary_text.done", {**one, "text": "s"}),
        ("reasoning_summary_part.done", {**one, "part": summary}),
        ("content_part.added", {**two, "part": {**content, "text": ""}}),
        ("reasoning_text.delta", {**two, "delta": "c"}),
        ("reasoning_text.done", {**two, "text": "c"}),
        ("content_part.done", {**two, "part": content}),
        ("output_item.done", {"item": item}),
    ]


@pytest.mark.parametrize(
    ("kind", "member", "stem", "named"),
    [
        ("function_call", "arguments", "function_call_arguments", True),
        ("mcp_call", "arguments", "mcp_call_arguments", False),
        ("custom_tool_call", "input", "custom_tool_call_input", False),
    ],
)
def test_calls_tell_what_the_tool_gets(kind: str, member: str, stem: str, named: bool) -> None:
    item = {"id": "c", "type": kind, "name": "get", "namespace": "wx", "status": "completed", member: '{"q": 1'}
    name = {"name": "get"} if named else {}
    assert item_events(item) == [
        ("output_item.added", {"item": {**item, "status": "in_progress", member: ""}}),
        (f"{stem}.delta", {"delta": '{"q": 1'}),
        (f"{stem}.done", {**name, member: '{"q": 1'}),
        ("output_item.done", {"item": item}),
    ]
    empty = {**item, member: ""}
    assert [kind for kind, _ in item_events(empty)] == ["output_item.added", f"{stem}.done", "output_item.done"]


@pytest.mark.parametrize(
    "item",
    [
        {"id": "w", "type": "web_search_call", "action": {"query": "q"}},
        {"id": "f", "type": "function_call", "name": "f", "arguments": {"a": 1}},
        {"id": "m", "type": "message", "content": "text"},
        {"id": "o", "type": ["odd"]},
    ],
)
def test_items_of_another_shape_are_only_opened_and_closed(item: dict[str, Any]) -> None:
    assert item_events(item) == [("output_item.added", {"item": item}), ("output_item.done", {"item": item})]


def test_parts_that_are_no_objects_stay_in_the_item() -> None:
    item = {"id": "m", "type": "message", "content": ["odd"]}
    shell = {**item, "content": []}
    assert item_events(item) == [("output_item.added", {"item": shell}), ("output_item.done", {"item": item})]


def test_an_item_without_id_has_the_same_new_one_in_every_event() -> None:
    reasoning = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]}
    events = told(reasoning, reasoning, {"type": "function_call", "id": None, "arguments": "{}"}, {"type": "odd"})
    final = [item["id"] for item in events[-1]["response"]["output"]]
    assert [name.split("_")[0] for name in final] == ["rs", "rs", "fc", "item"]
    assert len(set(final)) == 4
    for event in events[2:-1]:
        named = event["item"]["id"] if "item" in event else event["item_id"]
        assert named == final[event["output_index"]]


def test_an_output_that_is_no_list_stays_as_it_is() -> None:
    for output in (None, "text"):
        *_, last = told(output=output)
        assert last["response"]["output"] == output
    assert [event.get("output_index") for event in told("no item", {"id": "w", "type": "odd"})[2:-1]] == [1, 1]
