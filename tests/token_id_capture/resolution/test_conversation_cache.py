"""Hashing a request from its first new item on: never another result than hashing it all, and hardly any work."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.testing.scripted_calls import assistant, user
from gym_ray.token_id_capture.fingerprint import ConversationHasher, HashedItems
from gym_ray.token_id_capture.resolution.conversation_cache import ConversationCache

TOOL_CALL = {"type": "function_call", "call_id": "k", "name": "f", "arguments": '{"n": 1}'}


def all_of(hasher: ConversationHasher) -> list[object]:
    counts = range(hasher.item_count + 1)
    return [
        hasher.item_count,
        hasher.model_items,
        hasher.fingerprint(),
        [(hasher.digest(count), hasher.strict_digest(count)) for count in counts],
    ]


def anew(items: Sequence[object]) -> list[object]:
    hasher = ConversationHasher()
    hasher.feed(items)
    return all_of(hasher)


def check(cache: ConversationCache, items: Sequence[object], rollout_id: str = "r") -> HashedItems:
    hashed = cache.hashed(rollout_id, items)
    assert hashed == list(items)
    assert all_of(hashed.hasher) == anew(items)
    return hashed


def turns(count: int) -> list[Any]:
    items: list[Any] = [user("q0")]
    for turn in range(count):
        items += [assistant(f"a{turn}"), TOOL_CALL, {"type": "function_call_output", "call_id": "k", "output": "7"}]
    return items


def test_what_is_known_can_be_asked_before_the_rest_is_hashed(fed: list[object]) -> None:
    cache = ConversationCache()
    assert cache.begun("r", turns(2)).known == 0
    cache.hashed("r", turns(2))
    fed.clear()
    begun, other = cache.begun("r", turns(3)), cache.begun("r", [*turns(2), user("q1")])
    assert (begun.known, other.known, cache.begun("s", turns(3)).known) == (7, 7, 0)
    assert cache.begun("r", turns(2)[:-1]).known == 0  # nobody asked for so much
    assert fed == []
    for one, items in ((other, [*turns(2), user("q1")]), (begun, turns(3))):
        hashed = one.finish()
        assert hashed == items
        assert all_of(hashed.hasher) == anew(items)
    assert cache.begun("r", [*turns(3), user("q2")]).known == 10


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every item that was hashed."""
    seen: list[object] = []
    feed = ConversationHasher.feed

    def counting(self: ConversationHasher, items: Iterable[object]) -> None:
        items = list(items)
        seen.extend(items)
        feed(self, items)

    monkeypatch.setattr(ConversationHasher, "feed", counting)
    return seen


def test_a_growing_conversation_is_hashed_once(fed: list[object]) -> None:
    """W11: the bare way hashes the whole history several times a call."""
    cache = ConversationCache()
    for count in range(1, 50):
        cache.hashed("r", copy.deepcopy(turns(count)))
    assert len(fed) == len(turns(49))


def test_retries_and_branches_are_hashed_from_an_earlier_request_on(fed: list[object]) -> None:
    cache = ConversationCache()
    for count in (1, 2, 3):
        cache.hashed("r", turns(count))
    fed.clear()
    check_items = [*turns(2), user("another way")]
    assert cache.hashed("r", turns(3)) == turns(3)
    assert cache.hashed("r", turns(2)) == turns(2)
    assert cache.hashed("r", check_items) == check_items
    assert cache.hashed("r", [*check_items, assistant("x")])[-1] == assistant("x")
    assert fed == [user("another way"), assistant("x")]
    fed.clear()
    cache.hashed("r", turns(4))
    assert len(fed) == 3


def test_a_branch_takes_no_hashes_of_what_it_leaves() -> None:
    cache = ConversationCache()
    for items in ([user("q")], [user("q"), assistant("a"), user("c")]):
        check(cache, items)
    for items in ([user("q"), assistant("b"), user("c"), user("n")], [user("q"), assistant("b"), user("c"), user("m")]):
        check(cache, items)  # its items end where those of the conversation that it leaves ended


