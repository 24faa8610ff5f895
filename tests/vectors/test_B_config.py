"""The block ``token_id_capture``, what it loads, who takes part, and the control token (B126-B130)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gym_ray.testing.token_sinks import NotingTokenSink
from gym_ray.token_id_capture.config import (
    NonGeneratingRequest,
    TokenIdCaptureConfig,
    agent_takes_part,
    build_lineage_store,
    build_sink,
    control_auth_token,
    read_token_capture,
)

SECTIONS = {
    "defaults": "defaults",
    "settings": "cases",
    "request_case": "non_generating_requests",
    "agent": "agent_selection",
    "directory": "dirs",
    "control": "control_token",
}
OWN_KEYS = {
    "retire_after_delivery",
    "training_rows",
    "mask_fraction_window",
    "on_unproven_prefix",
    "source",
    "source_kwargs",
    "staging",
}
MESSAGES = {
    "dir_not_absolute": "is not absolute",
    "unknown_key": "Extra inputs are not permitted",
    "sink_without_lineage": "would find its parent",
    "no_dir": "nowhere to go",
    "external_needs_enabled": "set enabled to true",
    "external_needs_no_rebuild": "set rebuild_response to false",
    "backend_needs_external": "megatron_worker works with external_staging",
    "empty_string": "at least 1 character",
    "not_an_object": "valid dictionary",
    "bad_method": "should be an HTTP method|valid string",
    "bad_path": "should begin with /",
    "wildcard_path": "one exact path",
    "load_failed": "cannot be imported|has no class|names no class",
    "construct_failed": "cannot be made",
    "protocol_unsatisfied": "lacks (put|mark_incomplete)",
    "no_control_token": "not set or empty",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for argument in SECTIONS.keys() & set(metafunc.fixturenames):
        document = json.loads((metafunc.config.getoption("--vectors") / "B_config.json").read_text("utf-8"))
        cases = document[SECTIONS[argument]]
        metafunc.parametrize(argument, cases, ids=[case.get("name", "") for case in cases])


class _NoMark:
    async def put(self, entry: object) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the vectors name in ``__main__``."""
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "GoodSink", NotingTokenSink, raising=False)
    monkeypatch.setattr(main, "NoMark", _NoMark, raising=False)


def matcher(error: dict[str, Any]) -> Any:
    """Expect an error of the class that the case names, in our words."""
    known = {"ValidationError": ValidationError, "ValueError": ValueError}
    return pytest.raises(known[error["class"]], match=MESSAGES.get(error["kind"], error["kind"]))


def test_defaults(defaults: dict[str, Any], departures: dict[str, Any]) -> None:
    made = TokenIdCaptureConfig().model_dump()
    assert {name: value for name, value in made.items() if name not in OWN_KEYS} == {
        **defaults,
        **departures["prompts_are_stored_as_deltas"]["expected"],
    }


def test_case(settings: dict[str, Any], departures: dict[str, Any]) -> None:
    block = settings["config"].get("token_id_capture") or {}
    ranges = departures["shares_are_checked"]["ranges"].items()
    given = {name: block[name] for name, _ in ranges if isinstance(block.get(name), int | float)}
    if any(name in given and not low <= given[name] <= high for name, (low, high) in ranges):
        with pytest.raises(ValidationError, match="mask_fraction"):
            read_token_capture(settings["config"])
        return
    if "error" in settings:
        with matcher(settings["error"]):
            read_token_capture(settings["config"])
        return
    read = read_token_capture(settings["config"])
    found = read.token_id_capture.resolved_dir(read.model_call_capture_dir)
    wanted = settings["ok"]
    assert read.token_id_capture.enabled == wanted["enabled"]
    assert found == (wanted["resolved_dir"] and Path(wanted["resolved_dir"]))
    if "build" in settings:
        _build(read.token_id_capture, settings["build"])


def _build(config: TokenIdCaptureConfig, wanted: dict[str, Any]) -> None:
    if "error" in wanted:
        with matcher(wanted["error"]):
            build_sink(config)
    else:
        assert type(build_sink(config)).__name__ == wanted["ok"]
        assert build_lineage_store(config) is None


def test_non_generating(request_case: dict[str, Any]) -> None:
    if "error" in request_case:
        with matcher(request_case["error"]):
            NonGeneratingRequest.model_validate(request_case["input"])
    else:
        assert NonGeneratingRequest.model_validate(request_case["input"]).model_dump() == request_case["ok"]


def test_agent(agent: dict[str, Any]) -> None:
    assert agent_takes_part(agent["config"], agent["agent"]) == agent["enabled"]


def test_directory(directory: dict[str, Any]) -> None:
    read = read_token_capture(directory["config"])
    found = read.token_id_capture.dir_in_use(read.model_call_capture_dir)
    assert [str(found)] * (found is not None) == directory["dirs"]


def test_control(control: dict[str, Any]) -> None:
    assert control["env_unset"]
    with matcher(control["error"]):
        control_auth_token(TokenIdCaptureConfig(), {})
