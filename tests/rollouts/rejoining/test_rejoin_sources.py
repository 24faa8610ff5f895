"""What a reply brought is found by its rollout, and never another one's."""

from __future__ import annotations

from pathlib import Path

import pytest

from gym_ray import exact_json
from gym_ray.rollouts.rejoining import rejoin_sources
from gym_ray.rollouts.rejoining.rejoin_sources import Sources


def _sources(tmp_path: Path, *lines: dict[str, object]) -> Path:
    path = tmp_path / "sources.jsonl"
    path.write_bytes(b"".join(exact_json.dumps(line) + b"\n" for line in lines))
    return path


def test_the_last_line_of_a_rollout_counts(tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [{"rollout_id": name, "n": n} for n, name in enumerate(["a", "b", "a", "b", "c"])]
    with Sources(_sources(tmp_path, *lines)) as sources:
        assert [sources.find(name) for name in ("a", "b", "c", "d")] == [{"n": 2}, {"n": 3}, {"n": 4}, None]
        assert sources.complete


def test_rollouts_of_one_hash_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejoin_sources, "_hash", len)
    path = _sources(tmp_path, {"rollout_id": "a", "n": 1}, {"rollout_id": "b", "n": 2})
    with Sources(path) as sources:
        assert [sources.find(name) for name in ("a", "b", "c")] == [{"n": 1}, {"n": 2}, None]
