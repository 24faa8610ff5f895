from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gym_ray.model_call_capture.writer import CaptureWriter
from gym_ray.testing.storage_faults import FaultyCalls

collect_ignore = [] if shutil.which("strace") else ["test_system_calls.py"]


@pytest.fixture
def calls() -> FaultyCalls:
    return FaultyCalls()


@pytest.fixture
def writer(tmp_path: Path, calls: FaultyCalls) -> Iterator[CaptureWriter]:
    writer = CaptureWriter(tmp_path / "captures", server_name="policy_model", calls=calls, capture_timeout_s=20)
    writer.start()
    yield writer
    if calls.sync_gate is not None:
        calls.sync_gate.set()
    writer.close(20)
