from __future__ import annotations

import copy
import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gym_ray.evidence.exact_join import exact_join
from gym_ray.evidence.matching import CallIdentity

P, J = ("responses_api_models", "policy"), ("responses_api_models", "judge")
UNMATCHED, AMBIGUOUS = "model_call_reference_unmatched", "model_call_reference_ambiguous"
CONFLICT, UNOWNED = "model_call_reference_conflict", "model_call_ownership_unavailable"


def ref(call_id: str | None = None, server: tuple[str, str] | None = None, response: str | None = None) -> Any:
    model_ref = None if server is None else {"type": server[0], "name": server[1]}
    return {"model_call_id": call_id, "model_ref": model_ref, "response_id": response}


def call(
    call_id: str | None,
    server: tuple[str, str] | None = P,
    response: str | None = None,
    session: str | None = None,
    index: int = 0,
) -> CallIdentity:
    return CallIdentity(call_id, response, server, session, index)


def invocation(name: str, *refs: Any) -> dict[str, Any]:
    return {
        "kind": "agent_invocation",
        "invocation_id": name,
        "parent_invocation_id": None,
        "spawned_by_tool_call_id": None,
        "status": "unknown",
        "duration_ms": None,
        "error_type": None,
        "model_calls": list(refs),
        "conversation": [],
    }


def compaction(name: str, *refs: Any, before: Any = None, after: Any = None) -> dict[str, Any]:
    return {
        "kind": "context_compaction",
        "invocation_id": name,
        "before_model_call": before,
        "model_calls": list(refs),
        "after_model_call": after,
    }


def bundle(*records: Any, gaps: tuple[Any, ...] = ()) -> dict[str, Any]:
    return {"source": "toy", "records": list(records), "gaps": list(gaps)}


def gap(code: str, invocation_id: str | None = None, detail: str | None = None) -> dict[str, Any]:
    return {"code": code, "invocation_id": invocation_id, "detail": detail}


# A second writing of D75-D80 that looks at every call for every reference.


def agreeing(reference: dict[str, Any], calls: list[CallIdentity]) -> list[int]:
    server = reference["model_ref"] and (reference["model_ref"]["type"], reference["model_ref"]["name"])
    response = reference["response_id"]
    found = []
    for place, one in enumerate(calls):
        if reference["model_call_id"]:
            same = one.model_call_id == reference["model_call_id"]
            same = same and (server is None or one.model_ref == server)
            same = same and (response is None or one.response_id == response)
        else:
            same = one.model_ref == server and one.response_id == response
        if same:
            found.append(place)
    return found


def stands_for(reference: dict[str, Any], one: CallIdentity) -> bool:
    whole = one.reference()
    if reference["model_call_id"]:
        return all(value is None or value == whole[key] for key, value in reference.items())
    return all(reference[key] == whole[key] for key in ("model_ref", "response_id"))


def references_of(record: dict[str, Any], calls: list[CallIdentity]) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = record["model_calls"]
    claimed: list[dict[str, Any]] = []
    for one in calls:
        if not one.client_session_id or not one.model_call_id or one.client_session_id != record["invocation_id"]:
            continue
        if not any(stands_for(reference, one) for reference in sent) and one.reference() not in claimed:
            claimed.append(one.reference())
    return sent + claimed


class SlowJoin:
    """Looks at every call for every reference."""

    def __init__(self, given_bundle: dict[str, Any], calls: list[CallIdentity]) -> None:
        self.calls = calls
        self.owners: list[str | None] = [None] * len(calls)
        self.gaps: list[Any] = []
        self.bundle: dict[str, Any] = copy.deepcopy(given_bundle)
        for record in self.bundle["records"]:
            if record["kind"] == "agent_invocation":
                owner = record["invocation_id"]
                record["model_calls"] = [self.claim(one, owner) for one in references_of(record, calls)]
        for record in self.bundle["records"]:
            if record["kind"] == "context_compaction":
                self.compaction(record)
        for one, who in zip(calls, self.owners, strict=True):
            if who is None:
                name = one.model_call_id or one.response_id or "unknown"
                self.gaps.append(gap(UNOWNED, None, f"capture:{name}:call_index={one.call_index}"))
        every = [one for one in self.bundle["gaps"] if not stale(one)] + self.gaps
        self.bundle["gaps"] = [one for place, one in enumerate(every) if one not in every[:place]]

    def claim(self, reference: Any, owner: str) -> Any:
        places = agreeing(reference, self.calls)
        if len(places) != 1:
            self.gaps.append(gap(AMBIGUOUS if places else UNMATCHED, owner, named(reference)))
            return reference
        one = self.calls[places[0]]
        if self.owners[places[0]] is not None:
            self.gaps.append(gap(CONFLICT, owner, one.model_call_id or one.response_id))
            return reference
        self.owners[places[0]] = owner
        return one.reference()

    def compaction(self, record: dict[str, Any]) -> None:
        owner = record["invocation_id"]
        record["model_calls"] = [self.seen(one, owner, "model_calls:", (owner,)) for one in record["model_calls"]]
        for edge in ("before_model_call", "after_model_call"):
            if record[edge] is not None:
                record[edge] = self.seen(record[edge], owner, f"{edge}:", (owner, None))

    def seen(self, reference: Any, owner: str, prefix: str, may_be_of: tuple[str | None, ...]) -> Any:
        places = agreeing(reference, self.calls)
        if len(places) == 1 and self.owners[places[0]] in may_be_of:
            return self.calls[places[0]].reference()
        if len(places) == 1:
            code = UNOWNED if self.owners[places[0]] is None else CONFLICT
        else:
            code = AMBIGUOUS if places else UNMATCHED
        self.gaps.append(gap(code, owner, prefix + named(reference)))
        return reference


