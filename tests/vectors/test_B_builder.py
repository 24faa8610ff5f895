"""Chains, notes and projections of ``B_builder.json``, from lists, from arrays and from packed records."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from gym_ray.token_id_capture.assembly import Ending, assemble
from gym_ray.token_id_capture.builder import BuildOutput, run_builder
from gym_ray.token_id_capture.building.calls import packed_record
from gym_ray.token_id_capture.building.projection import assert_prefix_contiguity, project_main_chain_response
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.records import TokenEntry, compute_digest
from gym_ray.token_id_capture.rows import training_rows

Records = Sequence[TokenEntry | PackedEntry]
_ERRORS = {"ValueError": ValueError}
_SECTIONS = {
    "scenario": "scenarios",
    "long_case": "long",
    "request_case": "per_request",
    "older_case": "older_prefix_merging",
    "response_case": "contiguity",
    "run_case": "run_builder",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    path: Path = metafunc.config.getoption("--vectors") / "B_builder.json"
    for argument in _SECTIONS.keys() & set(metafunc.fixturenames):
        cases = json.loads(path.read_text("utf-8"))[_SECTIONS[argument]]
        named = [pytest.param(case, id=case.get("name") or case["builder"]) for case in cases]
        metafunc.parametrize(argument, named)


@pytest.fixture(params=["lists", "arrays", "packed"])
def form(request: pytest.FixtureRequest) -> Callable[[Sequence[dict[str, Any]]], Records]:
    """How the records reach the builder."""
    convert = {"lists": _of_lists, "arrays": _of_arrays, "packed": _of_packed}[request.param]
    return lambda entries: [convert(entry) for entry in entries]


def _of_lists(entry: dict[str, Any]) -> TokenEntry:
    try:
        return TokenEntry.model_validate(copy.deepcopy(entry))
    except ValidationError:  # became inconsistent after load (B8)
        fitting = TokenEntry.model_validate(
            {**copy.deepcopy(entry), "generation_log_probs": [0.0] * len(entry["generation_token_ids"])}
        )
        fitting.generation_log_probs = entry["generation_log_probs"]
        return fitting


def _of_arrays(entry: dict[str, Any]) -> TokenEntry:
    columns = {
        "prompt_token_ids": np.array(entry["prompt_token_ids"], np.int64),
        "generation_token_ids": np.array(entry["generation_token_ids"], np.uint32),
        "generation_log_probs": np.array(entry["generation_log_probs"], np.float32),
    }
    if len(entry["generation_token_ids"]) != len(entry["generation_log_probs"]):
        return _of_lists(entry)
    return TokenEntry.model_validate({**copy.deepcopy(entry), **columns})


def _of_packed(entry: dict[str, Any]) -> PackedEntry:
    return packed_record(_of_lists(entry))


def shown(out: BuildOutput) -> list[dict[str, Any]]:
    return [
        {
            "chain_id": chain.chain_id,
            "root_prompt": chain.root_prompt,
            "links": [{"model_call_id": link.model_call_id, "interstitial": link.interstitial} for link in chain.links],
        }
        for chain in out.chains
    ]


def assert_notes(out: BuildOutput, expected: dict[str, Any]) -> None:
    """Compare every note of the vector; lists of ids in which B gives no order are compared as sets."""
    notes = dataclasses.asdict(out.notes)
    for name, value in expected.items():
        if isinstance(value, list) and name != "empty_generation_calls":
            assert sorted(notes[name]) == sorted(value), name
        else:
            assert notes[name] == value, name


# --- rules that change what a plain peer builds; each changes the peer's result into that of the rule --------------


def apply_rules(scenario: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return what the rules make of the peer's build, and the names of those that changed something."""
    build = copy.deepcopy(scenario["build"])
    changed = []
    for name, rule in _RULES.items():
        before = copy.deepcopy(build)
        rule(scenario, build)
        if build != before:
            changed.append(name)
    return build, changed


