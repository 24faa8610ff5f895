"""What was acknowledged outlives a power cut, which forgets everything that was not synced."""

from __future__ import annotations

from pathlib import Path

from gym_ray.storage.posix import PosixStore
from gym_ray.testing.storage_faults import ForgetfulCalls
from gym_ray.testing.token_source import call_entry
from gym_ray.token_id_capture.protocols import TokenCaptureSnapshot
from gym_ray.token_id_capture.staging.parquet import ParquetTokenSink, ParquetTokenSource

ROLLOUT = "3-1"


class PowerCut:
    """A directory, and what a power cut would leave of it."""

    def __init__(self, root: Path) -> None:
        self.calls, self._root, self._cuts = ForgetfulCalls(), root, 0
        self.store = PosixStore(root / "live", calls=self.calls)

    def left(self) -> Path:
        self._cuts += 1
        left, live = self._root / f"left-{self._cuts}", self._root / "live"
        for folder in (live, *(path for path in live.rglob("*") if path.is_dir())):
            target = left / folder.relative_to(live)
            target.mkdir(parents=True, exist_ok=True)
            for name, data in self.calls.after_power_cut(folder).items():
                (target / name).write_bytes(data)
        return left

    async def frozen(self) -> TokenCaptureSnapshot:
        source = ParquetTokenSource(self.left())
        snapshot = await source.freeze(ROLLOUT)
        await source.close()
        return snapshot


async def test_every_acknowledged_step_is_there(tmp_path: Path) -> None:
    cut = PowerCut(tmp_path)
    sink = ParquetTokenSink(cut.store.root, store=cut.store)
    source = ParquetTokenSource(cut.store.root, store=cut.store)
    await sink.begin_call(ROLLOUT, "c0")
    assert [problem.reason for problem in (await cut.frozen()).problems] == ["call_without_record"]
    await sink.put(call_entry("c0", [1], [2]))
    snapshot = await cut.frozen()
    assert (len(snapshot.entries), snapshot.incomplete) == (1, False)
    await sink.begin_call(ROLLOUT, "c1")
    await sink.end_call(ROLLOUT, "c1", "withdrawn")
    assert not (await cut.frozen()).incomplete
    await sink.end_call(ROLLOUT, "c2", "untrainable", "usage_missing")
    assert [problem.reason for problem in (await cut.frozen()).problems] == ["usage_missing"]
    live = await source.freeze(ROLLOUT)
    again = await cut.frozen()
    assert (again.snapshot_id, again.version) == (live.snapshot_id, live.version)
    assert await source.drop(ROLLOUT, snapshot_id=live.snapshot_id, version=live.version)
    left = ParquetTokenSource(cut.left())
    assert await left.drop(ROLLOUT, snapshot_id=live.snapshot_id, version=live.version)
    for client in (sink, source, left):
        await client.close()
