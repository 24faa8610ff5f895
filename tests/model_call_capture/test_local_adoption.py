"""Where open logs of this machine lie: nobody else may have a say in which calls count as lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from gym_ray.capture_location import CaptureLocation
from gym_ray.errors import CaptureError
from gym_ray.model_call_capture.opening import open_capture_writer
from gym_ray.model_call_capture.writer import CaptureWriter


def opened(where: str, local_dir: Path) -> CaptureWriter:
    return open_capture_writer(
        CaptureLocation.of(where),
        server_name="policy",
        url=None,
        run_token=None,
        capture_timeout_s=30,
        redactor=None,
        local_dir=local_dir,
    )


def test_they_lie_where_only_their_owner_can_look(tmp_path: Path) -> None:
    local_dir = tmp_path / "gym-ray-1000"
    opened("memory://adoption/captures", local_dir).close()
    assert local_dir.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in local_dir.iterdir()] == ["open-logs"]


def test_a_link_in_their_place_is_refused_and_nothing_is_written_through_it(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "own").symlink_to(tmp_path / "theirs")
    with pytest.raises(CaptureError, match=f"open logs of model servers cannot be kept: {tmp_path / 'own'}: is a link"):
        opened("memory://adoption/captures", tmp_path / "own")
    assert list((tmp_path / "theirs").iterdir()) == []


def test_a_directory_of_everybody_is_refused_only_where_it_would_be_used(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own").chmod(0o777)
    with pytest.raises(CaptureError, match="others can write to it"):
        opened("memory://adoption/captures", tmp_path / "own")
    opened(str(tmp_path / "captures"), tmp_path / "own").close()  # its open log lies beside the captures