def named(reference: Any) -> str:
    name: str = reference["model_call_id"] or reference["response_id"]
    return name


def stale(one: dict[str, Any]) -> bool:
    if one["code"] in (UNMATCHED, AMBIGUOUS, CONFLICT):
        return True
    start = (one["detail"] or "").partition(":")[0:2]
    of_calls = start == ("capture", ":") and one["invocation_id"] is None
    return one["code"] == UNOWNED and (start == ("model_calls", ":") or of_calls)


NAMES = ["a", "b", "c", ""]
call_ids = st.sampled_from(["c0", "c1", "c2", "", None])
servers = st.sampled_from([P, J, None])
response_ids = st.sampled_from(["r0", "r1", "r2", "", None])


def allowed(reference: dict[str, Any]) -> bool:
    return bool(reference["model_call_id"] or (reference["model_ref"] and reference["response_id"]))


references = st.builds(ref, call_ids, servers, response_ids).filter(allowed)


@st.composite
def captures(draw: st.DrawFn) -> list[CallIdentity]:
    sessions = st.sampled_from([*NAMES, "elsewhere", None])
    drawn = draw(st.lists(st.tuples(call_ids, servers, response_ids, sessions), max_size=7))
    return [call(*fields, index=place) for place, fields in enumerate(drawn)]


@st.composite
def bundles(draw: st.DrawFn) -> dict[str, Any]:
    some = st.lists(references, max_size=4)
    edges = st.one_of(st.none(), references)
    records = [invocation(name, *draw(some)) for name in draw(st.lists(st.sampled_from(NAMES), unique=True))]
    records += [
        compaction(draw(st.sampled_from(NAMES)), *draw(some), before=draw(edges), after=draw(edges))
        for _ in range(draw(st.integers(0, 2)))
    ]
    records.append({"kind": "tool_call", "invocation_id": "a", "tool_call_id": "t"})
    details = st.sampled_from(["x", "capture:x", "model_calls:x", None])
    codes = st.sampled_from([UNMATCHED, AMBIGUOUS, CONFLICT, UNOWNED, "custom"])
    gaps = draw(st.lists(st.builds(gap, codes, st.sampled_from(["a", None]), details), max_size=4))
    return bundle(*draw(st.permutations(records)), gaps=tuple(gaps))


def contenders(given_bundle: dict[str, Any], calls: list[CallIdentity]) -> list[set[str]]:
    """For each call, the invocations with a reference that matches it and no other call."""
    found: list[set[str]] = [set() for _ in calls]
    for record in given_bundle["records"]:
        if record["kind"] == "agent_invocation":
            for reference in references_of(record, calls):
                places = agreeing(reference, calls)
                if len(places) == 1:
                    found[places[0]].add(record["invocation_id"])
    return found


@given(bundles(), captures())
def test_it_finds_what_comparing_everything_finds(given_bundle: dict[str, Any], calls: list[CallIdentity]) -> None:
    before = copy.deepcopy(given_bundle)
    joined = exact_join(given_bundle, calls)
    slow = SlowJoin(given_bundle, calls)
    assert joined.bundle == slow.bundle
    assert list(joined.owners) == slow.owners
    assert given_bundle == before


@given(bundles(), captures())
def test_joining_twice_is_joining_once(given_bundle: dict[str, Any], calls: list[CallIdentity]) -> None:
    once = exact_join(given_bundle, calls)
    assert exact_join(once.bundle, calls) == once


@given(bundles(), captures())
def test_a_call_is_owned_exactly_when_a_reference_matches_nothing_else(
    given_bundle: dict[str, Any], calls: list[CallIdentity]
) -> None:
    joined = exact_join(given_bundle, calls)
    for who, rivals in zip(joined.owners, contenders(given_bundle, calls), strict=True):
        assert (who is None) == (not rivals)
        assert who is None or who in rivals


