"""The index of a run by place: the frame of the record that lies at an offset, at 45 bytes a frame."""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path

import numpy as np

from gym_ray.errors import StorageError
from gym_ray.rollouts.run_files.frames import Frame
from gym_ray.rollouts.run_files.run_index import FILES, finished_frame, read_index
from gym_ray.rollouts.run_paths import Written

__all__ = ["PlacedFrames"]


class PlacedFrames:
    """Frames of finished attempts, to be found by the place of their record.

    An index that is missing or damaged has no frames here; the next resume says so, and builds it again.

    Args:
        path: The index.

    Attributes:
        problem: Why an index that is there has no frames here; None where it could be read.
    """

    def __init__(self, path: Path) -> None:
        self.problem: str | None = None
        places, ordinals, times = array("Q"), array("Q"), array("Q")
        attempts, flags = array("I"), array("I")
        try:
            for frame in read_index(path) if path.exists() else ():
                places.append(frame.offset * len(FILES) + frame.file)
                ordinals.append(frame.ordinal)
                times.append(frame.at_us)
                attempts.append(frame.attempt)
                flags.append(frame.flags)
        except StorageError as error:
            self.problem = str(error)
            del places[:]
        self._ordinals, self._times, self._attempts, self._flags = ordinals, times, attempts, flags
        self._order = np.argsort(np.array(places, np.uint64), kind="stable")
        self._places = np.array(places, np.uint64)[self._order]

    def find(self, written: Written) -> Frame | None:
        """Return the frame of a record, with its place and digest; None where the index does not name it."""
        place = np.uint64(written.offset * len(FILES) + FILES.index(written.file))
        behind = int(np.searchsorted(self._places, place, "right"))
        if not behind or self._places[behind - 1] != place:
            return None
        at = int(self._order[behind - 1])
        frame = finished_frame(self._ordinals[at], self._attempts[at], written)
        return replace(frame, at_us=self._times[at], flags=self._flags[at])