def test_a_branch_takes_no_nulls_of_what_it_leaves(fed: list[object]) -> None:
    cache = ConversationCache()
    cache.hashed("r", [user("q")])
    cache.hashed("r", [user("q"), {"role": "assistant", "content": None}])
    branch = [user("q"), assistant("b")]
    cache.hashed("r", branch)
    fed.clear()
    cache.hashed("r", [*branch, user("n")])
    assert fed == [user("n")]


def test_several_conversations_of_a_rollout_are_remembered(fed: list[object]) -> None:
    cache = ConversationCache()
    for turn in range(1, 6):
        for name in "abcd":
            cache.hashed("r", [user(name), *turns(turn)])
    assert len(fed) == 4 * len([user("a"), *turns(5)])


def test_rollouts_know_nothing_of_each_other(fed: list[object]) -> None:
    cache = ConversationCache()
    cache.hashed("r", turns(2))
    cache.hashed("s", turns(2))
    assert len(fed) == 2 * len(turns(2))


@pytest.mark.parametrize("at", range(0, 10, 3))
def test_an_item_that_changed_early_is_seen(at: int) -> None:
    cache = ConversationCache()
    check(cache, turns(3))
    changed = copy.deepcopy(turns(3))
    changed[at] = user("changed")
    check(cache, [*changed, user("n")])
    check(cache, [*turns(3), user("n")])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"n": 1}, {"n": 1.0}),
        ({"n": 1}, {"n": True}),
        ({"n": 0}, {"n": False}),
        ({"n": 0.0}, {"n": -0.0}),
        ({"n": None}, {"n": float("nan")}),
        ({"n": [1, 2]}, {"n": [1, 2.0]}),
        ({"n": ""}, {"n": None}),
        ({}, {"n": None}),
    ],
    ids=str,
)
def test_values_that_python_takes_for_equal_are_told_apart(before: Any, after: Any) -> None:
    def items(value: Any) -> list[Any]:
        part = {"type": "custom", "value": value}
        return [user("q"), {"role": "assistant", "content": [part]}, user("n")]

    for first, second in ((before, after), (after, before)):
        cache = ConversationCache()
        check(cache, items(first))
        check(cache, [*items(second), user("m")])
        check(cache, [*items(first), user("m")])


def test_null_that_became_nan_is_not_taken_for_known() -> None:
    cache = ConversationCache()
    check(cache, [user("q"), {"role": "assistant", "content": None}])
    with pytest.raises(ValueError, match="content must be"):
        cache.hashed("r", [user("q"), {"role": "assistant", "content": float("nan")}])


def test_nan_that_became_null_is_not_taken_for_known() -> None:
    cache = ConversationCache()
    check_role = [user("q"), {"role": float("nan"), "content": "x"}]
    assert all_of(cache.hashed("r", check_role).hasher) == anew(check_role)
    check(cache, [user("q"), {"role": None, "content": "x"}])


def test_items_that_their_owner_changes_later_are_not_taken_for_known() -> None:
    cache = ConversationCache()
    items = turns(2)
    cache.hashed("r", items)
    items[0]["content"] = "changed by its owner"
    check(cache, items)
    check(cache, turns(2))


def test_hashes_that_were_given_out_can_be_used_up() -> None:
    cache = ConversationCache()
    for _ in range(3):
        cache.hashed("r", turns(2)).hasher.feed([user("elsewhere")])
        check(cache, turns(2))


@pytest.mark.parametrize("value", [2**70, {5: "five"}, (1, 2), b"x"], ids=str)
def test_what_has_no_exact_json_is_hashed_every_time(value: Any, fed: list[object]) -> None:
    items = [user("q"), {"role": "user", "content": "x", "tool_calls": None, "unseen": value}, user("n")]
    cache = ConversationCache()
    check(cache, items)
    fed.clear()
    check(cache, items)
    assert len(fed) == 2 * len(items)  # once here, once anew


