from __future__ import annotations

from typing import Any

from gym_ray.dialects.terminal import TerminalScanner


def test_vector(case: dict[str, Any]) -> None:
    scanner = TerminalScanner(case["dialect"])
    found: dict[str, Any] = {"terminal": None, "at_chunk": None}
    for index, chunk in enumerate(case["chunks"]):
        terminal = scanner.feed(chunk.encode())
        if terminal is not None and found["terminal"] is None:
            found = {"terminal": terminal, "at_chunk": index}
    assert found in [case["expected"], *case.get("also_accept", [])]
    assert scanner.terminal == found["terminal"]
