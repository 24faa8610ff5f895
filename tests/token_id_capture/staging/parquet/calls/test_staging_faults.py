"""A disk that fails at any one call: what was acknowledged is there, the rest left nothing, and the sink goes on."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gym_ray.errors import StorageError
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.posix import PosixStore
from gym_ray.testing.numbered_calls import numbered_call
from gym_ray.token_id_capture.staging.parquet.calls.staging_sink import ParquetStagingSink
from gym_ray.token_id_capture.staging.parquet.calls.staging_source import ParquetStagingSource

MEDIA = {"pixels": np.random.default_rng(0).integers(0, 256, 400_000, np.uint8), "names": [b"a", "b"]}


class FailingOnce(FileCalls):
    """Fails one call, counted over all of them but ``close``.

    Attributes:
        done: How many there were.
        failed: What failed.
    """

    _METHODS = ("open", "write", "sync", "link", "rename", "unlink", "makedirs", "fstat", "stat", "pread")

    def __init__(self, at: int, code: int) -> None:
        self.at, self.code, self.done, self.failed = at, code, 0, ""
        for name in self._METHODS:
            setattr(self, name, self._counted(name, getattr(super(), name)))

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            self.done += 1
            if self.done - 1 == self.at:
                self.failed = name
                raise OSError(self.code, os.strerror(self.code))
            return call(*arguments, **named)

        return counted


def count_of_calls(root: Path) -> int:
    calls = FailingOnce(-1, 0)
    with ParquetStagingSink("", store=PosixStore(root, calls=calls)) as sink:
        for number in range(2):
            assert sink.stage(numbered_call(number), attachments=MEDIA).ok
    return calls.done


def test_a_disk_that_fails_once_at_any_call(tmp_path: Path) -> None:
    failed = set()
    for at in range(count_of_calls(tmp_path / "whole")):
        root = tmp_path / str(at)
        calls = FailingOnce(at, errno.EIO if at % 2 else errno.ENOSPC)
        try:
            sink = ParquetStagingSink("", store=PosixStore(root, calls=calls))
        except StorageError:
            sink = ParquetStagingSink("", store=PosixStore(root, calls=calls))  # the disk works again
        with sink:
            results = [sink.stage(numbered_call(number), attachments=MEDIA) for number in range(2)]
            left = [path.name for path in root.rglob("*") if path.is_file() and path.name != "store.json"]
            if calls.failed == "unlink":  # what cannot be removed stays, hidden
                left = [name for name in left if not name.startswith(".")]
            assert len(left) == sum(result.ok for result in results), (calls.failed, left)
            again = [sink.stage(numbered_call(number), attachments=MEDIA) for number in range(2)]
        assert all(result.ok for result in again), calls.failed
        assert all(before == after for before, after in zip(results, again, strict=True) if before.ok)
        with ParquetStagingSource(root) as source:
            keys = [str(result.staging_key) for result in again]
            assert [snapshot.model_call_id for snapshot in source.fetch(keys)] == ["c0", "c1"]
            for key in keys:
                assert (source.open_attachment(key, "pixels").read() == MEDIA["pixels"]).all()
        failed.add(calls.failed)
    assert {"open", "write", "sync", "link", "makedirs"} <= failed
