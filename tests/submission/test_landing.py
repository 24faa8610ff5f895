"""A driver works in no directory but its own, and in none where what is written is not what is read (D136)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gym_ray.errors import StorageError
from gym_ray.submission import landing
from gym_ray.submission.landing import check_directory

JOB: dict[str, Any] = {"job_id": "gym-job-x", "name": "b"}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "gym-job-x" / "b"
    made.mkdir(parents=True)
    (made / "job.json").write_text(json.dumps(JOB))
    return made


def test_its_own_directory_is_left_as_it_was(directory: Path) -> None:
    check_directory(directory)
    assert [path.name for path in directory.iterdir()] == ["job.json"]


@pytest.mark.parametrize("told", [JOB | {"name": "a"}, JOB | {"job_id": "gym-job-y"}, {}, [], None])
def test_the_directory_of_another_job_or_benchmark_is_refused(directory: Path, told: Any) -> None:
    (directory / "job.json").write_text(json.dumps(told))
    with pytest.raises(StorageError, match="is damaged, or of another benchmark, on "):
        check_directory(directory)


def test_storage_that_shows_other_bytes_than_were_written_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landing, "replace_file", lambda _, path, data, mode: path.write_bytes(bytes(len(data))))
    with pytest.raises(StorageError, match="writes there is not what it reads"):
        check_directory(directory)
