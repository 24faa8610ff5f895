"""Which call ended a rollout: the cases of ``B_terminal.json``, from lists and from packed records."""

from __future__ import annotations

from typing import Any

import pytest

from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.records import TokenEntry
from gym_ray.token_id_capture.terminal import resolve_terminal


@pytest.mark.parametrize("record", [TokenEntry.model_validate, PackedEntry.of_json], ids=["lists", "packed"])
def test_terminal(case: dict[str, Any], record: Any) -> None:
    entries = [record(entry) for entry in case["entries"]]
    for given in (entries, entries[::-1]):
        found = resolve_terminal(
            given,
            case["response"],
            case["explicit_call_id"],
            declared_response_id=case["declared_response_id"],
        )
        assert found == (case["model_call_id"], case["method"], case["reason"])
