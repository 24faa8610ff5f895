"""A value larger than memory should be needs little of it; measured in fresh processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gym_ray.testing.s3_server import s3_server

MIB = 1024 * 1024

WRITER = """
import json, sys
from gym_ray.storage.opening import open_store

def memory(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))

where, options, size = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
store = open_store(where, storage_options=options)
piece = bytes(1024 * 1024)

def put(name, size):
    with store.stream(name) as value:
        for _ in range(size // len(piece)):
            value.write(piece)
        value.publish()

put("warm-up", len(piece))
before = memory("VmRSS")
put("large", size)
assert store.size("large") == size
print(memory("VmHWM") - before)
"""


def added_memory(where: str, options: dict[str, object], size: int) -> int:
    command = [sys.executable, "-c", WRITER, where, json.dumps(options), str(size)]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def test_a_large_file(tmp_path: Path) -> None:
    assert added_memory(str(tmp_path), {}, 256 * MIB) < 16 * MIB


def test_a_large_object() -> None:
    with s3_server() as server:
        assert added_memory(server.new_url(), server.options(), 112 * MIB) < 64 * MIB


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_gibibyte(tmp_path: Path) -> None:
    assert added_memory(str(tmp_path), {}, 1024 * MIB) < 16 * MIB
    with s3_server() as server:
        assert added_memory(server.new_url(), server.options(), 1024 * MIB) < 64 * MIB
