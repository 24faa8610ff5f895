from __future__ import annotations

import os
from pathlib import Path

import pytest

from gym_ray.errors import StorageError
from gym_ray.rollouts.rejoin_sources import Sources


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_what_cannot_be_read_is_named_and_leaves_nothing_open(tmp_path: Path) -> None:
    unreadable = tmp_path / "sources.jsonl"
    unreadable.mkdir()
    before = descriptors()
    with pytest.raises(StorageError, match=r"sources\.jsonl"):
        Sources(unreadable)
    assert descriptors() == before


def test_a_run_that_kept_none_tells_nothing_of_what_replies_brought(tmp_path: Path) -> None:
    with Sources(tmp_path / "sources.jsonl") as sources:
        assert not sources.complete
        assert sources.find("0-0") is None


def test_the_last_line_of_a_rollout_counts_and_a_damaged_one_makes_the_file_incomplete(tmp_path: Path) -> None:
    path = tmp_path / "sources.jsonl"
    path.write_bytes(b'{"rollout_id":"0-0","a":1}\n\n{"rollout_id":"0-1"}\n{"rollout_id":"0-0","a":2}\n')
    with Sources(path) as sources:
        assert sources.complete
        assert [sources.find(name) for name in ("0-0", "0-1", "0-2")] == [{"a": 2}, {}, None]
    path.write_bytes(path.read_bytes() + b"{half\n")
    with Sources(path) as sources:
        assert not sources.complete
        assert sources.find("0-0") == {"a": 2}
