"""The pieces of the benchmark, so that it still runs when somebody wants its figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import sse
from gym_ray.dialects import CHAT
from gym_ray.dialects.terminal import TerminalScanner


@pytest.mark.parametrize("name", sse.STREAMS)
def test_every_stream_is_read_whole(name: str) -> None:
    found = sse.probe(["reassembly", name, "40", "1"])
    assert found["events"] > 40
    assert found["orjson_s"] < 1e9
    assert found["reassemble_s"] < 1e9


@pytest.mark.parametrize("shape", sse.HUGE)
def test_every_huge_event_is_recorded(shape: str) -> None:
    found = sse.probe(["huge", shape, "100000", "1"])
    assert 0 < found["longest_feed_s"] < 1e9
    assert 0 < found["scan_s"] < 1e9
    assert 0 < found["record_s"] < 1e9


@pytest.mark.parametrize("shape", ["deltas", "one_event", "emoji"])
def test_memory_is_read_from_a_stream_that_was_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shape: str
) -> None:
    monkeypatch.setattr(sse, "RESULTS", tmp_path)
    found = sse.probe(["memory", shape, "100000", "4096"])
    assert found["sent_mib"] == pytest.approx(100000 / sse.MIB, rel=0.1)
    assert 0 < found["base_mib"] <= found["peak_mib"]


@pytest.mark.parametrize("shape", ["deltas", "emoji"])
def test_pieces_join_to_whole_events(shape: str) -> None:
    body = b"".join(sse.pieces_of(shape, 10_000, 512))
    events = [json.loads(event.removeprefix(b"data: ")) for event in body.split(b"\n\n")[:-1]]
    assert len(events) > 50
    assert TerminalScanner(CHAT).feed(body) is None


def test_a_process_of_its_own_measures(capsys: pytest.CaptureFixture[str]) -> None:
    assert sse.measure_reassembly("chat", 1, 40, 1) > 0
    found = sse.measure_huge("text", 1, 10_000)
    assert found["ratio"] > 0
    printed = capsys.readouterr().out
    assert "one event: orjson" in printed
    assert "16 MiB: scan" in printed
