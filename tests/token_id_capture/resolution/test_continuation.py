from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from gym_ray.testing.scripted_calls import assistant, user
from gym_ray.token_id_capture.fingerprint import (
    FINGERPRINT_VERSION,
    ConversationHasher,
    assistant_fingerprint,
    conversation_digest,
    turn_digest,
)
from gym_ray.token_id_capture.lineage import stamp_continuation
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.records import TokenEntry
from gym_ray.token_id_capture.request_items import request_items
from gym_ray.token_id_capture.resolution.conversation_cache import ConversationCache

ITEMS = [user("q0"), assistant("A"), user("q1")]


def entry(**fields: Any) -> TokenEntry:
    output = [{"type": "reasoning", "summary": []}, assistant("B")]
    return TokenEntry(
        rollout_id="r",
        model_call_id="c",
        prompt_token_ids=[1],
        generation_token_ids=[2],
        generation_log_probs=[-0.5],
        output_items=output,
        **fields,
    )


def test_fields_describe_request_and_answer() -> None:
    stamped = entry()
    assert stamp_continuation(stamped, ITEMS) is stamped
    assert stamped.continuation_fingerprint == assistant_fingerprint([*ITEMS, *stamped.output_items])
    assert stamped.continuation_context_len == 3
    assert stamped.continuation_context_digest == conversation_digest(ITEMS)
    assert stamped.fingerprint_version == FINGERPRINT_VERSION
    extras = PackedEntry.of_entry(stamped).extras
    hasher = ConversationHasher()
    hasher.feed(ITEMS)
    assert (extras.model_items, extras.strict_context_digest) == (2, hasher.strict_digest())


@pytest.mark.parametrize("head", [{}, {"instructions": "Be brief."}], ids=["bare", "envelope"])
def test_a_text_input_has_a_digest_and_no_item(head: dict[str, Any]) -> None:
    items = request_items({"input": "q0", **head})
    bare = stamp_continuation(entry(), list(items))
    for given in (items, ConversationCache().hashed("r", items)):
        stamped = stamp_continuation(entry(), given)
        assert PackedEntry.of_entry(stamped).extras.text_input_digest == turn_digest(user("q0"))
        assert stamped.continuation_context_len == len(head)
        assert stamped.model_dump(exclude={"gym_ray"}) == bare.model_dump(exclude={"gym_ray"})
        stamp_continuation(stamped, ITEMS)
        assert not PackedEntry.of_entry(stamped).extras.text_input_digest


def test_a_text_input_that_cannot_be_hashed_is_refused_as_its_turn_is() -> None:
    for items in (request_items({"input": "\ud800"}), [user("\ud800")]):
        with pytest.raises(ValueError, match="surrogates"):
            stamp_continuation(entry(), items)


def test_what_stands_in_our_member_stays() -> None:
    stamped = stamp_continuation(entry(gym_ray={"ended_by": "eos", "later": 1}), ITEMS)
    extras = PackedEntry.of_entry(stamped).extras
    assert (extras.ended_by, extras.unknown, extras.model_items) == ("eos", {"later": 1}, 2)


def test_what_cannot_be_hashed_leaves_the_record_as_it_was() -> None:
    for items, output in (([5], []), (ITEMS, [{"role": "assistant", "content": {}}])):
        stamped = entry()
        stamped.output_items = [*stamped.output_items, *output]
        before = stamped.model_dump()
        with pytest.raises(ValueError, match="must be"):
            stamp_continuation(stamped, items)
        assert stamped.model_dump() == before


def test_only_the_answer_of_hashed_items_is_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    """W11: the bare way hashes the whole history again for the stamp."""
    hashed = ConversationCache().hashed("r", ITEMS)
    fed: list[object] = []
    feed = ConversationHasher.feed

    def counting(self: ConversationHasher, items: Iterable[object]) -> None:
        items = list(items)
        fed.extend(items)
        feed(self, items)

    monkeypatch.setattr(ConversationHasher, "feed", counting)
    stamped = stamp_continuation(entry(), hashed)
    assert fed == stamped.output_items
    assert stamped.continuation_fingerprint == assistant_fingerprint([*ITEMS, *stamped.output_items])
    assert hashed.hasher.item_count == len(ITEMS)
