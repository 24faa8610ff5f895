"""A run in a directory of its own, for tests of collections without a cluster."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gym_ray.rollouts.collection import Collection, CollectionSettings
from gym_ray.rollouts.ports import RolloutPort
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.rows.materialised_rows import MaterialisedRows
from gym_ray.rollouts.run_files.frames import FrameKind, read_frames
from gym_ray.rollouts.run_files.ledger_log import LedgerLog
from gym_ray.rollouts.run_files.run_log import RunOutputs
from gym_ray.rollouts.run_files.run_start import RunLock, begin_run
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.storage.calls import FileCalls
from gym_ray.token_id_capture.mask_limit import MaskLimit

__all__ = ["BegunRun"]


class BegunRun:
    """A run that has begun in a directory of its own, with rows of the agent ``a``. Close it.

    Args:
        directory: Where input and outputs lie.
        rows: How many rows; each is a task of its own.
        calls: How the ledger calls the operating system.
        output: Name of its main output.

    Attributes:
        paths, rows, outputs, log: The parts of the run.
    """

    def __init__(
        self, directory: Path, rows: int, calls: FileCalls | None = None, *, output: str = "out.jsonl"
    ) -> None:
        source = directory / "in.jsonl"
        row = {"responses_create_params": {"input": "q"}, "agent_ref": {"name": "a"}}
        source.write_text("".join(json.dumps({**row, "n": n}) + "\n" for n in range(rows)))
        self.paths = RunPaths.of(directory / output)
        self.held = ExitStack()
        lock = self.held.enter_context(RunLock(self.paths))
        begin_run(lock, source, RowOptions())
        self.rows = self.held.enter_context(MaterialisedRows(self.paths.materialised))
        self.outputs = self.held.enter_context(RunOutputs(self.paths))
        self.log = self.held.enter_context(LedgerLog(self.paths.ledger, calls=calls))

    def close(self) -> None:
        """Close the files; safe to repeat."""
        self.held.close()

    def collection(self, port: RolloutPort, mask_limit: MaskLimit | None = None, **settings: Any) -> Collection:
        """Return a collection over the run; ``index``, ``state`` and ``order`` go to it, the rest to its settings."""
        settings.setdefault("join_backoff_s", 0.001)
        resumed = {name: settings.pop(name) for name in ("index", "state", "order") if name in settings}
        limits = CollectionSettings(**settings)
        return Collection(self.rows, self.outputs, self.log, port, limits, mask_limit, **resumed)

    def records(self) -> dict[str, dict[str, Any]]:
        """Return the stored records of both outputs by attempt.

        Raises:
            AssertionError: Two records are of one attempt.
        """
        found = {}
        for path in (self.paths.output, self.paths.failures):
            for line in path.read_text().splitlines():
                record = json.loads(line)
                attempt = record.get("_ng_attempt_index")
                key = f"{record['_ng_task_index']}-{record['_ng_rollout_index']}" + (f"-a{attempt}" if attempt else "")
                if key in found:
                    raise AssertionError(f"two records of {key}")
                found[key] = record
        return found

    def started(self) -> list[bytes]:
        """Return the digests of the attempts that are durable as started."""
        return [frame.digest for frame in read_frames(self.paths.ledger) if frame.kind is FrameKind.STARTED]
