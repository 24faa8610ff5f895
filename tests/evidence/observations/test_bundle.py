"""What a bundle must hold together: ids that come once, parents without a circle; and that nothing takes long."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gym_ray.evidence.observations import AgentInvocation, AgentObservationBundle, ModelCallRef, validated_bundle

IDS = st.integers(0, 7)


def bundle(parents: dict[int, int | None]) -> dict[str, Any]:
    records = [
        {
            "kind": "agent_invocation",
            "invocation_id": str(each),
            "parent_invocation_id": None if parent is None else str(parent),
        }
        for each, parent in parents.items()
    ]
    return {"source": "s", "records": records}


def has_circle(parents: dict[int, int | None]) -> bool:
    """Walk from every invocation for longer than any chain can be."""
    for start in parents:
        at: int | None = start
        for _ in range(len(parents) + 1):
            at = parents.get(at) if at is not None else None
        if at is not None:
            return True
    return False


@given(st.dictionaries(IDS, st.none() | IDS))
def test_parents_never_form_a_circle(parents: dict[int, int | None]) -> None:
    if has_circle(parents):
        with pytest.raises(ValidationError, match="its own ancestor"):
            validated_bundle(bundle(parents))
    else:
        assert len(validated_bundle(bundle(parents))["records"]) == len(parents)


def test_a_long_chain_of_parents_is_followed_once() -> None:
    count = 50_000  # followed again from each of them, this would take for ever, and by recursion it would not end well
    chain: dict[int, int | None] = {each: each + 1 for each in range(count)}
    assert len(validated_bundle(bundle(chain))["records"]) == count


def test_the_invocation_that_comes_twice_is_named() -> None:
    twice = bundle({1: None})
    twice["records"] *= 2
    with pytest.raises(ValidationError, match="invocation_id '1' comes twice"):
        validated_bundle(twice)


def test_a_record_needs_its_kind_and_may_have_no_other_field() -> None:
    for record, kind in (
        ({"invocation_id": "i"}, "union_tag_not_found"),
        ({"kind": "agent_invocation", "invocation_id": "i", "owner": "me"}, "extra_forbidden"),
    ):
        with pytest.raises(ValidationError) as refused:
            validated_bundle({"source": "s", "records": [record]})
        [error] = refused.value.errors()
        assert error["type"] == kind
        assert error["loc"][:2] == ("records", 0)


def test_a_bundle_is_checked_whenever_it_is_changed() -> None:
    built = AgentObservationBundle(source="s", records=[AgentInvocation(invocation_id="i")])
    with pytest.raises(ValidationError, match="comes twice"):
        built.records = [AgentInvocation(invocation_id="i"), AgentInvocation(invocation_id="i")]
    ref = ModelCallRef(model_call_id="a")
    with pytest.raises(ValidationError, match="a reference needs"):
        ref.model_call_id = None


@pytest.mark.parametrize("value", [None, [], "text", 5, {"source": "s", "records": {}}])
def test_what_is_no_bundle_is_refused_as_a_value_error(value: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - that it is one is what is tested
        validated_bundle(value)
