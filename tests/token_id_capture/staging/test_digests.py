"""Hashes of staged calls against a second statement of their bytes, made of struct and hashlib alone."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.token_id_capture.staging.columns import Column
from gym_ray.token_id_capture.staging.delta import PackedDelta
from gym_ray.token_id_capture.staging.digests import (
    compute_chain_hash,
    compute_extras_digest,
    compute_prefix_hash,
    compute_staging_digest,
    hash_call,
)

DIGESTS = st.binary(min_size=32, max_size=32).map(bytes.hex)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
IDS = st.integers(0, 2**64 - 1) | st.integers(0, 200_000)
PROBS = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.floats(-50, 5)
U64 = st.integers(0, 2**64 - 1)


@st.composite
def calls(draw: st.DrawFn) -> dict[str, Any]:
    mask = draw(st.lists(st.sampled_from([0.0, -0.0, 1.0]), min_size=1, max_size=40))
    child = draw(st.booleans())
    prev_len = draw(st.integers(1, 2**60)) if child else 0
    return {
        "rollout_id": draw(NAMES),
        "model_call_id": draw(NAMES),
        "parent_call_id": draw(NAMES) if child else None,
        "mode": "token_in" if child else "text",
        "prev_len": prev_len,
        "delta_len": len(mask),
        "cum_len": prev_len + len(mask),
        "weight_version": draw(U64),
        "token_ids_delta": draw(st.lists(IDS, min_size=len(mask), max_size=len(mask))),
        "token_mask_delta": mask,
        "generation_log_probs_delta": [draw(PROBS) if kept else draw(st.sampled_from([0.0, -0.0])) for kept in mask],
        "extras_digest": draw(DIGESTS),
        "chain_hash": draw(DIGESTS),
        "cumulative_hash": draw(DIGESTS),
    }


def text(value: str) -> bytes:
    encoded = value.encode("utf-8")
    return struct.pack(">Q", len(encoded)) + encoded


def block(encoded: bytes) -> bytes:
    return struct.pack(">Q", len(encoded)) + encoded


def id_block(ids: list[int]) -> bytes:
    return struct.pack(f">Q{len(ids)}Q", len(ids), *ids)


def float_block(values: list[float]) -> bytes:
    return struct.pack(f">Q{len(values)}f", len(values), *values)


def digest_of(call: dict[str, Any]) -> str:
    parent = call["parent_call_id"]
    return hashlib.sha256(
        b"nemo-gym-staging-call-v2\x02\x02\x01"
        + text(call["rollout_id"])
        + text(call["model_call_id"])
        + (b"\x00" if parent is None else b"\x01" + text(parent))
        + text(call["mode"])
        + struct.pack(">4Q", call["prev_len"], call["delta_len"], call["cum_len"], call["weight_version"])
        + block(id_block(call["token_ids_delta"]))
        + block(float_block(call["token_mask_delta"]))
        + block(float_block(call["generation_log_probs_delta"]))
        + bytes.fromhex(call["extras_digest"])
        + b"\x01"
        + bytes.fromhex(call["chain_hash"])
        + b"\x01"
        + bytes.fromhex(call["cumulative_hash"])
    ).hexdigest()


def prefix_hash_of(ids: list[int]) -> str:
    return hashlib.sha256(b"nemo-gym-staging-prefix-v2" + id_block(ids)).hexdigest()


def chain_hash_of(parent: str | None, ids: list[int]) -> str:
    marker = b"\x00" if parent is None else b"\x01" + bytes.fromhex(parent)
    return hashlib.sha256(b"nemo-gym-staging-chain-v1" + marker + id_block(ids)).hexdigest()


@given(calls())
def test_a_digest_has_the_bytes_of_the_wire(call: dict[str, Any]) -> None:
    assert compute_staging_digest(**call) == digest_of(call)


@given(calls())
def test_a_digest_does_not_depend_on_how_the_columns_are_held(call: dict[str, Any]) -> None:
    mask = np.array(call["token_mask_delta"], np.float64)
    probs = np.array(call["generation_log_probs_delta"], np.float64)
    held = {
        "token_ids_delta": np.array(call["token_ids_delta"], np.uint64),
        "token_mask_delta": mask if np.signbit(mask).any() else mask == 1,
        "generation_log_probs_delta": probs.astype(np.float32),
    }
    columns = {name: Column(values) for name, values in held.items()}
    doubles = {**held, "generation_log_probs_delta": probs, "token_mask_delta": mask.astype(np.float16)}
    for form in (held, columns, doubles):
        assert compute_staging_digest(**{**call, **form}) == digest_of(call)


@given(st.lists(IDS, max_size=60), DIGESTS | st.none())
def test_prefix_and_chain_hashes_have_the_bytes_of_the_wire(ids: list[int], parent: str | None) -> None:
    for form in (ids, tuple(ids), np.array(ids, np.uint64), memoryview(np.array(ids, np.uint64))):
        assert compute_prefix_hash(form) == prefix_hash_of(ids)
        assert compute_chain_hash(parent, form) == chain_hash_of(parent, ids)


@given(calls(), st.lists(IDS, min_size=1, max_size=40), DIGESTS)
def test_a_call_is_hashed_at_once_as_piece_by_piece(call: dict[str, Any], prefix: list[int], parent: str) -> None:
    root = call["parent_call_id"] is None
    before, parent_hash = ([], None) if root else (prefix, parent)
    delta = PackedDelta(
        np.array(call["token_ids_delta"], np.uint64),
        np.array(call["token_mask_delta"], np.float32),
        np.array(call["generation_log_probs_delta"], np.float64),
    )
    named = ("rollout_id", "model_call_id", "parent_call_id", "mode", "weight_version", "extras_digest")
    hashes = hash_call(
        **{name: call[name] for name in named},
        prefix=np.array(before, np.uint64),
        delta=delta,
        parent_chain_hash=parent_hash,
    )
    assert hashes.chain_hash == chain_hash_of(parent_hash, call["token_ids_delta"])
    assert hashes.cumulative_hash == prefix_hash_of([*before, *call["token_ids_delta"]])
    lengths = {"prev_len": len(before), "cum_len": len(before) + call["delta_len"]}
    whole = {**call, **lengths, "chain_hash": hashes.chain_hash, "cumulative_hash": hashes.cumulative_hash}
    assert hashes.digest == digest_of(whole)


@pytest.mark.parametrize("count", [32_767, 32_768, 32_769, 65_536, 65_537, 131_073])
def test_long_sequences_are_hashed_whole(count: int) -> None:
    ids = (np.arange(count) * 7919 + 13) % 151_936
    mask = np.arange(count) % 3 == 2
    probs = np.where(mask, -np.arange(count) / 1000, 0).astype(np.float32)
    call: dict[str, Any] = {
        "rollout_id": "r",
        "model_call_id": "c",
        "parent_call_id": None,
        "mode": "text",
        "prev_len": 0,
        "delta_len": count,
        "cum_len": count,
        "weight_version": 1,
        "extras_digest": "a" * 64,
        "chain_hash": "b" * 64,
        "cumulative_hash": "c" * 64,
    }
    columns = ("token_ids_delta", "token_mask_delta", "generation_log_probs_delta")
    listed = dict(zip(columns, (ids.tolist(), mask.astype(float).tolist(), probs.tolist()), strict=True))
    assert compute_prefix_hash(ids) == prefix_hash_of(ids.tolist())
    found = compute_staging_digest(**call, **dict(zip(columns, (ids, mask, probs), strict=True)))
    assert found == digest_of({**call, **listed}) == compute_staging_digest(**call, **listed)


# Exact half-way points between two float32 values, and their neighbours among the doubles; C83.
HALF_WAY = [1 + 2**-24, 1 + 3 * 2**-24, -(1 + 2**-24), 2**-149 * 0.5, 2**-149 * 1.5, 3.4028235677973362e38]


@pytest.mark.parametrize("value", [near for mid in HALF_WAY for near in (np.nextafter(mid, -9e99), mid)])
def test_floats_are_rounded_half_to_even(value: float) -> None:
    call: dict[str, Any] = {
        "rollout_id": "r",
        "model_call_id": "c",
        "parent_call_id": None,
        "mode": "text",
        "prev_len": 0,
        "delta_len": 1,
        "cum_len": 1,
        "weight_version": 0,
        "token_ids_delta": [1],
        "token_mask_delta": [1.0],
        "generation_log_probs_delta": [float(value)],
        "extras_digest": "a" * 64,
        "chain_hash": "b" * 64,
        "cumulative_hash": "c" * 64,
    }
    try:
        expected = digest_of(call)
    except OverflowError:
        with pytest.raises(ValueError, match="at index 0 is no finite float32"):
            compute_staging_digest(**call)
        return
    assert compute_staging_digest(**call) == expected


@pytest.mark.parametrize(
    "ids",
    [np.array([1.0]), np.array([True]), np.array([[1]]), np.array([-1]), np.array([None]), "1", {1}, iter([1]), 1],
)
def test_what_holds_no_ids_is_refused(ids: Any) -> None:
    with pytest.raises(ValueError, match="token id"):
        compute_prefix_hash(ids)


@pytest.mark.parametrize("name", ["token_mask_delta", "generation_log_probs_delta"])
@pytest.mark.parametrize("values", [np.array([1]), np.array([[1.0]]), np.array([None]), "1", None, np.array([1j])])
def test_what_holds_no_floats_is_refused(name: str, values: Any) -> None:
    call: dict[str, Any] = {
        "rollout_id": "r",
        "model_call_id": "c",
        "parent_call_id": None,
        "mode": "text",
        "prev_len": 0,
        "delta_len": 1,
        "cum_len": 1,
        "weight_version": 0,
        "token_ids_delta": [1],
        "token_mask_delta": [1.0],
        "generation_log_probs_delta": [-0.5],
        "extras_digest": "a" * 64,
        "chain_hash": "b" * 64,
        "cumulative_hash": "c" * 64,
    }
    assert compute_staging_digest(**call) == digest_of(call)
    with pytest.raises(ValueError, match=name):
        compute_staging_digest(**{**call, name: values})


def test_the_first_value_that_cannot_be_hashed_is_named() -> None:
    with pytest.raises(ValueError, match="True at index 2 is not an exact int"):
        compute_prefix_hash([1, 0, True, "x"])


def test_the_package_has_the_extras_digest_too() -> None:
    assert compute_extras_digest({}) == "1fd859b283c766e508af525e02edd53f1861163b644f36caccdb8b2316f52e77"


@pytest.mark.parametrize("log_probs", [np.array([False, True]), Column(np.array([False, True]))])
def test_truth_values_are_no_log_probs(log_probs: Any) -> None:
    call = {
        "rollout_id": "r",
        "model_call_id": "c",
        "parent_call_id": None,
        "mode": "text",
        "prev_len": 0,
        "delta_len": 2,
        "cum_len": 2,
        "weight_version": 0,
        "token_ids_delta": [1, 2],
        "token_mask_delta": np.array([False, True]),
        "extras_digest": "a" * 64,
        "chain_hash": "a" * 64,
        "cumulative_hash": "a" * 64,
    }
    assert compute_staging_digest(generation_log_probs_delta=[0.0, 1.0], **call)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="generation_log_probs_delta holds floats, not an array of bool"):
        compute_staging_digest(generation_log_probs_delta=log_probs, **call)  # type: ignore[arg-type]


@pytest.mark.parametrize("ids", [np.array([1, True], object), np.ma.MaskedArray([1, 2], [False, True])])
def test_ids_are_those_of_plain_arrays_of_integers(ids: Any) -> None:
    with pytest.raises(ValueError, match="token ids must be"):
        compute_prefix_hash(ids)
