"""A directory examined from two real nodes: one cluster that sees one place, and one whose second node has another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from gym_ray.testing.small_disk import can_mount

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"

with tempfile.TemporaryDirectory() as tried:
    MOUNTS = can_mount(Path(tried))


def ran(*command: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env=os.environ | {"PYTHONPATH": str(HERE.parents[1]), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def codes(report: dict[str, Any]) -> list[str]:
    return [found["code"] for found in report["findings"] if found["severity"] == "error"]


def test_two_nodes_examine_a_directory(tmp_path: Path, ray_environment: None) -> None:
    shared, other = tmp_path / "shared", tmp_path / "other"
    shared.mkdir()
    other.mkdir()
    program = (PROGRAMS / "doctor_on_nodes.py", shared, other)
    done = ran(HERE / "two_nodes.py", "--", sys.executable, *program)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["good"]["mode"], told["good"]["usable"], codes(told["good"])) == ("files", True, [])
    assert (told["good"]["pairs"], told["good"]["watchers"]) == (1, "2 nodes of a Ray cluster")
    assert (told["locks"]["mode"], codes(told["locks"])) == ("unusable", ["locks"])
    assert (told["differs"]["mode"], told["differs"]["usable"], codes(told["differs"])) == (
        "hosted",
        False,
        ["differs"],
    )
    assert (told["dies"]["mode"], codes(told["dies"])) == ("unusable", ["lost"])
    assert (told["shared"], told["other"], told["missing"]) == ("", "", "")
    assert [path.name for path in shared.iterdir()] == ["new"], "the short check makes what a run would make"
    assert list((shared / "new").iterdir()) == list(other.iterdir()) == []


if MOUNTS:

    def test_a_node_with_another_mount_is_found(tmp_path: Path, ray_environment: None) -> None:
        shared, covered = tmp_path / "shared", tmp_path / "covered"
        shared.mkdir()
        covered.mkdir()
        script = tmp_path / "both.sh"
        doctor = f"{sys.executable} -m gym_ray doctor {covered} --patience 0.5"
        script.write_text(
            f"{doctor} --json; echo exit $?\n{doctor} --writer hosted >&2; echo exit $?\n"
            f"{sys.executable} {PROGRAMS / 'doctor_on_nodes.py'} {shared} {covered}\n"
        )
        done = ran(PROGRAMS / "mounted_elsewhere.py", "8m", covered, "--", "sh", script)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()  # with what Ray says of the process that ended itself
        report, first_exit, second_exit, told = lines[0], lines[1], lines[2], lines[-1]
        found = json.loads(report)
        assert (first_exit, second_exit) == ("exit 1", "exit 0")
        assert (found["mode"], found["usable"], codes(found)) == ("hosted", False, ["differs"])
        assert str(covered) in found["findings"][0]["what"]
        assert "tmpfs" in found["findings"][0]["what"]
        short = json.loads(told)["other"]
        assert short.startswith(f"ClusterError: {covered} on node 127.0.0.1 (")
        assert "is not the place that node 127.0.0.1" in short
        assert list(covered.iterdir()) == []
