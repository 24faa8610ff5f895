"""A capture file that ends anywhere: what is whole is found, what is torn is counted, and the next record is safe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx

from gym_ray.dialects import CHAT, DIALECT_BY_PATH, MESSAGES, RESPONSES
from gym_ray.model_call_capture import CaptureStore
from gym_ray.model_call_capture.attachment import build_attachment
from gym_ray.storage.calls import FileCalls
from gym_ray.testing.captured_model import captured_model
from gym_ray.testing.fake_engine import FakeEngine

PATH_OF = {dialect: path for path, dialect in DIALECT_BY_PATH.items()}
BODIES: list[tuple[str, bytes]] = [
    (CHAT, b'{"messages":[],"seed":18446744073709551617,"note":"cut \\ud83d"}'),
    (RESPONSES, '{"input":"na\u00efve \u2028 \U0001f600","stream":true}'.encode()),
    (MESSAGES, b'{"messages":[],"broken":"\xff"'),
]


class NoSyncs(FileCalls):
    """Leaves syncs out: thousands of cuts need no durability."""

    def sync_data(self, fd: int) -> None:
        """Do nothing."""

    def sync(self, fd: int) -> None:
        """Do nothing."""


async def captured_file(directory: Path) -> bytes:
    async with (
        captured_model(directory, FakeEngine("\u00e9")) as model,
        httpx.AsyncClient(base_url=model.url, trust_env=False) as http,
    ):
        for dialect, body in BODIES:
            await http.post(f"/ng-rollout/0-0{PATH_OF[dialect]}", content=body)
    return CaptureStore(directory).path_for("0-0").read_bytes()


async def test_recovery_finds_exactly_the_records_that_end_before_the_cut(tmp_path: Path) -> None:
    whole = await captured_file(tmp_path / "written")
    lines = whole.split(b"\n")[:-1]
    assert len(lines) == len(BODIES)
    records = [json.loads(line) for line in lines]
    ends = [sum(len(line) + 1 for line in lines[: number + 1]) - 1 for number in range(len(lines))]
    (tmp_path / "cut").mkdir()
    store = CaptureStore(tmp_path / "cut", calls=NoSyncs())
    path, later = store.path_for("0-0"), {**records[0], "model_call_id": "later"}
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        complete = sum(end <= cut for end in ends)
        torn = int(cut > 0 and cut not in ends and cut - 1 not in ends)
        check(store, records[:complete], torn, cut)
        store.record("0-0", later)
        check(store, [*records[:complete], later], torn, cut)
        assert path.read_bytes().startswith(whole[:cut]), cut


def check(store: CaptureStore, expected: list[dict[str, Any]], torn: int, cut: int) -> None:
    found, invalid = store.read_available("0-0")
    assert [record for _, record in found] == expected, cut
    assert invalid == torn, cut
    attachment = build_attachment("0-0", store.snapshot("0-0"))
    assert [call["model_call_id"] for call in attachment["calls"]] == [one["model_call_id"] for one in expected], cut
    gaps = [gap["code"] for gap in attachment.get("gaps", [])]
    unreadable = ["model_call_capture_records_unreadable"] * torn
    assert gaps == (unreadable or ["model_call_capture_no_records"] * (not expected)), cut