def test_what_cannot_be_hashed_leaves_the_known_part_known(fed: list[object]) -> None:
    cache = ConversationCache()
    cache.hashed("r", turns(2))
    for bad in ("text", {"role": "assistant", "content": 5}, {"role": "user", "content": "\ud800"}):
        with pytest.raises(ValueError, match=r"must be|surrogate"):
            cache.hashed("r", [*turns(2), bad])
    fed.clear()
    cache.hashed("r", turns(2))
    assert fed == []


def test_what_nests_deeply_is_hashed_every_time() -> None:
    deep: Any = []
    for _ in range(600):
        deep = [deep]
    cache = ConversationCache()
    for _ in range(2):
        check(cache, [user("q"), {"role": "user", "content": "x", "cache_control": deep}])


def test_no_items_are_no_conversation() -> None:
    check(ConversationCache(), [])


class TestBounds:
    @pytest.mark.parametrize("bound", ["max_rollouts", "max_items", "max_bytes"])
    def test_they_are_positive(self, bound: str) -> None:
        with pytest.raises(ValueError, match=f"{bound} must be at least 1, not 0"):
            ConversationCache(**{bound: 0})

    @pytest.mark.parametrize(
        "bound",
        [{"max_rollouts": 2}, {"max_items": 2 * len(turns(2)) + 1}, {"max_bytes": 0}],
        ids=str,
    )
    def test_the_rollout_used_longest_ago_is_forgotten(self, bound: dict[str, int], fed: list[object]) -> None:
        one = ConversationCache()
        one.hashed("x", turns(2))
        assert one._size > len(orjson.dumps(turns(2)))
        cache = ConversationCache(**{name: value or 2 * one._size + 1 for name, value in bound.items()})
        for rollout_id in ("x", "y", "x", "z"):
            cache.hashed(rollout_id, turns(2))
        fed.clear()
        cache.hashed("x", turns(2))
        assert fed == []
        cache.hashed("y", turns(2))
        assert len(fed) == len(turns(2))

    def test_what_is_too_large_is_not_remembered(self, fed: list[object]) -> None:
        cache = ConversationCache(max_items=5)
        for _ in range(2):
            cache.hashed("r", turns(2))
        assert len(fed) == 2 * len(turns(2))

    def test_totals_hold_after_any_use(self) -> None:
        cache = ConversationCache(max_rollouts=3, max_items=60)
        chance = random.Random(4)
        for _ in range(300):
            items = turns(chance.randrange(6))
            if chance.random() < 0.5:
                items.append(user(str(chance.randrange(3))))
            check(cache, items, f"r{chance.randrange(5)}")
        rollouts = cache._rollouts.values()
        held = [conversation for rollout in rollouts for conversation in rollout.conversations]
        assert cache._items == sum(len(conversation.items) for conversation in held) <= 60
        assert cache._size == sum(conversation.size for conversation in held)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_infinity=False, width=16) | st.sampled_from("abc"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xy"), inner, max_size=2),
    max_leaves=4,
)
messages = st.builds(
    lambda role, value: {"role": role, "content": [{"type": "thing", "value": value}]},
    st.sampled_from(["user", "assistant"]),
    values,
)


@given(st.lists(st.tuples(st.integers(0, 8), st.lists(messages, max_size=4)), max_size=12))
def test_any_sequence_of_requests_hashes_as_if_each_were_new(requests: list[tuple[int, list[Any]]]) -> None:
    cache = ConversationCache(max_items=40)
    before: list[Any] = []
    for kept, added in requests:
        before = [*before[:kept], *added]
        hashed = cache.hashed("r", before)
        assert all_of(hashed.hasher) == anew(before)


def test_threads_may_hash_one_rollout_at_once() -> None:
    cache = ConversationCache(max_items=200)

    def work(number: int) -> None:
        for count in range(20):
            check(cache, [user(str(number % 3)), *turns(count)])

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(work, number) for number in range(8)]:
            done.result()
