from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.token_id_capture.fingerprint import (
    ConversationHasher,
    HashedItems,
    assistant_fingerprint,
    conversation_digest,
)

texts = st.sampled_from(["", "a", "b", "é"])
items = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]), "content": texts}),
    st.fixed_dictionaries({"role": st.just("tool"), "tool_call_id": texts, "content": texts}),
    st.fixed_dictionaries({"type": st.just("function_call"), "call_id": texts, "name": texts, "arguments": texts}),
    st.fixed_dictionaries({"type": st.just("reasoning"), "summary": st.lists(texts, max_size=1)}),
    st.fixed_dictionaries({"role": st.just("user"), "content": texts}, optional={"name": texts}),
)
conversations = st.lists(items, max_size=8)


def hasher_of(items: list[Any]) -> ConversationHasher:
    hasher = ConversationHasher()
    hasher.feed(items)
    return hasher


def strict(items: list[Any]) -> str:
    return hasher_of(items).strict_digest()


@given(conversations, st.integers(0, 8))
def test_one_pass_yields_every_digest_of_every_beginning(conversation: list[dict[str, Any]], cut: int) -> None:
    hasher = ConversationHasher()
    hasher.feed(conversation[:cut])
    hasher.feed(iter(conversation[cut:]))
    assert hasher.item_count == len(conversation)
    assert hasher.fingerprint() == assistant_fingerprint(conversation)
    assert hasher.digest() == hasher.digest(len(conversation)) == conversation_digest(conversation)
    for count in range(len(conversation) + 1):
        beginning = hasher_of(conversation[:count])
        assert hasher.digest(count) == conversation_digest(conversation[:count])
        assert hasher.strict_digest(count) == beginning.strict_digest()
        assert beginning.model_items == sum(
            item.get("role") == "assistant" or item.get("type") == "function_call" for item in conversation[:count]
        )


@given(conversations, conversations, conversations)
def test_a_copy_goes_its_own_way(start: list[Any], one: list[Any], other: list[Any]) -> None:
    hasher = hasher_of(start)
    twin = hasher.copy()
    hasher.feed(one)
    twin.feed(other)
    for found, expected in ((hasher, hasher_of(start + one)), (twin, hasher_of(start + other))):
        assert found.fingerprint() == expected.fingerprint()
        assert found.model_items == expected.model_items
        assert [found.digest(at) for at in range(found.item_count + 1)] == [
            expected.digest(at) for at in range(expected.item_count + 1)
        ]
        assert found.strict_digest() == expected.strict_digest()


@pytest.mark.parametrize(
    "bad", ["text", None, {"role": "assistant", "content": 5}, {"role": "user", "content": "\ud800"}]
)
def test_a_bad_item_leaves_everything_before_it(bad: Any) -> None:
    good = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"type": "reasoning", "summary": [1]},
    ]
    hasher = ConversationHasher()
    with pytest.raises(ValueError, match=r"item|content|surrogates"):
        hasher.feed([*good, bad, {"role": "assistant", "content": "never"}])
    assert hasher.item_count == 3
    expected = hasher_of(good)
    assert (hasher.fingerprint(), hasher.digest(), hasher.strict_digest(), hasher.model_items) == (
        expected.fingerprint(),
        expected.digest(),
        expected.strict_digest(),
        1,
    )
    hasher.feed([{"role": "user", "content": "more"}])
    assert hasher.digest() == conversation_digest([*good, {"role": "user", "content": "more"}])


@pytest.mark.parametrize("count", [-1, 2])
def test_a_digest_of_items_that_were_not_fed_is_refused(count: int) -> None:
    hasher = hasher_of([{"role": "user", "content": "a"}])
    with pytest.raises(ValueError, match=f"cannot digest {count} items of a conversation of 1"):
        hasher.digest(count)
    with pytest.raises(ValueError, match=f"cannot digest {count} items of a conversation of 1"):
        hasher.strict_digest(count)


def test_hashed_items_are_the_plain_list_and_are_not_hashed_again() -> None:
    plain: list[object] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    other = hasher_of([{"role": "assistant", "content": "c"}])
    hashed = HashedItems(plain, other)
    assert hashed == plain
    assert assistant_fingerprint(hashed) == other.fingerprint()
    assert conversation_digest(hashed) == other.digest()


def test_thinking_does_not_change_the_fingerprint_but_the_digest() -> None:
    said = {"type": "text", "text": "a"}
    for kind in ("thinking", "redacted_thinking"):
        echoed = [{"role": "assistant", "content": [{"type": kind, "thinking": "t", "signature": "s"}, said]}]
        recorded = [{"type": "reasoning", "summary": []}, {"role": "assistant", "content": [said]}]
        assert assistant_fingerprint(echoed) == assistant_fingerprint(recorded) == hasher_of(echoed).fingerprint()
        assert conversation_digest(echoed) != conversation_digest([{"role": "assistant", "content": [said]}])


def test_members_of_a_user_turn_cannot_spoil_the_fingerprint() -> None:
    spoiled = [{"role": "user", "content": 5}, {"role": "assistant", "content": "a"}]
    assert assistant_fingerprint(spoiled) == assistant_fingerprint(spoiled[1:])
    with pytest.raises(ValueError, match="content"):
        conversation_digest(spoiled)


def test_the_strict_digest_is_in_step_with_the_position_of_what_it_adds() -> None:
    plain, named = {"role": "user", "content": "a"}, {"role": "user", "content": "a", "name": "n"}
    digests = {strict([plain, plain]), strict([named, plain]), strict([plain, named]), strict([named, named])}
    assert len(digests) == 4
    assert hasher_of([plain, named]).strict_digest(1) == strict([plain])
    assert conversation_digest([plain, named]) == conversation_digest([named, plain])
    assert strict([]) != strict([{}])


def test_hashers_of_one_conversation_can_be_copied_in_threads() -> None:
    start = hasher_of([{"role": "user", "content": str(at)} for at in range(50)])
    found: list[str] = []

    def extend() -> None:
        twin = start.copy()
        twin.feed([{"role": "assistant", "content": "a"}] * 20)
        found.append(twin.digest())

    threads = [threading.Thread(target=extend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert start.item_count == 50
