"""``gym_ray.actors`` is importable in every way that people install or ship the project.

Each interpreter gets one clean environment with the dependencies; the project is then put into it as a wheel, as an
editable install, as the working directory of a Ray job, and as a wheel plus such a working directory.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
IMPORT = "import gym_ray.actors.cluster as c; print(c.__file__)"
DRIVEN = """
import json, pathlib, sys
sys.modules["ray"] = None  # neither planning nor the driver may need it
from gym_ray.submission.documents import read_submission
from gym_ray.submission.job_files import write_job
from gym_ray.submission.planning import plan_submit

here = pathlib.Path(sys.argv[1])
code = "import gym_ray.settings.assets as a; print(sorted(path.name for path in a.ASSETS_ROOT.iterdir()))"
command = [sys.executable, "-c", code]
whole = {
    "compute": {"c": {"type": "ray"}},
    "driver": {"benchmarks": {"b": {"command": command}}},
    "job": {"output_path": str(here)},
}
(here / "submit.yaml").write_text(json.dumps(whole))
plan = plan_submit(read_submission(here / "submit.yaml"), here / "gym-job-x")
print(write_job(plan, created_at=1.0).benchmark("b"))
"""
RAY_IMPORT = """
import ray, sys
working_dir = sys.argv[1]
ray.init(address="local", num_cpus=1, include_dashboard=False, _node_ip_address="127.0.0.1",
         logging_level="ERROR", runtime_env={"working_dir": working_dir} if working_dir else None)

@ray.remote
def where():
    import gym_ray.actors.cluster as c
    return c.__file__

print(ray.get(where.remote(), timeout=120))
"""


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "RAY_", "VIRTUAL_ENV"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"} | env,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


def interpreters() -> list[str]:
    """This interpreter, and each other supported one that the machine has."""
    found = [sys.executable]
    for minor in (11, 12, 13):
        if minor == sys.version_info.minor:
            continue
        pyenv = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python"))
        name = str(pyenv[-1]) if pyenv else shutil.which(f"python3.{minor}")
        if name and subprocess.run([name, "-c", ""], capture_output=True, check=False).returncode == 0:
            found.append(name)
    return found


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tracked files, links kept."""
    target = tmp_path_factory.mktemp("checkout")
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in listed.split("\0"):
        if not name or name.startswith("tests/") or not os.path.lexists(ROOT / name):
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name, follow_symlinks=False)
    assert (target / "gym_ray" / "actors").is_symlink()
    return target


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", out, checkout, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@dataclass(frozen=True)
class CleanEnvironment:
    python: Path
    elsewhere: Path

    def pip(self, *arguments: str | Path) -> None:
        quiet = ("--quiet", "--disable-pip-version-check")
        run(self.python, "-m", "pip", *arguments[:1], *quiet, *arguments[1:], cwd=self.elsewhere)

    def location(self) -> Path:
        return Path(run(self.python, "-c", IMPORT, cwd=self.elsewhere))

    def location_in_ray(self, working_dir: Path | None) -> Path:
        return Path(run(self.python, "-c", RAY_IMPORT, working_dir or "", cwd=self.elsewhere).splitlines()[-1])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "clean" in metafunc.fixturenames:
        found = interpreters() if metafunc.config.getoption("--all-interpreters") else [sys.executable]
        metafunc.parametrize("clean", found, indirect=True, ids=lambda path: "-".join(Path(path).parts[-3:]))


@pytest.fixture(scope="module")
def clean(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CleanEnvironment]:
    home = tmp_path_factory.mktemp("venv")
    if request.param == sys.executable:
        venv.create(home / "v", with_pip=True, symlinks=True)
    else:
        run(request.param, "-m", "venv", home / "v", cwd=home)
    environment = CleanEnvironment(home / "v" / "bin" / "python", home)
    environment.pip("install", wheel)
    yield environment
    shutil.rmtree(home, ignore_errors=True)


def test_the_wheel_holds_every_module_and_asset(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {str(p.relative_to(ROOT)) for p in (ROOT / "gym_ray").rglob("*.py") if "__pycache__" not in p.parts}
    expected |= {f"gym_ray/{p.relative_to(ROOT)}" for p in (ROOT / "actors").rglob("*.py")}
    expected |= {str(p.relative_to(ROOT)) for p in (ROOT / "gym_ray" / "assets").rglob("*.yaml")}
    expected.add("gym_ray/py.typed")
    assert expected - names == set()
    assert not [name for name in names if name.startswith(("actors/", "tests/", "examples/"))]
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_a_job_is_planned_and_driven_from_a_wheel(clean: CleanEnvironment, tmp_path: Path) -> None:
    directory = Path(run(clean.python, "-c", DRIVEN, tmp_path, cwd=clean.elsewhere))
    printed = run(clean.python, "-m", "gym_ray.submission.driver", directory, cwd=clean.elsewhere)
    assert "resources_servers" in printed, "what runs find settings of servers in is there"
    assert printed.splitlines()[-1] == "[driver] complete"
    assert json.loads((directory / "status.json").read_text())["state"] == "complete"


def test_all_four_ways_to_ship_it(clean: CleanEnvironment, wheel: Path, checkout: Path) -> None:
    assert "site-packages" in str(clean.location()), "as a wheel"
    assert "site-packages" in str(clean.location_in_ray(None)), "as a wheel, in a worker"
    shipped = clean.location_in_ray(checkout)
    assert "site-packages" not in str(shipped), "the working directory wins over the wheel"
    assert shipped.name == "cluster.py"

    clean.pip("uninstall", "--yes", "gym-ray")
    assert "site-packages" not in str(clean.location_in_ray(checkout)), "as a working directory alone"

    clean.pip("install", "--no-deps", "--editable", checkout)
    assert clean.location().resolve() == (checkout / "actors" / "cluster.py").resolve(), "editable"
    run(clean.python.parent / "gym-ray", "--help", cwd=clean.elsewhere)
