"""Look-ups of parents (B41-B51), from records as lists and as arrays, in files and in memory.

A query whose answer a rule changes is found by what the rule says of its scenario, and held against the rule's answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gym_ray.token_id_capture.lineage import (
    FileLineageResolver,
    InMemoryLineageResolver,
    LineageMatch,
    LineageResolution,
    LineageResolver,
    stamp_continuation,
)
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.records import ParentResolutionStatus, TokenEntry, stamp_lineage
from gym_ray.token_id_capture.resolution.rollout_lineage import RolloutLineage
from gym_ray.token_id_capture.store import TokenCaptureStore
from gym_ray.token_id_capture.token_arrays import digest_packed, pack_token_ids

ROLLOUT = "r0"
MESSAGES = {
    "materialised_digest_mismatch": "its record claims",
    "delta_parent_not_indexed": "is missing",
    "lineage_conflict": "two records that differ",
    "resolved_without_match": "needs its match",
    "match_without_resolved": "has no parent",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    path = metafunc.config.getoption("--vectors") / "B_lineage.json"
    document = json.loads(path.read_text("utf-8"))
    if "scenario" in metafunc.fixturenames:
        metafunc.parametrize("scenario", document["scenarios"], ids=lambda scenario: scenario["name"])
    if "index_case" in metafunc.fixturenames:
        metafunc.parametrize("index_case", document["index"], ids=lambda case: case["name"])


def authored(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [item for item in items if item.get("role") == "assistant" or item.get("type") == "function_call"]


def resolved(entry: dict[str, Any]) -> dict[str, Any]:
    tokens = [*entry["prompt_token_ids"], *entry["generation_token_ids"]]
    return {
        "status": "resolved",
        "reason": "",
        "parent_call_id": entry["model_call_id"],
        "parent_tokens": tokens,
        "parent_digest": digest_packed(pack_token_ids(tokens)),
    }


UNRESOLVED = {"status": "unresolved", "parent_call_id": None, "parent_tokens": None, "parent_digest": None}


def answer_is_next(entry: dict[str, Any], query: dict[str, Any]) -> bool:
    behind = query["request_items"][entry["continuation_context_len"] :]
    return bool(authored([item for item in behind if item.get("type") != "reasoning"][:1]))


def seeded_root(rule: dict[str, Any], scenario: dict[str, Any], query: dict[str, Any]) -> dict[str, Any] | None:
    if scenario["entries"] or not authored(query["request_items"]):
        return None
    return {**UNRESOLVED, **rule["expected"]}


def gap(rule: dict[str, Any], scenario: dict[str, Any], query: dict[str, Any]) -> dict[str, Any] | None:
    named = [entry for entry in scenario["entries"] if entry["model_call_id"] == query.get("parent_call_id")]
    if named and not answer_is_next(named[0], query):
        return {**UNRESOLVED, **rule["expected"]}
    left = [entry for entry in scenario["entries"] if answer_is_next(entry, query)]
    return resolved(left[0]) if query.get("reason") == "ambiguous" and len(left) == 1 else None


def thinking(rule: dict[str, Any], scenario: dict[str, Any], query: dict[str, Any]) -> dict[str, Any] | None:
    blocks = [b for item in query["request_items"] if isinstance(item.get("content"), list) for b in item["content"]]
    if not any(block.get("type") in rule["block_types"] for block in blocks):
        return None
    return resolved(scenario["entries"][0])


RULES: dict[str, Callable[..., dict[str, Any] | None]] = {
    "examples_before_the_first_call_are_a_root": seeded_root,
    "nothing_stands_between_context_and_answer": gap,
    "echoed_thinking_is_not_compared": thinking,
}


def expectation(scenario: dict[str, Any], query: dict[str, Any], departures: dict[str, Any]) -> tuple[Any, str]:
    """What must come out, and the rule that says so."""
    for name, rule in RULES.items():
        changed = rule(departures[name], scenario, query)
        if changed is not None:
            return changed, name
    return {key: value for key, value in query.items() if key != "request_items"}, ""


async def look_up(resolver: LineageResolver, query: dict[str, Any]) -> dict[str, Any]:
    resolution = await resolver.resolve(ROLLOUT, query["request_items"])
    match = resolution.match
    return {
        "status": str(resolution.status),
        "reason": resolution.reason,
        "parent_call_id": match and match.model_call_id,
        "parent_tokens": match and list(match.cumulative_token_ids),
        "parent_digest": match and match.digest,
    }


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TokenCaptureStore]:
    opened = TokenCaptureStore(tmp_path)
    yield opened
    opened.shut_down()


@pytest.mark.parametrize("form", ["file", "lists", "arrays"])
async def test_scenario(
    scenario: dict[str, Any], form: str, store: TokenCaptureStore, departures: dict[str, Any]
) -> None:
    resolver: FileLineageResolver | InMemoryLineageResolver
    if form == "file":
        resolver = FileLineageResolver(store)
    else:
        resolver = InMemoryLineageResolver(has_evidence=store.has_evidence)
    refused = ""
    for record in scenario["entries"]:
        entry = TokenEntry.model_validate(record)
        await store.put(entry)
        if isinstance(resolver, InMemoryLineageResolver):
            try:
                resolver.observe(PackedEntry.of_entry(entry) if form == "arrays" else entry)
            except ValueError as error:
                refused = str(error)
    for query in scenario["queries"]:
        expected, _ = expectation(scenario, query, departures)
        if "error" in expected:
            assert expected["error"]["class"] == "ValueError"
            if refused:  # the tokens below a delta are missed when its record comes, not when it is asked for
                assert expected["error"]["kind"] == "delta_parent_not_indexed"
                assert "its parent 'gone' are not known" in refused
                continue
            with pytest.raises(ValueError, match=MESSAGES[expected["error"]["kind"]]):
                await look_up(resolver, query)
        else:
            assert await look_up(resolver, query) == expected
    await resolver.close()


def test_every_rule_changes_something(document: dict[str, Any], departures: dict[str, Any]) -> None:
    applied = {expectation(s, query, departures)[1] for s in document["scenarios"] for query in s["queries"]}
    assert applied - {""} == RULES.keys()


async def test_answers_without_words_are_told_apart_by_their_number(
    document: dict[str, Any], departures: dict[str, Any]
) -> None:
    rule = departures["answers_without_words_are_counted"]
    (scenario,) = (scenario for scenario in document["scenarios"] if scenario["name"] == rule["ids"][0])
    query = scenario["queries"][-1]
    resolver = InMemoryLineageResolver()
    for record in scenario["entries"]:
        entry = TokenEntry.model_validate(record)
        stamped = stamp_continuation(entry, query["request_items"][: entry.continuation_context_len])
        assert {**record, "gym_ray": stamped.gym_ray} == stamped.model_dump(mode="json")  # type: ignore[attr-defined]
        resolver.observe(stamped)
    assert (await look_up(resolver, query))["parent_call_id"] == rule["expected"]["parent_call_id"]


def entry(model_call_id: str = "a", rollout_id: str = ROLLOUT, ids: Sequence[int] = (1, 2)) -> TokenEntry:
    made = TokenEntry(
        rollout_id=rollout_id,
        model_call_id=model_call_id,
        prompt_token_ids=list(ids),
        generation_token_ids=[3],
        generation_log_probs=[-0.5],
        output_items=[{"role": "assistant", "content": "A"}],
    )
    stamp_lineage(made, None, ParentResolutionStatus.ROOT)
    return stamp_continuation(made, [{"role": "user", "content": "q"}])


def same_entry_twice_is_one() -> object:
    lineage = RolloutLineage()
    for _ in range(2):
        lineage.add(PackedEntry.of_entry(entry()))
    return len(lineage)


def same_id_other_tokens() -> object:
    resolver = InMemoryLineageResolver()
    resolver.observe(entry())
    return resolver.observe(entry(ids=(1, 9)))


def resolved_needs_match() -> object:
    return LineageResolution(ParentResolutionStatus.RESOLVED)


def root_with_match() -> object:
    match = LineageMatch("a", pack_token_ids([1]), digest_packed(pack_token_ids([1])))
    return LineageResolution(ParentResolutionStatus.ROOT, match)


def evicts_oldest_rollout() -> object:
    resolver = InMemoryLineageResolver(max_rollouts=2)
    for name in "xyz":
        resolver.observe(entry(rollout_id=name))
    return resolver.rollouts


INDEX: dict[str, Callable[[], object]] = {
    made.__name__: made
    for made in (
        same_entry_twice_is_one,
        same_id_other_tokens,
        resolved_needs_match,
        root_with_match,
        evicts_oldest_rollout,
    )
}


def test_index(index_case: dict[str, Any]) -> None:
    result, make = index_case["result"], INDEX[index_case["name"]]
    if "error" in result:
        assert result["error"]["class"] == "ValueError"
        with pytest.raises(ValueError, match=MESSAGES[result["error"]["kind"]]):
            make()
    else:
        assert make() == result["ok"]
