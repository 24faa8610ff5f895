from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.dialects.conversion import chat_reasoning
from gym_ray.dialects.conversion.answer_parts import reasoning_item, reasoning_texts


@pytest.mark.parametrize(
    ("content", "sections", "rest"),
    [
        ("<think>a</think>b", ["a"], "b"),
        ("<think>a</think>\n\nb", ["a"], "\n\nb"),
        ("<think>a</think>x<think>b</think>y", ["a", "b"], "xy"),
        ("<think></think>b", [""], "b"),
        ("<think>cut off", ["cut off"], ""),
        (" \n<think>a</think> <think>cut off", ["a", "cut off"], " \n "),
        ("write <think> first", [], "write <think> first"),
        ("<think>a</think>say <think>", ["a"], "say <think>"),
        ("a</think>b", [], "a</think>b"),
        ("<think>a<think>b</think>c", ["a<think>b"], "c"),
        ("", [], ""),
    ],
)
def test_split(content: str, sections: list[str], rest: str) -> None:
    assert chat_reasoning.split(content) == (sections, rest)


@given(st.lists(st.text().filter(lambda text: "think>" not in text)), st.text().filter(lambda t: "think>" not in t))
def test_tagged_texts_come_back(texts: list[str], rest: str) -> None:
    assert chat_reasoning.split(chat_reasoning.tagged(texts) + rest) == (texts, rest)


def test_splitting_looks_at_each_character_once() -> None:
    content = "x" + "<think>" * 200_000
    assert chat_reasoning.split(content) == ([], content)


def test_item_texts_prefer_a_summary_that_says_something() -> None:
    summary, content = [{"type": "summary_text", "text": "s"}], [{"type": "reasoning_text", "text": "c"}]
    assert reasoning_texts({"summary": summary, "content": content}) == ["s"]
    assert reasoning_texts({"summary": [], "content": content}) == ["c"]
    assert reasoning_texts({"summary": [{"text": ""}], "content": content}) == ["c"]
    assert reasoning_texts({"summary": None, "content": "c"}) == []


def items(message: dict, sections: list[str] | None = None) -> list[tuple[list[str], str | None]]:
    found = chat_reasoning.reasoning_items(message, sections or [])
    assert all(item["type"] == "reasoning" and item["id"].startswith("rs_") for item in found)
    return [(reasoning_texts(item), item.get("encrypted_content")) for item in found]


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_each_field_is_read(field: str) -> None:
    assert items({field: "why"}) == [(["why"], None)]
    assert items({field: None}) == items({field: ""}) == items({field: {"not": "text"}}) == []


def test_the_same_text_in_two_places_is_taken_once() -> None:
    assert items({"reasoning": "r", "reasoning_content": "r"}) == [(["r"], None)]
    assert items({"reasoning": "r"}, ["r", "more"]) == [(["r", "more"], None)]
    assert items({}, ["\n\n"]) == [(["\n\n"], None)]


def test_every_detail_item_is_kept() -> None:
    details = [
        {"type": "reasoning.summary", "summary": "a"},
        {"type": "reasoning.summary", "summary": "b"},
        {"type": "reasoning.text", "text": "t", "signature": "S"},
        {"type": "reasoning.encrypted", "data": "E"},
        {"type": "unknown"},
    ]
    assert items({"reasoning": "ab t", "reasoning_details": details}) == [
        (["a", "b"], None),
        (["t"], "S"),
        ([], "E"),
    ]


def test_what_is_encrypted_gets_its_readable_side_from_the_field() -> None:
    assert items({"reasoning": "r", "reasoning_details": [{"type": "reasoning.encrypted", "data": "E"}]}) == [
        (["r"], "E")
    ]


def test_signed_and_encrypted_items_survive_a_chat_message() -> None:
    sent = [
        reasoning_item(["one", "two"], "SIG", "rs_1"),
        reasoning_item([], "ONLY", "rs_2"),
        reasoning_item(["open"], "", "rs_3"),
    ]
    message = chat_reasoning.message_fields(sent)
    assert message["reasoning_content"] == "one\ntwo\nopen"
    back = chat_reasoning.reasoning_items(message)
    assert [(item["id"], "\n".join(reasoning_texts(item)), item.get("encrypted_content")) for item in back] == [
        ("rs_1", "one\ntwo", "SIG"),
        ("rs_2", "", "ONLY"),
        ("rs_3", "open", None),
    ]


def test_open_reasoning_needs_no_details() -> None:
    assert chat_reasoning.message_fields([reasoning_item(["a"])]) == {"reasoning_content": "a"}
    assert chat_reasoning.message_fields([]) == {}
