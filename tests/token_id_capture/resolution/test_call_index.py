"""Which call a request continues, by conversation alone; departures are held against what the bare rule would say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gym_ray.testing.scripted_calls import assistant, scripted_call, user
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.records import TokenEntry
from gym_ray.token_id_capture.request_items import request_items
from gym_ray.token_id_capture.resolution.call_index import CallIndex, IndexedCall, Unresolved, hashed_items

ASK = [user("q0")]
REASONING = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "why"}]}


def call(name: str, items: Sequence[object], *output: dict[str, Any], ids: Sequence[int] = (1, 2)) -> TokenEntry:
    return scripted_call(name, items, output, ids[:1], ids[1:])


def found(entries: Sequence[TokenEntry], items: Sequence[object]) -> str:
    """The parent's call id, or the reason why there is none."""
    index = CallIndex()
    for entry in entries:
        index.add(IndexedCall.of(PackedEntry.of_entry(entry)))
    result = index.parent_of(hashed_items(items))
    return result.reason if isinstance(result, Unresolved) else result.model_call_id


def test_a_faithful_continuation_has_its_parent() -> None:
    entries = [call("a", ASK, assistant("A"))]
    assert found(entries, [*ASK, assistant("A"), user("q1")]) == "a"
    assert found(entries, [*ASK, assistant("A")]) == "a"


@pytest.mark.parametrize(
    "items",
    [
        [user("other"), assistant("A"), user("q1")],
        [user("q0"), assistant("B"), user("q1")],
        [assistant("A"), user("q0")],
        [user("q1"), user("q0"), assistant("A")],
    ],
    ids=["context", "answer", "order", "longer_context"],
)
@pytest.mark.parametrize("ours", [True, False], ids=["our_record", "another_writers"])
def test_whatever_was_rewritten_has_none(items: list[object], ours: bool) -> None:
    entry = call("a", ASK, assistant("A"))
    if not ours:
        del entry.gym_ray  # type: ignore[attr-defined]
    assert found([entry], items) == "no_match"


def test_interchangeable_calls_are_one() -> None:
    entries = [call("b", ASK, assistant("A")), call("a", ASK, assistant("A"))]
    assert found(entries, [*ASK, assistant("A"), user("n")]) == "a"


def test_calls_with_other_tokens_are_ambiguous() -> None:
    entries = [call("b", ASK, assistant("A")), call("a", ASK, assistant("A"), ids=(1, 3))]
    assert found(entries, [*ASK, assistant("A"), user("n")]) == "ambiguous"


def test_calls_that_claim_no_digest_are_never_interchangeable() -> None:
    entries = [call("b", ASK, assistant("A")), call("a", ASK, assistant("A"))]
    for entry in entries:
        entry.digest = entry.cum_len = None
    assert found(entries, [*ASK, assistant("A"), user("n")]) == "ambiguous"


@pytest.mark.parametrize("version", [1, 3])
def test_another_fingerprint_version_is_not_compared(version: int) -> None:
    entry = call("a", ASK, assistant("A"))
    entry.fingerprint_version = version
    assert found([entry], [*ASK, assistant("A")]) == "no_match"


class TestEmptyAnswers:
    """W31: an answer without words leaves the fingerprint as it was: the bare rule cannot tell it from its parent."""

    def entries(self) -> list[TokenEntry]:
        asked = [*ASK, assistant("A"), user("q1")]
        return [call("a", ASK, assistant("A")), call("e", asked, assistant(""), ids=(1, 2, 3))]

    def test_a_retry_without_the_empty_answer_continues_the_call_before(self) -> None:
        assert found(self.entries(), [*ASK, assistant("A"), user("q1")]) == "a"

    def test_going_on_from_the_empty_answer_continues_it(self) -> None:
        assert found(self.entries(), [*ASK, assistant("A"), user("q1"), assistant(""), user("again")]) == "e"

    def test_a_record_that_does_not_say_its_count_breaks_no_tie(self) -> None:
        entries = self.entries()
        del entries[0].gym_ray  # type: ignore[attr-defined]
        assert found(entries, [*ASK, assistant("A"), user("q1"), assistant(""), user("again")]) == "ambiguous"

    def test_an_answer_without_any_item_is_nobodys_parent(self) -> None:
        entries = [self.entries()[0], call("n", [*ASK, assistant("A"), user("q1")], ids=(1, 2, 3))]
        assert found(entries, [*ASK, assistant("A"), user("q1")]) == "a"
        assert found(entries[1:], [*ASK, assistant("A"), user("q1")]) == "no_match"

    def test_the_count_breaks_ties_only(self) -> None:
        entries = [call("a", ASK, assistant("A"))]
        assert found(entries, [*ASK, assistant("A"), user("q1"), assistant(""), user("again")]) == "a"


