"""Runs over nodes that join and die, on a cluster of their own, and on nodes that are of no use (D168)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory, ray_environment: None) -> tuple[str, str]:
    """What the program of all scenarios wrote."""
    done = subprocess.run(
        [sys.executable, HERE / "programs" / "changing_nodes.py", tmp_path_factory.mktemp("nodes")],
        env=os.environ | {"PYTHONPATH": str(HERE.parents[1])},
        capture_output=True,
        text=True,
        timeout=360,
        check=False,
    )
    return done.stdout, done.stderr


@pytest.mark.parametrize("scenario", ["come and go", "of no use"])
def test_nodes_change_under_a_run(scenario: str, said: tuple[str, str]) -> None:
    assert f"ok {scenario}" in said[0].splitlines(), said[1]
