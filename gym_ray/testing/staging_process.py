"""A process that stages calls until it is killed, and says of each, after it was acknowledged, where it is.

Run as ``python -m gym_ray.testing.staging_process <directory> <number of the first call>``. It writes
``<number> <key>`` lines, each in one system call; what a number stands for, :func:`staged_of` says.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from pathlib import Path
from typing import Any

from gym_ray.testing.numbered_calls import media_of_call, numbered_call
from gym_ray.token_id_capture.staging.parquet.calls.staging_sink import ParquetStagingSink
from gym_ray.token_id_capture.staging.records import StagedCallRecord

__all__ = ["staged_of"]

_THREADS = 6
_TOKENS = 300


def staged_of(number: int) -> tuple[StagedCallRecord, dict[str, Any] | None]:
    """Return what the process stages for a number: two calls of three have media, some of them much."""
    media = media_of_call(number, 400_000 if number % 7 == 0 else 10_000) if number % 3 else None
    return numbered_call(number, _TOKENS), media


def stage_for_ever(directory: Path, first: int) -> None:
    """Stage calls on several threads; returns only where a call was not kept."""
    sink = ParquetStagingSink(directory)
    numbers = itertools.count(first)

    def work() -> None:
        for number in numbers:
            record, media = staged_of(number)
            result = sink.stage(record, attachments=media)
            if not result.ok:
                raise SystemExit(result.error)
            os.write(1, f"{number} {result.staging_key}\n".encode())

    threads = [threading.Thread(target=work) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    stage_for_ever(Path(sys.argv[1]), int(sys.argv[2]))
