"""The command line of a job, as a shell runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gym_ray.cli.jobs.entrypoint import entrypoint


def run(command: str, directory: Path, path: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": path, "HOME": os.environ["HOME"]}
    return subprocess.run(
        command, shell=True, cwd=directory, env=environ, capture_output=True, text=True, timeout=30, check=False
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A directory that holds the package in small: a driver that says who runs it with what."""
    room = tmp_path / "checkout" / "gym_ray" / "submission"
    room.mkdir(parents=True)
    (room.parent / "__init__.py").touch()
    (room / "__init__.py").touch()
    (room / "driver.py").write_text("import sys\nprint(sys.executable, *sys.argv[1:], sep='|')\n")
    (tmp_path / "checkout" / "ray.py").touch()
    return tmp_path / "checkout"


@pytest.mark.parametrize("name", ["a", "it's; $HOME `x`"])
def test_the_interpreter_of_the_command_is_taken_where_it_fits(checkout: Path, name: str) -> None:
    done = run(entrypoint(checkout / name, python=None, here=sys.executable), checkout, "/usr/bin:/bin")
    assert done.stdout.strip() == f"{sys.executable}|{checkout / name}"


def test_another_is_looked_for_where_it_is_not(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    bare = tmp_path / "bin" / "python"  # one without what is needed
    bare.write_text("#!/bin/sh\nexit 1\n")
    fit = tmp_path / "bin" / "python3"
    fit.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    bare.chmod(0o755)
    fit.chmod(0o755)
    command = entrypoint(checkout / "a", python=None, here="/nowhere/python")
    assert run(command, checkout, f"{tmp_path}/bin:/usr/bin:/bin").stdout.strip().endswith(f"|{checkout / 'a'}")


def test_none_at_all_is_said(tmp_path: Path) -> None:
    done = run(entrypoint(tmp_path / "a", python=None, here="/nowhere/python"), tmp_path, str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("gym-ray: no interpreter here has both ray and gym_ray; tried: /nowhere/python, ")


def test_a_named_interpreter_is_the_only_one(checkout: Path) -> None:
    assert entrypoint(Path("/jobs/j/b"), python="/opt/py thon", here=sys.executable) == (
        "exec '/opt/py thon' -m gym_ray.submission.driver /jobs/j/b"
    )