class TestGaps:
    """W32: the bare rule looks at the context and at the answer, not at what stands between them."""

    @pytest.mark.parametrize(
        "between",
        [user("sneaked in"), {"role": "system", "content": "x"}, {"type": "function_call_output", "output": "x"}],
        ids=["user", "system", "tool_result"],
    )
    def test_nothing_may_stand_before_the_answer(self, between: dict[str, Any]) -> None:
        assert found([call("a", ASK, assistant("A"))], [*ASK, between, assistant("A"), user("n")]) == "no_match"

    def test_nothing_may_stand_inside_the_answer(self) -> None:
        tool = {"type": "function_call", "call_id": "k", "name": "f", "arguments": "{}"}
        entries = [call("a", ASK, assistant("A"), tool)]
        assert found(entries, [*ASK, assistant("A"), tool]) == "a"
        assert found(entries, [*ASK, assistant("A"), user("x"), tool]) == "no_match"

    def test_reasoning_may_be_dropped_changed_or_moved(self) -> None:
        entries = [call("a", ASK, REASONING, assistant("A"))]
        for echo in (
            [assistant("A")],
            [REASONING, assistant("A")],
            [{"type": "reasoning", "summary": []}, assistant("A")],
            [assistant("A"), REASONING],
        ):
            assert found(entries, [*ASK, *echo, user("n")]) == "a"

    def test_other_items_of_the_answer_may_stand_there_too(self) -> None:
        search = {"type": "web_search_call", "id": "w", "status": "completed"}
        echo = [*ASK, search, assistant("A"), user("n")]
        assert found([call("a", ASK, search, assistant("A"))], echo) == "a"
        assert found([call("a", ASK, assistant("A"))], echo) == "no_match"


class TestStrictDigest:
    """W33: the digest of the contract does not see everything that the model is shown."""

    CONTEXT = ({"role": "user", "name": "ann", "content": "q0"},)
    RENAMED = ({"role": "user", "name": "bob", "content": "q0"},)

    def test_what_the_digest_leaves_out_counts(self) -> None:
        entry = call("a", self.CONTEXT, assistant("A"))
        assert found([entry], [*self.CONTEXT, assistant("A")]) == "a"
        assert found([entry], [*self.RENAMED, assistant("A")]) == "no_match"

    def test_a_record_without_it_is_compared_as_far_as_it_goes(self) -> None:
        entry = call("a", self.CONTEXT, assistant("A"))
        del entry.gym_ray  # type: ignore[attr-defined]
        assert found([entry], [*self.RENAMED, assistant("A")]) == "a"


def test_a_context_without_items_matches_no_turn_of_a_user() -> None:
    """W33: the bare rule lets a request without items go before any question at all."""
    entry = call("a", [], assistant("A"))
    assert found([entry], [user("whatever"), assistant("A"), user("n")]) == "no_match"