@given(bundles(), captures())
def test_a_contested_call_has_one_owner_and_its_rivals_a_conflict(
    given_bundle: dict[str, Any], calls: list[CallIdentity]
) -> None:
    joined = exact_join(given_bundle, calls)
    for one, who, rivals in zip(calls, joined.owners, contenders(given_bundle, calls), strict=True):
        for loser in rivals - {who}:
            assert gap(CONFLICT, loser, one.model_call_id or one.response_id) in joined.bundle["gaps"]


@given(bundles(), captures(), st.randoms(use_true_random=False))
def test_the_order_of_captured_calls_decides_nothing(
    given_bundle: dict[str, Any], calls: list[CallIdentity], chance: random.Random
) -> None:
    shuffled = list(calls)
    chance.shuffle(shuffled)
    owners = dict(zip(calls, exact_join(given_bundle, calls).owners, strict=True))
    assert dict(zip(shuffled, exact_join(given_bundle, shuffled).owners, strict=True)) == owners


@given(bundles(), captures(), st.randoms(use_true_random=False))
def test_the_order_of_records_decides_only_contested_calls(
    given_bundle: dict[str, Any], calls: list[CallIdentity], chance: random.Random
) -> None:
    shuffled = copy.deepcopy(given_bundle)
    chance.shuffle(shuffled["records"])
    for record in shuffled["records"]:
        if "model_calls" in record:
            chance.shuffle(record["model_calls"])
    first, second = exact_join(given_bundle, calls), exact_join(shuffled, calls)
    for who, other, rivals in zip(first.owners, second.owners, contenders(given_bundle, calls), strict=True):
        if len(rivals) < 2:
            assert who == other
        else:
            assert {who, other} <= rivals


def test_the_first_of_two_invocations_owns_a_call_and_the_other_has_a_conflict() -> None:
    calls = [call("c0", P, "r0"), call("c1", P, "r1", index=1)]
    joined = exact_join(bundle(invocation("a", ref("c0")), invocation("b", ref(None, P, "r0"), ref("zz"))), calls)
    assert joined.owners == ("a", None)
    assert joined.bundle["gaps"] == [
        gap(CONFLICT, "b", "c0"),
        gap(UNMATCHED, "b", "zz"),
        gap(UNOWNED, None, "capture:c1:call_index=1"),
    ]
    assert joined.bundle["records"][1]["model_calls"] == [ref(None, P, "r0"), ref("zz")]


def test_a_compaction_gap_of_an_earlier_join_goes_when_its_call_finds_an_owner() -> None:
    calls = [call("c0", P, "r0")]
    records = (invocation("a"), compaction("a", ref("c0")))
    before = exact_join(bundle(*records), calls)
    assert gap(UNOWNED, "a", "model_calls:c0") in before.bundle["gaps"]
    repaired = {**before.bundle, "records": [invocation("a", ref("c0")), before.bundle["records"][1]]}
    assert exact_join(repaired, calls).bundle["gaps"] == []


def test_an_invocation_may_have_an_empty_name_and_own_calls() -> None:
    joined = exact_join(bundle(invocation("", ref("c0")), compaction("", ref("c0"))), [call("c0")])
    assert joined.owners == ("",)
    assert joined.bundle["gaps"] == []


def test_claims_of_a_session_do_not_hide_one_another() -> None:
    bare, whole = call("c0", None, None, "a"), call("c0", P, "r0", "a", index=1)
    for calls in ([bare, whole], [whole, bare]):
        owners = exact_join(bundle(invocation("a")), calls).owners
        assert dict(zip(calls, owners, strict=True)) == {bare: None, whole: "a"}


def test_payloads_are_shared_and_not_copied() -> None:
    given_bundle = bundle(invocation("a", ref("c0")))
    joined = exact_join(given_bundle, [call("c0")])
    assert joined.bundle["records"][0]["conversation"] is given_bundle["records"][0]["conversation"]


def test_an_owner_with_an_empty_name_keeps_its_call() -> None:
    joined = exact_join(bundle(invocation("", ref("c0")), invocation("b", ref("c0"))), [call("c0")])
    assert joined.owners == ("",)
    assert joined.bundle["gaps"] == [gap(CONFLICT, "b", "c0")]


def test_a_pair_with_an_empty_call_id_stands_for_a_claimed_call() -> None:
    joined = exact_join(bundle(invocation("a", ref("", P, "r0"))), [call("c0", P, "r0", "a")])
    assert joined.bundle["records"][0]["model_calls"] == [ref("c0", P, "r0")]
    assert joined.bundle["gaps"] == []
