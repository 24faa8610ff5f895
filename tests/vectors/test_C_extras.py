"""The digest of extras (C90-C93): every type, what is refused, and the bytes that are hashed."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from gym_ray.testing.spelled_values import spelled
from gym_ray.token_id_capture.staging.constants import NO_EXTRAS_DIGEST
from gym_ray.token_id_capture.staging.digests import compute_extras_digest

ERRORS = {"ValueError": ValueError, "TypeError": TypeError, "UnicodeEncodeError": ValueError}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "extras" in metafunc.fixturenames:
        cases = json.loads((metafunc.config.getoption("--vectors") / "C_extras.json").read_text("utf-8"))["extras"]
        metafunc.parametrize("extras", cases, ids=[case["id"] for case in cases])


def test_no_extras(document: dict[str, Any]) -> None:
    assert document["empty_extras_digest"] == NO_EXTRAS_DIGEST


def test_extras(extras: dict[str, Any], departures: dict[str, Any]) -> None:
    value = spelled(extras["extras"])
    if "error" in extras:
        rule = departures["deep_extras_are_refused_by_name"]
        replaced = extras["error"] == rule["peer_error_class"]
        with pytest.raises(
            ValueError if replaced else ERRORS[extras["error"]], match=rule["match"] if replaced else "."
        ):
            compute_extras_digest(value)
        return
    assert compute_extras_digest(value) == extras["ok"]
    if extras.get("preimage_hex") is not None:
        assert hashlib.sha256(bytes.fromhex(extras["preimage_hex"])).hexdigest() == extras["ok"]
