"""The benchmark's load, where its load generator is installed."""

from __future__ import annotations

from pathlib import Path

from benchmarks import capture_cost


def test_a_load_is_counted(tmp_path: Path) -> None:
    body, captures = tmp_path / "body.json", tmp_path / "captures"
    body.write_bytes(capture_cost.request_body())
    captures.mkdir()
    with capture_cost.serve("on", captures) as server:
        result = capture_cost.load(server, body, connections=2, seconds=1, rollouts=4)
    assert result.requests > 0
    assert result.errors == 0
    assert result.rate > 0
    records = sum(path.read_bytes().count(b"\n") for path in captures.glob("*.capture.jsonl"))
    assert records >= result.requests
    assert len(list(captures.glob("*.capture.jsonl"))) == 4
