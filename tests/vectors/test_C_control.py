"""C_control.json: what the control routes answer."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from gym_ray.model_server.control_routes import control_routes
from gym_ray.token_id_capture.staging import CallRecord, CaptureLedgerCommit, ManifestFailure, MemoryCaptureLedger

SECRET = "s3cret"


@pytest.fixture
def known(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The manifest that the vectors' server has."""
    directory = request.config.getoption("--vectors")
    cases = json.loads((directory / "C_control.json").read_text("utf-8"))["cases"]
    return next(case["body"] for case in cases if case["id"] == "control/ok")


async def ledger_of(manifest: dict[str, Any]) -> MemoryCaptureLedger:
    ledger = MemoryCaptureLedger()
    for row in manifest["records"]:
        record = CallRecord(**row)
        commit = CaptureLedgerCommit(
            rollout_id=manifest["rollout_id"],
            record=record,
            staging_chain=[record.staging_key],
            request_items=[],
            response_items=[],
        )
        await ledger.record(commit)
    for row in manifest["failures"]:
        failure = ManifestFailure(**row)
        await ledger.record_failure(manifest["rollout_id"], failure.model_call_id, failure.reason)
    return ledger


async def test_vector(case: dict[str, Any], known: dict[str, Any], departures: dict[str, Any]) -> None:
    ledger = await ledger_of(known)
    if "path" not in case:
        assert case["error"] == "ValueError"
        with pytest.raises(ValueError, match="bearer token"):
            control_routes(ledger, "")
        return
    changed = departures["headers_of_any_bytes_are_compared"]
    expected = {**case, **changed["expected"]} if case["id"] in changed["ids"] else case
    app = Starlette(routes=control_routes(ledger, SECRET))
    headers = [(name, value.encode("utf-8")) for name, value in case["headers"].items()]
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        answer = await client.request(case["method"], httpx.URL(f"http://server{case['path']}"), headers=headers)
    assert answer.status_code == expected["status"]
    assert answer.json() == expected["body"]
