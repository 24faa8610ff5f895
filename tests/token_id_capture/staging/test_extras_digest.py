"""The digest of extras against a second, recursive statement of its bytes, and at its limits."""

from __future__ import annotations

import hashlib
import re
import struct
from collections import UserDict
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.token_id_capture.staging.constants import MAX_EXTRAS_DEPTH
from gym_ray.token_id_capture.staging.extras_digest import compute_extras_digest, copied_extras

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
EXTRAS = st.dictionaries(
    TEXT,
    st.recursive(SCALARS, lambda part: st.lists(part, max_size=4) | st.dictionaries(TEXT, part, max_size=4)),
    max_size=5,
)


def encoded(value: Any) -> bytes:
    if value is None:
        return b"N"
    if isinstance(value, bool):
        return b"B" + bytes([value])
    if isinstance(value, int):
        return b"I" + struct.pack(">q", value)
    if isinstance(value, float):
        return b"F" + struct.pack(">d", value)
    if isinstance(value, str):
        return b"S" + text(value)
    if isinstance(value, list):
        return b"L" + struct.pack(">Q", len(value)) + b"".join(map(encoded, value))
    members = sorted((key.encode("utf-8"), key) for key in value)
    return b"D" + struct.pack(">Q", len(value)) + b"".join(text(key) + encoded(value[key]) for _, key in members)


def text(value: str) -> bytes:
    return struct.pack(">Q", len(value.encode("utf-8"))) + value.encode("utf-8")


def digest_of(value: Any) -> str:
    return hashlib.sha256(b"nemo-gym-staging-extras-v1\x01" + encoded(value)).hexdigest()


def nested(depth: int, leaf: Any = None) -> dict[str, Any]:
    """Extras of so many containers in each other, the outer one included."""
    value: Any = [leaf] if depth > 1 else leaf
    for _ in range(depth - 2):
        value = [value]
    return {"a": value}


@given(EXTRAS)
def test_a_digest_has_the_bytes_of_the_wire(extras: dict[str, Any]) -> None:
    assert compute_extras_digest(extras) == digest_of(extras)


@given(EXTRAS)
def test_the_order_of_keys_does_not_matter(extras: dict[str, Any]) -> None:
    assert compute_extras_digest(dict(reversed(extras.items()))) == compute_extras_digest(extras)


@pytest.mark.parametrize("kind", [UserDict, MappingProxyType, dict])
def test_any_mapping_will_do_at_the_top(kind: Any) -> None:
    assert compute_extras_digest(kind({"b": [1], "a": None})) == digest_of({"a": None, "b": [1]})


def test_more_members_than_are_joined_at_once() -> None:
    extras = {"rows": [{"offset": at, "length": 1.5} for at in range(5000)], "end": True}
    assert compute_extras_digest(extras) == digest_of(extras)


@pytest.mark.parametrize("depth", [1, 2, 255, 256])
def test_nesting_up_to_the_limit_is_hashed(depth: int) -> None:
    assert compute_extras_digest(nested(depth)) == digest_of(nested(depth))


@pytest.mark.parametrize("depth", [257, 100_000])
def test_nesting_beyond_the_limit_is_refused(depth: int) -> None:
    with pytest.raises(ValueError, match="nested more than 256 deep"):
        compute_extras_digest(nested(depth))


def test_a_container_in_itself_is_refused() -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(ValueError, match="nested more than 256 deep"):
        compute_extras_digest({"a": ring})


def test_one_container_may_stand_in_two_places() -> None:
    shared = [1, {"b": 2}]
    assert compute_extras_digest({"x": shared, "y": shared}) == digest_of({"x": [1, {"b": 2}], "y": [1, {"b": 2}]})


@pytest.mark.parametrize(
    ("extras", "error", "named"),
    [
        ({"a": [1, (2,)]}, TypeError, r"extras['a'][1]: tuple is no type of JSON"),
        ({"z": [], "a": {"b": {1: 2}}}, TypeError, "extras['a']['b']: the key 1 is no exact str"),
        ({None: 2}, TypeError, "extras: the key None is no exact str"),
        ({"a": {}, "b": [[], [2**63]]}, ValueError, "extras['b'][1][0]: an integer of more than 64 bits"),
        ({"a": {"b": {}}, "c": float("nan")}, ValueError, "extras['c']: nan is not finite"),
        ({"a": "\ud800"}, ValueError, "extras['a']: 'utf-8' codec can't encode"),
        ({"a": {"\ud800": 1}}, ValueError, "extras['a']: 'utf-8' codec can't encode"),
        ({"a": bytes(1 << 20)}, TypeError, "extras['a']: bytes is no type of JSON"),
        ([], TypeError, "must be a mapping or None, not list"),
    ],
)
def test_what_is_refused_is_named(extras: Any, error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=re.escape(named)):
        compute_extras_digest(extras)


def test_copied_extras_share_no_container() -> None:
    given: dict[str, Any] = {"a": [[1], {"b": (1,)}], "c": {}, "d": "e"}
    copy = copied_extras(given)
    assert copy == given
    assert compute_extras_digest(copied_extras({"a": [[1]], "c": {}})) == compute_extras_digest({"a": [[1]], "c": {}})
    assert copy["a"][1]["b"] is given["a"][1]["b"]
    given["a"][0].append(2)
    given["a"][1]["f"] = 3
    given["a"].append(4)
    given["c"]["g"] = 5
    assert copy == {"a": [[1], {"b": (1,)}], "c": {}, "d": "e"}


def test_extras_are_copied_as_deep_as_they_are_hashed() -> None:
    deep: dict[str, Any] = {}
    for _ in range(MAX_EXTRAS_DEPTH - 1):
        deep = {"a": deep}
    assert copied_extras(deep) == deep
    assert compute_extras_digest(deep)
    for copy_or_hash in (copied_extras, compute_extras_digest):
        with pytest.raises(ValueError, match="nested more than 256 deep"):
            copy_or_hash({"a": deep})


def test_extras_that_hold_themselves_are_not_copied_for_ever() -> None:
    ring: list[Any] = []
    ring += [ring, ring, {"a": ring}]
    with pytest.raises(ValueError, match="nested more than 256 deep"):
        copied_extras({"a": ring})
