"""What a worker is asked, what is taken out of its answer, and what the ledger keeps of it (C243-C255)."""

from __future__ import annotations

import copy
import json
from typing import Any

import httpx
import pytest

from gym_ray.dialects import CHAT
from gym_ray.errors import UnsupportedRequestError
from gym_ray.model_call_capture.exchanges.exchange import TrainingCall
from gym_ray.model_server.app import build_app
from gym_ray.model_server.external import staged_call
from gym_ray.model_server.external.reserved import take_coordinates
from gym_ray.model_server.external.worker_request import worker_request
from gym_ray.testing.fake_engine import FakeEngine
from gym_ray.token_id_capture.external_staging import ExternalStaging
from gym_ray.token_id_capture.kept_failures import FailureKeepingLedger
from gym_ray.token_id_capture.staging import CaptureAdmission
from gym_ray.token_id_capture.staging.ledger.memory_ledger import MemoryCaptureLedger

FILE = "C_external.json"
SECTIONS = {"prepared_request": "prepare_request", "prepared_response": "prepare_response", "finalized": "finalize"}
ADMITTED_AT = 7.5


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for argument in SECTIONS.keys() & set(metafunc.fixturenames):
        document = json.loads((metafunc.config.getoption("--vectors") / FILE).read_text("utf-8"))
        cases = document[SECTIONS[argument]]
        metafunc.parametrize(argument, cases, ids=[case["id"].partition("/")[2] for case in cases])


def staging(backend: Any) -> ExternalStaging:
    return ExternalStaging(FailureKeepingLedger(MemoryCaptureLedger(), timeout_s=5.0), backend, "secret")


def admission_of(case: dict[str, Any]) -> CaptureAdmission | None:
    return None if case["admission"] is None else CaptureAdmission.model_validate(case["admission"])


async def untouched(case: dict[str, Any]) -> Any:
    """Return what the engine of a server is asked on a path that is not captured, or not captured this way."""
    engine = FakeEngine(dialects=[CHAT])
    external = None if case["context"] == "internal" else staging(case["backend"])
    prefix = "/ng-rollout/r1/training-token-capture" if case["context"] == "internal" else ""
    app = build_app(engine, server_name="policy", capture=None, external=external)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
        assert (await client.post(f"{prefix}/v1/chat/completions", json=case["body"])).status_code == 200
    return engine.requests[-1].body


async def test_prepare_request(prepared_request: dict[str, Any], departures: dict[str, Any]) -> None:
    case, body = prepared_request, copy.deepcopy(prepared_request["body"])
    if case["context"] != "ctx":
        assert await untouched(case) == case["ok"]
        return
    if "error" in case:
        assert departures["a_captured_call_is_refused_as_the_clients_fault"]["peer_error"] == case["error"]
        with pytest.raises(UnsupportedRequestError) as refused:
            worker_request(body, admission_of(case), case["backend"])
        assert refused.value.status == 400
        return
    wanted = dict(case["ok"])
    forged = departures["no_client_forges_an_admission"]
    if case["id"] in forged["ids"]:
        assert wanted["ng_capture"] == {"evil": 1}
    if case["admission"] is None:
        wanted = {name: value for name, value in wanted.items() if name not in forged["members"]}
    assert worker_request(body, admission_of(case), case["backend"]) == wanted
    assert body == case["body"]


def test_prepare_response(prepared_response: dict[str, Any], departures: dict[str, Any]) -> None:
    case, payload = prepared_response, copy.deepcopy(prepared_response["payload"])
    coordinates = take_coordinates(payload) if case["external"] else None
    wanted = dict(case["after"])
    rule = departures["nothing_internal_is_left_at_the_top"]
    if case["external"]:
        found = [name for name in rule["members"] if wanted.pop(name, None)]
        assert case["id"] not in rule["ids"] or found == rule["members"]
    assert (payload, coordinates) == (wanted, case["parked_coords"])


async def test_finalize(finalized: dict[str, Any], departures: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    case, admission = finalized, admission_of(finalized)

    async def admit(_ledger: object, **_request: object) -> CaptureAdmission | None:
        return admission

    monkeypatch.setattr(staged_call, "admit", admit)
    external = staging("vllm_worker")
    called = TrainingCall("r1", "c1" if admission is None else admission.model_call_id)
    call = staged_call.StagedCall(external, called, admitted_at=ADMITTED_AT, size_bytes=0)
    served = case["served"]
    await call.admit([{"role": "user", "content": "hi"}])
    await call.commit(case["coords"], served, served["id"] or None)  # what the end of a call adds is in C_e2e.json
    found = (await external.ledger.manifest("r1")).model_dump(mode="json")
    await external.aclose()
    if case["id"] in departures["content_that_cannot_be_hashed_abstains"]["ids"]:
        assert found["failures"] == []
        (record,) = found["records"]
        assert (record["output_fingerprint"], record["continuation_fingerprint"]) == (None, None)
        assert (record["fingerprint_version"], record["response_id"]) == (0, served["id"])
        return
    assert found == case["manifest"]
    assert bool(found["records"]) == case["committed"]