class TestTextInput:
    """W33: a text ``input`` has no item (B25), so by the bare rule its call goes before any question at all."""

    HEAD: tuple[dict[str, Any], ...] = ({}, {"instructions": "Be brief.", "tools": [{"type": "function", "name": "f"}]})

    @staticmethod
    def asked(text: str, head: dict[str, Any]) -> TokenEntry:
        return call("a", request_items({"input": text, **head}), REASONING, assistant("A"))

    @pytest.mark.parametrize("head", HEAD, ids=["bare", "envelope"])
    @pytest.mark.parametrize(
        "turn",
        [
            {"role": "user", "content": "q0"},
            {"type": "message", "role": "user", "content": "q0"},
            {"role": "user", "content": [{"type": "input_text", "text": "q0"}]},
            {
                "type": "message",
                "role": "user",
                "status": "completed",
                "content": [{"type": "input_text", "text": "q0"}],
            },
        ],
    )
    @pytest.mark.parametrize("echo", [[assistant("A")], [REASONING, assistant("A")]], ids=["answer", "reasoning"])
    def test_the_turn_with_its_text_takes_its_place(
        self, turn: dict[str, Any], echo: list[Any], head: dict[str, Any]
    ) -> None:
        items = request_items({"input": [turn, *echo, user("n")], **head})
        assert found([self.asked("q0", head)], items) == "a"

    @pytest.mark.parametrize("head", HEAD, ids=["bare", "envelope"])
    @pytest.mark.parametrize(
        "before",
        [
            [],
            [user("q1")],
            [user("")],
            [user("q0"), user("q0")],
            [user("q0"), user("more")],
            [user("more"), user("q0")],
            [{"role": "developer", "content": "Be kind."}, user("q0")],
            [user("q0"), {"role": "system", "content": "x"}],
            [{"role": "system", "content": "q0"}],
            [{"type": "user", "content": "q0"}],
            [{"role": "user", "type": "reasoning", "content": "q0"}],
            [{"role": "user", "name": "ann", "content": "q0"}],
            [{"role": "user", "content": [{"type": "input_text", "text": "q"}, {"type": "input_text", "text": "0"}]}],
            [
                {
                    "role": "user",
                    "content": [{"type": "input_text", "text": "q0"}, {"type": "input_image", "image_url": "u"}],
                }
            ],
            [{"role": "user", "content": [{"type": "input_text", "text": "q0", "seen": 1}]}],
            [{"type": "function_call_output", "call_id": "k", "output": "q0"}],
        ],
    )
    def test_nothing_else_does(self, before: list[Any], head: dict[str, Any]) -> None:
        items = request_items({"input": [*before, assistant("A"), user("n")], **head})
        assert found([self.asked("q0", head)], items) == "no_match"

    def test_what_stands_in_front_must_be_the_same(self) -> None:
        turns = [user("q0"), assistant("A"), user("n")]
        for first, then in (self.HEAD, reversed(self.HEAD), ({"instructions": "x"}, {"instructions": "y"})):
            assert found([self.asked("q0", first)], request_items({"input": turns, **then})) == "no_match"

    def test_an_empty_text_is_no_missing_one(self) -> None:
        entry = self.asked("", {})
        assert found([entry], [user(""), assistant("A"), user("n")]) == "a"
        for before in ([], [{"role": "user", "content": None}], [user("q0")]):
            assert found([entry], [*before, assistant("A"), user("n")]) == "no_match"

    def test_texts_with_one_answer_are_told_apart(self) -> None:
        entries = [
            call(name, request_items({"input": text}), assistant("A"), ids=(1, at))
            for at, (name, text) in enumerate([("a", "q0"), ("b", "q1")])
        ]
        assert found(entries, [user("q1"), assistant("A"), user("n")]) == "b"

    def test_the_same_question_as_a_list_is_another_call(self) -> None:
        entries = [self.asked("q0", {}), call("b", ASK, REASONING, assistant("A"), ids=(1, 3))]
        assert found(entries, [*ASK, assistant("A"), user("n")]) == "ambiguous"

    def test_a_record_that_does_not_say_its_text_is_nobodys_parent(self) -> None:
        entry = self.asked("q0", {})
        del entry.gym_ray  # type: ignore[attr-defined]
        assert found([entry], [*ASK, assistant("A"), user("n")]) == "no_match"

    def test_later_calls_go_by_their_items(self) -> None:
        second = call("b", [*ASK, assistant("A"), user("n")], assistant("B"), ids=(1, 2, 3))
        assert found([self.asked("q0", {}), second], [*ASK, assistant("A"), user("n"), assistant("B")]) == "b"


def tool(name: str, *, output: bool = False) -> dict[str, Any]:
    if output:
        return {"type": "custom_tool_call_output", "call_id": name, "output": "done"}
    return {"type": "custom_tool_call", "call_id": name, "name": "patch", "input": name}


@pytest.mark.parametrize("wordless", [[tool("t2")], [tool("t2"), tool("t3")], [REASONING, tool("t2")], [REASONING]])
def test_an_answer_without_words_is_not_passed_over(wordless: list[dict[str, Any]]) -> None:
    between = [*ASK, assistant("A"), user("q1")]
    entries = [call("a", ASK, assistant("A")), call("b", between, *wordless)]
    went_on = [*between, *wordless, tool("t2", output=True)]
    assert found(entries, went_on) == "b"
    assert found(entries[:1], went_on) == "no_match"  # else what the lost call sampled would pass for a tool's text
    assert found([*entries, call("c", between, *wordless, ids=(1, 3))], went_on) == "ambiguous"
    assert found(entries, between) == "a"  # the agent dropped it


def test_calls_of_custom_tools_beside_words_are_part_of_their_answer() -> None:
    answer = [assistant("A"), tool("t1"), tool("t2")]
    entries = [call("a", ASK, *answer)]
    assert found(entries, [*ASK, *answer, tool("t1", output=True), tool("t2", output=True)]) == "a"


def test_nothing_may_stand_within_an_answer_of_several_messages() -> None:
    entries = [call("a", ASK, assistant("A"), assistant("B"))]
    assert found(entries, [*ASK, assistant("A"), assistant("B"), user("q1")]) == "a"
    assert found(entries, [*ASK, assistant("A"), user("q1"), assistant("B")]) == "no_match"


def test_an_answer_without_any_item_is_no_reasoning() -> None:
    assert (
        found(
            [call("a", ASK, assistant("A")), call("b", [*ASK, assistant("A"), user("q1")])],
            [*ASK, assistant("A"), user("q1"), REASONING, user("q2")],
        )
        == "no_match"
    )


def test_items_come_with_their_hashes_or_get_them() -> None:
    hashed = hashed_items([user("q")])
    assert hashed == [user("q")]
    assert hashed_items(hashed) is hashed
    assert hashed_items(None) == []
    with pytest.raises(ValueError, match="must be an object"):
        hashed_items(["x"])
