from __future__ import annotations

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gym_ray.evidence.observations import AgentObservationBundle, validated_bundle
from gym_ray.evidence.observations.plain_bundle import plain_bundle

SERVER = {"name": "policy_model", "type": "responses_api_models"}
ITEM = {"role": "user", "content": "q"}
odd = st.sampled_from(
    [
        None,
        True,
        0,
        3,
        -1.5,
        2.5,
        float("nan"),
        float("inf"),
        "",
        "text",
        "ü",
        "\ud800",
        "3.5",
        "root",
        "failed",
        "tool_call",
        "agent_invocation",
        [],
        {},
        (),
        [None],
        [ITEM],
        [{"type": "no such kind"}],
        [{"code": "resolution_unavailable"}],
        SERVER,
        SERVER | {"more": 1},
        SERVER | {"name": "ü"},
        SERVER | {"type": "responses_api_agents"},
        [{"model_call_id": "c"}],
        [{"response_id": "r"}],
    ]
)
references = st.fixed_dictionaries(
    {},
    optional={"model_call_id": st.just("c0") | odd, "model_ref": st.just(SERVER) | odd, "response_id": st.just("r0")},
)
invocations = st.fixed_dictionaries(
    {"kind": st.just("agent_invocation"), "invocation_id": st.sampled_from(["root", "sub", "other"])},
    optional={
        "parent_invocation_id": st.sampled_from([None, "root", "sub"]),
        "status": st.sampled_from(["completed", "unknown"]) | odd,
        "duration_ms": st.floats(0, 1e9) | odd,
        "error_type": st.just("ValueError") | odd,
        "spawned_by_tool_call_id": st.none() | odd,
        "model_calls": st.lists(references, max_size=3),
        "conversation": st.lists(st.just(ITEM), max_size=2) | odd,
        "more": odd,
    },
)
bundles = st.fixed_dictionaries(
    {"source": st.just("toy") | odd, "records": st.lists(invocations, max_size=3) | odd},
    optional={"gaps": st.just([]) | odd, "more": odd},
)


def as_the_model_says(value: Any) -> str | None:
    try:
        return repr(AgentObservationBundle.model_validate(value).plain())
    except ValueError:
        return None


@settings(max_examples=500)
@given(bundles | odd)
def test_a_plain_bundle_is_what_the_model_makes_of_it(value: Any) -> None:
    before = copy.deepcopy(value)
    expected, plain = as_the_model_says(value), plain_bundle(value)
    if plain is not None:
        assert repr(plain) == expected
    assert repr(value) == repr(before)


def test_what_agents_send_is_read_without_the_model(monkeypatch: Any) -> None:
    calls = [{"model_ref": SERVER, "response_id": "r0"}, {"model_call_id": "c1"}]
    root = {"kind": "agent_invocation", "invocation_id": "root", "status": "completed", "model_calls": calls}
    sub = {"kind": "agent_invocation", "invocation_id": "sub", "parent_invocation_id": "root", "conversation": [ITEM]}
    value = {"source": "toy", "records": [root, sub]}
    expected = as_the_model_says(value)
    monkeypatch.setattr(AgentObservationBundle, "model_validate", None)
    bundle = validated_bundle(value)
    assert repr(bundle) == expected
    reference = bundle["records"][0]["model_calls"][0]
    assert reference is not calls[0]
    assert reference["model_ref"] is not SERVER
    assert bundle["records"][1]["conversation"][0] is not ITEM
