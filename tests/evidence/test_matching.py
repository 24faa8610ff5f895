from __future__ import annotations

import pytest

from gym_ray.evidence.matching import CallIdentity, CallLookup, match_calls, model_ref_of
from gym_ray.model_call_capture.call_views import build_view

P, J = ("responses_api_models", "policy"), ("responses_api_models", "judge")
CALLS = [
    CallIdentity("c0", "r0", P, None, 0),
    CallIdentity("c1", "dup", P, None, 1),
    CallIdentity("c2", "dup", P, None, 2),
    CallIdentity("twice", "r3", P, None, 3),
    CallIdentity("twice", "r3", J, None, 4),
    CallIdentity(None, "r5", J, None, 5),
    CallIdentity("c6", None, None, None, 6),
    CallIdentity("", "", J, None, 7),
]


def places(call_id: str | None = None, server: tuple[str, str] | None = None, response: str | None = None) -> list[int]:
    ref = {
        "model_call_id": call_id,
        "model_ref": server and {"type": server[0], "name": server[1]},
        "response_id": response,
    }
    return match_calls(ref, CallLookup(CALLS))


@pytest.mark.parametrize(
    ("call_id", "server", "response", "expected"),
    [
        ("c0", None, None, [0]),
        ("c0", P, None, [0]),
        ("c0", None, "r0", [0]),
        ("c0", P, "r0", [0]),
        ("c0", J, None, []),
        ("c0", None, "r9", []),
        ("c0", None, "", []),
        ("c6", P, None, []),
        ("c6", None, "r0", []),
        ("gone", None, None, []),
        (None, P, "r0", [0]),
        ("", P, "r0", [0]),
        (None, J, "r0", []),
        (None, P, "dup", [1, 2]),
        (None, J, "r5", [5]),
        ("twice", None, None, [3, 4]),
        ("twice", None, "r3", [3, 4]),
        ("twice", J, None, [4]),
        ("twice", J, "r3", [4]),
        ("twice", J, "r0", []),
        (None, None, "r0", []),
        (None, J, None, []),
        (None, J, "", []),
        ("", None, "", []),
    ],
)
def test_a_reference_names_the_calls_that_contradict_nothing_it_says(
    call_id: str | None, server: tuple[str, str] | None, response: str | None, expected: list[int]
) -> None:
    assert places(call_id, server, response) == expected


def test_calls_that_share_an_id_are_not_looked_through_for_each_reference() -> None:
    lookup = CallLookup([CallIdentity("c", "r", P, None, place) for place in range(50)])
    ref = {"model_call_id": "c", "model_ref": None, "response_id": "r"}
    first = match_calls(ref, lookup)
    assert first == list(range(50))
    assert match_calls(ref, lookup) is first


def test_the_identity_of_a_call_is_that_of_its_projection() -> None:
    exchange = {
        "model_call_id": "c0",
        "client_session_id": "s",
        "model_ref": {"type": P[0], "name": P[1]},
        "response": {"id": "r0"},
    }
    identity = CallIdentity.of(build_view(exchange, 4))
    assert identity == CallIdentity("c0", "r0", P, "s", 4)
    projected = {"model_call_id": "c0", "response_metadata": {"model_ref": exchange["model_ref"], "response_id": "r0"}}
    assert CallIdentity.of_projected(projected, 4) == CallIdentity("c0", "r0", P, None, 4)
    assert CallIdentity.of_projected({"model_call_id": "c0"}, 4) == CallIdentity("c0", None, None, None, 4)


def test_the_reference_of_a_call_carries_all_its_identifiers_and_matches_it() -> None:
    for place, one in enumerate(CALLS[:3]):
        ref = one.reference()
        assert ref == {
            "model_call_id": one.model_call_id,
            "model_ref": {"type": P[0], "name": P[1]},
            "response_id": one.response_id,
        }
        assert model_ref_of(ref) == one.model_ref
        assert match_calls(ref, CallLookup(CALLS)) == [place]


@pytest.mark.parametrize(("place", "name"), [(0, "c0"), (5, "r5"), (7, "unknown")])
def test_a_gap_names_a_call_by_its_id_else_by_its_answer(place: int, name: str) -> None:
    assert CALLS[place].name == name
