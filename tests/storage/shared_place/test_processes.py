"""Processes of this machine in place of nodes: they end, and take their files away, also with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gym_ray.errors import StorageError
from gym_ray.storage.shared_place.examining import examine
from gym_ray.storage.shared_place.judging import judge
from gym_ray.storage.shared_place.processes import process_nodes
from gym_ray.storage.shared_place.report import Mode

PARENT = """
import sys, time
from gym_ray.storage.shared_place.processes import process_nodes
if __name__ == "__main__":
    with process_nodes(sys.argv[1], {}, "run", 2) as nodes:
        for node in nodes:
            node.start("begin", True).result()
            node.start("prepare", []).result()
        print("ready", flush=True)
        time.sleep(60)
"""


def test_several_processes_examine_a_place(tmp_path: Path) -> None:
    root = tmp_path / "new"
    with process_nodes(str(root), {}, "run", 2) as nodes:
        report = judge(examine(str(root), nodes, is_store=False, watchers="test"))
    assert (report.mode, report.usable) == (Mode.FILES, True), report.findings
    assert not root.exists()
    assert all(node.process.exitcode == 0 for node in nodes)


def test_a_process_that_dies_is_a_lost_node(tmp_path: Path) -> None:
    with process_nodes(str(tmp_path), {}, "run", 2) as nodes:
        assert nodes[1].start("begin", False).result(50).there
        nodes[1].process.kill()
        with pytest.raises(StorageError, match="process 2 has ended"):
            nodes[1].start("clock").result(50)
        report = judge(examine(str(tmp_path), nodes, is_store=False, watchers="test"))
    assert [found.nodes for found in report.findings] == [("process 2",)]
    assert report.mode is Mode.UNUSABLE
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_parent_leaves_its_processes_take_away(tmp_path: Path) -> None:
    root, script = tmp_path / "new", tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen([sys.executable, script, root], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        assert parent.stdout.readline() == "ready\n"
        assert list(root.iterdir()) != []
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    until = time.monotonic() + 30
    while root.exists():
        assert time.monotonic() < until, list(root.rglob("*"))
        time.sleep(0.02)
