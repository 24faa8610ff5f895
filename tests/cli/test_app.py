"""The command itself: what it prints reaches any terminal."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from gym_ray.cli.app import main
from gym_ray.testing.token_source import call_entry
from gym_ray.token_id_capture.store import TokenCaptureStore


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
async def test_evidence_that_a_terminal_cannot_spell_is_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    store = TokenCaptureStore(tmp_path)
    await store.put(call_entry("c0", range(40), [2], rollout_id="r0", response_id="\ud800\N{SNOWMAN}"))
    await store.end_call("r0", "c1", "untrainable", "odd: \udfff")
    await store.close()
    terminal = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    monkeypatch.setattr(sys, "argv", ["gym-ray", "captures", "tokens", str(tmp_path), "r0"])
    with pytest.raises(SystemExit) as ended:
        main()
    terminal.flush()
    printed = terminal.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]
    assert not ended.value.code
    assert "odd call c1 \\udfff" in printed
    assert "\\ud800" in printed
    assert ("\N{SNOWMAN}" if encoding == "utf-8" else "\\u2603") in printed