def _by_id(scenario: dict[str, Any]) -> dict[str, dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = {}
    for entry in scenario["entries"]:
        entries.setdefault(entry["model_call_id"], entry)
    return entries


def _forged(scenario: dict[str, Any], build: dict[str, Any]) -> None:
    """W26: a whole record that contradicts its own tokens is left out, and what names it as parent starts anew."""
    entries = _by_id(scenario)
    forged = {
        call_id
        for call_id, entry in entries.items()
        if not entry["prompt_is_delta"]
        and (
            (entry["digest"] and entry["digest"] != compute_digest(_own_tokens(entry)))
            or entry["cum_len"] not in (None, len(_own_tokens(entry)))
        )
    }
    if not forged:
        return
    orphans = {call_id for call_id, entry in entries.items() if entry["parent_call_id"] in forged} - forged
    notes = build["notes"]
    failures = notes["parent_link_failures"]
    for call_id in sorted(forged | orphans):
        code = "record_digest_mismatch" if call_id in forged else "parent_call_id_missing"
        failures[code] = failures.get(code, 0) + 1
    for mistaken in ("parent_digest_mismatch", "delta_chain_unreconstructable"):
        failures.pop(mistaken, None)
    notes["unresolved_parent_calls"] = sorted({*notes["unresolved_parent_calls"], *forged, *orphans})
    for lists in (notes["unresolved_retries"], build["quarantined"]):
        lists[:] = [call_id for call_id in lists if call_id not in forged]
    _cut(scenario, build, without=forged, starts=orphans)


def _lost_parent(scenario: dict[str, Any], build: dict[str, Any]) -> None:
    """W27: a link is recovered only through calls known to have generated nothing; else the call starts anew."""
    entries = _by_id(scenario)
    empty = set(build["notes"]["empty_generation_calls"])
    starts = {
        link["model_call_id"]
        for chain in build["chains"]
        for before, link in itertools.pairwise(chain["links"])
        if not _passes_only_empty_calls(link["model_call_id"], before["model_call_id"], entries, empty)
    }
    if not starts:
        return
    notes = build["notes"]
    failures = notes["parent_link_failures"]
    failures["parent_call_id_missing_recovered"] -= len(starts)
    failures["parent_call_id_missing"] = failures.get("parent_call_id_missing", 0) + len(starts)
    notes["parent_link_failures"] = {code: count for code, count in failures.items() if count}
    notes["unresolved_parent_calls"] = sorted({*notes["unresolved_parent_calls"], *starts})
    _cut(scenario, build, without=set(), starts=starts)


def _passes_only_empty_calls(call_id: str, ancestor: str, entries: dict[str, dict[str, Any]], empty: set[str]) -> bool:
    parent = entries[call_id]["parent_call_id"]
    while parent in empty and entries[parent]["parent_resolution"] != "unresolved":
        parent = entries[parent]["parent_call_id"]
    return parent == ancestor


def _live_roots(scenario: dict[str, Any], build: dict[str, Any]) -> None:
    """W28: a quarantined root does not count, and retries with equal tokens are one."""
    entries = _by_id(scenario)
    first_links = {chain["links"][0]["model_call_id"] for chain in build["chains"]}
    left_aside = [call_id for call_id in build["quarantined"] if entries[call_id]["parent_resolution"] != "resolved"]
    build["notes"]["roots"] -= sum(call_id not in first_links for call_id in left_aside)
    groups: dict[str, list[dict[str, Any]]] = {}
    for call_id in build["notes"]["unresolved_retries"]:
        entry = entries[call_id]
        groups.setdefault(json.dumps([entry["parent_call_id"], entry["prompt_token_ids"]]), []).append(entry)
    build["notes"]["unresolved_retries"] = [
        entry["model_call_id"]
        for group in groups.values()
        if any(entry["generation_token_ids"] != group[0]["generation_token_ids"] for entry in group)
        for entry in group
    ]


def _longest_branch(scenario: dict[str, Any], build: dict[str, Any]) -> None:
    """W40: of the branches of one root, the one with most generated tokens is the main one."""
    if build["notes"].get("terminal_chain") == "delivered" or not build["chains"]:
        return
    main = next(chain for chain in build["chains"] if chain["chain_id"] == "main")
    root = main["links"][0]["model_call_id"]
    branches = [chain for chain in build["chains"] if chain["links"][0]["model_call_id"] == root]
    longest = max(branches, key=lambda chain: _generated(scenario, chain))
    if _generated(scenario, longest) > _generated(scenario, main):
        _name(scenario, build, longest)


_RULES = {
    "forged_records_are_left_out": _forged,
    "lost_parents_are_not_tool_text": _lost_parent,
    "only_live_roots_count": _live_roots,
    "longest_branch_is_main": _longest_branch,
}


def _own_tokens(entry: dict[str, Any]) -> list[int]:
    return [*entry["prompt_token_ids"], *entry["generation_token_ids"]]


def _generated(scenario: dict[str, Any], chain: dict[str, Any]) -> int:
    entries = _by_id(scenario)
    return sum(len(entries[link["model_call_id"]]["generation_token_ids"]) for link in chain["links"])


def _cut(scenario: dict[str, Any], build: dict[str, Any], *, without: set[str], starts: set[str]) -> None:
    entries = _by_id(scenario)
    pieces: dict[tuple[str, ...], tuple[int, dict[str, Any]]] = {}
    for chain in build["chains"]:
        running, piece = list(chain["root_prompt"]), None
        for link in chain["links"]:
            entry = entries[link["model_call_id"]]
            running += link["interstitial"]
            prompt = list(running) if entry["prompt_is_delta"] else entry["prompt_token_ids"]
            running = [*prompt, *entry["generation_token_ids"]]
            if entry["model_call_id"] in without:
                piece = None
                continue
            if piece is None or entry["model_call_id"] in starts:
                piece = {"root_prompt": list(prompt), "links": [{**link, "interstitial": []}]}
            else:
                piece = {**piece, "links": [*piece["links"], link]}
            pieces[tuple(link["model_call_id"] for link in piece["links"])] = (len(prompt), piece)
    ends = [ids for ids in pieces if not any(other[: len(ids)] == ids and other != ids for other in pieces)]
    ends.sort(key=lambda ids: (pieces[ids][0], ids[-1]))
    build["chains"] = [pieces[ids][1] for ids in ends]
    notes = build["notes"]
    terminal = notes["terminal_call_id"]
    if terminal is not None and notes["terminal_chain"] == "delivered":
        path = next(ids for ids in pieces if ids[-1] == terminal) if terminal not in without else ()
        broken = set(path) & set(notes["unresolved_parent_calls"])
        notes["terminal_chain"] = "not_captured" if not path else "broken" if broken else "delivered"
    notes["roots"] = len({chain["links"][0]["model_call_id"] for chain in build["chains"]})
    dropped = sum(len(entries[call_id]["generation_token_ids"]) for call_id in without)
    notes["generated_tokens_captured"] -= dropped
    main = min(
        build["chains"],
        key=lambda chain: (
            entries[chain["links"][0]["model_call_id"]]["created_at"],
            chain["links"][0]["model_call_id"],
        ),
        default=None,
    )
    _name(scenario, build, main)


def _name(scenario: dict[str, Any], build: dict[str, Any], main: dict[str, Any] | None) -> None:
    others = itertools.count()
    for chain in build["chains"]:
        chain["chain_id"] = "main" if chain is main else f"branch-{next(others)}"
    notes = build["notes"]
    notes["chains"] = len(build["chains"])
    notes["generated_tokens_delivered"] = 0 if main is None else _generated(scenario, main)
    captured = notes["generated_tokens_captured"]
    notes["delivered_fraction"] = round(notes["generated_tokens_delivered"] / captured, 4) if captured else 0.0


def test_scenario(
    scenario: dict[str, Any], form: Callable[[Sequence[dict[str, Any]]], Records], departures: dict[str, Any]
) -> None:
    expected, changed = apply_rules(scenario)
    for rule in changed:
        assert departures[rule]["file"] == "B_builder.json"
    out = run_builder(form(scenario["entries"]), terminal_call_id=scenario["terminal_call_id"])
    assert shown(out) == expected["chains"]
    assert sorted(out.quarantined) == sorted(expected["quarantined"])
    assert_notes(out, expected["notes"])
    assert sorted(out.doubts) == sorted(out.notes.unresolved_parent_calls)
    _assert_projection(out, scenario, expected)


def _assert_projection(out: BuildOutput, scenario: dict[str, Any], expected: dict[str, Any]) -> None:
    projection = scenario["projection"]
    if not expected["chains"]:
        with pytest.raises(ValueError, match="no chain"):
            project_main_chain_response("r0", out, model="m")
        return
    response = project_main_chain_response("r0", out, model="m")
    if expected["chains"] == scenario["build"]["chains"]:
        assert response == projection["ok"]
    else:
        assert _carried(response) == _running(scenario, expected)
    assert_prefix_contiguity(response)
    assert json.loads(json.dumps(response)) == response  # plain Python numbers


def _carried(response: dict[str, Any]) -> list[tuple[list[int], list[int]]]:
    carriers = [item for item in response["output"] if "generation_token_ids" in item]
    return [(item["prompt_token_ids"], item["generation_token_ids"]) for item in carriers]


def _running(scenario: dict[str, Any], expected: dict[str, Any]) -> list[tuple[list[int], list[int]]]:
    main = next(chain for chain in expected["chains"] if chain["chain_id"] == "main")
    running, carried = list(main["root_prompt"]), []
    for link in main["links"]:
        running = running + link["interstitial"]
        generation = _by_id(scenario)[link["model_call_id"]]["generation_token_ids"]
        carried.append((running, generation))
        running = running + generation
    return carried


def test_order_of_records_does_not_matter(scenario: dict[str, Any]) -> None:
    if not scenario.get("order_independent"):
        assert len(_by_id(scenario)) < len(scenario["entries"])  # only first-wins among copies depends on order
        return
    records = [_of_packed(entry) for entry in scenario["entries"]]
    terminal = scenario["terminal_call_id"]
    expected = _state(run_builder(records, terminal_call_id=terminal))
    for seed in range(5):
        random.Random(seed).shuffle(records)
        assert _state(run_builder(records, terminal_call_id=terminal)) == expected


def _state(out: BuildOutput) -> tuple[object, ...]:
    notes = dataclasses.asdict(out.notes)
    notes = {name: sorted(value) if isinstance(value, list) else value for name, value in notes.items()}
    return shown(out), sorted(out.quarantined), notes, out.doubts


_ERROR_WORDS = {"no_chain": "no chain was built", "log_prob_mismatch": "generation_log_probs"}


def test_assemble(
    scenario: dict[str, Any], form: Callable[[Sequence[dict[str, Any]]], Records], departures: dict[str, Any]
) -> None:
    """The verdict on what was built, under the rules that change the build."""
    expected = scenario["assemble"]
    built = assemble("r0", form(scenario["entries"]), ending=Ending(**expected["inputs"]), model="m", project=True)
    build, changed = apply_rules(scenario)
    attribution = expected["metrics"]["terminal_attribution"]
    assert (built.response is None, built.mask_sample) == (bool(built.error), bool(built.reasons))
    if changed and attribution["call_id"] != scenario["terminal_call_id"]:  # the vector has no build for that end
        assert built.mask_sample or built.metrics["terminal_attribution"]["chain"] == "delivered"
        return
    if changed and expected["error_kind"] is None:
        assert all(departures[rule]["file"] == "B_builder.json" for rule in changed)
        expected = _verdict_of(build, scenario)
    if expected["error_kind"]:
        assert _ERROR_WORDS[expected["error_kind"]] in built.error
    assert (built.mask_sample, built.response is not None) == (expected["mask_sample"], expected["has_response"])
    assert built.metrics == expected["metrics"]
    for name in ("unresolved_retries", "unresolved_parent_calls"):
        if expected[name] is None:
            assert name not in built.as_build()
        else:
            assert sorted(built.as_build()[name]) == sorted(expected[name])


def _verdict_of(build: dict[str, Any], scenario: dict[str, Any]) -> dict[str, Any]:
    """Return the verdict of B120 on a build as a rule makes it."""
    notes, peer = build["notes"], scenario["assemble"]
    doubtful = bool(notes["unresolved_retries"] or notes["unresolved_parent_calls"])
    doubtful = doubtful or notes["roots"] != 1 or notes["chains"] != 1
    named = bool(peer["metrics"]["terminal_attribution"]["call_id"] or peer["inputs"]["declared_response_id"])
    attribution = {**peer["metrics"]["terminal_attribution"], "chain": notes["terminal_chain"]}
    delivered = notes["terminal_chain"] == "delivered"
    has_response = bool(build["chains"])
    metrics = {
        "n_calls": len(scenario["entries"]),
        "terminal_attribution": attribution if has_response else {**attribution, "chain": "error"},
    }
    if has_response:
        same_name = {
            name: notes[name]
            for name in (
                "chains",
                "roots",
                "delivered_fraction",
                "generated_tokens_captured",
                "generated_tokens_delivered",
                "parent_link_failures",
            )
        }
        counts = {name: len(notes[name]) for name in ("unresolved_parent_calls", "empty_generation_calls")}
        quarantined = len(build["quarantined"])
        share = round(quarantined / len(scenario["entries"]), 4)
        metrics |= same_name | counts | {"quarantined_calls": quarantined, "quarantined_fraction": share}
    return {
        "mask_sample": not delivered and (named or doubtful or not has_response),
        "has_response": has_response,
        "metrics": metrics,
        "unresolved_retries": notes["unresolved_retries"] if has_response else None,
        "unresolved_parent_calls": notes["unresolved_parent_calls"] if has_response else None,
        "error_kind": None if has_response else "no_chain",
    }


def test_a_row_holds_what_the_peer_projects(scenario: dict[str, Any]) -> None:
    out = run_builder(
        [_of_packed(entry) for entry in scenario["entries"]], terminal_call_id=scenario["terminal_call_id"]
    )
    if any(len(e["generation_token_ids"]) != len(e["generation_log_probs"]) for e in scenario["entries"]):
        with pytest.raises(ValueError, match="'c1': generation_token_ids has 2 tokens, generation_log_probs 1"):
            training_rows("r0", out)
        return
    rows = training_rows("r0", out)
    assert len(rows) == min(1, len(out.chains))
    for row in rows:
        carriers = [item for item in project_main_chain_response("r0", out)["output"] if "generation_token_ids" in item]
        last = carriers[-1]
        assert row.token_ids.tolist() == last["prompt_token_ids"] + last["generation_token_ids"]
        assert row.policy_log_probs.tolist() == [p for item in carriers for p in item["generation_log_probs"]]
        mask = np.zeros(row.token_ids.size, bool)
        for item in carriers:
            start = len(item["prompt_token_ids"])
            mask[start : start + len(item["generation_token_ids"])] = True
        assert row.loss_mask().tolist() == mask.tolist()


def test_long(long_case: dict[str, Any]) -> None:
    prompt, entries = [1], []
    for turn in range(long_case["turns"]):
        generation = [10000 + turn]
        entries.append(
            TokenEntry(
                rollout_id="r0",
                model_call_id=f"call-{turn:04}",
                prompt_token_ids=prompt,
                generation_token_ids=generation,
                generation_log_probs=[-0.5],
                parent_call_id=f"call-{turn - 1:04}" if turn else None,
                parent_resolution="resolved" if turn else "root",
                digest=compute_digest([*prompt, *generation]),
                cum_len=len(prompt) + 1,
            )
        )
        prompt = [*prompt, *generation, 20000 + turn]
    out = run_builder(entries)
    expected = long_case["build"]
    assert len(out.chains) == expected["chains"]
    links = out.chains[0].links
    assert len(links) == expected["links"]
    assert out.notes.delivered_fraction == expected["delivered_fraction"]
    assert out.quarantined == expected["quarantined"]
    assert links[-1].prompt_len == expected["last_prompt_len"]


def test_per_request(request_case: dict[str, Any], form: Callable[[Sequence[dict[str, Any]]], Records]) -> None:
    out = run_builder(form(request_case["entries"]), builder="per_request")
    assert shown(out) == request_case["build"]["chains"]
    assert out.quarantined == request_case["build"]["quarantined"]
    assert_notes(out, request_case["build"]["notes"])
    with pytest.raises(_ERRORS[request_case["single_response_projection"]["error"]["class"]]):
        project_main_chain_response("r0", out, model="m")


def test_older_prefix_merging(older_case: dict[str, Any], departures: dict[str, Any]) -> None:
    """The older peer guessed links by prefix; where it did, nothing may be guessed any more (B105)."""
    rule = departures["links_are_never_guessed"]
    out = run_builder([_of_packed(entry) for entry in older_case["entries"]])
    if older_case["name"] not in rule["ids"]:
        assert shown(out) == older_case["build"]["chains"]
        assert_notes(out, older_case["build"]["notes"])
        return
    expected = rule["expected"]
    assert [[link.model_call_id for link in chain.links] for chain in out.chains] == expected["chains"]
    assert out.quarantined == expected["quarantined"]
    assert_notes(out, expected["notes"])


def test_contiguity(response_case: dict[str, Any]) -> None:
    if response_case["contiguous"]:
        assert_prefix_contiguity(response_case["response"])
    else:
        with pytest.raises(AssertionError, match="output item"):
            assert_prefix_contiguity(response_case["response"])


def test_run_builder(run_case: dict[str, Any], departures: dict[str, Any]) -> None:
    if run_case["builder"] in departures["one_row_a_call_is_offered"]["ids"]:
        assert run_builder([], builder=run_case["builder"]).notes.builder == run_case["builder"]
        return
    with pytest.raises(_ERRORS[run_case["error"]["class"]], match="per_request, prefix_merging"):
        run_builder([], builder=run_case["builder"])
