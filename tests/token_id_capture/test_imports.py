from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

CODE = """
import importlib, pkgutil, sys
import gym_ray.token_id_capture as package

HEAVY = {"ray", "uvicorn", "torch"}
SERVERS = {"fastapi", "starlette", "aiohttp", "httpx", "requests"}
names = [module.name for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
needs_settings = [name for name in names if name.endswith(".config")]
for name in [name for name in names if name not in needs_settings]:
    importlib.import_module(name)
    assert not (HEAVY | SERVERS) & set(sys.modules), (name, (HEAVY | SERVERS) & set(sys.modules))
for name in needs_settings:
    importlib.import_module(name)
    assert not HEAVY & set(sys.modules), (name, HEAVY & set(sys.modules))
print(len(names))
"""


def test_the_package_loads_neither_ray_nor_a_server_nor_torch() -> None:
    run = subprocess.run(
        [sys.executable, "-c", CODE], cwd=ROOT, timeout=60, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 10
