"""The pieces of the benchmark, so that it still runs when somebody wants its figures."""

from __future__ import annotations

import json
import os
from pathlib import Path

import httpx
import pytest

from benchmarks import capture_cost
from benchmarks.capture_cost import Round, Samples, SyncCost
from gym_ray.model_call_capture.store import CaptureStore


@pytest.mark.parametrize("variant", capture_cost.VARIANTS)
def test_every_variant_serves_and_keeps_the_same_bytes(tmp_path: Path, variant: str) -> None:
    body = capture_cost.request_body()
    assert len(body) == capture_cost.REQUEST_BYTES
    with capture_cost.serve(variant, tmp_path) as server, httpx.Client(trust_env=False, timeout=20) as client:
        url = f"http://127.0.0.1:{server.port}/ng-rollout/bench-0/v1/chat/completions"
        response = client.post(url, content=body, headers={"content-type": "application/json"})
        assert (response.status_code, len(response.content)) == (200, capture_cost.RESPONSE_BYTES)
        assert server.rss_mib() > 1
        assert capture_cost.cpu_us(server.process.pid) > 0
        assert capture_cost.answer(server, body) == response.content
    if variant == "on":
        assert server.counts == {"records": 1, "appends": 1, "data_syncs": 1, "directory_syncs": 1}
        (record,) = CaptureStore(tmp_path).read("bench-0")
        assert record["request"] == json.loads(body)
        assert record["response"] == response.json()
    if variant == "bare":
        size = (tmp_path / "bench-0.bare").stat().st_size
        assert size > capture_cost.REQUEST_BYTES + capture_cost.RESPONSE_BYTES


def test_the_figures_follow_from_the_rounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples = Samples(
        syncs=[SyncCost(300.0, 60.0), SyncCost(200.0, 40.0)],
        orjson_us=[9.0, 11.0],
        counts={"records": 300, "appends": 200, "data_syncs": 200, "directory_syncs": 3},
    )
    for variant, requests, p50_us in (("off", 400, 100), ("on", 100, 900), ("bare", 200, 700)):
        for connections in (64, 1):
            samples.rounds[variant, connections] = [Round(requests, 1_000_000, p50_us, p50_us, 0, 5e5)] * 2
    rss = {"rss_first_mib": 50.0, "rss_last_mib": 52.5, "rss_calls": 50_000.0}
    figures = capture_cost.figures_of(samples, rss)
    assert figures["capture_on_over_bare_batcher_64"] == 0.5
    assert figures["capture_on_over_off_64"] == 0.25
    assert (figures["added_p50_ms_1"], figures["fdatasync_p50_ms"]) == (0.8, 0.25)
    assert figures["added_p50_allowed_ms_1"] == 0.875
    assert figures["server_rss_growth_mib_50k"] == 2.5
    assert figures["on_cpu_us_64"] == 5000
    assert figures["fsyncs_per_distinct_file_and_batch"] == 1
    assert (figures["added_cpu_us_64"], figures["orjson_cpu_us"]) == (3750, 10)
    assert (figures["added_cpu_over_orjson"], figures["bare_added_cpu_over_orjson"]) == (375, 125)
    assert figures["write_and_fdatasync_cpu_us"] == 50
    capture_cost.show(figures, samples)
    capture_cost.write_results(tmp_path / "results" / "x.json", figures, 2, 1)
    assert json.loads((tmp_path / "results" / "x.json").read_text())["figures"] == figures
    assert "0.500" in capsys.readouterr().out


def test_a_sync_is_measured_where_it_is_done(tmp_path: Path) -> None:
    cost = capture_cost.measure_sync(tmp_path, 100, 10)
    assert cost.wall_us > 0
    assert cost.cpu_us > 0
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 1000


def test_orjson_is_measured_on_the_same_bodies() -> None:
    assert capture_cost.orjson_cpu_us([capture_cost.request_body()], samples=200) > 0


@pytest.mark.parametrize(("kind", "refused"), [("tmpfs", True), ("ramfs", True), ("ext4", False)])
def test_a_directory_in_memory_is_refused(tmp_path: Path, kind: str, refused: bool) -> None:
    device = tmp_path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts = f"21 1 0:999 / /x rw - tmpfs tmpfs rw\n22 1 {number} / / rw,relatime shared:1 - {kind} /dev/vda rw\n"
    if refused:
        with pytest.raises(SystemExit, match=f"is a {kind}, where fdatasync is free"):
            capture_cost.check_disk(tmp_path, mounts)
    else:
        capture_cost.check_disk(tmp_path, mounts)
