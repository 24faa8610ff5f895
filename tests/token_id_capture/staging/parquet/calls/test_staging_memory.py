"""What staging adds to the memory of its process, measured in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MIB = 1024 * 1024

CHILD = """
import re, sys
from pathlib import Path
import numpy as np
from gym_ray.testing.numbered_calls import numbered_call
from gym_ray.token_id_capture.staging.parquet.calls.staging_sink import ParquetStagingSink

def status(name):
    return int(re.search(name + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

def peak_added_by(work):
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    work()
    return status("VmHWM") - before
"""

MEDIA = """
directory, nbytes, layout = sys.argv[1], int(sys.argv[2]), sys.argv[3]
block = np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8)
media = np.empty(nbytes, np.uint8)
for at in range(0, nbytes, block.size):
    media[at : at + block.size] = block
if layout == "strided":
    media = media.reshape(1024, -1, 4)[:, ::-1]
with ParquetStagingSink(directory, timeout_s=300) as sink:
    assert sink.stage(numbered_call(1), attachments={"warm": media[:2]}).ok
    result = []
    added = peak_added_by(lambda: result.append(sink.stage(numbered_call(2), attachments={"pixels": media})))
    assert result[0].ok, result[0].error
print(added)
"""

TOKENS = """
import threading
directory, calls, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
records = [numbered_call(number, tokens) for number in range(calls)]
with ParquetStagingSink(directory, timeout_s=300) as sink:
    assert sink.stage(numbered_call(calls)).ok
    threads = [threading.Thread(target=sink.stage, args=(record,)) for record in records]
    def stage_all():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    added = peak_added_by(stage_all)
    assert sink.stats().staged == calls + 1
print(added)
"""


def run(child: str, *arguments: object) -> int:
    command = [sys.executable, "-c", CHILD + child, *map(str, arguments)]
    return int(subprocess.run(command, check=True, capture_output=True, timeout=300).stdout)


@pytest.mark.parametrize("layout", ["plain", "strided"])
def test_a_large_attachment_is_never_copied_as_a_whole(tmp_path: Path, layout: str) -> None:
    assert run(MEDIA, tmp_path, 256 * MIB, layout) <= 128 * MIB


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_attachment_of_a_gibibyte(tmp_path: Path) -> None:
    assert run(MEDIA, tmp_path, 1024 * MIB, "plain") <= 128 * MIB


def test_a_batch_takes_at_most_32_bytes_a_token(tmp_path: Path) -> None:
    calls, tokens = 48, 100_000
    assert run(TOKENS, tmp_path, calls, tokens) <= 32 * calls * tokens + 64 * MIB
