"""A disk that is really full, where this system lets a test mount one; tests of each failing call are elsewhere."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from gym_ray.testing.small_disk import can_mount, on_small_disk

WRITER = """
import os, sys
from pathlib import Path
from gym_ray.errors import StorageError
from gym_ray.storage.posix import PosixStore

root = Path(sys.argv[1])
store = PosixStore(root)
kept = {}

def stream(name, data):
    with store.stream(name) as value:
        for start in range(0, len(data), 1000):
            value.write(data[start:start + 1000])
        value.publish()

def fill(put, size):
    for number in range(10_000):
        name, data = f"{put.__name__}-{number}", os.urandom(size)
        try:
            put(name, data)
        except StorageError as error:
            assert "No space left" in str(error), error
            return number
        kept[name] = data
    raise AssertionError("the disk is not full")

assert fill(stream, 300_000) > 2
fill(store.create, 20_000)
fill(store.publish, 2_000)
fill(stream, 1)
assert sorted(store.list()) == sorted(kept)
assert sorted(os.listdir(root)) == sorted(kept)
assert all(store.read(name) == data for name, data in kept.items())
store.delete("stream-0")
stream("again", bytes(200_000))
assert store.size("again") == 200_000
print("done")
"""

with tempfile.TemporaryDirectory() as tried:
    MOUNTS = can_mount(Path(tried))

if MOUNTS:

    def test_a_full_disk_loses_nothing_and_keeps_nothing_half(tmp_path: Path) -> None:
        command = on_small_disk(tmp_path, "2m", [sys.executable, "-c", WRITER, str(tmp_path)])
        ended = subprocess.run(command, capture_output=True, text=True, timeout=50)
        assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr
        assert list(tmp_path.iterdir()) == []
