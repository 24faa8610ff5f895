"""An inference worker can load staging: it brings no file format, no network and no tensors (C18)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gym_ray.token_id_capture.staging as package

ROOT = Path(__file__).parents[3]

CODE = """
import sys
import gym_ray.token_id_capture.staging as package
for name in package.__all__:
    getattr(package, name)
heavy = {"pyarrow", "fsspec", "httpx", "starlette", "uvicorn", "torch", "ray", "aiohttp", "requests", "s3fs", "adlfs"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""

# What the contract's package of this name has; a framework changes one import.
OF_THE_CONTRACT = """
CallRecord CaptureAdmission CaptureLedgerCommit CommitCoords ManifestFailure RolloutManifest RolloutReceipt
RolloutRemoval StageResult StagedCallBaseSnapshot StagedCallRecord StagedCallSnapshot
build_staging_delta compute_chain_hash compute_extras_digest compute_prefix_hash compute_staging_digest
default_staging_key
LinearizedRow RebuildError ReceiptVerificationError linearize verify_and_linearize
"""


def test_the_package_loads_nothing_heavy() -> None:
    run = subprocess.run(
        [sys.executable, "-c", CODE], cwd=ROOT, timeout=60, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


def test_the_package_has_the_names_of_the_contract() -> None:
    assert set(OF_THE_CONTRACT.split()) <= set(package.__all__)
    assert len(set(package.__all__)) == len(package.__all__)
