"""C_terminal.json: fingerprints, attribution over custody rows, and selection without a witness."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gym_ray.token_id_capture import resolve_terminal
from gym_ray.token_id_capture.fingerprint import FINGERPRINT_VERSION, assistant_fingerprint, conversation_digest
from gym_ray.token_id_capture.staging import CallRecord, select_terminal_call

SECTION_OF = {"hashed": "fingerprints", "attributed": "resolve", "selected": "select"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for argument, section in SECTION_OF.items():
        if argument in metafunc.fixturenames:
            document = json.loads((metafunc.config.getoption("--vectors") / "C_terminal.json").read_text("utf-8"))
            metafunc.parametrize(argument, [pytest.param(case, id=case["id"]) for case in document[section]])


def test_every_section_is_run(document: dict[str, Any]) -> None:
    assert set(document) == {*SECTION_OF.values(), "fingerprint_version"}
    assert document["fingerprint_version"] == FINGERPRINT_VERSION


def test_fingerprint(hashed: dict[str, Any]) -> None:
    assert assistant_fingerprint(hashed["items"]) == hashed["assistant_fingerprint"]
    assert conversation_digest(hashed["items"]) == hashed["conversation_digest"]


@pytest.mark.parametrize("step", [1, -1], ids=["in order", "reversed"])
def test_attribution(attributed: dict[str, Any], step: int) -> None:
    found = resolve_terminal(
        [CallRecord(**row) for row in attributed["rows"]][::step],
        attributed["response"],
        attributed["explicit_call_id"],
        declared_response_id=attributed["declared_response_id"],
    )
    expected = attributed["expect"]
    assert found == (expected["model_call_id"], expected["method"], expected["reason"])
    assert (found.model_call_id is not None) is expected["attributed"]


def test_selection(selected: dict[str, Any]) -> None:
    found = select_terminal_call([CallRecord(**row) for row in selected["rows"]])
    assert found._asdict() == selected["expect"]
