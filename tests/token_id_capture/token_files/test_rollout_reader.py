"""What a resolver reads of a file, held against what a snapshot holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from gym_ray.testing.token_source import call_entry
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.records import TOKEN_ARRAYS
from gym_ray.token_id_capture.store import TokenCaptureStore
from gym_ray.token_id_capture.token_files.entry_lines import encode_entry
from gym_ray.token_id_capture.token_files.packed_lines import LINES_AT_ONCE


def contents(entry: PackedEntry) -> list[object]:
    arrays = [getattr(entry, name) for name in TOKEN_ARRAYS]
    return [[(array.dtype, array.tolist()) for array in arrays], repr(entry.rest)]


@pytest.mark.parametrize("step", [1, LINES_AT_ONCE - 1, LINES_AT_ONCE, LINES_AT_ONCE + 1, 1000])
def test_a_resolver_reads_the_records_of_a_snapshot(step: int, tmp_path: Path) -> None:
    store = TokenCaptureStore(tmp_path)
    lines = []
    for number in range(2 * LINES_AT_ONCE + 3):
        entry = call_entry(f"c{number}", [number, 2**33 if number % 7 == 0 else 1], [3])
        update = {"rollout_id": "r", "generation_log_probs": [-0.1 if number % 3 else -0.5]}
        lines.append(encode_entry(entry.model_copy(update=update)))
        if number % 10 == 0:
            lines.append([b"no json\n", b"\n", b"[]\n", lines[-1].replace(b"[3]", b"[-3]")][number // 10 % 4])
    cursor, read = None, []
    with (tmp_path / "r.tokens.jsonl").open("ab", buffering=0) as file:
        for start in range(0, len(lines), step):
            file.write(b"".join(lines[start : start + step]))
            since = store.read_since("r", cursor)
            assert not since.restarted
            cursor = since.cursor
            read += since.entries
    packed, problems = store.read_packed("r")
    assert problems
    assert [contents(entry) for entry in read] == [contents(entry) for entry in packed]
    assert len(read) == 2 * LINES_AT_ONCE + 3
