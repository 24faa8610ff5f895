"""C_ledger.json: lines, manifests, look-ups and admissions of the ledger in files, and of the one in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gym_ray.correlation import check_rollout_id
from gym_ray.token_id_capture import staging
from gym_ray.token_id_capture.fingerprint import conversation_digest
from gym_ray.token_id_capture.lineage import LineageResolution
from gym_ray.token_id_capture.staging import CaptureLedgerCommit
from gym_ray.token_id_capture.staging.ledger.admission import admit
from gym_ray.token_id_capture.staging.ledger.file_ledger import FileCaptureLedger
from gym_ray.token_id_capture.staging.ledger.memory_ledger import MemoryCaptureLedger
from gym_ray.token_id_capture.staging.ledger.protocol import CaptureLedger

ROLLOUT = "r1"
FILE = f"{ROLLOUT}.lineage.jsonl"


def shown(resolution: LineageResolution) -> dict[str, Any]:
    match = resolution.match
    return {
        "status": str(resolution.status.value),
        "reason": resolution.reason,
        "match": match
        and {
            "model_call_id": match.model_call_id,
            "cumulative_token_ids": list(match.cumulative_token_ids),
            "digest": match.digest,
            "staging_chain": list(match.staging_chain or ()),
            "prev_len": match.prev_len,
            "chain_hash": match.chain_hash,
        },
    }


async def perform(ledger: CaptureLedger, directory: Path, op: str, arg: Any) -> Any:
    if op == "record":
        await ledger.record(CaptureLedgerCommit(**arg))
    elif op == "fail":
        await ledger.record_failure(ROLLOUT, *arg)
    elif op == "raw":
        with (directory / FILE).open("a") as file:
            file.write(json.dumps(arg) + "\n")
    elif op == "has_rows":
        return await ledger.has_rows(ROLLOUT)
    elif op == "resolve":
        return shown(await ledger.resolve(ROLLOUT, arg))
    elif op == "admit":
        admission = await admit(ledger, rollout_id=ROLLOUT, model_call_id="new", items=arg)
        chain = [] if admission is None else list(admission.staging_chain)
        return {"admission": admission and admission.model_dump(mode="json"), "parent_staging_chain": chain}
    else:
        pytest.fail(f"the vectors ask for an unknown {op}")
    return "ok"


async def outcomes(ledger: CaptureLedger, directory: Path, ops: list[dict[str, Any]]) -> list[Any]:
    results: list[Any] = []
    for step in ops:
        try:
            results.append(await perform(ledger, directory, step["op"], step["arg"]))
        except ValueError:
            results.append({"error": "ValueError"})
    return results


def identity(arg: dict[str, Any]) -> tuple[Any, ...]:
    record = arg["record"]
    items = json.dumps([arg["request_items"], arg["response_items"]], sort_keys=True)
    return record["cumulative_hash"], record["chain_hash"], record["cum_len"], items


def cannot_be_hashed(arg: dict[str, Any]) -> bool:
    try:
        conversation_digest([*arg["request_items"], *arg["response_items"]])
    except ValueError:
        return True
    return False


def twins_of(case: dict[str, Any]) -> list[str]:
    """Return the calls that the rule of identical siblings is about."""
    recorded = [step["arg"] for step in case["ops"] if step["op"] == "record"]
    of: dict[tuple[Any, ...], list[str]] = {}
    for arg in recorded:
        of.setdefault(identity(arg), []).append(arg["record"]["model_call_id"])
    return next((sorted(set(ids)) for ids in of.values() if len(set(ids)) > 1), [])


def same(found: Any, expected: Any, step: dict[str, Any], twins: list[str], departures: dict[str, Any]) -> bool:
    """Whether an outcome is the vector's, or the one that a rule puts in its place."""
    if step["op"] == "record" and expected == {"error": "ValueError"} and cannot_be_hashed(step["arg"]):
        return bool(found == departures["what_cannot_be_hashed_is_recorded"]["expected"]["result"])
    if twins and step["op"] == "resolve" and expected["status"] == "unresolved":
        assert departures["identical_siblings_are_one_parent"]["expected"]["parent"].startswith("the smallest")
        return bool(found["match"]["model_call_id"] == twins[0])
    if twins and step["op"] == "admit" and expected["admission"] is None:
        return bool(found["admission"]["parent_call_id"] == twins[0])
    return bool(found == expected)


def check(case: dict[str, Any], found: list[Any], departures: dict[str, Any]) -> bool:
    """Check all outcomes; return whether the manifest must be the vector's, too."""
    twins = twins_of(case)
    for outcome, expected, step in zip(found, case["results"], case["ops"], strict=True):
        assert same(outcome, expected, step, twins, departures), (step["op"], outcome, expected)
    return found == case["results"]


async def test_vector_in_files(case: dict[str, Any], tmp_path: Path, departures: dict[str, Any]) -> None:
    ledger = FileCaptureLedger(tmp_path)
    try:
        is_unchanged = check(case, await outcomes(ledger, tmp_path, case["ops"]), departures)
        manifest = await ledger.manifest(ROLLOUT)
    finally:
        await ledger.close()
    if not is_unchanged:
        return
    assert manifest.model_dump(mode="json") == case["manifest"]
    file = tmp_path / FILE
    assert (file.read_text().splitlines() if file.exists() else None) == case["file_lines"]


async def test_vector_in_memory(case: dict[str, Any], tmp_path: Path, departures: dict[str, Any]) -> None:
    if any(step["op"] == "raw" for step in case["ops"]):
        return  # lines of other writers are only in files
    ledger = MemoryCaptureLedger()
    is_unchanged = check(case, await outcomes(ledger, tmp_path, case["ops"]), departures)
    manifest = await ledger.manifest(ROLLOUT)
    assert manifest.model_dump(mode="json") == case["manifest"] or not is_unchanged


def test_rollout_ids(document: dict[str, Any], departures: dict[str, Any]) -> None:
    changed = departures["ledger_ids_name_files"]["expected"]
    for entry in document["rollout_ids"]:
        if "error" in (entry if entry["rollout_id"][:1].isalnum() else changed):
            with pytest.raises(ValueError, match="cannot be a rollout id"):
                check_rollout_id(entry["rollout_id"])
        else:
            assert check_rollout_id(entry["rollout_id"]) == entry["rollout_id"]


def test_reasons(document: dict[str, Any]) -> None:
    """Their names are public, too."""
    assert {name: getattr(staging, name) for name in document["reasons"]} == document["reasons"]
    assert set(document["reasons"]) <= set(staging.__all__)
