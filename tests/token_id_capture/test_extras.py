from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray import exact_json
from gym_ray.token_id_capture.extras import CallExtras, WeightSpan, chain_hash
from gym_ray.token_id_capture.token_arrays import pack_token_ids

versions = st.text(max_size=4) | st.integers(-5, 5)
known = st.builds(
    CallExtras,
    chain_hash=st.none() | st.text(max_size=4),
    model_items=st.none() | st.integers(0, 9),
    strict_context_digest=st.text(max_size=4),
    text_input_digest=st.text(max_size=4),
    version_start=st.none() | versions,
    version_end=st.none() | versions,
    weight_spans=st.lists(st.builds(WeightSpan, versions, st.just(0), st.integers(0, 9)), max_size=3).map(tuple),
    constrained=st.booleans(),
    ended_by=st.sampled_from(["", "eos", "length", "stop_sequence"]),
    token_in=st.sampled_from(["", "render", "required_prefix", "completion"]),
    unknown=st.dictionaries(st.sampled_from(["later", "other"]), st.none() | st.integers() | st.lists(st.integers())),
)
FIELDS = [*CallExtras.__dataclass_fields__, "version", "start", "end", "later"]
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=8,
)


@given(known)
def test_what_is_written_is_read_back(extras: CallExtras) -> None:
    written = extras.to_json()
    assert CallExtras.of(exact_json.loads(exact_json.dumps(written))) == extras


def test_defaults_are_not_written() -> None:
    assert CallExtras().to_json() == {}
    assert CallExtras(model_items=0, version_start=0).to_json() == {"model_items": 0, "version_start": 0}


@given(anything)
def test_nothing_malformed_raises(value: Any) -> None:
    extras = CallExtras.of(value)
    assert CallExtras.of(extras.to_json()) == extras
    if not isinstance(value, dict):
        assert extras == CallExtras()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("chain_hash", 5),
        ("model_items", -1),
        ("model_items", True),
        ("model_items", "3"),
        ("strict_context_digest", None),
        ("text_input_digest", ["d"]),
        ("version_start", True),
        ("version_end", 1.5),
        ("constrained", 1),
        ("ended_by", ["eos"]),
        ("weight_spans", {}),
        ("weight_spans", [{"version": 1, "start": 0, "end": 2}, {"version": 1, "start": 2}]),
        ("weight_spans", [{"version": 1, "start": 3, "end": 2}]),
        ("weight_spans", [{"version": None, "start": 0, "end": 2}]),
        ("weight_spans", [7]),
    ],
)
def test_a_malformed_member_is_its_default_and_the_others_stay(name: str, value: Any) -> None:
    extras = CallExtras.of({name: value, "token_in": "render", "later": [1]})
    assert extras == CallExtras(token_in="render", unknown={"later": [1]})


def test_unknown_members_cannot_stand_in_for_known_ones() -> None:
    extras = CallExtras(ended_by="eos", unknown={"ended_by": "length"})
    assert extras.to_json() == {"ended_by": "eos"}


def test_a_chain_hash_depends_on_every_claim_and_every_token() -> None:
    prompt, generation = pack_token_ids([1, 2]), pack_token_ids([3])
    whole = chain_hash("p", "d", 3, prompt, generation)
    others = [
        chain_hash(None, "d", 3, prompt, generation),
        chain_hash("pd", "", 3, prompt, generation),
        chain_hash("p", "e", 3, prompt, generation),
        chain_hash("p", "d", 4, prompt, generation),
        chain_hash("p", "d", 3, pack_token_ids([1]), pack_token_ids([2, 3])),
        chain_hash("p", "d", 3, prompt, pack_token_ids([4])),
        chain_hash("p", "d", 3, prompt, pack_token_ids([])),
    ]
    assert len({whole, *others}) == 8
    assert chain_hash("p", "d", 3, pack_token_ids([1, 2]), pack_token_ids([3])) == whole
    assert chain_hash("", "d", 3, prompt, generation) == others[0]
    assert len(whole) == 64


@pytest.mark.parametrize("prompt_len", [0, 1, 4093, 4094, 20_000])
@pytest.mark.parametrize("parent", [None, "p", "\ud800"])
def test_a_chain_hash_is_one_hash_over_its_parts_however_many_tokens_there_are(
    prompt_len: int, parent: str | None
) -> None:
    prompt, generation = pack_token_ids(range(prompt_len)), pack_token_ids([1, 2**40, 2**64 - 1])
    texts = [text.encode("utf-8", "surrogatepass") for text in (parent or "", "digest")]
    parts = [b"gym-ray-token-chain-1", *(len(text).to_bytes(8, "big") + text for text in texts)]
    parts.append((prompt_len + 9).to_bytes(8, "big"))
    parts += [b"\x01" + ids.size.to_bytes(8, "big") + ids.astype(">u8").tobytes() for ids in (prompt, generation)]
    expected = hashlib.sha256(b"".join(parts)).hexdigest()
    assert chain_hash(parent, "digest", prompt_len + 9, prompt, generation) == expected
